"""Everything that has to be known of the GPU path, on the day that there is a GPU: ``python -m tests.gpu.check``.

    python -m tests.gpu.check                          on the GPU, at most five minutes
    python -m tests.gpu.check --json results.json      where the figures go; gpu-check.json without it
    python -m tests.gpu.check --only kernels speed     some of the parts: kernels, engine, speed, serving
    python -m tests.gpu.check --device cpu             that it runs: Triton's interpreter, tiny sizes, no GPU needed

It runs from the source tree and needs torch (2.11 or later), triton (3.6 or later), transformers (5.17 or later, with
the tokenizers and safetensors that it brings) and NumPy. No window, no network, nothing to install, no model: weights
are random, at the sizes of SmolLM2-135M, Qwen3-0.6B and Llama-3.1-8B. msgspec and psutil have stand-ins where they are
missing. A model that does not fit into the GPU's memory is left out, and its row says so.

    kernels   every kernel and type against its float32 reference, on random inputs, with NaN in outputs and in whatever
              was not written: float32 to 1e-5 of the largest element, narrower types to 1e-2 by norm
    engine    tokens and logits of transformers, on small models of several families, however the work is cut; CUDA
              graphs against eager steps, to the bit; draws against the CPU's; no wait of the host within a step
    speed     the ceilings (a copy's bandwidth, a matrix product's rate), then each kernel, decode steps at batch 1, 8,
              64 and 256, one context of 32k, prefill, each with its share of the ceiling or of the roofline
    serving   the same requests served with and without graphs, with overlap, and by transformers' continuous batching;
              what the scheduler and each other phase of a step take

Every part runs in a process of its own with a deadline, so that neither a crash nor a hang takes the others along; what
it found until then is kept. Progress goes to stderr, the table to stdout. The exit status is 0 if every check held, 1
if one did not, or was not reached in time, or if something broke (the last lines say what), 2 if it cannot run here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.gpu.deadline import Deadline
from tests.gpu.report import MEANINGLESS, Report, Row, Section, say
from tests.gpu.stand_ins import importable, stand_in

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("numpy", "torch", "triton", "transformers", "tokenizers", "safetensors")

PARTS = {"kernels": 65.0, "engine": 55.0, "speed": 85.0, "serving": 80.0}
"""Seconds that each may take on a GPU: a little under five minutes together."""
CHECKS = ("kernels", "engine")
"""Parts in which all must be reached; of the others figures may be missing."""
GRACE = 5.0
"""Seconds that a part may go on after its deadline before it is ended."""
SLOWER = 6.0
"""How much longer a part may take in the interpreter."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.check", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny, in Triton's interpreter")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--json", type=Path, default=Path("gpu-check.json"), help="where the figures go")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)  # in a process of its own
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    wanted = parser.parse_args(arguments)
    if wanted.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    if wanted.part:
        return _run_part(wanted.part, wanted.device, wanted.seconds)
    if problem := _problem(wanted.device):
        print(problem, file=sys.stderr)
        return 2
    report = Report()
    report.about["date"] = time.strftime("%Y-%m-%d %H:%M:%S")
    for part in PARTS:
        if part in wanted.only:
            seconds = PARTS[part] * (SLOWER if wanted.device == "cpu" else 1.0)
            _watch_part(report, part, wanted.device, seconds)
    print(report.table())
    report.write_json(wanted.json)
    print(f"\nFigures in {wanted.json}")
    return 1 if report.failures else 0


def _problem(device: str) -> str:
    """Why it cannot run here; "" if it can."""
    missing = [name for name in NEEDED if not importable(name)]
    if missing:
        return f"Missing here: {', '.join(missing)}. Needed are {', '.join(NEEDED)}."
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            return ("There is no usable NVIDIA GPU here. With --device cpu everything runs in Triton's interpreter, "
                    "tiny; its times mean nothing.")  # fmt: skip
    return ""


# ---- watching a part -------------------------------------------------------------------------------------------------


def _watch_part(report: Report, part: str, device: str, seconds: float) -> None:
    """Run a part in a process of its own and gather what it tells; end it if it does not end itself."""
    say(f"{part}: up to {seconds:.0f} s")
    start = time.monotonic()
    told: queue.Queue[dict[str, Any] | None] = queue.Queue()
    command = [sys.executable, "-m", "tests.gpu.check", "--part", part, "--device", device, "--seconds", str(seconds)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True,
                             start_new_session=True)  # fmt: skip
    reader = threading.Thread(target=_read, args=(child, told), daemon=True)
    reader.start()
    ended = ""
    while True:
        try:
            message = told.get(timeout=max(0.1, start + seconds + GRACE - time.monotonic()))
        except queue.Empty:
            ended = f"ended after {seconds + GRACE:.0f} s"
            os.killpg(child.pid, signal.SIGKILL)  # with the processes that it started, and nobody else
            break
        if message is None:
            break
        _gather(report, message)
    status = child.wait()
    if status and not ended:
        ended = f"its process ended with status {status}"
    if ended:
        report.sections.append(Section(part, time.monotonic() - start, seconds, ended, failed=True))


def _read(child: subprocess.Popen[str], told: queue.Queue[dict[str, Any] | None]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if isinstance(message, dict):
            told.put(message)
        else:
            print(line, end="", file=sys.stderr)  # somebody else's
    told.put(None)


def _gather(report: Report, message: dict[str, Any]) -> None:
    if "row" in message:
        report.rows.append(Row(**message["row"]))
    if "section" in message:
        report.sections.append(Section(**message["section"]))
    report.about |= message.get("about", {})


# ---- in the part's process -------------------------------------------------------------------------------------------


class _Telling(Report):
    """A report that tells the process that watches about each row."""

    def add(self, row: Row) -> Row:
        Report.add(self, row)
        _tell({"row": asdict(row)})
        return row


def _tell(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def _run_part(part: str, device: str, seconds: float) -> int:
    whole = Deadline(seconds)
    stood_in = stand_in()
    if device == "cpu":
        from tests.kernels.interpreter import mend_interpreter

        mend_interpreter()
    _tell({"about": _about(device, stood_in)})
    report = _Telling()
    for name, share, work in _sections(part, device):
        deadline = Deadline(min(share * seconds, whole.left))
        say(f"{name}: up to {deadline.seconds:.0f} s")
        failed = False
        try:
            work(report, deadline)
        except Exception as error:  # the next section may do better
            traceback.print_exc()
            deadline.stopped, failed = f"{type(error).__name__}: {str(error)[:300]}", True
        failed = failed or (bool(deadline.stopped) and part in CHECKS)
        _tell({"section": asdict(Section(name, deadline.spent, deadline.seconds, deadline.stopped, failed))})
    return 0


def _sections(part: str, device: str) -> Sequence[tuple[str, float, Callable[[Report, Deadline], None]]]:
    """Of each section of a part the name, the share of the part's time that it may take, and what it does."""
    small = device == "cpu"
    from tests.gpu.measure import Meter

    meter = Meter(device)
    if part == "kernels":
        from tests.gpu.kernels import check_kernels, check_large_offsets

        def kernels(report: Report, deadline: Deadline) -> None:
            check_kernels(report, device, small, deadline)
            if not small and not deadline.over:
                check_large_offsets(report, device, meter.free_memory())

        return [("kernels", 1.0, kernels)]
    if part == "engine":
        from tests.gpu.engine import check_engine

        return [("engine", 1.0, lambda report, deadline: check_engine(report, device, small, deadline))]
    from tests.gpu.models import LLAMA_8B, QWEN3, SMOLLM2, TINY, Size

    sizes: Sequence[tuple[Size, float]]

    def ceilings(report: Report, deadline: Deadline) -> None:
        meter.measure_ceilings()
        if meter.bandwidth and meter.products:
            _tell({"about": {"copy": f"{meter.bandwidth / 1e9:,.0f} GB/s, read and written",
                             "matrix product": f"{meter.products / 1e12:,.0f} TFLOP/s, bf16, random numbers"}})

    if part == "speed":
        from tests.gpu.speed_kernels import time_kernels
        from tests.gpu.speed_steps import time_steps

        sizes = ((TINY, 0.6),) if small else ((LLAMA_8B, 0.5), (QWEN3, 0.3), (SMOLLM2, 0.3))
        return [
            ("ceilings", 0.1, ceilings),
            ("speed of kernels", 0.3, lambda report, deadline: time_kernels(report, meter, small, deadline)),
            *((f"speed of {size.name}", share, partial(time_steps, meter, size, small)) for size, share in sizes),
        ]
    from tests.gpu.serving import time_serving, time_transformers

    sizes = (TINY,) if small else (LLAMA_8B, QWEN3)
    return [
        *((f"serving {size.name}", 0.4, partial(time_serving, meter, size, small)) for size in sizes),
        *((f"transformers {size.name}", 0.5, partial(time_transformers, meter, size, small)) for size in sizes[::-1]),
    ]


def _about(device: str, stood_in: list[str]) -> dict[str, str]:
    """On what and with what."""
    about = {name: version(name) for name in ("torch", "triton", "transformers", "numpy")}
    about["python"] = platform.python_version()
    if device == "cuda":
        import torch

        properties = torch.cuda.get_device_properties("cuda")
        about["device"] = (f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, "
                           f"{properties.multi_processor_count} multiprocessors, CUDA {torch.version.cuda}")
    else:
        about["device"] = MEANINGLESS
    if stood_in:
        about["stand-ins"] = f"{', '.join(stood_in)}: not installed; the scheduler's times are a little longer for it"
    return about


if __name__ == "__main__":
    sys.exit(main())
