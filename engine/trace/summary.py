"""A run in a few numbers."""

from __future__ import annotations

from typing import Any

from engine.trace.source import RunSource


def summarise(source: RunSource) -> dict[str, Any]:
    """What happened from the source's first step to its last.

    ``requests`` arrived (refused ones not counted), ``finished_requests`` came to their end (aborted ones not
    counted), ``chunked_prefills`` are admissions whose prefill took more than one step, ``evictions`` are blocks,
    ``seconds`` is time on the run's clock, ``complete`` is False when something of the run is missing. The device, the
    forward pass and where memory went (:class:`~engine.trace.events.MemoryInfo`) are told if the recording tells them.
    """
    last = source.state_at(source.last_step)
    before = source.state_at(source.first_step - 1) if source.first_step > 0 else None
    counted = last.counters
    earlier = before.counters if before is not None else type(counted)()
    summary = {
        "steps": counted.steps - earlier.steps,
        "requests": counted.arrived - earlier.arrived,
        "finished_requests": counted.finished - earlier.finished,
        "output_tokens": counted.output_tokens - earlier.output_tokens,
        "prefix_hit_tokens": counted.hit_tokens - earlier.hit_tokens,
        "preemptions": counted.preemptions - earlier.preemptions,
        "chunked_prefills": counted.chunked_prefills - earlier.chunked_prefills,
        "evictions": counted.evictions - earlier.evictions,
        "knob_changes": counted.knob_changes - earlier.knob_changes,
        "seconds": round((last.time_ns - (before.time_ns if before is not None else 0)) / 1e9, 3),
        "model": source.info.model.name,
        "schema": source.info.schema,
        "complete": source.complete,
    }
    info = source.info
    if info.machine.device:
        summary["device"] = info.machine.device
    if info.path:
        summary["forward_path"] = info.path
    if info.memory is not None:
        summary |= {f"{name}_bytes": size for name in ("weights", "pool", "activations", "graphs", "other", "total")
                    if (size := getattr(info.memory, name))}
        if info.memory.utilization:
            summary["gpu_memory_utilization"] = info.memory.utilization
    return summary
