"""What a request may ask for, and what it is told when it asks for something else."""

from __future__ import annotations

import pytest

from engine.sampling_params import SamplingParams

BAD = [
    ({"temperature": -0.1}, "temperature is -0.1; it must be a number from 0 to 2"),
    ({"temperature": 2.5}, "from 0 to 2"), ({"temperature": float("nan")}, "from 0 to 2"),
    ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"), ({"temperature": True}, "temperature"),
    ({"top_k": -2}, "top_k is -2; it must be a whole number at least -1; 0 is off"), ({"top_k": 1.5}, "whole number"),
    ({"top_p": 0.0}, "above 0, up to 1"), ({"top_p": 1.01}, "above 0, up to 1"),
    ({"top_p": None, "top_k": "x"}, "top_k"),
    ({"min_p": 1.5}, "min_p is 1.5; it must be a number from 0 to 1"), ({"min_p": -0.1}, "min_p"),
    ({"repetition_penalty": 0.0}, "above 0"), ({"repetition_penalty": float("inf")}, "above 0"),
    ({"presence_penalty": 2.1}, "from -2 to 2"), ({"frequency_penalty": -2.1}, "from -2 to 2"),
    ({"max_tokens": 0}, "max_tokens is 0; it must be a whole number at least 1"), ({"min_tokens": -1}, "at least 0"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9; it must be at most max_tokens, which is 8"),
    ({"logprobs": 21}, "logprobs is 21; it must be a whole number from 0 to 20, or not given"),
    ({"logprobs": -1}, "from 0 to 20"), ({"logprobs": True}, "logprobs"), ({"n": 0}, "n is 0; it must be"),
    ({"n": 2}, "with temperature 0 all samples would be the same"), ({"n": 65, "temperature": 1.0}, "from 1 to 64"),
    ({"seed": 2**63}, "at most 64 bits"), ({"seed": 1.5}, "seed"), ({"ignore_eos": 1}, "must be true or false"),
    ({"stop": [""]}, "not empty"), ({"stop": [3]}, "strings"), ({"stop": 3}, "it must be a list of strings"),
    ({"stop_token_ids": [-1]}, "of 0 or more"), ({"stop_token_ids": ["x"]}, "whole numbers"),
    ({"stop_token_ids": "12"}, "it must be a list of token ids"),
    ({"logit_bias": {5: 101.0}}, "from -100 to 100"), ({"logit_bias": {-5: 1.0}}, "of 0 or more"),
    ({"logit_bias": [1, 2]}, "must map token ids to numbers"), ({"logit_bias": {"a": 1}}, "must map token ids"),
    ({"top_q": 1}, "top_q is no parameter of a request; there are frequency_penalty, ignore_eos, logit_bias"),
    ({"plain": True}, "plain is no parameter"),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=lambda value: str(value)[:40])
def test_bad_parameters_are_told_what_is_allowed(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=r"[.]$") as refusal:
        SamplingParams.parse(given)
    assert message in str(refusal.value)


def test_parameters_as_users_write_them() -> None:
    params = SamplingParams.parse({
        "temperature": 1, "top_k": -1, "stop": "END", "stop_token_ids": [3, 4, 3], "logit_bias": {"7": 1}, "seed": -1,
        "n": 3, "logprobs": None, "top_p": None})
    assert params == SamplingParams(temperature=1, top_k=-1, stop=("END",), stop_token_ids=(3, 4), logit_bias={7: 1.0},
                                    n=3)
    assert SamplingParams.parse({"stop": ["a", "b"]}).stop == ("a", "b")
    assert SamplingParams.parse({}) == SamplingParams()


def test_token_ids_are_held_against_the_vocabulary() -> None:
    assert "from 0 to 48" in str(SamplingParams(stop_token_ids=(49,)).problem(49))
    assert "from 0 to 48" in str(SamplingParams(logit_bias={1000: 1.0}).problem(49))
    assert SamplingParams(logit_bias={48: 1.0}, stop_token_ids=(0,)).problem(49) is None


@pytest.mark.parametrize(("params", "plain", "edits"), [
    ({}, True, False), ({"ignore_eos": True, "stop": ("x",), "top_k": 5}, True, False),
    ({"temperature": 0.5}, False, False), ({"temperature": 1e-6}, True, False), ({"logprobs": 0}, False, False),
    ({"min_tokens": 1}, False, True), ({"logit_bias": {1: 1.0}}, False, True),
    ({"repetition_penalty": 1.1}, False, True), ({"presence_penalty": -1.0}, False, True),
    ({"frequency_penalty": 0.1}, False, True),
])
def test_what_sampling_has_to_care_about(params: dict, plain: bool, edits: bool) -> None:
    made = SamplingParams(**params)
    assert (made.plain, made.edits_logits) == (plain, edits)


def test_samples_have_seeds_of_their_own() -> None:
    params = SamplingParams(temperature=1.0, n=3, seed=5)
    children = [params.for_sample(i, 5) for i in range(3)]
    assert children == [SamplingParams(temperature=1.0, seed=5 + i) for i in range(3)]
    last = params.for_sample(1, 2**63 - 1)
    assert last.seed == -(2**63)
    assert last.problem() is None
