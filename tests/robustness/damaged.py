"""Damaged recordings by the thousand: each opens in part with a warning, or is refused with a reason.

    python -m tests.robustness.damaged [--count 1000] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from engine.bench.recording import BusyRun
from engine.trace.events import StepEvents
from engine.trace.reader import RecordingError, open_recording
from engine.trace.recording import Recorder

LIMIT_S = 2.0
"""Processor time that opening and looking around may take."""


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


def damage(data: bytes, rng: random.Random) -> bytes:
    """One of the things that happen to files."""
    at = rng.randrange(len(data)) if rng.random() < 0.7 else max(0, len(data) - rng.randrange(1, 20_000))
    kind = rng.randrange(6)
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


def try_file(path: Path, data: bytes, steps: list[StepEvents], rng: random.Random) -> str:
    """Open it and look around: "refused", "in part" or "whole". Raises AssertionError if it misbehaves."""
    path.write_bytes(data)
    began = time.process_time()
    try:
        recording = open_recording(path)
    except RecordingError as error:
        assert len(str(error)) > 10  # noqa: PT017
        assert time.process_time() - began < LIMIT_S, f"{time.process_time() - began:.1f} s"
        return "refused"
    first, last = recording.first_step, recording.last_step
    if last >= 0:
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
    assert recording.complete or recording.warnings
    assert last == len(steps) - 1 or not recording.complete
    recording.close()
    assert time.process_time() - began < LIMIT_S, f"{time.process_time() - began:.1f} s"
    assert path.read_bytes() == data
    return "whole" if recording.complete else "in part"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    tally: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.mcap"
        steps = make_recording(whole, arguments.steps)
        data = whole.read_bytes()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(arguments.count):
            rng = random.Random(f"{arguments.seed} {number}")
            try:
                outcome = try_file(Path(folder) / "a.mcap", damage(data, rng), steps, rng)
            except Exception as error:
                print(f"file {number}: {type(error).__name__}: {error}")
                outcome = "FAILED"
            tally[outcome] = tally.get(outcome, 0) + 1
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(f"{len(data) / 1e6:.1f} MB, {arguments.count} damaged files: {tally}; memory grew by {grown:.0f} MB")
    return 1 if tally.get("FAILED") else 0


if __name__ == "__main__":
    sys.exit(main())
