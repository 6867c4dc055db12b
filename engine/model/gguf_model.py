"""What the weights in a GGUF file are in Hugging Face's words: a configuration, and tensors under other names.

llama.cpp describes the same models with other keys, stores some tensors in another order, and leaves things out that
go without saying there. Everything that we do not know is refused: a tensor or a switch that is passed over would
give plausible nonsense.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.model.config import ModelConfig, UnsupportedModel
from engine.model.gguf_file import BadGguf, GgufFile, formats
from engine.model.rope import Rope
from engine.model.weights import expert_names, weight_shapes

if TYPE_CHECKING:
    import torch

ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),  # Mistral, SmolLM2 and TinyLlama call themselves llama, too
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
}

_NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_GEMMA_NAMES = _NAMES | {
    "ffn_norm": "pre_feedforward_layernorm", "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip

_SPECIAL = {"bos": ("bos",), "eos": ("eos", "eot", "eom"), "pad": ("padding",), "unk": ("unknown",)}

# How Llama 3.1 and later stretch positions. GGUF has the result only, one factor for each pair of a head.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a tensor comes from: a tensor of the file, or one expert's part of it."""

    name: str
    expert: int | None = None


class GgufModel:
    """``config`` and ``generation_config`` as Hugging Face has them; raises UnsupportedModel or BadGguf."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self.config = self._describe()
        special = ("bos_token_id", "eos_token_id", "pad_token_id")
        self.generation_config: dict[str, Any] = {key: self.config[key] for key in special if key in self.config}
        self.shape = ModelConfig.from_dict(self.config, self.generation_config, where=file.path.name)
        self._sources = self._find_sources()
        self.config["dtype"] = self._stored_as()

    def sizes(self) -> dict[str, int]:
        """Every tensor's Hugging Face name and its number of elements, in the order of :meth:`tensors`."""
        shapes = weight_shapes(self.shape)
        return {name: int(np.prod(shapes[name])) for name in self._sources}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor under its Hugging Face name, in the type that ``config`` names."""
        import torch

        dtype = getattr(torch, self.config["dtype"])
        whole: tuple[str, torch.Tensor] | None = None  # the experts' tensor that was read last, for all of them
        for name, source in self._sources.items():
            if source.expert is None:
                yield name, self._in_order(name, self._file.read(source.name, torch.float32)).to(dtype)
                continue
            if whole is None or whole[0] != source.name:
                whole = source.name, self._file.read(source.name, dtype)
            yield name, whole[1][source.expert].clone()

    # --- the configuration -------------------------------------------------------------------------------------------

    def _describe(self) -> dict[str, Any]:
        file, arch = self._file, str(self._file.metadata.get("general.architecture"))
        if arch not in ARCHITECTURES:
            raise UnsupportedModel(f"the GGUF architecture {arch!r} is not supported; supported are "
                                   f"{', '.join(ARCHITECTURES)}")  # fmt: skip

        def number(key: str, default: float | None = None) -> Any:
            return file.number(f"{arch}.{key}", default)

        architecture, model_type = ARCHITECTURES[arch]
        experts = int(number("expert_count", 0))
        if arch == "llama" and experts:
            architecture, model_type = "MixtralForCausalLM", "mixtral"
        if "token_embd.weight" not in file.tensors:
            raise BadGguf("the file has no token_embd.weight")
        hidden, heads = number("embedding_length"), number("attention.head_count")
        head = int(number("attention.key_length", hidden // heads))
        for key, wanted in (("attention.value_length", head), ("rope.dimension_count", head)):
            if number(key, wanted) != wanted:
                raise UnsupportedModel(f"{key} is {number(key)} with heads of {head}, which is not supported")
        config: dict[str, Any] = {
            "architectures": [architecture],
            "model_type": model_type,
            "vocab_size": file.tensors["token_embd.weight"].shape[0],
            "hidden_size": hidden,
            "intermediate_size": number("feed_forward_length"),
            "num_hidden_layers": number("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": number("attention.head_count_kv", heads),
            "head_dim": head,
            "max_position_embeddings": number("context_length"),
            # Written as float32; the shortest decimal number that is the same float32 is what was meant.
            "rms_norm_eps": float(str(np.float32(number("attention.layer_norm_rms_epsilon")))),
            "tie_word_embeddings": "output.weight" not in file.tensors,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "use_cache": True,
        }
        config |= self._rope(arch, head)
        if architecture == "LlamaForCausalLM":
            config |= {"hidden_act": "silu", "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors}
        if architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"):
            config |= {"hidden_act": "silu", "attention_bias": "blk.0.attn_q.bias" in file.tensors}
        window = int(number("attention.sliding_window", 0))
        if arch == "gemma3":
            config |= self._gemma3(hidden, heads, head, window)
        elif architecture in ("LlamaForCausalLM", "MixtralForCausalLM"):
            if window:
                raise UnsupportedModel("a sliding window in a llama file is not supported")
        elif window:
            config |= {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 0}
        if experts:
            config |= {"num_local_experts": experts, "num_experts_per_tok": number("expert_used_count")}
        if arch == "qwen3moe":
            config |= {"num_experts": experts, "moe_intermediate_size": number("expert_feed_forward_length"),
                       "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}  # fmt: skip
        for name, keys in _SPECIAL.items():
            ids = [file.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in keys]
            known = list(dict.fromkeys(i for i in ids if isinstance(i, int)))
            if known:
                config[f"{name}_token_id"] = known if known[1:] else known[0]
        return config

    def _rope(self, arch: str, head: int) -> dict[str, Any]:
        """Rotary positions in both spellings: ``rope_parameters`` and, for older readers, what came before it."""
        file = self._file
        theta = float(file.number(f"{arch}.rope.freq_base", 1e6 if arch == "gemma3" else 10000.0))
        theta = float(str(np.float32(theta)))
        scaling: dict[str, Any] = {}
        kind = str(file.metadata.get(f"{arch}.rope.scaling.type", "none"))
        factor = float(file.number(f"{arch}.rope.scaling.factor", file.number(f"{arch}.rope.scale_linear", 1.0)))
        if kind == "linear" or (kind == "none" and factor != 1.0):
            scaling = {"rope_type": "linear", "factor": factor}
        elif kind == "yarn":
            original = file.number(f"{arch}.rope.scaling.original_context_length")
            scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
            for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
                if f"{arch}.rope.scaling.{key}" in file.metadata:
                    scaling[name] = float(file.number(f"{arch}.rope.scaling.{key}"))
        elif kind != "none":
            raise UnsupportedModel(f"rotary positions of type {kind!r} are not supported")
        for key in ("attn_factor", "alpha", "yarn_log_multiplier", "yarn_ext_factor", "yarn_attn_factor"):
            if f"{arch}.rope.scaling.{key}" in file.metadata:
                raise UnsupportedModel(f"rotary positions with {key} are not supported")
        if "rope_freqs.weight" in file.tensors:
            if scaling:
                raise UnsupportedModel("rotary positions stretched in two ways at once are not supported")
            scaling = self._llama3(theta, head)
        old = {"rope_theta": theta} | ({"rope_scaling": scaling} if scaling else {})
        return {"rope_parameters": {"rope_type": "default", "rope_theta": theta} | scaling, **old}

    def _llama3(self, theta: float, head: int) -> dict[str, Any]:
        """The settings that the factors in the file come from; checked, because the file does not name them."""
        import torch

        factors = self._file.read("rope_freqs.weight", torch.float32).numpy()
        if np.all(factors == 1.0):
            return {}
        factor = round(float(factors.max()), 4)
        settings = {"rope_type": "llama3", "factor": factor, **_LLAMA3}
        plain = Rope(theta).inverse_frequencies(head)
        ours = plain / Rope.from_dict(settings, theta, 8192).inverse_frequencies(head)
        if factors.shape != ours.shape or not np.allclose(factors, ours, rtol=1e-3):
            raise UnsupportedModel("the factors of its rotary positions are not Llama 3's, and not supported")
        return settings

    def _gemma3(self, hidden: int, heads: int, head: int, window: int) -> dict[str, Any]:
        file = self._file
        layers = int(file.number("gemma3.block_count"))
        pattern = file.metadata.get("gemma3.attention.sliding_window_pattern", 6)
        if not isinstance(pattern, list):
            pattern = [(layer + 1) % int(pattern) > 0 for layer in range(layers)]
        rope = self._rope("gemma3", head)
        local = float(file.number("gemma3.rope.freq_base_swa", 10000.0))
        return {
            "hidden_activation": "gelu_pytorch_tanh",
            "sliding_window": window,
            "layer_types": ["sliding_attention" if slide else "full_attention" for slide in pattern],
            # Goes without saying in GGUF: the largest model (62 layers) alone scales by something else.
            "query_pre_attn_scalar": hidden // heads if layers == 62 else head,
            "rope_parameters": {
                "full_attention": rope["rope_parameters"],
                "sliding_attention": {"rope_type": "default", "rope_theta": local},
            },
            "rope_local_base_freq": local,
        }

    # --- the tensors -------------------------------------------------------------------------------------------------

    def _find_sources(self) -> dict[str, _Source]:
        """For each tensor of the model its place in the file; raises UnsupportedModel for any that is left over."""
        sources: dict[str, _Source] = {}
        unknown = []
        for name in self._file.tensors:
            found = self._theirs(name)
            if found is None:
                unknown.append(name)
            else:
                sources |= found
        shapes = weight_shapes(self.shape)
        left = unknown + [source.name for name, source in sources.items() if name not in shapes]
        if left:
            raise UnsupportedModel(f"{self._file.path.name} has a tensor that is not supported: {left[0]}")
        missing = [name for name in shapes if name not in sources]
        if missing:
            raise UnsupportedModel(f"{self._file.path.name}: the weights lack {missing[0]}")
        for name, source in sources.items():
            shape = self._file.tensors[source.name].shape[source.expert is not None :]
            if shape != shapes[name]:
                raise UnsupportedModel(f"{self._file.path.name}: {source.name} has the shape {shape} instead of "
                                       f"{shapes[name]}")  # fmt: skip
        return {name: sources[name] for name in shapes}

    def _theirs(self, name: str) -> dict[str, _Source] | None:
        """What a tensor of the file is in the model; nothing for one that only repeats what the configuration says."""
        if name == "rope_freqs.weight":
            return {}
        whole = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
                 "output.weight": "lm_head.weight"}.get(name)  # fmt: skip
        if whole is not None:
            return {whole: _Source(name)}
        parts = name.split(".")
        if len(parts) != 4 or parts[0] != "blk":
            return None
        _, layer, part, kind = parts
        prefix = f"model.layers.{layer}."
        names = _GEMMA_NAMES if self.shape.architecture == "Gemma3ForCausalLM" else _NAMES
        if part in names:
            return {f"{prefix}{names[part]}.{kind}": _Source(name)}
        if self.shape.num_experts and kind == "weight":
            theirs = expert_names(self.shape)
            if part == "ffn_gate_inp":
                return {f"{prefix}{theirs.router}.weight": _Source(name)}
            form = {"ffn_gate_exps": theirs.gate, "ffn_up_exps": theirs.up, "ffn_down_exps": theirs.down}.get(part)
            if form is not None:
                count = range(self.shape.num_experts)
                return {f"{prefix}{form.format(expert)}.weight": _Source(name, expert) for expert in count}
        return None

    def _in_order(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Undo what llama.cpp's converter does to a tensor."""
        if self.shape.architecture in ("LlamaForCausalLM", "MixtralForCausalLM"):
            # Pairs that are rotated together lie side by side there, and half a head apart here.
            for part, heads in (("q_proj", self.shape.num_heads), ("k_proj", self.shape.num_kv_heads)):
                if f"self_attn.{part}." in name:
                    paired = tensor.reshape(heads, self.shape.head_size // 2, 2, -1)
                    return paired.transpose(1, 2).reshape(tensor.shape).contiguous()
        if self.shape.norm_offset and "norm" in name:
            return tensor - 1.0  # one is added there beforehand, and here as it is used
        return tensor

    def _stored_as(self) -> str:
        """The type that loses nothing of a file of float32 or float16 matrices; bfloat16 for all others."""
        matrices = [source.name for name, source in self._sources.items() if "norm" not in name and "bias" not in name]
        found = formats(self._file, matrices)
        return "float32" if found == {"F32"} else "float16" if found <= {"F16", "F32"} else "bfloat16"
