"""``cutaway rerun``, ``cutaway compare`` and ``cutaway sweep``: runs next to one another, without a window."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.sweep_grid import NAME, as_rows, grid, pareto_front, parse_axis

if TYPE_CHECKING:
    from engine.compare import Comparison
    from engine.loaded_model import Model
    from engine.recorded_workload import RecordedWorkload
    from engine.rerun import RerunProgress
    from engine.scenario_run import ScenarioRun
    from engine.sweep_file import SavedSweep
    from engine.sweep_grid import SweepPoint
    from engine.trace.events import RunInfo

Commands = Any  # argparse has no public name for it


def add_comparing(commands: Commands, positive_int: Callable[[str], int], default_scenario: str) -> None:
    """Add the three commands to the program's."""
    rerun = commands.add_parser(
        "rerun", help="run a recorded workload again, with other knobs",
        description="Requests arrive as they were recorded: before the same step if no knob differs, which repeats "
                    "every decision, else at the same time. Their tokens are the recorded ones; the forward passes "
                    "are done and timed.")
    rerun.add_argument("file", type=Path, metavar="FILE", help="a recording (.mcap)")
    _add_knobs(rerun, "turn a knob for the whole run; may be given several times")
    rerun.add_argument("--record", type=Path, required=True, metavar="OUT", help="where the new recording goes")
    rerun.add_argument("--own-tokens", action="store_true", help="take what the model samples now, not the recording's")
    rerun.add_argument("--json", action="store_true", help="tell what came of it as JSON")
    _add_model(rerun, positive_int)
    rerun.set_defaults(command=_rerun)

    compare = commands.add_parser("compare", help="tell what differs between two recordings")
    compare.add_argument("first", type=Path, metavar="A", help="a recording (.mcap): what the other is held against")
    compare.add_argument("second", type=Path, metavar="B", help="another recording")
    compare.add_argument("--json", action="store_true", help="as JSON, with every request")
    compare.set_defaults(command=_compare)

    sweep = commands.add_parser(
        "sweep", help="run a workload with one knob or two over ranges",
        description="Tells throughput, ITL and TTFT of every point, and marks those that no other point beats in all "
                    "three (the Pareto front). Ctrl-C keeps what is done.")
    sweep.add_argument("file", type=Path, nargs="?", metavar="FILE", help="a recording, whose workload is run again")
    sweep.add_argument("--scenario", metavar="NAME",
                       help=f"a scenario's workload, if no FILE is given (default: {default_scenario})")
    sweep.add_argument("--requests", type=positive_int, default=40, metavar="N",
                       help="how many of the scenario's requests (default: %(default)s)")
    sweep.add_argument("--seed", type=int, default=0, metavar="N", help="of the scenario's requests")
    sweep.add_argument("--vary", action="append", default=[], metavar="KNOB=RANGE",
                       help="A,B,C or LOW..HIGH or LOW..HIGH:COUNT; given twice, every combination is run")
    _add_knobs(sweep, "turn a knob for all points; may be given several times")
    sweep.add_argument("--out", type=Path, required=True, metavar="FOLDER",
                       help="where the recordings go, and sweep.json, which cutaway open shows")
    sweep.add_argument("--resume", action="store_true", help="run what the sweep in FOLDER has left")
    sweep.add_argument("--json", action="store_true", help="as JSON")
    _add_model(sweep, positive_int)
    sweep.set_defaults(command=lambda arguments: _sweep(arguments, default_scenario))


def _add_knobs(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", dest="knobs", help=text)


def _add_model(parser: argparse.ArgumentParser, positive_int: Callable[[str], int]) -> None:
    parser.add_argument("--model", metavar="M", help="where the model is, if not where it was")
    parser.add_argument("--threads", type=positive_int, default=0, metavar="N",
                        help="cores for the forward pass (default: all)")


# ---- compare ---------------------------------------------------------------------------------------------------------


def _compare(arguments: argparse.Namespace) -> int:
    from app.cli import open_source
    from engine.compare import Comparison

    first = open_source(arguments.first)
    try:
        second = open_source(arguments.second)
        try:
            comparison = Comparison(first, second)
            comparison.update()
            for path, source in ((arguments.first, first), (arguments.second, second)):
                for warning in source.warnings:
                    print(f"cutaway: {path}: {warning}", file=sys.stderr)
            if arguments.json:
                print(json.dumps(comparison.as_dict(), ensure_ascii=False, indent=2, allow_nan=False))
            else:
                print("\n".join(describe(comparison)))
        finally:
            second.close()
    finally:
        first.close()
    return 0


def describe(comparison: Comparison) -> list[str]:
    """The comparison as lines of text."""
    knobs = comparison.knobs()
    lines = [f"{name}: {a} -> {b}" for name, a, b in knobs] or ["the same knobs"]
    parted = comparison.divergence()
    lines.append(f"the first decision that differs: step {parted.step}, {parted.field}" if parted
                 else "the same decisions in every step")
    rows = [("", "first", "second", "")]
    rows += [(c.metric.replace("_", " "), figure(c.first), figure(c.second), str(c.words()))
             for c in comparison.changes()]
    only_first, only_second = comparison.alone()
    deltas = comparison.deltas()
    lines += ["", *table(rows), "", f"{len(deltas)} requests are in both runs"
              + (f", {only_first} only in the first" if only_first else "")
              + (f", {only_second} only in the second" if only_second else "")]
    for what, name in (("ttft_ms", "TTFT"), ("itl_ms", "ITL"), ("e2e_ms", "E2E")):
        changes = [change for d in deltas if (change := d.change(what)) == change]  # type: ignore[arg-type]
        if changes:
            lower, higher = sum(c < 0 for c in changes), sum(c > 0 for c in changes)
            lines.append(f"{name}: lower for {lower}, higher for {higher}; "
                         f"from {min(changes):+.1f} to {max(changes):+.1f} ms")
    return lines


def figure(value: float) -> str:
    if value != value:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.2f}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns: the first and the last to the left, figures to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) if i in (0, len(row) - 1) else cell.rjust(w)
                      for i, (cell, w) in enumerate(zip(row, widths, strict=True))).rstrip() for row in rows]


# ---- rerun and sweep -------------------------------------------------------------------------------------------------


def _rerun(arguments: argparse.Namespace) -> int:
    from app.cli import BadArguments, Failure, check_writable, parse_knobs
    from app.headless import Progress, ending_on_sigterm
    from engine.recorded_workload import RerunError
    from engine.rerun import rerun
    from engine.trace.knobs import KnobError

    knobs = parse_knobs(arguments.knobs)
    check_writable(arguments.record, "--record")
    workload = _read(arguments.file)
    if arguments.record.exists() and arguments.record.samefile(arguments.file):
        raise BadArguments(f"--record {arguments.record}: that is the recording itself; name another file")
    progress = Progress()
    try:
        with ending_on_sigterm():
            model = _load(workload.info, arguments, progress)
            result = rerun(workload, knobs, arguments.record, model, forced=not arguments.own_tokens,
                           progress=lambda report: progress.tell(_how_far(report)))
    except KnobError as refusal:
        raise BadArguments(f"--set {refusal}") from None
    except RerunError as failure:
        raise Failure(failure) from None
    finally:
        progress.end()
    for note in result.notes:
        print(f"cutaway: {note}", file=sys.stderr)
    if arguments.json:
        print(json.dumps({"recording": str(result.path), "steps": result.steps, "admitted_by": result.admission,
                          "notes": list(map(str, result.notes))}, ensure_ascii=False, indent=2))
        return 0
    how = ("at the recorded steps: no knob differs" if result.admission == "step"
           else "at the recorded times: knobs differ, or the recording is not whole")
    print(f"{result.path}: {result.steps:,} steps; requests were admitted {how}")
    return 0


def _sweep(arguments: argparse.Namespace, default_scenario: str) -> int:
    from app.cli import BadArguments, Failure
    from app.headless import Progress, ending_on_sigterm
    from engine.recorded_workload import RerunError
    from engine.sweep import run_sweep
    from engine.sweep_file import RecordedRun, SweepFileError, read_sweep

    kept = arguments.out / NAME
    if arguments.resume:
        if arguments.file or arguments.scenario or arguments.vary or arguments.knobs:
            raise BadArguments(f"--resume goes on with what {kept} tells: give no FILE, --scenario, --vary or --set")
        try:
            sweep = read_sweep(kept)
        except SweepFileError as refusal:
            raise BadArguments(f"--resume: {refusal}") from None
    else:
        if kept.exists():
            raise BadArguments(f"--out {arguments.out}: there is a sweep in it already; go on with it by --resume, or "
                               "name another folder")
        sweep = _new_sweep(arguments, default_scenario)
    workload: RecordedWorkload | ScenarioRun
    if isinstance(sweep.workload, RecordedRun):
        if sweep.workload.path is None:
            raise BadArguments("the run that was swept was not recorded: the sweep cannot be gone on with")
        workload = _read(sweep.workload.path)
        info = workload.info
        if info.created != sweep.workload.created:
            raise BadArguments(f"{sweep.workload.path} is another run than the one that was swept")
    else:
        workload, info = sweep.workload, sweep.workload.info()
    progress = Progress()
    points: list[SweepPoint] = list(sweep.points)
    status = 0
    with ending_on_sigterm():
        try:
            model = _load(info, arguments, progress)
            points = run_sweep(sweep, workload, arguments.out, model, on_point=points.append,
                               progress=lambda report: progress.tell(
                                   f"point {min(report.points + 1, report.all_points)} of {report.all_points}, "
                                   f"{report.fraction:.0%}"))
        except KeyboardInterrupt:
            status = 130
        except RerunError as failure:
            raise Failure(failure) from None
        finally:
            progress.end()
    _print_points(points, arguments.json)
    if status and points:
        print(f"cutaway: points that are left: {sweep.all_points - len(points)}; "
              f"cutaway sweep --resume --out {arguments.out} runs them", file=sys.stderr)
    return status


def _new_sweep(arguments: argparse.Namespace, default_scenario: str) -> SavedSweep:
    """The sweep that the arguments ask for, not a point of it run."""
    from app.cli import BadArguments, open_source, parse_knobs
    from engine.rerun import check_changes
    from engine.scenario import ScenarioError, load_scenario
    from engine.scenario_run import ScenarioRun
    from engine.sweep_file import RecordedRun, SavedSweep
    from engine.trace.knobs import KnobError, knob

    knobs = parse_knobs(arguments.knobs)
    if arguments.file is not None and arguments.scenario is not None:
        raise BadArguments("give a FILE or --scenario, not both")
    if not arguments.vary:
        raise BadArguments("say what to vary: --vary KNOB=RANGE, once or twice")
    try:
        axes = [parse_axis(text) for text in arguments.vary]
        grid(axes)
    except KnobError as refusal:
        raise BadArguments(f"--vary {refusal}") from None
    for axis in axes:
        if axis.knob in knobs:
            raise BadArguments(f"--set {axis.knob}: that is what --vary varies")
    if arguments.file is None:
        name = arguments.scenario or default_scenario
        try:
            load_scenario(name)
        except ScenarioError as refusal:
            raise BadArguments(f"--scenario {name}: {refusal}") from None
        for turned in (*knobs, *(axis.knob for axis in axes)):
            if knob(turned).group == "device":
                raise BadArguments(f"{turned} is about how a GPU runs a step; a scenario is swept on the CPU")
        return SavedSweep(axes, ScenarioRun(name, arguments.seed, arguments.requests), knobs)
    source = open_source(arguments.file)
    try:
        check_changes((*knobs, *(axis.knob for axis in axes)), source.info.machine.device)
        return SavedSweep(axes, RecordedRun(arguments.file, source.info.created), knobs)
    except KnobError as refusal:
        hint = " (use --scenario)" if "workload" in str(refusal) else ""
        raise BadArguments(f"{refusal}{hint}") from None
    finally:
        source.close()


def _print_points(points: Sequence[SweepPoint], as_json: bool) -> None:
    if as_json:
        print(json.dumps(as_rows(points), ensure_ascii=False, indent=2, allow_nan=False))
        return
    rows = [("", "tok/s", "ITL p50 ms", "ITL p99 ms", "TTFT p50 ms", "TTFT p99 ms", "preemptions", "")]
    for point, best in zip(points, pareto_front(points), strict=True):
        m = point.metrics
        figures = [figure(m.get(n, float("nan"))) for n in ("output_tokens_per_s", "itl_p50_ms", "itl_p99_ms",
                                                            "ttft_p50_ms", "ttft_p99_ms", "preemptions")]
        rows.append((point.name, *figures, point.error or ("* best" if best else "")))  # type: ignore[arg-type]
    print("\n".join(table(rows)))
    print("* no other point is better in throughput, ITL p99 and TTFT p99 together", file=sys.stderr)


def _read(path: Path) -> RecordedWorkload:
    from app.cli import BadArguments, open_source
    from engine.recorded_workload import RerunError, read_workload

    source = open_source(path)
    try:
        for warning in source.warnings:
            print(f"cutaway: {path}: {warning}", file=sys.stderr)
        return read_workload(source)
    except RerunError as refusal:
        raise BadArguments(f"{path}: {refusal}") from None
    finally:
        source.close()


def _load(info: RunInfo, arguments: argparse.Namespace, progress: Any) -> Model:
    from app.cli import Failure
    from engine.loaded_model import load_model
    from engine.model.problems import ModelProblem
    from engine.recorded_workload import RerunError

    def tell(stage: str, fraction: float | None) -> None:
        progress.tell(f"{stage}{'' if fraction is None else f' {fraction:.0%}'}")

    try:
        return load_model(info, model=arguments.model, num_threads=arguments.threads, progress=tell)
    except (ModelProblem, RerunError) as failure:
        progress.end()
        raise Failure(failure) from None


def _how_far(report: RerunProgress) -> str:
    return (f"step {report.steps:,}: {report.requests} of {report.all_requests} requests done, "
            f"{report.run_ns / 1e9:.1f} s on the run's clock")
