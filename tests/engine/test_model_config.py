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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported; supported are LlamaForCausalLM"),
        ({"architectures": None, "model_type": "mamba"}, "mamba is not supported"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "type 'yarn' are not supported"),
        ({"num_key_value_heads": 4}, "cannot share"),
        ({"head_dim": 63}, "even head size"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"vocab_size": "many"}, "cannot be read"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised by 'awq'"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 4096}, "sliding window"),
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
