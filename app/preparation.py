"""Shows how the model of a live session is coming, and what to do when it does not come."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject

from app.engine_texts import say
from app.frame_clock import settle_memory
from app.session import LiveSession
from app.start_card import StartCard
from engine.model.library import default_model_ready

SHOWN_AFTER_S = 0.6
"""A model that is there in this time needs no card."""


class Preparation(QObject):
    """Drives the start card from ``engine.progress``; :meth:`update` is called a few times a second."""

    def __init__(self, card: StartCard, recordings: Callable[[], list[tuple[Path, str]]]) -> None:
        super().__init__(card)
        self._card = card
        self._recordings = recordings
        self._session: LiveSession | None = None
        self._since = 0.0
        self._over = True
        self._first_time = False
        card.cancelled.connect(self._cancel)

    def watch(self, session: LiveSession | None) -> None:
        """Show the preparation of ``session``'s model, or, with None, nothing."""
        self._session = session
        self._since = time.monotonic()
        self._over = session is None
        self._first_time = session is not None and session.spec.model is None and not default_model_ready()
        self._card.hide()

    def update(self) -> None:
        session = self._session
        if session is None or self._over:
            return
        engine = session.engine
        if engine.info is not None:
            self._over = True
            self._card.hide()
            settle_memory()
        elif engine.status in ("failed", "stopped"):
            self._over = True
            self._tell_failure(session)
        elif time.monotonic() - self._since > SHOWN_AFTER_S:
            self._card.show_progress(say(engine.progress.stage), engine.progress.fraction, first_time=self._first_time)

    def _tell_failure(self, session: LiveSession) -> None:
        message = say(session.engine.failure or session.engine.error or "") or self.tr(
            "Preparing the model was cancelled. It goes on from there when you try again.")
        self._card.show_failure(message, self._recordings())

    def retranslate(self) -> None:
        """The language has changed: say again what is being said."""
        if self._session is not None and self._over and not self._card.isHidden():
            self._tell_failure(self._session)

    def _cancel(self) -> None:
        if self._session is not None:
            self._session.engine.stop(timeout=0)

