"""What the window shows of a run on a GPU, and only of one: knobs of the device, how steps ran, where memory went."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.main_window import MainWindow
from app.run_facts import about_run
from app.session import LiveSession
from engine.clock import RunClock
from engine.config import SCHEDULER_KNOBS, SchedulerConfig
from engine.core import Engine
from engine.plan import StepPlan
from engine.trace.events import MachineInfo, MemoryInfo, ModelInfo, RunInfo
from engine.trace.history import LiveHistory
from engine.trace.knobs import KnobValue
from engine.worker import RunSpec
from tests.app.live import BUSY, TimedRunner, TokenThread, TokenWorkload
from tests.engine.tiny_tokenizer import make_tokenizer
from widgets.inspector_facts import mode_text, step_facts

MEMORY = MemoryInfo(weights=2_500_000_000, pool=30_000_000_000, total=80_000_000_000, utilization=0.9,
                    activations=1_200_000_000, graphs=300_000_000, other=700_000_000)
SPEC = RunSpec(scenario="shared-prefix", knobs=BUSY, device="cuda")


class GraphRunner(TimedRunner):
    """Says what a runner on a GPU does of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.step_mode = ""
        self._eager = False

    def set_knob(self, name: str, value: KnobValue) -> None:
        super().set_knob(name, value)
        self._eager = bool(value) if name == "enforce_eager" else self._eager

    def execute(self, plan: StepPlan) -> list[int]:
        decode = all(s.num_tokens == 1 for s in plan.scheduled)
        self.step_mode = f"graph {len(plan.scheduled)}" if decode and not self._eager else "eager"
        return super().execute(plan)


class GpuThread(TokenThread):
    def _load(self) -> bool:
        runner = GraphRunner()
        knobs = self.spec.all_knobs(None)
        self._tokenizer = make_tokenizer(self._folder)
        config = SchedulerConfig().with_knobs({n: v for n, v in knobs.items() if n in SCHEDULER_KNOBS})
        self.clock = RunClock()
        self._engine = Engine(runner, self._tokenizer, config, knobs, self.clock)
        self._workload = TokenWorkload(self.spec.seed)  # type: ignore[assignment]
        model = ModelInfo("Some-Model-8B", architecture="LlamaForCausalLM", num_parameters=8_000_000_000, num_layers=32,
                          num_heads=32, num_kv_heads=8, head_size=128, dtype="bfloat16", bytes_per_token=131_072)
        self.info = RunInfo(1, "test", "2026-01-01T00:00:00+00:00", 0, model, MachineInfo(device="Some GPU", threads=1),
                            "shared-prefix", 0, 2048, knobs, memory=MEMORY, path="triton (cuda)")
        self.status = "running"
        self.loaded.set()
        return True


@pytest.fixture
def on_gpu(window: MainWindow, tmp_path: Path, qtbot: Any) -> Callable[[], LiveSession]:
    def start() -> LiveSession:
        session = LiveSession(SPEC, engine=GpuThread(SPEC, tmp_path / "tokens"))
        window.show_session(session)
        session.start()
        qtbot.waitUntil(lambda: session.time.step > 10)
        return session

    return start


def shown(window: MainWindow) -> bool:
    return all(window.knobs.control(name).isVisibleTo(window) for name in ("enforce_eager", "overlap"))


def steps_of(session: LiveSession) -> list[str]:
    history = session.source
    assert isinstance(history, LiveHistory)
    return [history.events(s).mode for s in range(history.last_step + 1)]


def test_knobs_of_the_device_are_there_and_act(window: MainWindow, on_gpu: Any, live: Any, qtbot: Any) -> None:
    session = on_gpu()
    assert shown(window)
    assert window.knobs.control("enforce_eager").isEnabled()
    qtbot.waitUntil(lambda: any(mode.startswith("graph") for mode in steps_of(session)))
    window.knobs._turned("enforce_eager", True)
    qtbot.waitUntil(lambda: session.view.state.knobs.get("enforce_eager") is True)
    turned = max(s for s in range(session.source.last_step + 1)
                 if any(k.name == "enforce_eager" for k in session.source.events(s).knobs))
    qtbot.waitUntil(lambda: session.source.last_step > turned + 20)
    assert set(steps_of(session)[turned + 1:]) <= {"eager", ""}
    live()  # and then a run on the CPU
    assert not shown(window)
    assert window.knobs.control("max_num_seqs").isVisibleTo(window)


def test_a_recording_shows_them_as_they_were(window: MainWindow, on_gpu: Any, recording: Path, qtbot: Any,
                                             tmp_path: Path) -> None:
    session = on_gpu()
    session.start_recording(tmp_path / "gpu.mcap")
    last = session.time.step
    qtbot.waitUntil(lambda: session.time.step > last + 20)
    session.stop_recording()
    qtbot.waitUntil(lambda: not session.recorder.is_alive())
    window.open_recording(recording, play=False)  # of the CPU
    assert not shown(window)
    window.open_recording(tmp_path / "gpu.mcap", play=False)
    assert shown(window)
    assert not window.knobs.control("overlap").isEnabled()
    source = window.session.source
    assert {source.events(s).mode.split(" ")[0] for s in range(source.first_step, source.last_step + 1)} >= {"eager"}
    assert source.info.memory == MEMORY


def test_the_strip_and_the_inspector_say_how_a_step_ran(window: MainWindow, on_gpu: Any, live: Any, qtbot: Any) -> None:
    session = on_gpu()
    session.toggle_play()
    qtbot.waitUntil(lambda: session.engine.status == "paused")
    qtbot.waitUntil(lambda: session.view is not None and session.view.events is not None)
    graph = next(s for s, mode in enumerate(steps_of(session)) if mode.startswith("graph"))
    session.seek(graph)
    qtbot.waitUntil(lambda: session.view.state.step == graph)
    mode = session.view.events.mode
    items = {i.label: i for i in window.strip_feed._left(5.0)}
    assert items["step"].value == mode
    assert "enforce_eager" in items["step"].tooltip
    facts = dict(step_facts(session.view.events, session.view.state))
    assert facts["forward pass"] == f"CUDA graph of size {mode.split()[1]}"
    cpu = live()
    qtbot.waitUntil(lambda: cpu.time.step > 5)
    assert "step" not in {i.label for i in window.strip_feed._left(5.0)}
    assert "forward pass" not in dict(step_facts(cpu.view.events, cpu.view.state))


@pytest.mark.parametrize(("mode", "text"), [
    ("eager", "eager, kernel by kernel"), ("graph 8", "CUDA graph of size 8"),
    ("capture 16", "CUDA graph of size 16, captured on the way"),
    ("graph", "graph"), ("eager 3", "eager 3"), ("{size}", "{size}"), ("of a later version", "of a later version")])
def test_modes_in_words(qapp: Any, mode: str, text: str) -> None:
    assert mode_text(mode) == text


def test_the_title_tells_of_the_run(window: MainWindow, on_gpu: Any, live: Any, qtbot: Any) -> None:
    session = on_gpu()
    qtbot.waitUntil(lambda: "Some GPU" in window.transport.title.toolTip())
    tip = window.transport.title.toolTip()
    for part in ("8.0B parameters", "32 layers", "triton (cuda)", "weights 2.5 GB", "KV pool 30.0 GB",
                 "CUDA graphs about 300.0 MB", "gpu_memory_utilization 0.9", "80.0 GB"):
        assert part in tip
    assert session.source is not None
    little = msgspec.structs.replace(session.source.info, memory=MemoryInfo(weights=5_000_000), path="",
                                     machine=MachineInfo(device="cpu", processor="P", cores=4, threads=3))
    assert about_run(little).endswith("on P, threads: 3 on 4 cores\nmemory at the start: weights 5.0 MB")
    nothing = replace_info(little, model=ModelInfo("m"), machine=MachineInfo(), memory=None)
    assert about_run(nothing) == "m"
    window.set_language("zh")
    qtbot.waitUntil(lambda: "显存" in window.transport.title.toolTip() or "内存" in window.transport.title.toolTip())
    assert not re.search("[a-z]{3,} [a-z]{3,} [a-z]{3,}", window.transport.title.toolTip())
    window.set_language("en")


def replace_info(info: RunInfo, **changes: Any) -> RunInfo:
    return msgspec.structs.replace(info, **changes)


def test_another_scenario_stays_on_the_device(window: MainWindow, monkeypatch: pytest.MonkeyPatch, qtbot: Any,
                                              tmp_path: Path) -> None:
    monkeypatch.setattr("app.session.EngineThread", lambda spec, models: GpuThread(spec, tmp_path / "tokens"))
    window.start_live(replace(SPEC, gpu_memory_utilization=0.5))
    window.start_scenario("burst")
    session = window.session
    assert isinstance(session, LiveSession)
    assert (session.spec.device, session.spec.gpu_memory_utilization) == ("cuda", 0.5)
    assert shown(window)
    qtbot.waitUntil(lambda: session.time.step > 3)


def test_a_run_on_a_gpu_can_be_run_again_with_the_knobs_of_one(window: MainWindow, on_gpu: Any, live: Any,
                                                               qtbot: Any) -> None:
    session = on_gpu()
    session.toggle_play()
    dialog = window.comparing.rerun()
    assert dialog is not None
    assert {"enforce_eager", "overlap", "num_blocks"} <= set(dialog.controls)
    dialog.controls["enforce_eager"].value_changed.emit(True)
    assert dialog.changes == {"enforce_eager": True}
    dialog.close()
    sweep = window.comparing.sweep()
    assert sweep.knobs[0].findData("enforce_eager") >= 0
    sweep.workload.setCurrentIndex(sweep.workload.count() - 1)  # a scenario: that is run on the CPU
    assert sweep.knobs[0].findData("enforce_eager") < 0
    sweep.close()
    window.comparing.shut_down()
    cpu = live()
    qtbot.waitUntil(lambda: cpu.time.step > 3)
    other = window.comparing.rerun()
    assert other is not None
    assert "enforce_eager" not in other.controls
    other.close()
    window.comparing.shut_down()
