"""Films, pictures, and exports from the command line and from the window."""

from __future__ import annotations

import os
import stat
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PySide6.QtCore import QPoint, QPointF
from PySide6.QtGui import QContextMenuEvent, QImage, QPainter
from PySide6.QtSvg import QSvgRenderer
from PySide6.QtWidgets import QApplication, QFileDialog, QLabel, QMenu

from app.application import make_application
from app.cli import main
from app.export import Stage, VideoOptions, check_video, export_video, parse_size, save_picture
from app.export_dialog import ExportDialog
from app.main_window import MainWindow
from app.session import LiveSession
from engine.trace.export import ExportError, export_jsonl, read_jsonl
from engine.trace.history import LiveHistory
from engine.trace.reader import RecordingError
from tests.app.conftest import STEPS
from widgets.motion import Motion
from widgets.request_list import RequestList
from widgets.theme import DARK, LIGHT, themes
from widgets.view import View

SMALL = VideoOptions((480, 320), fps=10, step_rate=5)


def frames(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.fixture
def dark() -> Iterator[None]:
    make_application()
    themes.set("dark")
    yield
    themes.set("dark")


# ---- films -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Film 录像.mp4", "film.gif"])
def test_a_film_of_20_steps_has_its_frames_and_its_size(name: str, run: LiveHistory, tmp_path: Path,
                                                        dark: None) -> None:
    path = tmp_path / name
    shares = list(export_video(run, path, first=100, last=119, options=SMALL))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.width, stream.height) == (480, 320)
        assert stream.average_rate == 10
        assert stream.duration is not None
        assert float(stream.duration * stream.time_base) == pytest.approx(4.0, abs=0.11)
    pictures = frames(path)
    assert len(pictures) == 20 * 2
    assert {p.shape for p in pictures} == {(320, 480, 3)}
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_films_frames_are_what_the_panels_show(run: LiveHistory, tmp_path: Path, dark: None) -> None:
    """The last frame of a step, when nothing moves any more, is the step as it looks at rest."""
    options = VideoOptions((480, 320), fps=20, step_rate=2)
    list(export_video(run, tmp_path / "a.mp4", first=50, last=52, options=options))
    pictures = frames(tmp_path / "a.mp4")
    assert len(pictures) == 30
    stage = Stage(run, (480, 320))
    at_rest = []
    for step in (50, 51, 52):
        stage.show_view(View(run.state_at(step), run.events(step), run.series, run.timeline, False, -10.0))
        at_rest.append(stage.picture()[:, :, 2::-1].astype(float))
    for number in range(3):
        shown = pictures[10 * number + 9].astype(float)
        differences = [np.abs(picture - shown).mean() for picture in at_rest]
        assert differences[number] == min(differences) < 5, "but for what the encoder loses"
    stage.close()


def test_a_step_comes_with_motion_which_ends(run: LiveHistory, tmp_path: Path, dark: None) -> None:
    options = VideoOptions((480, 320), fps=20, step_rate=2)
    list(export_video(run, tmp_path / "a.gif", first=50, last=52, options=options))
    pictures = frames(tmp_path / "a.gif")
    for first in (0, 10, 20):
        moves = [np.abs(a.astype(float) - b).max() for a, b in pairwise(pictures[first:first + 10])]
        assert max(moves[:4]) > 40
        assert moves[5:] == [0.0] * 4, "after a quarter of a second"


def test_without_motion_a_step_stands_still(run: LiveHistory, tmp_path: Path, dark: None,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Motion, "enabled", False)
    list(export_video(run, tmp_path / "a.gif", first=50, last=51, options=VideoOptions((480, 320), 8, 2)))
    pictures = frames(tmp_path / "a.gif")
    assert len(pictures) == 8
    for step in (pictures[:4], pictures[4:]):
        assert all((p == step[0]).all() for p in step)


def test_a_film_has_the_programs_theme(run: LiveHistory, tmp_path: Path, dark: None) -> None:
    corners = {}
    for name in ("dark", "light"):
        themes.set(name)
        path = tmp_path / f"{name}.gif"
        list(export_video(run, path, first=50, last=50, options=VideoOptions((480, 320), 8, 8)))
        corners[name] = frames(path)[0][-2, 2]
    for theme in (DARK, LIGHT):
        colour = [int(theme.background[i:i + 2], 16) for i in (1, 3, 5)]
        assert np.abs(corners[theme.name].astype(int) - colour).max() <= 8


def test_more_room_shows_more_panels(run: LiveHistory, dark: None) -> None:
    counts = []
    for size in ((480, 320), (800, 600), (1280, 720), (3840, 2160)):
        stage = Stage(run, size)
        counts.append(len(stage.panels))
        stage.show_view(View(run.state_at(20), run.events(20), run.series, run.timeline, False, 0.0))
        assert stage.picture().shape == (size[1], size[0], 4)
        stage.close()
    assert counts == [2, 4, 6, 6]


def test_a_cancelled_film_leaves_nothing_behind(run: LiveHistory, tmp_path: Path, dark: None) -> None:
    for name in ("a.mp4", "a.gif"):
        going = export_video(run, tmp_path / name, options=SMALL)
        for _ in range(5):
            assert next(going) < 0.1
        assert len(list(tmp_path.iterdir())) == 1
        going.close()
        assert not list(tmp_path.iterdir())
    QApplication.processEvents()
    assert not [w for w in QApplication.topLevelWidgets() if isinstance(w, Stage) and w.isVisible()]


@pytest.mark.parametrize(("name", "options", "says"), [
    ("a.avi", VideoOptions(), "name it .mp4 or .gif"),
    ("a.mp4", VideoOptions((641, 480)), "even"),
    ("a.mp4", VideoOptions((10, 10)), "from 320x240 to 4096x4096"),
    ("a.gif", VideoOptions((99999, 480)), "from 320x240"),
    ("a.gif", VideoOptions(fps=600), "from 1 to 60"),
    ("a.gif", VideoOptions(step_rate=1e-9), "from 0.1"),
])
def test_films_that_cannot_be_made(name: str, options: VideoOptions, says: str) -> None:
    with pytest.raises(ExportError, match=says):
        check_video(Path(name), options)


def test_sizes() -> None:
    assert parse_size("1280x720") == parse_size(" 1280 × 720 ") == parse_size("1280X720") == (1280, 720)
    for text in ("", "1280", "1280x", "-1x5", "1e3x5", "1280x720x3", "999999x9"):
        with pytest.raises(ExportError, match="is no size"):
            parse_size(text)


# ---- pictures --------------------------------------------------------------------------------------------------------


def test_pictures_of_every_panel(window: MainWindow, recording: Path, tmp_path: Path, qtbot: Any) -> None:
    window.open_recording(recording, play=False)
    window.with_session("seek", 120)
    qtbot.waitUntil(lambda: window.transport.status.step == 120)
    window.presenter.show_all()
    for name, panel in window.panels.items():
        png, svg = tmp_path / f"{name}.png", tmp_path / f"{name} 图.svg"
        save_picture(panel, png)
        save_picture(panel, svg)
        image = QImage(str(png))
        assert image.size() == panel.grab().size()
        drawn = QSvgRenderer(str(svg))
        assert drawn.isValid(), name
        assert drawn.defaultSize().width() > 100
        again = QImage(panel.size(), QImage.Format.Format_RGB32)
        again.fill(0xFF00FF)
        painter = QPainter(again)
        drawn.render(painter)
        painter.end()
        assert len({again.pixel(x, again.height() // 2) for x in range(0, again.width(), 2)}) > 1, name
        assert again.pixelColor(4, 60).name() == image.pixelColor(4, 60).name() == window_colour(), name
        if name not in ("knobs",):
            assert "<text" in svg.read_text("utf-8"), "text stays text"
    with pytest.raises(ExportError, match=r"\.png or \.svg"):
        save_picture(window, tmp_path / "a.jpg")
    with pytest.raises(ExportError, match="exists already"):
        save_picture(window, tmp_path / "latency.png")


def test_a_drawing_survives_whatever_a_model_says(tmp_path: Path, dark: None) -> None:
    label = QLabel("a\x00b\x08c\ud800d\uffffe <&> é 页 🙂")
    save_picture(label, tmp_path / "a.svg")
    assert QSvgRenderer(str(tmp_path / "a.svg")).isValid()
    ET.parse(tmp_path / "a.svg")


def window_colour() -> str:
    return DARK.panel.lower()


def test_a_panels_context_menu_saves_its_picture(window: MainWindow, recording: Path, tmp_path: Path, qtbot: Any,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    window.open_recording(recording, play=False)
    window.with_session("seek", 120)
    qtbot.waitUntil(lambda: window.transport.status.step == 120)
    for panel in window.panels.values():
        child = panel.childAt(panel.width() // 2, panel.height() // 2) if panel is window.panels["latency"] else panel
        place = QPoint(child.width() // 2, 20)
        event = QContextMenuEvent(QContextMenuEvent.Reason.Mouse, place, child.mapToGlobal(place))
        QApplication.sendEvent(child, event)
        shown = QApplication.activePopupWidget()
        assert isinstance(shown, QMenu), panel.title
        assert shown.actions()[-1].text() == "Save picture…"
        shown.close()
    requests = window.panels["requests"]
    assert isinstance(requests, RequestList)
    position = next(QPointF(60, y) for y in range(40, 300, 4) if requests.request_at(QPointF(60, y)))
    menu = window.exporting.build_menu(requests, position)
    assert menu.actions()[0].text() == "Copy output"
    assert menu.actions()[-1].text() == "Save picture…"

    path = tmp_path / "table.svg"
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(tmp_path / "table"), "Drawings (*.svg)"))
    menu.actions()[-1].trigger()
    assert path.stat().st_size > 1000
    assert str(path) in window.banner.text
    menu.actions()[-1].trigger()  # the file dialog had asked about another name
    assert "exists already" in window.banner.text


# ---- the command line ------------------------------------------------------------------------------------------------


def test_the_command_line_exports_everything_at_once(recording: Path, run: LiveHistory, tmp_path: Path,
                                                     capfd: pytest.CaptureFixture[str], dark: None) -> None:
    outs = {"--perfetto": tmp_path / "a.pftrace", "--csv": tmp_path / "tables", "--jsonl": tmp_path / "a.jsonl",
            "--video": tmp_path / "a.mp4"}
    pairs = [str(part) for pair in outs.items() for part in pair]
    status = main(["export", str(recording), *pairs, "--from", "10", "--to", "12", "--size", "480x320", "--fps", "4"])
    assert status == 0, capfd.readouterr().err
    assert list(read_jsonl(tmp_path / "a.jsonl")) == [run.events(step) for step in (10, 11, 12)]
    assert len((tmp_path / "tables" / "steps.csv").read_text("utf-8").splitlines()) == 4
    assert len(frames(tmp_path / "a.mp4")) == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl", "a.mp4", "a.pftrace", "tables"]
    out, err = capfd.readouterr()
    assert out == ""
    assert "a.mp4: written" in err
    before = {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    for option, path in outs.items():
        assert main(["export", str(recording), option, str(path), "--from", "10", "--to", "12"]) == 2
        lines = capfd.readouterr().err.splitlines()
        assert len(lines) == 1
        assert "exists already" in lines[0]
    assert {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before
    assert main(["export", str(recording), "--jsonl", str(tmp_path / "a.jsonl"), "--force"]) == 0
    assert len(list(read_jsonl(tmp_path / "a.jsonl"))) == STEPS


@pytest.mark.parametrize(("arguments", "says"), [
    ([], "--perfetto OUT"),
    (["--video", "{tmp}/a.mp4"], "--from A and --to B"),
    (["--video", "{tmp}/a.mp4", "--from", "5", "--to", "3"], "comes after"),
    (["--video", "{tmp}/a.mp4", "--from", "0", "--to", "300"], "the run has steps 0 to 299"),
    (["--video", "{tmp}/a.mov", "--from", "0", "--to", "3"], "name it .mp4"),
    (["--video", "{tmp}/a.mp4", "--from", "0", "--to", "3", "--size", "big"], "big is no size"),
    (["--video", "{tmp}/a.mp4", "--from", "0", "--to", "3", "--fps", "0"], "'0'"),
    (["--jsonl", "{tmp}/b.jsonl", "--video", "{tmp}/a.mov", "--from", "0", "--to", "3"], "name it .mp4"),
    (["--perfetto", "{tmp}/no/such.pftrace"], "no folder"),
    (["--perfetto", "{tmp}"], "is a folder"),
    (["--csv", "{tmp}/no/such"], "cannot be made"),
    (["--jsonl", "/proc/a.jsonl"], "/proc/a.jsonl"),
    (["--jsonl", "{tmp}/a.jsonl", "--from", "x"], "'x'"),
])
def test_bad_arguments_are_refused_in_one_line_and_write_nothing(
        arguments: list[str], says: str, recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status = main(["export", str(recording), *(a.replace("{tmp}", str(tmp_path)) for a in arguments)])
    err = capfd.readouterr().err
    assert status in (1, 2)
    assert says in err
    assert len(err.splitlines()) == 1, err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_may_not_be_written(recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str],
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    if os.access(folder, os.W_OK):  # an administrator may write everywhere: let the system say what it would
        real = Path.open

        def refusing(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
            if path.parent == folder and mode != "r":
                raise PermissionError(13, "Permission denied")
            return real(path, mode, *rest, **more)

        monkeypatch.setattr(Path, "open", refusing)
    for option, name in (("--perfetto", "a.pftrace"), ("--jsonl", "a.jsonl"), ("--csv", ""), ("--video", "a.mp4")):
        status = main(["export", str(recording), option, str(folder / name), "--from", "0", "--to", "3"])
        err = capfd.readouterr().err
        assert status == 2
        assert len(err.splitlines()) == 1, err
        assert "may not be written" in err
    folder.chmod(0o700)
    assert not list(folder.iterdir())


def test_damage_that_shows_late_and_an_interruption_leave_nothing_behind(
        recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    real = export_jsonl.__globals__["events_of"]
    for failure, status in ((RecordingError("Step 90 cannot be shown"), 1), (KeyboardInterrupt(), 130)):
        def events_of(source: Any, step: int, failure: BaseException = failure) -> Any:
            if step == 90:
                raise failure
            return real(source, step)

        for module in ("jsonl", "perfetto", "tables"):
            monkeypatch.setattr(f"engine.trace.export.{module}.events_of", events_of)
        for option in ("--jsonl", "--perfetto", "--csv"):
            assert main(["export", str(recording), option, str(tmp_path / "out")]) == status
            lines = [line for line in capfd.readouterr().err.splitlines() if "%" not in line]
            assert len(lines) == (status == 1), lines
            assert not list(tmp_path.iterdir())


# ---- the window ------------------------------------------------------------------------------------------------------


def dialog_of(window: MainWindow) -> ExportDialog:
    window.exporting.show_dialog()
    assert window.exporting.dialog is not None
    return window.exporting.dialog


def choose(dialog: ExportDialog, kind: str) -> None:
    dialog.what.setCurrentIndex(dialog.what.findData(kind))


@pytest.mark.parametrize("kind", ["perfetto", "csv", "jsonl", "mp4", "gif"])
def test_the_window_exports_a_recording(kind: str, window: MainWindow, recording: Path, run: LiveHistory,
                                        tmp_path: Path, qtbot: Any) -> None:
    window.open_recording(recording, play=False)
    window.with_session("seek", 290)
    qtbot.waitUntil(lambda: window.transport.status.step == 290)
    dialog = dialog_of(window)
    choose(dialog, kind)
    target = tmp_path if kind == "csv" else tmp_path / f"a.{kind}"
    if kind in ("mp4", "gif"):
        assert (dialog.first.value(), dialog.last.value()) == (200, 299), "where we look, as far as there is room"
        dialog.size_box.setEditText("480x320")
        dialog.first.setValue(297)
        dialog.fps.setValue(4)
    else:
        assert (dialog.first.value(), dialog.last.value()) == (0, 299)
        assert not dialog.size_box.isVisible()
    dialog.start(target)
    qtbot.waitUntil(lambda: str(target) in window.banner.text, timeout=20000)
    qtbot.waitUntil(lambda: window.exporting.dialog is None)
    if kind in ("mp4", "gif"):
        assert len(frames(target)) == 3
    elif kind == "jsonl":
        assert len(list(read_jsonl(target))) == STEPS
    else:
        assert (target / "requests.csv" if kind == "csv" else target).stat().st_size > 1000


def test_the_window_goes_on_while_it_exports_and_the_export_can_be_cancelled(
        window: MainWindow, recording: Path, tmp_path: Path, qtbot: Any) -> None:
    window.open_recording(recording, play=False)
    dialog = dialog_of(window)
    choose(dialog, "mp4")
    dialog.start(tmp_path / "a.mp4")
    qtbot.waitUntil(lambda: dialog.view.bar.value() > 5, timeout=20000)
    assert list(tmp_path.glob(".a.mp4*"))
    window.with_session("seek", 77)
    qtbot.waitUntil(lambda: window.transport.status.step == 77)
    assert dialog.task.busy
    assert not dialog.what.isEnabled()
    dialog.cancel_button.click()
    assert not dialog.task.busy
    assert "Cancelled" in dialog.view.line.text()
    assert not list(tmp_path.glob("*a.mp4*"))
    assert dialog.what.isEnabled()
    dialog.cancel_button.click()
    qtbot.waitUntil(lambda: window.exporting.dialog is None)


def test_an_export_outlives_its_session_and_ends_with_the_window(window: MainWindow, recording: Path, tmp_path: Path,
                                                                 qtbot: Any) -> None:
    window.open_recording(recording, play=False)
    dialog = dialog_of(window)
    choose(dialog, "mp4")
    dialog.start(tmp_path / "a.mp4")
    qtbot.waitUntil(lambda: dialog.view.bar.value() > 2, timeout=20000)
    window.open_recording(recording, play=False)
    before = dialog.view.bar.value()
    qtbot.waitUntil(lambda: dialog.view.bar.value() > before, timeout=20000)
    window.close()
    qtbot.waitUntil(lambda: not list(tmp_path.glob("*a.mp4*")))


def test_a_live_run_is_exported_while_it_runs(window: MainWindow, live: Callable[..., LiveSession], tmp_path: Path,
                                              qtbot: Any) -> None:
    session = live()
    qtbot.waitUntil(lambda: session.time.step > 60, timeout=20000)
    for kind in ("jsonl", "perfetto", "gif"):
        dialog = dialog_of(window)
        choose(dialog, kind)
        first, last = dialog.first.value(), dialog.last.value()
        if kind == "gif":
            dialog.size_box.setEditText("480x320")
            first, last = last - 2, last
            dialog.first.setValue(first)
            dialog.fps.setValue(5)
        dialog.start(tmp_path / f"a.{kind}")
        qtbot.waitUntil(lambda kind=kind: str(tmp_path / f"a.{kind}") in window.banner.text, timeout=20000)
        if kind == "jsonl":
            assert [e.step for e in read_jsonl(tmp_path / f"a.{kind}")] == list(range(first, last + 1))
            assert last >= 60
    assert session.engine.status == "running"


def test_refusals_are_said_in_the_dialog(window: MainWindow, recording: Path, tmp_path: Path, qtbot: Any) -> None:
    window.exporting.show_dialog()
    assert window.exporting.dialog is None
    assert "nothing to export" in window.banner.text
    window.open_recording(recording, play=False)
    window.set_language("zh")
    dialog = dialog_of(window)
    dialog.start(tmp_path / "no" / "a.pftrace")
    qtbot.waitUntil(lambda: str(tmp_path / "no") in dialog.view.line.text())
    assert dialog.view.line.property("role") == "bad"
    assert "There is no folder" not in dialog.view.line.text()
    choose(dialog, "mp4")
    dialog.size_box.setEditText("large")
    dialog.start(tmp_path / "a.mp4")
    qtbot.waitUntil(lambda: "large" in dialog.view.line.text())
    assert not list(tmp_path.glob("*a.*"))
    dialog.cancel_button.click()
    qtbot.waitUntil(lambda: window.exporting.dialog is None)
    window.set_language("en")


def test_an_export_never_replaces_a_recording(window: MainWindow, recording: Path, tmp_path: Path, qtbot: Any,
                                              capfd: pytest.CaptureFixture[str]) -> None:
    """Neither the one that is exported nor any other, whatever was said about replacing."""
    mine = tmp_path / "a.mcap"
    mine.write_bytes(recording.read_bytes())
    (tmp_path / "link").symlink_to(mine)
    for option in ("--perfetto", "--jsonl"):
        for target in (mine, tmp_path / "link", recording):
            assert main(["export", str(mine), option, str(target), "--force"]) == 2
            assert "is a recording, which no export replaces" in capfd.readouterr().err
    same = ["--perfetto", str(tmp_path / "x"), "--jsonl", str(tmp_path / "x"), "--force"]
    assert main(["export", str(mine), *same]) == 2
    assert "one for each" in capfd.readouterr().err
    window.open_recording(mine, play=False)
    dialog = dialog_of(window)
    dialog.start(mine, overwrite=True)
    qtbot.waitUntil(lambda: "is a recording" in dialog.view.line.text())
    picture = mine.rename(tmp_path / "a.png")
    window.exporting.save(window.panels["token_budget"], picture, overwrite=True)
    assert "is a recording" in window.banner.text
    assert picture.read_bytes() == recording.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".ini") == ["a.png", "link"]
    dialog.cancel_button.click()


def test_the_dialog_speaks_another_language_at_once(window: MainWindow, recording: Path, tmp_path: Path,
                                                    qtbot: Any) -> None:
    window.open_recording(recording, play=False)
    dialog = dialog_of(window)
    dialog.start(tmp_path / "no" / "a.pftrace")
    qtbot.waitUntil(lambda: "There is no folder" in dialog.view.line.text())
    window.set_language("zh")
    qtbot.waitUntil(lambda: dialog.start_button.text() == "导出…")
    assert "There is no folder" not in dialog.view.line.text()
    assert str(tmp_path / "no") in dialog.view.line.text()
    assert dialog.cancel_button.text() == "关闭"
    window.set_language("en")
    qtbot.waitUntil(lambda: dialog.windowTitle() == "Export")
    dialog.cancel_button.click()
