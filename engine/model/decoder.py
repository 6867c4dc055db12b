"""The decoder: one class for the whole Llama family, in plain torch.

This is the reference. It runs on any device and in any floating-point type, and every faster path is tested against
it. It computes the logits only of the tokens that are sampled from: in a prefill chunk that is the last one or none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import embedding, linear, silu

from engine.attention import AttentionBackend, Batch
from engine.model.config import ModelConfig


@dataclass(slots=True)
class Layer:
    """The weights of one layer; projections that share an input are stacked into one."""

    input_norm: torch.Tensor
    qkv: torch.Tensor  # (query, key and value rows, hidden)
    qkv_bias: torch.Tensor | None
    output: torch.Tensor
    output_bias: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor  # (gate rows, then up rows, hidden)
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


class Decoder:
    """Embedding, layers, final norm and head. ``weights`` is emptied on the way, so that nothing is held twice."""

    def __init__(self, config: ModelConfig, weights: dict[str, torch.Tensor], max_model_len: int) -> None:
        self.config = config
        self.embedding = weights.pop("model.embed_tokens.weight")
        self.layers = [_take_layer(config, weights, index) for index in range(config.num_layers)]
        self.norm = weights.pop("model.norm.weight")
        self.head = self.embedding if config.tie_word_embeddings else weights.pop("lm_head.weight")
        cos, sin = config.rope.table(max_model_len, config.head_size)
        self.cos = torch.from_numpy(cos).to(self.embedding.device)  # float32 (positions, head size / 2)
        self.sin = torch.from_numpy(sin).to(self.embedding.device)

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    def forward(self, batch: Batch, attention: AttentionBackend) -> torch.Tensor:
        """Logits of the tokens sampled from: float32 (samples, vocabulary)."""
        config = self.config
        attention.begin(batch)
        cos = self.cos[batch.positions].unsqueeze(1)  # (tokens, 1, head size / 2): the same for every head
        sin = self.sin[batch.positions].unsqueeze(1)
        hidden = embedding(batch.token_ids, self.embedding)
        heads, kv_heads, head_size = config.num_heads, config.num_kv_heads, config.head_size
        for index, layer in enumerate(self.layers):
            normed = rms_norm(hidden, layer.input_norm, config.rms_norm_eps)
            qkv = linear(normed, layer.qkv, layer.qkv_bias).view(-1, heads + 2 * kv_heads, head_size)
            query, key, value = qkv.split((heads, kv_heads, kv_heads), dim=1)
            if layer.query_norm is not None and layer.key_norm is not None:
                query = rms_norm(query, layer.query_norm, config.rms_norm_eps)
                key = rms_norm(key, layer.key_norm, config.rms_norm_eps)
            attended = attention.attend(index, rotate(query, cos, sin), rotate(key, cos, sin), value, batch)
            hidden = hidden + linear(attended.flatten(1), layer.output, layer.output_bias)
            normed = rms_norm(hidden, layer.mlp_norm, config.rms_norm_eps)
            gate, up = linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            hidden = hidden + linear(silu(gate) * up, layer.down, layer.down_bias)
        sampled = rms_norm(hidden[batch.sample_rows], self.norm, config.rms_norm_eps)
        return linear(sampled, self.head).float()


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Scale the last dimension to a root mean square of one, in float32, then by ``weight``."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return wide.to(x.dtype) * weight


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn every pair ``(i, i + head size / 2)`` of the last dimension by its position's angle, in float32."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def _take_layer(config: ModelConfig, weights: dict[str, torch.Tensor], index: int) -> Layer:
    prefix = f"model.layers.{index}."

    def take(name: str) -> torch.Tensor:
        return weights.pop(prefix + name)

    def take_optional(name: str) -> torch.Tensor | None:
        return weights.pop(prefix + name, None)

    def stack(*names: str) -> torch.Tensor:
        return torch.cat([take(name) for name in names])

    qkv = [f"self_attn.{part}_proj" for part in "qkv"]
    gate_up = ["mlp.gate_proj", "mlp.up_proj"]
    return Layer(
        input_norm=take("input_layernorm.weight"),
        qkv=stack(*(f"{name}.weight" for name in qkv)),
        qkv_bias=stack(*(f"{name}.bias" for name in qkv)) if config.qkv_bias else None,
        output=take("self_attn.o_proj.weight"),
        output_bias=take_optional("self_attn.o_proj.bias"),
        query_norm=take_optional("self_attn.q_norm.weight"),
        key_norm=take_optional("self_attn.k_norm.weight"),
        mlp_norm=take("post_attention_layernorm.weight"),
        gate_up=stack(*(f"{name}.weight" for name in gate_up)),
        gate_up_bias=stack(*(f"{name}.bias" for name in gate_up)) if config.mlp_bias else None,
        down=take("mlp.down_proj.weight"),
        down_bias=take_optional("mlp.down_proj.bias"),
    )
