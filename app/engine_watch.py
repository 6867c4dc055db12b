"""Looks now and then how a live run is doing, and tells the user what went wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

from app.banner import Action
from app.engine_texts import refusal_text, say
from app.session import LiveSession

if TYPE_CHECKING:
    from app.main_window import MainWindow


class EngineWatch(QObject):
    """Tells in the banner of ``window``; what stays wrong is told once."""

    def __init__(self, window: MainWindow) -> None:
        super().__init__(window)
        self._window = window
        self._told: set[str] = set()
        self._telling = ("", "")  # the key and the text of what was told last

    def forget(self) -> None:
        """Another run is shown: its troubles are news again."""
        self._told = set()

    def look(self, session: LiveSession) -> None:
        """See to notices, refused prompts, a failed engine and a failed recording."""
        window, engine = self._window, session.engine
        while engine.notices:
            window.banner.tell(say(engine.notices.popleft()), "warning")
        while engine.refused_knobs:
            window.knobs.change_refused(engine.refused_knobs.popleft())
        for refused in session.take_refused():
            text = self.tr("A prompt was refused: {reason}").format(reason=refusal_text(refused))
            window.banner.tell(text, "warning")
        window.knobs.set_prompt_disabled(self._why_no_prompt(session))
        if engine.status == "failed" and engine.info is not None:
            text = self.tr("The engine stopped: {reason}. The run up to here can be looked at.").format(
                reason=say(engine.failure or engine.error or ""))
            self.tell_once("engine", text, [(self.tr("Start again"), window.restart)])
        feed = session.recorder
        if feed is not None and feed.error is not None:
            self.tell_once(f"record {feed.path}", say(feed.error),
                           [(self.tr("Record elsewhere…"), window.asking.choose_record_file)])

    def _why_no_prompt(self, session: LiveSession) -> str:
        engine = session.engine
        if engine.info is None:
            loading = engine.status == "loading"
            return self.tr("The model is being loaded.") if loading else self.tr("There is no model.")
        return "" if engine.is_alive() else self.tr("The engine has stopped.")

    def tell_once(self, key: str, text: str, actions: Sequence[Action] = ()) -> bool:
        """Say that something is wrong, with what can be done; False, and no word, if ``key`` was told in this run."""
        if key in self._told:
            return False
        self._told.add(key)
        self._window.banner.tell(text, "bad", actions)
        self._telling = key, text
        return True

    def retranslate(self) -> None:
        """The language has changed: what is being told and still holds is told again at the next look."""
        key, text = self._telling
        if key and self._window.banner.text == text:
            self._told.discard(key)
