"""The figures in the strip at the bottom of the window."""

from __future__ import annotations

import math

from PySide6.QtCore import QObject

from app.engine_texts import say
from app.session import LiveSession, ReplaySession, Session
from widgets.inspector_facts import mode_text
from widgets.painting import format_bytes, format_int, format_number, format_percent
from widgets.status_strip import StatusItem, StatusStrip
from widgets.view import View

RATE_WINDOW = 64
"""Steps over which rates are taken."""


class StripFeed(QObject):
    """Tells the strip how the session is doing; called a few times a second."""

    def __init__(self, strip: StatusStrip) -> None:
        super().__init__(strip)
        self._strip = strip
        self._session: Session | None = None
        self._shown: tuple[list[StatusItem], list[StatusItem]] = ([], [])

    def set_session(self, session: Session | None) -> None:
        self._session = session

    def update(self, frame_ms: float) -> bool:
        """True when something changed. ``frame_ms``: what a frame takes of late, NaN before the first."""
        items = self._left(frame_ms), self._right()
        if items == self._shown:
            return False
        self._shown = items
        self._strip.set_items(*items)
        return True

    def _left(self, frame_ms: float) -> list[StatusItem]:
        session = self._session
        if session is None or session.view is None or session.source is None:
            return []
        view, counters = session.view, session.view.state.counters
        at = session.source.last_step if session.is_live else view.state.step
        rates = session.source.series.latency(at, RATE_WINDOW)
        steps_tip = self.tr("Steps of the engine a second, over the last {n} steps").format(n=RATE_WINDOW)
        engine = StatusItem(self.tr("engine"), self.tr("{rate} steps/s").format(
            rate=format_number(rates.steps_per_s)), tooltip=steps_tip)
        if isinstance(session, LiveSession) and session.engine.status in ("paused", "idle", "finished", "stopped"):
            state = {"paused": self.tr("paused"), "idle": self.tr("idle"), "finished": self.tr("all served"),
                     "stopped": self.tr("stopped")}[session.engine.status]
            engine = StatusItem(self.tr("engine"), state, tooltip=engine.tooltip)
        hits = counters.hit_tokens / counters.queried_tokens if counters.queried_tokens else math.nan
        return [
            engine,
            *self._mode(view),
            StatusItem(self.tr("output"), f"{format_number(rates.output_tokens_per_s, 0)} tok/s",
                       tooltip=self.tr("Output tokens of all requests a second, over the last {n} steps").format(
                           n=RATE_WINDOW)),
            StatusItem(self.tr("KV"), format_percent(view.state.kv_usage),
                       tooltip=self.tr("Share of the pool's blocks that requests hold")),
            StatusItem(self.tr("hit rate"), format_percent(hits, 0),
                       tooltip=self.tr("Share of prompt tokens that the prefix cache served, since the run began")),
            StatusItem(self.tr("preemptions"), format_int(counters.preemptions),
                       level="warning" if counters.preemptions else "",
                       tooltip=self.tr("How often a running request had to give up its blocks")),
            StatusItem(self.tr("frame"), f"{format_number(frame_ms, 0)} ms",
                       tooltip=self.tr("What drawing a frame takes; engine and window share one interpreter lock")),
        ]

    def _mode(self, view: View) -> list[StatusItem]:
        """How the forward pass of the step ran; a CPU has only one way."""
        if view.events is None or not view.events.mode:
            return []
        return [StatusItem(self.tr("step"), view.events.mode, tooltip=mode_text(view.events.mode) + "\n\n" + self.tr(
            "Launching a kernel takes the CPU some microseconds, and a step of a small batch has hundreds of kernels "
            "that are done in less. A CUDA graph is recorded once for a batch size and then launched whole: where "
            "every request decodes, the GPU no longer waits for launches. The knob enforce_eager turns graphs off."))]

    def _right(self) -> list[StatusItem]:
        session = self._session
        if isinstance(session, LiveSession) and session.recorder is not None:
            feed = session.recorder
            dropped = self.tr("{n} dropped").format(n=format_int(feed.dropped))
            without = "" if feed.prompt_text else self._without_prompts()
            if feed.active:
                size = f"· {format_bytes(feed.bytes_written)}{without} · {dropped}"
                return [StatusItem(self.tr("recording to"), feed.path.name, size, tooltip=str(feed.path),
                                   level="warning" if feed.dropped else "")]
            if feed.error is not None:
                return [StatusItem(self.tr("not recording"), feed.path.name, tooltip=say(feed.error), level="bad")]
            return [StatusItem(self.tr("recorded to"), feed.path.name,
                               f"· {format_bytes(feed.bytes_written)}{without}", tooltip=str(feed.path))]
        if isinstance(session, ReplaySession) and session.path is not None and session.source is not None:
            steps = session.source.last_step - session.source.first_step + 1
            without = "" if session.source.info.prompt_text else self._without_prompts()
            return [StatusItem(self.tr("recording"), session.path.name,
                               "· " + self.tr("{n} steps").format(n=format_int(steps)) + without,
                               tooltip=str(session.path))]
        return []

    def _without_prompts(self) -> str:
        return " · " + self.tr("without prompts")
