"""The benchmarks of the command line that need no window: ``bench engine``, ``bench scheduler``, ``bench observe``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from engine.config import FORWARD_PATHS, RUNNER_KNOBS

Check = Callable[[str | None], None]


def add_forward_path(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--forward-path", choices=FORWARD_PATHS, default="auto",
                        help="how logits are computed: auto takes the fastest way that works; torch is plain torch, "
                             "which gives the bits of transformers; triton needs a GPU (default: %(default)s)")


def add_benches(benches: Any, positive_int: Callable[[str], int], dtypes: Sequence[str], check_model: Check) -> None:
    """Add them to the ``bench`` command; ``benches`` is what ``add_subparsers`` has returned.

    ``check_model`` refuses what can be seen to be no model.
    """

    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--model", metavar="M", help="a Hugging Face folder, a GGUF file or a hub id "
                                                         "(default: SmolLM2-135M-Instruct)")
        parser.add_argument("--dtype", choices=dtypes, default="bfloat16", help="numbers of the forward pass")
        parser.add_argument("--threads", type=positive_int, default=0, metavar="N",
                            help="cores for the forward pass (default: all)")
        parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu",
                            help="where the model runs (default: %(default)s); cuda needs an NVIDIA GPU")
        parser.add_argument("--json", action="store_true", help="as JSON")

    engine = benches.add_parser(
        "engine", help="tokens a second, latencies, and the share of each phase",
        description="Serves a workload without a window: greedy, budget 2048, at most 64 requests at once, prefix "
                    "caching on and its cache empty at the start of each repeat. Figures are medians over the repeats.")
    engine.add_argument("--workload", required=True, metavar="FILE",
                        help="mixed32, shared64, longmix40, or the path of a file of the same kind")
    engine.add_argument("--arrivals", action="store_true",
                        help="requests arrive when the file says, instead of all at once: for latencies")
    engine.add_argument("--repeats", type=positive_int, default=3, metavar="N", help="(default: %(default)s)")
    engine.add_argument("--enforce-eager", action="store_true", help="with --device cuda: without CUDA graphs")
    engine.add_argument("--overlap", action="store_true",
                        help="with --device cuda: prepare the next step while the GPU works")
    add_options(engine)
    add_forward_path(engine)
    engine.set_defaults(command=lambda arguments: _engine(arguments, check_model))

    scheduler = benches.add_parser(
        "scheduler", help="the price of deciding, with no model",
        description="N requests of 512 tokens, 256 of them shared, block size 16, budget 8192. Microseconds for a "
                    "step's plan, commit and events; medians.")
    scheduler.add_argument("--requests", type=positive_int, default=256, metavar="N", help="(default: %(default)s)")
    scheduler.add_argument("--json", action="store_true", help="as JSON")
    scheduler.set_defaults(command=_scheduler)

    observe = benches.add_parser(
        "observe", help="what events, state and recording cost the engine",
        description="Serves a workload in turns with and without events, state and recording, and prints the ratio "
                    "of their tokens a second.")
    observe.add_argument("--workload", default="mixed32", metavar="FILE",
                         help="as for bench engine (default: %(default)s)")
    observe.add_argument("--rounds", type=positive_int, default=3, metavar="N",
                         help="how many pairs of halves (default: %(default)s)")
    add_options(observe)
    observe.set_defaults(command=lambda arguments: _observe(arguments, check_model))


def _engine(arguments: argparse.Namespace, check_model: Check) -> int:
    _check(arguments, check_model)
    from app.cli import BadArguments
    from engine.bench.workload import run_engine_bench

    knobs = {name: True for name in RUNNER_KNOBS if getattr(arguments, name)}
    if knobs and arguments.device != "cuda":
        raise BadArguments(f"--{next(iter(knobs)).replace('_', '-')}: that is about how a GPU runs a step; it needs "
                           "--device cuda")
    return run_engine_bench(workload=arguments.workload, model=arguments.model, dtype=arguments.dtype,
                            threads=arguments.threads, device=arguments.device,
                            forward_path=arguments.forward_path, knobs=knobs, arrivals=arguments.arrivals,
                            repeats=arguments.repeats, as_json=arguments.json)


def _scheduler(arguments: argparse.Namespace) -> int:
    from engine.bench.scheduler import run_scheduler_bench

    return run_scheduler_bench(requests=arguments.requests, as_json=arguments.json)


def _observe(arguments: argparse.Namespace, check_model: Check) -> int:
    _check(arguments, check_model)
    from engine.bench.observe import run_observe_bench

    return run_observe_bench(workload=arguments.workload, model=arguments.model, dtype=arguments.dtype,
                             threads=arguments.threads, device=arguments.device, rounds=arguments.rounds,
                             as_json=arguments.json)


def _check(arguments: argparse.Namespace, check_model: Check) -> None:
    """Refuse bad arguments before anything is loaded."""
    from app.cli import BadArguments
    from engine.bench.workload_file import WorkloadFileError, load_workload

    try:
        load_workload(arguments.workload)
    except WorkloadFileError as refusal:
        raise BadArguments(f"--workload {refusal}") from None
    check_model(arguments.model)
