"""What the scheduler decides, case by case. Comparison with vLLM is in test_conform.py."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.config import SchedulerConfig
from engine.plan import StepPlan
from engine.request import Request, RequestRefused, RequestStatus
from engine.trace.events import Allocated, Cached, CacheReset, Evicted, Freed, Hit, KnobChange, PoolRebuilt
from engine.trace.knobs import KnobError
from tests.engine.scheduler_driver import SchedulerDriver, TokensOf, make_request
from tests.engine.token_runner import EOS, TokenRunner, text_of


def make(**config: Any) -> SchedulerDriver:
    defaults: dict[str, Any] = {"max_num_batched_tokens": 64, "max_num_seqs": 8, "block_size": 4, "num_blocks": 33,
                                "max_model_len": 120}
    return SchedulerDriver(SchedulerConfig(**{**defaults, **config}), [EOS])


def sevens(plan: StepPlan) -> list[int]:
    """A token for everybody who samples."""
    return [7 for entry in plan.scheduled if entry.samples]


def run(driver: SchedulerDriver) -> list[tuple[str, int]]:
    """One step; who was scheduled for how many tokens."""
    driver.step(sevens)
    driver.check()
    return [(entry.request.request_id, entry.num_tokens) for entry in driver.plan.scheduled]


class TestBudget:
    def test_a_prompt_is_computed_in_chunks_and_samples_at_its_end(self) -> None:
        driver = make(max_num_batched_tokens=16)
        driver.add(make_request("a", range(40)))
        shares = [run(driver) for _ in range(4)]
        assert shares == [[("a", 16)], [("a", 16)], [("a", 8)], [("a", 1)]]
        assert driver.scheduler.requests["a"].token_ids[40:] == [7, 7]

    def test_decodes_go_first_and_the_rest_of_the_budget_goes_to_the_next_prompt(self) -> None:
        driver = make(max_num_batched_tokens=16)
        driver.add(make_request("a", range(10)))
        run(driver)
        driver.add(make_request("b", range(50, 90)))
        assert run(driver) == [("a", 1), ("b", 15)]
        assert (driver.plan.stopped_by, driver.plan.stopped_at) == ("budget", "b")

    def test_the_threshold_holds_only_in_company(self) -> None:
        driver = make(long_prefill_token_threshold=5)
        driver.add(make_request("a", range(30)))
        assert run(driver) == [("a", 30)]
        driver.add(make_request("b", range(50, 80)))
        assert run(driver) == [("a", 1), ("b", 5)]
        assert driver.plan.stopped_by == ""

    def test_with_chunking_off_a_prompt_waits_for_a_budget_that_takes_it_whole(self) -> None:
        driver = make(max_num_batched_tokens=32, enable_chunked_prefill=False)
        driver.add(make_request("a", range(20)))
        driver.add(make_request("b", range(50, 70)))
        driver.add(make_request("c", range(90, 95)))
        assert run(driver) == [("a", 20)]
        assert (driver.plan.stopped_by, driver.plan.stopped_at) == ("chunked_prefill_off", "b")
        assert run(driver) == [("a", 1), ("b", 20), ("c", 5)]

    def test_with_chunking_off_a_prompt_larger_than_any_budget_still_runs(self) -> None:
        driver = make(max_num_batched_tokens=16, enable_chunked_prefill=False)
        driver.add(make_request("a", range(40)))
        assert [run(driver) for _ in range(3)] == [[("a", 16)], [("a", 16)], [("a", 8)]]


class TestWhyItStopped:
    def test_max_num_seqs(self) -> None:
        driver = make(max_num_seqs=2)
        for name in "abc":
            driver.add(make_request(name, [1, 2]))
        run(driver)
        assert (driver.plan.stopped_by, driver.plan.stopped_at) == ("max_num_seqs", "c")

    def test_no_free_blocks(self) -> None:
        driver = make(num_blocks=9)
        driver.add(make_request("a", range(20)))
        driver.add(make_request("b", range(50, 70)))
        driver.add(make_request("c", [1]))
        assert run(driver) == [("a", 20)]
        assert (driver.plan.stopped_by, driver.plan.stopped_at) == ("no_free_blocks", "b")

    def test_watermark_holds_only_while_somebody_runs(self) -> None:
        driver = make(num_blocks=21, watermark=0.5)
        driver.add(make_request("a", range(48)))
        driver.add(make_request("b", [1]))
        assert run(driver) == [("a", 48)]
        assert (driver.plan.stopped_by, driver.plan.stopped_at) == ("watermark", "b")

    def test_budget_names_the_running_request_that_got_nothing(self) -> None:
        driver = make(max_num_batched_tokens=16)
        driver.add(make_request("a", range(8)))
        driver.add(make_request("b", range(8)))
        run(driver)
        driver.turn({"max_num_batched_tokens": 17})
        driver.add(make_request("c", range(30)))
        run(driver)
        driver.turn({"max_num_batched_tokens": 16})
        driver.scheduler.config = SchedulerConfig(
            **{**driver.scheduler.config.as_dict(), "max_num_batched_tokens": 2})  # type: ignore[arg-type]
        assert run(driver) == [("a", 1), ("b", 1)]
        assert (driver.plan.stopped_by, driver.plan.stopped_at) == ("budget", "c")

    def test_nothing_left(self) -> None:
        driver = make()
        driver.add(make_request("a", [1]))
        run(driver)
        assert (driver.plan.stopped_by, driver.plan.stopped_at) == ("", "")


class TestPreemption:
    def test_the_last_to_come_goes_and_comes_back_first(self) -> None:
        driver = make(num_blocks=7, reserve_full_input=True)
        for name in "abc":
            driver.add(make_request(name, range(ord(name), ord(name) + 8)))
        driver.add(make_request("d", [1]))
        assert run(driver) == [("a", 8), ("b", 8), ("c", 8)]
        assert run(driver) == [("a", 1), ("b", 1)]
        assert [(p.request_id, p.cause, p.for_request, p.lost_tokens, p.freed_blocks)
                for p in driver.plan.preempted] == [("c", "no_free_blocks", "a", 8, 2)]
        assert (driver.plan.stopped_by, driver.plan.stopped_at) == ("preemption", "c")
        assert [r.request_id for r in driver.scheduler.waiting] == ["c", "d"]
        assert driver.scheduler.requests["c"].token_ids[8:] == [7]

    def test_it_recomputes_its_output_too_and_may_hit_its_own_blocks(self) -> None:
        driver = make(num_blocks=7)
        for name in "abc":
            driver.add(make_request(name, range(ord(name) * 3, ord(name) * 3 + 8), max_tokens=9))
        for _ in range(40):
            run(driver)
            for entry in driver.plan.scheduled:
                if entry.admission == "resumed":
                    assert entry.hit_tokens + entry.num_tokens == entry.request.num_tokens - 1  # one more by now
                    assert entry.hit_tokens == 8
                    return
        pytest.fail("nobody came back")

    def test_by_priority_the_least_urgent_goes_even_if_it_is_scheduled_already(self) -> None:
        driver = make(policy="priority", num_blocks=7)
        driver.add(make_request("low", range(8), priority=5))
        run(driver)
        driver.add(make_request("high", range(50, 62), priority=1))
        assert run(driver) == [("low", 1), ("high", 12)]
        # "low" holds three blocks and its next token needs no other; "high" needs one more and there is none.
        assert run(driver) == [("high", 1)]
        assert [p.request_id for p in driver.plan.preempted] == ["low"]
        assert driver.plan.num_tokens == 1

    def test_who_is_alone_and_fills_the_pool_ends_with_length(self) -> None:
        driver = make(num_blocks=4, block_size=4)
        request = driver.add(make_request("a", range(10), max_tokens=50))
        for _ in range(10):
            run(driver)
        assert driver.reasons == {"a": "length"}
        assert request.num_tokens == 13  # 12 fit, and the last token needs no slot
        assert driver.scheduler.pool.num_free_blocks == 3


class PagedTokens(TokenRunner):
    def execute(self, plan: StepPlan) -> list[int]:
        return super().execute(StepPlan(scheduled=plan.computed))


class TestOrphans:
    """Blocks that a step caches for a request that the same step then preempts."""

    @staticmethod
    def until_preempted(tokens_of: TokensOf = sevens) -> SchedulerDriver:
        driver = make(policy="priority", num_blocks=9, max_num_batched_tokens=12, long_prefill_token_threshold=8,
                      reserve_full_input=False)
        driver.add(make_request("low", range(100, 132), priority=5))
        driver.step(tokens_of)
        driver.add(make_request("high", [1, 2, 3, 4], priority=1, max_tokens=3))
        driver.step(tokens_of)
        driver.step(tokens_of)
        driver.check()
        return driver

    def test_they_are_computed_all_the_same(self) -> None:
        driver = self.until_preempted()
        assert [p.request_id for p in driver.plan.preempted] == ["low"]
        assert [(e.request.request_id, e.num_tokens) for e in driver.plan.scheduled] == [("high", 1)]
        (orphan,) = driver.plan.orphans
        # It was to compute tokens 20 to 27, two blocks; "high" took the second of them.
        assert (orphan.request.request_id, orphan.num_computed_tokens, orphan.num_tokens) == ("low", 20, 4)
        assert len(orphan.request.block_ids) == 6
        assert not orphan.samples
        assert driver.plan.computed == [*driver.plan.scheduled, orphan]
        assert driver.plan.num_tokens == 1

    def test_they_are_hit_as_vllm_hits_them_and_hold_what_they_should(self) -> None:
        runner = PagedTokens()
        runner.allocate_cache(9, 4)
        driver = self.until_preempted(runner.execute)
        hits = []
        for _ in range(6):
            driver.step(runner.execute)
            hits += [e.hit_tokens for e in driver.plan.scheduled if e.request.request_id == "low" and e.admission]
        assert hits == [24]

    def test_without_them_the_cache_would_hold_other_tokens(self) -> None:
        runner = TokenRunner()
        runner.allocate_cache(9, 4)

        def only_what_is_scheduled(plan: StepPlan) -> list[int]:
            return runner.execute(StepPlan(scheduled=plan.scheduled))

        def run_on() -> None:
            for _ in range(6):
                driver.step(only_what_is_scheduled)

        driver = self.until_preempted(only_what_is_scheduled)
        with pytest.raises(AssertionError, match="the cache holds other tokens"):
            run_on()

    def test_under_random_load_no_block_is_hit_that_was_never_computed(self) -> None:
        orphans = 0
        for seed in range(60):
            rng = random.Random(seed)
            driver = make(policy="priority", num_blocks=rng.choice((20, 21, 22)), max_num_batched_tokens=40,
                          long_prefill_token_threshold=rng.choice((8, 9, 12)), reserve_full_input=False)
            runner = PagedTokens()
            runner.allocate_cache(driver.scheduler.config.num_blocks, 4)
            requests = []
            for step in range(120):
                # A long prompt that can wait, and while it is being computed short ones that cannot.
                if step % 20 < 3 and step < 80:
                    prompt = [rng.randrange(1, 500) for _ in range(rng.randrange(5, 12) if step % 20 else 70)]
                    requests.append(driver.add(make_request(f"r{step}", prompt, 25, priority=0 if step % 20 else 9)))
                driver.step(runner.execute)
                orphans += len(driver.plan.orphans)
            for request in requests:
                output = request.token_ids[request.num_prompt_tokens:]
                assert output == text_of(request.prompt_token_ids, request.params.max_tokens)[:len(output)]
        assert orphans >= 5


class TestEvents:
    def test_they_come_in_the_order_in_which_things_happen(self) -> None:
        driver = make(num_blocks=6, block_size=4)
        driver.add(make_request("a", range(10), max_tokens=1))
        events = driver.step(sevens).pool
        assert [type(e) for e in events] == [Allocated, Cached, Freed]
        assert events[0] == Allocated("a", [1, 2, 3])
        assert isinstance(events[1], Cached)
        assert events[1].blocks == [1, 2]
        assert events[2] == Freed("a", [3, 2, 1])
        hashes = events[1].hashes
        assert 0 not in hashes
        assert len(set(hashes)) == 2

        # The queue is 3 4 5 2 1 now: one hit in its middle, three from its head, no eviction yet.
        driver.add(make_request("b", [0, 1, 2, 3, *range(20, 31)], max_tokens=1))
        events = driver.step(sevens).pool
        assert [type(e) for e in events] == [Hit, Allocated, Cached, Freed]
        assert events[:2] == [Hit("b", [1]), Allocated("b", [3, 4, 5])]

        driver.add(make_request("c", range(40, 60), max_tokens=1))
        events = driver.step(sevens).pool
        assert [type(e) for e in events] == [Evicted, Allocated, Cached, Freed]
        assert isinstance(events[0], Evicted)
        assert events[0].blocks == [2, 4, 3, 1]
        assert events[0].hashes[0] == hashes[1]
        assert events[0].hashes[3] == hashes[0]
        driver.check()

    def test_a_request_can_hit_what_the_same_step_caches(self) -> None:
        driver = make()
        driver.add(make_request("a", range(16)))
        driver.add(make_request("b", range(16)))
        assert run(driver) == [("a", 16), ("b", 4)]
        assert driver.plan.scheduled[1].hit_tokens == 12

    def test_a_decode_caches_the_block_that_it_fills(self) -> None:
        driver = make()
        driver.add(make_request("a", range(6)))
        cached = []
        for _ in range(3):
            cached.append([e.blocks for e in driver.step(sevens).pool if isinstance(e, Cached)])
        assert cached == [[[1]], [], [[2]]]


class TestArrivals:
    @pytest.mark.parametrize(("prompt", "max_tokens", "reason"), [
        (range(120), 5, "prompt_too_long"), (range(0), 5, "empty_prompt"), (range(3), 0, "bad_parameters")])
    def test_what_can_never_be_served_is_refused(self, prompt: range, max_tokens: int, reason: str) -> None:
        driver = make()
        with pytest.raises(RequestRefused) as refusal:
            driver.add(make_request("a", prompt, max_tokens))
        assert refusal.value.reason == reason
        assert not driver.scheduler.requests

    def test_a_prompt_must_fit_the_pool(self) -> None:
        driver = make(num_blocks=6)
        with pytest.raises(RequestRefused, match="21 tokens; the whole pool") as refusal:
            driver.add(make_request("a", range(21)))
        assert refusal.value.reason == "larger_than_pool"
        driver.add(make_request("b", range(20), max_tokens=5))
        run(driver)
        assert driver.reasons == {"b": "length"}

    def test_an_id_is_taken_only_once(self) -> None:
        driver = make()
        driver.add(make_request("a", [1]))
        with pytest.raises(ValueError, match="'a' already"):
            driver.scheduler.add_request(make_request("a", [1]))

    def test_salts_never_share_blocks(self) -> None:
        driver = make()
        for name, salt in (("a", "x"), ("b", "y"), ("c", None), ("d", "x")):
            driver.add(make_request(name, range(9), salt=salt))
        run(driver)
        assert [entry.hit_tokens for entry in driver.plan.scheduled] == [0, 0, 0, 8]

    def test_priorities_order_the_queue_and_ties_go_by_arrival(self) -> None:
        driver = make(policy="priority", max_num_seqs=1)
        for name, priority in (("a", 2), ("b", 0), ("c", 1), ("d", 0)):
            driver.add(make_request(name, [1], priority=priority))
        run(driver)
        assert [r.request_id for r in driver.scheduler.running] == ["b"]
        assert [r.request_id for r in driver.scheduler.waiting] == ["d", "c", "a"]


class TestEnds:
    def test_at_the_end_of_sequence_unless_it_is_ignored(self) -> None:
        driver = make()
        driver.add(make_request("a", [1], max_tokens=1))
        driver.add(make_request("b", [1], max_tokens=2, ignore_eos=True))
        driver.step(lambda plan: [EOS, EOS])
        assert driver.reasons == {"a": "stop"}
        driver.step(lambda plan: [EOS])
        assert driver.reasons == {"a": "stop", "b": "length"}

    def test_at_the_end_of_the_context(self) -> None:
        driver = make(max_model_len=12)
        request = driver.add(make_request("a", range(10)))
        run(driver)
        run(driver)
        assert driver.reasons == {"a": "length"}
        assert request.num_tokens == 12

    @pytest.mark.parametrize("policy", ["fcfs", "priority"])
    def test_abort_of_waiting_and_running(self, policy: str) -> None:
        driver = make(max_num_seqs=2, policy=policy)
        for name in "abcde":
            driver.add(make_request(name, [1, 2, 3]))
        run(driver)
        assert driver.end("d")
        assert driver.end("a")
        assert not driver.end("a")
        assert not driver.end("nobody")
        assert run(driver) == [("b", 1), ("c", 3)]
        assert [r.request_id for r in driver.scheduler.waiting] == ["e"]

    def test_tokens_must_match_the_plan(self) -> None:
        driver = make()
        driver.add(make_request("a", [1]))
        plan = driver.scheduler.schedule()
        with pytest.raises(ValueError, match="2 tokens for a plan that samples 1"):
            driver.scheduler.commit(plan, [7, 7])

    def test_nothing_happens_in_the_middle_of_a_step(self) -> None:
        driver = make()
        driver.add(make_request("a", [1]))
        plan = driver.scheduler.schedule()
        for action in (driver.scheduler.schedule, driver.scheduler.reset_prefix_cache,
                       lambda: driver.scheduler.abort("a"), lambda: driver.scheduler.reconfigure({"num_blocks": 50})):
            with pytest.raises(RuntimeError, match="commit"):
                action()
        driver.scheduler.commit(plan, [7])
        assert driver.scheduler.abort("a")


class TestKnobs:
    def test_only_real_changes_are_told(self) -> None:
        driver = make()
        assert driver.turn({"max_num_seqs": 3, "watermark": 0.0}) == [KnobChange("max_num_seqs", 8, 3)]

    @pytest.mark.parametrize("changes", [
        {"max_num_seqs": 3, "num_blocks": 2}, {"max_num_seqs": 3, "arrival_rate": 1.0}, {"nonsense": 1},
        {"max_num_seqs": 3, "max_model_len": 5}])
    def test_a_bad_change_changes_nothing(self, changes: dict[str, Any]) -> None:
        driver = make()
        before = driver.scheduler.config
        with pytest.raises(KnobError):
            driver.turn(changes)
        assert driver.scheduler.config == before

    @pytest.mark.parametrize("policy", ["fcfs", "priority"])
    def test_a_new_block_size_preempts_everybody_and_they_resume_in_the_next_step(self, policy: str) -> None:
        driver = make(policy=policy)
        for name in "ab":
            driver.add(make_request(name, range(ord(name), ord(name) + 12)))
        run(driver)
        driver.turn({"block_size": 8})
        assert [r.status for r in driver.scheduler.waiting] == [RequestStatus.PREEMPTED] * 2
        events = driver.step(sevens)
        driver.check()
        assert [(p.request_id, p.cause, p.lost_tokens) for p in events.preempted] == [
            ("b", "pool_rebuilt", 12), ("a", "pool_rebuilt", 12)]
        assert [(s.request_id, s.num_tokens, s.admission) for s in events.scheduled] == [
            ("a", 13, "resumed"), ("b", 13, "resumed")]
        assert PoolRebuilt(33, 8) in events.pool
        assert [r.request_id for r in driver.scheduler.running] == ["a", "b"]

    def test_whom_the_smaller_pool_cannot_hold_is_named(self) -> None:
        driver = make()
        driver.add(make_request("a", range(60)))
        driver.add(make_request("b", range(9)))
        run(driver)
        driver.turn({"num_blocks": 9})
        assert [r.request_id for r in driver.scheduler.unservable()] == ["a"]
        driver.end("a", "length")
        assert run(driver) == [("b", 10)]
        assert driver.plan.preempted[0].request_id == "b"

    def test_policy_switches_reorder_the_queue(self) -> None:
        driver = make(max_num_seqs=1)
        for name, priority in (("a", 0), ("b", 2), ("c", 1), ("d", 2)):
            driver.add(make_request(name, [1], priority=priority))
        run(driver)
        orders = []
        for policy in ("priority", "fcfs"):
            driver.turn({"policy": policy})
            run(driver)
            orders.append([r.request_id for r in driver.scheduler.waiting])
        assert orders == [["c", "b", "d"], ["b", "c", "d"]]

    @pytest.mark.parametrize("order", [("num_blocks", "policy"), ("policy", "num_blocks")])
    @pytest.mark.parametrize("policy", ["fcfs", "priority"])
    def test_policy_and_pool_turned_in_one_gap(self, order: tuple[str, str], policy: str) -> None:
        driver = make(max_num_seqs=3, policy=policy)
        for name, priority in (("a", 1), ("b", 2), ("c", 0), ("d", 2), ("e", 0)):
            driver.add(make_request(name, [1], priority=priority))
        run(driver)
        changes = {"num_blocks": 40, "policy": "priority" if policy == "fcfs" else "fcfs"}
        for name in order:
            driver.turn({name: changes[name]})
        run(driver)

    def test_caching_off_keeps_hashes_that_serve_again_later(self) -> None:
        driver = make()
        driver.add(make_request("a", range(9), max_tokens=1))
        run(driver)
        driver.turn({"enable_prefix_caching": False})
        driver.add(make_request("b", range(9), max_tokens=1))
        assert run(driver) == [("b", 9)]
        assert not any(isinstance(e, Cached) for e in driver.scheduler.take_pool_events())
        driver.turn({"enable_prefix_caching": True})
        driver.add(make_request("c", range(9), max_tokens=1))
        assert run(driver) == [("c", 1)]

    def test_fewer_seqs_than_run_admits_nobody_and_drops_nobody(self) -> None:
        driver = make()
        for name in "abc":
            driver.add(make_request(name, [1]))
        run(driver)
        driver.turn({"max_num_seqs": 1})
        driver.add(make_request("d", [1]))
        assert run(driver) == [("a", 1), ("b", 1), ("c", 1)]
        assert driver.plan.stopped_by == "max_num_seqs"


class TestReset:
    def test_only_an_idle_pool_is_reset(self) -> None:
        driver = make()
        driver.add(make_request("a", range(9), max_tokens=2))
        run(driver)
        assert not driver.scheduler.reset_prefix_cache()
        run(driver)
        assert driver.scheduler.reset_prefix_cache()
        driver.add(make_request("b", range(9)))
        events = driver.step(sevens)
        driver.check()
        assert events.pool[0] == CacheReset()
        assert driver.plan.scheduled[0].hit_tokens == 0


def test_many_waiting_requests_cost_a_step_nothing() -> None:
    """Ten thousand waiting, half of them aborted, in both orders: the queue keeps its order."""
    for policy in ("fcfs", "priority"):
        driver = make(policy=policy, max_num_seqs=1)
        rng = random.Random(0)
        requests: list[Request] = [
            driver.add(make_request(f"r{i}", [1], 1, priority=rng.randrange(5))) for i in range(10_000)]
        gone = set(rng.sample(range(10_000), 5_000))
        for index in gone:
            driver.scheduler.abort(f"r{index}")
        left = [r for i, r in enumerate(requests) if i not in gone]
        if policy == "priority":
            left.sort(key=lambda r: (r.priority, r.arrival_order))
        served = []
        while driver.scheduler.requests:
            plan = driver.scheduler.schedule()
            served += [entry.request for entry in plan.scheduled]
            driver.scheduler.commit(plan, sevens(plan))
        assert served == left
