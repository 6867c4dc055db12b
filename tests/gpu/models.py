"""Models with random weights: small ones as files, for what must be right, and large ones made on the device."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from engine.config import EngineConfig
from engine.model.config import ModelConfig
from engine.model.weights import weight_shapes
from engine.runner import Runner


@dataclass(frozen=True)
class Size:
    """A model's shape: ``settings`` are what its ``config.json`` holds."""

    name: str
    settings: dict[str, Any] = field(repr=False)

    @property
    def config(self) -> ModelConfig:
        return ModelConfig.from_dict(self.settings)

    def step_bytes(self, itemsize: int) -> int:
        """Bytes of weights that a decode step reads: all, but of an embedding that is not the head only some rows."""
        config = self.config
        count = config.num_parameters
        if not config.tie_word_embeddings:
            count -= config.vocab_size * config.hidden_size
        return count * itemsize

    def step_operations(self) -> int:
        """Floating-point operations of the matrix products for one token of a prompt, without head and attention."""
        config = self.config
        count = config.num_parameters - config.vocab_size * config.hidden_size * (2 - config.tie_word_embeddings)
        return 2 * count


def _llama(**settings: Any) -> dict[str, Any]:
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True, "eos_token_id": 2, "bos_token_id": 1} | settings  # fmt: skip


SMOLLM2 = Size("SmolLM2-135M", _llama(
    vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
    num_key_value_heads=3, max_position_embeddings=8192, rope_theta=100000.0))
QWEN3 = Size("Qwen3-0.6B", {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True, "eos_token_id": 151645, "bos_token_id": 151643})
LLAMA_8B = Size("Llama-3.1-8B", _llama(
    vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=8, max_position_embeddings=131072, rope_theta=500000.0, tie_word_embeddings=False,
    rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 8192}))
TINY = Size("tiny", _llama(
    vocab_size=211, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=64, max_position_embeddings=8192, rope_theta=10000.0))
"""For the interpreter."""

SIZES = (SMOLLM2, QWEN3, LLAMA_8B)


@contextmanager
def folder_of(size: Size) -> Iterator[Path]:
    """A folder with the configuration and no weights."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / size.name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(size.settings), encoding="utf-8")
        yield folder


def make_runner(size: Size, config: EngineConfig) -> Runner:
    """A runner of the GPU's kernels whose weights are drawn on the device instead of read."""

    def drawn(folder: Path, shape: ModelConfig, dtype: torch.dtype, device: str, *rest: object) -> dict[str, Any]:
        return {name: random_weight(name, shape, dtype, device) for name, shape in weight_shapes(shape).items()}

    with folder_of(size) as folder, mock.patch("engine.model.weights.load_weights", drawn):
        return Runner(folder, replace(config, forward_path="triton"))


def random_weight(name: str, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """As a fresh model has them: norms of one, all else small."""
    if "norm" in name:
        return torch.ones(shape, dtype=dtype, device=device)
    return torch.randn(shape, dtype=dtype, device=device).mul_(0.02)


def make_transformers(size: Size, dtype: torch.dtype, device: str) -> Any:
    """The same shape as transformers' own model, with random weights, on the device."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with folder_of(size) as folder:
        config = AutoConfig.from_pretrained(folder)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
