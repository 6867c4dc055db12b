"""What a decoder looks like: :class:`ModelConfig`, read from a Hugging Face ``config.json``.

The Llama family shares one shape: RMSNorm, rotary positions, grouped-query attention, a gated SiLU feed-forward. Its
members differ in a handful of switches (biases, norms on queries and keys, how positions are stretched), and those
switches are all that this module reads. Whatever else a configuration asks for is refused here, before any weight is
loaded, because a decoder that ignores a field answers with plausible nonsense.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Names from the ``architectures`` field of ``config.json``. SmolLM2 and TinyLlama call themselves Llama."""

SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3")


class UnsupportedModel(ValueError):
    """The folder holds no model that this engine can run. The message says what it is and what would do."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: ``theta`` is the base; ``kind`` says how frequencies are stretched for long contexts."""

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192

    def inverse_frequencies(self, head_size: int) -> np.ndarray:
        """Radians a position for each pair of a head: float32[head_size / 2]."""
        inverse = 1.0 / self.theta ** (np.arange(0, head_size, 2, dtype=np.float64) / head_size)
        if self.kind == "linear":
            inverse = inverse / self.factor
        elif self.kind == "llama3":
            # Slow rotations are slowed further, fast ones are left alone, and those between are blended.
            wavelength = 2 * math.pi / inverse
            turns = self.original_max_position / wavelength
            blend = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
            blend = np.clip(blend, 0.0, 1.0)
            inverse = (1 - blend) * inverse / self.factor + blend * inverse
        return inverse.astype(np.float32)

    def table(self, length: int, head_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines of positions ``0 .. length-1``: two float32[length, head_size / 2]."""
        # Angles in float32, as transformers computes them: at position 8,000 a rounded angle is visible in float32.
        angles = np.arange(length, dtype=np.float32)[:, None] * self.inverse_frequencies(head_size)[None, :]
        return np.cos(angles), np.sin(angles)


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
    max_position: int
    rms_norm_eps: float = 1e-6
    rope: Rope = field(default_factory=Rope)
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False  # of the projection after attention
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm on every head's query and key, as Qwen3 has
    dtype: str = "float32"  # that the weights are stored in
    eos_token_ids: tuple[int, ...] = ()

    @property
    def num_parameters(self) -> int:
        """How many weights there are; tied embeddings count once."""
        heads = self.num_heads * self.head_size
        kv_heads = self.num_kv_heads * self.head_size
        attention = self.hidden_size * (2 * heads + 2 * kv_heads)
        attention += (heads + 2 * kv_heads) * self.qkv_bias + self.hidden_size * self.output_bias
        attention += 2 * self.head_size * self.qk_norm
        mlp = 3 * self.hidden_size * self.intermediate_size
        mlp += (2 * self.intermediate_size + self.hidden_size) * self.mlp_bias
        layer = attention + mlp + 2 * self.hidden_size
        vocabulary = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_layers * layer + vocabulary + self.hidden_size

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
        try:
            heads = int(raw["num_attention_heads"])
            hidden = int(raw["hidden_size"])
            config = cls(
                architecture=architecture,
                vocab_size=int(raw["vocab_size"]),
                hidden_size=hidden,
                intermediate_size=int(raw["intermediate_size"]),
                num_layers=int(raw["num_hidden_layers"]),
                num_heads=heads,
                num_kv_heads=int(raw.get("num_key_value_heads") or heads),
                head_size=int(raw.get("head_dim") or hidden // heads),
                max_position=int(raw.get("max_position_embeddings", 2048)),
                rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
                rope=_rope(raw, where),
                tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
                qkv_bias=architecture == "Qwen2ForCausalLM" or bool(raw.get("attention_bias", False)),
                output_bias=architecture != "Qwen2ForCausalLM" and bool(raw.get("attention_bias", False)),
                mlp_bias=bool(raw.get("mlp_bias", False)),
                qk_norm=architecture == "Qwen3ForCausalLM",
                dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch."),
                eos_token_ids=_eos_token_ids(raw, generation or {}),
            )
        except KeyError as missing:
            raise UnsupportedModel(f"{where}: the configuration lacks {missing.args[0]!r}") from None
        except (TypeError, ValueError) as error:
            if isinstance(error, UnsupportedModel):
                raise
            raise UnsupportedModel(f"{where}: the configuration cannot be read: {error}") from None
        config._check(raw, where)
        return config

    def _check(self, raw: dict[str, Any], where: str) -> None:
        """Refuse what the decoder would silently get wrong."""
        counts = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads",
                  "head_size", "max_position")
        for name in counts:
            if getattr(self, name) <= 0:
                raise UnsupportedModel(f"{where}: {name} is {getattr(self, name)}, but must be above zero")
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModel(
                f"{where}: {self.num_heads} heads cannot share {self.num_kv_heads} key-value heads evenly"
            )
        if self.head_size % 2:
            raise UnsupportedModel(f"{where}: rotary positions need an even head size, not {self.head_size}")
        activation = raw.get("hidden_act", "silu")
        if activation not in ("silu", "swish"):
            raise UnsupportedModel(f"{where}: the activation {activation!r} is not supported, only 'silu'")
        if raw.get("quantization_config"):
            method = raw["quantization_config"].get("quant_method", "unknown")
            raise UnsupportedModel(f"{where}: weights quantised by {method!r} are not supported; take the original")
        window = raw.get("sliding_window")
        uses_window = self.architecture == "MistralForCausalLM" or bool(raw.get("use_sliding_window"))
        if window and uses_window and int(window) < self.max_position:
            raise UnsupportedModel(f"{where}: attention with a sliding window ({window} tokens) is not supported")


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


def _rope(raw: dict[str, Any], where: str) -> Rope:
    """Both spellings: ``rope_parameters`` (transformers 5) and ``rope_theta`` with ``rope_scaling`` (before)."""
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if kind not in SUPPORTED_ROPE_TYPES:
        raise UnsupportedModel(
            f"{where}: rotary positions of type {kind!r} are not supported; supported are "
            f"{', '.join(SUPPORTED_ROPE_TYPES)}"
        )
    if float(raw.get("partial_rotary_factor") or scaling.get("partial_rotary_factor") or 1.0) != 1.0:
        raise UnsupportedModel(f"{where}: rotary positions over a part of the head are not supported")
    return Rope(
        theta=float(scaling.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        kind=kind,
        factor=float(scaling.get("factor", 1.0)),
        low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
        high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
        original_max_position=int(
            scaling.get("original_max_position_embeddings") or raw.get("max_position_embeddings", 2048)
        ),
    )


def _eos_token_ids(raw: dict[str, Any], generation: dict[str, Any]) -> tuple[int, ...]:
    ids: list[int] = []
    for source in (generation, raw):
        value = source.get("eos_token_id")
        for token in value if isinstance(value, list) else [value]:
            if isinstance(token, int) and token not in ids:
                ids.append(token)
    return tuple(ids)
