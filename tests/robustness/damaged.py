"""Damaged recordings by the thousand: each opens, in part or whole, and says what is wrong, or is refused for a reason.

Every second one is treated as files are that are too large to be checked when they are opened. Each is played from its
first step to its last and left open until the check in passing is done, as a user would; then something must have been
told. What stays as it was written, because the damage wrote what stood there, is not counted.

    python -m tests.robustness.damaged [--count 1000] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.bench.recording import BusyRun
from engine.trace import opening, opening_index
from engine.trace.events import StepEvents
from engine.trace.reader import Recording, RecordingError, open_recording
from engine.trace.recording import Recorder

LIMIT_S = 2.0
"""Processor time that opening and looking around may take."""

KINDS = ("cut off", "bits flipped", "bytes replaced", "bytes put in", "bytes removed", "bytes copied over others")


def make_recording(path: Path, steps: int) -> list[StepEvents]:
    run = BusyRun()
    recorder = Recorder(path, run.info)
    made: list[StepEvents] = []
    for events in run:
        recorder.wait_for_room()
        recorder.put(events)
        made.append(events)
        if len(made) == steps:
            break
    assert recorder.close()
    return made


def damage(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """One of the things that happen to files, and its name."""
    at = rng.randrange(len(data)) if rng.random() < 0.7 else max(0, len(data) - rng.randrange(1, 20_000))
    kind = rng.randrange(6)
    return KINDS[kind], _damaged(data, kind, at, rng)


def _damaged(data: bytes, kind: int, at: int, rng: random.Random) -> bytes:
    if kind == 0:
        return data[:at]
    if kind == 1:
        broken = bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 4, 50))):
            broken[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(broken)
    count = rng.randrange(1, 1 << rng.randrange(1, 18))
    filling = (bytes(count), b"\xff" * count, rng.randbytes(count), data[:count])[rng.randrange(4)]
    if kind == 2:
        return data[:at] + filling + data[at + count:]
    if kind == 3:
        return data[:at] + filling + data[at:]
    if kind == 4:
        return data[:at] + data[at + count:]
    other = rng.randrange(len(data))
    return data[:at] + data[other:other + count] + data[at + count:]


@contextmanager
def as_if_large(large: bool) -> Iterator[None]:
    """Open files as those are opened that nobody can read whole in half a second."""
    before = opening.READ_WHOLE_BYTES, opening_index.CHECK_BYTES
    if large:
        opening.READ_WHOLE_BYTES = opening_index.CHECK_BYTES = 0
    try:
        yield
    finally:
        opening.READ_WHOLE_BYTES, opening_index.CHECK_BYTES = before


def try_file(path: Path, data: bytes, steps: list[StepEvents], rng: random.Random, *, large: bool = False) -> str:
    """Open it, look around, play it: "refused", "in part", "whole, and told" or "NOT TOLD".

    Raises AssertionError if it misbehaves.
    """
    path.write_bytes(data)
    began = time.process_time()
    try:
        with as_if_large(large):
            recording = open_recording(path)
    except RecordingError as error:
        assert len(str(error)) > 10  # noqa: PT017
        assert time.process_time() - began < LIMIT_S, f"{time.process_time() - began:.1f} s"
        return "refused"
    _look_around(recording, steps, rng)
    assert time.process_time() - began < LIMIT_S, f"{time.process_time() - began:.1f} s"
    _play(recording, steps)
    recording.check()
    recording.close()
    assert recording.complete or recording.warnings
    assert recording.last_step == len(steps) - 1 or not recording.complete
    assert path.read_bytes() == data
    if not recording.complete:
        return "in part"
    return "whole, and told" if recording.warnings else "NOT TOLD"


def _look_around(recording: Recording, steps: list[StepEvents], rng: random.Random) -> None:
    first, last = recording.first_step, recording.last_step
    if last < 0:
        return
    for step in {first, last, (first + last) // 2, rng.randint(first, last)}:
        try:
            assert recording.events(step) == steps[step]
            assert recording.state_at(step).step == step
        except RecordingError:
            assert recording.warnings
        row = recording.series.index_of(step)
        recording.series.segments_between(row - 50, row + 50)
        recording.series.latency(step, 100)
        recording.series.marks.between(step - 20, step)
        recording.timeline.rows  # noqa: B018


def _play(recording: Recording, steps: list[StepEvents]) -> None:
    """Every step once; past what cannot be read."""
    for step in range(max(0, recording.first_step), recording.last_step + 1):
        try:
            assert recording.events(step) == steps[step]
        except RecordingError:
            assert recording.warnings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    tally: Counter[tuple[str, str]] = Counter()
    same = 0
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.mcap"
        steps = make_recording(whole, arguments.steps)
        data = whole.read_bytes()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        number = 0
        while tally.total() < arguments.count:
            rng = random.Random(f"{arguments.seed} {number}")
            kind, broken = damage(data, rng)
            number += 1
            if broken == data:
                same += 1
                continue
            try:
                outcome = try_file(Path(folder) / "a.mcap", broken, steps, rng, large=number % 2 == 0)
            except Exception as error:
                outcome = "FAILED"
                print(f"file {number - 1} ({kind}): {type(error).__name__}: {error}")
            if outcome == "NOT TOLD":
                print(f"file {number - 1} ({kind}): nothing was told")
            tally[kind, outcome] += 1
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    outcomes = sorted({outcome for _, outcome in tally})
    print(f"{'':26}" + "".join(f"{outcome:>18}" for outcome in outcomes))
    for kind in (*KINDS, "all"):
        counts = [sum(n for (k, o), n in tally.items() if o == outcome and kind in (k, "all")) for outcome in outcomes]
        print(f"{kind:26}" + "".join(f"{count:18}" for count in counts))
    print(f"{len(data) / 1e6:.1f} MB, {tally.total()} damaged files; {same} more stayed as they were; memory grew by "
          f"{grown:.0f} MB")
    return 1 if {"FAILED", "NOT TOLD"} & set(outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
