"""The check for a GPU runs to its end without one, and on a machine that lacks what only the window needs."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.gpu import stand_ins
from tests.gpu.check import PARTS, main
from tests.gpu.report import Report, Row, Section

ROOT = Path(__file__).resolve().parents[2]

ABSENT = ("PySide6", "pyqtgraph", "numba", "llvmlite", "gguf", "mcap", "zstandard", "msgspec", "psutil", "platformdirs",
          "perfetto", "av", "pytest", "hypothesis")  # fmt: skip
"""What the check must do without."""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_reduced_mode_runs_to_its_end(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nfor name in {ABSENT!r}:\n    sys.modules[name] = None\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.gpu.check", "--device", "cpu", "--json", str(tmp_path / "found.json")]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=390)
    print(run.stdout, run.stderr[-6000:])
    assert run.returncode == 0, "see the output above"
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["ok"]
    assert found["failures"] == []
    assert "mean nothing" in found["about"]["device"]
    assert found["about"]["stand-ins"].startswith("msgspec, psutil")
    assert not {"copy", "matrix product"} & found["about"].keys(), "no ceilings are measured on a CPU"
    rows = found["rows"]
    assert sum(row["ok"] is True for row in rows) >= 20
    assert not any(row["share"] for row in rows)
    names = {(row["section"], row["name"]) for row in rows}
    assert {section for section, _ in names} == {
        "kernels agree with float32", "the engine is right", "kernels", "tiny", "tiny serving"}
    assert {("tiny", f"decode, batch {batch}, context 20") for batch in (1, 3)} <= names
    assert {("tiny serving", f"2 requests, {mode}") for mode in
            ("graphs", "no graphs", "graphs, overlap", "transformers")} <= names  # fmt: skip
    assert all(row["seconds"] > 0 for row in rows if row["ok"] is None)


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert main([]) == 2
    assert "no usable NVIDIA GPU" in capsys.readouterr().err


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(["--device", "cpu"]) == 2
    assert "Missing here: transformers. Needed are numpy, torch" in capsys.readouterr().err


def _child_of(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Parts are ``program`` from now on."""
    plain = subprocess.Popen

    def popen(command: list[str], **options: Any) -> Any:
        return plain([sys.executable, "-c", program], **options)

    monkeypatch.setattr("tests.gpu.check.subprocess.Popen", popen)


def _run(tmp_path: Path, parts: str) -> tuple[int, dict[str, Any]]:
    status = main(["--device", "cpu", "--only", parts, "--json", str(tmp_path / "found.json")])
    return status, json.loads((tmp_path / "found.json").read_text())


def test_a_part_that_hangs_is_ended_and_what_it_told_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _child_of(monkeypatch, "import json, time; print('not ours');"
              "print(json.dumps({'row': {'section': 's', 'name': 'n', 'ok': True}}), flush=True); time.sleep(60)")
    for name, value in (("GRACE", 0.5), ("SLOWER", 1.0), ("PARTS", dict.fromkeys(PARTS, 1.5))):
        monkeypatch.setattr(f"tests.gpu.check.{name}", value)
    status, found = _run(tmp_path, "speed")
    assert status == 1
    assert [row["name"] for row in found["rows"]] == ["n"]
    assert found["failures"] == ["speed: ended after 2 s"]
    assert "FAILED speed: ended after 2 s" in capsys.readouterr().out


def test_a_part_that_dies_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _child_of(monkeypatch, "import os; os.abort()")
    status, found = _run(tmp_path, "engine")
    assert status == 1
    assert found["failures"] == ["engine: its process ended with status -6"]


def test_a_check_that_does_not_hold_is_told() -> None:
    from tests.gpu.kernels import Outcome, _add_row

    report = Report()
    _add_row(report, "kind", {"kind 64": Outcome(0.5, 3), "kind 80": Outcome(1.5, 3), "kind 96": "ValueError: no"})
    assert report.rows[0].ok is False
    assert report.rows[0].note == "96: ValueError: no; 80: error 1.5 of what is allowed"
    _add_row(report, "nan", {"nan 64": Outcome(float("nan"), 1)})
    assert report.rows[1].ok is False
    _add_row(report, "nothing came", {"nothing 64": None})
    assert report.rows[2].ok is False
    _add_row(report, "good", {"good 64": Outcome(1.0, 1)})
    assert report.rows[3].ok is True
    assert len(report.failures) == 3
    assert report.table().count("FAILED") == 6


def test_every_kernel_is_checked() -> None:
    pytest.importorskip("triton")
    from engine.kernels.variants import variants
    from tests.gpu.kernels import checks

    checked_by = {
        "attention_kernel": "attention mixed", "split_kernel": "attention split", "merge_kernel": "attention split",
        "reshape_and_cache_kernel": "reshape_and_cache", "rotate_and_cache_kernel": "rotate_and_cache",
        "rms_norm_kernel": "rms_norm", "gated_kernel": "gated", "expert_kernel": "experts", "draw_kernel": "draw",
        "penalise_kernel": "penalise", "largest_kernel": "argmax", "first_kernel": "argmax"}  # fmt: skip
    assert {variant.kernel.fn.__name__ for variant in variants()} == checked_by.keys()
    for small in (False, True):
        names = list(checks(small))
        assert all(any(name.startswith(start) for name in names) for start in checked_by.values())


def test_figures_that_are_missing_are_no_failure() -> None:
    report = Report(sections=[Section("speed", 9.0, 9.0, "out of time: not all")])
    assert report.failures == []
    assert "out of time: not all" in report.table()


def test_the_table_says_rates_and_shares() -> None:
    report = Report()
    report.add(Row("kernels", "copying", seconds=2e-3, moved=4e9, share=0.5, of="copy"))
    report.add(Row("kernels", "multiplying", seconds=1.0, operations=5e14, tokens=1000, share=0.613, of="product"))
    lines = report.table().splitlines()
    assert [line.split() for line in lines if "ing" in line][:2] == [
        ["copying", "2.00", "ms", "4.00", "GB", "2,000.0", "GB/s", "50%", "copy"],
        ["multiplying", "1.00", "s", "500.0", "TF/s", "1,000", "61%", "product"]]  # fmt: skip


class _Clock:
    """A device whose time passes only while it works: in seconds."""

    now = 0.0

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = _Clock.now

        def elapsed_time(self, other: _Clock.Event) -> float:
            return 1e3 * (other.at - self.at)


def test_a_measurement_is_the_median_and_leaves_out_the_flushing(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from tests.gpu import measure

    meter = measure.Meter("cuda")
    took = iter([9.0, 9.0, 9.0, 1.0, 2.0, 30.0, 3.0, 2.0] + [4.0] * 8)  # twice to warm up, once to capture, five times

    def work() -> None:
        _Clock.now += next(took)

    class Flush:
        def sum(self) -> None:
            _Clock.now += 100.0

    monkeypatch.setattr(meter, "_flush", Flush())
    monkeypatch.setattr(measure, "_captured", lambda function: function() or function)
    monkeypatch.setattr(torch.cuda, "Event", _Clock.Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert meter.time(work, repeats=5) == 2.0
    assert meter.time_in_a_row(work, repeats=5) == 4.0
    assert meter.share_of_bandwidth(8.0, 2.0) is None
    meter.bandwidth, meter.products = 8.0, 16.0
    assert meter.share_of_bandwidth(8.0, 2.0) == 0.5
    assert meter.share_of_products(8.0, 2.0) == 0.25


def test_the_sizes_are_those_of_the_models() -> None:
    from tests.gpu.models import LLAMA_8B, QWEN3, SMOLLM2

    counts = {size.name: size.config.num_parameters for size in (SMOLLM2, QWEN3, LLAMA_8B)}
    assert counts == {"SmolLM2-135M": 134_515_008, "Qwen3-0.6B": 596_049_920, "Llama-3.1-8B": 8_030_261_248}
    embedding = 128_256 * 4_096
    assert LLAMA_8B.step_bytes(2) == 2 * (8_030_261_248 - embedding)  # of which a step reads some rows only
    assert SMOLLM2.step_bytes(2) == 2 * 134_515_008  # it is the head as well
    assert LLAMA_8B.step_operations() == 2 * (8_030_261_248 - 2 * embedding)


def test_a_model_in_bfloat16_still_turns_by_the_right_angles(tmp_path: Path) -> None:
    import torch

    from tests.engine.forward_driver import make_llama
    from tests.gpu.engine import in_bfloat16

    model = make_llama(tmp_path)
    rounded = in_bfloat16(model)
    assert {parameter.dtype for parameter in rounded.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    frequencies = dict(rounded.named_buffers())
    assert "model.rotary_emb.inv_freq" in frequencies
    for name, buffer in model.named_buffers():
        assert torch.equal(frequencies[name], buffer)
    with torch.no_grad():
        assert rounded(torch.tensor([[5, 6, 7]])).logits.dtype == torch.bfloat16


def test_the_roofline_is_the_larger_of_two_times() -> None:
    from tests.gpu.measure import Meter
    from tests.gpu.models import SMOLLM2
    from tests.gpu.speed_steps import _Steps, plan_of

    meter = Meter("cuda")
    runner: Any = None
    steps = _Steps(Report(), meter, SMOLLM2, runner, plan_of(SMOLLM2, small=False))
    assert steps._roofline(10.0, 100.0) is None
    meter.bandwidth, meter.products = 10.0, 50.0
    assert (steps._roofline(10.0, 100.0), steps._limited_by(10.0, 100.0)) == (2.0, "product")
    assert (steps._roofline(30.0, 100.0), steps._limited_by(30.0, 100.0)) == (3.0, "copy")


def test_stand_ins_are_records_enough() -> None:
    msgspec: ModuleType = stand_ins._msgspec()
    for name in ("msgspec.msgpack", "msgspec.structs"):
        sys.modules.pop(name)
    struct: Any = msgspec.Struct

    class Point(struct, gc=False):  # type: ignore[call-arg]
        x: int
        names: list[str] = []  # noqa: RUF012
        y: int = 5

    class Same(struct, eq=False):  # type: ignore[call-arg]
        x: int

    a, b = Point(1), Point(x=1, y=5)
    assert a == b
    a.names.append("a")
    assert (b.names, Point(1).names) == ([], [])
    assert a != b
    moved = msgspec.structs.replace(a, x=2)
    assert (moved.x, moved.names, a.x) == (2, ["a"], 1)
    assert copy.copy(a) == a
    assert Same(1) != Same(1)
    assert len({Same(1), Same(1)}) == 2
    with pytest.raises(TypeError):
        Point()
    with pytest.raises(RuntimeError, match="not installed"):
        msgspec.msgpack.Encoder().encode(a)
