"""What the program remembers from one start to the next: looks, language, layout, recent files."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QByteArray, QLocale, QSettings

LAYOUT_VERSION = 1
"""Goes up when panels are added or renamed, so that a layout of an older version is not forced on them."""

RECENT_KEPT = 8


class Settings:
    """Remembers in an ini file of the user's, or, with ``remember`` False, in memory for this start only."""

    def __init__(self, path: Path | None = None, *, remember: bool = True) -> None:
        self._values: dict[str, object] = {}
        self._file: QSettings | None = None
        if remember:
            self._file = (QSettings(str(path), QSettings.Format.IniFormat) if path is not None else
                          QSettings(QSettings.Format.IniFormat, QSettings.Scope.UserScope, "Cutaway", "Cutaway"))

    def _get(self, key: str) -> object:
        return self._file.value(key) if self._file is not None else self._values.get(key)

    def _set(self, key: str, value: object) -> None:
        if self._file is not None:
            self._file.setValue(key, value)
        else:
            self._values[key] = value

    @property
    def theme(self) -> str:
        """"dark" or "light"."""
        return "light" if self._get("theme") == "light" else "dark"

    @theme.setter
    def theme(self, name: str) -> None:
        self._set("theme", name)

    @property
    def language(self) -> str:
        """"en" or "zh"; the system's as long as the user has not chosen."""
        chosen = self._get("language")
        if chosen in ("en", "zh"):
            return str(chosen)
        if self._file is None:
            return "en"
        return "zh" if QLocale.system().language() == QLocale.Language.Chinese else "en"

    @language.setter
    def language(self, code: str) -> None:
        self._set("language", code)

    @property
    def motion(self) -> bool:
        """Whether changes are shown in motion."""
        return self._get("motion") not in (False, "false")

    @motion.setter
    def motion(self, on: bool) -> None:
        self._set("motion", on)

    @property
    def recent(self) -> list[Path]:
        """Recordings opened or made lately that are still there, the latest first."""
        raw = self._get("recent")
        names = [raw] if isinstance(raw, str) else raw if isinstance(raw, list) else []
        return [path for path in map(Path, map(str, names)) if path.is_file()]

    def add_recent(self, path: Path) -> None:
        path = path.absolute()
        kept = [path, *(p for p in self.recent if p != path)][:RECENT_KEPT]
        self._set("recent", [str(p) for p in kept])

    @property
    def layout(self) -> tuple[QByteArray, QByteArray] | None:
        """Geometry and state of the main window, as it was left."""
        geometry, state = self._get("window/geometry"), self._get("window/state")
        version = str(self._get("window/version"))
        if isinstance(geometry, QByteArray) and isinstance(state, QByteArray) and version == str(LAYOUT_VERSION):
            return geometry, state
        return None

    def save_layout(self, geometry: QByteArray, state: QByteArray) -> None:
        self._set("window/version", LAYOUT_VERSION)
        self._set("window/geometry", geometry)
        self._set("window/state", state)

    def sync(self) -> None:
        """Write to disk now."""
        if self._file is not None:
            self._file.sync()
