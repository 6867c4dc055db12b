"""From GGUF to a Hugging Face folder: a small Llama, written as a GGUF file and read back."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engine.model import convert
from engine.model.gguf_file import GgufFile
from engine.model.gguf_model import GgufModel
from engine.model.library import ModelUnavailable, find_model, list_models
from engine.model.problems import ProgressReport
from engine.model.tokenizer import Tokenizer
from tests.engine.gguf_files import add_tokenizer

HIDDEN, HEADS, KV_HEADS, FEED_FORWARD = 32, 4, 2, 64


def write_gguf(path: Path, architecture: str = "llama", tokenizer: str = "gpt2") -> dict[str, np.ndarray]:
    """A one-layer model with random weights and a byte-level tokenizer."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, architecture)
    vocab = 258
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(vocab)
    add_tokenizer(writer, vocab, model=tokenizer)
    kv = HIDDEN // HEADS * KV_HEADS
    shapes = {
        "token_embd": (vocab, HIDDEN), "output_norm": (HIDDEN,), "blk.0.attn_norm": (HIDDEN,),
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

    weights = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}  # as precise as the file
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
    assert tokenizer.vocab_size == 258  # and not one more, which the model would not know
    assert tokenizer.chat([{"role": "user", "content": "he"}])[-1] == 0
    assert [entry.name for entry in list_models() if entry.ready] == [folder.name]
    assert find_model(str(path)) == folder


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The last line that the converter wrote."""
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_an_architecture_that_the_decoder_lacks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_gguf(tmp_path / "a.gguf", architecture="mamba")
    assert convert.main([str(tmp_path / "a.gguf"), str(tmp_path / "out")]) == 1
    answer = said(capsys)
    assert answer["error"] == "unsupported"
    assert "'mamba' is not supported; supported are llama, qwen2" in answer["reason"]
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_that_cannot_be_read_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_gguf(tmp_path / "a.gguf", tokenizer="plamo2")
    assert convert.main([str(tmp_path / "a.gguf"), str(tmp_path / "out")]) == 1
    answer = said(capsys)
    assert answer["error"] == "conversion_failed"
    assert answer["reason"].startswith("its tokenizer cannot be read")


def test_large_models_become_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.model.config import ModelConfig
    from engine.model.weights import load_weights

    tensors = write_gguf(tmp_path / "a.gguf")
    monkeypatch.setattr(convert, "_SHARD", 30_000)
    with closing(GgufFile(tmp_path / "a.gguf")) as file:
        model = GgufModel(file)
        convert._save_weights(model, tmp_path)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    (tmp_path / "config.json").write_text(json.dumps(model.config), "utf-8")
    weights = load_weights(tmp_path, ModelConfig.load(tmp_path), torch.float32)
    np.testing.assert_array_equal(weights["model.norm.weight"].numpy(), tensors["output_norm"])


def test_a_full_disk_is_recognised_however_it_is_said() -> None:
    assert convert._is_disk_full(OSError(28, "No space left on device"))
    assert convert._is_disk_full(RuntimeError("I/O error: No space left on device (os error 28)"))
    assert not convert._is_disk_full(RuntimeError("odd tensor"))


def test_a_file_that_cannot_be_converted_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    with pytest.raises(ModelUnavailable, match=r"cut\.gguf could not be converted"):
        find_model(str(tmp_path / "cut.gguf"))
