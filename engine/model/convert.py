"""Converts a GGUF file to an ordinary Hugging Face folder: safetensors, configuration, tokenizer.

``python -m engine.model.convert FILE.gguf FOLDER`` is meant to run in a process of its own: it imports torch and
transformers, takes tens of seconds, and is stopped by killing it. It writes one JSON object a line: ``{"code": stage,
"fraction": 0..1}`` as it goes on, and ``{"error": code, ...}`` before it exits with status 1.

The weights are read by :mod:`engine.model.gguf_model`, the tokenizer by transformers.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.model.config import UnsupportedModel
from engine.model.gguf_file import BadGguf, GgufFile
from engine.model.gguf_model import GgufModel

if TYPE_CHECKING:
    import torch

# Which part of the whole each stage ends at, as measured with SmolLM2-135M.
_ENDS = {"starting": 0.4, "weights": 0.6, "tokenizer": 1.0}
_SHARD = 4 << 30  # bytes of one file of weights; it is held in memory while it is put together


class _Refused(Exception):
    def __init__(self, code: str, **values: object) -> None:
        super().__init__(code)
        self.code, self.values = code, values


def convert(gguf: Path, folder: Path) -> None:
    """Write the model in ``gguf`` to ``folder``, which transformers, vLLM and this engine can then load."""
    _say("starting", 0.0)
    import torch  # noqa: F401  (takes seconds, which belong to this stage)

    with contextlib.closing(GgufFile(gguf)) as file:
        model = GgufModel(file)
        folder.mkdir(parents=True, exist_ok=True)
        _say("weights", _ENDS["starting"])
        _save_weights(model, folder)
        _write(folder / "config.json", model.config)
        _write(folder / "generation_config.json", model.generation_config)
        pre_tokenizer = str(file.metadata.get("tokenizer.ggml.pre", ""))
    _say("tokenizer", _ENDS["weights"])
    _save_tokenizer(gguf, folder, pre_tokenizer, model.shape.vocab_size)
    for path in folder.iterdir():
        path.chmod(0o644)
    _say("saving", 1.0)


def _save_weights(model: GgufModel, folder: Path) -> None:
    """As one file, or several with an index where it would be too large to hold."""
    from safetensors.torch import save_file

    sizes = model.sizes()
    total = sum(sizes.values())
    width = 4 if model.config["dtype"] == "float32" else 2
    count = -(-total * width // _SHARD)
    weight_map: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    done = held = parts = 0
    try:
        for name, tensor in model.tensors():
            shard[name] = tensor
            done += sizes[name]
            held += sizes[name]
            _say("weights", _ENDS["starting"] + (_ENDS["weights"] - _ENDS["starting"]) * done / total)
            if done == total or (count > 1 and held * width >= _SHARD):
                parts += 1
                part = f"model-{parts:05d}.safetensors" if count > 1 else "model.safetensors"
                save_file(shard, folder / part, metadata={"format": "pt"})
                weight_map |= dict.fromkeys(shard, part)
                shard, held = {}, 0
    except Exception as error:
        if _is_disk_full(error):
            raise _Refused("disk_full", needed=total * width) from error
        raise
    if count > 1:
        _write(folder / "model.safetensors.index.json",
               {"metadata": {"total_size": total * width}, "weight_map": weight_map})  # fmt: skip


def _save_tokenizer(gguf: Path, folder: Path, pre_tokenizer: str, vocab_size: int) -> None:
    """The tokenizer, and the chat template if the file has one."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything needed is in the file
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import transformers

    transformers.logging.set_verbosity_error()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    except Exception as error:  # the library raises whatever went wrong inside it
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise _Refused("conversion_failed", reason=f"its tokenizer cannot be read: {reason}") from error
    # Templates in tokenizer_config.json: readers of every age look there.
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    _mend_tokenizer(folder, pre_tokenizer, vocab_size)
    _for_other_readers(folder)


def _mend_tokenizer(folder: Path, pre_tokenizer: str, vocab_size: int) -> None:
    """Put right what transformers makes of some files."""
    tokenizer = _read(folder / "tokenizer.json")
    # GPT-2's own end token is added where the file has none of that name, with an id beyond what the model knows.
    tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["id"] < vocab_size]
    if len(tokenizer["model"]["vocab"]) > vocab_size:
        raise _Refused("conversion_failed", reason="its tokenizer has more tokens than the model knows")
    before = tokenizer["pre_tokenizer"]
    if pre_tokenizer == "smollm" and before and before["type"] == "ByteLevel":
        # GGUF names the model's way to split text, and GPT-2's is taken instead: digits go one by one.
        digits = {"type": "Digits", "individual_digits": True}
        tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, before]}
    _write(folder / "tokenizer.json", tokenizer)


def _for_other_readers(folder: Path) -> None:
    """Say in the words of older readers, too, what they would otherwise silently take wrong."""
    settings = _read(folder / "tokenizer_config.json")
    settings = {key: value for key, value in settings.items() if key not in ("is_local", "local_files_only", "backend")}
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # the same class, by the name that all versions know
    settings.setdefault("model_input_names", ["input_ids", "attention_mask"])  # 4 would add token_type_ids for BERT
    _write(folder / "tokenizer_config.json", settings)


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
    except UnsupportedModel as error:
        print(json.dumps({"error": "unsupported", "reason": str(error)}), flush=True)
        return 1
    except BadGguf as error:
        print(json.dumps({"error": "conversion_failed", "reason": str(error)}), flush=True)
        return 1
    except Exception as error:
        code = "disk_full" if _is_disk_full(error) else "conversion_failed"
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        print(json.dumps({"error": code, "reason": reason}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
