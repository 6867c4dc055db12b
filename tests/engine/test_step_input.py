"""Input that was prepared ahead is the input that would have been made anew."""

from __future__ import annotations

import random

import numpy as np
import pytest

from engine.config import SchedulerConfig
from engine.plan import StepPlan
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler
from engine.step_input import InputMaker, StepInput
from tests.engine.token_runner import next_token
from tests.engine.trace_runs import TURNS

MAX_MODEL_LEN = 512


def fields_of(step: StepInput, block_size: int) -> list[list[int]]:
    """Everything that is read of it: of block tables nothing beyond the context."""
    blocks = -(-step.context_lens // block_size)
    tables = [step.block_tables[r, :count].tolist() for r, count in enumerate(blocks)]
    return [step.token_ids.tolist(), step.positions.tolist(), step.query_starts.tolist(), step.context_lens.tolist(),
            tables, step.sample_rows.tolist()]


def new_request(chance: random.Random, number: int, common: list[int]) -> Request:
    prompt = (common if chance.random() < 0.4 else []) + [
        chance.randrange(1, 400) for _ in range(chance.choice((1, 7, 8, 30, 90)))]
    return Request(f"r{number}", prompt, SamplingParams(max_tokens=chance.randrange(1, 60)),
                   priority=chance.randrange(3))  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_prepared_ahead_or_not(seed: int) -> None:
    """Random requests, aborts and knobs, with preemptions; a new pool now and then."""
    chance = random.Random(seed)
    config = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8, block_size=8, num_blocks=24,
                             max_model_len=MAX_MODEL_LEN, policy=chance.choice(("fcfs", "priority")),
                             reserve_full_input=False)  # fmt: skip
    scheduler = Scheduler(config, {0})
    ahead, anew = InputMaker(), InputMaker()
    makers = (ahead, anew)
    for maker in makers:
        maker.clear(8, MAX_MODEL_LEN)
    common = [chance.randrange(1, 400) for _ in range(40)]
    steps = preempted = orphans = 0
    waiting = 30
    while waiting or scheduler.requests:
        steps += 1
        if waiting and chance.random() < 0.15:
            scheduler.add_request(new_request(chance, waiting, common))
            waiting -= 1
        if scheduler.requests and chance.random() < 0.03:
            gone = chance.choice(list(scheduler.requests))
            scheduler.abort(gone)
            for maker in makers:
                maker.free(gone)
        if chance.random() < 0.02:
            name = chance.choice([n for n in TURNS if n != "arrival_rate"])
            if scheduler.reconfigure({name: chance.choice(TURNS[name])}) and name in ("num_blocks", "block_size"):
                for maker in makers:
                    maker.clear(scheduler.config.block_size, MAX_MODEL_LEN)
            for request in scheduler.unservable():
                scheduler.finish(request.request_id, "length")
        plan = scheduler.schedule()
        preempted += len(plan.preempted)
        orphans += len(plan.orphans)
        if plan.computed:
            size = scheduler.config.block_size
            assert fields_of(ahead.make(plan), size) == fields_of(anew.make(plan), size)
            ahead.prepare_ahead()
            if chance.random() < 0.1:
                ahead.forget_ahead()
        tokens = [next_token(entry.request.token_ids) for entry in plan.scheduled if entry.samples]
        for request, _ in scheduler.commit(plan, tokens):
            for maker in makers:
                maker.free(request.request_id)
    assert preempted > 0
    assert ahead.guessed_right > steps / 4
    assert anew.guessed_right == 0


def plan_of(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.schedule()
    scheduler.commit(plan, [5] * sum(entry.samples for entry in plan.scheduled))
    return plan


def test_what_the_step_before_read_is_not_written_over() -> None:
    """A device may still be reading it."""
    scheduler = Scheduler(SchedulerConfig(), ())
    maker = InputMaker()
    maker.clear(16, MAX_MODEL_LEN)
    for name in "ab":
        scheduler.add_request(Request(name, [1, 2, 3], SamplingParams(max_tokens=40)))
    first = maker.make(plan_of(scheduler))
    before = fields_of(first, 16)
    maker.prepare_ahead()
    assert fields_of(first, 16) == before
    second = maker.make(plan_of(scheduler))
    assert maker.guessed_right == 1
    assert fields_of(first, 16) == before
    assert second.positions.tolist() == [3, 3]
    assert second.token_ids.tolist() == [5, 5]


def test_nothing_is_guessed_while_prompts_are_chunked() -> None:
    scheduler = Scheduler(SchedulerConfig(max_num_batched_tokens=16), ())
    maker = InputMaker()
    maker.clear(16, MAX_MODEL_LEN)
    scheduler.add_request(Request("a", list(range(1, 40)), SamplingParams(max_tokens=5)))
    for expected in ([0, 16], [0, 16], [0, 7], [0, 1], [0, 1]):
        step = maker.make(plan_of(scheduler))
        assert np.array_equal(step.query_starts, expected)
        maker.prepare_ahead()
    assert maker.guessed_right == 2
