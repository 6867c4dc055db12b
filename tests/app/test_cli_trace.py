"""``verify``, ``bench recording`` and ``--no-prompt-text`` of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import build_parser, main
from engine.trace.recording import Recorder
from tests.engine.trace_runs import RandomRun


def record(path: Path, *, spoil: bool = False) -> Path:
    run = RandomRun(29)
    recorder = Recorder(path, run.info)
    for events in run.steps(150):
        if spoil and events.step == 100:
            events.free_blocks_after += 1
        recorder.put(events)
    assert recorder.close()
    return path


def test_verify_a_good_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(tmp_path / "a.mcap")
    assert main(["verify", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "ok": True, "steps": 150, "whole": True, "possible": True, "repeated": True, "decided": 150,
        "not_checked": None, "problems": []}
    assert main(["verify", str(path)]) == 0
    assert "decides the same yes (150 steps)" in capsys.readouterr().out


def test_verify_a_spoilt_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(tmp_path / "a.mcap", spoil=True)
    assert main(["verify", str(path)]) == 1
    out = capsys.readouterr().out
    assert "the pool's rules hold          NO" in out
    assert "- After step 100" in out


def test_verify_what_is_no_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.mcap").write_bytes(b"no")
    assert main(["verify", str(tmp_path / "a.mcap")]) == 2
    assert "not a recording" in capsys.readouterr().err


def test_bench_recording(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "recording", "--steps", "400", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert {"steps", "write_us_per_step", "file_mb", "open_s", "seek_p50_ms", "seek_p99_ms", "rss_mb"} <= set(figures)
    assert figures["steps"] == 400
    assert 0 < figures["write_us_per_step"] < 50
    assert 0 < figures["rss_mb"] < 300
    assert figures["file_mb"] > 0


def test_prompts_can_be_left_out() -> None:
    parser = build_parser()
    assert parser.parse_args(["run", "--no-prompt-text"]).no_prompt_text
    assert not parser.parse_args(["run"]).no_prompt_text
