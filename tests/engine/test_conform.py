"""Our scheduler decides what vLLM's decided: the recorded traces are the judge."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from engine.config import SchedulerConfig
from engine.conform import TraceError, TracePlayer, conform, first_difference, read_traces
from engine.plan import StepPlan
from tests.engine.scheduler_driver import SchedulerDriver

GOLDEN = Path(__file__).parents[1] / "golden" / "vllm-0.32.0.jsonl.gz"


@pytest.fixture(scope="module")
def traces() -> list[dict[str, Any]]:
    return list(read_traces(GOLDEN))


def test_every_recorded_trace_is_equal(capsys: pytest.CaptureFixture[str]) -> None:
    assert conform([GOLDEN]) == 0
    assert capsys.readouterr().out == "60 of 60 traces equal\n"


def test_state_from_events_is_the_scheduler_at_every_step(traces: list[dict[str, Any]]) -> None:
    for trace in traces:
        player = TracePlayer(trace)
        config = player.scheduler.config
        driver = SchedulerDriver(config, [trace["config"]["eos_token_id"]])
        outputs = {entry["id"]: entry["output"] for entry in trace["requests"]}

        def recorded_tokens(plan: StepPlan, outputs: dict[str, list[int]] = outputs) -> list[int]:
            return [outputs[e.request.request_id][e.request.num_output_tokens] for e in plan.scheduled if e.samples]

        for row in trace["steps"]:
            for request in player.arrivals(row["step"]):
                driver.add(request)
            for request_id in player.aborts(row["step"]):
                driver.end(request_id)
            if "reset_prefix_cache" in row:
                assert driver.scheduler.reset_prefix_cache() == row["reset_prefix_cache"]
            events = driver.step(recorded_tokens)
            assert (events.free_blocks, events.free_blocks_after) == (row["free_blocks"], row["free_blocks_after"])
            driver.check()
            finished = {f.request_id: f.reason for f in events.finished}
            assert finished == row.get("finished", {})


@pytest.mark.parametrize(("field", "change"), [
    ("scheduled", lambda row: row["scheduled"][0].__setitem__(1, 77)),
    ("cached_tokens", lambda row: row.update(cached_tokens={"r0": 1})),
    ("resumed_cached_tokens", lambda row: row.update(resumed_cached_tokens={"r0": 16})),
    ("blocks", lambda row: row["blocks"].clear()),
    ("free_blocks", lambda row: row.update(free_blocks=row["free_blocks"] - 1)),
    ("waiting", lambda row: row["waiting"].append("r99")),
    ("running", lambda row: row["running"].reverse() or row["running"].append("r99")),
    ("preempted", lambda row: row.update(preempted=["r0"])),
    ("finished", lambda row: row.update(finished={"r0": "stop"})),
    ("free_blocks_after", lambda row: row.update(free_blocks_after=0)),
    ("kv_events", lambda row: row.update(kv_events=[["removed", [0]]])),
    ("reset_prefix_cache", lambda row: row.update(reset_prefix_cache=True)),
    ("aborted", lambda row: row.update(aborted=["r0"])),
    ("arrived", lambda row: row.update(arrived=["r0"])),
])
def test_a_changed_row_is_found(traces: list[dict[str, Any]], field: str, change: Any) -> None:
    trace = copy.deepcopy(traces[3])
    row = trace["steps"][30]
    assert row["scheduled"]
    change(row)
    difference = first_difference(trace)
    assert difference is not None
    assert (difference.seed, difference.step, difference.field) == (3, 30, field)
    assert difference.ours != difference.theirs


def test_differences_are_printed(tmp_path: Path, traces: list[dict[str, Any]],
                                 capsys: pytest.CaptureFixture[str]) -> None:
    wrong = copy.deepcopy(traces[3])
    wrong["steps"][30]["free_blocks"] = 1
    path = tmp_path / "traces.jsonl"
    path.write_text("\n".join(json.dumps(t) for t in (traces[0], wrong)) + "\n")
    assert conform([path]) == 1
    ours = traces[3]["steps"][30]["free_blocks"]
    assert capsys.readouterr().out.splitlines() == [
        f"traces.jsonl: seed 3 step 30 free_blocks: ours {ours} theirs 1", "1 of 2 traces equal"]


def test_a_request_that_can_never_fit_is_a_difference_and_no_crash(traces: list[dict[str, Any]]) -> None:
    trace = copy.deepcopy(traces[3])
    entry = trace["requests"][1]
    entry["prompt"] = entry["prompt"] * 50
    difference = first_difference(trace)
    assert difference is not None
    assert (difference.step, difference.field) == (entry["arrive"], "arrived")
    assert "refused" in difference.ours


@pytest.mark.parametrize(("content", "message"), [
    (b"{\n", "line 1: not JSON"),
    (b"[1, 2]\n", "line 1: not a trace"),
    (b'{"config": {}, "requests": [], "steps": []}\n', "eos_token_id"),
    (b"\x1f\x8bnonsense", "cannot be read"),
    (b"\xff\xfe\x00", "not a text file"),
])
def test_a_file_that_is_no_trace_file_is_named(tmp_path: Path, content: bytes, message: str,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    assert conform([path]) == 1
    printed = capsys.readouterr().out
    assert message in printed
    assert printed.endswith("0 of 0 traces equal\n") or printed.endswith("0 of 1 traces equal\n")


def test_a_missing_or_cut_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        list(read_traces(tmp_path / "none.jsonl"))
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(GOLDEN.read_bytes()[:100_000])
    assert conform([cut]) == 1
    assert "cannot be read" in capsys.readouterr().out


def test_plain_and_gzipped_files_are_read_alike(tmp_path: Path, traces: list[dict[str, Any]]) -> None:
    plain = tmp_path / "plain.jsonl"
    plain.write_text(json.dumps(traces[0]) + "\n\n")
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert list(read_traces(plain)) == list(read_traces(packed)) == [traces[0]]


def test_aborts_of_one_gap_are_accepted_in_either_order() -> None:
    """The order in which requests aborted together give their blocks back shows in the free queue only."""
    trace: dict[str, Any] = {
        "config": {**{n: getattr(SchedulerConfig(), n) for n in ("block_size", "max_num_seqs")}, "num_blocks": 12,
                   "max_model_len": 64, "eos_token_id": -1},
        "requests": [{"id": f"r{i}", "arrive": 0 if i < 2 else 2, "prompt": [i] * 20, "max_tokens": 9,
                      "output": [1] * 9, "abort": 2 if i < 2 else None} for i in range(3)],
        "steps": [], "seed": 1}
    recorded = {}
    for order in (["r0", "r1"], ["r1", "r0"]):
        player = TracePlayer(trace, order)
        rows = [{"step": step, **player.play(step)} for step in range(4)]
        recorded[tuple(order)] = rows[2]["blocks"]
        rows[2]["aborted"] = ["r1", "r0"]
        assert first_difference({**trace, "steps": rows}) is None
    assert recorded["r0", "r1"] != recorded["r1", "r0"]
