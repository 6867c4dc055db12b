"""Reading configurations, and refusing those that the decoder would get wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.model.config import ModelConfig, UnsupportedModel

SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "eos_token_id": 2,
    "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"}, "dtype": "bfloat16",
}  # fmt: skip

GEMMA3 = {"architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 12, "num_attention_heads": 8,
          "num_key_value_heads": 4}  # fmt: skip


def test_smollm2_is_read() -> None:
    config = ModelConfig.from_dict(SMOLLM2)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_size) == (30, 9, 3, 64)
    assert config.rope.theta == 100000.0
    assert config.tie_word_embeddings
    assert config.num_parameters == 134_515_008
    assert config.bytes_per_token(2) == 23_040
    assert config.eos_token_ids == (2,)
    assert config.dtype == "bfloat16"


def test_end_of_sequence_ids_come_from_both_files() -> None:
    config = ModelConfig.from_dict({**SMOLLM2, "eos_token_id": [7, 2]}, {"eos_token_id": [2, 5]})
    assert config.eos_token_ids == (2, 5, 7)


def test_old_spelling_of_rope() -> None:
    raw = {key: value for key, value in SMOLLM2.items() if key != "rope_parameters"}
    raw |= {"rope_theta": 500000.0, "torch_dtype": "float16",
            "rope_scaling": {"type": "linear", "factor": 4.0}}  # fmt: skip
    del raw["dtype"]
    config = ModelConfig.from_dict(raw)
    assert (config.rope.theta, config.rope.kind, config.rope.factor) == (500000.0, "linear", 4.0)
    assert config.dtype == "float16"


def test_biases_of_qwen2() -> None:
    config = ModelConfig.from_dict({**SMOLLM2, "architectures": ["Qwen2ForCausalLM"]})
    assert config.qkv_bias
    assert not config.output_bias


def test_a_context_ends_where_a_window_would_slide() -> None:
    mistral = {**SMOLLM2, "architectures": ["MistralForCausalLM"], "max_position_embeddings": 32768}
    assert ModelConfig.from_dict({**mistral, "sliding_window": 1024}).max_position == 1024
    assert ModelConfig.from_dict(mistral).max_position == 4096  # what transformers takes where nothing is said
    assert ModelConfig.from_dict({**mistral, "sliding_window": None}).max_position == 32768
    qwen = {**mistral, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 1024}
    assert ModelConfig.from_dict(qwen).max_position == 32768
    assert ModelConfig.from_dict({**qwen, "use_sliding_window": True}).max_position == 1024


def test_yarn_stretches_the_context() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
    config = ModelConfig.from_dict({**SMOLLM2, "rope_parameters": scaling})
    assert config.max_position == 32768
    assert config.rope.attention_factor == pytest.approx(1.1386, abs=1e-4)


def test_gemma3_as_older_configurations_spell_it() -> None:
    raw = {**SMOLLM2, **GEMMA3, "sliding_window": 512, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
           "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "head_dim": 256}  # fmt: skip
    del raw["rope_parameters"], raw["tie_word_embeddings"]
    config = ModelConfig.from_dict(raw)
    assert [layer for layer in range(12) if not config.window(layer)] == [5, 11]
    assert (config.rope.kind, config.rope.theta, config.rope.factor) == ("linear", 1e6, 8.0)
    assert config.local_rope is not None
    assert (config.local_rope.kind, config.local_rope.theta) == ("default", 1e4)
    assert config.tie_word_embeddings
    assert config.attention_scale == 1 / 16
    assert config.max_position == 8192


def test_experts_and_the_layers_without() -> None:
    raw = {**SMOLLM2, "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 6, "num_experts": 8,
           "moe_intermediate_size": 32, "mlp_only_layers": [1], "decoder_sparse_step": 2}  # fmt: skip
    config = ModelConfig.from_dict(raw)
    assert [layer for layer in range(6) if config.has_experts(layer)] == [3, 5]
    assert (config.num_experts, config.num_experts_per_token, config.expert_size) == (8, 8, 32)
    assert not config.normalize_experts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported; supported are LlamaForCausalLM"),
        ({"architectures": None, "model_type": "mamba"}, "mamba is not supported"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "'longrope' are not supported; supported are default, linear"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "part of the head"),
        ({"num_key_value_heads": 4}, "cannot share"),
        ({"head_dim": 63}, "even head size"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"vocab_size": "many"}, "cannot be read"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised by 'awq'"),
        ({"architectures": ["Qwen2ForCausalLM"], "layer_types": ["chunked_attention"] * 30}, "layers of type 'chunked"),
        ({**GEMMA3, "layer_types": ["full_attention"]}, "of 12 layers are not supported"),
        ({**GEMMA3, "final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({**GEMMA3, "use_bidirectional_attention": True}, "both directions"),
        ({**GEMMA3, "hidden_activation": "gelu"}, "only 'gelu_pytorch_tanh'"),
        ({**GEMMA3, "sliding_window": 0}, "sliding_window is 0"),
        ({"architectures": ["MixtralForCausalLM"], "num_experts_per_tok": 9}, "9 of 8 experts"),
        ({"architectures": ["MixtralForCausalLM"], "num_experts_per_tok": 0}, "num_experts_per_token is 0"),
        ({"partial_rotary_factor": 0.5}, "part of the head"),
    ],
)
def test_what_cannot_be_run_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        ModelConfig.from_dict({**SMOLLM2, **change})


def test_a_missing_field_is_named() -> None:
    raw = {key: value for key, value in SMOLLM2.items() if key != "num_hidden_layers"}
    with pytest.raises(UnsupportedModel, match="lacks 'num_hidden_layers'"):
        ModelConfig.from_dict(raw)


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"no config\.json"):
        ModelConfig.load(tmp_path)
    (tmp_path / "config.json").write_text("{not json", encoding="utf-8")
    with pytest.raises(UnsupportedModel, match="cannot be read"):
        ModelConfig.load(tmp_path)
    (tmp_path / "config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UnsupportedModel, match="no JSON object"):
        ModelConfig.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2), encoding="utf-8")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 9}), encoding="utf-8")
    assert ModelConfig.load(tmp_path).eos_token_ids == (9, 2)
