"""What a decoder looks like: :class:`ModelConfig`, read from a Hugging Face ``config.json``.

The families that we run share one shape: RMSNorm, rotary positions, grouped-query attention, a gated feed-forward.
They differ in a handful of switches (biases, norms on queries and keys, experts, how positions are stretched), and
those switches are all that this module reads. Whatever else a configuration asks for is refused here, before any
weight is loaded, because a decoder that ignores a field answers with plausible nonsense.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.model.rope import SUPPORTED_ROPE_TYPES, Rope

# Names from the "architectures" field of config.json, and what transformers takes where a configuration is silent.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"max_position_embeddings": 2048},
    "MistralForCausalLM": {
        "max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
    "Qwen2ForCausalLM": {"max_position_embeddings": 32768, "num_key_value_heads": 32},
    "Qwen3ForCausalLM": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128},
    "Gemma3ForCausalLM": {
        "max_position_embeddings": 131072, "num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "sliding_window": 4096,
        "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0},
    "MixtralForCausalLM": {
        "max_position_embeddings": 131072, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0,
        "num_local_experts": 8, "num_experts_per_tok": 2},
    "Qwen3MoeForCausalLM": {
        "max_position_embeddings": 32768, "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768},
}  # fmt: skip

SUPPORTED_ARCHITECTURES = tuple(_DEFAULTS)
"""SmolLM2 and TinyLlama call themselves Llama, Qwen2.5 calls itself Qwen2."""

_ACTIVATIONS = {"silu": "silu", "swish": "silu"}
_GEMMA_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh"}


class UnsupportedModel(ValueError):
    """The folder holds no model that this engine can run. The message says what it is and what would do."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder. Field names follow vLLM and Hugging Face."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_position: int  # how long a context may be: no further than positions, and a sliding window, reach
    rms_norm_eps: float = 1e-6
    rope: Rope = field(default_factory=Rope)
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False  # of the projection after attention
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm on every head's query and key, as Qwen3 has
    # Gemma 3
    activation: str = "silu"  # of the feed-forward's gate: "silu" or "gelu_tanh"
    embedding_scale: float = 1.0
    query_scale: float | None = None  # that attention scores are scaled by; None: head_size ** -0.5
    post_norms: bool = False  # norms also after attention and after the feed-forward
    norm_offset: bool = False  # a norm multiplies by one plus its weight
    windows: tuple[int, ...] = ()  # for each layer how many tokens it looks back on, itself included; 0: all
    local_rope: Rope | None = None  # of the layers that have a window
    # Mixture of experts
    num_experts: int = 0
    num_experts_per_token: int = 0
    expert_size: int = 0  # an expert's intermediate_size
    normalize_experts: bool = True  # whether the chosen experts' weights are made to add up to one
    round_experts: bool = True  # whether those weights are rounded to the model's own type
    dense_layers: frozenset[int] = frozenset()  # layers with an ordinary feed-forward all the same

    dtype: str = "float32"  # that the weights are stored in
    eos_token_ids: tuple[int, ...] = ()

    @property
    def num_parameters(self) -> int:
        """How many weights there are; tied embeddings count once."""
        from math import prod

        from engine.model.weights import weight_shapes

        return sum(prod(shape) for shape in weight_shapes(self).values())

    @property
    def attention_scale(self) -> float:
        """What the products of queries and keys are multiplied by."""
        return self.head_size**-0.5 if self.query_scale is None else self.query_scale

    def window(self, layer: int) -> int:
        """How many tokens the layer looks back on, the token itself included; 0: on all."""
        return self.windows[layer] if self.windows else 0

    def has_experts(self, layer: int) -> bool:
        return self.num_experts > 0 and layer not in self.dense_layers

    def bytes_per_token(self, bytes_per_element: int) -> int:
        """Bytes of keys and values that one token takes in all layers together."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size * bytes_per_element

    @classmethod
    def load(cls, folder: Path) -> ModelConfig:
        """Read ``folder/config.json`` (and end-of-sequence ids from ``generation_config.json`` where there is one).

        Raises :class:`UnsupportedModel` if there is no readable configuration or it asks for something else.
        """
        raw = _read_json(folder / "config.json")
        if raw is None:
            raise UnsupportedModel(f"{folder} is no model folder: it holds no config.json")
        generation = _read_json(folder / "generation_config.json") or {}
        return cls.from_dict(raw, generation, where=str(folder))

    @classmethod
    def from_dict(
        cls, raw: dict[str, Any], generation: dict[str, Any] | None = None, where: str = "config.json"
    ) -> ModelConfig:
        """The same from the files' contents; ``where`` is named in error messages."""
        architecture = _architecture(raw, where)
        raw = _DEFAULTS[architecture] | raw
        try:
            settings = _common(architecture, raw)
            if architecture == "Gemma3ForCausalLM":
                settings |= _gemma3(raw)
            elif architecture in ("MixtralForCausalLM", "Qwen3MoeForCausalLM"):
                settings |= _experts(architecture, raw)
            config = cls(architecture, **settings, eos_token_ids=_eos_token_ids(raw, generation or {}))
            config._check(raw)
        except KeyError as missing:
            raise UnsupportedModel(f"{where}: the configuration lacks {missing.args[0]!r}") from None
        except UnsupportedModel as error:
            raise UnsupportedModel(f"{where}: {error}") from None
        except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise UnsupportedModel(f"{where}: the configuration cannot be read: {error}") from None
        return config

    def _check(self, raw: dict[str, Any]) -> None:
        """Refuse what the decoder would silently get wrong."""
        counts = ["vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads",
                  "head_size", "max_position"]
        if self.num_experts:
            counts += ["num_experts_per_token", "expert_size"]
        for name in counts:
            if getattr(self, name) <= 0:
                raise UnsupportedModel(f"{name} is {getattr(self, name)}, but must be above zero")
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModel(f"{self.num_heads} heads cannot share {self.num_kv_heads} key-value heads evenly")
        if self.head_size % 2:
            raise UnsupportedModel(f"rotary positions need an even head size, not {self.head_size}")
        if self.num_experts_per_token > self.num_experts:
            raise UnsupportedModel(f"a token cannot go to {self.num_experts_per_token} of {self.num_experts} experts")
        if raw.get("quantization_config"):
            method = raw["quantization_config"].get("quant_method", "unknown")
            raise UnsupportedModel(f"weights quantised by {method!r} are not supported; take the original")
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            if raw.get(name):
                raise UnsupportedModel(f"soft caps on scores ({name}) are not supported")
        if raw.get("use_bidirectional_attention"):
            raise UnsupportedModel("attention in both directions is not supported")


def _common(architecture: str, raw: dict[str, Any]) -> dict[str, Any]:
    """What all families have, as arguments of ModelConfig."""
    heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
    gemma = architecture == "Gemma3ForCausalLM"
    known = _GEMMA_ACTIVATIONS if gemma else _ACTIVATIONS
    activation = (raw.get("hidden_activation") if gemma else raw.get("hidden_act")) or "silu"
    if activation not in known:
        raise UnsupportedModel(f"the activation {activation!r} is not supported, only {next(iter(known))!r}")
    max_position = int(raw["max_position_embeddings"])
    rope = _rope(raw, max_position)
    if rope.kind == "yarn":
        # Some configurations name the length before stretching only.
        max_position = max(max_position, int(rope.original_max_position * rope.factor))
    window = 0 if gemma else _window(architecture, raw)
    bias = architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForCausalLM")
    bias = bias and bool(raw.get("attention_bias", False))
    return {
        "vocab_size": int(raw["vocab_size"]),
        "hidden_size": hidden,
        "intermediate_size": int(raw["intermediate_size"]),
        "num_layers": int(raw["num_hidden_layers"]),
        "num_heads": heads,
        "num_kv_heads": int(raw.get("num_key_value_heads") or heads),
        "head_size": int(raw.get("head_dim") or hidden // heads),
        # Within its window a layer sees everything, so up to there it is an ordinary layer. Further on its blocks
        # would have to be given up as the window slides, which the block pool does not do.
        "max_position": min(max_position, window) if window else max_position,
        "rms_norm_eps": float(raw.get("rms_norm_eps", 1e-6)),
        "rope": rope,
        "tie_word_embeddings": bool(raw.get("tie_word_embeddings", False)),
        "qkv_bias": bias or architecture == "Qwen2ForCausalLM",
        "output_bias": bias,
        "mlp_bias": architecture == "LlamaForCausalLM" and bool(raw.get("mlp_bias", False)),
        "qk_norm": architecture in ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForCausalLM"),
        "activation": known[activation],
        "dtype": str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch."),
    }


def _window(architecture: str, raw: dict[str, Any]) -> int:
    """The sliding window of a family whose layers are otherwise alike; 0 if it has none."""
    kinds = set(raw.get("layer_types") or ())
    unknown = kinds - {"full_attention", "sliding_attention"}
    if unknown:
        raise UnsupportedModel(f"layers of type {min(unknown)!r} are not supported")
    always = architecture in ("MistralForCausalLM", "MixtralForCausalLM") or "sliding_attention" in kinds
    return int(raw.get("sliding_window") or 0) if always or raw.get("use_sliding_window") else 0


def _gemma3(raw: dict[str, Any]) -> dict[str, Any]:
    """Gemma 3: most layers look back on a window only, and turn their positions at another speed.

    All blocks are kept for all layers, as vLLM does with ``--disable-hybrid-kv-cache-manager``.
    """
    layers, pattern = int(raw["num_hidden_layers"]), int(raw.get("sliding_window_pattern") or 6)
    kinds = raw.get("layer_types") or [
        "full_attention" if (layer + 1) % pattern == 0 else "sliding_attention" for layer in range(layers)
    ]
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown or len(kinds) != layers:
        raise UnsupportedModel(f"the layer types {sorted(set(kinds))} of {layers} layers are not supported")
    window = int(raw["sliding_window"])
    if window <= 0:
        raise UnsupportedModel(f"sliding_window is {window}, but must be above zero")
    local = (raw.get("rope_parameters") or {}).get("sliding_attention") or {}
    return {
        "windows": tuple(window if kind == "sliding_attention" else 0 for kind in kinds),
        "local_rope": Rope.from_dict(local, float(raw["rope_local_base_freq"]), int(raw["max_position_embeddings"])),
        "embedding_scale": float(raw["hidden_size"]) ** 0.5,
        "query_scale": float(raw["query_pre_attn_scalar"]) ** -0.5,
        "post_norms": True,
        "norm_offset": True,
    }


def _experts(architecture: str, raw: dict[str, Any]) -> dict[str, Any]:
    """Mixtures of experts. The number of experts goes by either of two names, whatever the family."""
    layers = range(int(raw["num_hidden_layers"]))
    if architecture == "MixtralForCausalLM":
        count, size, normalize, dense = raw["num_local_experts"], raw["intermediate_size"], True, frozenset[int]()
    else:
        count = raw.get("num_local_experts") or raw["num_experts"]
        size, normalize = raw["moe_intermediate_size"], bool(raw.get("norm_topk_prob", False))
        step, named = int(raw.get("decoder_sparse_step") or 1), set(raw.get("mlp_only_layers") or ())
        dense = frozenset(layer for layer in layers if layer in named or (layer + 1) % step)
    return {
        "num_experts": int(count),
        "num_experts_per_token": int(raw["num_experts_per_tok"]),
        "expert_size": int(size),
        "normalize_experts": normalize,
        "round_experts": architecture != "MixtralForCausalLM",
        "dense_layers": dense,
    }


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UnsupportedModel(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise UnsupportedModel(f"{path} holds no JSON object")
    return content


def _architecture(raw: dict[str, Any], where: str) -> str:
    names = raw.get("architectures") or []
    for name in names:
        if name in SUPPORTED_ARCHITECTURES:
            return str(name)
    found = ", ".join(map(str, names)) or str(raw.get("model_type") or "an unnamed architecture")
    raise UnsupportedModel(f"{where}: {found} is not supported; supported are {', '.join(SUPPORTED_ARCHITECTURES)}")


def _rope(raw: dict[str, Any], max_position: int) -> Rope:
    """Both spellings: ``rope_parameters`` (transformers 5) and ``rope_theta`` with ``rope_scaling`` (before)."""
    settings = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    settings = settings.get("full_attention") or settings  # one for each kind of layer
    if float(raw.get("partial_rotary_factor") or 1.0) != 1.0:
        raise UnsupportedModel("rotary positions over a part of the head are not supported")
    original = int(raw.get("original_max_position_embeddings") or max_position)
    try:
        return Rope.from_dict({"original_max_position_embeddings": original} | settings,
                              float(raw.get("rope_theta") or 10000.0), max_position)  # fmt: skip
    except ValueError as error:
        raise UnsupportedModel(str(error)) from None


def _eos_token_ids(raw: dict[str, Any], generation: dict[str, Any]) -> tuple[int, ...]:
    ids: list[int] = []
    for source in (generation, raw):
        value = source.get("eos_token_id")
        for token in value if isinstance(value, list) else [value]:
            if isinstance(token, int) and token not in ids:
                ids.append(token)
    return tuple(ids)


__all__ = ["SUPPORTED_ARCHITECTURES", "SUPPORTED_ROPE_TYPES", "ModelConfig", "Rope", "UnsupportedModel"]
