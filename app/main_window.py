"""The window: the transport bar on top, the panels as docks, the status strip below, and the run that they show."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from PySide6.QtCore import QEvent, Qt, QTimer
from PySide6.QtGui import QCloseEvent, QDragEnterEvent, QDropEvent, QGuiApplication, QKeyEvent
from PySide6.QtWidgets import QMainWindow, QMenuBar, QVBoxLayout, QWidget

from app.asking import Asking, recordings_folder
from app.banner import Banner
from app.commands import Commands
from app.comparing import Comparing
from app.engine_texts import say
from app.engine_watch import EngineWatch
from app.export_window import Exporting
from app.frame_clock import FrameClock
from app.layouts import Docks, size_on_screen
from app.note_taking import NoteTaking
from app.panels import build_panels
from app.preparation import Preparation
from app.presenter import Presenter
from app.session import LiveSession, ReplaySession, Session
from app.settings import Settings
from app.start_card import StartCard
from app.strip import StripFeed
from app.translation import LANGUAGES, Language
from engine.model_holder import ModelHolder
from engine.scenario import list_scenarios, load_scenario
from engine.sweep_grid import find_sweep
from engine.trace.knobs import KnobError
from engine.trace.reader import RecordingError, open_recording
from engine.trace.source import RunSource
from engine.worker import RunSpec
from widgets.buttons import MenuButton, Tabs
from widgets.chart_keys import Chart
from widgets.knob_panel import KnobPanel
from widgets.painting import Motion
from widgets.request_list import RequestList
from widgets.status_strip import StatusStrip
from widgets.theme import themes
from widgets.transport import TransportBar
from widgets.view import Selection

log = logging.getLogger(__name__)

RECORDINGS = Path(__file__).resolve().parents[1] / "assets" / "recordings"
SLOW_INTERVAL_S = 0.25
CLOSE_TIMEOUT_S = 2.5
EDGE = 8


class MainWindow(QMainWindow):
    """Shows one session at a time. ``settings`` and ``language`` outlive the window."""

    def __init__(self, settings: Settings, language: Language) -> None:
        super().__init__()
        self.settings = settings
        self.language = language
        self.setAcceptDrops(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setMinimumSize(960, 600)
        self.selection = Selection()
        self.selection.step_requested.connect(lambda step: self.with_session("seek", step))
        self.panels = build_panels(self.selection)
        self.transport = TransportBar()
        self.banner = Banner()
        self.strip = StatusStrip()
        self._build_frame()
        self.docks = Docks(self, self.panels, settings)
        self.asking = Asking(self)
        self.exporting = Exporting(self)
        self.note_taking = NoteTaking(self)
        self.comparing = Comparing(self)
        self.commands = Commands(self, self._menu_bar)
        self.presenter = Presenter(self.panels, self.transport)
        self.strip_feed = StripFeed(self.strip)
        self.card = StartCard(self)
        self.engine_watch = EngineWatch(self)
        self.preparation = Preparation(self.card, self.shipped_recordings)
        self.clock = FrameClock(self._frame, self)
        self._next_slow = 0.0
        self._ending: list[threading.Thread] = []
        self.models = ModelHolder()
        self._spec = RunSpec()  # of the live run that was started last
        self.ended_cleanly = True
        self._connect()
        self.resize(size_on_screen(self, 1440, 900))
        self.setTabOrder(self.panels["insights"], self._language_button)
        self._restore_layout()
        Motion.enabled = settings.motion
        self._sync_commands()
        self.setFocus()  # else the first control has it, and the arrow keys are not the run's

    # ---- building ------------------------------------------------------------------------------------------------

    def _build_frame(self) -> None:
        top = QWidget()
        column = QVBoxLayout(top)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        self._menu_bar = QMenuBar()
        self._layout_tabs = Tabs()
        self._menu_bar.setCornerWidget(self._layout_tabs)
        inner = QVBoxLayout()
        inner.setContentsMargins(0, EDGE // 2, 0, EDGE)
        inner.setSpacing(EDGE)
        inner.addWidget(self.transport)
        inner.addWidget(self.banner)
        column.addWidget(self._menu_bar)
        column.addLayout(inner)
        self.setMenuWidget(top)
        self.setContentsMargins(EDGE, 0, EDGE, 0)
        bar = self.statusBar()
        bar.setSizeGripEnabled(False)
        bar.addWidget(self.strip, 1)
        self._language_button = MenuButton()
        self._language_button.set_options(list(LANGUAGES.items()))
        self._language_button.chosen.connect(lambda code: self.set_language(str(code)))
        bar.addPermanentWidget(self._language_button)

    def _connect(self) -> None:
        t = self.transport
        t.play_toggled.connect(lambda: self.with_session("toggle_play"))
        t.step_forward.connect(lambda n: self.with_session("step_forward", n))
        t.step_back.connect(lambda n: self.with_session("step_back", n))
        t.go_first.connect(lambda: self.with_session("first"))
        t.follow.connect(self.follow)
        t.speed_changed.connect(lambda speed: self.with_session("set_speed", speed))
        t.step_rate_changed.connect(lambda rate: self.with_session("set_speed", rate, "steps"))
        t.seek.connect(lambda step: self.with_session("seek", step))
        t.run_until_changed.connect(lambda condition: self.with_session("run_until", condition))
        t.record_toggled.connect(self.toggle_recording)
        visible = self.selection.visible
        t.scrubber.share(visible)
        visible.panned.connect(lambda: self.with_session("detach"))
        visible.follow_asked.connect(self._let_charts_go)
        self.knobs.knob_changed.connect(self._turn_knob)
        self.knobs.prompt_submitted.connect(self._submit)
        self.knobs.scenario_chosen.connect(self.start_scenario)
        requests = self.panels["requests"]
        assert isinstance(requests, RequestList)
        requests.abort_requested.connect(self._abort)
        self._layout_tabs.chosen.connect(self.docks.choose)
        self.docks.chosen.connect(lambda _name: self._sync_commands())
        self.card.retry.connect(self.restart)
        self.card.open_recording.connect(self.open_recording)
        self.card.open_any.connect(self.asking.choose_recording)
        themes.changed.connect(self._sync_commands)

    @property
    def knobs(self) -> KnobPanel:
        panel = self.panels["knobs"]
        assert isinstance(panel, KnobPanel)
        return panel

    @property
    def session(self) -> Session | None:
        return self.presenter.session

    # ---- sessions ------------------------------------------------------------------------------------------------

    def start_live(self, spec: RunSpec, record: Path | None = None) -> LiveSession:
        """Run ``spec`` in the background and show it; the model is loaded on the way."""
        self._spec = spec
        session = LiveSession(spec, record=record, models=self.models, keep_prompts=self.settings.keep_prompts)
        self.show_session(session)
        self.knobs.set_values(spec.all_knobs(load_scenario(spec.scenario) if spec.scenario else None))
        session.start()
        if record is not None:
            self.settings.add_recent(record)
        return session

    def start_scenario(self, name: str) -> None:
        """Start a new run of a scenario, with the model and the options of the one before."""
        old = self.session
        spec = old.spec if isinstance(old, LiveSession) else self._spec
        self.start_live(replace(spec, scenario=name, knobs={}))

    def open_path(self, path: Path) -> None:
        """Open what there is at ``path``: a recording, or a sweep (its file or its folder)."""
        sweep = find_sweep(path)
        if sweep is not None:
            self.comparing.open_sweep(sweep)
        else:
            self.open_recording(path)

    def open_recording(self, path: Path, *, play: bool = True) -> bool:
        """Show a recording; when it is none, the banner says so and what is shown stays."""
        try:
            recording = open_recording(path)
        except RecordingError as refusal:
            self.banner.tell(say(refusal), "bad", [(self.tr("Open another…"), self.asking.choose_recording)])
            return False
        self.show_recording(recording, path, play=play)
        return True

    def show_recording(self, recording: RunSource, path: Path, *, play: bool = True) -> None:
        session = ReplaySession(recording, path)
        self.show_session(session)
        self.settings.add_recent(path)
        if play:
            session.toggle_play()
        warnings = session.take_warnings()
        if warnings:
            self.banner.tell(" ".join(map(say, warnings)), "warning")

    def show_session(self, session: Session | None) -> None:
        """Show ``session`` and let go of the one before."""
        old = self.session
        if old is not None:
            if isinstance(old, LiveSession):
                old.engine.stop(timeout=0)  # at once, so that the next run waits for its model and loads none
            ending = threading.Thread(target=old.close, name="session-end", daemon=True)
            ending.start()
            self._ending = [t for t in self._ending if t.is_alive()] + [ending]
        self.engine_watch.forget()
        self.banner.dismiss()
        self.strip_feed.set_session(session)
        self.selection.select()
        self.selection.hover()
        self.selection.visible.release()
        self.knobs.set_enabled_live(isinstance(session, LiveSession))
        self.knobs.show_group("device", session is not None and session.on_gpu)
        requests = self.panels["requests"]
        assert isinstance(requests, RequestList)
        requests.set_can_abort(isinstance(session, LiveSession))
        self.presenter.set_session(session)
        if isinstance(session, LiveSession) and session.view is None:
            self.presenter.show_blank(session.blank_view())  # and not the run before, as if it were this one's
        self.preparation.watch(session if isinstance(session, LiveSession) else None)
        self.note_taking.set_session(session)
        self._show_scenario()
        self._next_slow = 0.0
        name = session.path.name if isinstance(session, ReplaySession) and session.path else self._scenario_name()
        self.setWindowTitle(f"{name} – Cutaway" if name else "Cutaway")
        self.clock.start()

    def _scenario_name(self) -> str:
        session = self.session
        if isinstance(session, LiveSession):
            return session.spec.scenario or ""
        return session.source.info.scenario if session is not None and session.source is not None else ""

    def _show_scenario(self) -> None:
        """The chooser's scenarios; one that is a file of the user's own is among them."""
        titles, current = self.scenario_titles(), self._scenario_name()
        if current and current not in dict(titles):
            titles.append((current, Path(current).stem))
        self.knobs.set_scenarios(titles, current)

    def with_session(self, command: str, *arguments: Any) -> None:
        """Give the session one of its named commands; without a session there is nothing to do."""
        if self.session is not None:
            getattr(self.session, command)(*arguments)

    def follow(self) -> None:
        """To the newest step, charts and all, and with a live run on from there."""
        if self.selection.visible.held:
            self.selection.visible.release()
        self.with_session("follow")

    def main_chart(self) -> Chart | None:
        """The chart that the keys mean when none has the focus: the largest that can be seen."""
        charts = [self.panels[name] for name in ("token_budget", "latency", "timeline")]
        seen = [chart for chart in charts if chart.isVisible() and not chart.failure]
        return max(seen, key=lambda chart: chart.width(), default=None)  # type: ignore[return-value]

    def _let_charts_go(self) -> None:
        """The charts go with the run again; a live run, which panning them left, is followed."""
        self.selection.visible.release()
        if self.session is not None and self.session.time.live:
            self.session.follow()

    # ---- the frame -----------------------------------------------------------------------------------------------

    def _frame(self, now: float) -> bool:
        drawn = self._advance(now)
        if now >= self._next_slow:
            self._next_slow = now + SLOW_INTERVAL_S
            drawn |= self._look_around()
        return drawn

    def _advance(self, now: float) -> bool:
        try:
            return self.presenter.frame(now)
        except Exception as failure:  # the engine and the recording are well: what is wrong is told once
            text = self.tr("This step cannot be shown: {reason}. The run goes on.")
            if self.engine_watch.tell_once("view", text.format(reason=say(failure) or type(failure).__name__)):
                log.exception("the view failed")
            return True

    def _look_around(self) -> bool:
        """What needs no more than four looks a second: figures, and whether anything went wrong."""
        session = self.session
        if isinstance(session, LiveSession):
            self.engine_watch.look(session)
            self.preparation.update()
            recorded = session.take_recorded()
            if recorded is not None:
                self.banner.tell(self.tr("The recording is in {path}.").format(path=recorded), "good",
                                 [(self.tr("Open it"), lambda: self.open_recording(recorded))])
        elif isinstance(session, ReplaySession):
            warnings = session.take_warnings()
            if warnings:
                self.banner.tell(" ".join(map(say, warnings)), "warning")
        for name, reason in self.presenter.failed.items():
            text = self.tr("The panel {name} failed and stands still: {reason}. The run goes on.")
            self.engine_watch.tell_once(f"panel {name}", text.format(name=self.panels[name].title, reason=reason))
        self._sync_commands()
        return self.strip_feed.update(self.clock.recent_ms())

    def restart(self) -> None:
        """Start the live run that is shown again from its beginning."""
        if isinstance(self.session, LiveSession):
            self.start_live(self.session.spec)

    # ---- what the user asks for ----------------------------------------------------------------------------------

    def _turn_knob(self, name: str, value: object) -> None:
        if isinstance(self.session, LiveSession):
            try:
                self.session.set_knob(name, value)  # type: ignore[arg-type]
            except KnobError as refusal:
                self.banner.tell(say(refusal), "warning")
                self.knobs.change_refused(name)

    def _submit(self, text: str) -> None:
        if isinstance(self.session, LiveSession):
            self.session.submit(text)

    def _abort(self, request_id: str) -> None:
        if isinstance(self.session, LiveSession):
            self.session.engine.abort(request_id)

    def toggle_recording(self) -> None:
        """Record the live run to a new file in the user's folder for recordings, or stop recording."""
        session = self.session
        if not isinstance(session, LiveSession):
            return
        if session.recorder is not None and session.recorder.active:
            session.stop_recording()
            return
        if session.recorder is not None and session.recorder.ending:
            return
        folder = recordings_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as failure:
            self.banner.tell(self.tr("{folder} cannot be made ({reason}). Choose another place.").format(
                folder=folder, reason=failure.strerror), "bad", [(self.tr("Choose…"), self.asking.choose_record_file)])
            return
        name = session.spec.scenario or "run"
        self.record_to(folder / f"{Path(name).stem}-{datetime.now():%Y%m%d-%H%M%S}.mcap")

    def record_to(self, path: Path) -> None:
        """Record the live run to ``path``, from its first step on."""
        if isinstance(self.session, LiveSession):
            self.session.start_recording(path)
            self.settings.add_recent(path)
            self._next_slow = 0.0

    def save_screenshot(self, path: Path) -> bool:
        """Save the window as it is now, every panel up to date; False when the file cannot be written."""
        self._look_around()
        self.presenter.show_all()
        return self.grab().save(str(path), "PNG")

    def shipped_recordings(self) -> list[tuple[Path, str]]:
        """(path, title) of the recordings that come with the program."""
        titles = dict(self.scenario_titles())
        return [(path, titles.get(path.stem, path.stem)) for path in sorted(RECORDINGS.glob("*.mcap"))]

    def scenario_titles(self) -> list[tuple[str, str]]:
        """(name, title) of the scenarios that come with the program, in the language of the window."""
        return [(s.name, s.title_in(self.language.code)) for s in list_scenarios()]

    # ---- looks ---------------------------------------------------------------------------------------------------

    def set_theme(self, name: str) -> None:
        self.settings.theme = name
        themes.set(name)
        self._sync_commands()

    def set_language(self, code: str) -> None:
        self.settings.language = code
        self.language.set(code)

    def set_motion(self, on: bool) -> None:
        self.settings.motion = on
        Motion.enabled = on
        self._sync_commands()

    @property
    def must_leave_prompts_out(self) -> bool:
        """Whether the program was started so that no recording holds prompts, whatever the settings say."""
        return not self._spec.record_prompt_text

    def keeps_prompts(self) -> bool:
        """Whether a recording that begins now holds what prompts say."""
        return self.settings.keep_prompts and not self.must_leave_prompts_out

    def set_keep_prompts(self, on: bool) -> None:
        """Whether recordings that begin from now on hold what prompts say."""
        self.settings.keep_prompts = on
        if isinstance(self.session, LiveSession):
            self.session.keep_prompts = on

    def toggle_full_screen(self) -> None:
        """The whole screen, without the menu bar, and back."""
        full = not self.isFullScreen()
        self._menu_bar.setVisible(not full)
        self.showFullScreen() if full else self.showNormal()
        self._sync_commands()

    def _sync_commands(self) -> None:
        self._language_button.current = self.language.code
        self._language_button.set_texts("", LANGUAGES[self.language.code])
        self._layout_tabs.setAccessibleName(self.tr("Layout"))
        self._layout_tabs.setToolTip(self.tr(
            "Stage: few panels and large type, for an audience. Tune: every panel and the knobs. Teach: step by step, "
            "with the inspector. What you change in a layout stays; the View menu brings the design back."))
        session = self.session
        live = isinstance(session, LiveSession)
        recording = isinstance(session, LiveSession) and session.recorder is not None and session.recorder.active
        width = self._layout_tabs.width()
        self._layout_tabs.set_options(self.commands.layout_names(), self.docks.current)
        if self._layout_tabs.width() != width:
            self._menu_bar.setCornerWidget(self._layout_tabs)  # or it would stay where there was room for the old words
            self._layout_tabs.show()
        self.commands.sync(theme=themes.current.name, language=self.language.code, layout=self.docks.current,
                           motion=Motion.enabled, full_screen=self.isFullScreen(), recording=recording, live=live,
                           replay=isinstance(session, ReplaySession) and session.path is not None)

    def _restore_layout(self) -> None:
        geometry = self.settings.geometry
        if geometry is not None:
            self.restoreGeometry(geometry)
            screen = QGuiApplication.primaryScreen().availableGeometry()
            if not screen.intersects(self.frameGeometry()):  # the screen that it was on is gone
                self.move(screen.topLeft())
        self.docks.bring_back()
        QTimer.singleShot(0, self.docks.proportion)

    def _retranslate(self) -> None:
        self.commands.retranslate()
        self.banner.retranslate()
        self.docks.retranslate()
        self._show_scenario()
        self.preparation.retranslate()
        self.engine_watch.retranslate()
        self._sync_commands()

    # ---- Qt ------------------------------------------------------------------------------------------------------

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if not self.commands.key_pressed(event):
            super().keyPressEvent(event)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.LanguageChange:
            QTimer.singleShot(0, self._retranslate)  # after the panels, whose titles are used

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if any(url.isLocalFile() for url in event.mimeData().urls()):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        path = next((Path(url.toLocalFile()) for url in event.mimeData().urls() if url.isLocalFile()), None)
        if path is not None:
            event.acceptProposedAction()
            QTimer.singleShot(0, lambda: self.open_path(path))

    def closeEvent(self, event: QCloseEvent) -> None:
        self.clock.stop()
        self.exporting.stop()
        self.settings.save_geometry(self.saveGeometry())
        self.docks.keep()
        self.settings.sync()
        self.hide()  # a step of the engine may take a second or two to end, which nobody has to watch
        self.ended_cleanly = self.shut_down() and self.ended_cleanly
        super().closeEvent(event)

    def wait_at_the_end_for(self, thread: threading.Thread) -> None:
        """Let ``thread`` end its work before the window is gone, within reason."""
        self._ending = [t for t in self._ending if t.is_alive()] + [thread]

    def shut_down(self) -> bool:
        """End the engine after its step and close the recording. True when nothing is left running."""
        until = time.perf_counter() + CLOSE_TIMEOUT_S
        self.comparing.shut_down()
        session = self.session
        self.presenter.set_session(None)
        done = session.close(CLOSE_TIMEOUT_S) if session is not None else True
        for ending in self._ending:
            ending.join(max(0.0, until - time.perf_counter()))
        self.models.let_go()
        return done and not any(t.is_alive() for t in self._ending)
