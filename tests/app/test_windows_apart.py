"""The windows beside the main one under strain: closed in mid-work, over files that change, many at once."""

from __future__ import annotations

import gc
import json
import os
import random
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from PySide6.QtCore import QEvent, QMimeData, QPointF, Qt, QUrl
from PySide6.QtGui import QDropEvent
from PySide6.QtWidgets import QCheckBox, QDialog, QLabel

import app.comparing
from app.compare_window import CompareWindow
from app.main_window import MainWindow
from app.rerun_dialog import RerunDialog
from app.session import LiveSession
from app.sweep_window import SweepWindow
from app.tasks import Cancelled, Going, Report, Task, in_thread
from engine.trace.recording import Recorder
from engine.worker import RunSpec
from tests.app.live import BUSY, TokenThread
from tests.engine.recorded_runs import engine_run, make_model, save
from tests.engine.tiny_tokenizer import make_tokenizer
from tests.robustness.soak_actions import Actions
from widgets.motion import Motion


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def base(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(engine_run(tokenizer, 6, requests=14), tmp_path_factory.mktemp("base") / "base.mcap")


@pytest.fixture(scope="module")
def other(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another workload, not a request of which is in the first."""
    knobs = {"num_blocks": 70, "block_size": 8, "max_num_batched_tokens": 40}
    return save(engine_run(tokenizer, 99, requests=9, knobs=knobs), tmp_path_factory.mktemp("other") / "other.mcap")


@pytest.fixture
def ready(window: MainWindow, tokenizer: Any, base: Path, tmp_path: Path,
          monkeypatch: pytest.MonkeyPatch) -> Iterator[MainWindow]:
    monkeypatch.setattr(app.comparing, "recordings_folder", lambda: tmp_path / "recordings")
    window.comparing.load = lambda info, job: make_model(tokenizer)
    assert window.open_recording(base, play=False)
    yield window
    window.set_language("en")
    window.comparing.shut_down()
    assert not window.comparing.windows
    assert not list(tmp_path.rglob("*.part*"))


def held_up(tokenizer: Any) -> tuple[Callable[..., Any], threading.Event]:
    """A loader whose model comes when it is told to, or the job is cancelled."""
    go = threading.Event()

    def load(info: object, job: Any) -> Any:
        while not go.wait(0.01) and not job.cancel.is_set():
            pass
        return make_model(tokenizer)

    return load, go


def jobs() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "job"]


# ---- the one way of working ------------------------------------------------------------------------------------------


def test_a_task_ends_once_however_it_ends(window: MainWindow, qtbot: Any) -> None:
    kept: list[threading.Thread] = []
    for how in ("done", "failed", "cancelled", "closed", "cancelled in its thread", "closed in its thread"):
        task = Task(window)
        heard: list[str] = []
        task.told.connect(lambda report, heard=heard: heard.append(report.text))
        task.done.connect(lambda result, heard=heard: heard.append(f"done {result}"))
        task.failed.connect(lambda failure, heard=heard: heard.append(f"failed {failure}"))
        task.cancelled.connect(lambda heard=heard: heard.append("cancelled"))
        task.ended.connect(lambda heard=heard: heard.append("ended"))
        tidied: list[bool] = []

        def work(job: Any, how: str = how) -> str:
            assert job.cancel.wait(10 if "thread" in how else 0.01) == ("thread" in how)
            if how == "failed":
                raise OSError("no")
            return "x" if not job.cancel.is_set() else ""

        def going(tidied: list[bool] = tidied) -> Going[str]:
            try:
                yield Report("reading", 0.5)
                return (yield from in_thread(lambda job: work(job) or None, lambda job: "running", kept.append)) or ""
            finally:
                tidied.append(True)

        task.start(going())
        if "thread" in how:
            qtbot.waitUntil(lambda heard=heard: "running" in heard, timeout=5000)
        if how.startswith("cancelled"):
            task.cancel()
            task.cancel()
        if how.startswith("closed"):
            task.close()
            task.close()
        qtbot.waitUntil(lambda task=task: not task.busy, timeout=5000)
        last = heard[heard.index("ended"):]
        assert last == {"done": ["ended", "done x"], "failed": ["ended", "failed no"],
                        "closed": ["ended"]}.get(how.split()[0], ["ended", "cancelled"]), how
        assert tidied == [True] * (how not in ("cancelled", "closed"))  # those came before the beginning
        for thread in kept:
            thread.join(5)
            assert not thread.is_alive()


def test_what_refuses_to_be_cancelled_is_cancelled_in_the_end(window: MainWindow, qtbot: Any) -> None:
    task, over = Task(window), threading.Event()

    def going() -> Going[None]:
        try:
            while True:
                yield Report("", None, wait=True)
        except Cancelled:
            while not over.is_set():
                yield Report("tidying up", None, wait=True)
            raise

    heard: list[str] = []
    task.told.connect(lambda report: heard.append(report.text))
    task.cancelled.connect(lambda: heard.append("cancelled"))
    task.start(going())
    qtbot.waitUntil(lambda: bool(heard), timeout=5000)
    task.cancel()
    qtbot.waitUntil(lambda: heard.count("tidying up") > 2, timeout=5000)
    over.set()
    qtbot.waitUntil(lambda: heard[-1] == "cancelled", timeout=5000)


# ---- closed in mid-work ----------------------------------------------------------------------------------------------


def test_windows_that_are_closed_in_mid_work_leave_nothing(ready: MainWindow, tokenizer: Any, qtbot: Any,
                                                           tmp_path: Path) -> None:
    ready.comparing.load, _ = held_up(tokenizer)
    dialog = ready.comparing.rerun()
    assert dialog is not None
    dialog.start()
    qtbot.waitUntil(lambda: bool(jobs()))
    dialog.close()
    assert dialog not in ready.comparing.windows
    qtbot.waitUntil(lambda: not jobs(), timeout=5000)
    sweep = ready.comparing.sweep()
    sweep.start()
    qtbot.waitUntil(lambda: bool(jobs()))
    sweep.close()
    qtbot.waitUntil(lambda: not jobs(), timeout=5000)
    ready.exporting.show_dialog()
    export = ready.exporting.dialog
    assert export is not None
    export.what.setCurrentIndex(export.what.findData("mp4"))
    export.start(tmp_path / "a.mp4")
    qtbot.waitUntil(lambda: export.view.bar.value() > 2, timeout=10_000)
    dialog = ready.comparing.rerun()  # and the program with all that goes on
    assert dialog is not None
    dialog.start()
    assert ready.comparing.compare(dialog._source.path) is not None  # type: ignore[attr-defined]
    qtbot.waitUntil(lambda: bool(jobs()))
    ready.close()
    assert ready.ended_cleanly
    assert not jobs()
    assert not list(tmp_path.glob("*a.mp4*"))
    assert not list(tmp_path.glob("recordings/*"))


def test_two_runs_are_not_timed_at_once(ready: MainWindow, tokenizer: Any, qtbot: Any) -> None:
    ready.comparing.load, go = held_up(tokenizer)
    dialog, sweep = ready.comparing.rerun(), ready.comparing.sweep()
    assert dialog is not None
    dialog.start()
    sweep.start()
    assert not sweep.busy
    assert "Another run is being timed" in sweep.view.line.text()
    ready.set_language("zh")
    qtbot.waitUntil(lambda: "另一次运行" in sweep.view.line.text())
    go.set()
    qtbot.waitUntil(lambda: dialog not in ready.comparing.windows, timeout=20_000)
    sweep.ranges[0].setText("64")
    sweep.start()
    assert sweep.busy
    qtbot.waitUntil(lambda: not sweep.busy, timeout=20_000)
    assert len(sweep.points) == 1


def test_a_place_that_cannot_be_written_is_named(ready: MainWindow, qtbot: Any,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.comparing, "recordings_folder", lambda: Path("/proc/no/such"))
    dialog, sweep = ready.comparing.rerun(), ready.comparing.sweep()
    assert dialog is not None
    dialog.start()
    qtbot.waitUntil(lambda: dialog.view.line.property("role") == "bad", timeout=10_000)
    assert "/proc/no/such cannot be written: No such file or directory" in dialog.view.line.text()
    assert dialog.run_button.isEnabled()
    sweep.start()
    qtbot.waitUntil(lambda: sweep.view.line.property("role") == "bad", timeout=10_000)
    assert "cannot be written" in sweep.view.line.text()

    def no_memory(info: object, job: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    ready.comparing.load = no_memory
    third = ready.comparing.rerun()
    assert third is not None
    third.start()
    qtbot.waitUntil(lambda: "Cannot allocate memory" in third.view.line.text(), timeout=10_000)


# ---- what is compared ------------------------------------------------------------------------------------------------


def look_about(compared: CompareWindow, qtbot: Any) -> None:
    """Everything that moves, in both sizes; nothing may fail."""
    qtbot.waitUntil(lambda: compared._gathered, timeout=10_000)
    for how in ("step", "time", "request", "step"):
        compared.sync.choose(how)
        for position in (len(compared.alignment) // 2, 10**9, 0):
            compared.go_to(position)
        compared.toggle_play()
        compared.tick()
        compared.move_by(-1)
    for delta in compared._deltas[:2]:
        compared.choose_request(delta.first.request_id)
    for size in ((960, 600), (1600, 1000)):
        compared.resize(*size)
        compared.grab()
    panels = (compared.table, compared.distribution, compared.curves, compared.delta_chart)
    assert not [p.failure for p in (*panels, *(p for s in compared.sides for p in (s.block_table, s.token_budget)))
                if p.failure]


def test_runs_that_have_little_in_common_are_compared_as_far_as_they_go(
        ready: MainWindow, base: Path, other: Path, tokenizer: Any, tmp_path: Path, qtbot: Any) -> None:
    history = engine_run(tokenizer, 6, requests=14)
    one = save(history, tmp_path / "one.mcap", 1)
    long = save(history, tmp_path / f"{'录像-эта-🎛️ ' * 8}and a name that no heading has room for.mcap")
    none = tmp_path / "none.mcap"
    assert Recorder(none, history.info).close()
    for first, second, both in ((base, other, 0), (base, one, None), (one, one, None), (other, one, 0),
                                (long, base, None)):
        assert ready.open_recording(first, play=False)
        qtbot.waitUntil(lambda: ready.session is not None and ready.session.source is not None)
        compared = ready.comparing.compare(second)
        assert compared is not None
        look_about(compared, qtbot)
        if both is not None:
            assert len(compared._deltas) == both
            compared.sync.choose("request")
            assert compared.sync.current != "request", "there is none to go by"
        compared.close()
    compared = ready.comparing.compare(none)
    assert compared is not None
    look_about(compared, qtbot)
    compared.close()
    assert ready.open_recording(none, play=False)
    assert ready.comparing.compare(base) is None
    assert "Nothing has run yet" in ready.banner.text


@pytest.mark.parametrize("how", ["cut off", "written over", "deleted"])
def test_a_recording_that_is_damaged_while_it_is_compared(ready: MainWindow, tokenizer: Any, tmp_path: Path, how: str,
                                                          qtbot: Any) -> None:
    path = save(engine_run(tokenizer, 7, requests=60), tmp_path / "b.mcap")
    compared = ready.comparing.compare(path)
    assert compared is not None
    if how == "deleted":
        path.unlink()  # which is still there for whoever has it open
        look_about(compared, qtbot)
        return
    with path.open("r+b") as file:
        if how == "cut off":
            file.truncate(path.stat().st_size // 4)
        else:
            file.seek(path.stat().st_size // 5)
            file.write(b"\xaa" * (path.stat().st_size // 2))
    qtbot.waitUntil(lambda: "The comparison ends here" in compared.note.text(), timeout=10_000)
    assert str(path) in compared.note.text()
    for sync in ("request", "step", "time"):
        compared.sync.choose(sync)
        compared.go_to(10**9)
        compared.grab()
    ready.set_language("zh")
    qtbot.waitUntil(lambda: "比较到此为止" in compared.note.text())


def test_windows_outlive_the_run_that_they_look_at(ready: MainWindow, live: Callable[..., LiveSession], base: Path,
                                                   qtbot: Any) -> None:
    session = live()
    qtbot.waitUntil(lambda: session.time.step > 80, timeout=20_000)
    first, second = ready.comparing.compare(base), ready.comparing.compare(base)
    dialog, sweep = ready.comparing.rerun(), ready.comparing.sweep()
    assert first is not None
    assert second is not None
    assert dialog is not None
    assert ready.open_recording(base, play=False)
    qtbot.waitUntil(lambda: session.engine.status == "stopped", timeout=10_000)
    for compared in (first, second):
        look_about(compared, qtbot)
    dialog.turn("max_num_seqs", 3)
    dialog.start()
    qtbot.waitUntil(lambda: dialog not in ready.comparing.windows, timeout=30_000)
    compared_with_it = [w for w in ready.comparing.windows if isinstance(w, CompareWindow)][-1]
    assert compared_with_it.comparison.first is session.source, "the run that was run again, not what is shown now"
    sweep.ranges[0].setText("64")
    sweep.start()
    qtbot.waitUntil(lambda: not sweep.busy, timeout=30_000)
    assert len(sweep.points) == 1
    ready.comparing.shut_down()
    assert session._held == 0


def test_memory_stays_where_it_was_after_many_windows(ready: MainWindow, other: Path, qtbot: Any) -> None:
    process = psutil.Process()

    def open_and_close(count: int) -> tuple[int, int]:
        for _ in range(count):
            compared = ready.comparing.compare(other)
            dialog = ready.comparing.rerun()
            assert compared is not None
            assert dialog is not None
            qtbot.waitUntil(lambda compared=compared: compared._gathered, timeout=10_000)
            compared.grab()
            compared.close()
            dialog.close()
            del compared, dialog
            qtbot.wait(1)
        gc.collect()
        return process.memory_info().rss, len(gc.get_objects())

    open_and_close(4)
    before = open_and_close(2)
    after = open_and_close(8)
    assert after[1] - before[1] < 2000, "objects; a window has about 2,600"
    assert after[0] - before[0] < 48 << 20, "a window has about 16 MB"


# ---- sweeps that were run before -------------------------------------------------------------------------------------


@pytest.fixture
def swept(ready: MainWindow, qtbot: Any) -> Path:
    """The file of a sweep of three points that was cancelled after one."""
    sweep = ready.comparing.sweep()
    sweep.ranges[0].setText("24, 48, 64")
    sweep.start()
    qtbot.waitUntil(lambda: len(sweep.points) >= 1, timeout=20_000)
    sweep.task.cancel()
    qtbot.waitUntil(lambda: not sweep.busy, timeout=20_000)
    if sweep.sweep is not None and not sweep.sweep.rest:  # it was quicker: as if it had not been
        path = sweep.folder / "sweep.json" if sweep.folder is not None else Path()
        said = json.loads(path.read_text("utf-8"))
        said["points"] = said["points"][:1]
        path.write_text(json.dumps(said), "utf-8")
    folder = sweep.folder
    sweep.close()
    assert folder is not None
    return folder / "sweep.json"


def sweep_window(window: MainWindow) -> SweepWindow:
    return next(w for w in window.comparing.windows if isinstance(w, SweepWindow))


@pytest.mark.parametrize("way", ["menu", "folder", "drop", "recent"])
def test_a_sweep_opens_again_in_every_way(ready: MainWindow, swept: Path, way: str, qtbot: Any,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "menu":
        monkeypatch.setattr("app.asking.QFileDialog.getOpenFileName", lambda *_: (str(swept), ""))
        ready.asking.choose_recording()
    elif way == "folder":
        ready.open_path(swept.parent)
    elif way == "drop":
        data = QMimeData()
        data.setUrls([QUrl.fromLocalFile(str(swept))])
        ready.dropEvent(QDropEvent(QPointF(5, 5), Qt.DropAction.CopyAction, data, Qt.MouseButton.LeftButton,
                                   Qt.KeyboardModifier.NoModifier, QEvent.Type.Drop))
    else:
        ready.settings.add_recent(swept)
        ready.commands.recent.aboutToShow.emit()
        entry = next(a for a in ready.commands.recent.actions() if a.text().endswith("sweep.json"))
        assert swept.parent.name in entry.text()
        entry.trigger()
    qtbot.waitUntil(lambda: any(isinstance(w, SweepWindow) for w in ready.comparing.windows))
    sweep = sweep_window(ready)
    assert sweep.table.rowCount() >= 1
    assert sweep.ranges[0].text() == "24, 48, 64"
    assert "the recording base" in sweep.workload.currentText()
    assert ready.settings.recent[0] == swept
    sweep.open_point(0)
    assert ready.session is not None
    assert ready.session.source is not None
    assert ready.session.source.info.knobs["max_num_batched_tokens"] == 24


def test_a_sweep_goes_on_after_its_folder_was_moved(ready: MainWindow, swept: Path, tmp_path: Path, qtbot: Any) -> None:
    moved = tmp_path / "moved 扫描"
    os.rename(swept.parent, moved)
    ready.open_path(moved / "sweep.json")
    sweep = sweep_window(ready)
    done = len(sweep.points)
    assert sweep.rest_button.isVisible()
    assert sweep.rest_button.text() == f"Run the {3 - done} that are left"
    sweep.rest_button.click()
    assert sweep.busy
    qtbot.waitUntil(lambda: not sweep.busy, timeout=30_000)
    assert len(sweep.points) == 3
    assert not sweep.rest_button.isVisible()
    assert {p.path.parent for p in sweep.points if p.path} == {moved}
    next(moved.glob("*.mcap")).unlink()
    ready.open_path(moved)
    again = [w for w in ready.comparing.windows if isinstance(w, SweepWindow)][-1]
    assert "no longer in" in again.view.line.text()
    assert again.table.rowCount() == 3


def test_a_file_that_is_no_sweep_is_refused_with_its_reason(ready: MainWindow, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a": 1}')
    ready.open_path(path)
    assert "no sweep of Cutaway" in ready.banner.text
    ready.open_path(tmp_path / "not there.json")
    assert "There is no file" in ready.banner.text
    assert not [w for w in ready.comparing.windows if not isinstance(w, RerunDialog)]


def test_dialogs_change_their_language_while_they_are_open(window: MainWindow, qtbot: Any) -> None:
    window.asking.show_settings()
    window.asking.show_about()
    window.asking.show_keys()
    dialogs = [d for d in window.findChildren(QDialog) if d.isVisible()]
    assert len(dialogs) == 3

    def texts(dialog: QDialog) -> list[str]:
        return [label.text() for label in dialog.findChildren(QLabel)] + [
            box.text() for box in dialog.findChildren(QCheckBox)] + [dialog.windowTitle()]

    before = [texts(d) for d in dialogs]
    def english() -> list[str]:
        return [text for dialog, texts_ in zip(dialogs, before, strict=True) for text in texts(dialog)
                if text in texts_ and re.search(r"[a-z]{2,} [a-z]{2,}", text)]

    assert len(english()) > 10
    window.set_language("zh")
    qtbot.waitUntil(lambda: not english(), timeout=5000)
    window.set_language("en")
    qtbot.waitUntil(lambda: [sorted(set(texts(d))) for d in dialogs] == [sorted(set(b)) for b in before], timeout=5000)
    for dialog in dialogs:
        dialog.close()


def test_whatever_is_done_in_whatever_order(window: MainWindow, tokenizer: Any, base: Path, tmp_path: Path, qtbot: Any,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """A short stretch of ``tests.robustness.soak``; everything but the model is real. pytest-qt fails it for an
    exception in any handler, the fixture for a thread that is left."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    for module in ("app.asking", "app.comparing", "app.main_window"):
        monkeypatch.setattr(f"{module}.recordings_folder", lambda: folder)
    monkeypatch.setattr("app.session.EngineThread", lambda spec, models=None: TokenThread(spec, tmp_path / "tokens"))
    window.comparing.load = lambda info, job: make_model(tokenizer)
    window.start_live(RunSpec(scenario="shared-prefix", knobs=BUSY))
    actions = Actions(window, folder, [base], random.Random(1), monkeypatch.setattr)
    monkeypatch.setattr(Motion, "enabled", True)  # and as it was afterwards
    try:
        for _ in range(150):
            actions.one()
            qtbot.wait(3)
    finally:
        window.docks.resize_type(0)
    failed = {name: panel.failure for name, panel in window.panels.items() if panel.failure}
    assert not failed
    window.set_language("en")
    window.close()
    assert not list(tmp_path.rglob("*.part*"))
