"""The benchmarks without a window: what they print, what they count, and what they refuse. Never how fast it was."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cli import main
from engine.bench import observe, workload
from engine.bench.report import print_figures
from engine.bench.scheduler import SHARED_TOKENS, make_requests, measure_scheduler, typical_step
from engine.bench.workload import PHASES, Pass, figures_of, measure_engine, median_figures, serve
from engine.bench.workload_file import RequestFile, WorkloadFileError, WorkloadRequest, load_workload, shipped_workloads
from engine.config import SchedulerConfig
from engine.core import Engine
from engine.model.tokenizer import Tokenizer
from engine.request import SamplingParams
from engine.trace.events import PhaseTimes, Sampled, StepEvents
from tests.engine.tiny_tokenizer import make_tokenizer
from tests.engine.token_runner import TokenRunner

ROOT = Path(__file__).resolve().parents[2]
CONFIG = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8, num_blocks=64)
ENGINE_FIGURES = {"output_tokens_per_s", "steps", "seconds", "ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms",
                  "step_p50_ms", "phases"}


def small(count: int = 6, shared: int = 32, arrival_s: float = 0.0) -> RequestFile:
    return RequestFile("small", [
        WorkloadRequest(f"q{n}", [7] * shared + [n + 1] * (3 + n), 4 + n, n * arrival_s) for n in range(count)])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


class TestWorkloadFiles:
    def test_three_ship_and_are_what_their_page_says(self) -> None:
        assert shipped_workloads() == ["longmix40", "mixed32", "shared64"]
        page = (ROOT / "assets" / "bench" / "README.md").read_text("utf-8")
        for name in shipped_workloads():
            loaded = load_workload(name)
            assert loaded.name == name
            assert loaded.ignore_eos
            line = next(line for line in page.splitlines() if line.startswith(f"| `{name}`"))
            assert f"{len(loaded.requests)} requests" in line
            assert f"| {loaded.num_prompt_tokens:,} | {sum(r.max_tokens for r in loaded.requests):,} |" in line
            assert max(map(max, (r.prompt for r in loaded.requests))) < 40_000
        shared = {tuple(r.prompt[:512]) for r in load_workload("shared64").requests}
        assert len(shared) == 1

    def test_a_file_is_read_by_its_path(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.json"
        path.write_text('{"name": "mine", "requests": [{"id": "a", "prompt": [1, 2], "max_tokens": 3, "more": 1}]}')
        assert load_workload(str(path)).requests == [WorkloadRequest("a", [1, 2], 3)]

    @pytest.mark.parametrize(("content", "says"), [
        (None, "mixed32"),  # the refusal lists what there is
        ("{", "no workload file"),
        ("[]", "no workload file"),
        ('{"name": "x", "requests": []}', "no requests"),
        ('{"name": "x", "requests": [{"id": "a", "prompt": "hello", "max_tokens": 3}]}', "prompt"),
        ('{"name": "x", "requests": [{"id": "a", "prompt": [], "max_tokens": 3}]}', "'a'"),
        ('{"name": "x", "requests": [{"id": "a", "prompt": [-1], "max_tokens": 3}]}', "'a'"),
        ('{"name": "x", "requests": [{"id": "a", "prompt": [1], "max_tokens": 0}]}', "'a'"),
        ('{"name": "x", "requests": [{"id": "a", "prompt": [1], "max_tokens": 1, "arrival_s": -1}]}', "'a'"),
    ])
    def test_refusals_name_the_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None,
                                    says: str) -> None:
        path = tmp_path / "broken.json"
        if content is not None:
            path.write_text(content)
        with pytest.raises(WorkloadFileError, match=says):
            load_workload(str(path))
        assert main(["bench", "engine", "--workload", str(path)]) == 2
        complaint = capsys.readouterr().err
        assert complaint.count("\n") == 1
        assert "broken.json" in complaint
        assert says in complaint


class TestEngine:
    def test_figures(self, tokenizer: Tokenizer) -> None:
        figures = measure_engine(TokenRunner(), tokenizer, CONFIG, small(), repeats=3)
        assert set(figures) >= ENGINE_FIGURES
        assert figures["output_tokens"] == sum(4 + n for n in range(6))
        assert figures["prompt_tokens"] == sum(35 + n for n in range(6))
        assert len(figures["runs"]) == 3
        assert set(figures["phases"]) == {*PHASES, "other"}
        assert 0 < figures["step_p50_ms"] <= figures["seconds"] * 1e3
        assert 0 < figures["ttft_p50_ms"] <= figures["ttft_p99_ms"] <= figures["seconds"] * 1e3

    def test_how_a_gpu_runs_a_step_is_passed_on_and_told(self, monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
        runner, asked = TokenRunner(), []
        monkeypatch.setattr(workload, "load_runner", lambda *given: asked.append(given) or (runner, tokenizer, CONFIG))
        monkeypatch.setattr(workload, "load_workload", lambda _: small())
        assert main(["bench", "engine", "--workload", "mixed32", "--repeats", "1", "--device", "cuda",
                     "--enforce-eager", "--json"]) == 0
        assert asked == [(None, "bfloat16", 0, "cuda", "auto")]
        assert dict(runner.turned) == {"enforce_eager": True, "overlap": False}
        assert json.loads(capsys.readouterr().out)["enforce_eager"] is True

    @pytest.mark.parametrize("option", ["--enforce-eager", "--overlap"])
    def test_a_cpu_has_no_such_options(self, option: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["bench", "engine", "--workload", "mixed32", option]) == 2
        assert capsys.readouterr().err == (
            f"cutaway: {option}: that is about how a GPU runs a step; it needs --device cuda\n")

    def test_each_pass_begins_with_an_empty_prefix_cache(self, tokenizer: Tokenizer) -> None:
        engine = Engine(TokenRunner(), tokenizer, CONFIG)
        passes = [serve(engine, small()) for _ in range(3)]
        hits = [[s.hit_tokens for events in one.steps for s in events.scheduled if s.admission] for one in passes]
        assert hits[0] == hits[1] == hits[2]
        assert hits[0][0] == 0
        assert hits[0][-1] == 32
        engine.add_request([1, 2, 3], SamplingParams(max_tokens=9, ignore_eos=True))
        engine.step()
        with pytest.raises(RuntimeError, match="at work"):
            serve(engine, small())

    def test_all_at_once_or_as_they_arrive(self, tokenizer: Tokenizer) -> None:
        engine = Engine(TokenRunner(), tokenizer, CONFIG)
        at_once = serve(engine, small(arrival_s=0.05))
        assert len(at_once.steps[0].arrived) == 6
        assert len(set(at_once.arrived_ns.values())) == 1
        spread = serve(engine, small(arrival_s=0.05), arrivals=True)
        assert spread.seconds >= 0.25
        assert len(spread.steps[0].arrived) == 1
        times = list(spread.arrived_ns.values())
        assert np.diff(times).tolist() == [50_000_000] * 5
        assert spread.output_tokens == at_once.output_tokens
        for events in spread.steps:
            assert all(events.end_ns >= spread.arrived_ns[s.request_id] for s in events.scheduled)

    def test_a_request_that_cannot_be_served_is_told(self, tokenizer: Tokenizer) -> None:
        huge = RequestFile("huge", [WorkloadRequest("a", [5] * 3000, 4)])
        with pytest.raises(ValueError, match="huge: a request was refused"):
            serve(Engine(TokenRunner(), tokenizer, CONFIG), huge)

    def test_the_arithmetic(self) -> None:
        """Two requests: "a" arrives at 0 and gets tokens at 10, 30 and 60 ms, "b" arrives at 5 and gets one at 30."""
        def step(number: int, start_ms: int, end_ms: int, *names: str) -> StepEvents:
            phases = PhaseTimes(schedule=1_000_000, forward=(end_ms - start_ms - 2) * 1_000_000)
            return StepEvents(number, start_ms * 10**6, end_ms * 10**6, phases, [], [], [], [], [], [], [],
                              [Sampled(name, 1, "") for name in names], [], "", "", 0, 0)

        one = Pass(0.1, [step(0, 0, 10, "a"), step(1, 12, 30, "a", "b"), step(2, 30, 60, "a")],
                   {"a": 0, "b": 5_000_000})
        figures = figures_of(one)
        assert figures["output_tokens_per_s"] == 40.0
        assert (figures["steps"], figures["seconds"], figures["output_tokens"]) == (3, 0.1, 4)
        assert (figures["ttft_p50_ms"], figures["ttft_p99_ms"]) == (10.0, 25.0)
        assert (figures["itl_p50_ms"], figures["itl_p99_ms"]) == (20.0, 30.0)
        assert figures["step_p50_ms"] == 18.0
        assert figures["phases"] == {"schedule": 0.03, "prepare": 0.0, "forward": 0.52, "sample": 0.0, "publish": 0.0,
                                     "other": 0.45}

    def test_medians_are_taken_figure_by_figure(self) -> None:
        assert median_figures([{"a": 1.0, "n": 4, "p": {"x": 3.0}}, {"a": 9.0, "n": 4, "p": {"x": 1.0}},
                               {"a": 2.0, "n": 5, "p": {"x": 2.0}}]) == {"a": 2.0, "n": 4, "p": {"x": 2.0}}

    @pytest.mark.model
    @pytest.mark.timeout(400)  # the first time after a change of the kernels they are compiled
    def test_the_command(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "small.json"
        path.write_text(json.dumps({"name": "small", "requests": [
            {"id": "a", "prompt": [5, 6, 7], "max_tokens": 3}, {"id": "b", "prompt": [8], "max_tokens": 2}]}))
        assert main(["bench", "engine", "--workload", str(path), "--repeats", "1", "--threads", "1", "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)
        assert set(figures) >= ENGINE_FIGURES
        assert figures["output_tokens"] == 5
        assert figures["threads"] == 1
        assert figures["dtype"] == "bfloat16"


class TestScheduler:
    def test_figures(self, capsys: pytest.CaptureFixture[str]) -> None:
        figures = measure_scheduler(24, decode_steps=20)
        assert set(figures) >= {"decode_step_us", "prefill_step_us"}
        assert figures["decode_steps"] == 19  # the prompts fit into one step, and it makes the first tokens
        assert figures["prefill_steps"] == 1
        assert main(["bench", "scheduler", "--requests", "3", "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["requests"] == 3
        assert printed["decode_step_us"] > 0

    def test_the_load(self) -> None:
        requests = make_requests(5, 10)
        assert {len(r.prompt_token_ids) for r in requests} == {512}
        assert len({tuple(r.prompt_token_ids[:SHARED_TOKENS]) for r in requests}) == 1
        assert len({r.prompt_token_ids[SHARED_TOKENS] for r in requests}) == 5
        assert measure_scheduler(40, decode_steps=8)["prefill_steps"] == 2  # 31 in the first: 512 + 30 * 256 = 8192

    def test_a_typical_step(self) -> None:
        assert math.isnan(typical_step([]))
        assert typical_step([1, 2, 6]) == 3.0
        period = [10] * 15 + [170]
        assert typical_step(period * 3) == 20.0
        assert typical_step([*period, 10**9, *period[1:], *period]) == 20.0  # what disturbed one step does not count

    def test_without_torch(self) -> None:
        code = ("import sys; from app.cli import main; main(['bench', 'scheduler', '--requests', '2']); "
                "print({m.split('.')[0] for m in sys.modules} & {'torch', 'transformers', 'PySide6', 'pyqtgraph'})")
        run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert run.stdout.splitlines()[-1] == "set()", run.stdout + run.stderr


class TestObserve:
    def test_figures(self, tokenizer: Tokenizer) -> None:
        figures = observe.measure_observing(TokenRunner(), tokenizer, CONFIG, small(), rounds=2)
        assert figures["observed_over_plain"] > 0
        assert len(figures["observed_runs"]) == len(figures["plain_runs"]) == 2

    def test_both_ways_serve_the_same(self, tokenizer: Tokenizer, tmp_path: Path) -> None:
        from engine.trace.reader import open_recording

        load = small()
        load.ignore_eos = False
        plain = observe.serve_plain(TokenRunner(), tokenizer, CONFIG, load)
        path = tmp_path / "a.mcap"
        observed = observe.serve_observed(TokenRunner(), tokenizer, CONFIG, load, path)
        assert plain[1] == observed[1] > 0
        recording = open_recording(path)
        assert recording.complete
        assert sum(recording.series.output_tokens) == observed[1]
        recording.close()

    def test_a_step_that_nobody_saw_is_an_error(self, tokenizer: Tokenizer, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError, match="folder"):
            observe.serve_observed(TokenRunner(), tokenizer, CONFIG, small(), tmp_path / "none" / "a.mcap")

    def test_the_command(self, monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer,
                         capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setattr(observe, "load_runner", lambda *_: (TokenRunner(), tokenizer, CONFIG))
        monkeypatch.setattr(observe, "load_workload", lambda _: small())
        assert main(["bench", "observe", "--rounds", "1", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["observed_over_plain"] > 0


@pytest.mark.parametrize(("value", "shown", "encoded"), [
    (float("nan"), "-", None), (1234.5, "1,234.5", 1234.5), (True, "True", True), ([1, 2], "1 2", [1, 2]),
    ({"a": 0.5}, "a 0.5", {"a": 0.5}), ("text", "text", "text"),
])
def test_figures_are_printed(capsys: pytest.CaptureFixture[str], value: Any, shown: str, encoded: Any) -> None:
    print_figures({"name": value}, as_json=False)
    assert capsys.readouterr().out == f"name  {shown}\n"
    print_figures({"name": value}, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"name": encoded}


def test_the_engine_is_set_up_as_the_peer_is() -> None:
    config = workload.bench_config(100)
    assert (config.max_num_batched_tokens, config.max_num_seqs, config.max_model_len) == (2048, 64, 2048)
    assert config.enable_prefix_caching
    assert config.enable_chunked_prefill
