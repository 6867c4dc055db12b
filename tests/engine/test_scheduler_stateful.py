"""Anything may happen to the scheduler, in any order: nothing is lost, and every text is as when served alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from engine.config import SchedulerConfig
from engine.plan import StepPlan
from engine.request import Request, RequestRefused
from tests.engine.scheduler_driver import SchedulerDriver, make_request
from tests.engine.token_runner import EOS, TokenRunner, text_of

MAX_MODEL_LEN = 160

knob_values: dict[str, st.SearchStrategy[Any]] = {
    "max_num_batched_tokens": st.sampled_from([16, 17, 40, 200]),
    "max_num_seqs": st.sampled_from([1, 2, 5, 16]),
    "enable_chunked_prefill": st.booleans(),
    "long_prefill_token_threshold": st.sampled_from([0, 1, 7, 33]),
    "policy": st.sampled_from(["fcfs", "priority"]),
    "enable_prefix_caching": st.booleans(),
    "reserve_full_input": st.booleans(),
    "watermark": st.sampled_from([0.0, 0.1, 0.5]),
    "num_blocks": st.sampled_from([8, 9, 12, 20, 60]),
    "block_size": st.sampled_from([8, 16, 32]),
}
configs = st.fixed_dictionaries({**knob_values, "block_size": st.sampled_from([1, 4, 8, 16])})
# A few prefixes that many prompts share, so that blocks are hit, shared and evicted.
prompts = st.builds(lambda group, shared, tail: [1 + (group * 131 + i) % 300 for i in range(shared)] + tail,
                    st.integers(0, 2), st.sampled_from([0, 7, 16, 40, 64, 100]),
                    st.lists(st.integers(1, 300), min_size=1, max_size=20))


class PagedTokens(TokenRunner):
    """Computes what a real runner has to compute, orphaned blocks too; checks every slot that is read."""

    def execute(self, plan: StepPlan) -> list[int]:
        return super().execute(StepPlan(scheduled=plan.computed))


class SchedulerMachine(RuleBasedStateMachine):
    added = Bundle("added")

    @initialize(config=configs)
    def start(self, config: dict[str, Any]) -> None:
        self.driver = SchedulerDriver(SchedulerConfig(**config, max_model_len=MAX_MODEL_LEN), [EOS])
        self.runner = PagedTokens()
        self.runner.allocate_cache(config["num_blocks"], config["block_size"])
        self.requests: list[Request] = []
        self.limited: set[str] = set()  # may end earlier than alone: a pool was ever too small for them

    @property
    def longest(self) -> int:
        config = self.driver.scheduler.config
        return (config.num_blocks - 1) * config.block_size

    @rule(target=added, prompt=prompts, max_tokens=st.integers(1, 70), priority=st.integers(-1, 1),
          salt=st.sampled_from([None, None, "a", "b"]))
    def add(self, prompt: list[int], max_tokens: int, priority: int, salt: str | None) -> Any:
        request = make_request(f"r{len(self.requests)}", prompt, max_tokens, priority=priority, salt=salt)
        if len(prompt) > min(self.longest, MAX_MODEL_LEN - 1):
            with pytest.raises(RequestRefused) as refusal:
                self.driver.add(request)
            too_long = len(prompt) >= MAX_MODEL_LEN
            assert refusal.value.reason == ("prompt_too_long" if too_long else "larger_than_pool")
            return multiple()
        self.driver.add(request)
        self.requests.append(request)
        self._note_limits()
        return request.request_id

    @rule(request_id=added)
    def abort(self, request_id: str) -> None:
        is_there = request_id not in self.driver.reasons
        assert self.driver.end(request_id) == is_there

    @rule(data=st.data(), names=st.sets(st.sampled_from(sorted(knob_values)), min_size=1, max_size=3))
    def turn(self, data: st.DataObject, names: set[str]) -> None:
        changes = {name: data.draw(knob_values[name], label=name) for name in sorted(names)}
        changed = {change.name for change in self.driver.turn(changes)}
        scheduler = self.driver.scheduler
        if changed & {"num_blocks", "block_size"}:
            self.runner.allocate_cache(scheduler.config.num_blocks, scheduler.config.block_size)
            assert not scheduler.running
            assert scheduler.pool.num_free_blocks == scheduler.config.num_blocks - 1
        self._note_limits()
        for request in scheduler.unservable():
            assert self.driver.end(request.request_id, "length")

    @rule()
    def reset_cache(self) -> None:
        scheduler = self.driver.scheduler
        assert scheduler.reset_prefix_cache() == (not scheduler.running)

    @rule(count=st.integers(1, 12))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self._step()

    def _step(self) -> None:
        scheduler, driver = self.driver.scheduler, self.driver
        had_work = bool(scheduler.requests)
        told_before = bool(driver._knobs or driver._aborted)
        events = driver.step(self.runner.execute)
        plan, config = driver.plan, scheduler.config
        assert plan.num_tokens <= config.max_num_batched_tokens
        assert all(entry.num_tokens > 0 for entry in plan.scheduled)
        admitted = sum(bool(entry.admission) for entry in plan.scheduled)
        forced = [p for p in plan.preempted if p.cause == "no_free_blocks"]
        assert not (admitted and forced)
        if admitted:
            assert len(scheduler.running) + len(events.finished) <= config.max_num_seqs
        if had_work and not told_before:
            assert plan.scheduled or forced, "there is work and nothing is done"
        self.driver.check()

    def _note_limits(self) -> None:
        for request in self.driver.scheduler.requests.values():
            if request.num_prompt_tokens + request.params.max_tokens > min(self.longest + 1, MAX_MODEL_LEN):
                self.limited.add(request.request_id)

    @invariant()
    def pool_adds_up(self) -> None:
        if hasattr(self, "driver"):
            scheduler = self.driver.scheduler
            scheduler.pool.check(request.block_ids for request in scheduler.requests.values())

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        scheduler = self.driver.scheduler
        for _ in range(sum(r.num_tokens + r.params.max_tokens for r in scheduler.requests.values()) * 3 + 50):
            if not scheduler.requests:
                break
            self._step()
        assert not scheduler.requests, "a request never ends"
        assert scheduler.pool.num_free_blocks == scheduler.config.num_blocks - 1
        assert scheduler.reset_prefix_cache()
        for request in self.requests:
            reason = self.driver.reasons[request.request_id]
            output = request.token_ids[request.num_prompt_tokens:]
            alone = text_of(request.prompt_token_ids, request.params.max_tokens)
            assert output == alone[:len(output)]
            assert request.finish_reason == reason
            if reason == "stop":
                assert output == alone
                assert output[-1] == EOS
            elif reason == "length" and request.request_id not in self.limited:
                assert output == alone


SchedulerMachine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
test_scheduler_machine = SchedulerMachine.TestCase
