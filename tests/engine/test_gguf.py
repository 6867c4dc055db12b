"""GGUF files of every architecture and number format, against transformers on the model that they were made from."""

from __future__ import annotations

import json
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine.model.config import UnsupportedModel
from engine.model.gguf_file import BadGguf, GgufFile
from engine.model.gguf_model import GgufModel
from engine.model.weights import load_weights
from tests.engine.families import FAMILIES, LLAMA3_ROPE, Family
from tests.engine.forward_driver import VOCAB, Driver, make_runner, random_prompt, reference_logits
from tests.engine.gguf_files import Quant, write_from_folder

ORIGINAL = {"original_max_position_embeddings": 8192}
MODELS = {name: FAMILIES[name] for name in (
    "llama", "llama, untied, every head its own key", "llama, biases everywhere", "linear positions",
    "yarn positions", "mistral", "qwen2", "qwen3", "mixtral",
)} | {
    "gemma 3": Family("Gemma3", FAMILIES["gemma 3"].settings | {"query_pre_attn_scalar": 64}, plain=False),
    "llama 3": Family("Llama", {"rope_parameters": LLAMA3_ROPE | ORIGINAL | {"rope_theta": 500_000.0}}),
    "qwen3 moe": Family("Qwen3Moe", {
        "head_dim": 32, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
        "norm_topk_prob": True}, plain=False),
}  # fmt: skip


def convert(path: Path, folder: Path) -> GgufModel:
    """The converter without the tokenizer."""
    folder.mkdir()
    with closing(GgufFile(path)) as file:
        model = GgufModel(file)
        save_file(dict(model.tensors()), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(model.config), "utf-8")
    return model


@pytest.mark.parametrize("name", MODELS)
def test_every_architecture_computes_the_same(name: str, tmp_path: Path) -> None:
    family = MODELS[name]
    (tmp_path / "original").mkdir()
    model = family.make(tmp_path / "original")
    write_from_folder(tmp_path / "original", tmp_path / "model.gguf")
    converted = convert(tmp_path / "model.gguf", tmp_path / "converted")
    assert converted.config["dtype"] == "float32"
    prompt = random_prompt(90, seed=1)
    driver = Driver(make_runner(tmp_path / "converted", path="torch"), 16)
    driver.step([(driver.request("a", prompt), 1000)])
    torch.testing.assert_close(driver.logits[0], reference_logits(model, prompt)[-1], atol=1e-4, rtol=0)
    # transformers, too, reads the folder and agrees.
    again = type(model).from_pretrained(tmp_path / "converted").eval()
    torch.testing.assert_close(reference_logits(again, prompt), reference_logits(model, prompt), atol=1e-4, rtol=0)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose rows are long enough for every format."""
    folder = tmp_path_factory.mktemp("qwen")
    Family("Qwen2", {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}).make(folder)
    return folder


@pytest.mark.parametrize(
    "kind", [Quant.F16, Quant.BF16, Quant.Q8_0, Quant.Q4_0, Quant.Q4_1], ids=lambda kind: kind.name
)
def test_number_formats(kind: Quant, qwen: Path, tmp_path: Path) -> None:
    write_from_folder(qwen, tmp_path / "model.gguf", kind=lambda name: kind)
    model = convert(tmp_path / "model.gguf", tmp_path / "converted")
    assert model.config["dtype"] == ("float16" if kind == Quant.F16 else "bfloat16")
    exact = load_weights(qwen, model.shape, torch.float32)
    got = load_weights(tmp_path / "converted", model.shape, torch.float32)
    name = "model.layers.0.mlp.down_proj.weight"
    stored = gguf.quants.dequantize(gguf.quants.quantize(exact[name].numpy(), kind), kind)
    dtype = getattr(torch, model.config["dtype"])
    assert torch.equal(got[name], torch.from_numpy(stored).to(dtype).float())
    off = (got[name] - exact[name]).norm() / exact[name].norm()
    assert off < {Quant.F16: 1e-3, Quant.BF16: 5e-3, Quant.Q8_0: 1e-2}.get(kind, 0.15)
    assert torch.equal(got["model.norm.weight"], exact["model.norm.weight"].to(dtype).float())


def blocks(kind: Quant, rows: int) -> np.ndarray:
    """Rows of 512 numbers in a K format: random bits with scales that are small numbers."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(3)
    data = rng.integers(0, 256, (rows, 512 // block, size), dtype=np.uint8)
    scales = rng.uniform(0.001, 0.01, (rows, 512 // block, 2)).astype(np.float16).view(np.uint8)
    if kind == Quant.Q4_K:  # a scale and an offset, in front
        data[..., :4] = scales
    else:
        data[..., -2:] = scales[..., :2]
    return data.reshape(rows, -1)


def q4_k(block: np.ndarray) -> list[float]:
    """What one block of Q4_K stands for, number by number, from the description of the format."""
    d, dmin = (float(x) for x in block[:4].view(np.float16))
    packed, nibbles, out = block[4:16].astype(int), block[16:].astype(int), []
    for group in range(8):
        if group < 4:
            scale, low = packed[group] & 63, packed[group + 4] & 63
        else:
            scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6) << 4
            low = (packed[group + 4] >> 4) | (packed[group] >> 6) << 4
        for i in range(32):
            value = nibbles[group // 2 * 32 + i]
            out.append(d * scale * (value >> 4 if group % 2 else value & 15) - dmin * low)
    return out


def q6_k(block: np.ndarray) -> list[float]:
    """The same of Q6_K."""
    low, high = block[:128].astype(int), block[128:192].astype(int)
    scales, d = block[192:208].view(np.int8).astype(int), float(block[208:].view(np.float16)[0])
    out = []
    for i in range(256):
        half, within = divmod(i, 128)
        quarter, lane = divmod(within, 32)
        byte = low[half * 64 + (quarter % 2) * 32 + lane]
        value = (byte >> 4 if quarter >= 2 else byte & 15) | (high[half * 32 + lane] >> 2 * quarter & 3) << 4
        out.append(d * scales[i // 16] * (value - 32))
    return out


@pytest.mark.parametrize(("kind", "meaning"), [(Quant.Q4_K, q4_k), (Quant.Q6_K, q6_k)], ids=["Q4_K", "Q6_K"])
def test_k_formats(kind: Quant, meaning: Any, tmp_path: Path) -> None:
    data = blocks(kind, rows=3)
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor("t", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with closing(GgufFile(tmp_path / "a.gguf")) as file:
        assert file.format_of("t") == kind.name
        got = file.read("t", torch.float32)
    size = gguf.GGML_QUANT_SIZES[kind][1]
    expected = [[x for block in row.reshape(-1, size) for x in meaning(block)] for row in data]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float32))


def test_the_metadata_become_a_configuration(qwen: Path, tmp_path: Path) -> None:
    write_from_folder(qwen, tmp_path / "model.gguf", more=lambda writer: writer.add_eot_token_id(7))
    with closing(GgufFile(tmp_path / "model.gguf")) as file:
        model = GgufModel(file)
        assert file.metadata["general.architecture"] == "qwen2"
        assert file.metadata["tokenizer.ggml.tokens"] is None  # long lists are not kept
    assert model.generation_config == {"bos_token_id": 0, "eos_token_id": [0, 7]}
    assert model.shape.eos_token_ids == (0, 7)
    assert (model.config["vocab_size"], model.config["tie_word_embeddings"]) == (VOCAB, True)
    assert model.config["rms_norm_eps"] == 1e-6
    assert sum(model.sizes().values()) == model.shape.num_parameters


def text(key: str, value: str) -> Any:
    return lambda writer: writer.add_string(key, value)


def number(key: str, value: float) -> Any:
    return lambda writer: writer.add_float32(key, value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (lambda writer: writer.add_tensor("blk.0.attn_sinks.weight", np.zeros(4, np.float32)), "attn_sinks"),
        (lambda writer: writer.add_tensor("blk.9.attn_norm.weight", np.zeros(256, np.float32)), r"blk\.9\.attn_norm"),
        (lambda writer: writer.add_tensor("rope_freqs.weight", np.full(32, 3.0, np.float32)), "not Llama 3's"),
        (lambda writer: writer.add_rope_dimension_count(16), "rope.dimension_count is 16"),
        (text("qwen2.rope.scaling.type", "longrope"), "'longrope' are not supported"),
        (number("qwen2.rope.scaling.attn_factor", 1.5), "with attn_factor are not supported"),
    ],
)
def test_what_is_not_known_is_refused(more: Any, message: str, qwen: Path, tmp_path: Path) -> None:
    write_from_folder(qwen, tmp_path / "model.gguf", more=more)
    with closing(GgufFile(tmp_path / "model.gguf")) as file, pytest.raises(UnsupportedModel, match=message):
        GgufModel(file)


def test_an_unknown_architecture_names_the_known_ones(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with (
        closing(GgufFile(tmp_path / "a.gguf")) as file,
        pytest.raises(UnsupportedModel, match="'mamba' is not supported; supported are llama, qwen2, qwen3"),
    ):
        GgufModel(file)


def test_damaged_files(qwen: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_from_folder(qwen, path)
    whole = path.read_bytes()
    for cut in [0, 3, 10, 100, 1000, 4000, *range(5000, 9000, 97)]:
        path.write_bytes(whole[:cut])
        with (
            pytest.raises(BadGguf, match=r"damaged|cut off|empty|begin with GGUF"),
            closing(GgufFile(path)) as file,
        ):
            dict(GgufModel(file).tensors())
    path.write_bytes(whole[:-1000])
    with closing(GgufFile(path)) as file, pytest.raises(BadGguf, match="cut off"):
        dict(GgufModel(file).tensors())
    path.write_bytes(whole[:4] + struct.pack(">I", 3) + whole[8:])
    with pytest.raises(BadGguf, match="little-endian"):
        GgufFile(path)
    path.write_bytes(whole[:8] + struct.pack("<Q", 1 << 60) + whole[16:])
    with pytest.raises(BadGguf, match=r"damaged|cut off"):
        GgufFile(path)
