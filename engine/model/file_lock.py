"""The operating system's lock on an open file: it falls with its holder, even one that was killed."""

from __future__ import annotations

import contextlib
import errno
import sys
from typing import IO

if sys.platform == "win32":
    import msvcrt

    def try_lock(file: IO[bytes]) -> bool:
        """Take the lock if nobody has it; False if somebody does."""
        try:
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def unlock(file: IO[bytes]) -> None:
        file.seek(0)
        with contextlib.suppress(OSError):
            msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def try_lock(file: IO[bytes]) -> bool:
        """Take the lock if nobody has it; False if somebody does."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # A file system without locks: go on unlocked rather than wait for ever.
            return error.errno not in (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK)
        return True

    def unlock(file: IO[bytes]) -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
