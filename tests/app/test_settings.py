"""What is remembered, where, and what is not."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QByteArray

from app.settings import RECENT_KEPT, Settings


def test_settings_last_from_one_start_to_the_next(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "s.ini")
    assert (settings.theme, settings.motion, settings.recent, settings.geometry) == ("dark", True, [], None)
    assert (settings.layout_name, settings.layout_state("stage"), settings.layout_scale("stage")) == ("", None, None)
    settings.theme, settings.language, settings.motion = "light", "zh", False
    settings.save_geometry(QByteArray(b"geometry"))
    settings.layout_name = "teach"
    settings.save_layout_state("stage", QByteArray(b"state"), {"requests": (0.25, 0.5)})
    settings.save_layout_scale("stage", 1.75)
    settings.sync()
    again = Settings(tmp_path / "s.ini")
    assert (again.theme, again.language, again.motion) == ("light", "zh", False)
    assert (again.geometry, again.layout_name) == (QByteArray(b"geometry"), "teach")
    assert (again.layout_state("stage"), again.layout_scale("stage")) == (QByteArray(b"state"), 1.75)
    assert again.layout_sizes("stage") == {"requests": (0.25, 0.5)}
    assert again.layout_state("tune") is None
    assert again.layout_sizes("tune") == {}
    for nonsense in ("[1]", '{"a": 1}', '{"a": ["x", 2]}', "{", '{"a": [1, 2, 3]}'):
        again._set("layouts/tune/sizes", nonsense)
        assert again.layout_sizes("tune") == {}
    again.save_layout_state("stage", None)
    again.save_layout_scale("stage", None)
    again.sync()
    third = Settings(tmp_path / "s.ini")
    assert (third.layout_state("stage"), third.layout_scale("stage")) == (None, None)


def test_recent_recordings_are_those_that_are_still_there(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "s.ini")
    paths = [tmp_path / f"录像 {i}.mcap" for i in range(RECENT_KEPT + 3)]
    for path in paths:
        path.touch()
        settings.add_recent(path)
    settings.add_recent(paths[5])
    settings.sync()
    recent = Settings(tmp_path / "s.ini").recent
    assert recent[0] == paths[5]
    assert len(recent) == len(set(recent)) == RECENT_KEPT
    paths[5].unlink()
    assert paths[5] not in Settings(tmp_path / "s.ini").recent


def test_one_recent_recording_is_a_list_too(tmp_path: Path) -> None:
    """An ini file does not tell a list of one from a text."""
    settings = Settings(tmp_path / "s.ini")
    (tmp_path / "a, b.mcap").touch()
    settings.add_recent(tmp_path / "a, b.mcap")
    settings.sync()
    assert Settings(tmp_path / "s.ini").recent == [tmp_path / "a, b.mcap"]


def test_nothing_is_written_for_a_script(tmp_path: Path) -> None:
    settings = Settings(remember=False)
    settings.theme = "light"
    settings.sync()
    assert settings.theme == "light"
    assert Settings(remember=False).theme == "dark"
    assert Settings(remember=False).language == "en"


def test_a_layout_of_another_version_is_not_forced_on_the_panels(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "s.ini")
    settings.save_layout_state("tune", QByteArray(b"s"))
    settings._set("layouts/tune/version", 0)
    settings._set("layouts/tune/scale", "huge")
    assert settings.layout_state("tune") is None
    assert settings.layout_scale("tune") is None
