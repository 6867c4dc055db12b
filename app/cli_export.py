"""``cutaway export``: a recording in other programs' formats, or as a film. Qt is only loaded for a film."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.export import VideoOptions
    from engine.trace.source import RunSource

Open = Callable[[Path], "RunSource"]


def add_export(commands: Any, looks: argparse.ArgumentParser, step_number: Callable[[str], int],
               positive_int: Callable[[str], int], positive: Callable[[str], float], open_source: Open) -> None:
    """Add the command; ``commands`` is what ``add_subparsers`` has returned, ``open_source`` opens a recording."""
    export = commands.add_parser(
        "export", parents=[looks], help="hand a recording on: Perfetto, CSV, JSON lines, MP4, GIF",
        description="Writes a recording, or the part of it from step A to step B, in one or more formats. --lang and "
                    "--theme say how a film looks.")
    export.add_argument("file", type=Path, metavar="FILE", help="a recording (.mcap)")
    export.add_argument("--perfetto", type=Path, metavar="OUT", help="a trace for ui.perfetto.dev: a track for each "
                                                                     "request, counters, flows")
    export.add_argument("--csv", type=Path, metavar="DIR", help="the tables steps.csv and requests.csv in a folder")
    export.add_argument("--jsonl", type=Path, metavar="OUT", help="the events, one step a line")
    export.add_argument("--video", type=Path, metavar="OUT", help="a film, .mp4 or .gif; needs --from and --to")
    export.add_argument("--from", type=step_number, metavar="A", dest="first", help="the first step (default: all)")
    export.add_argument("--to", type=step_number, metavar="B", dest="last", help="the last step")
    export.add_argument("--size", default="1280x720", metavar="WxH", help="of the film (default: %(default)s)")
    export.add_argument("--fps", type=positive_int, default=0, metavar="N",
                        help="frames a second of the film (default: 24, of a GIF 20)")
    export.add_argument("--step-rate", type=positive, default=4.0, metavar="N",
                        help="steps a second of the film (default: 4)")
    export.add_argument("--force", action="store_true", help="replace what is there already")
    export.set_defaults(command=lambda arguments: _export(arguments, open_source))


def _export(arguments: argparse.Namespace, open_source: Open) -> int:
    from app.cli import BadArguments, Failure
    from app.headless import Progress, ending_on_sigterm
    from engine.trace.export import ExportError, ExportFailed
    from engine.trace.reader import RecordingError

    if not any((arguments.perfetto, arguments.csv, arguments.jsonl, arguments.video)):
        raise BadArguments("say what to write: --perfetto OUT, --csv DIR, --jsonl OUT or --video OUT")
    if arguments.video and (arguments.first is None or arguments.last is None):
        raise BadArguments("--video needs --from A and --to B: the steps to film")
    source = open_source(arguments.file)
    progress = Progress()
    try:
        with ending_on_sigterm():
            _check_all(arguments, source)
            for path, going in _jobs(arguments, source):
                with closing(going):
                    for share in going:
                        progress.tell(f"{path}: {share:.0%}")
                progress.tell(f"{path}: written", now=True)
    except ExportError as refusal:
        progress.end()
        raise (Failure if isinstance(refusal, ExportFailed) else BadArguments)(refusal) from None
    except RecordingError as damage:  # which was not to be seen when the file was opened
        progress.end()
        raise Failure(damage) from None
    finally:
        source.close()
    progress.end()
    for warning in source.warnings:
        progress.tell(f"cutaway: {arguments.file}: {warning}", now=True)
        progress.end()
    return 0


def _check_all(arguments: argparse.Namespace, source: RunSource) -> None:
    """Refuse before anything is written: either all that was asked for, or nothing."""
    from app.cli import BadArguments
    from engine.trace.export.files import check_target
    from engine.trace.export.walk import step_range

    step_range(source, arguments.first, arguments.last)
    files = [path.absolute() for path in (arguments.perfetto, arguments.jsonl, arguments.video) if path is not None]
    if len(set(files)) < len(files):
        raise BadArguments("two formats cannot go into one file: name one for each")
    for path in (arguments.perfetto, arguments.jsonl, arguments.video):
        if path is not None:
            check_target(path, overwrite=arguments.force)
    for name in ("steps.csv", "requests.csv"):
        if arguments.csv is not None and arguments.csv.exists():
            check_target(arguments.csv / name, overwrite=arguments.force)
    if arguments.video is not None:
        from app.export import check_video

        check_video(arguments.video, _film(arguments))


def _film(arguments: argparse.Namespace) -> VideoOptions:
    from app.export import VideoOptions, parse_size

    return VideoOptions(parse_size(arguments.size), arguments.fps, arguments.step_rate)


def _jobs(arguments: argparse.Namespace, source: RunSource) -> Iterator[tuple[Path, Generator[float]]]:
    from engine.trace.export import export_csv, export_jsonl, export_perfetto

    options: dict[str, Any] = {"first": arguments.first, "last": arguments.last, "overwrite": arguments.force}
    if arguments.perfetto:
        yield arguments.perfetto, export_perfetto(source, arguments.perfetto, **options)
    if arguments.csv:
        yield arguments.csv, export_csv(source, arguments.csv, **options)
    if arguments.jsonl:
        yield arguments.jsonl, export_jsonl(source, arguments.jsonl, **options)
    if arguments.video:
        os.environ["QT_QPA_PLATFORM"] = "offscreen"  # nothing comes onto a screen, and there may be none
        from app.application import make_application
        from app.export import export_video
        from app.settings import Settings
        from app.translation import Language
        from widgets.theme import themes

        make_application()
        settings = Settings()
        themes.set(arguments.theme or settings.theme)
        language = Language(arguments.lang or settings.language)
        yield arguments.video, export_video(source, arguments.video, options=_film(arguments), **options)
        language.set("en")
