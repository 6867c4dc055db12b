"""Cutaway beside vLLM's CPU build, on this machine, in one run: turns alternate, and medians are compared.

    .venv/bin/python -m tests.bench.compare --peer PEER/bin/python scheduler
    .venv/bin/python -m tests.bench.compare --peer PEER/bin/python engine mixed32 shared64 longmix40

PEER is a virtual environment with vLLM in it (see ``vllm_engine.py``). Both engines use the same model folder, bfloat16
and every core. Run it on a machine that has nothing else to do.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.bench.scheduler import measure_scheduler
from engine.bench.workload_file import WORKLOAD_FOLDER, load_workload, shipped_workloads

HERE = Path(__file__).resolve().parent
PEER_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


class PeerFailed(RuntimeError):
    """vLLM did not answer; what it wrote is on stderr."""


def json_line(read: Callable[[], str]) -> dict[str, Any]:
    """The next line that is JSON: other things print too."""
    while line := read():
        if line.startswith("{"):
            return dict(json.loads(line))
    raise PeerFailed("vLLM ended without an answer")


# ---- the scheduler alone ---------------------------------------------------------------------------------------------


def compare_scheduler(peer: str, model: str, requests: list[int], rounds: int) -> list[dict[str, Any]]:
    """One row for each number of requests and each kind of step, microseconds."""
    rows = []
    for count in requests:
        theirs, ours = [], []
        for _ in range(rounds):
            answer = subprocess.run([peer, HERE / "vllm_scheduler.py", "--model", model, "--requests", str(count)],
                                    stdout=subprocess.PIPE, text=True, env=PEER_ENVIRONMENT, check=True)
            theirs.append(json_line(io.StringIO(answer.stdout).readline))
            ours.append(measure_scheduler(count))
            print(f"{count} requests: vLLM {theirs[-1]['decode_step_us']} us a decode step, ours "
                  f"{ours[-1]['decode_step_us']}", file=sys.stderr)
        for step in ("decode_step_us", "prefill_step_us", "add_request_us"):
            rows.append(row(f"{step} {count}", [r[step] for r in theirs], [r[step] for r in ours]))
    return rows


# ---- the engine ------------------------------------------------------------------------------------------------------


class PeerEngine:
    """vLLM in a process of its own, which serves a workload when it is told to."""

    def __init__(self, peer: str, model: str, eager: bool) -> None:
        command = [peer, str(HERE / "vllm_engine.py"), "--model", model, *(["--eager"] if eager else [])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                         env=PEER_ENVIRONMENT)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.load_s = json_line(self._stdout.readline)["load_s"]

    def serve(self, path: Path) -> dict[str, Any]:
        print(path, file=self._stdin, flush=True)
        return json_line(self._stdout.readline)

    def close(self) -> None:
        self._stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()


def compare_engine(peer: str, model: str, names: list[str], rounds: int, eager: bool) -> list[dict[str, Any]]:
    """One row for each workload, output tokens a second."""
    from engine.bench.workload import load_runner, serve, warm_up
    from engine.core import Engine

    print("starting vLLM" + ("" if eager else ", which compiles the model") + " ...", file=sys.stderr)
    theirs_engine = PeerEngine(peer, model, eager)
    try:
        print(f"ready after {theirs_engine.load_s} s", file=sys.stderr)
        runner, tokenizer, config = load_runner(model, "bfloat16", 0)
        ours_engine = Engine(runner, tokenizer, config)
        warm_up(ours_engine)
        rows = []
        for name in names:
            workload = load_workload(name)
            wanted = sum(request.max_tokens for request in workload.requests)
            theirs, ours = [], []
            for _ in range(rounds):
                answer = theirs_engine.serve(WORKLOAD_FOLDER / f"{name}.json")
                one = serve(ours_engine, workload)
                if not answer["output_tokens"] == one.output_tokens == wanted:
                    raise PeerFailed(f"{name}: {answer['output_tokens']} and {one.output_tokens} tokens, not {wanted}")
                theirs.append(answer["output_tokens_per_s"])
                ours.append(one.output_tokens / one.seconds)
                print(f"{name}: vLLM {theirs[-1]:.1f}, ours {ours[-1]:.1f} tokens/s", file=sys.stderr)
            rows.append(row(f"{name}, tokens/s", theirs, ours))
        return rows
    finally:
        theirs_engine.close()


# ---- the table -------------------------------------------------------------------------------------------------------


def row(what: str, theirs: list[float], ours: list[float]) -> dict[str, Any]:
    a, b = statistics.median(theirs), statistics.median(ours)
    return {"what": what, "vllm": a, "vllm_range": (min(theirs), max(theirs)), "ours": b,
            "ours_range": (min(ours), max(ours)), "ours_over_vllm": b / a}


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"{'':<26} {'vLLM':>24} {'ours':>24}   ours / vLLM")
    for entry in rows:
        cells = [f"{entry[who]:,.1f} ({entry[f'{who}_range'][0]:,.1f}-{entry[f'{who}_range'][1]:,.1f})"
                 for who in ("vllm", "ours")]
        print(f"{entry['what']:<26} {cells[0]:>24} {cells[1]:>24}   {entry['ours_over_vllm']:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, metavar="PYTHON", help="the interpreter of vLLM's environment")
    parser.add_argument("--model", metavar="DIR", help="a Hugging Face folder (default: the default model)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--eager", action="store_true", help="vLLM without compiling: slower, but it starts at once")
    parser.add_argument("what", choices=("engine", "scheduler"))
    parser.add_argument("names", nargs="*", help="workloads, or numbers of requests (default: all; 256 and 1024)")
    arguments = parser.parse_args()
    model = arguments.model
    if model is None:
        from engine.model.library import find_model

        model = str(find_model(None))
    if arguments.what == "scheduler":
        rows = compare_scheduler(arguments.peer, model, [int(n) for n in arguments.names or (256, 1024)],
                                 arguments.rounds)
    else:
        rows = compare_engine(arguments.peer, model, arguments.names or shipped_workloads(), arguments.rounds,
                              arguments.eager)
    print_table(rows)


if __name__ == "__main__":
    main()
