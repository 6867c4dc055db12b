"""Recordings whose program is killed at a random moment: every one opens, and at most half a second is lost.

    python -m tests.robustness.killed [--count 100] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from engine.trace.reader import open_recording

MAY_LOSE_S = 0.5

WRITER = """
import sys, time
from engine.bench.recording import BusyRun
from engine.trace.recording import Recorder
run = BusyRun()
recorder = Recorder(sys.argv[1], run.info)
told = 0.0
for events in run:
    recorder.wait_for_room()
    recorder.put(events)
    now = time.monotonic()
    if now - told > 0.01:
        told = now
        print(events.step, now, flush=True)
    time.sleep(float(sys.argv[2]))
"""


def kill_one(path: Path, seconds: float, pause_s: float) -> tuple[int, float]:
    """Record, kill, open. Returns the last step that is there, and the seconds that were lost."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(pause_s)], text=True,
                               stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert process.stdout is not None
    process.stdout.readline()  # it has begun
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    lines = process.communicate(timeout=30)[0].splitlines()
    put_at = [(int(step), float(at)) for step, at in (line.split() for line in lines if line.count(" ") == 1)]
    recording = open_recording(path)
    last = recording.last_step
    assert not recording.complete
    assert recording.warnings
    if last >= 0:
        assert recording.state_at(last).step == last
        assert recording.series.n == last + 1
    recording.close()
    lost = [at for step, at in put_at if step > last]
    return last, killed - min(lost) if lost else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    lost: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.count):
            path = Path(folder) / f"{number}.mcap"
            last, seconds = kill_one(path, rng.uniform(0, 3), rng.choice((0.0005, 0.003, 0.03)))
            lost.append(seconds)
            print(f"{number}: {last + 1} steps, {path.stat().st_size / 1e6:.1f} MB, {seconds:.2f} s lost", flush=True)
            path.unlink()
    late = sum(seconds > MAY_LOSE_S for seconds in lost)
    print(f"{len(lost)} killed, all opened; at most {max(lost):.2f} s lost; {late} lost more than {MAY_LOSE_S} s")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
