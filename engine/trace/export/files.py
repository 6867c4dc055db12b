"""Files that are either there and whole, or not there."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from engine.trace.mcap_file import MAGIC
from engine.trace.source import Notice

FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


class ExportError(Exception):
    """An export cannot be made. Its argument is a :class:`Notice` that says why, for people; it can be translated."""


class ExportFailed(ExportError):
    """The disk refused in the middle of it: nothing that the user asked for was wrong."""


def check_target(path: Path, *, overwrite: bool) -> None:
    """Raise :class:`ExportError` when a file cannot come to be at ``path``, or must not."""
    if path.is_dir():
        raise ExportError(Notice("{path} is a folder: name a file.", path=path))
    if not path.parent.is_dir():
        raise ExportError(Notice("There is no folder {folder}.", folder=path.parent))
    if not overwrite and (path.exists() or path.is_symlink()):
        raise ExportError(Notice("{path} exists already and is left as it is. Name another file.", path=path))
    if _is_recording(path):
        raise ExportError(Notice("{path} is a recording, which no export replaces. Name another file.", path=path))


def _is_recording(path: Path) -> bool:
    """Whether what is at ``path`` is a recording: maybe the very one that is exported, or one that is being written."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


@contextlib.contextmanager
def new_file(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Gives the name of a temporary file beside ``path``, made and empty; it becomes ``path`` when the block ends.

    When the block is left by an exception (or its generator is closed) the temporary file is deleted, and what was at
    ``path`` before is as it was. Raises :class:`ExportError` for whatever the disk refuses.
    """
    check_target(path, overwrite=overwrite)
    part = path.with_name(f".{path.name[:40]}.{os.getpid()}.part{path.suffix}")
    made = False
    try:
        with _disk_errors(path):
            part.open("xb").close()
            made = True
            yield part
            check_target(path, overwrite=overwrite)  # somebody else may have been quicker
            os.replace(part, path)
            made = False
    finally:
        if made:
            with contextlib.suppress(OSError):
                part.unlink()


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        kind = ExportError if failure.errno in FORBIDDEN else ExportFailed
        raise kind(why_not_written(failure, path)) from None


def why_not_written(failure: OSError, path: Path) -> Notice:
    """What the system refused, and what to do about it."""
    if failure.errno in (errno.ENOSPC, errno.EDQUOT):
        return Notice("The disk is full: {path} was not written. Free some room, or choose another disk.", path=path)
    if failure.errno in FORBIDDEN:
        return Notice("{path} may not be written: choose another folder.", path=path)
    if not path.parent.is_dir():
        return Notice("There is no folder {folder}.", folder=path.parent)
    return Notice("{path} cannot be written ({reason}). Choose another place.", path=path,
                  reason=failure.strerror or failure)
