"""Runs a module as a child process that ends with its parent.

``python -m engine.model.child MODULE ARG...`` runs the module as ``python -m`` would. Its standard input is a pipe that
the parent holds open and never writes to: when the parent is gone, however it went, the pipe closes and so do we. A
window that was killed then leaves no download or conversion behind that nobody waits for.
"""

from __future__ import annotations

import os
import queue
import runpy
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from engine.model.problems import Cancel, PreparationCancelled

PARENT_GONE = 75  # exit status


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module in this Python, guarded."""
    return [sys.executable, "-m", "engine.model.child", module, *arguments]


def run_child(
    command: Sequence[str],
    cancel: Cancel | None = None,
    on_line: Callable[[str], None] | None = None,
    on_tick: Callable[[], None] | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[int, list[str]]:
    """Run a command to its end; give its exit status and the last lines that it wrote.

    ``on_line`` gets every line, ``on_tick`` is called about ten times a second. Raises
    :class:`PreparationCancelled` once ``cancel`` is set; the child is killed then, and whenever we leave early.
    """
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8", **(env or {})}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
    # The window has no console on Windows; without the flag each child would open one.
    flags: int = getattr(subprocess, "CREATE_NO_WINDOW", 0)
    child = subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        encoding="utf-8",
        errors="replace",
        creationflags=flags,
    )
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    assert child.stdout is not None
    reader = threading.Thread(target=_pump, args=(child.stdout, lines), name="child-output", daemon=True)
    reader.start()
    tail: deque[str] = deque(maxlen=40)
    try:
        while True:
            if cancel is not None and cancel.is_set():
                raise PreparationCancelled
            try:
                line = lines.get(timeout=0.1)
            except queue.Empty:
                line = ""
            if line is None:
                return child.wait(), list(tail)
            if line:
                tail.append(line)
                if on_line is not None:
                    on_line(line)
            if on_tick is not None:
                on_tick()
    finally:
        if child.poll() is None:
            child.kill()
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
        reader.join()
        child.stdout.close()


def _pump(stream: object, lines: queue.SimpleQueue[str | None]) -> None:
    for line in stream:  # type: ignore[attr-defined]
        lines.put(line.rstrip())
    lines.put(None)


def _end_with_parent() -> None:
    try:
        # os.read, not sys.stdin: a thread that sleeps inside sys.stdin's lock breaks the interpreter's shutdown.
        while os.read(0, 1024):
            pass
    except OSError:
        pass
    os._exit(PARENT_GONE)


def main() -> None:
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
