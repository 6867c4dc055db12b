"""A file that only grows, written by one recorder at a time while others may read it."""

from __future__ import annotations

import io
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


class InUse(OSError):
    """Somebody records to the file."""


class GrowingFile:
    """What an MCAP writer writes to. ``size`` is what has been written, ``whole`` where the last whole chunk ends.

    Raises OSError, :class:`InUse` for a file that another recorder writes: emptying it would spoil both recordings.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115
        try:
            _take_hold(self._file)
            if os.fstat(self._file.fileno()).st_size:
                self._file.truncate(0)
        except BaseException:
            self._file.close()
            raise
        self.size = 0
        self.whole = 0

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            count = self._file.write(view)
            self.size += count
            view = view[count:]
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self.whole = self.size

    def cut_back(self) -> None:
        """Cut off what was begun after the last whole chunk and could not be ended."""
        with suppress(OSError):  # readers cope
            self._file.truncate(self.whole)
            self.size = self.whole

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()


def _take_hold(file: BinaryIO | io.FileIO) -> None:
    """Keep others from recording to the file, as long as it is open. Readers are welcome."""
    try:
        import fcntl
    except ImportError:  # Windows, whose locks keep readers out too
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InUse from None
    except OSError:
        pass  # a file system without locks
