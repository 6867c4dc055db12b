"""Plays recorded workloads of vLLM's scheduler against ours and compares every decision.

A trace file holds one trace a line (JSON, gzipped or not): a configuration, requests with the tokens that sampling
will yield, and one row for each call of ``schedule()``. No model runs. The row that our scheduler produces is compared
field by field with the recorded one; the first difference of a trace ends it.

One difference is deliberate: a request that can never fit is refused at once, where vLLM lets it wait without end.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from engine.config import SchedulerConfig
from engine.request import Request, RequestRefused, SamplingParams
from engine.scheduler import Scheduler
from engine.trace.events import Cached, CacheReset, Evicted, Freed, Hit, PoolEvent

EMPTY_FIELDS: dict[str, Any] = {
    "arrived": [], "aborted": [], "reset_prefix_cache": None, "scheduled": [], "preempted": [], "cached_tokens": {},
    "resumed_cached_tokens": {}, "blocks": {}, "free_blocks": None, "waiting": [], "running": [], "finished": {},
    "free_blocks_after": None, "kv_events": [],
}
"""What is compared in a row, in this order, with the value that a row has for a field that it leaves out."""

_CONFIG_FIELDS = {field.name for field in fields(SchedulerConfig)}

Row = dict[str, Any]


class TraceError(ValueError):
    """A file that is no trace file, or cannot be read. The message says which line, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where a trace and our scheduler part."""

    seed: int
    step: int
    field: str
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        return f"seed {self.seed} step {self.step} {self.field}: ours {self.ours!r} theirs {self.theirs!r}"


def conform(paths: Sequence[str | Path]) -> int:
    """Compare all traces in ``paths``; print differences and a last line. Returns 0 if all are equal, else 1."""
    equal = total = 0
    failed = False
    for path in paths:
        try:
            for trace in read_traces(path):
                total += 1
                difference = first_difference(trace)
                if difference is None:
                    equal += 1
                else:
                    print(f"{Path(path).name}: {difference}")
        except TraceError as error:
            print(error)
            failed = True
    print(f"{equal} of {total} traces equal")
    return 1 if failed or equal < total or total == 0 else 0


def read_traces(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the traces of a file. Raises :class:`TraceError`."""
    number = 0
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rt", encoding="utf-8") if packed else open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                trace = json.loads(line)
                if not isinstance(trace, dict) or not {"config", "requests", "steps"} <= trace.keys():
                    raise TraceError(f"{path}, line {number}: not a trace (config, requests and steps are expected)")
                yield trace
    except (OSError, EOFError) as error:
        raise TraceError(f"{path}: cannot be read ({error})") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: not a text file") from None
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}, line {number}: not JSON ({error})") from None


def first_difference(trace: dict[str, Any]) -> Difference | None:
    """Play one trace; None if our scheduler decides the same in every row.

    A trace says which requests were aborted before a step, but not in which order they gave their blocks back. Where
    several were, one order that leads to the recorded decisions is enough: as the row names them, or as the list of
    requests does.
    """
    rows = trace["steps"]
    try:
        named = [rid for row in rows for rid in row.get("aborted", ())]
        listed = [entry["id"] for entry in trace["requests"]]
        difference = _play(trace, named)
        if difference is not None and any(len(row.get("aborted", ())) > 1 for row in rows):
            difference = difference if _play(trace, listed) else None
        return difference
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TraceError(f"trace of seed {trace.get('seed', '?')}: {type(error).__name__}: {error}") from None


def _play(trace: dict[str, Any], abort_order: Sequence[str]) -> Difference | None:
    seed = trace.get("seed", -1)
    player = TracePlayer(trace, abort_order)
    for row in trace["steps"]:
        step = row["step"]
        try:
            ours = player.play(step)
        except RequestRefused as refusal:
            return Difference(seed, step, "arrived", f"refused: {refusal}", row.get("arrived", []))
        for name, empty in EMPTY_FIELDS.items():
            mine, theirs = ours.get(name, empty), row.get(name, empty)
            if name == "aborted":
                mine, theirs = sorted(mine), sorted(theirs)
            if mine != theirs:
                return Difference(seed, step, name, mine, theirs)
    return None


class TracePlayer:
    """Feeds a trace's arrivals, aborts and resets to a scheduler, and tells each step as a trace row does."""

    def __init__(self, trace: dict[str, Any], abort_order: Sequence[str] = ()) -> None:
        config = trace["config"]
        order = {request_id: at for at, request_id in enumerate(abort_order)}
        self.scheduler = Scheduler(
            SchedulerConfig(**{name: value for name, value in config.items() if name in _CONFIG_FIELDS}),
            [config["eos_token_id"]])
        self._reset_at = trace.get("reset_prefix_cache_at")
        self._arrivals: dict[int, list[Request]] = {}
        self._aborts: dict[int, list[str]] = {}
        self._outputs: dict[str, list[int]] = {}
        self._requests: dict[str, Request] = {}
        for entry in trace["requests"]:
            request = Request(entry["id"], entry["prompt"], SamplingParams(max_tokens=entry["max_tokens"]),
                              priority=entry.get("priority", 0), salt=entry.get("salt"))
            self._requests[request.request_id] = request
            self._outputs[request.request_id] = entry["output"]
            self._arrivals.setdefault(entry["arrive"], []).append(request)
            if entry.get("abort") is not None:
                self._aborts.setdefault(entry["abort"], []).append(request.request_id)
        for request_ids in self._aborts.values():
            request_ids.sort(key=lambda request_id: order.get(request_id, len(order)))
        self._kv_events = KVEventNumbers()

    def arrivals(self, step: int) -> list[Request]:
        """The requests that are added before the step, in order."""
        return self._arrivals.get(step, [])

    def aborts(self, step: int) -> list[str]:
        """The requests that are to be aborted before the step, in order; some may have finished by then."""
        return self._aborts.get(step, [])

    def play(self, step: int) -> Row:
        """Play one step and return our row. Raises :class:`RequestRefused` where vLLM would let a request wait."""
        scheduler = self.scheduler
        row: Row = {"arrived": [], "aborted": []}
        for request in self.arrivals(step):
            scheduler.add_request(request)
            row["arrived"].append(request.request_id)
        for request_id in self.aborts(step):
            if scheduler.abort(request_id):
                row["aborted"].append(request_id)
        if step == self._reset_at:
            row["reset_prefix_cache"] = scheduler.reset_prefix_cache()

        plan = scheduler.schedule()
        row["scheduled"] = [[s.request.request_id, s.num_tokens] for s in plan.scheduled]
        row["preempted"] = sorted(p.request_id for p in plan.preempted)
        row["cached_tokens"] = {s.request.request_id: s.hit_tokens for s in plan.scheduled if s.admission == "first"}
        row["resumed_cached_tokens"] = {
            s.request.request_id: s.hit_tokens for s in plan.scheduled if s.admission == "resumed"}
        row["blocks"] = {s.request.request_id: list(s.request.block_ids) for s in plan.scheduled}
        row["free_blocks"] = plan.free_blocks
        row["waiting"] = [r.request_id for r in scheduler.waiting]
        row["running"] = [r.request_id for r in scheduler.running]

        tokens = [self._token(s.request) for s in plan.scheduled if s.samples]
        row["finished"] = {r.request_id: reason for r, reason in scheduler.commit(plan, tokens)}
        row["free_blocks_after"] = scheduler.pool.num_free_blocks
        row["kv_events"] = self._kv_events.tell(
            scheduler.take_pool_events(), self._requests, scheduler.config.block_size)
        return row

    def _token(self, request: Request) -> int:
        """What sampling yields. Past the recorded output anything will do: the row differs by then."""
        output = self._outputs[request.request_id]
        return output[request.num_output_tokens] if request.num_output_tokens < len(output) else 0


class KVEventNumbers:
    """Tells pool events as vLLM's KV events, with hashes numbered as they first appear."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._tables: dict[str, list[int]] = {}  # the hashes of each request's cached leading blocks
        self._hash_of: dict[int, int] = {}  # block to hash

    def tell(self, events: Iterable[PoolEvent], requests: dict[str, Request], block_size: int) -> list[list[Any]]:
        told: list[list[Any]] = []
        for event in events:
            if isinstance(event, Hit):
                self._tables.setdefault(event.request_id, []).extend(self._hash_of[b] for b in event.blocks)
            elif isinstance(event, Freed):
                self._tables.pop(event.request_id, None)
            elif isinstance(event, Cached):
                table = self._tables.setdefault(event.request_id, [])
                start = len(table)
                parent = self._number(table[-1]) if table else None
                table.extend(event.hashes)
                self._hash_of.update(zip(event.blocks, event.hashes, strict=True))
                tokens = requests[event.request_id].token_ids[start * block_size:len(table) * block_size]
                told.append(["stored", [self._number(h) for h in event.hashes], parent, tokens])
            elif isinstance(event, Evicted):
                told.extend(["removed", [self._number(h)]] for h in event.hashes)
            elif isinstance(event, CacheReset):
                told.append(["cleared"])
        return told

    def _number(self, block_hash: int) -> int:
        return self._numbers.setdefault(block_hash, len(self._numbers))
