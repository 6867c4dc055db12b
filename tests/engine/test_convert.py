"""From GGUF to a Hugging Face folder: a small Llama, written as a GGUF file and read back."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import pre_tokenizers

from engine.model import convert
from engine.model.library import ModelUnavailable, find_model, list_models
from engine.model.problems import ProgressReport
from engine.model.tokenizer import Tokenizer

HIDDEN, HEADS, KV_HEADS, FEED_FORWARD = 32, 4, 2, 64


def write_gguf(path: Path, architecture: str = "llama", pre: str = "smollm") -> dict[str, np.ndarray]:
    """A one-layer model with random weights (multiples of 1/64: exact in bf16) and a byte-level tokenizer."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, architecture)
    tokens = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "he"]
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}")
    kv = HIDDEN // HEADS * KV_HEADS
    shapes = {
        "token_embd": (len(tokens), HIDDEN), "output_norm": (HIDDEN,), "blk.0.attn_norm": (HIDDEN,),
        "blk.0.ffn_norm": (HIDDEN,), "blk.0.attn_q": (HIDDEN, HIDDEN), "blk.0.attn_k": (kv, HIDDEN),
        "blk.0.attn_v": (kv, HIDDEN), "blk.0.attn_output": (HIDDEN, HIDDEN), "blk.0.ffn_gate": (FEED_FORWARD, HIDDEN),
        "blk.0.ffn_up": (FEED_FORWARD, HIDDEN), "blk.0.ffn_down": (HIDDEN, FEED_FORWARD),
    }  # fmt: skip
    tensors = {name: (rng.integers(-64, 64, shape) / 64).astype(np.float32) for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        writer.add_tensor(f"{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.mark.slow
def test_a_gguf_file_becomes_a_folder_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    path = tmp_path / "tiny.gguf"
    tensors = write_gguf(path)
    reports: list[ProgressReport] = []
    folder = find_model(str(path), reports.append)
    assert {report.code for report in reports} >= {"checking", "starting", "tokenizer", "weights", "saving", "ready"}

    import torch
    from safetensors.torch import load_file as load_torch

    weights = load_torch(folder / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    got = weights["model.layers.0.mlp.down_proj.weight"].float().numpy()
    np.testing.assert_array_equal(got, tensors["blk.0.ffn_down"])
    np.testing.assert_array_equal(weights["model.embed_tokens.weight"].float().numpy(), tensors["token_embd"])
    # GGUF keeps the two halves of each rotation interleaved; Hugging Face has them apart.
    q = tensors["blk.0.attn_q"].reshape(HEADS, HIDDEN // HEADS // 2, 2, HIDDEN).swapaxes(1, 2).reshape(HIDDEN, HIDDEN)
    np.testing.assert_array_equal(weights["model.layers.0.self_attn.q_proj.weight"].float().numpy(), q)

    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert config["rope_theta"] == 50000.0
    assert config["num_key_value_heads"] == KV_HEADS
    tokenizer = Tokenizer.load(folder)
    assert len(tokenizer.encode("hehe 1234")) == 7  # two merged, a space, and digits one by one
    assert tokenizer.chat([{"role": "user", "content": "he"}])[-1] == 0
    assert [entry.name for entry in list_models() if entry.ready] == [folder.name]
    assert find_model(str(path)) == folder


def test_the_way_to_split_text_is_found_in_the_header(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", pre="llama-bpe")
    assert convert._pre_tokenizer_name(tmp_path / "a.gguf") == "llama-bpe"
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    assert convert._pre_tokenizer_name(tmp_path / "b.gguf") == ""


def test_an_architecture_that_the_decoder_lacks_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    with pytest.raises(convert._Refused) as caught:
        convert._refuse_unsupported({"architectures": ["MambaForCausalLM"]}, tmp_path / "mamba.gguf")
    assert caught.value.code == "unsupported"
    assert "MambaForCausalLM" in str(caught.value.values["reason"])


def test_a_full_disk_is_recognised_however_it_is_said() -> None:
    assert convert._is_disk_full(OSError(28, "No space left on device"))
    assert convert._is_disk_full(RuntimeError("I/O error: No space left on device (os error 28)"))
    assert not convert._is_disk_full(RuntimeError("odd tensor"))


def test_a_file_that_cannot_be_converted_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    with pytest.raises(ModelUnavailable, match=r"cut\.gguf could not be converted"):
        find_model(str(tmp_path / "cut.gguf"))
