"""The command line. Nothing heavy is imported until a command needs it: no Qt for ``info``, no torch for a window.

Exit status: 0, or 2 with one line for bad arguments, or 1 with one line for a failure.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from app.cli_bench import add_benches, add_forward_path
from app.cli_compare import add_comparing
from app.cli_export import add_export
from app.cli_generate import add_sampling, sampling_of
from app.cli_trace import add_recording_bench, add_verify
from engine.sweep_grid import find_sweep
from engine.trace.knobs import KnobError, KnobValue, knob
from engine.version import VERSION

if TYPE_CHECKING:
    from engine.trace.source import RunSource
    from engine.worker import RunSpec

DEFAULT_SCENARIO = "shared-prefix"
LAYOUT_NAMES = ("stage", "tune", "teach")
DTYPES = ("bfloat16", "float16", "float32")


class BadArguments(Exception):
    """The user asked for something that there is not; the message is one line and says what there is."""


class Failure(Exception):
    """Something went wrong that is no fault of the arguments; the message is one line."""


class _Parser(argparse.ArgumentParser):
    """Refuses with one line instead of the usage and a line."""

    def error(self, message: str) -> NoReturn:
        raise BadArguments(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    if os.environ.get("CUTAWAY_DEBUG"):
        logging.basicConfig(level=logging.INFO)
    else:
        for part in ("engine", "widgets", "app"):
            logging.getLogger(part).addHandler(logging.NullHandler())  # what goes wrong is said in one line, once
    try:
        arguments = build_parser().parse_args(argv)
        return int(arguments.command(arguments))
    except BadArguments as refusal:
        return _complain(refusal, 2)
    except Failure as failure:
        return _complain(failure, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except Exception as failure:
        if os.environ.get("CUTAWAY_DEBUG"):
            raise
        return _complain(f"{type(failure).__name__}: {failure}", 1)


def _complain(message: object, status: int) -> int:
    print(f"cutaway: {' '.join(str(message).split())}", file=sys.stderr)
    return status


def _looks(default: str | None) -> _Parser:
    looks = _Parser(add_help=False)
    looks.add_argument("--lang", choices=("en", "zh"), default=default, help="language of the window")
    looks.add_argument("--theme", choices=("dark", "light"), default=default, help="theme of the window")
    looks.add_argument("--layout", choices=LAYOUT_NAMES, default=default, help="layout of the window")
    return looks


def build_parser() -> argparse.ArgumentParser:
    looks = _looks(argparse.SUPPRESS)  # said after the command; what was said before it stands
    parser = _Parser(prog="cutaway", parents=[_looks(None)],
                     description="A real LLM serving engine at work, made visible.",
                     epilog="Without a command: a live run of a default scenario, in the window.")
    parser.add_argument("--version", action="version", version=f"cutaway {VERSION}")
    parser.set_defaults(command=_start)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)

    open_ = commands.add_parser("open", parents=[looks], help="open a recording, or a sweep, in the window")
    open_.add_argument("file", type=Path, metavar="FILE",
                       help="a recording (.mcap), or a sweep: its sweep.json or the folder with it")
    open_.add_argument("--step", type=_step_number, metavar="N", help="show step N, paused, instead of playing")
    _add_exit(open_, "from the window being up")
    open_.set_defaults(command=_open)

    run = commands.add_parser("run", parents=[looks], help="run a scenario live")
    run.add_argument("--scenario", metavar="NAME", default=DEFAULT_SCENARIO,
                     help="a scenario that ships, or the path of a .toml file (default: %(default)s)")
    _add_engine(run)
    add_forward_path(run)
    _add_memory(run)
    run.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", dest="knobs",
                     help="turn a knob before the run starts; may be given several times")
    run.add_argument("--record", type=Path, metavar="FILE", help="record the run from its first step")
    run.add_argument("--no-prompt-text", action="store_true",
                     help="leave the prompts' texts and tokens out of recordings; how long they are stays")
    run.add_argument("--headless", action="store_true", help="no window: progress goes to stderr, and the run ends "
                                                             "when the scenario is exhausted")
    _add_exit(run, "from the engine running, the model being loaded")
    run.set_defaults(command=_run)

    generate = commands.add_parser("generate", help="answer one prompt on stdout, through the paged engine")
    generate.add_argument("text", metavar="TEXT", help='the prompt; "-" reads it from stdin')
    add_sampling(generate)
    _add_engine(generate)
    add_forward_path(generate)
    _add_memory(generate)
    generate.set_defaults(command=_generate)

    info = commands.add_parser("info", help="sum a recording up")
    info.add_argument("file", type=Path, metavar="FILE")
    info.add_argument("--json", action="store_true", help="as JSON")
    info.set_defaults(command=_info)

    add_verify(commands, open_source)

    add_export(commands, looks, _step_number, _positive_int, _positive, open_source)

    add_comparing(commands, _positive_int, DEFAULT_SCENARIO)

    models = commands.add_parser("models", help="list the models that are there and where they come from")
    models.set_defaults(command=_models)

    conform = commands.add_parser("conform", help="compare the scheduler's decisions with traces of vLLM's",
                                  description="Plays trace files (JSON lines, also gzipped) against the scheduler and "
                                              "the block pool, with no model. One deliberate difference: a request "
                                              "that can never fit is refused at once, where vLLM waits for ever.")
    conform.add_argument("files", type=Path, nargs="+", metavar="FILE")
    conform.set_defaults(command=_conform)

    bench = commands.add_parser("bench", help="measure")
    benches = bench.add_subparsers(title="benchmarks", metavar="WHAT", required=True, parser_class=_Parser)
    gui = benches.add_parser("gui", help="frame times, and what watching costs the engine")
    gui.add_argument("--blocks", type=_positive_int, default=1024, metavar="N", help="size of the pool")
    gui.add_argument("--requests", type=_positive_int, default=32, metavar="N", help="requests running at once")
    gui.add_argument("--seconds", type=_positive, default=10.0, metavar="S",
                     help="length of each of the alternating halves (default: %(default)s)")
    gui.add_argument("--rounds", type=_positive_int, default=2, metavar="N", help="how many pairs of halves")
    _add_engine(gui)
    gui.add_argument("--json", action="store_true", help="as JSON")
    gui.set_defaults(command=_bench_gui)
    add_benches(benches, _positive_int, DTYPES, _check_model)
    add_recording_bench(benches, _positive_int)
    return parser


def _add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="M", help="a Hugging Face folder, a GGUF file or a hub id "
                                                     "(default: SmolLM2-135M-Instruct)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="for arrivals, prompts and sampling")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu",
                        help="where the model runs (default: %(default)s); cuda needs an NVIDIA GPU")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="numbers of the forward pass")
    parser.add_argument("--threads", type=_positive_int, default=0, metavar="N",
                        help="cores for the forward pass (default: all; with a window, all but one)")


def _add_memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu-memory-utilization", type=_share, metavar="SHARE",
                        help="with --device cuda: the share of the GPU's memory, above 0 and up to 1, that weights, "
                             "activations and KV blocks take together, where num_blocks is not set (default: 0.9)")


def _add_exit(parser: argparse.ArgumentParser, since: str) -> None:
    parser.add_argument("--screenshot", type=Path, metavar="PNG",
                        help="save the window as it is at the end; without --exit-after the end is two seconds later")
    parser.add_argument("--exit-after", type=_positive, metavar="SECONDS", help=f"end by itself, counted {since}")


# ---- arguments -------------------------------------------------------------------------------------------------------


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, up to 1")
    return value


def _positive_int(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _step_number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a step number")
    return int(text)


def parse_knobs(assignments: Sequence[str]) -> dict[str, KnobValue]:
    """Read ``KNOB=VALUE`` arguments. Raises :class:`BadArguments` for an unknown knob or a value out of range."""
    knobs: dict[str, KnobValue] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise BadArguments(f"--set {assignment}: write it as KNOB=VALUE")
        try:
            knobs[name.strip()] = knob(name.strip()).parse(text.strip())
        except KnobError as refusal:
            raise BadArguments(f"--set {assignment}: {refusal}") from None
    return knobs


def check_writable(path: Path, what: str) -> None:
    """Raise :class:`BadArguments` unless a file can be written at ``path``; an existing file is left as it is."""
    if path.is_dir():
        raise BadArguments(f"{what} {path}: that is a folder, not a file")
    existed = path.exists()
    try:
        path.open("ab").close()
    except OSError as failure:
        raise BadArguments(f"{what} {path}: cannot be written ({failure.strerror})") from None
    if not existed:
        path.unlink()


def open_source(path: Path) -> RunSource:
    """Open a recording. Raises :class:`BadArguments` when it is none."""
    from engine.trace.reader import RecordingError, open_recording

    try:
        return open_recording(path)
    except RecordingError as refusal:
        raise BadArguments(f"{path}: {refusal}" if str(path) not in str(refusal) else refusal) from None


def _check_scenario(name: str) -> None:
    from engine.scenario import ScenarioError, load_scenario

    try:
        load_scenario(name)
    except ScenarioError as refusal:
        raise BadArguments(f"--scenario {name}: {refusal}") from None


def _run_spec(arguments: argparse.Namespace, scenario: str | None, *, watched: bool,
              knobs: dict[str, KnobValue] | None = None) -> RunSpec:
    from engine.worker import RunSpec

    check_device(arguments, knobs or {})
    return RunSpec(model=arguments.model, scenario=scenario, knobs=knobs or {}, seed=arguments.seed,
                   dtype=arguments.dtype, device=arguments.device, forward_path=arguments.forward_path,
                   num_threads=arguments.threads, watched=watched,
                   gpu_memory_utilization=arguments.gpu_memory_utilization)


def check_device(arguments: argparse.Namespace, knobs: Mapping[str, KnobValue]) -> None:
    """Refuse what says how to use a GPU where none is to be used. Raises :class:`BadArguments`."""
    if arguments.device == "cuda":
        return
    if arguments.gpu_memory_utilization is not None:
        raise BadArguments("--gpu-memory-utilization is about a GPU's memory: it needs --device cuda; on the CPU "
                           "--set num_blocks=N sizes the pool")
    for name in knobs:
        if knob(name).group == "device":
            raise BadArguments(f"--set {name}: that is about how a GPU runs a step; it needs --device cuda")


# ---- commands --------------------------------------------------------------------------------------------------------


def _start(arguments: argparse.Namespace) -> int:
    from engine.worker import RunSpec

    return _window(arguments, spec=RunSpec(scenario=DEFAULT_SCENARIO))


def _open(arguments: argparse.Namespace) -> int:
    if arguments.screenshot:
        check_writable(arguments.screenshot, "--screenshot")
    sweep = find_sweep(arguments.file)
    if sweep is not None:
        return _open_sweep(arguments, sweep)
    recording = open_source(arguments.file)
    return _window(arguments, recording=recording, recording_path=arguments.file, step=arguments.step,
                   screenshot=arguments.screenshot, exit_after=arguments.exit_after)


def _open_sweep(arguments: argparse.Namespace, path: Path) -> int:
    from engine.sweep_file import SweepFileError, read_sweep

    try:
        read_sweep(path)
    except SweepFileError as refusal:
        raise BadArguments(refusal) from None
    if arguments.step is not None:
        raise BadArguments("--step is for recordings: a sweep has no steps")
    return _window(arguments, sweep=path, screenshot=arguments.screenshot, exit_after=arguments.exit_after)


def _run(arguments: argparse.Namespace) -> int:
    knobs = parse_knobs(arguments.knobs)
    _check_scenario(arguments.scenario)
    _check_model(arguments.model)
    for path, what in ((arguments.record, "--record"), (arguments.screenshot, "--screenshot")):
        if path is not None:
            check_writable(path, what)
    spec = _run_spec(arguments, arguments.scenario, watched=not arguments.headless, knobs=knobs)
    spec = replace(spec, record_prompt_text=not arguments.no_prompt_text)
    if arguments.headless:
        if arguments.screenshot:
            raise BadArguments("--screenshot needs the window; leave --headless out")
        from app.headless import run_headless

        return run_headless(spec, record=arguments.record, exit_after=arguments.exit_after)
    return _window(arguments, spec=spec, record=arguments.record, screenshot=arguments.screenshot,
                   exit_after=arguments.exit_after)


def _window(arguments: argparse.Namespace, **request: Any) -> int:
    from app.application import WindowRequest, run_application

    return run_application(WindowRequest(language=arguments.lang, theme=arguments.theme, layout=arguments.layout,
                                         **request))


def _generate(arguments: argparse.Namespace) -> int:
    from app.headless import generate

    _check_model(arguments.model)
    text = sys.stdin.read() if arguments.text == "-" else arguments.text
    if not text.strip():
        raise BadArguments("TEXT is empty: give a prompt")
    try:
        sampling = sampling_of(arguments)
    except ValueError as refusal:
        raise BadArguments(refusal) from None
    return generate(_run_spec(arguments, None, watched=False), text, sampling)


def _info(arguments: argparse.Namespace) -> int:
    import json

    from engine.trace.summary import summarise

    source = open_source(arguments.file)
    try:
        summary = summarise(source)
        for warning in source.warnings:
            print(f"cutaway: {arguments.file}: {warning}", file=sys.stderr)
    finally:
        source.close()
    if arguments.json:
        print(json.dumps(summary, ensure_ascii=False, indent=2))
        return 0
    width = max(map(len, summary))
    for key, value in summary.items():
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        print(f"{key.replace('_', ' '):<{width}}  {text}")
    return 0


def _bench_gui(arguments: argparse.Namespace) -> int:
    from app.bench_gui import run_bench

    _check_model(arguments.model)
    return run_bench(model=arguments.model, blocks=arguments.blocks, requests=arguments.requests,
                     seconds=arguments.seconds, rounds=arguments.rounds, seed=arguments.seed, dtype=arguments.dtype,
                     device=arguments.device, threads=arguments.threads, as_json=arguments.json)


def _conform(arguments: argparse.Namespace) -> int:
    from engine.conform import conform

    for path in arguments.files:
        if not path.is_file():
            raise BadArguments(f"{path}: there is no such file")
    return conform(arguments.files)


def _models(arguments: argparse.Namespace) -> int:
    from engine.model.library import list_models
    from engine.model.prepare import models_folder

    entries = list_models()
    width = max(len(entry.spec) for entry in entries)
    for entry in entries:
        size = f"{entry.size_bytes / 1e6:,.0f} MB" if entry.size_bytes else "-"
        state = "ready" if entry.ready else entry.note or "not ready"
        print(f"{entry.spec:<{width}}  {size:>10}  {state}; from {entry.source}")
    print(f"Converted models are kept in {models_folder()}. --model takes one of these names, a folder, a GGUF file, "
          "or a name on the Hugging Face hub.", file=sys.stderr)
    return 0


def _check_model(spec: str | None) -> None:
    """Refuse what can be seen to be no model without waiting for a network. Raises :class:`BadArguments`."""
    from engine.model.library import ModelProblem, check_folder

    if spec is None:
        return
    path = Path(spec).expanduser()
    try:
        if path.is_dir() and ((path / "config.json").exists() or len(list(path.glob("*.gguf"))) != 1):
            check_folder(path)
    except ModelProblem as refusal:
        raise BadArguments(f"--model {spec}: {refusal}") from None
    looks_like_a_path = path.is_absolute() or spec.startswith(("." + os.sep, "~")) or spec.count("/") > 1
    if not path.exists() and (looks_like_a_path or path.suffix.lower() == ".gguf"):
        raise BadArguments(f"--model {spec}: there is no such file or folder")
    if path.is_file():
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise BadArguments(f"--model {spec}: that is no GGUF file, and no folder with a model")
