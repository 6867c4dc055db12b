"""A small random model of every family that we run, as transformers makes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers as hf

from tests.engine.forward_driver import make_model

LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 32}


@dataclass(frozen=True)
class Family:
    """``name`` is that of transformers' classes; ``settings`` go beyond those of :func:`make_model`.

    ``plain``: a Llama's layers, with Qwen's biases and norms; then the fused path must take it. ``reach`` is how long
    a context may become, where that is less than the model's positions.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    plain: bool = True
    reach: int = 512

    def make(self, folder: Path, seed: int = 0) -> Any:
        """Save a model as float32 safetensors and return it."""
        config = "Gemma3TextConfig" if self.name == "Gemma3" else f"{self.name}Config"
        return make_model(getattr(hf, f"{self.name}ForCausalLM"), getattr(hf, config), folder, seed, **self.settings)


FAMILIES: dict[str, Family] = {
    "llama": Family("Llama"),
    "llama, untied, every head its own key": Family(
        "Llama", {"tie_word_embeddings": False, "num_key_value_heads": 4}),
    "llama, eight heads for one key": Family(
        "Llama", {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 32}),
    "llama, three wide heads a key": Family(
        "Llama", {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 132, "head_dim": 64}),
    "llama, biases everywhere": Family("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, odd sizes": Family("Llama", {"hidden_size": 76, "intermediate_size": 101, "head_dim": 32}),
    "llama 3 positions": Family("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "linear positions": Family(
        "Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}}),
    "dynamic positions": Family(
        "Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 4.0}}),
    "yarn positions": Family("Llama", {"rope_parameters": YARN}),
    "yarn positions, with all it can have": Family("Qwen2", {"rope_parameters": YARN | {
        "mscale": 0.8, "mscale_all_dim": 1.2, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False}}),
    "mistral": Family("Mistral", {"sliding_window": None, "tie_word_embeddings": False}),
    "mistral, up to its window": Family("Mistral", {"sliding_window": 160}, reach=160),
    "qwen2": Family("Qwen2"),
    "qwen2, some layers with a window": Family(
        "Qwen2", {"use_sliding_window": True, "sliding_window": 160, "max_window_layers": 1}, reach=160),
    "qwen3": Family("Qwen3", {"head_dim": 32}),
    "gemma 3": Family("Gemma3", {
        "head_dim": 64, "sliding_window": 24, "query_pre_attn_scalar": 100, "num_hidden_layers": 4,
        "initializer_range": 0.06,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 50_000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}}, plain=False),
    "mixtral": Family("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}, plain=False),
    "qwen3 moe": Family("Qwen3Moe", {
        "head_dim": 32, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
        "norm_topk_prob": True, "mlp_only_layers": [1], "tie_word_embeddings": False}, plain=False),
    "qwen3 moe, weights as they come": Family("Qwen3Moe", {
        "head_dim": 32, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
        "norm_topk_prob": False, "decoder_sparse_step": 2, "attention_bias": True}, plain=False),
}  # fmt: skip
