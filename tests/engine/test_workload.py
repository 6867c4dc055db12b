"""The workload: when requests come, what they ask, and what its knobs change."""

from __future__ import annotations

import dataclasses
import random
import time
from itertools import pairwise

import numpy as np
import pytest

from engine.model.tokenizer import Tokenizer
from engine.scenario import Arrivals, Scenario, Traffic, list_scenarios, load_scenario, prompt_file_names
from engine.trace.events import Finished, PhaseTimes, Refused, Sampled, StepEvents
from engine.trace.knobs import KnobError, KnobValue
from engine.workload import MIN_OUTPUT_ROOM, NewRequest, Workload
from tests.engine.prompt_tokenizer import prompt_tokenizer

SECOND = 1_000_000_000
DOCUMENTS = tuple(prompt_file_names("documents"))
CHAT = Traffic("chat", system="assistant", documents=DOCUMENTS)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return prompt_tokenizer()


def scenario(*traffic: Traffic, arrivals: Arrivals | None = None, **knobs: KnobValue) -> Scenario:
    return Scenario("test", "Test", "A test.", dict(knobs), arrivals or Arrivals(max_unfinished=10**6),
                    traffic or (CHAT,))


def events(now_ns: int, *, sampled: list[Sampled] | None = None, finished: list[Finished] | None = None,
           aborted: list[Finished] | None = None, refused: list[Refused] | None = None) -> StepEvents:
    return StepEvents(0, now_ns, now_ns, PhaseTimes(), [], [], refused or [], aborted or [], [], [], [], sampled or [],
                      finished or [], "", "", 0, 0)


def until(workload: Workload, seconds: float, step_s: float = 0.1, start_s: float = 0.0) -> list[NewRequest]:
    """Every arrival up to a time, asked for again and again as an engine does."""
    requests = []
    for i in range(round((seconds - start_s) / step_s) + 1):
        requests += workload.due(int((start_s + i * step_s) * SECOND))
    return requests


def what(requests: list[NewRequest]) -> list[tuple[object, ...]]:
    return [(r.index, r.prompt_token_ids, r.prompt_text, r.params, r.source, r.priority) for r in requests]


# ---- the same again ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", [s.name for s in list_scenarios()])
def test_the_same_seed_gives_the_same_requests(tokenizer: Tokenizer, name: str) -> None:
    first, again = (until(Workload(load_scenario(name), tokenizer, 5), 20) for _ in range(2))
    assert first
    assert first == again
    assert what(first) != what(until(Workload(load_scenario(name), tokenizer, 6), 20))


def test_how_often_it_is_asked_does_not_matter(tokenizer: Tokenizer) -> None:
    often = until(Workload(scenario(), tokenizer, 1), 30, step_s=0.01)
    assert until(Workload(scenario(), tokenizer, 1), 30, step_s=7.5) == often
    assert [r.arrival_ns for r in often] == sorted(r.arrival_ns for r in often)


def test_the_same_knob_history_gives_the_same_requests(tokenizer: Tokenizer) -> None:
    def run(step_s: float) -> list[NewRequest]:
        workload = Workload(scenario(), tokenizer, 3, {"arrival_rate": 4.0})
        requests = until(workload, 5, step_s)
        workload.set_knob("arrival_rate", 9.0, int(5.05 * SECOND))
        workload.set_knob("prompt_tokens_max", 300, int(5.05 * SECOND))
        requests += until(workload, 10, step_s, 5.1)
        workload.set_knob("common_prefix", 0.0, int(10.05 * SECOND))
        return requests + until(workload, 15, step_s, 10.1)

    assert run(0.1) == run(0.7)


@pytest.mark.parametrize(("knob", "value"), [
    ("output_tokens_max", 200), ("temperature", 1.0), ("common_prefix", 1.0), ("arrival_rate", 20.0)])
def test_a_knob_changes_only_what_it_is_about(tokenizer: Tokenizer, knob: str, value: KnobValue) -> None:
    plain = Workload(scenario(arrival_rate=5.0, common_prefix=0.3), tokenizer, 4)
    turned = Workload(scenario(arrival_rate=5.0, common_prefix=0.3), tokenizer, 4)
    before = until(turned, 10)
    assert until(plain, 10) == before
    turned.set_knob(knob, value)
    a, b = until(plain, 40, start_s=10.1), until(turned, 40, start_s=10.1)
    n = min(len(a), len(b))
    assert n > 100
    assert [r.prompt_text for r in a[:n]] == [r.prompt_text for r in b[:n]]
    assert [r.params.seed for r in a[:n]] == [r.params.seed for r in b[:n]]
    changed = [[x != y for x, y in zip((r.params.max_tokens, r.arrival_ns, r.prompt_token_ids),
                                       (q.params.max_tokens, q.arrival_ns, q.prompt_token_ids), strict=True)]
               for r, q in zip(a[:n], b[:n], strict=True)]
    about = ["output_tokens_max", "arrival_rate", "common_prefix"]
    assert [any(column) for column in zip(*changed, strict=True)] == [knob == name for name in about]
    assert {r.params.temperature for r in b} == {1.0 if knob == "temperature" else 0.0}


def test_every_request_has_a_seed_of_its_own(tokenizer: Tokenizer) -> None:
    seeds = {r.params.seed for run in (1, 2) for r in until(Workload(scenario(arrival_rate=10.0), tokenizer, run), 20)}
    requests = [r for run in (1, 2) for r in until(Workload(scenario(arrival_rate=10.0), tokenizer, run), 20)]
    assert len(seeds) == len(requests)


# ---- when --------------------------------------------------------------------------------------------------------

def gaps(requests: list[NewRequest]) -> np.ndarray:
    return np.diff([r.arrival_ns for r in requests]) / SECOND


def test_poisson_arrivals_have_the_rate_and_the_spread(tokenizer: Tokenizer) -> None:
    g = gaps(until(Workload(scenario(arrival_rate=5.0), tokenizer, 11), 400, 5))
    assert g.mean() == pytest.approx(0.2, rel=0.06)
    assert g.std() == pytest.approx(0.2, rel=0.1)  # exponential: as wide as long
    assert np.mean(g > 0.2) == pytest.approx(np.exp(-1), abs=0.03)
    assert abs(np.corrcoef(g[:-1], g[1:])[0, 1]) < 0.06


def test_a_poisson_process_under_a_changing_rate_stays_one(tokenizer: Tokenizer) -> None:
    """Turned up and down far more often than requests come: the counts must still follow the mean rate."""
    workload = Workload(scenario(), tokenizer, 12, {"arrival_rate": 1.0})
    requests = []
    for i in range(12_000):
        now = i * SECOND // 20
        workload.set_knob("arrival_rate", (0.5, 4.5)[i % 2], now)
        requests += workload.due(now)
    g = gaps(requests)
    assert g.mean() == pytest.approx(1 / 2.5, rel=0.06)
    assert g.std() == pytest.approx(1 / 2.5, rel=0.1)
    in_fast = np.mean([(r.arrival_ns * 20 // SECOND) % 2 for r in requests])
    assert in_fast == pytest.approx(0.9, abs=0.02)


def test_a_pending_gap_is_rescaled(tokenizer: Tokenizer) -> None:
    workload = Workload(scenario(arrivals=Arrivals("uniform")), tokenizer, 0, {"arrival_rate": 0.1})
    assert workload.next_arrival_ns() == 10 * SECOND
    assert workload.due(4 * SECOND) == []
    workload.set_knob("arrival_rate", 1.0, 4 * SECOND)  # six tenths of the gap are left
    assert workload.next_arrival_ns() == pytest.approx(4 * SECOND + 0.6 * SECOND, abs=2)
    workload.set_knob("arrival_rate", 0.0, 4 * SECOND)
    assert workload.next_arrival_ns() is None
    assert workload.due(1000 * SECOND) == []
    workload.set_knob("arrival_rate", 2.0, 1000 * SECOND)
    assert workload.next_arrival_ns() == pytest.approx(1000 * SECOND + 0.3 * SECOND, abs=2)


def test_a_knob_does_not_reach_back(tokenizer: Tokenizer) -> None:
    """Arrivals before the turn are drawn by the old values, even if nobody had asked for them yet."""
    workload = Workload(scenario(arrivals=Arrivals("uniform"), arrival_rate=1.0, output_tokens_min=5,
                                 output_tokens_max=5), tokenizer, 0)
    workload.set_knob("output_tokens_max", 50, int(3.5 * SECOND))
    workload.set_knob("output_tokens_min", 50, int(3.5 * SECOND))
    assert workload.next_arrival_ns() == SECOND
    assert [r.params.max_tokens for r in workload.due(6 * SECOND)] == [5, 5, 5, 50, 50, 50]


def test_uniform_arrivals_are_evenly_apart(tokenizer: Tokenizer) -> None:
    requests = until(Workload(scenario(arrivals=Arrivals("uniform", initial=3), arrival_rate=4.0), tokenizer, 0), 10)
    assert [r.arrival_ns for r in requests] == [0, 0, 0] + [i * SECOND // 4 for i in range(1, 41)]


def test_bursts_come_all_at_once_and_at_the_rate_in_the_mean(tokenizer: Tokenizer) -> None:
    arrivals = Arrivals("burst", burst_size=10, trickle=0.2, max_unfinished=10**6)
    requests = until(Workload(scenario(arrivals=arrivals, arrival_rate=2.0), tokenizer, 3), 400, 1)
    assert len(requests) == pytest.approx(800, rel=0.08)
    times, counts = np.unique([r.arrival_ns for r in requests], return_counts=True)
    bursts = times[counts >= 10]
    assert set(counts) <= {1, 10, 11}
    assert np.diff(bursts) / SECOND == pytest.approx(10 / 0.8 / 2.0)
    assert bursts[0] < 5 * SECOND, "somebody is watching"
    assert counts[counts == 1].sum() == pytest.approx(160, rel=0.2)


def test_a_limited_run_ends(tokenizer: Tokenizer) -> None:
    workload = Workload(scenario(arrivals=Arrivals(requests=7, initial=2)), tokenizer, 0)
    assert not workload.exhausted
    requests = workload.due(1000 * SECOND)
    assert [r.index for r in requests] == list(range(7))
    assert workload.exhausted
    assert workload.next_arrival_ns() is None
    assert workload.due(10_000 * SECOND) == []
    override = Workload(scenario(arrivals=Arrivals(requests=7)), tokenizer, 0, requests=3)
    assert len(override.due(1000 * SECOND)) == 3


def test_exhausted_only_when_all_were_handed_out(tokenizer: Tokenizer) -> None:
    workload = Workload(scenario(arrivals=Arrivals(requests=2)), tokenizer, 0)
    workload.set_knob("temperature", 1.0, 1000 * SECOND)  # draws both, but nobody has them yet
    assert not workload.exhausted
    assert len(workload.due(1000 * SECOND)) == 2
    assert workload.exhausted


def test_a_run_without_end_turns_away_when_too_many_are_unfinished(tokenizer: Tokenizer) -> None:
    workload = Workload(scenario(arrivals=Arrivals(max_unfinished=5), arrival_rate=10.0), tokenizer, 0)
    requests = until(workload, 10)
    assert len(requests) == 5
    assert workload.turned_away > 50
    for r in requests[:2]:
        workload.on_admitted(r, f"r{r.index}")
        workload.on_finished(f"r{r.index}", 10 * SECOND)
    assert len(until(workload, 20, start_s=10.1)) == 2
    # A limited run serves everybody, however late.
    limited = Workload(scenario(arrivals=Arrivals(max_unfinished=5, requests=60), arrival_rate=10.0), tokenizer, 0)
    assert len(until(limited, 20)) == 60


# ---- closed loop -------------------------------------------------------------------------------------------------

def closed(users: int = 3, **more: int) -> Arrivals:
    return Arrivals("closed_loop", users=users, **more)  # type: ignore[arg-type]


def test_users_wait_for_their_answers(tokenizer: Tokenizer) -> None:
    workload = Workload(scenario(arrivals=closed(3, initial=3)), tokenizer, 0)
    first = until(workload, 1000, 10)
    assert [r.arrival_ns for r in first] == [0, 0, 0]
    assert workload.next_arrival_ns() is None
    workload.on_admitted(first[1], "x")
    workload.observe(events(1000 * SECOND, finished=[Finished("x", "stop"), Finished("somebody else's", "stop")]))
    second = until(workload, 2000, 10, 1000)
    assert len(second) == 1
    assert second[0].arrival_ns > 1000 * SECOND
    workload.observe(events(2000 * SECOND, finished=[Finished("x", "stop")]))
    assert workload.next_arrival_ns() is None, "an id is told of once"


def test_aborted_and_refused_requests_give_their_users_back(tokenizer: Tokenizer) -> None:
    workload = Workload(scenario(arrivals=closed(2, initial=2)), tokenizer, 0)
    for r in workload.due(0):
        workload.on_admitted(r, f"r{r.index}")
    workload.observe(events(0, aborted=[Finished("r0", "abort")], refused=[Refused("r1", "prompt_too_long", "...")]))
    assert len(workload.due(1000 * SECOND)) == 2


def test_thinking_takes_users_over_rate_in_the_mean(tokenizer: Tokenizer) -> None:
    workload = Workload(scenario(arrivals=closed(4, initial=4), arrival_rate=2.0), tokenizer, 1)
    requests = []
    for i in range(8000):  # answered as soon as they come: the rate is the knob's
        now = i * SECOND // 20
        for r in workload.due(now):
            requests.append(r)
            workload.on_admitted(r, str(r.index))
            workload.on_finished(str(r.index), now)
    assert len(requests) == pytest.approx(800, rel=0.06)


def answer(workload: Workload, request: NewRequest, text: str, now_ns: int) -> None:
    workload.on_admitted(request, "x")
    sampled = [Sampled("x", 1, text[:3]), Sampled("other", 1, "no"), Sampled("x", 1, text[3:-1])]
    workload.observe(events(now_ns, sampled=sampled))
    workload.observe(events(now_ns, finished=[Finished("x", "stop", text[-1:])]))


def test_a_conversation_goes_on_from_the_answer(tokenizer: Tokenizer) -> None:
    traffic = dataclasses.replace(CHAT, kind="conversation", turns=3)
    workload = Workload(scenario(traffic, arrivals=closed(1), common_prefix=1.0, prompt_tokens_max=40), tokenizer, 2)
    turns = []
    for i in range(6):
        (request,) = workload.due(i * 1000 * SECOND)
        turns.append(request)
        answer(workload, request, f"Answer number {i}.", i * 1000 * SECOND)
    texts = [tokenizer.decode(r.prompt_token_ids) for r in turns]
    for i in (1, 2, 4, 5):
        before = turns[i - 1]
        assert turns[i].prompt_token_ids[:len(before.prompt_token_ids)] == before.prompt_token_ids
        assert f"Answer number {i - 1}." in texts[i]
        assert before.prompt_text in texts[i]
    assert "Answer number 2." not in texts[3], "after three turns a new conversation begins"
    assert turns[3].prompt_text != turns[0].prompt_text
    assert {r.common_prefix_tokens for r in turns} == {turns[0].common_prefix_tokens}


def test_a_conversation_that_would_outgrow_the_context_begins_anew(tokenizer: Tokenizer) -> None:
    traffic = dataclasses.replace(CHAT, kind="conversation", turns=100)
    workload = Workload(scenario(traffic, arrivals=closed(1), output_tokens_max=100), tokenizer, 2, max_model_len=512)
    lengths = []
    for i in range(12):
        (request,) = workload.due(i * 1000 * SECOND)
        assert len(request.prompt_token_ids) + request.params.max_tokens <= 512
        lengths.append(len(request.prompt_token_ids))
        answer(workload, request, "A long answer. " * 15, i * 1000 * SECOND)
    assert sum(b < a for a, b in pairwise(lengths)) >= 2


def test_a_conversation_without_an_answer_begins_anew(tokenizer: Tokenizer) -> None:
    traffic = dataclasses.replace(CHAT, kind="conversation", turns=5)
    workload = Workload(scenario(traffic, arrivals=closed(1)), tokenizer, 2)
    (first,) = workload.due(0)
    workload.on_admitted(first, "x")
    workload.observe(events(0, aborted=[Finished("x", "abort")]))
    (second,) = workload.due(1000 * SECOND)
    assert first.prompt_text not in tokenizer.decode(second.prompt_token_ids)


# ---- what --------------------------------------------------------------------------------------------------------

def test_user_parts_have_the_length_that_was_drawn(tokenizer: Tokenizer) -> None:
    for low, high in ((20, 200), (60, 60), (400, 900), (1, 8)):
        workload = Workload(scenario(prompt_tokens_min=low, prompt_tokens_max=high, arrival_rate=20.0), tokenizer, 5)
        lengths = []
        for r in until(workload, 10):
            n = len(tokenizer.encode(r.prompt_text, add_special_tokens=False))
            assert low - 3 <= n <= high + 2  # counted anew; line breaks may count otherwise
            lengths.append(n)
            assert r.prompt_text in tokenizer.decode(r.prompt_token_ids)
        assert np.mean(lengths) == pytest.approx((low + high) / 2, rel=0.1, abs=2)


def test_documents_are_cut_exactly(tokenizer: Tokenizer) -> None:
    traffic = Traffic("document", kind="document", prompt_tokens=(333, 333), documents=("incident-report",))
    workload = Workload(scenario(traffic, arrival_rate=10.0), tokenizer, 5)
    requests = until(workload, 5)
    assert len({len(r.prompt_token_ids) for r in requests}) == 1
    starts = {tuple(r.prompt_token_ids[:60]) for r in requests}
    assert len(starts) == len(requests), "no two begin alike, or the second would come from the cache"


def test_own_ranges_of_traffic_are_not_touched_by_knobs(tokenizer: Tokenizer) -> None:
    traffic = dataclasses.replace(CHAT, output_tokens=(11, 11))
    workload = Workload(scenario(traffic), tokenizer, 5, {"output_tokens_min": 50, "output_tokens_max": 60})
    assert {r.params.max_tokens for r in until(workload, 20)} == {11}


def test_ranges_may_be_turned_past_each_other(tokenizer: Tokenizer) -> None:
    workload = Workload(scenario(), tokenizer, 5)
    workload.set_knob("output_tokens_min", 200)
    lengths = [r.params.max_tokens for r in until(workload, 60)]
    assert 96 <= min(lengths) < max(lengths) <= 200


@pytest.mark.parametrize("share", [0.0, 0.25, 0.9, 1.0])
def test_the_share_of_the_common_prefix(tokenizer: Tokenizer, share: float) -> None:
    workload = Workload(scenario(dataclasses.replace(CHAT, system="support")), tokenizer, 6,
                        {"common_prefix": share, "arrival_rate": 10.0})
    requests = until(workload, 20)
    common = [r for r in requests if r.common_prefix_tokens]
    assert len(common) / len(requests) == pytest.approx(share, abs=0.02)
    if common:
        n = common[0].common_prefix_tokens
        assert n > 300
        assert {tuple(r.prompt_token_ids[:n]) for r in common} == {tuple(common[0].prompt_token_ids[:n])}
    own = [r for r in requests if not r.common_prefix_tokens]
    # In the first block already no two are alike, so nothing can be hit.
    assert len({tuple(r.prompt_token_ids[:16]) for r in own}) == len(own)
    if common and own:
        lengths = [np.mean([len(r.prompt_token_ids) for r in group]) for group in (common, own)]
        assert lengths[0] == pytest.approx(lengths[1], rel=0.1), "only the sharing differs, not the work"


def test_traffic_is_mixed_by_weight_and_evenly(tokenizer: Tokenizer) -> None:
    document = Traffic("document", kind="document", weight=1, documents=DOCUMENTS, priority=7)
    workload = Workload(scenario(dataclasses.replace(CHAT, weight=4), document, arrival_rate=10.0), tokenizer, 0)
    sources = [r.source for r in until(workload, 40)]
    assert sources.count("document") / len(sources) == pytest.approx(0.2, abs=0.01)
    places = np.flatnonzero(np.array(sources) == "document")
    assert np.diff(places).max() <= 8
    assert {r.priority for r in until(workload, 60, start_s=40) if r.source == "document"} == {7}


def test_prompts_leave_room_in_the_context(tokenizer: Tokenizer) -> None:
    for max_model_len in (2048, 300):
        traffic = dataclasses.replace(CHAT, system="assistant")
        workload = Workload(scenario(traffic), tokenizer, 1, {"prompt_tokens_min": 4096, "prompt_tokens_max": 4096,
                                                            "output_tokens_max": 2048}, max_model_len=max_model_len)
        for r in until(workload, 10):
            assert max_model_len // 2 < len(r.prompt_token_ids) <= max_model_len - MIN_OUTPUT_ROOM
            assert len(r.prompt_token_ids) + r.params.max_tokens <= max_model_len


def test_sampling_follows_the_scenario_and_the_knob(tokenizer: Tokenizer) -> None:
    chosen = dataclasses.replace(scenario(), ignore_eos=True, top_k=40, top_p=0.9)
    workload = Workload(chosen, tokenizer, 1, {"temperature": 0.7, "num_blocks": 64})
    params = [r.params for r in until(workload, 10)]
    assert {(p.temperature, p.top_k, p.top_p, p.ignore_eos) for p in params} == {(0.7, 40, 0.9, True)}


def test_knobs_of_others_are_none_of_its_business(tokenizer: Tokenizer) -> None:
    workload = Workload(scenario(), tokenizer, 1)
    assert workload.set_knob("num_blocks", 64) is False
    assert workload.set_knob("arrival_rate", 3) is True
    assert workload.knobs["arrival_rate"] == 3.0
    with pytest.raises(KnobError, match="arrival_rate: 99 is not a number from 0 to 50"):
        workload.set_knob("arrival_rate", 99)
    with pytest.raises(KnobError, match="no knob 'speed'"):
        workload.set_knob("speed", 1)
    with pytest.raises(KnobError, match="temperature"):
        Workload(scenario(), tokenizer, 1, {"temperature": -1.0})


def test_random_knobs_never_break_it(tokenizer: Tokenizer) -> None:
    rng = random.Random(7)
    for name in ("burst", "many-chats", "long-document"):
        workload = Workload(load_scenario(name), tokenizer, 1)
        waiting: list[str] = []
        for i in range(300):
            now = i * SECOND // 5
            knob, value = rng.choice([
                ("arrival_rate", rng.choice([0.0, 0.3, 5.0, 50.0])), ("common_prefix", rng.random()),
                ("prompt_tokens_min", rng.choice([1, 50, 4096])), ("prompt_tokens_max", rng.choice([1, 50, 4096])),
                ("output_tokens_min", rng.choice([1, 2048])), ("output_tokens_max", rng.choice([1, 2048])),
                ("temperature", rng.random())])
            workload.set_knob(knob, value, now)
            for r in workload.due(now):
                assert 0 < len(r.prompt_token_ids) < 2048
                assert r.params.max_tokens >= 1
                assert now - SECOND // 5 <= r.arrival_ns <= now
                workload.on_admitted(r, f"r{r.index}")
                waiting.append(f"r{r.index}")
            while waiting and rng.random() < 0.6:
                workload.on_finished(waiting.pop(rng.randrange(len(waiting))), now, "Yes." * rng.randrange(2))


def test_drawing_a_request_is_cheap(tokenizer: Tokenizer) -> None:
    workload = Workload(load_scenario("shared-prefix"), tokenizer, 1, {"arrival_rate": 50.0, "common_prefix": 0.5})
    until(workload, 0.5)
    costs = []
    for i in range(50, 400):
        start = time.perf_counter()
        drawn = len(workload.due(i * SECOND // 100))
        if drawn:
            costs.append((time.perf_counter() - start) / drawn)
        for index in range(i * 2):  # nobody is turned away
            workload._unfinished.discard(index)
    assert np.median(costs) < 0.002
