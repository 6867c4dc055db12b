"""A CUDA graph on the CPU: what is captured is recorded operation by operation, on the tensors it was captured with.

So whatever a step decides on the host, or reads from elsewhere than from its fixed inputs, stays as it was when it was
captured, as with a real graph; :class:`~engine.gpu.device.HostDevice`, which calls the function again, would hide it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import InterpretedFunction

from engine.gpu.device import Graph, HostDevice


class RecordingDevice(HostDevice):
    """Counts what is captured and replayed."""

    def __init__(self) -> None:
        self.captures = 0
        self.replays = 0

    def capture(self, function: Callable[[], None], pool: Any) -> Graph:
        recorder = _Recorder()
        with _launches_told_to(recorder), recorder:
            function()
        self.captures += 1
        graph = _Recording(self, recorder.done)
        graph.poison()  # a capture computes nothing
        return graph


class _Recorder(TorchDispatchMode):
    """``done`` holds every operation and every kernel: what, arguments, named arguments, result."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any], Any]] = []
        self.paused = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if not self.paused:
            self.done.append((function, args, kwargs or {}, result))
        return result


@contextmanager
def _launches_told_to(recorder: _Recorder) -> Iterator[None]:
    plain = InterpretedFunction.run

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.done.append((lambda *a, **k: plain(self, *a, **k), args, kwargs, None))
        recorder.paused = True
        try:
            return plain(self, *args, **kwargs)
        finally:
            recorder.paused = False

    InterpretedFunction.run = noted
    try:
        yield
    finally:
        InterpretedFunction.run = plain


class _Recording:
    def __init__(self, device: RecordingDevice, done: list[Any]) -> None:
        self._device = device
        self._done = done

    def replay(self) -> None:
        self._device.replays += 1
        for function, args, kwargs, result in self._done:
            if _is_view(function, args, result):
                continue  # the recorded one looks at memory that is written again
            again = function(*args, **kwargs)
            if not _changes_its_arguments(function):
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(old, torch.Tensor):
                        old.copy_(new)

    def poison(self) -> None:
        for function, args, _, result in self._done:
            if not _is_view(function, args, result) and not _changes_its_arguments(function):
                for tensor in tree_leaves(result):
                    if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                        tensor.fill_(float("nan"))


def _changes_its_arguments(function: Any) -> bool:
    return isinstance(function, torch._ops.OpOverload) and bool(function._schema.is_mutable)


def _is_view(function: Any, args: Any, result: Any) -> bool:
    if _changes_its_arguments(function):
        return False
    mine = {t.untyped_storage().data_ptr() for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.numel()}
    given = {t.untyped_storage().data_ptr() for t in tree_leaves(args) if isinstance(t, torch.Tensor) and t.numel()}
    return bool(mine & given)
