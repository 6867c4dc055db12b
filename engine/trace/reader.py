"""Opens recordings, whole ones and what is left of others.

Only the index is read, and the steps that it does not cover: those of the last moments when the program was killed,
those of a block of the index that is damaged, and all of them in a recording from before there was an index. Small
files are read whole all the same, and the chunks of middling ones are checked.

Everything up to the last whole chunk opens. What is missing stands in ``warnings``; a file of which nothing can be
shown raises :class:`RecordingError`. Damage in a large file may be found only when one looks there: then ``warnings``
grows, ``complete`` becomes False, and RecordingError is raised. The file is never changed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from engine.trace.opening import Opening
from engine.trace.recorded import Recording, RecordingError
from engine.trace.source import Notice, collector_paused

__all__ = ["Recording", "RecordingError", "open_recording"]


def open_recording(path: str | os.PathLike[str]) -> Recording:
    """Open a recording. Raises :class:`RecordingError`."""
    path = Path(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise RecordingError(Notice("{path} is a folder, not a recording.", path=path))
        if not stat.S_ISREG(mode):
            raise RecordingError(Notice("{path} is not an ordinary file.", path=path))
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        raise RecordingError(Notice("There is no file {path}.", path=path)) from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    try:
        with collector_paused():
            return Opening(path, file).open()
    except OSError as error:
        file.close()
        raise _unreadable(path, error) from None
    except BaseException:
        file.close()
        raise


def _unreadable(path: Path, error: OSError | ValueError) -> RecordingError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return RecordingError(Notice("{path} cannot be read: {reason}.", path=path, reason=reason))
