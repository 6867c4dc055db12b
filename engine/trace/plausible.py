"""What no engine can have said: values that are damage, whatever comes before or after them.

Nothing that a file says is believed before it was looked at here: neither the sizes in its header nor the numbers in a
step, which a reader would otherwise allocate by.
"""

from __future__ import annotations

import msgspec

from engine.trace.events import RunInfo, StepEvents, decode_step
from engine.trace.mcap_file import Damage
from engine.trace.state import EngineState, Snapshot, decode_snapshot

MAX_PER_STEP = 1 << 16
"""More than this of anything in one step is taken for damage."""

MAX_TIME_NS = 1 << 62
MAX_NUMBER = (1 << 31) - 1


MAX_STEP_BYTES = 16 << 20
"""Some millions of tokens of prompts that arrive at once. A number takes up to eight times as much once it is read, and
zeros are packed ten thousand times smaller: a small file could ask for any amount of memory."""

MAX_SNAPSHOT_BYTES = 64 << 20
"""One of a pool of a million blocks takes 40 MB."""


def read_step(data: memoryview) -> StepEvents:
    """Decode a step. Raises ValueError (msgspec's, or Damage) and RecursionError."""
    if len(data) > MAX_STEP_BYTES:
        raise Damage(f"a step of {len(data):,} bytes")
    return decode_step(data)


def read_snapshot(data: memoryview) -> Snapshot:
    """As :func:`read_step`."""
    if len(data) > MAX_SNAPSHOT_BYTES:
        raise Damage(f"a snapshot of {len(data):,} bytes")
    return decode_snapshot(data)


def parse_info(text: str) -> RunInfo | None:
    try:
        info = msgspec.json.decode(text.encode(), type=RunInfo)
    except (ValueError, RecursionError):
        return None
    for name in ("num_blocks", "block_size", "max_num_batched_tokens"):
        if not _is_count(info.knobs.get(name)):
            return None
    return info


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= MAX_NUMBER


def find_implausible(events: StepEvents, state: EngineState) -> str:
    """What no engine can have said, in words; "" if it can. What contradicts the state is left to the state."""
    if events.step != state.step + 1:
        return f"step {events.step} follows step {state.step}"
    if not state.time_ns <= events.start_ns:
        return "time runs backwards"
    return find_absurd(events)


def find_absurd(events: StepEvents) -> str:
    """What no step can hold, whatever came before it, in words; "" if there is nothing."""
    if not 0 <= events.start_ns <= events.end_ns < MAX_TIME_NS:
        return "time runs backwards"
    if max(len(events.knobs), len(events.arrived), len(events.refused), len(events.aborted), len(events.preempted),
           len(events.scheduled), len(events.pool), len(events.sampled), len(events.finished)) > MAX_PER_STEP:
        return "more happened in it than can"
    for change in events.knobs:
        if change.name in ("num_blocks", "block_size", "max_num_batched_tokens") and not _is_count(change.new):
            return f"{change.name} became {change.new!r}"
    for arrived in events.arrived:
        if not 0 <= arrived.arrival_ns <= events.end_ns:
            return f"{arrived.request_id} arrived later than now"
    for share in events.scheduled:
        if not (0 < share.num_tokens < 1 << 24 and 0 <= share.num_computed_tokens <= MAX_NUMBER
                and 0 <= share.hit_tokens <= MAX_NUMBER):
            return f"{share.num_tokens} tokens of {share.request_id} were scheduled"
    for victim in events.preempted:
        if not _is_count(victim.lost_tokens):
            return f"{victim.request_id} lost {victim.lost_tokens} tokens"
    for event in events.pool:
        blocks = getattr(event, "blocks", None)
        if blocks and min(blocks) < 1:
            return "a block that does not exist"
    return ""
