"""A file for what need not stay in memory. It has no name: when the program ends, however it ends, it is gone."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO, NamedTuple

MIN_FREE_BYTES = 512 << 20
"""With less free on the disk nothing more is written: others need room too."""

LOOK_EVERY_BYTES = 16 << 20


class Place(NamedTuple):
    offset: int
    length: int


def spill_folder() -> Path:
    """``CUTAWAY_CACHE`` if set, else the operating system's place for caches."""
    chosen = os.environ.get("CUTAWAY_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("cutaway", appauthor=False))


class SpillFile:
    """Grows at the end; ``failed`` once the disk is full or cannot be written. What was written can still be read."""

    def __init__(self, folder: Path | None = None) -> None:
        self.failed = False
        self._folder = folder
        self._file: BinaryIO | None = None
        self._size = 0
        self._look_at = 0

    @property
    def size(self) -> int:
        return self._size

    def write(self, data: bytes) -> Place | None:
        """Where ``data`` was put, or None if it could not be written."""
        if self.failed:
            return None
        try:
            if self._file is None:
                folder = self._folder or spill_folder()
                folder.mkdir(parents=True, exist_ok=True)
                self._folder = folder
                self._file = tempfile.TemporaryFile(dir=folder, prefix="cutaway-run-", buffering=0)  # noqa: SIM115
            if self._size >= self._look_at:
                assert self._folder is not None
                if shutil.disk_usage(self._folder).free < MIN_FREE_BYTES:
                    raise OSError("the disk is nearly full")
                self._look_at = self._size + LOOK_EVERY_BYTES
            self._file.seek(self._size)
            view = memoryview(data)
            while view:
                view = view[self._file.write(view):]
        except OSError:
            self.failed = True
            return None
        place = Place(self._size, len(data))
        self._size += len(data)
        return place

    def read(self, place: Place) -> bytes:
        """Raises OSError when it cannot be read (any more)."""
        if self._file is None:
            raise OSError("the temporary file of the run is closed")
        self._file.seek(place.offset)
        data = self._file.read(place.length)
        if len(data) != place.length:
            raise OSError("the temporary file of the run cannot be read")
        return data

    def close(self) -> None:
        self.failed = True
        if self._file is not None:
            self._file.close()
            self._file = None
