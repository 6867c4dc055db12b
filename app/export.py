"""Pictures of panels, and films of a range of steps: what a run looks like, handed on.

A film's frames are painted by the panels themselves, off the screen, on a clock of its own. Like the exporters of
:mod:`engine.trace.export`, :func:`export_video` is a generator; Qt wants it run in the thread of the window.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from PySide6.QtCore import QT_TRANSLATE_NOOP, QPoint, QRect, QSize, Qt
from PySide6.QtGui import QColor, QImage, QPainter, QPaintEvent
from PySide6.QtSvg import QSvgGenerator
from PySide6.QtWidgets import QHBoxLayout, QLabel, QVBoxLayout, QWidget
from shiboken6 import isValid

from engine.trace.export.files import ExportError, new_file
from engine.trace.export.walk import events_of, state_before, step_range
from engine.trace.source import Notice, RunSource
from widgets.block_table import BlockTable
from widgets.insights import InsightsPanel
from widgets.latency import LatencyPanel
from widgets.motion import Motion
from widgets.panel import Panel
from widgets.request_list import RequestList
from widgets.request_timeline import RequestTimeline
from widgets.theme import theme
from widgets.token_budget import TokenBudget
from widgets.view import Selection, View

NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

PICTURE_SUFFIXES = (".png", ".svg")
VIDEO_SUFFIXES = (".mp4", ".gif")

MIN_SIZE, MAX_SIZE = (320, 240), (4096, 4096)
MAX_FPS = 60
DEFAULT_FPS = {".mp4": 24, ".gif": 20}
DEFAULT_STEP_RATE = 4.0
"""Steps a second: each has the quarter of a second that motion takes."""

WIDE, TALL = 1000, 560
"""In pixels, before scaling: a narrower film has no lists at its right, a lower one no charts at its bottom."""

PALETTE_STEPS = 8
"""A GIF has 256 colours: those of this many steps from all over the range."""

LARGE = 2160
"""A film this high is drawn at twice the size, so that a large screen shows more than small print."""

TEXTS = (
    QT_TRANSLATE_NOOP("Engine", "{path}: name it .png or .svg."),
    QT_TRANSLATE_NOOP("Engine", "{path}: name it .mp4 or .gif."),
    QT_TRANSLATE_NOOP("Engine", "{text} is no size: write it as 1280x720."),
    QT_TRANSLATE_NOOP("Engine", "{size} is no size for a film: from {smallest} to {largest}."),
    QT_TRANSLATE_NOOP("Engine", "{size}: width and height of an MP4 are even numbers."),
    QT_TRANSLATE_NOOP("Engine", "{fps} frames a second: from 1 to {most} are possible."),
    QT_TRANSLATE_NOOP("Engine", "{rate} steps a second: from 0.1 to {most} are possible."),
    QT_TRANSLATE_NOOP("Engine", "Films need the package {package}: install it with pip."),
)
"""For the translator: the refusals below that the engine does not make itself."""


# ---- pictures --------------------------------------------------------------------------------------------------------


def save_picture(widget: QWidget, path: Path, *, overwrite: bool = False) -> None:
    """Save ``widget`` as it looks now, as PNG or, for a name that ends so, as SVG. Raises :class:`ExportError`.

    In an SVG, text and shapes stay text and shapes; what a panel keeps as pixels (the cells of a large pool) stays so.
    """
    suffix = path.suffix.lower()
    if suffix not in PICTURE_SUFFIXES:
        raise ExportError(Notice("{path}: name it .png or .svg.", path=path))
    with new_file(path, overwrite=overwrite) as part:
        if suffix == ".png":
            if not widget.grab().save(str(part), "PNG"):
                raise ExportError(Notice("{path} cannot be written ({reason}). Choose another place.", path=path,
                                         reason="PNG"))
            return
        generator = QSvgGenerator()
        generator.setFileName(str(part))
        generator.setSize(widget.size())
        generator.setViewBox(QRect(QPoint(0, 0), widget.size()))
        generator.setTitle(widget.title if isinstance(widget, Panel) else widget.windowTitle())
        painter = QPainter()
        if not painter.begin(generator):
            raise ExportError(Notice("{path} cannot be written ({reason}). Choose another place.", path=path,
                                     reason="SVG"))
        try:
            widget.render(painter, QPoint(0, 0))
        finally:
            painter.end()
        # Qt writes a text as it is, and a model may say anything: what XML does not allow goes.
        drawing = part.read_text("utf-8", errors="replace")
        part.write_text(NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", drawing), "utf-8")


# ---- films -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VideoOptions:
    """``size`` in pixels, ``fps`` frames and ``step_rate`` steps a second; a step has at least one frame.

    ``fps`` 0 means what suits the format.
    """

    size: tuple[int, int] = (1280, 720)
    fps: int = 0
    step_rate: float = DEFAULT_STEP_RATE

    def frames_per_step(self, suffix: str) -> int:
        return max(1, round((self.fps or DEFAULT_FPS[suffix]) / self.step_rate))


def parse_size(text: str) -> tuple[int, int]:
    """``WIDTHxHEIGHT``. Raises :class:`ExportError`."""
    match = re.fullmatch(r"\s*(\d{1,5})\s*[xX×]\s*(\d{1,5})\s*", text)
    if match is None:
        raise ExportError(Notice("{text} is no size: write it as 1280x720.", text=text))
    return int(match[1]), int(match[2])


def check_video(path: Path, options: VideoOptions) -> str:
    """The suffix of a film that can be made. Raises :class:`ExportError` for one that cannot."""
    suffix = path.suffix.lower()
    if suffix not in VIDEO_SUFFIXES:
        raise ExportError(Notice("{path}: name it .mp4 or .gif.", path=path))
    (width, height), fps = options.size, options.fps or DEFAULT_FPS[suffix]
    if not (MIN_SIZE[0] <= width <= MAX_SIZE[0] and MIN_SIZE[1] <= height <= MAX_SIZE[1]):
        raise ExportError(Notice("{size} is no size for a film: from {smallest} to {largest}.",
                                 size=f"{width}x{height}", smallest="{}x{}".format(*MIN_SIZE),
                                 largest="{}x{}".format(*MAX_SIZE)))
    if suffix == ".mp4" and (width % 2 or height % 2):
        raise ExportError(Notice("{size}: width and height of an MP4 are even numbers.", size=f"{width}x{height}"))
    if not 1 <= fps <= MAX_FPS:
        raise ExportError(Notice("{fps} frames a second: from 1 to {most} are possible.", fps=fps, most=MAX_FPS))
    if not 0.1 <= options.step_rate <= MAX_FPS:
        raise ExportError(Notice("{rate} steps a second: from 0.1 to {most} are possible.",
                                 rate=f"{options.step_rate:g}", most=MAX_FPS))
    return suffix


def export_video(source: RunSource, path: Path, *, first: int | None = None, last: int | None = None,
                 options: VideoOptions | None = None, overwrite: bool = False) -> Generator[float]:
    """Film the steps ``first`` to ``last``, in the theme and language of the program.

    Yields the share that is done after each frame, of which there are ``frames_per_step`` for each step; one frame at
    a time is in memory. Raises :class:`ExportError`.
    """
    options = options or VideoOptions()
    suffix = check_video(path, options)
    start, stop = step_range(source, first, last)
    per_step = options.frames_per_step(suffix)
    fps = options.fps or DEFAULT_FPS[suffix]
    frames = (stop - start + 1) * per_step
    stage = Stage(source, options.size)
    try:
        with new_file(path, overwrite=overwrite) as part, _Film(part, path, suffix, options.size, fps) as film:
            if suffix == ".gif":
                film.set_palette(_samples(stage, source, start, stop))
            state = state_before(source, start)
            frame = 0
            for step in range(start, stop + 1):
                events = events_of(source, step)
                state.apply(events)
                began = frame / fps + 1.0  # on the film's own clock
                view = View(state, events, source.series, source.timeline, False, began)
                moving = True
                with Motion.at(began):
                    stage.show_view(view)
                for _ in range(per_step):
                    if moving:  # else this frame is the one before
                        with Motion.at(frame / fps + 1.0):
                            image = stage.picture()
                            moving = stage.is_animating()
                    film.add(image)
                    frame += 1
                    yield frame / frames
            film.finish()
    finally:
        if isValid(stage):  # a program that ends takes its windows with it
            stage.close()
            stage.deleteLater()
    yield 1.0


def _samples(stage: Stage, source: RunSource, start: int, stop: int) -> Iterator[np.ndarray]:
    """Frames from all over the range, in motion and at rest: the colours that the film will need."""
    for step in sorted({start + (stop - start) * k // (PALETTE_STEPS - 1) for k in range(PALETTE_STEPS)}):
        view = View(state_before(source, step + 1), events_of(source, step), source.series, source.timeline, False, 1.0)
        for moment in (1.0, 1.0 + Motion.DURATION / 3, 1.0 + Motion.DURATION):
            with Motion.at(moment):
                if moment == 1.0:
                    stage.show_view(view)
                yield stage.picture()


class Stage(QWidget):
    """The panels of a film, laid out for its size, and a line above them that says what is shown and when.

    It is a window of its own that never comes onto a screen.
    """

    def __init__(self, source: RunSource, size: tuple[int, int]) -> None:
        super().__init__()
        self.setAttribute(Qt.WidgetAttribute.WA_DontShowOnScreen)
        self.setAttribute(Qt.WidgetAttribute.WA_ShowWithoutActivating)
        self._scale = 2 if size[1] >= LARGE else 1
        self._pixels = QSize(*size)
        width, height = size[0] // self._scale, size[1] // self._scale
        self._title, self._when = QLabel(self._name(source)), QLabel()
        self._title.setProperty("role", "value")
        self._when.setProperty("role", "secondary")
        self._when.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        selection = Selection()
        self._selection = selection
        blocks, budget = BlockTable(selection), TokenBudget(selection)
        self.panels: list[Panel] = [blocks, budget]
        middle, row, line = QVBoxLayout(), QHBoxLayout(), QHBoxLayout()
        middle.addWidget(blocks, 5)
        middle.addWidget(budget, 3)
        if height >= TALL:
            charts = QHBoxLayout()
            for chart in (LatencyPanel(selection), RequestTimeline(selection)):
                self.panels.append(chart)
                charts.addWidget(chart, 1)
            middle.addLayout(charts, 4)
        row.addLayout(middle, 7)
        if width >= WIDE:
            side = QVBoxLayout()
            for panel, share in ((RequestList(selection), 5), (InsightsPanel(selection), 3)):
                self.panels.append(panel)
                side.addWidget(panel, share)
            row.addLayout(side, 2)
        line.addWidget(self._title)
        line.addWidget(self._when, 1)
        column = QVBoxLayout(self)
        for box, space in ((column, 8), (row, 8), (middle, 8)):
            box.setSpacing(space)
        column.setContentsMargins(8, 4, 8, 8)
        column.addLayout(line)
        column.addLayout(row, 1)
        self.setFixedSize(width, height)
        self.show()

    @staticmethod
    def _name(source: RunSource) -> str:
        return " · ".join(part for part in (source.info.scenario, source.info.model.name) if part)

    def show_view(self, view: View) -> None:
        """Show a step in every panel, at once."""
        for panel in self.panels:
            panel.show_view(view)
            panel.show_now()
            row = panel.layout()
            if row is not None:
                row.activate()  # there is no event loop between two frames
        text = self.tr("step {step} · {seconds} s")
        self._when.setText(text.format(step=f"{view.state.step:,}", seconds=f"{view.state.time_ns / 1e9:.2f}"))

    def is_animating(self) -> bool:
        return any(panel.is_animating() for panel in self.panels)

    def paintEvent(self, event: QPaintEvent) -> None:
        QPainter(self).fillRect(self.rect(), QColor(theme().background))

    def picture(self) -> np.ndarray:
        """The film's frame: uint8 (height, width, 4), blue first; the fourth is of no meaning."""
        image = QImage(self._pixels, QImage.Format.Format_RGB32)
        painter = QPainter(image)
        painter.scale(self._pixels.width() / self.width(), self._pixels.height() / self.height())
        self.render(painter, QPoint(0, 0))
        painter.end()
        lines = np.frombuffer(image.constBits(), np.uint8).reshape(image.height(), image.bytesPerLine())
        return lines[:, :4 * image.width()].reshape(image.height(), image.width(), 4).copy()


class _Film:
    """An MP4 (H.264) or a GIF that grows frame by frame. Whatever FFmpeg refuses is an :class:`ExportError`."""

    def __init__(self, part: Path, path: Path, suffix: str, size: tuple[int, int], fps: int) -> None:
        self._path = path
        self._gif = suffix == ".gif"
        self._graph: Any = None  # of filters; it has to live as long as its ends do
        self._source: Any = None
        self._sink: Any = None
        self._count = 0
        try:
            import av
        except ImportError:
            raise ExportError(Notice("Films need the package {package}: install it with pip.", package="av")) from None
        self._av: Any = av
        self._container: Any
        self._av.logging.set_level(self._av.logging.PANIC)  # what goes wrong is said by the exception
        with self._errors():
            self._container = self._av.open(str(part), "w", format="gif" if self._gif else "mp4")
            self._stream = self._gif_stream(size, fps) if self._gif else self._mp4_stream(size, fps)

    def _mp4_stream(self, size: tuple[int, int], fps: int) -> Any:
        codec = "libx264" if "libx264" in self._av.codecs_available else "mpeg4"
        stream = self._container.add_stream(codec, rate=fps)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        if codec == "libx264":
            stream.options = {"preset": "veryfast", "crf": "20"}
        else:
            stream.bit_rate = 8_000_000
        stream.codec_context.colorspace = stream.codec_context.color_primaries = stream.codec_context.color_trc = 1
        return stream

    def _gif_stream(self, size: tuple[int, int], fps: int) -> Any:
        stream = self._container.add_stream("gif", rate=fps)
        stream.width, stream.height = size
        stream.pix_fmt = "pal8"
        return stream

    def set_palette(self, samples: Iterator[np.ndarray]) -> None:
        """The colours of a GIF, from ``samples`` of its frames; to be called before the first frame is added.

        One palette for all frames: then a frame needs to hold only what has changed.
        """
        width, height = self._stream.width, self._stream.height
        with self._errors():
            graph = self._av.filter.Graph()
            source = graph.add_buffer(width=width, height=height, format="bgra", time_base=Fraction(1, 100))
            generate, sink = graph.add("palettegen", "stats_mode=full:reserve_transparent=1"), graph.add("buffersink")
            source.link_to(generate)
            generate.link_to(sink)
            graph.configure()
            for number, image in enumerate(samples):
                frame = self._av.VideoFrame.from_ndarray(image, format="bgra")
                frame.pts = number
                source.push(frame)
            source.push(None)
            palette = sink.pull()

            graph = self._av.filter.Graph()
            source = graph.add_buffer(width=width, height=height, format="bgra", time_base=Fraction(1, 100))
            colours = graph.add_buffer(width=palette.width, height=palette.height, format=palette.format.name,
                                       time_base=Fraction(1, 100))
            use, sink = graph.add("paletteuse", "dither=none:diff_mode=rectangle"), graph.add("buffersink")
            source.link_to(use, 0, 0)
            colours.link_to(use, 0, 1)
            use.link_to(sink)
            graph.configure()
            palette.pts = 0
            colours.push(palette)
            colours.push(None)
            self._graph, self._source, self._sink = graph, source, sink

    def add(self, image: np.ndarray) -> None:
        """The next frame, uint8 (height, width, 4)."""
        with self._errors():
            frame = self._av.VideoFrame.from_ndarray(image, format="bgra")
            if self._gif:
                frame.pts = self._count
                self._source.push(frame)
                frame = self._sink.pull()
            else:
                frame = frame.reformat(format="yuv420p", dst_colorspace="ITU709")
            frame.pts = self._count
            frame.time_base = 1 / self._stream.codec_context.framerate
            self._count += 1
            self._container.mux(self._stream.encode(frame))

    def finish(self) -> None:
        """Write what the encoder still holds, and the end of the file."""
        with self._errors():
            self._container.mux(self._stream.encode(None))
            self._container.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._av.FFmpegError as failure:
            if isinstance(failure, OSError):
                raise OSError(failure.errno, failure.strerror) from failure
            raise ExportError(Notice("{path} cannot be written ({reason}). Choose another place.", path=self._path,
                                     reason=failure)) from None

    def __enter__(self) -> _Film:
        return self

    def __exit__(self, *args: object) -> None:
        with self._errors():
            self._container.close()
