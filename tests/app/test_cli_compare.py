"""rerun, compare and sweep on the command line; only the model is not real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import engine.loaded_model
from app.cli import main
from engine.decisions import first_divergence
from engine.trace.reader import open_recording
from tests.engine.recorded_runs import engine_run, make_model, save
from tests.engine.tiny_tokenizer import make_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def recorded(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(engine.loaded_model, "load_model", lambda info, **options: make_model(tokenizer))
    return save(engine_run(tokenizer, 6, requests=12), tmp_path / "a.mcap")


def test_rerun_repeats_the_decisions(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = tmp_path / "again.mcap"
    assert main(["rerun", str(recorded), "--record", str(again)]) == 0
    assert "recorded steps" in capsys.readouterr().out
    first, second = open_recording(recorded), open_recording(again)
    assert first_divergence(first, (second.events(s) for s in range(second.last_step + 1))) is None
    assert main(["compare", str(recorded), str(again)]) == 0
    assert "the same decisions in every step" in capsys.readouterr().out


def test_rerun_with_another_knob_and_compare(recorded: Path, tmp_path: Path,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "b.mcap"
    assert main(["rerun", str(recorded), "--set", "max_num_batched_tokens=24", "--record", str(other)]) == 0
    assert "recorded times" in capsys.readouterr().out
    assert main(["compare", str(recorded), str(other)]) == 0
    text = capsys.readouterr().out
    assert "max_num_batched_tokens: 64 -> 24" in text
    assert "higher by" in text
    assert "the first decision that differs: step " in text
    assert "requests are in both runs" in text
    assert main(["compare", str(recorded), str(other), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["knobs"] == {"max_num_batched_tokens": [64, 24]}
    assert told["changes"]["budget_use"]["direction"] == "higher"
    assert told["requests_in_both"] == len(told["requests"]) > 5


def test_sweep(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sweep"
    arguments = ["sweep", str(recorded), "--vary", "max_num_batched_tokens=24,64", "--set", "num_blocks=80",
                 "--out", str(out)]
    assert main(arguments) == 0
    assert "max_num_batched_tokens=24" in capsys.readouterr().out
    assert main(arguments) == 2, "what is there stays"
    assert "--resume" in capsys.readouterr().err
    kept = json.loads((out / "sweep.json").read_text("utf-8"))
    kept["points"].pop()  # as if it had been ended there
    (out / "sweep.json").write_text(json.dumps(kept), "utf-8")
    assert main(["sweep", "--resume", "--out", str(out), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["knobs"]["max_num_batched_tokens"] for row in rows] == [24, 64]
    assert any(row["pareto"] for row in rows)
    for row in rows:
        assert open_recording(out / row["recording"]).info.knobs["num_blocks"] == 80


@pytest.mark.parametrize(("arguments", "said"), [
    (["rerun", "{file}", "--record", "{file}"], "the recording itself"),
    (["rerun", "{file}", "--set", "max_num_seqs=0", "--record", "{dir}/x.mcap"], "max_num_seqs"),
    (["rerun", "{file}", "--set", "arrival_rate=1", "--record", "{dir}/x.mcap"], "workload"),
    (["rerun", "{dir}/none.mcap", "--record", "{dir}/x.mcap"], "none.mcap"),
    (["compare", "{file}", "{dir}/none.mcap"], "none.mcap"),
    (["sweep", "{file}", "--vary", "max_num_seqs=0..4", "--out", "{dir}/out"], "max_num_seqs"),
    (["sweep", "{file}", "--vary", "arrival_rate=1,2", "--out", "{dir}/out"], "--scenario"),
    (["sweep", "{file}", "--vary", "overlap=on,off", "--out", "{dir}/out"], "runs on the CPU"),
    (["rerun", "{file}", "--set", "overlap=on", "--record", "{dir}/x.mcap"], "runs on the CPU"),
    (["sweep", "--set", "enforce_eager=on", "--vary", "max_num_seqs=1,2", "--out", "{dir}/out"], "on the CPU"),
    (["sweep", "--scenario", "nothing", "--vary", "max_num_seqs=1,2", "--out", "{dir}/out"], "nothing"),
    (["sweep", "{file}", "--scenario", "chat", "--vary", "max_num_seqs=1,2", "--out", "{dir}/out"], "not both"),
])
def test_bad_arguments_are_refused_in_a_line(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                             arguments: list[str], said: str) -> None:
    before = recorded.read_bytes()
    assert main([a.format(file=recorded, dir=tmp_path) for a in arguments]) == 2
    error = capsys.readouterr().err
    assert said in error.splitlines()[-1]
    assert recorded.read_bytes() == before
    assert not (tmp_path / "out").exists()
