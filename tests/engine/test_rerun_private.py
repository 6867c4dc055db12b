"""Reruns of what somebody typed, recorded without it; and reruns that only turn knobs of a GPU."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.compare import Comparison
from engine.decisions import first_divergence
from engine.model.tokenizer import Tokenizer
from engine.recorded_workload import RerunError, read_workload
from engine.rerun import rerun
from engine.scenario_run import ScenarioRun, run_scenario
from engine.trace.events import MachineInfo
from engine.trace.knobs import KnobError
from engine.trace.reader import open_recording
from engine.trace.source import RunSource
from tests.engine.recorded_runs import SMALL, engine_run, make_model
from tests.engine.tiny_tokenizer import make_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def prompts_in(source: RunSource) -> set[bool]:
    """Whether prompts are told: by each arrival, and by the header."""
    arrived = [a for s in range(source.first_step, source.last_step + 1) for a in source.events(s).arrived]
    assert arrived
    return {any(a.prompt_token_ids) for a in arrived} | {source.info.prompt_text}


def test_a_rerun_without_prompts_is_held_against_the_run_with_them(tokenizer: Tokenizer, tmp_path: Path) -> None:
    history = engine_run(tokenizer, 3, turns=0.03, aborts=0.02)
    again = open_recording(rerun(read_workload(history), {}, tmp_path / "again.mcap", make_model(tokenizer),
                                 prompt_text=False).path)
    assert prompts_in(again) == {False}
    assert prompts_in(history) == {True}
    comparison = Comparison(history, again)
    comparison.update()
    assert comparison.divergence() is None  # every decision the same, as far as both tell
    assert len(comparison.deltas()) == len(comparison.figures[0].requests) > 20
    assert all(d.first.request_id == d.second.request_id for d in comparison.deltas())
    with pytest.raises(RerunError, match="holds no prompts"):
        read_workload(again)
    again.close()


def test_other_prompts_are_told_apart_by_their_lengths(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Names are the same in every run: alone they prove nothing."""
    history = engine_run(tokenizer, 3)
    other = open_recording(rerun(read_workload(engine_run(tokenizer, 4)), {}, tmp_path / "other.mcap",
                                 make_model(tokenizer), prompt_text=False).path)
    comparison = Comparison(history, other)
    comparison.update()
    assert comparison.divergence() is not None
    for delta in comparison.deltas():
        assert delta.first.prompt_tokens == delta.second.prompt_tokens
    assert len(comparison.deltas()) < len(comparison.figures[0].requests) // 2
    other.close()


def test_a_scenario_is_run_without_prompts(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for told in (True, False):
        result = run_scenario(ScenarioRun("burst", requests=4), {}, tmp_path / f"{told}.mcap", make_model(tokenizer),
                              prompt_text=told)
        recording = open_recording(result.path)
        assert prompts_in(recording) == {told}
        recording.close()


def test_only_knobs_of_a_gpu_are_other_and_so_the_steps_are_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    knobs = {**SMALL, "enforce_eager": False, "overlap": False}
    history = engine_run(tokenizer, 5, turns=0.03, knobs=knobs)
    model = make_model(tokenizer)
    with pytest.raises(KnobError, match="runs on the CPU"):
        rerun(read_workload(history), {"enforce_eager": True}, tmp_path / "no.mcap", model)
    assert not (tmp_path / "no.mcap").exists()
    model.machine = MachineInfo("Some GPU")
    result = rerun(read_workload(history), {"enforce_eager": True}, tmp_path / "eager.mcap", model)
    assert result.admission == "step"
    again = open_recording(result.path)
    assert first_divergence(history, (again.events(s) for s in range(again.last_step + 1))) is None
    assert again.info.knobs["enforce_eager"] is True
    comparison = Comparison(history, again)
    assert comparison.knobs() == [("enforce_eager", False, True)]
    again.close()
    both = rerun(read_workload(history), {"enforce_eager": True, "max_num_seqs": 3}, tmp_path / "both.mcap", model)
    assert both.admission == "time"  # that one does decide


def test_a_run_that_knows_no_knobs_of_a_gpu_ran_as_with_their_defaults(tokenizer: Tokenizer, tmp_path: Path) -> None:
    history = engine_run(tokenizer, 6)
    again = open_recording(rerun(read_workload(history), {}, tmp_path / "again.mcap", make_model(tokenizer)).path)
    new, old = dict(again.info.knobs), dict(again.info.knobs)
    for name in ("enforce_eager", "overlap"):
        new[name] = False
        old.pop(name, None)
    comparison = Comparison(history, again)
    for first, second in ((old, new), (new, old)):
        history.info = msgspec.structs.replace(history.info, knobs=first)
        again.info = msgspec.structs.replace(again.info, knobs=second)
        assert comparison.knobs() == []
    again.info = msgspec.structs.replace(again.info, knobs={**old, "overlap": True})
    assert comparison.knobs() == [("overlap", False, True)]
    again.close()
