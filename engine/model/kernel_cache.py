"""The folders that compiled kernels are kept in: one for each version of their sources, and none for ever.

A folder's time is when it was last used. Whoever starts says so of its own, and deletes those that nobody has used for
a month. Both happen under one lock, so that no folder goes between being found and being used; a process that runs on
with an older version has its machine code in memory long since.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from engine.model.file_lock import try_lock, unlock

UNUSED_S = 30 * 24 * 3600.0
"""For so long a folder stays that nobody uses."""

LOCK_WAIT_S = 2.0
_VERSION = re.compile(r"[0-9a-f]{16}")
_GONE = ".gone-"


def claim(folder: Path) -> None:
    """Make ``folder`` if need be, note that it is in use, and clear its unused neighbours away.

    Raises OSError if it cannot be made. That it cannot be cleared up around it is nobody's concern.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent) as alone:
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(OSError):
            os.utime(folder)
        if alone:
            with contextlib.suppress(OSError):
                _clear(folder.parent, before=time.time() - UNUSED_S)


@contextlib.contextmanager
def _locked(parent: Path) -> Iterator[bool]:
    """Hold the lock of all folders; False, without it, where it is not to be had in time."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context((parent / ".lock").open("a+b"))
        except OSError:
            yield False
            return
        until = time.monotonic() + LOCK_WAIT_S
        while not (held := try_lock(file)) and time.monotonic() < until:
            time.sleep(0.02)
        try:
            yield held
        finally:
            if held:
                unlock(file)


def _clear(parent: Path, before: float) -> None:
    for path in list(parent.iterdir()):
        with contextlib.suppress(OSError):
            if path.is_symlink() or not path.is_dir():
                continue
            if path.name.startswith(_GONE):  # somebody was killed while deleting it
                shutil.rmtree(path, ignore_errors=True)
            elif _VERSION.fullmatch(path.name) and path.stat().st_mtime < before:
                # Renamed first: a folder that is half deleted is not to be taken for one that is whole.
                gone = path.with_name(f"{_GONE}{path.name}")
                path.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)
