"""Decides, step by step, who computes how many tokens: continuous batching under one token budget.

    waiting --admit--> running --commit--> finished
       ^                  |
       +----preempt-------+        blocks given back, computed tokens forgotten, output tokens kept

A step serves the running requests in list order, each with what it has left to compute, and then, if nobody had to be
preempted, admits waiting ones. There is no prefill phase and no decode phase: a request with one token left is a
decode, one with more is a prefill, and a prompt that does not fit into the budget is a chunk.

:meth:`Scheduler.schedule` decides, the caller runs the model, :meth:`Scheduler.commit` takes the tokens. Everything
else happens between steps. A step costs what it schedules, not what waits or how large the pool is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from engine.block_pool import BlockPool, KVBlock
from engine.config import SCHEDULER_KNOBS, SchedulerConfig
from engine.kv_cache import KVCacheManager
from engine.plan import ScheduledRequest, StepPlan
from engine.request import Request, RequestRefused, RequestStatus
from engine.trace.events import KnobChange, PoolEvent, PoolRebuilt, Preempted
from engine.trace.knobs import KnobError, KnobValue, knob
from engine.trace.source import Notice
from engine.waiting_queue import ArrivalQueue, PriorityQueue, WaitingQueue, priority_key

_NONE: frozenset[int] = frozenset()


class Scheduler:
    """The requests of an engine, its block pool, and the decisions about both.

    ``waiting`` and ``running`` iterate in queue order; ``requests`` holds all of both by id.

    It decides like vLLM, but for what vLLM would wait for without end:

    - a request whose prompt is longer than the context or than the whole pool is refused when it is added;
    - a request that has filled the whole pool on its own finishes with "length", as at the end of the context;
    - with chunked prefill off, a prompt larger than the whole budget is computed in pieces all the same (vLLM does
      not start with such a configuration, but here the knobs can be turned to it).
    """

    def __init__(self, config: SchedulerConfig, eos_token_ids: Collection[int] = ()) -> None:
        self.config = config
        self.waiting: WaitingQueue = PriorityQueue() if config.policy == "priority" else ArrivalQueue()
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        self._eos_token_ids = frozenset(eos_token_ids)
        self._next_arrival = 0
        self._preempted_by_rebuild: list[Preempted] = []
        self._open_plan: StepPlan | None = None
        self._victims: list[Request] = []  # in this step's pass: running requests, the next to be preempted last
        self._unfilled: list[tuple[ScheduledRequest, list[int], int]] = []
        self._old_pool_events: list[PoolEvent] = []  # of pools that have been replaced
        self._make_pool()

    def _make_pool(self) -> None:
        config = self.config
        self._cache = KVCacheManager(config.num_blocks, config.block_size,
                                     enable_caching=config.enable_prefix_caching)
        # No request becomes longer than this. Its last token never needs a slot.
        self._length_limit = min(config.max_model_len, self._cache.max_tokens + 1)
        for request in self.requests.values():
            self._limit_length(request)

    @property
    def pool(self) -> BlockPool:
        return self._cache.pool

    # ---- between steps -------------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises :class:`RequestRefused` if it can never be served, ValueError if its id is taken."""
        if request.request_id in self.requests:
            raise ValueError(f"there is a request {request.request_id!r} already")
        length, limit = request.num_tokens, self._cache.max_tokens
        if length == 0:
            raise RequestRefused("empty_prompt", Notice("The prompt is empty; a request needs at least one token."))
        if request.params.max_tokens < 1:
            raise RequestRefused("bad_parameters", Notice(
                "{name} is {value}; it must be a whole number at least {low}.", name="max_tokens",
                value=request.params.max_tokens, low=1))
        if length >= self.config.max_model_len:
            raise RequestRefused("prompt_too_long", Notice(
                "The prompt has {tokens} tokens; the context of {context} leaves room for {room} and one to generate. "
                "Shorten it.", tokens=f"{length:,}", context=f"{self.config.max_model_len:,}",
                room=f"{self.config.max_model_len - 1:,}"))
        if length > limit:
            raise RequestRefused("larger_than_pool", Notice(
                "The prompt has {tokens} tokens; the whole pool ({blocks} blocks of {size}) holds {room}. Shorten it "
                "or raise num_blocks.", tokens=f"{length:,}", blocks=f"{self.pool.num_usable_blocks:,}",
                size=self.config.block_size, room=f"{limit:,}"))
        request.arrival_order = self._next_arrival
        self._next_arrival += 1
        request.status = RequestStatus.WAITING
        self._limit_length(request)
        request.stop_ids = self._stop_ids_of(request)
        self.requests[request.request_id] = request
        self.waiting.add(request)

    def _limit_length(self, request: Request) -> None:
        request.length_limit = min(self._length_limit, request.num_prompt_tokens + request.params.max_tokens)

    def _stop_ids_of(self, request: Request) -> frozenset[int]:
        params = request.params
        eos = _NONE if params.ignore_eos else self._eos_token_ids
        return eos.union(params.stop_token_ids) if params.stop_token_ids else eos

    def abort(self, request_id: str) -> bool:
        """End a request now; False if there is none of that id."""
        return self.finish(request_id, "abort")

    def finish(self, request_id: str, reason: str) -> bool:
        """End a request between steps, for a reason of the caller's; False if there is none of that id."""
        self._require_no_open_plan()
        request = self.requests.get(request_id)
        if request is None:
            return False
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
            # It is not preempted any more, but gone.
            self._preempted_by_rebuild = [p for p in self._preempted_by_rebuild if p.request_id != request_id]
        self._end(request, reason)
        return True

    def reconfigure(self, changes: Mapping[str, KnobValue]) -> list[KnobChange]:
        """Turn knobs; they act from the next step on. Returns those that really changed.

        Raises :class:`KnobError` for a name or a value that cannot be, and then nothing has changed. A new block size
        or number of blocks makes the pool anew: everybody running is preempted, which the next plan tells, and whom
        the new pool cannot serve is in :meth:`unservable`.
        """
        self._require_no_open_plan()
        for name in changes:
            if name not in SCHEDULER_KNOBS:
                knob(name)  # raises for a name that is no knob at all
                raise KnobError(f"{name} is not a knob of the scheduler")
        old, new = self.config, self.config.with_knobs(changes)
        changed = [KnobChange(name, getattr(old, name), getattr(new, name)) for name in changes
                   if getattr(old, name) != getattr(new, name)]
        names = {change.name for change in changed}
        self.config = new
        self._cache.enable_caching = new.enable_prefix_caching
        if "policy" in names:
            self._reorder_waiting()
        if names & {"num_blocks", "block_size"}:
            self._rebuild_pool(forget_hashes="block_size" in names)
        return changed

    def unservable(self) -> list[Request]:
        """Requests that the pool, made smaller, cannot hold even when each is alone. The caller has to end them."""
        return [r for r in self.requests.values() if r.num_tokens > self._cache.max_tokens]

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks. Does nothing and returns False while any block is in use."""
        self._require_no_open_plan()
        return self.pool.reset_cache()

    def take_pool_events(self) -> list[PoolEvent]:
        """What has happened to blocks since the last call, in order."""
        events = self.pool.take_events()
        if self._old_pool_events:
            events = self._old_pool_events + events
            self._old_pool_events = []
        return events

    def _reorder_waiting(self) -> None:
        """Queue everybody anew under the new policy.

        Those preempted by a rebuild since the last step come last, one by one, because that is the order in which
        the step's events tell it.
        """
        waiting = sorted(self.waiting, key=lambda request: request.arrival_order)
        put_back = {p.request_id: self.requests[p.request_id] for p in self._preempted_by_rebuild}
        self.waiting = PriorityQueue() if self.config.policy == "priority" else ArrivalQueue()
        for request in waiting:
            if request.request_id not in put_back:
                self.waiting.add(request)
        for request in put_back.values():
            self.waiting.put_back(request)

    def _rebuild_pool(self, *, forget_hashes: bool) -> None:
        while self.running:
            self._preempted_by_rebuild.append(self._preempt(self.running.pop(), "pool_rebuilt", ""))
        self._old_pool_events = self.take_pool_events()
        self._make_pool()
        self._old_pool_events.append(PoolRebuilt(self.config.num_blocks, self.config.block_size))
        if forget_hashes:
            for request in self.requests.values():
                request.block_hashes = []

    # ---- a step --------------------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """Decide the next step. If anything is scheduled, :meth:`commit` must follow before anything else."""
        self._require_no_open_plan()
        plan = StepPlan(preempted=self._preempted_by_rebuild)
        self._preempted_by_rebuild = []
        num_rebuilt = len(plan.preempted)
        self._victims.clear()
        budget = self._schedule_running(plan)
        if len(plan.preempted) > num_rebuilt:
            plan.stopped_by, plan.stopped_at = "preemption", self.waiting.first().request_id
            if self._unfilled:
                plan.orphans = self._find_orphans()
        elif not plan.stopped_by:
            self._admit_waiting(plan, budget)
        plan.free_blocks = self.pool.num_free_blocks
        if plan.scheduled or plan.orphans:
            self._open_plan = plan
        return plan

    def _schedule_running(self, plan: StepPlan) -> int:
        """Serve the running requests; returns the budget that is left."""
        cache, running, scheduled = self._cache, self.running, plan.scheduled
        block_size, caching, pool = cache.block_size, cache.enable_caching, cache.pool
        free_queue = pool.free_queue
        budget = self.config.max_num_batched_tokens
        preempted = False
        for request in list(running):
            if preempted and request.status is not RequestStatus.RUNNING:
                continue  # it lost its blocks to one before it
            if budget <= 0:
                plan.stopped_by, plan.stopped_at = "budget", request.request_id
                break
            computed = request.num_computed_tokens
            left = len(request.token_ids) - computed
            num_tokens = left if left == 1 else self._cut(left, computed, budget)
            if num_tokens <= 0:
                continue
            end = computed + num_tokens
            if end > len(request.block_ids) * block_size:
                missing = -(-end // block_size) - len(request.block_ids)
                while missing > free_queue.num_blocks:
                    victim, returned = self._preempt_for(request, plan)
                    preempted = True
                    budget += returned
                    if victim is request:
                        return budget
                if missing == 1:
                    request.block_ids.append(pool.allocate_one(request.request_id))
                else:
                    request.block_ids += pool.allocate(request.request_id, missing)
            if caching and end // block_size > request.num_cached_blocks:
                cache.cache_full_blocks(request, end)
            scheduled.append(ScheduledRequest(request, num_tokens, computed, num_tokens == left))
            budget -= num_tokens
            if num_tokens < left and budget <= 0:
                plan.stopped_by, plan.stopped_at = "budget", request.request_id
                break
        return budget

    def _cut(self, left: int, computed: int, budget: int) -> int:
        """How many of the ``left`` tokens a running or admitted request may compute in this step."""
        threshold = self.config.long_prefill_token_threshold
        if 0 < threshold < left and len(self.requests) > 1:
            left = threshold
        return min(left, budget, self.config.max_model_len - computed - 1)

    def _preempt_for(self, request: Request, plan: StepPlan) -> tuple[Request, int]:
        """Preempt one running request because ``request`` needs blocks.

        Returns the victim and the tokens that it gives back to the budget, if it was scheduled in this step already.
        """
        running = self.running
        returned = 0
        if self.config.policy == "priority":
            if not self._victims:  # sorted once a step: while running requests are served, nobody joins them
                self._victims = sorted(running, key=priority_key)
            victim = self._victims.pop()
            running.remove(victim)
            for at, entry in enumerate(plan.scheduled):
                if entry.request is victim:
                    returned = entry.num_tokens
                    del plan.scheduled[at]
                    if victim.num_cached_blocks * self._cache.block_size > entry.num_computed_tokens:
                        self._unfilled.append((entry, victim.block_ids, victim.num_cached_blocks))
                    break
        else:
            victim = running.pop()
        plan.preempted.append(self._preempt(victim, "no_free_blocks", request.request_id))
        return victim, returned

    def _find_orphans(self) -> list[ScheduledRequest]:
        """Blocks that a victim of this step was to fill and that can still be hit: somebody has to fill them.

        They were freed before the blocks in front of them, so they are evicted before these: what their tokens
        attend to is still there.
        """
        block_size, blocks = self._cache.block_size, self.pool.blocks
        orphans: list[ScheduledRequest] = []
        for entry, table, num_cached in self._unfilled:
            victim, computed = entry.request, entry.num_computed_tokens
            end = first = computed // block_size
            while end < num_cached:
                block = blocks[table[end]]
                if block.ref_count or block.block_hash != victim.block_hashes[end]:
                    break  # it serves other tokens by now
                end += 1
            if end > first:
                ghost = Request(victim.request_id, victim.prompt_token_ids, victim.params,
                                token_ids=victim.token_ids, num_computed_tokens=computed, block_ids=table[:end])
                orphans.append(ScheduledRequest(ghost, end * block_size - computed, computed, False, "resumed"))
        self._unfilled = []
        return orphans

    def _preempt(self, victim: Request, cause: str, for_request: str) -> Preempted:
        """Send a request, already taken out of ``running``, back to the waiting queue."""
        lost = victim.num_computed_tokens
        freed = self._cache.free(victim)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        victim.status = RequestStatus.PREEMPTED
        self.waiting.put_back(victim)
        return Preempted(victim.request_id, cause, for_request, lost, freed)

    def _admit_waiting(self, plan: StepPlan, budget: int) -> None:
        """Admit waiting requests in queue order until one does not fit: nobody overtakes."""
        config, cache, waiting, running = self.config, self._cache, self.waiting, self.running
        while waiting:
            request = waiting.first()
            if budget <= 0:
                stopped_by = "budget"
            elif len(running) >= config.max_num_seqs:
                stopped_by = "max_num_seqs"
            else:
                hits = cache.lookup(request)
                computed = len(hits) * cache.block_size
                left = request.num_tokens - computed
                num_tokens, stopped_by = self._first_piece(left, computed, budget)
                stopped_by = stopped_by or self._lack_of_blocks(request, computed + num_tokens, hits)
            if stopped_by:
                plan.stopped_by, plan.stopped_at = stopped_by, request.request_id
                return
            waiting.remove(request)
            admission = "first" if request.status is RequestStatus.WAITING else "resumed"
            cache.allocate(request, computed + num_tokens, hits)
            request.num_computed_tokens = computed
            request.status = RequestStatus.RUNNING
            running.append(request)
            plan.scheduled.append(
                ScheduledRequest(request, num_tokens, computed, num_tokens == left, admission, computed))
            budget -= num_tokens
            if num_tokens < left and budget <= 0:
                plan.stopped_by, plan.stopped_at = "budget", request.request_id
                return

    def _first_piece(self, left: int, computed: int, budget: int) -> tuple[int, str]:
        """How many of ``left`` tokens a request starts with, and why it does not start at all ("" if it does)."""
        config = self.config
        if not config.enable_chunked_prefill:
            whole = self._cut(left, computed, left)
            if budget < whole <= config.max_num_batched_tokens:
                return 0, "chunked_prefill_off"
        return self._cut(left, computed, budget), ""

    def _lack_of_blocks(self, request: Request, num_tokens: int, hits: Sequence[KVBlock]) -> str:
        """Why a waiting request cannot have blocks for ``num_tokens`` tokens now; "" if it can."""
        cache, config = self._cache, self.config
        if config.reserve_full_input:
            num_tokens = max(num_tokens, request.num_tokens)
        spare = cache.pool.num_free_blocks - cache.blocks_needed(request, num_tokens, hits)
        if spare < 0:
            return "no_free_blocks"
        if self.running and spare < int(config.watermark * config.num_blocks):
            return "watermark"
        return ""

    def commit(self, plan: StepPlan, tokens: Sequence[int]) -> list[tuple[Request, str]]:
        """Take the step's tokens, one for each entry with ``samples``, in order; returns who finished, and why.

        The finished requests have given their blocks back.
        """
        self._open_plan = None
        finished: list[tuple[Request, str]] = []
        left = iter(tokens)
        for entry in plan.scheduled:
            request = entry.request
            request.num_computed_tokens = entry.num_computed_tokens + entry.num_tokens
            if not entry.samples:
                continue
            token = next(left, None)
            if token is None:
                raise _wrong_number(tokens, plan)
            token_ids = request.token_ids
            token_ids.append(token)
            if token in request.stop_ids:
                finished.append((request, "stop"))
            elif len(token_ids) >= request.length_limit:
                finished.append((request, "length"))
        if next(left, None) is not None:
            raise _wrong_number(tokens, plan)
        if finished:
            for request, reason in finished:
                self._end(request, reason)
            self.running = [r for r in self.running if r.status is not RequestStatus.FINISHED]
        return finished

    def _end(self, request: Request, reason: str) -> None:
        """Forget a request that stands in no queue any more, or is about to leave it."""
        self._cache.free(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        del self.requests[request.request_id]

    def _require_no_open_plan(self) -> None:
        if self._open_plan is not None:
            raise RuntimeError("a step is under way: commit it first")


def _wrong_number(tokens: Sequence[int], plan: StepPlan) -> ValueError:
    return ValueError(f"{len(tokens)} tokens for a plan that samples {sum(entry.samples for entry in plan.scheduled)}")
