"""Loading weights: one file or many, and everything that can be wrong with a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.model.config import ModelConfig, UnsupportedModel
from engine.model.weights import load_weights, weight_shapes

CONFIG = ModelConfig("LlamaForCausalLM", vocab_size=8, hidden_size=4, intermediate_size=6, num_layers=2, num_heads=2,
                     num_kv_heads=1, head_size=2, max_position=16)  # fmt: skip


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {name: torch.rand(shape) for name, shape in weight_shapes(CONFIG).items()}


def test_one_file(tmp_path: Path) -> None:
    saved = tensors()
    save_file(saved | {"something.else": torch.zeros(1)}, tmp_path / "model.safetensors")
    seen: list[float | None] = []
    loaded = load_weights(tmp_path, CONFIG, torch.float32, progress=lambda stage, done: seen.append(done))
    assert loaded.keys() == saved.keys()
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)
    assert seen[-1] == 1.0


def test_many_files_and_another_dtype(tmp_path: Path) -> None:
    saved = tensors()
    names = sorted(saved)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: saved[name] for name in part}, tmp_path / file)
    # A file that the index does not name is not read, whatever it holds.
    save_file({name: torch.zeros(1) for name in names}, tmp_path / "stale.safetensors")
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    loaded = load_weights(tmp_path, CONFIG, torch.bfloat16)
    assert all(torch.equal(loaded[name], saved[name].bfloat16()) for name in saved)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    saved = tensors()
    del saved["lm_head.weight"], saved["model.norm.weight"]
    save_file(saved, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"lack model\.norm\.weight and 1 more"):
        load_weights(tmp_path, CONFIG, torch.float32)


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    save_file(tensors() | {"model.norm.weight": torch.zeros(5)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"model\.norm\.weight has the shape \(5,\)"):
        load_weights(tmp_path, CONFIG, torch.float32)


def test_quantised_tensors_are_refused(tmp_path: Path) -> None:
    save_file(tensors() | {"model.norm.weight": torch.zeros(4, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match="quantised"):
        load_weights(tmp_path, CONFIG, torch.float32)


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    torch.save(tensors(), tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="only pickled weights"):
        load_weights(tmp_path, CONFIG, torch.float32)


def test_damaged_folders(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="no weights"):
        load_weights(tmp_path, CONFIG, torch.float32)
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0cut off")
    with pytest.raises(UnsupportedModel, match="cannot be read"):
        load_weights(tmp_path, CONFIG, torch.float32)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text("{}", encoding="utf-8")
    with pytest.raises(UnsupportedModel, match="cannot be read"):
        load_weights(tmp_path, CONFIG, torch.float32)
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "later.safetensors"}}), encoding="utf-8")
    with pytest.raises(UnsupportedModel, match="download is not complete"):
        load_weights(tmp_path, CONFIG, torch.float32)
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "../model.safetensors"}}), encoding="utf-8")
    with pytest.raises(UnsupportedModel, match="not a file of this folder"):
        load_weights(tmp_path, CONFIG, torch.float32)
