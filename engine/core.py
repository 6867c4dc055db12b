"""The engine: requests in, one step after another, events out.

    add / abort / set_knob          step()
            |                         |
            v                         v
        what is new  ->  Scheduler.schedule -> Runner.launch, collect -> Scheduler.commit -> StepEvents
                                                      ^
                           with overlap, the texts and events of the step before

It has no thread and no queue of its own; :mod:`engine.worker` gives it both.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from engine.clock import RunClock
from engine.config import RUNNER_KNOBS, SCHEDULER_KNOBS, SchedulerConfig
from engine.model.detokenizer import IncrementalDetokenizer
from engine.model.tokenizer import Tokenizer
from engine.output_text import OutputText
from engine.outstanding import Outstanding
from engine.plan import StepPlan
from engine.request import Request, RequestRefused, SamplingParams
from engine.scheduler import Scheduler
from engine.step_events import arrival_of
from engine.trace.events import (
    Arrived,
    Finished,
    KnobChange,
    Logprobs,
    ModelInfo,
    PhaseTimes,
    Refused,
    Sampled,
    StepEvents,
)
from engine.trace.knobs import KnobError, KnobValue, knob
from engine.trace.source import Notice

POOL_KNOBS = ("num_blocks", "block_size")

Progress = Callable[[str, float | None], None]
"""Is told what goes on, and how far it has come: from 0 to 1, or None where nobody knows."""

Tell = Callable[[StepEvents], None]
"""Is called with the events of every step, in order."""


class ModelRunner(Protocol):
    """What the engine needs of a runner; :class:`engine.runner.Runner` is the one for real models."""

    model_info: ModelInfo
    eos_token_ids: set[int]
    max_model_len: int
    phase_ns: dict[str, int]
    num_threads: int

    def allocate_cache(self, num_blocks: int, block_size: int) -> None: ...

    def available_cache_bytes(self) -> int:
        """Bytes that a KV cache in place of the present one may take."""

    def execute(self, plan: StepPlan) -> list[int]:
        """Compute a step: the new tokens of the requests that sample, in plan order."""

    def launch(self, plan: StepPlan) -> None:
        """The first half of :meth:`execute`: whatever a device does beside the host is under way when it returns."""

    def collect(self) -> list[int]:
        """The second half: wait for the tokens of the step that was launched."""

    def free_request(self, request_id: str) -> None: ...

    def set_knob(self, name: str, value: KnobValue) -> None:
        """One of :data:`~engine.config.RUNNER_KNOBS`; it acts from the next step on, if it does anything here."""

    def warm_up(self, progress: Progress | None = None) -> None:
        """Have what the first steps would otherwise have to wait for, once the KV cache is there."""

    @property
    def step_mode(self) -> str:
        """How the step that was collected last ran, as in ``StepEvents.mode``."""

    @property
    def logprobs(self) -> Sequence[Logprobs | None]:
        """Of the tokens of the last :meth:`collect`; looked at only for requests that ask for them."""


class AtOnce:
    """A runner of which nothing runs beside the host: it has the tokens when it has launched a step."""

    step_mode = ""
    _tokens: list[int]

    def warm_up(self, progress: Progress | None = None) -> None:
        """See :class:`ModelRunner`."""

    def execute(self, plan: StepPlan) -> list[int]:
        """See :class:`ModelRunner`."""
        raise NotImplementedError

    def launch(self, plan: StepPlan) -> None:
        """See :class:`ModelRunner`."""
        self._tokens = self.execute(plan)

    def collect(self) -> list[int]:
        """See :class:`ModelRunner`."""
        return self._tokens


class Engine:
    """Serves requests step by step.

    ``knobs`` holds the value of every knob, those of the workload too: the engine does not act on these, but tells
    of their changes in its events. ``seed`` is what requests without a seed get theirs from.
    """

    def __init__(self, runner: ModelRunner, tokenizer: Tokenizer, config: SchedulerConfig,
                 knobs: Mapping[str, KnobValue] | None = None, clock: RunClock | None = None,
                 seed: int = 0) -> None:
        config = replace(config, max_model_len=min(config.max_model_len, runner.max_model_len))
        self._runner = runner
        self._tokenizer = tokenizer
        self.clock = clock or RunClock()
        self.knobs: dict[str, KnobValue] = {**(knobs or {}), **{n: getattr(config, n) for n in SCHEDULER_KNOBS}}
        self._check_pool_fits_memory(config.num_blocks, config.block_size)
        self.scheduler = Scheduler(config, runner.eos_token_ids)
        for name in RUNNER_KNOBS:  # the runner may have served another engine before
            runner.set_knob(name, self._value_of(name))
        runner.allocate_cache(config.num_blocks, config.block_size)
        self._seed = seed
        self._texts: dict[str, IncrementalDetokenizer | OutputText] = {}
        self._samples: dict[str, list[str]] = {}  # the names of several samples, by the id that they were asked for as
        self._next_step = 0
        self._next_request = 1
        self._outstanding: Outstanding | None = None
        # What has happened since the last step; the next StepEvents tells of it.
        self._knob_changes: list[KnobChange] = []
        self._pending_pool_knobs: dict[str, KnobValue] = {}
        self._arrived: list[Arrived] = []
        self._refused: list[Refused] = []
        self._aborted: list[Finished] = []

    def warm_up(self, progress: Progress | None = None) -> None:
        """Have the runner make what the first steps would otherwise wait for."""
        self._runner.warm_up(progress)

    # ---- between steps -------------------------------------------------------------------------------------------

    def add_request(self, prompt_token_ids: list[int], params: SamplingParams, *, prompt_text: str = "",
                    priority: int = 0, salt: str | None = None, source: str = "",
                    arrival_ns: int | None = None) -> str:
        """Queue a request and return its id. One that can never be served is refused: the next step's events say so.

        ``arrival_ns`` is when it arrived on the run's clock, if that was before now. With ``n`` samples the requests
        are ``0_ID``, ``1_ID``, ...; :meth:`abort` takes their ids or the one that is returned.
        """
        request_id = self._new_id()
        arrival_ns = self.clock.now_ns() if arrival_ns is None else arrival_ns
        if problem := params.problem(self._runner.model_info.vocab_size):
            return self._refuse(request_id, RequestRefused("bad_parameters", problem), prompt_text)
        # Several samples are requests of their own, with the names that vLLM gives them. They come to the same whole
        # blocks of the prompt through the prefix cache.
        names = [request_id] if params.n == 1 else [f"{i}_{request_id}" for i in range(params.n)]
        seed = self._seed_of(request_id) if params.seed is None else params.seed
        for i, name in enumerate(names):
            wanted = params if params.n == 1 and params.seed is not None else params.for_sample(i, seed)
            request = Request(name, prompt_token_ids, wanted, priority=priority, salt=salt, prompt_text=prompt_text,
                              source=source, arrival_ns=arrival_ns)
            try:
                self.scheduler.add_request(request)
            except RequestRefused as refusal:  # it is the first of them: they are all alike
                return self._refuse(request_id, refusal, prompt_text)
            self._texts[name] = self._make_text(wanted)
            self._arrived.append(arrival_of(request, parent=request_id if params.n > 1 else ""))
        if params.n > 1:
            self._samples[request_id] = names
        return request_id

    def refuse(self, reason: str, message: str, prompt_text: str = "") -> str:
        """Turn a request away that could not even be made; returns its id. The next step's events tell of it."""
        return self._refuse(self._new_id(), RequestRefused(reason, message), prompt_text)

    def _refuse(self, request_id: str, refusal: RequestRefused, prompt_text: str) -> str:
        message = refusal.message
        refused = Refused(request_id, refusal.reason, str(message), prompt_text)
        if isinstance(message, Notice):
            refused.template = message.template
            refused.values = {n: v if isinstance(v, (int, float)) else str(v) for n, v in message.values.items()}
        self._refused.append(refused)
        return request_id

    def _new_id(self) -> str:
        request_id = f"r{self._next_request}"
        self._next_request += 1
        return request_id

    def _seed_of(self, request_id: str) -> int:
        """For a request that brings no seed: another for each, and the same ones in every run with this seed."""
        digest = hashlib.blake2b(f"{self._seed} {request_id}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)

    def _make_text(self, params: SamplingParams) -> IncrementalDetokenizer | OutputText:
        detokenizer = IncrementalDetokenizer(self._tokenizer)
        return OutputText(detokenizer, params.stop, params.min_tokens) if params.stop else detokenizer

    def abort(self, request_id: str) -> bool:
        """End a request now, or all samples of one; False if it is not in the engine (any more)."""
        found = False
        for name in self._samples.pop(request_id, (request_id,)):
            if self.scheduler.abort(name):
                self._aborted.append(Finished(name, "abort", self._forget(name)))
                found = True
        return found

    def set_knob(self, name: str, value: KnobValue) -> None:
        """Turn a knob; it acts from the next step on. Raises :class:`KnobError`, and then nothing has changed."""
        value = knob(name).check(value)
        if value == self._value_of(name):
            return
        if name not in SCHEDULER_KNOBS:
            if name in RUNNER_KNOBS:
                self._runner.set_knob(name, value)
            self._knob_changes.append(KnobChange(name, self._value_of(name), value))
        elif name in POOL_KNOBS:
            pool = {n: int(self.knobs[n]) for n in POOL_KNOBS} | {name: int(value)}
            self._check_pool_fits_memory(**pool)
            self._pending_pool_knobs[name] = value
        else:
            self._knob_changes += self.scheduler.reconfigure({name: value})
        self.knobs[name] = value

    def _value_of(self, name: str) -> KnobValue:
        return self.knobs.get(name, knob(name).default)

    def _check_pool_fits_memory(self, num_blocks: int, block_size: int) -> None:
        wanted = num_blocks * block_size * self._runner.model_info.bytes_per_token
        allowed = self._runner.available_cache_bytes()
        if wanted > allowed:
            raise KnobError(Notice(
                "num_blocks: {blocks} blocks of {size} tokens need {wanted} GiB, and {allowed} GiB can be given; "
                "choose fewer or smaller blocks", blocks=f"{num_blocks:,}", size=block_size,
                wanted=f"{wanted / 2**30:.1f}", allowed=f"{allowed / 2**30:.1f}"))

    def _rebuild_pool(self) -> None:
        """Make the pool anew with the sizes asked for: everybody running is preempted and recomputes."""
        changes = self.scheduler.reconfigure(self._pending_pool_knobs)
        self._pending_pool_knobs = {}
        if not changes:  # turned and turned back between two steps: the pool stays, and so must what is in the cache
            return
        self._knob_changes += changes
        self._runner.allocate_cache(int(self.knobs["num_blocks"]), int(self.knobs["block_size"]))
        for request in self.scheduler.unservable():
            self.scheduler.finish(request.request_id, "length")
            self._aborted.append(Finished(request.request_id, "length", self._forget(request.request_id)))

    # ---- a step --------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.requests)

    def step(self) -> StepEvents | None:
        """Run one step and tell what happened, or None when there is nothing to do and nothing to tell.

        Nothing is put off: it is :meth:`advance`, ``at_once``, for those who want one step's events at a time.
        """
        self._require_all_told()
        told: list[StepEvents] = []
        self.advance(told.append, at_once=True)
        return told[0] if told else None

    def advance(self, tell: Tell, *, at_once: bool = False) -> bool:
        """Run one step; False when there was nothing to do and nothing to tell.

        With the knob ``overlap`` the output of the step (texts, events) is made and told in the next call, while the
        device works on that step; until then it is :meth:`flush` that tells it. Nothing is put off when nobody is left
        to be served or ``at_once`` is asked for, and stop strings are looked for at once, since they decide.

        Neither decisions nor events depend on that, but for their times. ``end_ns`` is when the tokens were known and
        acted upon, and without overlap also their texts made. ``PhaseTimes.publish`` is the rest of the step after
        scheduling beside what the runner tells: without overlap taking the tokens in and making texts; with overlap
        taking the tokens in, and of the output of the step before what took longer than the device. So no phase counts
        what another one hides, and together they are no more than the step.
        """
        start_ns = self.clock.now_ns()
        if self._pending_pool_knobs:
            self._rebuild_pool()
        if not self.has_work:
            return self._tell_news(tell)
        began = time.perf_counter_ns()
        plan = self.scheduler.schedule()
        scheduled = time.perf_counter_ns()
        phases, tokens = PhaseTimes(scheduled - began), []
        if plan.computed:
            self._runner.launch(plan)
            self.flush(tell)  # the device is at work meanwhile
            tokens = self._runner.collect()
            plan.mode = self._runner.step_mode
            phases = PhaseTimes(scheduled - began, **self._runner.phase_ns)
        else:
            self.flush(tell)
        done = self._commit(start_ns, plan, phases, tokens)
        put_off = not at_once and bool(self._value_of("overlap")) and self.has_work
        if not put_off:
            self._read(done)
        computed = phases.prepare + phases.forward + phases.sample
        phases.publish = max(0, time.perf_counter_ns() - scheduled - computed)
        done.end_ns = self.clock.now_ns()
        self._outstanding = done
        if not put_off:
            self.flush(tell)
        return True

    def flush(self, tell: Tell) -> None:
        """Tell what was put off, if anything was."""
        done, self._outstanding = self._outstanding, None
        if done is not None:
            self._read(done)
            tell(done.events())

    def tell_news(self) -> StepEvents | None:
        """A step in which nothing runs, if there are arrivals, refusals, aborts or knobs to tell of; else None."""
        self._require_all_told()
        told: list[StepEvents] = []
        self._tell_news(told.append)
        return told[0] if told else None

    def _tell_news(self, tell: Tell) -> bool:
        """Whether there was anything to tell, put off or new."""
        put_off = self._outstanding is not None
        self.flush(tell)
        if not (self._arrived or self._refused or self._aborted or self._knob_changes):
            return put_off
        now = self.clock.now_ns()
        plan = StepPlan(free_blocks=self.scheduler.pool.num_free_blocks)
        self._outstanding = self._take_down(now, plan, PhaseTimes(), [], [])
        self._outstanding.end_ns = now
        self.flush(tell)
        return True

    def _require_all_told(self) -> None:
        if self._outstanding is not None:
            raise RuntimeError("a step's output was put off: flush it first")

    def _commit(self, start_ns: int, plan: StepPlan, phases: PhaseTimes, tokens: list[int]) -> Outstanding:
        """Take the step's tokens in. Where the text does not decide, it is left to be made."""
        ended = {request.request_id: reason for request, reason in self.scheduler.commit(plan, tokens)}
        sampled: list[Sampled] = []
        finished: list[Finished] = []
        unread: list[tuple[Sampled | Finished, IncrementalDetokenizer, int | None]] = []
        for index, entry in enumerate(s for s in plan.scheduled if s.samples):
            request, token = entry.request, tokens[index]
            request_id, params = request.request_id, request.params
            reason, stop = ended.get(request_id), None  # type: str | None, str | int | None
            one = Sampled(request_id, token, "", None if params.logprobs is None else self._runner.logprobs[index])
            sampled.append(one)
            # The token that ends the sequence is part of the output, but not of the text.
            text = self._texts[request_id]
            if reason != "stop":
                if isinstance(text, OutputText):
                    one.text = text.add(token)
                else:
                    unread.append((one, text, token))
            if isinstance(text, OutputText) and text.stopped_by is not None:
                if reason is None:
                    self.scheduler.finish(request_id, "stop")
                reason, stop = "stop", text.stopped_by
            elif reason == "stop" and (params.ignore_eos or token not in self._runner.eos_token_ids):
                stop = token
            if reason is not None:
                end = Finished(request_id, reason, "", stop)
                finished.append(end)
                self._release(request_id)
                if isinstance(text, OutputText):
                    end.text = text.flush()
                else:
                    unread.append((end, text, None))
        done = self._take_down(start_ns, plan, phases, sampled, finished)
        done.unread = unread
        done.unnamed = [one.logprobs for one in sampled if one.logprobs is not None]
        return done

    def _read(self, done: Outstanding) -> None:
        """Make the texts of a step that are missing."""
        done.read()
        for logprobs in done.unnamed:
            self._with_texts(logprobs)
        done.unnamed = []

    def _with_texts(self, logprobs: Logprobs | None) -> Logprobs | None:
        if logprobs is not None:
            for token in (logprobs.sampled, *logprobs.top):
                token.text = self._text_of(token.token_id)
        return logprobs

    def _text_of(self, token_id: int) -> str:
        """The text of a token alone; the name of one that has none."""
        return self._tokenizer.decode([token_id]) or self._tokenizer.raw.id_to_token(token_id) or ""

    def _forget(self, request_id: str) -> str:
        """A request leaves between steps; what was held back of its text."""
        text = self._release(request_id)
        if self._outstanding is not None:
            self._read(self._outstanding)
        return text.flush()

    def _release(self, request_id: str) -> IncrementalDetokenizer | OutputText:
        self._runner.free_request(request_id)
        if self._samples:
            parent = request_id.partition("_")[2]
            names = self._samples.get(parent, [])
            if request_id in names:
                names.remove(request_id)
                if not names:
                    del self._samples[parent]
        return self._texts.pop(request_id)

    def _take_down(self, start_ns: int, plan: StepPlan, phases: PhaseTimes, sampled: list[Sampled],
                   finished: list[Finished]) -> Outstanding:
        """What has happened since the last step, and in this one."""
        done = Outstanding(
            step=self._next_step, start_ns=start_ns, plan=plan, phases=phases, knobs=self._knob_changes,
            arrived=self._arrived, refused=self._refused, aborted=self._aborted, pool=self.scheduler.take_pool_events(),
            sampled=sampled, finished=finished, free_blocks_after=self.scheduler.pool.num_free_blocks)
        self._next_step += 1
        self._knob_changes, self._arrived, self._refused, self._aborted = [], [], [], []
        return done


def generate(engine: Engine, prompt_token_ids: list[int], params: SamplingParams) -> Iterator[str]:
    """Serve one request and yield its text as it comes. Raises :class:`RequestRefused`."""
    request_id = engine.add_request(prompt_token_ids, params, source="cli")
    while events := engine.step():
        for refused in events.refused:
            raise RequestRefused(refused.reason, refused.message)
        yield from (s.text for s in events.sampled if s.request_id == request_id and s.text)
        for finish in events.finished:
            if finish.request_id == request_id:
                if finish.text:
                    yield finish.text
                return
