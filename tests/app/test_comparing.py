"""The windows beside the main one: a workload run again, the comparison, the sweep. Only the model is not real."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication

import app.comparing
from app.compare_window import CompareWindow
from app.main_window import MainWindow
from app.rerun_dialog import RerunDialog
from app.session import LiveSession
from engine.align import by_step
from engine.trace.reader import open_recording
from tests.engine.recorded_runs import engine_run, make_model, save
from tests.engine.tiny_tokenizer import make_tokenizer
from widgets.theme import themes


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def made(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(engine_run(tokenizer, 6, requests=14), tmp_path_factory.mktemp("made") / "made.mcap")


@pytest.fixture
def ready(window: MainWindow, tokenizer: Any, made: Path, tmp_path: Path,
          monkeypatch: pytest.MonkeyPatch) -> Iterator[MainWindow]:
    """A window that shows a recording, with models and folders for tests."""
    folder = tmp_path / "recordings"
    monkeypatch.setattr(app.comparing, "recordings_folder", lambda: folder)
    window.comparing.load = lambda info, job: make_model(tokenizer)
    shown = tmp_path / "shown.mcap"
    shutil.copy(made, shown)
    assert window.open_recording(shown, play=False)
    yield window
    window.comparing.shut_down()
    assert not window.comparing.windows


def find(window: MainWindow, kind: type) -> Any:
    return next((w for w in window.comparing.windows if isinstance(w, kind)), None)


def test_run_again_is_one_action_and_ends_in_the_comparison(ready: MainWindow, qtbot: Any, tmp_path: Path) -> None:
    dialog = ready.comparing.rerun()
    assert dialog is not None
    assert "No knob differs" in dialog.changed.text()
    dialog.controls["max_num_batched_tokens"].value_changed.emit(24)
    assert dialog.changes == {"max_num_batched_tokens": 24}
    assert "max_num_batched_tokens 64 → 24" in dialog.changed.text()
    dialog.run_button.click()
    assert not dialog.controls["num_blocks"].isEnabled()
    qtbot.waitUntil(lambda: find(ready, CompareWindow) is not None, timeout=20_000)
    compared = find(ready, CompareWindow)
    assert find(ready, RerunDialog) is None
    assert compared.comparison.knobs() == [("max_num_batched_tokens", 64, 24)]
    files = list((tmp_path / "recordings").iterdir())
    assert [f.name.startswith("shown-rerun-") for f in files] == [True]
    assert ready.settings.recent[0] == files[0]
    qtbot.waitUntil(lambda: "requests in both" in compared.table.note, timeout=10_000)
    assert any(row.words.startswith("higher by") and row.verdict == "" for row in compared.table.rows)


def test_cancelling_a_rerun_leaves_nothing(ready: MainWindow, qtbot: Any, tmp_path: Path, tokenizer: Any) -> None:
    dialog = ready.comparing.rerun()
    assert dialog is not None

    loading: list[Any] = []

    def load(info: object, job: Any) -> Any:
        loading.append(job)
        job.cancel.wait(10)
        return make_model(tokenizer)

    dialog._load = load
    dialog.run_button.click()
    qtbot.waitUntil(lambda: bool(loading), timeout=10_000)
    assert dialog.close_button.text() == "Cancel"
    dialog.close_button.click()
    qtbot.waitUntil(lambda: not dialog.busy, timeout=10_000)
    assert "nothing was kept" in dialog.view.line.text()
    assert dialog.run_button.isEnabled()
    assert not list(tmp_path.glob("recordings/*"))
    assert find(ready, CompareWindow) is None

    def broken(info: object, job: Any) -> Any:
        raise OSError("no such model")

    dialog._load = broken
    dialog.run_button.click()
    qtbot.waitUntil(lambda: "no such model" in dialog.view.line.text(), timeout=10_000)
    dialog.close()


def test_a_live_run_waits_while_another_is_timed(window: MainWindow, live: Callable[..., LiveSession], qtbot: Any,
                                                 tokenizer: Any, tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.comparing, "recordings_folder", lambda: tmp_path / "recordings")
    window.comparing.load = lambda info, job: make_model(tokenizer)
    assert window.comparing.rerun() is None
    assert window.banner.isVisible()
    session = live()
    qtbot.waitUntil(lambda: session.time.step > 60)
    dialog = window.comparing.rerun()
    assert dialog is not None
    dialog.turn("max_num_seqs", 4)
    dialog.run_button.click()
    qtbot.waitUntil(lambda: session.engine.status == "paused" or not dialog.busy, timeout=10_000)
    qtbot.waitUntil(lambda: find(window, CompareWindow) is not None, timeout=20_000)
    compared = find(window, CompareWindow)
    seen = compared.comparison.first.series.n
    qtbot.waitUntil(lambda: compared.comparison.first.series.n > seen, timeout=10_000)  # it goes on, and is followed
    qtbot.waitUntil(lambda: len(compared.alignment) > 0 and compared._lengths[0] > seen, timeout=10_000)
    compared.close()
    assert session.source is not None
    assert session.source.events(0).step == 0  # closing the comparison has not closed the run


@pytest.fixture
def compared(ready: MainWindow, made: Path, tokenizer: Any, tmp_path: Path, qtbot: Any) -> CompareWindow:
    from engine.recorded_workload import read_workload
    from engine.rerun import rerun

    source = open_recording(made)
    rerun(read_workload(source), {"max_num_batched_tokens": 24, "num_blocks": 90}, tmp_path / "b.mcap",
          make_model(tokenizer))
    source.close()
    window = ready.comparing.compare(tmp_path / "b.mcap", notes=("12 requests are not there",))
    assert window is not None
    qtbot.waitUntil(lambda: window._gathered, timeout=10_000)
    return window


def test_space_plays_from_the_beginning(compared: CompareWindow, qtbot: Any) -> None:
    compared.activateWindow()
    qtbot.waitUntil(lambda: QApplication.focusWidget() is not None and QApplication.focusWidget().window() is compared)
    qtbot.keyClick(QApplication.focusWidget(), Qt.Key.Key_Space)
    assert compared.playing
    qtbot.keyClick(QApplication.focusWidget(), Qt.Key.Key_End)
    assert compared.position == len(compared.alignment) - 1


def test_one_slider_moves_both(compared: CompareWindow) -> None:
    first, second = compared.sides
    assert compared.note.text() == "12 requests are not there"
    compared.sync.choose("step")
    assert len(compared.alignment) == len(by_step(first.source, second.source))
    compared.slider.setValue(30)
    assert (first.session.view.state.step, second.session.view.state.step) == (30, 30)  # type: ignore[union-attr]
    assert first.block_table.value
    assert first.block_table.value != second.block_table.value
    compared.sync.choose("time")
    assert first.session.time.step == 30  # aligned anew, the first run stays where it is
    ends = [side.source.series.end_ns for side in compared.sides]
    steps = compared.alignment.steps(compared.position)
    assert steps[1] == 0 or ends[1][steps[1]] <= ends[0][steps[0] + 1]  # before its first step's end it is at that
    compared.move_by(1)
    compared.go_to(10**9)
    assert [s.session.time.step for s in compared.sides] == [s.source.last_step for s in compared.sides]
    first.selection.step_requested.emit(5)
    assert first.session.time.step == 5


def test_by_a_request_both_are_as_far_with_it(compared: CompareWindow) -> None:
    delta = max(compared._deltas, key=lambda d: d.first.output_tokens)
    compared.choose_request(delta.first.request_id)
    assert compared.sync.current == "request"
    assert compared.sides[1].selection.request_id == delta.second.request_id
    for position in range(0, len(compared.alignment), 3):
        compared.go_to(position)
        far = []
        for side, figures in zip(compared.sides, (delta.first, delta.second), strict=True):
            state = side.session.view.state  # type: ignore[union-attr]
            far.append(len(state.requests[figures.request_id].output_token_ids)
                       if figures.request_id in state.requests else None)
        if position and None not in far:
            assert abs(far[0] - far[1]) <= 1  # type: ignore[operator]
    other = compared._deltas[2].first.request_id
    compared.sides[0].selection.select(request_id=other)
    assert compared.sides[1].selection.request_id == compared._deltas[2].second.request_id


def test_playing_visits_the_end_and_stops_there(compared: CompareWindow, qtbot: Any) -> None:
    compared.sync.choose("step")
    compared.go_to(len(compared.alignment) - 6)
    compared.toggle_play()
    qtbot.waitUntil(lambda: not compared.playing, timeout=10_000)
    assert compared.position == len(compared.alignment) - 1
    compared.sync.choose("time")
    compared.go_to(0)
    compared.toggle_play()
    assert compared.play_button.icon_name == "pause"
    qtbot.waitUntil(lambda: not compared.playing, timeout=20_000)
    assert compared.position == len(compared.alignment) - 1
    assert compared.play_button.icon_name == "play"


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_the_comparison_speaks_both_languages_in_both_themes(ready: MainWindow, compared: CompareWindow, qtbot: Any,
                                                             theme: str) -> None:
    themes.set(theme)
    for size in ((960, 600), (1600, 1000)):
        compared.resize(*size)
        for chart in (compared.distribution, compared.curves, compared.delta_chart):
            for value, _ in list(chart.tabs._options):
                chart.tabs.choose(value)
                compared.grab()
                assert not chart.failure
    words = [row.words for row in compared.table.rows]
    ready.set_language("zh")
    qtbot.waitUntil(lambda: compared.table.title == "有何变化")
    assert all(a != b for a, b in zip(words, (row.words for row in compared.table.rows), strict=True))
    assert "对齐" in compared.sync_label.text()
    ready.set_language("en")


def test_a_recording_that_is_none_is_refused(ready: MainWindow, tmp_path: Path) -> None:
    (tmp_path / "x.mcap").write_bytes(b"nothing")
    assert ready.comparing.compare(tmp_path / "x.mcap") is None
    assert ready.banner.isVisible()


def test_a_sweep_fills_its_table_and_opens_what_is_chosen(ready: MainWindow, qtbot: Any, tmp_path: Path) -> None:
    sweep = ready.comparing.sweep()
    sweep.ranges[0].setText("24..9999")
    assert not sweep.run_button.isEnabled()
    assert "max_num_batched_tokens" in sweep.view.line.text()
    sweep.ranges[0].setText("24, 64")
    sweep.knobs[1].setCurrentIndex(sweep.knobs[1].findData("num_blocks"))
    sweep.ranges[1].setText("60, 120")
    assert sweep.run_button.isEnabled()
    assert sweep.count.text() == "4 runs"
    sweep.run_button.click()
    assert sweep.run_button.text() == "Cancel"
    qtbot.waitUntil(lambda: not sweep.busy, timeout=30_000)
    assert len(sweep.points) == sweep.table.rowCount() == 4
    assert "recordings are in" in sweep.view.line.text()
    assert any(sweep.table.item(row, sweep.table.columnCount() - 1).text() == "best" for row in range(4))
    kept = json.loads((sweep.folder / "sweep.json").read_text("utf-8"))
    assert [row["knobs"] for row in kept["points"]] == [p.knobs for p in sweep.points]
    plot = sweep.chart.plot_rect(sweep.chart.content_rect())
    place = sweep.chart.places(plot)[2]
    assert place is not None
    qtbot.mouseClick(sweep.chart, Qt.MouseButton.LeftButton, pos=place.toPoint())
    assert sweep.table.currentRow() == 2
    sweep.open_button.click()
    assert ready.session is not None
    assert ready.session.source is not None
    assert ready.session.source.info.knobs["max_num_batched_tokens"] == sweep.points[2].knobs["max_num_batched_tokens"]
    ready.set_language("zh")
    qtbot.waitUntil(lambda: sweep.run_button.text() == "运行")
    ready.set_language("en")
    assert sweep.chart.failure == ""


def test_cancelling_a_sweep_keeps_what_is_done(ready: MainWindow, qtbot: Any) -> None:
    sweep = ready.comparing.sweep()
    sweep.ranges[0].setText("16..200:30")
    sweep.run_button.click()
    qtbot.waitUntil(lambda: len(sweep.points) >= 1, timeout=20_000)
    sweep.run_button.click()
    qtbot.waitUntil(lambda: not sweep.busy, timeout=20_000)
    assert 1 <= len(sweep.points) < 30
    assert "Cancelled." in sweep.view.line.text()
    assert len(list(sweep.folder.glob("*.mcap"))) == len(sweep.points)
