"""The decoder: one class for all families, driven by the configuration.

With the plain operations and the plain attention this is the reference: it runs on any device and in any
floating-point type, and every faster path is tested against it. On a GPU it is given kernels for both. It computes
the logits only of the tokens that are sampled from: in a prefill chunk that is the last one or none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import embedding, linear

from engine.attention import AttentionBackend, Batch, HeadNorms
from engine.model import operations as plain
from engine.model.config import ModelConfig
from engine.model.operations import Operations
from engine.model.weights import expert_names


@dataclass(slots=True)
class Layer:
    """The weights of one layer; projections that share an input are stacked into one.

    ``mlp_norm`` comes before the feed-forward. A layer with experts has no feed-forward of its own; its matrices
    ``gate_up`` and ``down`` are then empty.
    """

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
    attention_post_norm: torch.Tensor | None = None
    mlp_post_norm: torch.Tensor | None = None
    experts: Experts | None = None


@dataclass(slots=True)
class Experts:
    """A mixture of experts: for each expert a feed-forward, and the router that chooses some for each token."""

    router: torch.Tensor  # (experts, hidden)
    gate_up: torch.Tensor  # (experts, gate rows, then up rows, hidden)
    down: torch.Tensor  # (experts, hidden, size of an expert)


class Decoder:
    """Embedding, layers, final norm and head. ``weights`` is emptied on the way, so that nothing is held twice."""

    def __init__(
        self, config: ModelConfig, weights: dict[str, torch.Tensor], max_model_len: int, operations: Operations = plain
    ) -> None:
        self.config = config
        self._operations = operations
        self.embedding = weights.pop("model.embed_tokens.weight")
        self.layers = [_take_layer(config, weights, index) for index in range(config.num_layers)]
        self.norm = _norm_weight(config, weights.pop("model.norm.weight"))
        self.head = self.embedding if config.tie_word_embeddings else weights.pop("lm_head.weight")
        self.cos, self.sin = self._angles(max_model_len, local=False)  # float32 (positions, head size / 2)
        self._local_angles = self._angles(max_model_len, local=True) if config.local_rope else None
        # A factor is rounded to the type of what it multiplies, as transformers does it.
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=self.embedding.dtype).item()

    def _angles(self, length: int, local: bool) -> tuple[torch.Tensor, torch.Tensor]:
        rope = self.config.local_rope if local and self.config.local_rope else self.config.rope
        cos, sin = rope.table(length, self.config.head_size)
        return torch.from_numpy(cos).to(self.embedding.device), torch.from_numpy(sin).to(self.embedding.device)

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    def forward(self, batch: Batch, attention: AttentionBackend, out: torch.Tensor | None = None) -> torch.Tensor:
        """Logits of the tokens sampled from: float32 (samples, vocabulary), put into ``out`` if there is one."""
        config = self.config
        attention.begin(batch)
        # (tokens, head size / 2)
        angles = tuple(table[batch.positions] for table in (self.cos, self.sin))
        local = angles
        if self._local_angles is not None:
            local = tuple(table[batch.positions] for table in self._local_angles)
        hidden = embedding(batch.token_ids, self.embedding)
        if config.embedding_scale != 1.0:
            hidden = hidden * self._embedding_scale
        heads, eps = config.num_heads + 2 * config.num_kv_heads, config.rms_norm_eps
        rms_norm, add_rms_norm = self._operations.rms_norm, self._operations.add_rms_norm
        output: torch.Tensor | None = None  # of the last layer, to be added to the residual stream `hidden`
        for index, layer in enumerate(self.layers):
            if output is None:
                normed = rms_norm(hidden, layer.input_norm, eps)
            else:
                normed, hidden = add_rms_norm(output, hidden, layer.input_norm, eps)
            qkv = linear(normed, layer.qkv, layer.qkv_bias).view(-1, heads, config.head_size)
            norms = None
            if layer.query_norm is not None and layer.key_norm is not None:
                norms = HeadNorms(layer.query_norm, layer.key_norm, eps)
            cos, sin = local if config.window(index) else angles
            queries = attention.write(index, qkv, cos, sin, norms, batch)
            attended = attention.attend(index, queries, batch)
            output = linear(attended.flatten(1), layer.output, layer.output_bias)
            if layer.attention_post_norm is not None:
                output = rms_norm(output, layer.attention_post_norm, eps)
            normed, hidden = add_rms_norm(output, hidden, layer.mlp_norm, eps)
            output = self._feed_forward(layer, normed)
            if layer.mlp_post_norm is not None:
                output = rms_norm(output, layer.mlp_post_norm, eps)
        assert output is not None, "a model has layers"
        sampled, _ = add_rms_norm(output[batch.sample_rows], hidden[batch.sample_rows], self.norm, eps)
        logits = linear(sampled, self.head)
        return logits.float() if out is None else out.copy_(logits)

    def _feed_forward(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        if layer.experts is not None:
            return self._mixture(layer.experts, x)
        gate_up = linear(x, layer.gate_up, layer.gate_up_bias)
        return linear(self._operations.gated(gate_up, self.config.activation), layer.down, layer.down_bias)

    def _mixture(self, experts: Experts, x: torch.Tensor) -> torch.Tensor:
        """Every token through the experts that the router likes best, weighted by how much it likes them."""
        liking = torch.softmax(linear(x, experts.router).float(), dim=-1)
        weights, chosen = liking.topk(self.config.num_experts_per_token, dim=-1)  # (tokens, experts per token)
        if self.config.normalize_experts:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        if self.config.round_experts:
            weights = weights.to(x.dtype)
        return self._operations.experts(x, weights, chosen, experts.gate_up, experts.down, self.config.activation)


def _take_layer(config: ModelConfig, weights: dict[str, torch.Tensor], index: int) -> Layer:
    prefix = f"model.layers.{index}."

    def take(name: str) -> torch.Tensor:
        return weights.pop(prefix + name)

    def take_optional(name: str) -> torch.Tensor | None:
        return weights.pop(prefix + name, None)

    def stack(*names: str) -> torch.Tensor:
        return torch.cat([take(name) for name in names])

    def take_norm(name: str) -> torch.Tensor:
        return _norm_weight(config, take(f"{name}.weight"))

    qkv = [f"self_attn.{part}_proj" for part in "qkv"]
    gate_up = ["mlp.gate_proj", "mlp.up_proj"]
    experts = _take_experts(config, weights, prefix) if config.has_experts(index) else None
    input_norm = take_norm("input_layernorm")
    nothing = input_norm.new_empty(0)
    after_attention = take_norm("post_attention_layernorm")  # in Gemma of its output, elsewhere of the feed-forward
    return Layer(
        input_norm=input_norm,
        qkv=stack(*(f"{name}.weight" for name in qkv)),
        qkv_bias=stack(*(f"{name}.bias" for name in qkv)) if config.qkv_bias else None,
        output=take("self_attn.o_proj.weight"),
        output_bias=take_optional("self_attn.o_proj.bias"),
        query_norm=take_norm("self_attn.q_norm") if config.qk_norm else None,
        key_norm=take_norm("self_attn.k_norm") if config.qk_norm else None,
        mlp_norm=take_norm("pre_feedforward_layernorm") if config.post_norms else after_attention,
        gate_up=nothing if experts else stack(*(f"{name}.weight" for name in gate_up)),
        gate_up_bias=stack(*(f"{name}.bias" for name in gate_up)) if config.mlp_bias else None,
        down=nothing if experts else take("mlp.down_proj.weight"),
        down_bias=take_optional("mlp.down_proj.bias"),
        attention_post_norm=after_attention if config.post_norms else None,
        mlp_post_norm=take_norm("post_feedforward_layernorm") if config.post_norms else None,
        experts=experts,
    )


def _take_experts(config: ModelConfig, weights: dict[str, torch.Tensor], prefix: str) -> Experts:
    names = expert_names(config)

    def take(name: str, expert: int = 0) -> torch.Tensor:
        return weights.pop(f"{prefix}{name.format(expert)}.weight")

    count = range(config.num_experts)
    return Experts(
        router=take(names.router),
        gate_up=torch.stack([torch.cat([take(names.gate, expert), take(names.up, expert)]) for expert in count]),
        down=torch.stack([take(names.down, expert) for expert in count]),
    )


def _norm_weight(config: ModelConfig, weight: torch.Tensor) -> torch.Tensor:
    """The factors of a norm: as stored, or (Gemma) one more, which bfloat16 is too coarse for."""
    return 1.0 + weight.float() if config.norm_offset else weight
