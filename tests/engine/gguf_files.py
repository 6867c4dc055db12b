"""Writes GGUF files as llama.cpp's converter would: from a Hugging Face folder, or a small model made on the spot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import pre_tokenizers

Quant = gguf.GGMLQuantizationType

ARCHITECTURES = {
    "LlamaForCausalLM": "llama", "MistralForCausalLM": "llama", "MixtralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3", "Qwen3MoeForCausalLM": "qwen3moe",
    "Gemma3ForCausalLM": "gemma3",
}  # fmt: skip

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp", "w1": "ffn_gate_exps", "w2": "ffn_down_exps", "w3": "ffn_up_exps",
    "gate_proj": "ffn_gate_exps", "down_proj": "ffn_down_exps", "up_proj": "ffn_up_exps",
}  # fmt: skip
GEMMA_NAMES = NAMES | {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip


def add_tokenizer(writer: gguf.GGUFWriter, vocab_size: int, model: str = "gpt2") -> None:
    """A byte-level tokenizer: the end of a text, the bytes, and as far as there is room a merge and fillers."""
    tokens = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "he"]
    tokens = [*tokens[:vocab_size], *(f"filler{i}" for i in range(vocab_size - len(tokens)))]
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(["h e"] if "he" in tokens else [])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}")


def write_from_folder(
    folder: Path, path: Path, kind: Callable[[str], Quant] = lambda name: Quant.F32, tokenizer: bool = True,
    more: Callable[[gguf.GGUFWriter], None] | None = None,
) -> None:  # fmt: skip
    """The model of a Hugging Face folder as a GGUF file; ``kind`` says in which format to store a tensor."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    architecture = config["architectures"][0]
    arch = ARCHITECTURES[architecture]
    writer = gguf.GGUFWriter(path, arch)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(rope, head))
    experts = config.get("num_local_experts", 0)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if arch == "qwen3moe":
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if arch == "gemma3":
        writer.add_sliding_window(config["sliding_window"])
        local = config["rope_parameters"]["sliding_attention"]["rope_theta"]
        writer.add_float32("gemma3.rope.freq_base_swa", local)
        writer.add_array("gemma3.attention.sliding_window_pattern",
                         [kind == "sliding_attention" for kind in config["layer_types"]])
    if tokenizer:
        add_tokenizer(writer, config["vocab_size"])
    if more is not None:
        more(writer)
    for name, tensor in theirs(load_file(folder / "model.safetensors"), architecture, heads, kv_heads).items():
        stored = kind(name) if tensor.ndim > 1 else Quant.F32
        writer.add_tensor(name, gguf.quants.quantize(tensor, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def theirs(tensors: dict[str, torch.Tensor], architecture: str, heads: int, kv_heads: int) -> dict[str, np.ndarray]:
    """Tensors by llama.cpp's names and in its order; experts of a layer in one."""
    names = GEMMA_NAMES if architecture == "Gemma3ForCausalLM" else NAMES
    out: dict[str, Any] = {}
    for name, tensor in sorted(tensors.items()):
        array = tensor.float().numpy()
        stem, _, kind = name.rpartition(".")
        if architecture == "Gemma3ForCausalLM" and "norm" in name:
            array = array + 1
        if not stem.startswith("model.layers."):
            out[f"{names[stem]}.{kind}"] = array
            continue
        _, _, layer, part = stem.split(".", 3)
        if architecture in ("LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"):
            if part == "self_attn.q_proj":
                array = permute(array, heads)
            elif part == "self_attn.k_proj":
                array = permute(array, kv_heads)
        if ".experts." in part:
            _, expert, matrix = part.rsplit(".", 2)
            out.setdefault(f"blk.{layer}.{names[matrix]}.{kind}", {})[int(expert)] = array
        else:
            out[f"blk.{layer}.{names[part]}.{kind}"] = array
    return {name: np.stack([value[e] for e in sorted(value)]) if isinstance(value, dict) else value
            for name, value in out.items()}  # fmt: skip


def permute(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp wants them for Llama: the two halves of each rotation side by side."""
    size = array.shape[0] // heads
    rows = [head * size + half * (size // 2) + pair
            for head in range(heads) for pair in range(size // 2) for half in range(2)]  # fmt: skip
    return array[rows]


def llama3_factors(rope: dict[str, Any], head: int) -> np.ndarray:
    """By what llama.cpp divides the frequencies of Llama 3.1."""
    factors = []
    for pair in range(head // 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (2 * pair / head)
        turns = rope["original_max_position_embeddings"] / wavelength
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        if turns > high:
            factors.append(1.0)
        elif turns < low:
            factors.append(rope["factor"])
        else:
            smooth = (turns - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)
