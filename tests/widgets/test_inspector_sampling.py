"""How likely tokens were, and what ended a request, in words."""

from __future__ import annotations

import math

import pytest
from pytestqt.qtbot import QtBot

from engine.trace.events import Logprobs, TokenLogprob
from engine.trace.state import RequestView
from tests.widgets.scheduler_run import busy_run
from widgets.inspector_facts import request_facts, request_state_text
from widgets.inspector_sampling import sampling_facts, stop_text


@pytest.fixture
def request_view(qtbot: QtBot) -> RequestView:
    return RequestView("r1", 0, 0, 0, 0, [1, 2], "hi", 20, 0.0, 0, "user")


def likely(token: int, share: float, text: str) -> TokenLogprob:
    return TokenLogprob(token, math.log(share), text)


def test_nothing_is_said_where_nothing_was_asked(request_view: RequestView) -> None:
    assert sampling_facts(request_view) == []
    request_view.temperature = 0.8
    assert sampling_facts(request_view) == [("temperature", "0.8")]


def test_how_likely_the_tokens_were(request_view: RequestView) -> None:
    request_view.logprobs = [math.log(0.5), math.log(0.125)]
    request_view.latest_logprobs = Logprobs(likely(7, 0.125, " the"), [
        likely(4, 0.5, "\n"), likely(7, 0.125, " the"), likely(8, 0.1, " a"), likely(9, 0.05, "山"),
        likely(5, 0.01, "x")])
    assert sampling_facts(request_view) == [
        ("logprob, mean", "−1.39 (perplexity 4.00)"), ("latest token", "“ the” 12.5%"),
        ("rather than", "“⏎” 50.0%, “ a” 10.0%, “山” 5.0%")]
    request_view.latest_logprobs = Logprobs(likely(7, 0.125, " the"))
    assert dict(sampling_facts(request_view)).keys() == {"logprob, mean", "latest token"}


def test_what_ended_a_request(request_view: RequestView) -> None:
    state = busy_run().state_at(5)
    request_view.status, request_view.finish_reason = "finished", "stop"
    assert request_state_text(request_view, state) == "finished at its end"
    request_view.stop = "END\n"
    assert request_state_text(request_view, state) == stop_text(request_view) == "finished at the stop string “END⏎”"
    request_view.stop = 0
    assert dict(request_facts(request_view, state))["state"] == "finished at the stop token 0"
