"""Reading weights: safetensors files only, one or many. Nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from engine.model.config import ModelConfig, UnsupportedModel

if TYPE_CHECKING:
    import torch

Progress = Callable[[str, float | None], None]
"""Called with what is going on and how far it has come, from 0 to 1 (None: unknown)."""


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a model of this configuration must have, by its Hugging Face name."""
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_size
    q, kv = config.num_heads * head, config.num_kv_heads * head
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        linears = {
            "self_attn.q_proj": (q, hidden, config.qkv_bias),
            "self_attn.k_proj": (kv, hidden, config.qkv_bias),
            "self_attn.v_proj": (kv, hidden, config.qkv_bias),
            "self_attn.o_proj": (hidden, q, config.output_bias),
        }
        if config.has_experts(layer):
            names = expert_names(config)
            linears[names.router] = (config.num_experts, hidden, False)
            for expert in range(config.num_experts):
                linears[names.gate.format(expert)] = (config.expert_size, hidden, False)
                linears[names.up.format(expert)] = (config.expert_size, hidden, False)
                linears[names.down.format(expert)] = (hidden, config.expert_size, False)
        else:
            linears["mlp.gate_proj"] = (inner, hidden, config.mlp_bias)
            linears["mlp.up_proj"] = (inner, hidden, config.mlp_bias)
            linears["mlp.down_proj"] = (hidden, inner, config.mlp_bias)
        for name, (rows, columns, bias) in linears.items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
        if config.post_norms:
            shapes[f"{prefix}pre_feedforward_layernorm.weight"] = (hidden,)
            shapes[f"{prefix}post_feedforward_layernorm.weight"] = (hidden,)
        if config.qk_norm:
            shapes[f"{prefix}self_attn.q_norm.weight"] = (head,)
            shapes[f"{prefix}self_attn.k_norm.weight"] = (head,)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


class ExpertNames(NamedTuple):
    """What a family calls the parts of a mixture of experts, below its layer; ``{}`` stands for the expert."""

    router: str
    gate: str
    up: str
    down: str


def expert_names(config: ModelConfig) -> ExpertNames:
    if config.architecture == "MixtralForCausalLM":
        expert = "block_sparse_moe.experts.{}"
        return ExpertNames("block_sparse_moe.gate", f"{expert}.w1", f"{expert}.w3", f"{expert}.w2")
    expert = "mlp.experts.{}"
    return ExpertNames("mlp.gate", f"{expert}.gate_proj", f"{expert}.up_proj", f"{expert}.down_proj")


def load_weights(
    folder: Path, config: ModelConfig, dtype: torch.dtype, device: str = "cpu", progress: Progress | None = None
) -> dict[str, torch.Tensor]:
    """Every tensor of :func:`weight_shapes`, in ``dtype`` on ``device``; what else the files hold is left unread.

    Raises :class:`UnsupportedModel` where a tensor is missing, has another shape or holds no floating-point numbers,
    or where the folder holds no safetensors at all.
    """
    expected = weight_shapes(config)
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in _read(folder, expected):
        if tuple(tensor.shape) != expected[name]:
            raise UnsupportedModel(
                f"{folder}: {name} has the shape {tuple(tensor.shape)}, but config.json asks for {expected[name]}"
            )
        if not tensor.is_floating_point():
            raise UnsupportedModel(f"{folder}: {name} holds {tensor.dtype}; quantised weights are not supported")
        # A copy even where nothing changes: the tensor is a view of a file that somebody may replace.
        weights[name] = tensor.to(device=device, dtype=dtype, copy=True)
        if progress is not None:
            progress("Loading weights", len(weights) / len(expected))
    missing = [name for name in expected if name not in weights]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UnsupportedModel(f"{folder}: the weights lack {missing[0]}{more}")
    return weights


def _read(folder: Path, wanted: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import SafetensorError, safe_open

    for path in _files(folder, wanted):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a dict)
                    if name in wanted:
                        yield name, file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise UnsupportedModel(f"{path} cannot be read: {error}") from None


def _files(folder: Path, wanted: dict[str, tuple[int, ...]]) -> list[Path]:
    """The files that hold the wanted tensors: by the index where there is one, else every ``*.safetensors``."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth"))
            why = "only pickled weights, which are never loaded" if pickled else "no weights"
            raise UnsupportedModel(f"{folder} holds {why}; needed are *.safetensors files")
        return files
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = {str(file) for name, file in weight_map.items() if name in wanted}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UnsupportedModel(f"{index} cannot be read: {error!r}") from None
    for name in names:
        # An index that came with a download must not point outside its folder.
        if Path(name).name != name:
            raise UnsupportedModel(f"{index} names {name!r}, which is not a file of this folder")
        if not (folder / name).exists():
            raise UnsupportedModel(f"{folder} lacks {name}, which its index names; the download is not complete")
    return [folder / name for name in sorted(names)]
