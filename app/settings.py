"""What the program remembers from one start to the next: looks, language, layout, recent files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from PySide6.QtCore import QByteArray, QLocale, QSettings

LAYOUT_VERSION = 2
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
    def keep_prompts(self) -> bool:
        """Whether recordings hold what prompts say, and not only how long they are."""
        return self._get("keep_prompts") not in (False, "false")

    @keep_prompts.setter
    def keep_prompts(self, on: bool) -> None:
        self._set("keep_prompts", on)

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
    def layout_name(self) -> str:
        """The layout in force when the window was left, "" for none."""
        return str(self._get("layouts/current") or "")

    @layout_name.setter
    def layout_name(self, name: str) -> None:
        self._set("layouts/current", name)

    def layout_state(self, name: str) -> QByteArray | None:
        """The panels of layout ``name`` as the user left them, None as long as they were not moved."""
        state = self._get(f"layouts/{name}/state")
        if str(self._get(f"layouts/{name}/version")) != str(LAYOUT_VERSION):
            return None
        return state if isinstance(state, QByteArray) and not state.isEmpty() else None

    def save_layout_state(self, name: str, state: QByteArray | None,
                          sizes: Mapping[str, tuple[float, float]] | None = None) -> None:
        """``sizes`` are the panels' widths and heights as shares of the window's."""
        self._set(f"layouts/{name}/version", LAYOUT_VERSION)
        self._set(f"layouts/{name}/state", state if state is not None else QByteArray())
        self._set(f"layouts/{name}/sizes", json.dumps(dict(sizes or {})))

    def layout_sizes(self, name: str) -> dict[str, tuple[float, float]]:
        """What :meth:`save_layout_state` was told, as far as it makes sense."""
        try:
            found = json.loads(str(self._get(f"layouts/{name}/sizes") or "{}"))
            return {str(panel): (min(1.0, max(0.0, float(width))), min(1.0, max(0.0, float(height))))
                    for panel, (width, height) in found.items()}
        except (ValueError, TypeError, AttributeError):
            return {}

    def layout_scale(self, name: str) -> float | None:
        """How large the user made type in layout ``name``, None as long as it is as designed."""
        try:
            scale = float(str(self._get(f"layouts/{name}/scale") or ""))
        except ValueError:
            return None
        return scale if 0.5 <= scale <= 4 else None

    def save_layout_scale(self, name: str, scale: float | None) -> None:
        self._set(f"layouts/{name}/scale", str(scale) if scale is not None else "")

    @property
    def geometry(self) -> QByteArray | None:
        """Where the main window was, and how large."""
        geometry = self._get("window/geometry")
        return geometry if isinstance(geometry, QByteArray) else None

    def save_geometry(self, geometry: QByteArray) -> None:
        self._set("window/geometry", geometry)

    def sync(self) -> None:
        """Write to disk now."""
        if self._file is not None:
            self._file.sync()
