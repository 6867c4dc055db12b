"""``cutaway verify`` and ``cutaway bench recording``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.trace.source import RunSource

Open = Callable[[Path], "RunSource"]


def add_verify(commands: Any, open_source: Open) -> None:
    """Add the command; ``commands`` is what ``add_subparsers`` has returned, ``open_source`` opens a recording."""
    verify = commands.add_parser(
        "verify", help="is a recording whole and possible, and would the scheduler decide the same again",
        description="Reads every step of a recording: whether it is whole, whether the pool's rules hold after each "
                    "step, and whether the scheduler decides the same again from the recorded arrivals and tokens. "
                    "The exit status is 1 if something is wrong.")
    verify.add_argument("file", type=Path, metavar="FILE", help="a recording (.mcap)")
    verify.add_argument("--json", action="store_true", help="as JSON")
    verify.set_defaults(command=lambda arguments: _verify(arguments, open_source))


def add_recording_bench(benches: Any, positive_int: Callable[[str], int]) -> None:
    """Add ``bench recording``."""
    bench = benches.add_parser(
        "recording", help="what writing a recording costs, and how quickly a long one opens and is sought in",
        description="Records a scheduler that serves 20 requests at once without a model, opens the file in another "
                    "process, and jumps about in it. write_us_per_step is what the engine's thread loses, "
                    "writer_us_per_step the processor time of the recorder's thread.")
    bench.add_argument("--steps", type=positive_int, default=100_000, metavar="N", help="(default: %(default)s)")
    bench.add_argument("--json", action="store_true", help="as JSON")
    bench.set_defaults(command=_bench)


def _bench(arguments: argparse.Namespace) -> int:
    from engine.bench.recording import run_recording_bench

    return run_recording_bench(arguments.steps, as_json=arguments.json)


def _verify(arguments: argparse.Namespace, open_source: Open) -> int:
    import json

    from app.headless import Progress, ending_on_sigterm
    from engine.redecide import Redecider, eos_of, why_not
    from engine.trace.reader import RecordingError
    from engine.trace.verify import verify

    source = open_source(arguments.file)
    progress = Progress()
    try:
        with ending_on_sigterm():
            not_checked = why_not(source)
            decide = None
            if not_checked is None and source.last_step >= 0:
                with suppress(RecordingError):  # reading the steps tells it
                    decide = Redecider(source.info, eos_of(source)).check
            found = verify(source, decide, not_checked, lambda share: progress.tell(f"verifying: {share:.0%}"))
    finally:
        progress.end()
        source.close()
    if arguments.json:
        print(json.dumps({"ok": found.ok, "steps": found.steps, "whole": found.whole, "possible": found.possible,
                          "repeated": found.repeated, "decided": found.decided,
                          "not_checked": found.not_checked, "problems": found.problems}, ensure_ascii=False, indent=2))
        return 0 if found.ok else 1
    words = {True: "yes", False: "NO", None: "not checked"}
    print(f"steps read                     {found.steps:,}")
    print(f"whole                          {words[found.whole]}")
    print(f"the pool's rules hold          {words[found.possible]}")
    print(f"the scheduler decides the same {words[found.repeated]}"
          + (f" ({found.decided:,} steps)" if found.decided else ""))
    if found.not_checked is not None:
        print(found.not_checked)
    for problem in found.problems:
        print(f"- {problem}")
    return 0 if found.ok else 1
