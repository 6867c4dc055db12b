"""Converts a GGUF file to an ordinary Hugging Face folder: bf16 safetensors, configuration, tokenizer.

``python -m engine.model.convert FILE.gguf FOLDER`` is meant to run in a process of its own: it imports torch and
transformers, takes tens of seconds, and is stopped by killing it. It writes one JSON object a line: ``{"code": stage,
"fraction": 0..1}`` as it goes on, and ``{"error": code, ...}`` before it exits with status 1.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Which part of the whole each stage ends at, as measured with SmolLM2-135M.
_ENDS = {"starting": 0.12, "tokenizer": 0.4, "weights": 0.93, "saving": 1.0}


class _Refused(Exception):
    def __init__(self, code: str, **values: object) -> None:
        super().__init__(code)
        self.code, self.values = code, values


def convert(gguf: Path, folder: Path) -> None:
    """Write the model in ``gguf`` to ``folder``, which transformers, vLLM and this engine can then load."""
    _say("starting", 0.0)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything needed is in the file
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    source: dict[str, Any] = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    _say("tokenizer", _ENDS["starting"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)

    _say("weights", _ENDS["tokenizer"])
    config = transformers.AutoConfig.from_pretrained(**source)
    _refuse_unsupported(config.to_dict(), gguf)
    with _weights_progress():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            **source,
            config=config,
            dtype=torch.bfloat16,
            quantization_config=transformers.GgufConfig(dequantize=True),
        )

    _say("saving", _ENDS["weights"])
    needed = sum(p.numel() for p in model.parameters()) * 2
    folder.mkdir(parents=True, exist_ok=True)
    try:
        model.save_pretrained(folder)
        # Templates in tokenizer_config.json: readers of every age look there.
        tokenizer.save_pretrained(folder, save_jinja_files=False)
        _for_other_readers(folder, gguf)
    except Exception as error:
        if _is_disk_full(error):
            raise _Refused("disk_full", needed=needed) from error
        raise
    for path in folder.iterdir():
        path.chmod(0o644)
    _say("saving", 1.0)


def _for_other_readers(folder: Path, gguf: Path) -> None:
    """Say in the words of older readers, too, what they would otherwise silently take wrong."""
    config = _read(folder / "config.json")
    config.pop("_model_name_or_path", None)
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        config["rope_theta"] = rope["rope_theta"]  # where transformers 4 looks; its default is another one
        if rope.get("rope_type", "default") != "default":
            config["rope_scaling"] = {key: value for key, value in rope.items() if key != "rope_theta"}
    _write(folder / "config.json", config)

    settings = _read(folder / "tokenizer_config.json")
    settings = {key: value for key, value in settings.items() if key not in ("is_local", "local_files_only", "backend")}
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # the same class, by the name that all versions know
    settings.setdefault("model_input_names", ["input_ids", "attention_mask"])  # 4 would add token_type_ids for BERT
    _write(folder / "tokenizer_config.json", settings)

    if _pre_tokenizer_name(gguf) == "smollm":
        # GGUF names the model's way to split text, and transformers takes GPT-2's instead: digits go one by one.
        tokenizer = _read(folder / "tokenizer.json")
        before = tokenizer["pre_tokenizer"]
        if before and before["type"] == "ByteLevel":
            digits = {"type": "Digits", "individual_digits": True}
            tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, before]}
            _write(folder / "tokenizer.json", tokenizer)


def _refuse_unsupported(config: dict[str, Any], gguf: Path) -> None:
    from engine.model.config import ModelConfig, UnsupportedModel

    if not config.get("architectures"):
        import transformers

        mapping = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        config["architectures"] = [mapping.get(config.get("model_type"), config.get("model_type"))]
    try:
        ModelConfig.from_dict(config, where=str(gguf))
    except UnsupportedModel as error:
        raise _Refused("unsupported", reason=str(error)) from None


@contextlib.contextmanager
def _weights_progress() -> Iterator[None]:
    """Turn the library's progress bar over the tensors into ours, where it still has one."""
    import transformers.modeling_gguf_pytorch_utils as module

    original = getattr(module, "tqdm", None)

    def counted(tensors: Any, **_: Any) -> Iterator[Any]:
        start, end = _ENDS["tokenizer"] + 0.25, _ENDS["weights"]
        for done, tensor in enumerate(tensors):
            if done % 16 == 0:
                _say("weights", start + (end - start) * done / len(tensors))
            yield tensor

    if original is not None:
        module.tqdm = counted
    try:
        yield
    finally:
        if original is not None:
            module.tqdm = original


def _pre_tokenizer_name(gguf: Path) -> str:
    """``tokenizer.ggml.pre``, found without parsing the whole header (that takes seconds)."""
    key = b"tokenizer.ggml.pre"
    with gguf.open("rb") as file:
        head = file.read(1 << 24)
    at = head.find(len(key).to_bytes(8, "little") + key + (8).to_bytes(4, "little"))  # 8: a string follows
    if at < 0:
        return ""
    at += 8 + len(key) + 4
    length = int.from_bytes(head[at : at + 8], "little")
    return head[at + 8 : at + 8 + min(length, 64)].decode("utf-8", "replace")


def _is_disk_full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
            return True
        if any(words in str(error) for words in ("os error 28", "No space left", "os error 112", "os error 122")):
            return True
        error = error.__cause__ or error.__context__
    return False


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8"))


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _say(code: str, fraction: float) -> None:
    print(json.dumps({"code": code, "fraction": round(fraction, 3)}), flush=True)


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: python -m engine.model.convert FILE.gguf FOLDER", file=sys.stderr)
        return 2
    try:
        convert(Path(arguments[0]), Path(arguments[1]))
    except _Refused as refused:
        print(json.dumps({"error": refused.code, **refused.values}), flush=True)
        return 1
    except Exception as error:
        code = "disk_full" if _is_disk_full(error) else "conversion_failed"
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        print(json.dumps({"error": code, "reason": reason}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
