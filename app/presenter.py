"""What happens in a frame: the session advances, and whoever has something new to show is asked to.

Panels are paced. While the view moves by itself, a panel is shown new views at its own rate; when the user steps or
scrubs, all of them at once.
"""

from __future__ import annotations

from dataclasses import replace

from app.engine_texts import say
from app.panels import INTERVALS_S
from app.recorder_feed import RecorderFeed
from app.run_facts import about_run
from app.session import LiveSession, Session
from engine.trace.knobs import KnobValue
from widgets.knob_panel import KnobPanel
from widgets.painting import Panel
from widgets.transport import Source, TransportBar, TransportStatus
from widgets.view import View

TRANSPORT_INTERVAL_S = 1 / 15

PANELS_AT_ONCE = 3
"""How many panels a frame of a moving view shows something new: the others follow a frame later, and no frame is
long."""


class Presenter:
    """Shows a session's views in the panels and in the transport bar."""

    def __init__(self, panels: dict[str, Panel], transport: TransportBar) -> None:
        self._panels = panels
        self._transport = transport
        self._session: Session | None = None
        self._due = dict.fromkeys(panels, 0.0)
        self._waiting: set[str] = set()  # panels that have not been shown the newest view yet
        self._transport_due = 0.0
        self._transport_waiting = True
        self._knobs: dict[str, KnobValue] | None = None

    @property
    def session(self) -> Session | None:
        return self._session

    def set_session(self, session: Session | None) -> None:
        self._session = session
        self._knobs = None
        for panel in self._panels.values():
            panel.recover()
        self._waiting = set()
        self._transport_waiting = True
        self._transport_due = 0.0

    @property
    def failed(self) -> dict[str, str]:
        """The panels that cannot show this session, and why."""
        return {name: panel.failure for name, panel in self._panels.items() if panel.failure}

    def frame(self, now: float) -> bool:
        """Advance, and update what is due. False when nothing has to be painted."""
        session = self._session
        drawn = False
        if session is not None and session.advance(now):
            self._waiting.update(self._panels)
            self._transport_waiting = True
            if not session.time.playing:
                self._due = dict.fromkeys(self._panels, 0.0)
                self._transport_due = 0.0
        if session is not None and session.view is not None and self._waiting:
            for name in self._next_panels(now, everything=not session.time.playing):
                self._due[name] = now + INTERVALS_S[name]
                self._waiting.discard(name)
                drawn |= self._show(name, session)
        for panel in self._panels.values():
            if panel.is_animating():
                panel.update()
                drawn = True
        if self._transport_due <= now:
            self._transport_due = now + TRANSPORT_INTERVAL_S
            status = transport_status(session)
            if status != self._transport.status or self._transport_waiting:
                self._transport_waiting = False
                self._transport.set_status(status)
                drawn = True
        return drawn

    def _next_panels(self, now: float, *, everything: bool) -> list[str]:
        """The panels to be shown something in this frame, those that have waited longest for it first."""
        due = sorted((n for n in self._waiting if self._due[n] <= now and self._panels[n].isVisible()),
                     key=self._due.__getitem__)
        return due if everything else due[:PANELS_AT_ONCE]

    def show_blank(self, view: View) -> None:
        """Show every panel a run of which nothing is known yet."""
        for panel in self._panels.values():
            if not isinstance(panel, KnobPanel):
                try:
                    panel.show_view(view)
                    panel.show_now()
                except Exception as failure:
                    panel.fail(failure)

    def show_all(self) -> None:
        """Show every panel the newest view now, whatever its pace."""
        if self._session is not None and self._session.view is not None:
            for name in self._panels:
                self._show(name, self._session)
                self._panels[name].show_now()
        self._transport.set_status(transport_status(self._session))

    def _show(self, name: str, session: Session) -> bool:
        """Show one panel the newest view. A panel that fails is left alone from then on, and the others go on."""
        try:
            return self._show_view(name, session)
        except Exception as failure:
            self._panels[name].fail(failure)
            return True

    def _show_view(self, name: str, session: Session) -> bool:
        panel, view = self._panels[name], session.view
        assert view is not None
        if panel.failure:
            return False
        if isinstance(panel, KnobPanel):
            if view.state.knobs == self._knobs:
                return False
            self._knobs = dict(view.state.knobs)
            panel.set_values(self._knobs)
            return True
        panel.show_view(view)
        return True


def transport_status(session: Session | None) -> TransportStatus:
    """What the transport bar shows of ``session``."""
    if session is None:
        return TransportStatus()
    t, source = session.time, session.source
    status = TransportStatus(
        source=source_kind(session), model=_model(session), scenario=_scenario(session), playing=t.playing,
        following=t.following, step=t.step, first_step=t.first_step, last_step=t.last_step,
        series=source.series if source is not None else None, speed=t.speed, pacing=t.pacing, until=t.until,
        loop=(t.loop_start, t.loop_end), notes=session.notes.steps, recording="unavailable",
        about=about_run(source.info) if source is not None else "")
    if not isinstance(session, LiveSession):
        return status
    feed, engine = session.recorder, session.engine
    changes: dict[str, object] = {
        "stage": say(engine.progress.stage), "fraction": engine.progress.fraction,
        "message": say(engine.failure or engine.error or ""),
        "recording": _recording(feed)}
    if feed is not None:
        changes |= {"record_seconds": float(int(feed.seconds)), "record_bytes": feed.bytes_written,
                    "record_dropped": feed.dropped, "record_path": str(feed.path),
                    "record_error": say(feed.error or "")}
    return replace(status, **changes)  # type: ignore[arg-type]


def _recording(feed: RecorderFeed | None) -> str:
    if feed is None:
        return "off"
    if feed.active:
        return "on"
    return "failed" if feed.error else "ending" if feed.ending else "off"


def source_kind(session: Session) -> Source:
    """The transport's word for where the picture comes from."""
    if not isinstance(session, LiveSession):
        return "replay"
    status = session.engine.status
    if status in ("loading", "failed"):
        return "loading" if status == "loading" else "failed"
    if status in ("finished", "stopped"):
        return "finished"
    return "live" if session.time.playing and not session.engine_paused else "paused"


def _model(session: Session) -> str:
    if session.source is not None:
        return session.source.info.model.name
    return (session.spec.model or "SmolLM2-135M-Instruct") if isinstance(session, LiveSession) else ""


def _scenario(session: Session) -> str:
    if session.source is None:
        return (session.spec.scenario or "") if isinstance(session, LiveSession) else ""
    info = session.source.info
    where = " ".join(part for part in (info.machine.device.upper() if info.machine.device == "cpu" else
                                       info.machine.device, SHORT_DTYPES.get(info.model.dtype, info.model.dtype))
                     if part)
    return " · ".join(part for part in (info.scenario, where) if part)


SHORT_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}

