"""What ``cutaway generate`` prints."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from app.answers import Answers
from app.cli_generate import add_sampling, sampling_of
from engine.trace.events import Arrived, Finished, Logprobs, PhaseTimes, Sampled, StepEvents, TokenLogprob


def step(**fields: Any) -> StepEvents:
    empty: dict[str, Any] = {name: [] for name in ("knobs", "arrived", "refused", "aborted", "preempted", "scheduled",
                                                   "pool", "sampled", "finished")}
    return StepEvents(step=0, start_ns=0, end_ns=0, phases=PhaseTimes(), stopped_by="", stopped_at="", free_blocks=0,
                      free_blocks_after=0, **{**empty, **fields})


def test_one_answer_comes_as_it_is_made(capsys: pytest.CaptureFixture) -> None:
    answers = Answers()
    assert not answers.add(step())
    assert not answers.add(step(arrived=[Arrived("r1", 0, [1], "", 9)], sampled=[Sampled("r1", 5, "Hel")]))
    assert capsys.readouterr().out == "Hel"
    assert answers.add(step(sampled=[Sampled("r1", 6, "lo")], finished=[Finished("r1", "length", " …")]))
    assert capsys.readouterr() == ("lo …\n", "")


def test_several_answers_come_together(capsys: pytest.CaptureFixture) -> None:
    answers = Answers()
    names = [f"{i}_r1" for i in range(3)]
    assert not answers.add(step(arrived=[Arrived(name, 0, [1], "", 9) for name in names],
                                sampled=[Sampled(name, 5, f" text {name}") for name in names]))
    assert not answers.add(step(finished=[Finished(names[1], "stop")], sampled=[Sampled(names[0], 5, " more")]))
    assert capsys.readouterr().out == ""
    assert answers.add(step(aborted=[Finished(names[0], "length")], finished=[Finished(names[2], "stop", "!")]))
    assert capsys.readouterr().out == "[1] text 0_r1 more\n\n[2] text 1_r1\n\n[3] text 2_r1!\n"


def test_log_probabilities_go_to_stderr(capsys: pytest.CaptureFixture) -> None:
    answers = Answers()
    logprobs = Logprobs(TokenLogprob(5, -0.5, " a"), [TokenLogprob(5, -0.5, " a"), TokenLogprob(7, -1.0, "\n")])
    answers.add(step(arrived=[Arrived("r1", 0, [1], "", 9)], sampled=[Sampled("r1", 5, " a", logprobs)],
                     finished=[Finished("r1", "length")]))
    said = capsys.readouterr()
    assert said.out == " a\n"
    assert said.err == "' a' -0.500 (60.7%)               of  ' a' -0.500 (60.7%)   '\\n' -1.000 (36.8%)\n"


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_sampling(parser)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def test_options_are_parameters() -> None:
    assert sampling_of(parse()) == {"temperature": 0.0, "max_tokens": 128, "seed": 0}
    asked = parse("--temperature", "0.7", "--top-k", "20", "--top-p", "0.9", "--min-p", "0.1", "--n", "2",
                  "--stop", "a", "--stop", "b", "--stop-token-ids", "3", "--ignore-eos", "--min-tokens", "4",
                  "--logprobs", "0", "--repetition-penalty", "1.1", "--presence-penalty", "0.5",
                  "--frequency-penalty", "-1", "--seed", "5")
    assert sampling_of(asked) == {
        "temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.1, "n": 2, "stop": ["a", "b"], "stop_token_ids": [3],
        "ignore_eos": True, "min_tokens": 4, "logprobs": 0, "repetition_penalty": 1.1, "presence_penalty": 0.5,
        "frequency_penalty": -1.0, "max_tokens": 128, "seed": 5}
    with pytest.raises(ValueError, match=r"^--top-p is 2\.0; it must be a number above 0"):
        sampling_of(parse("--top-p", "2"))
