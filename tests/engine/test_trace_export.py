"""Exports of a run with everything in it, read back: the Perfetto file, the tables and the JSON lines."""

from __future__ import annotations

import csv
import locale
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from engine.trace.events import Logprobs, Sampled, TokenLogprob
from engine.trace.export import ExportError, export_csv, export_jsonl, export_perfetto, read_jsonl
from engine.trace.export import tables as export_tables
from engine.trace.export.tables import REQUEST_COLUMNS, STEP_COLUMNS
from engine.trace.history import LiveHistory
from engine.trace.summary import summarise
from tests.engine.trace_runs import RandomRun

STEPS = 1200
BEGIN, END = protos.TrackEvent.TYPE_SLICE_BEGIN, protos.TrackEvent.TYPE_SLICE_END
INSTANT, COUNTER = protos.TrackEvent.TYPE_INSTANT, protos.TrackEvent.TYPE_COUNTER
EXPORTS: dict[str, Callable[..., Generator[float]]] = {
    "run.pftrace": export_perfetto, "tables": export_csv, "run.jsonl": export_jsonl}


@pytest.fixture(scope="module")
def run() -> LiveHistory:
    source = RandomRun(7, knob_rate=0.02, arrival_rate=0.15, abort_rate=0.01)
    history = LiveHistory(source.info)
    source.steps(STEPS, history.append)
    summary = summarise(history)
    for name in ("preemptions", "evictions", "prefix_hit_tokens", "chunked_prefills", "knob_changes"):
        assert summary[name] > 10, f"a run that shows nothing: {name}"
    return history


class Trace:
    """A Perfetto file, taken apart; what the reader checks on the way is what every trace must hold."""

    def __init__(self, path: Path) -> None:
        message = protos.Trace()
        message.ParseFromString(path.read_bytes())
        self.tracks: dict[int, Any] = {}
        self.slices: dict[int, list[tuple[str, int, int, dict[str, Any], int]]] = defaultdict(list)
        self.instants: list[tuple[int, str, int, dict[str, Any]]] = []
        self.counters: dict[int, list[tuple[int, float]]] = defaultdict(list)
        self.flows_out: dict[int, tuple[int, str, int]] = {}
        self.flows_in: dict[int, tuple[int, str, int]] = {}
        stacks: dict[int, list[tuple[str, int, dict[str, Any]]]] = defaultdict(list)
        latest = 0
        for packet in message.packet:
            assert packet.trusted_packet_sequence_id == 1
            if packet.HasField("track_descriptor"):
                assert packet.track_descriptor.uuid not in self.tracks
                self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
                continue
            event, time = packet.track_event, packet.timestamp
            assert time >= latest, "timestamps ascend"
            latest = time
            assert event.track_uuid in self.tracks, "an event's track is described before it"
            notes = {a.name: getattr(a, a.WhichOneof("value")) for a in event.debug_annotations}
            stack = stacks[event.track_uuid]
            if event.type == BEGIN:
                stack.append((event.name, time, notes))
                for flow in event.flow_ids:
                    assert flow not in self.flows_out
                    self.flows_out[flow] = (event.track_uuid, event.name, time)
                for flow in event.terminating_flow_ids:
                    assert flow not in self.flows_in
                    self.flows_in[flow] = (event.track_uuid, event.name, time)
            elif event.type == END:
                name, began, begin_notes = stack.pop()  # which is there: slices nest
                self.slices[event.track_uuid].append((name, began, time, begin_notes | notes, len(stack)))
            elif event.type == INSTANT:
                self.instants.append((event.track_uuid, event.name, time, notes))
            else:
                assert event.type == COUNTER
                assert self.tracks[event.track_uuid].HasField("counter")
                value = event.counter_value if event.HasField("counter_value") else event.double_counter_value
                self.counters[event.track_uuid].append((time, value))
        assert not [s for s in stacks.values() if s], "every slice closes"
        for uuid, track in self.tracks.items():
            assert self.root(uuid).process.process_name.startswith("Cutaway"), f"{track.name} is in no process"

    def root(self, uuid: int) -> Any:
        track = self.tracks[uuid]
        return self.root(track.parent_uuid) if track.parent_uuid else track

    def track(self, name: str) -> int:
        (uuid,) = [u for u, t in self.tracks.items() if t.name == name]
        return uuid

    def requests(self) -> dict[str, int]:
        parent = self.track("Requests")
        return {t.name: uuid for uuid, t in self.tracks.items() if t.parent_uuid == parent}

    def request_slices(self, name: str) -> list[tuple[str, int, int, dict[str, Any], int]]:
        return [s for uuid in self.requests().values() for s in self.slices[uuid] if s[0] == name]


@pytest.fixture(scope="module")
def trace(run: LiveHistory, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    path = tmp_path_factory.mktemp("perfetto") / "run.pftrace"
    shares = list(export_perfetto(run, path))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    return Trace(path)


def test_perfetto_counts_agree_with_the_summary(run: LiveHistory, trace: Trace) -> None:
    summary, instants = summarise(run), Counter(name for _, name, _, _ in trace.instants)
    finished = [notes["reason"] for _, name, _, notes in trace.instants if name == "finished"]
    requests, steps = trace.request_slices("request"), trace.slices[trace.track("Engine steps")]
    assert len(trace.requests()) == len(requests) == summary["requests"]
    assert sum(reason != "abort" for reason in finished) == summary["finished_requests"]
    assert "abort" in finished
    assert sum(notes["output_tokens"] for *_, notes, _ in requests) == summary["output_tokens"]
    assert sum(name.startswith("step ") for name, *_ in steps) == summary["steps"]
    assert sum(notes.get("evicted_blocks", 0) for *_, notes, _ in steps) == summary["evictions"]
    assert len(trace.request_slices("preempted")) == summary["preemptions"]
    prefills = trace.request_slices("prefill")
    assert sum(notes.get("hit_tokens", 0) for *_, notes, _ in prefills) == summary["prefix_hit_tokens"]
    assert sum("knob" in notes for *_, notes in trace.instants) == summary["knob_changes"]
    assert instants["knobs at the start"] == 1
    chunked = 0
    for uuid in trace.requests().values():
        within = False  # an admission that has been cut already
        for name, _, _, notes, _ in sorted(trace.slices[uuid], key=lambda s: s[1]):
            if name == "preempted":
                within = False
            elif name == "prefill" and not notes["last_chunk"] and not within:
                within = True
                chunked += 1
    assert chunked == summary["chunked_prefills"]


def test_perfetto_slices_are_the_timeline(run: LiveHistory, trace: Trace) -> None:
    """The spans that the window's timeline draws, one for one; all of them inside the request's own slice."""
    tracks = trace.requests()
    for row in run.timeline.rows:
        slices = trace.slices[tracks[row.request_id]]
        assert slices[-1][0] == "request"
        assert {depth for name, *_, depth in slices if name != "request"} <= {1}
        mine = sorted((began, ended, name) for name, began, ended, _, depth in slices if depth)
        theirs = sorted((s.start_ns, s.end_ns, s.kind) for s in row.spans)
        assert mine == theirs, row.request_id


def test_perfetto_flows_lead_from_preemption_to_resumption(run: LiveHistory, trace: Trace) -> None:
    assert set(trace.flows_in) <= set(trace.flows_out)
    names = {uuid: name for name, uuid in trace.requests().items()}
    for flow, (track, name, time) in trace.flows_in.items():
        origin = trace.flows_out[flow]
        assert origin[:2] == (track, "preempted")
        assert name == "prefill"
        assert origin[2] <= time
    came_back = sum(s.admission == "resumed" for step in range(STEPS) for s in run.events(step).scheduled)
    assert len(trace.flows_in) == came_back > 10
    for flow in set(trace.flows_out) - set(trace.flows_in):  # aborted, or still away at the end
        request = names[trace.flows_out[flow][0]]
        assert [s for s in trace.slices[trace.flows_out[flow][0]] if s[0] == "preempted"], request


def test_perfetto_counters_are_the_series(run: LiveHistory, trace: Trace) -> None:
    series = run.series
    for name, at, values in (
            ("KV blocks in use", series.end_ns, series.used_blocks), ("running", series.end_ns, series.running),
            ("waiting", series.end_ns, series.waiting), ("max_num_batched_tokens", series.start_ns, series.budget),
            ("KV blocks usable", series.start_ns, series.usable_blocks)):
        points = trace.counters[trace.track(name)]
        assert len(points) > 1, name
        for time, value in ((t, v) for t, v in points if t in set(at.tolist())):
            assert value == values[at.tolist().index(time)], name
    used = dict(trace.counters[trace.track("scheduled tokens")])
    for index in range(0, STEPS, 7):
        start = int(series.start_ns[index])
        if start in used:
            assert used[start] == series.decode_tokens[index] + series.prefill_tokens[index]


def test_perfetto_of_a_part_holds_too(run: LiveHistory, tmp_path: Path) -> None:
    """Beginning and ending in the middle, with requests in every state."""
    first, last = next((a, a + 37) for a in range(200, STEPS) if run.state_at(a - 1).waiting
                       and any(r.status == "preempted" for r in run.state_at(a - 1).active()))
    list(export_perfetto(run, tmp_path / "part.pftrace", first=first, last=last))
    trace = Trace(tmp_path / "part.pftrace")
    before = {r.request_id for r in run.state_at(first - 1).active()}
    arrived = {a.request_id for step in range(first, last + 1) for a in run.events(step).arrived}
    assert set(trace.requests()) == before | arrived
    unfinished = [s for s in trace.request_slices("request") if s[3].get("unfinished")]
    assert len(unfinished) == len(run.state_at(last).active())


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_csv_sums_agree_with_the_summary(run: LiveHistory, tmp_path: Path) -> None:
    list(export_csv(run, tmp_path / "tables"))
    steps, requests = rows(tmp_path / "tables" / "steps.csv"), rows(tmp_path / "tables" / "requests.csv")
    summary = summarise(run)
    assert list(steps[0]) == list(STEP_COLUMNS)
    assert list(requests[0]) == list(REQUEST_COLUMNS)

    def total(table: list[dict[str, str]], column: str) -> int:
        return sum(int(row[column]) for row in table)

    assert len(steps) == summary["steps"]
    assert len(requests) == total(steps, "arrived") == summary["requests"]
    assert total(steps, "output_tokens") == total(requests, "output_tokens") == summary["output_tokens"]
    assert total(steps, "preempted") == total(requests, "preemptions") == summary["preemptions"]
    assert total(steps, "lost_tokens") == total(requests, "lost_tokens")
    assert total(steps, "evicted_blocks") == summary["evictions"]
    assert total(steps, "hit_tokens") == summary["prefix_hit_tokens"]
    assert total(requests, "hit_tokens") + total(requests, "resumed_hit_tokens") == summary["prefix_hit_tokens"]
    assert total(steps, "finished") == summary["finished_requests"]
    assert sum(row["finish_reason"] in ("stop", "length") for row in requests) == summary["finished_requests"]
    assert sum(len(row["knobs"].split(";")) for row in steps if row["knobs"]) == summary["knob_changes"]
    series = run.series
    for column in ("start_ns", "end_ns", "budget", "decode_tokens", "prefill_tokens", "running", "waiting",
                   "used_blocks", "usable_blocks"):
        assert [int(row[column]) for row in steps] == getattr(series, column).tolist(), column
    by_id = {row["request_id"]: row for row in requests}
    for request in run.state.active():
        assert by_id[request.request_id]["finished_ns"] == ""
    itl = max(float(row["max_itl_ms"]) for row in requests if row["max_itl_ms"])
    assert itl == pytest.approx(series.itl_ns.max() / 1e6, abs=1e-3)
    ttft = sorted(float(row["ttft_ms"]) for row in requests if row["ttft_ms"])
    assert ttft == pytest.approx(sorted(series.ttft_ns / 1e6), abs=1e-3)


def test_csv_does_not_speak_the_locales_language(run: LiveHistory, tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    before = locale.setlocale(locale.LC_ALL)
    names = [n for n in ("de_DE.UTF-8", "fr_FR.UTF-8") if _settable(n)]
    try:
        if names:
            locale.setlocale(locale.LC_ALL, names[0])
        list(export_csv(run, tmp_path / "tables", first=3, last=400))
    finally:
        locale.setlocale(locale.LC_ALL, before)
    data = (tmp_path / "tables" / "requests.csv").read_bytes()
    assert data.startswith(b"request_id,source,")
    assert {line.count(b",") for line in data.splitlines()} == {len(REQUEST_COLUMNS) - 1}


def test_every_column_is_documented() -> None:
    text = (Path(export_tables.__file__).parent / "README.md").read_text("utf-8")
    steps, requests = text.split("### `steps.csv`")[1].split("### `requests.csv`")
    for part, columns in ((steps, STEP_COLUMNS), (requests, REQUEST_COLUMNS)):
        assert re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) == list(columns)


def _settable(name: str) -> bool:
    before = locale.setlocale(locale.LC_ALL)
    try:
        locale.setlocale(locale.LC_ALL, name)
    except locale.Error:
        return False
    locale.setlocale(locale.LC_ALL, before)
    return True


def test_json_lines_round_trip(run: LiveHistory, tmp_path: Path) -> None:
    path = tmp_path / "录像.jsonl"
    list(export_jsonl(run, path))
    assert list(read_jsonl(path)) == [run.events(step) for step in range(STEPS)]
    lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    assert [line["step"] for line in lines] == list(range(STEPS))
    events = next(line for line in lines if line["scheduled"] and line["pool"])
    assert set(events["scheduled"][0]) == {"request_id", "num_tokens", "num_computed_tokens", "samples", "admission",
                                           "hit_tokens"}
    assert {e["type"] for line in lines for e in line["pool"]} >= {"alloc", "hit", "free", "cache", "evict"}


def test_json_lines_keep_what_json_cannot_say(run: LiveHistory, tmp_path: Path) -> None:
    """Whole numbers as keys, numbers beyond 2^53, minus infinity."""
    class One(LiveHistory):
        pass

    source = RandomRun(1, keep_running=3)
    history = One(source.info)
    events = source.steps(30)
    arrived = next(a for e in events for a in e.arrived)
    arrived.logit_bias = {5: 1.5}
    arrived.stop = ["a\nb", "\u2028"]
    step = next(e for e in events if e.sampled)
    step.sampled[0] = Sampled(step.sampled[0].request_id, 3, "é", Logprobs(
        TokenLogprob(3, float("-inf"), "é"), [TokenLogprob(4, -0.5, "b")]))
    for e in events:
        history.append(e)
    list(export_jsonl(history, tmp_path / "a.jsonl"))
    assert list(read_jsonl(tmp_path / "a.jsonl")) == events


def test_lines_that_are_no_steps_are_refused(tmp_path: Path) -> None:
    for line in (b"{}", b"[]", b'{"step": 1}', b"nonsense", b'{"step": 0, "pool": [{"type": "nothing"}]}'):
        (tmp_path / "a.jsonl").write_bytes(line + b"\n")
        with pytest.raises(ValueError):  # noqa: PT011  msgspec's errors, whatever they say
            list(read_jsonl(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("name", EXPORTS)
def test_a_cancelled_export_leaves_nothing_behind(name: str, run: LiveHistory, tmp_path: Path) -> None:
    going = EXPORTS[name](run, tmp_path / name)
    assert 0 < next(going) < 1
    assert next(going) < 1
    assert list(tmp_path.rglob("*.part*")), "it was under way"
    going.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", EXPORTS)
def test_what_is_there_is_only_replaced_when_asked_to(name: str, run: LiveHistory, tmp_path: Path) -> None:
    path = tmp_path / name
    mine = path / "requests.csv" if name == "tables" else path
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    with pytest.raises(ExportError, match="exists already"):
        list(EXPORTS[name](run, path, last=10))
    assert mine.read_text() == "mine"
    going = EXPORTS[name](run, path, overwrite=True)
    next(going)
    going.close()
    assert mine.read_text() == "mine", "not before it is whole"
    list(EXPORTS[name](run, path, last=10, overwrite=True))
    assert mine.read_bytes() != b"mine"
    assert not list(tmp_path.rglob("*.part*"))


@pytest.mark.parametrize("name", EXPORTS)
def test_bad_places_and_ranges_are_refused(name: str, run: LiveHistory, tmp_path: Path) -> None:
    export = EXPORTS[name]
    with pytest.raises(ExportError, match="There is no step 1200: the run has steps 0 to 1199"):
        list(export(run, tmp_path / name, last=STEPS))
    with pytest.raises(ExportError, match="comes after"):
        list(export(run, tmp_path / name, first=9, last=4))
    with pytest.raises(ExportError, match="nowhere"):
        list(export(run, tmp_path / "nowhere" / name))
    with pytest.raises(ExportError, match="no step in"):
        list(export(LiveHistory(run.info), tmp_path / name))
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError):
        list(export(run, tmp_path / "file" / name))
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_said_in_one_line(run: LiveHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __enter__(self) -> Full:
            return self

        def __exit__(self, *args: object) -> None:
            pass

        def write(self, data: bytes) -> None:
            raise OSError(28, "No space left on device")

    real = Path.open
    monkeypatch.setattr(Path, "open", lambda path, mode="r": Full() if mode == "wb" else real(path, mode))
    with pytest.raises(ExportError, match="The disk is full"):
        list(export_jsonl(run, tmp_path / "a.jsonl"))
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_steps_that_were_dropped_meanwhile_are_said(run: LiveHistory, tmp_path: Path) -> None:
    class Dropping(LiveHistory):
        def events(self, step: int) -> Any:
            if step > 100:
                raise self._no_such(step)
            return run.events(step)

    source = Dropping(run.info)
    for step in range(200):
        source.append(run.events(step))
    for name, export in EXPORTS.items():
        with pytest.raises(ExportError, match="Step 101 is no longer in memory"):
            list(export(source, tmp_path / name))
    assert list(tmp_path.iterdir()) == []
