"""CSV tables of steps and of requests: UTF-8, a header row, commas, a point in numbers whatever the locale.

:data:`STEP_COLUMNS` and :data:`REQUEST_COLUMNS` say what each column holds. Times in ``_ns`` columns are nanoseconds
on the run's clock, which stands still while the engine is paused. A cell is empty where there is nothing to tell.
"""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Protocol

from engine.trace.events import Evicted, StepEvents
from engine.trace.export.files import ExportError, new_file
from engine.trace.export.walk import events_of, state_before, step_range
from engine.trace.source import Notice, RunSource
from engine.trace.state import EngineState, RequestView, is_prefill_share

STEP_COLUMNS = {
    "step": "the step's number",
    "start_ns": "when it began",
    "end_ns": "when it ended",
    "schedule_ns": "how long each phase took",
    "prepare_ns": "",
    "forward_ns": "",
    "sample_ns": "",
    "publish_ns": "",
    "budget": "max_num_batched_tokens",
    "decode_tokens": "scheduled for decodes",
    "prefill_tokens": "scheduled for prompts, and for recomputing after a preemption",
    "running": "requests running after the step",
    "waiting": "requests waiting after the step, preempted ones included",
    "used_blocks": "blocks that requests held after the step, as the charts show it",
    "scheduled_blocks": "blocks that requests held after scheduling, before finished ones gave theirs back",
    "usable_blocks": "blocks of the pool without the null block",
    "hit_tokens": "served by the prefix cache at admissions",
    "arrived": "requests that arrived",
    "refused": "requests that were turned away",
    "preempted": "preemptions",
    "lost_tokens": "tokens whose keys and values the preemptions lost",
    "evicted_blocks": "cached blocks that lost their hashes",
    "output_tokens": "tokens sampled",
    "finished": "requests that came to their end (stop or length)",
    "aborted": "requests that were aborted",
    "stopped_by": "why no more was scheduled; empty: nothing was left",
    "stopped_at": "the request that scheduling stopped at",
    "knobs": "knobs turned, as name=value, with semicolons between them",
}

REQUEST_COLUMNS = {
    "request_id": "",
    "source": "who asked: the scenario's group, user or cli",
    "priority": "",
    "arrival_ns": "",
    "first_scheduled_ns": "",
    "first_token_ns": "",
    "finished_ns": "empty while it lives",
    "prompt_tokens": "",
    "output_tokens": "",
    "max_tokens": "as asked for",
    "hit_tokens": "of the prompt, served by the prefix cache when it was admitted first",
    "resumed_hit_tokens": "served by the prefix cache when it was resumed",
    "prefill_chunks": "steps that computed, or recomputed, a part of its prompt",
    "preemptions": "",
    "lost_tokens": "by preemptions",
    "ttft_ms": "arrival to first token",
    "tpot_ms": "mean time between its output tokens",
    "max_itl_ms": "longest time between two of its output tokens",
    "e2e_ms": "arrival to end",
    "finish_reason": "stop, length or abort; empty while it lives",
}

STEPS_AT_ONCE = 32


class _Row(Protocol):
    def writerow(self, row: list[Any], /) -> Any: ...


def export_csv(source: RunSource, folder: Path, *, first: int | None = None, last: int | None = None,
               overwrite: bool = False) -> Generator[float]:
    """Write ``steps.csv`` and ``requests.csv`` into ``folder``, which is made if it is not there (its parent must be).

    Requests come in the order in which they ended, then those that live on after ``last``. Yields the share that is
    done; raises ``ExportError``.
    """
    start, stop = step_range(source, first, last)
    made = _make_folder(folder)
    done = False
    try:
        with (new_file(folder / "steps.csv", overwrite=overwrite) as steps_part,
              new_file(folder / "requests.csv", overwrite=overwrite) as requests_part,
              steps_part.open("w", encoding="utf-8", newline="") as steps_file,
              requests_part.open("w", encoding="utf-8", newline="") as requests_file):
            yield from _write(source, start, stop, csv.writer(steps_file), csv.writer(requests_file))
        done = True
    finally:
        if made and not done:
            with contextlib.suppress(OSError):
                folder.rmdir()
    yield 1.0


def _make_folder(folder: Path) -> bool:
    """True when it had to be made."""
    if folder.is_dir():
        return False
    try:
        folder.mkdir()
    except OSError as failure:
        raise ExportError(Notice("{folder} cannot be made ({reason}). Choose another place.", folder=folder,
                                 reason=failure.strerror or failure)) from None
    return True


def _write(source: RunSource, start: int, stop: int, steps: _Row, requests: _Row) -> Iterator[float]:
    state = state_before(source, start)
    steps.writerow(list(STEP_COLUMNS))
    requests.writerow(list(REQUEST_COLUMNS))
    last_token: dict[str, int] = {r.request_id: r.last_token_ns for r in state.active() if r.last_token_ns >= 0}
    longest: dict[str, int] = {}
    for step in range(start, stop + 1):
        events = events_of(source, step)
        prompts = {share.request_id: state.requests[share.request_id].num_prompt_tokens
                   for share in events.scheduled if share.request_id in state.requests}
        prompts |= {a.request_id: len(a.prompt_token_ids) for a in events.arrived}
        ending = {f.request_id: state.requests.get(f.request_id) for f in (*events.aborted, *events.finished)}
        state.apply(events)
        steps.writerow(_step_row(events, state, prompts))
        for sampled in events.sampled:
            before = last_token.get(sampled.request_id)
            if before is not None:
                longest[sampled.request_id] = max(longest.get(sampled.request_id, 0), events.end_ns - before)
            last_token[sampled.request_id] = events.end_ns
        for request_id, known in ending.items():
            last_token.pop(request_id, None)
            request = known or state.requests[request_id]  # the state forgets the oldest of many that finish at once
            requests.writerow(_request_row(request, longest.pop(request_id, None)))
        if (step - start) % STEPS_AT_ONCE == STEPS_AT_ONCE - 1:
            yield (step - start + 1) / (stop - start + 1)
    for request in state.active():
        requests.writerow(_request_row(request, longest.get(request.request_id)))


def _step_row(events: StepEvents, state: EngineState, prompts: dict[str, int]) -> list[Any]:
    prefill = sum(s.num_tokens for s in events.scheduled if is_prefill_share(s, prompts.get(s.request_id, 0)))
    phases = events.phases
    usable = state.num_blocks - 1
    return [
        events.step, events.start_ns, events.end_ns, phases.schedule, phases.prepare, phases.forward, phases.sample,
        phases.publish, state.knobs.get("max_num_batched_tokens", ""),
        sum(s.num_tokens for s in events.scheduled) - prefill, prefill, len(state.running), len(state.waiting),
        state.num_used_blocks, usable - events.free_blocks, usable, sum(s.hit_tokens for s in events.scheduled),
        len(events.arrived), len(events.refused), len(events.preempted), sum(p.lost_tokens for p in events.preempted),
        sum(len(e.blocks) for e in events.pool if isinstance(e, Evicted)), len(events.sampled),
        sum(f.reason != "abort" for f in (*events.finished, *events.aborted)),
        sum(f.reason == "abort" for f in (*events.finished, *events.aborted)),
        events.stopped_by, events.stopped_at, ";".join(f"{k.name}={k.new}" for k in events.knobs),
    ]


def _request_row(request: RequestView, max_itl_ns: int | None) -> list[Any]:
    count = len(request.output_token_ids)
    spread = request.last_token_ns - request.first_token_ns
    return [
        request.request_id, request.source, request.priority, request.arrival_ns, _known(request.first_scheduled_ns),
        _known(request.first_token_ns), _known(request.finished_ns), request.num_prompt_tokens, count,
        request.max_tokens, request.hit_tokens, request.resumed_hit_tokens, request.num_chunks,
        request.num_preemptions, request.lost_tokens, _ms(request.ttft_ns),
        _ms(spread / (count - 1)) if count > 1 else "", _ms(max_itl_ns) if max_itl_ns is not None else "",
        _ms(request.finished_ns - request.arrival_ns) if request.finished_ns >= 0 else "", request.finish_reason,
    ]


def _known(time_ns: int) -> int | str:
    return time_ns if time_ns >= 0 else ""


def _ms(time_ns: float) -> str:
    return f"{time_ns / 1e6:.3f}" if time_ns >= 0 else ""
