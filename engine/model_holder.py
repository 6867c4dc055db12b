"""Keeps a loaded model from one run to the next: to choose another scenario is no reason to load it again.

    the run before:  use ... end -> give_back        the next run:  take -> use ...
                                        \\__ kept __/

At most one model is kept, and only while nobody uses it. It belongs to the thread that took it until that thread gives
it back; what must not be handed on, it forgets then.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.model.tokenizer import Tokenizer
    from engine.runner import Runner

POLL_S = 0.05
PATIENCE_S = 20.0
"""For so long one waits for a model that is about to come back: far longer than a step takes."""



@dataclass(frozen=True)
class ModelKey:
    """What a model was loaded from and for: with an equal one, loading again would give the same.

    ``files`` are names, sizes and times of change of the folder's files.
    """

    folder: Path
    files: tuple[tuple[str, int, int], ...]
    device: str
    dtype: str
    forward_path: str
    num_threads: int
    max_model_len: int
    gpu_memory_utilization: float

    @classmethod
    def of(cls, folder: Path, config: EngineConfig) -> ModelKey:
        """Raises OSError where the folder cannot be read."""
        files = [(path.name, path.stat()) for path in sorted(folder.iterdir()) if path.is_file()]
        return cls(folder.resolve(), tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in files),
                   config.device, config.dtype, config.forward_path, config.num_threads, config.scheduler.max_model_len,
                   config.gpu_memory_utilization)


@dataclass(frozen=True, slots=True, eq=False)
class HeldModel:
    """A model that can serve an engine after the other."""

    key: ModelKey
    runner: Runner
    tokenizer: Tokenizer


class Borrower(Protocol):
    """Whoever uses a model. ``ending`` says that it will give it back soon, or has no use for one any more."""

    @property
    def ending(self) -> bool: ...


class ModelHolder:
    """Hands a model on. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._kept: HeldModel | None = None
        self._loans: dict[Borrower, ModelKey] = {}
        self._wanted: ModelKey | None = None
        self._closed = False

    def take(self, key: ModelKey, borrower: Borrower) -> HeldModel | None:
        """The model that was loaded for ``key``, if it is kept, or if another borrower is just about to give it back.

        None if there is none: then the borrower loads it, and what was kept instead is gone. Either way it has the
        model from now on, until it calls :meth:`give_back`.
        """
        with self._changed:
            self._wanted = key
            until = time.monotonic() + PATIENCE_S
            while (not borrower.ending and (self._kept is None or self._kept.key != key)
                   and self._comes(key, borrower) and time.monotonic() < until):
                self._changed.wait(POLL_S)  # a borrower may begin to end without a word
            self._loans[borrower] = key
            held, self._kept = self._kept, None
            # What is let go is let go now, before another takes its place in memory.
            return held if held is not None and held.key == key else None

    def _comes(self, key: ModelKey, borrower: Borrower) -> bool:
        return any(other.ending for other, theirs in self._loans.items() if other is not borrower and theirs == key)

    def give_back(self, borrower: Borrower, model: HeldModel | None) -> None:
        """``borrower`` uses no model any more. ``model`` is the one it had, or None where it came to none, or to harm.

        It is kept for whoever comes next, unless another one has been asked for meanwhile.
        """
        with self._changed:
            self._loans.pop(borrower, None)
            if model is not None and model.key == self._wanted and not self._closed:
                self._kept = model
            self._changed.notify_all()

    def let_go(self) -> None:
        """Keep nothing, now or later."""
        with self._changed:
            self._closed = True
            self._kept = None

    @property
    def keeps(self) -> bool:
        """Whether there is a model that nobody uses."""
        return self._kept is not None
