"""Every shipped scenario shows what it says, and soon: the real scheduler, on a CPU that is modelled slow and fast."""

from __future__ import annotations

from functools import cache

import pytest

from engine.scenario import list_scenarios, load_scenario
from engine.trace.events import Evicted, StepEvents
from tests.engine.prompt_tokenizer import prompt_tokenizer
from tests.engine.scenario_simulation import Played, play

SPEEDS = {"slow": (35.0, 0.7), "fast": (15.0, 0.3)}  # milliseconds a step and a token
NAMES = [s.name for s in list_scenarios()]
SECONDS = 30


@cache
def played(name: str, speed: str = "slow", seed: int = 0) -> Played:
    step_ms, token_ms = SPEEDS[speed]
    return play(load_scenario(name), prompt_tokenizer(), SECONDS, seed=seed, step_ms=step_ms, token_ms=token_ms)


def hits(steps: list[StepEvents]) -> int:
    return sum(s.hit_tokens for step in steps for s in step.scheduled if s.admission == "first")


def computed(steps: list[StepEvents]) -> int:
    return sum(s.num_tokens for step in steps for s in step.scheduled)


def preemptions(steps: list[StepEvents]) -> int:
    return sum(len(step.preempted) for step in steps)


def chunked(step: StepEvents) -> bool:
    return any(not s.samples for s in step.scheduled)


def decodes(step: StepEvents) -> int:
    return sum(s.samples and s.num_tokens == 1 for s in step.scheduled)


def finished(steps: list[StepEvents]) -> int:
    return sum(len(step.finished) for step in steps)


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("name", NAMES)
def test_something_happens_all_the_time_and_nothing_is_refused(name: str, speed: str) -> None:
    steps = played(name, speed).steps
    assert not any(step.refused for step in steps)
    assert finished(steps) >= 5
    ends = [step.end_ns / 1e9 for step in steps if step.sampled]
    pauses = [b - a for a, b in zip([0.0, *ends], [*ends, float(SECONDS)], strict=True)]
    assert max(pauses) < 8.0, "nobody is asked to look at a still picture for long"
    assert sum(p for p in pauses if p > 1.0) < SECONDS / 2
    assert ends[0] < 1.0


@pytest.mark.parametrize("name", NAMES)
def test_prompts_fit_the_context_and_the_pool(name: str) -> None:
    run = played(name)
    config = run.engine.scheduler.config
    for step in run.steps:
        for arrived in step.arrived:
            longest = len(arrived.prompt_token_ids) + arrived.max_tokens
            assert longest <= config.max_model_len
            assert longest <= (config.num_blocks - 1) * config.block_size


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("name", NAMES)
def test_the_queue_does_not_run_away(name: str, speed: str) -> None:
    if (name, speed) == ("no-reuse", "slow"):
        pytest.skip("that is the point of it")
    run = played(name, speed)
    arrived = sum(len(step.arrived) for step in run.steps)
    assert arrived - finished(run.steps) <= 20
    assert run.workload.turned_away == 0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_shared_prefix_shows_hits_and_finished_requests(seed: int) -> None:
    early = played("shared-prefix", seed=seed).before(10)
    assert hits(early) > 3000
    assert hits(early) > computed(early)
    assert finished(early) >= 5


def test_sharing_ends_where_common_prefix_is_turned_down() -> None:
    run = play(load_scenario("shared-prefix"), prompt_tokenizer(), 30, turned=[(10, "common_prefix", 0.0)])
    before, after = run.before(10), run.steps[len(run.before(12)):]
    assert hits(before) > 3000
    assert hits(after) < hits(before) / 10
    assert len({c.name for step in run.steps for c in step.knobs}) == 1


def test_no_reuse_finds_nothing_and_waits_longer() -> None:
    alone, shared = played("no-reuse").steps, played("shared-prefix").steps
    assert hits(alone) == 0
    assert computed(alone) > 2.5 * computed(shared)

    def mean_wait(steps: list[StepEvents]) -> float:
        arrival = {a.request_id: a.arrival_ns for step in steps for a in step.arrived}
        first: dict[str, int] = {}
        for step in steps:
            for s in step.sampled:
                first.setdefault(s.request_id, step.end_ns)
        return sum(first[r] - arrival[r] for r in first) / len(first)

    assert mean_wait(alone) > 2 * mean_wait(shared)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_memory_pressure_shows_preemptions_within_seconds(seed: int) -> None:
    run = played("memory-pressure", seed=seed)
    assert preemptions(run.before(10)) >= 2
    assert preemptions(run.steps) >= 8
    assert {p.cause for step in run.steps for p in step.preempted} == {"no_free_blocks"}
    relieved = play(load_scenario("memory-pressure"), prompt_tokenizer(), 30, seed=seed, knobs={"num_blocks": 512})
    assert preemptions(relieved.steps) == 0


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("speed", SPEEDS)
def test_long_document_is_chunked_while_chats_decode(seed: int, speed: str) -> None:
    run = played("long-document", speed, seed)
    assert sum(map(chunked, run.before(12))) >= 4
    assert sum(chunked(step) and decodes(step) >= 1 for step in run.before(20)) >= 6
    sources = {a.source for step in run.steps for a in step.arrived}
    assert sources == {"chat", "document"}


def test_long_documents_hold_up_decodes_when_the_budget_is_large() -> None:
    """What the scenario invites to try: a larger budget makes the gaps between a chat's tokens wider."""
    def longest_with_decodes(budget: int) -> float:
        run = play(load_scenario("long-document"), prompt_tokenizer(), 30, knobs={"max_num_batched_tokens": budget})
        return max(step.end_ns - step.start_ns for step in run.steps if decodes(step)) / 1e6

    assert longest_with_decodes(2048) > 3 * longest_with_decodes(192)


def test_burst_is_quiet_and_then_crowded() -> None:
    steps = played("burst").steps
    waiting: set[str] = set()
    most, calm = 0, 0
    for step in steps:
        waiting |= {a.request_id for a in step.arrived}
        waiting -= {s.request_id for s in step.scheduled}
        most = max(most, len(waiting))
        calm += not waiting and len(step.scheduled) <= 2
    assert most >= 8
    assert calm >= 20
    first_burst = next(step for step in steps if len(step.arrived) >= 16)
    assert first_burst.start_ns < 10e9


@pytest.mark.parametrize("name", ["one-chat", "many-chats", "tool-assistant"])
def test_later_turns_of_a_conversation_hit_the_earlier_ones(name: str) -> None:
    run = played(name)
    first = {s.request_id: s for step in run.steps for s in step.scheduled if s.admission == "first"}
    prompts = {a.request_id: a for step in run.steps for a in step.arrived}
    deep = [r for r, s in first.items() if s.hit_tokens > len(prompts[r].prompt_token_ids) // 2]
    assert len(deep) >= 3


def test_one_chat_is_one() -> None:
    assert max(len(step.scheduled) for step in played("one-chat").steps) == 1


def test_many_chats_share_steps() -> None:
    assert sum(len(step.scheduled) >= 3 for step in played("many-chats").steps) > 100


def test_few_shot_is_nearly_all_hits() -> None:
    late = played("few-shot").steps[50:]
    assert hits(late) > 6 * computed(late)


def test_priority_lanes_let_questions_overtake() -> None:
    steps = played("priority-lanes").steps
    source = {a.request_id: a.source for step in steps for a in step.arrived}
    place = {a.request_id: i for i, a in enumerate(a for step in steps for a in step.arrived)}
    admitted = [s.request_id for step in steps for s in step.scheduled if s.admission == "first"]
    overtaken = [(a, b) for i, a in enumerate(admitted) for b in admitted[i + 1:] if place[b] < place[a]]
    assert overtaken
    assert {(source[a], source[b]) for a, b in overtaken} == {("editor", "summary")}
    assert all(source[p.request_id] == "summary" for step in steps for p in step.preempted)
    assert preemptions(steps) >= 1


@pytest.mark.parametrize("name", [n for n in NAMES if n != "one-chat"])
def test_the_pool_is_lively(name: str) -> None:
    run = played(name)
    usable = run.engine.scheduler.config.num_blocks - 1
    used = [1 - step.free_blocks / usable for step in run.steps]
    assert max(used) > 0.35
    assert sum(isinstance(e, Evicted) for step in run.steps for e in step.pool) > 10
