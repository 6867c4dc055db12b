"""What the inspector says of a request, a block or a step: pairs of a name and a value, from state and events alone."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from engine.trace.events import Evicted, StepEvents
from engine.trace.pool_state import Touch
from engine.trace.state import EngineState, RequestView
from widgets.inspector_sampling import sampling_facts, stop_text
from widgets.painting import format_int, format_ms, stop_reason_text

Facts = list[tuple[str, str]]


def request_state_text(request: RequestView, state: EngineState) -> str:
    """The state of a request in words."""
    if request.status == "finished":
        if request.stop is not None:
            return stop_text(request)
        return {"stop": QCoreApplication.translate("Inspector", "finished at its end"),
                "length": QCoreApplication.translate("Inspector", "finished at its length limit"),
                "abort": QCoreApplication.translate("Inspector", "aborted")}.get(
            request.finish_reason, request.finish_reason)
    if request.status != "running":
        place = state.waiting.index(request.request_id) + 1 if request.request_id in state.waiting else 0
        word = (QCoreApplication.translate("Inspector", "preempted") if request.status == "preempted"
                else QCoreApplication.translate("Inspector", "waiting"))
        text = QCoreApplication.translate("Inspector", "{state}, number {place} of {count} in the queue").format(
            state=word, place=place, count=len(state.waiting))
        if request.request_id == state.stopped_at and state.stopped_by:
            text += f" ({stop_reason_text(state.stopped_by)})"
        return text
    if request.is_prefill or not request.output_token_ids:
        word = (QCoreApplication.translate("Inspector", "recompute") if request.output_token_ids
                else QCoreApplication.translate("Inspector", "prefill"))
        return QCoreApplication.translate("Inspector", "{word}, chunk {n}, {done} of {all} tokens").format(
            word=word, n=max(1, request.num_chunks), done=format_int(request.num_computed_tokens),
            all=format_int(request.num_tokens))
    return QCoreApplication.translate("Inspector", "decode")


def request_facts(request: RequestView, state: EngineState) -> Facts:
    """A request: where it stands, what it holds, and how long it took."""
    shared = [b for b in request.blocks if len(state.holders.get(b, ())) > 1]
    others = {r for b in shared for r in state.holders[b]} - {request.request_id}
    blocks = format_int(len(request.blocks))
    if shared:
        sharing = (QCoreApplication.translate("Inspector", "{blocks} ({shared} shared with {others})")
                   if len(others) == 1 else
                   QCoreApplication.translate("Inspector", "{blocks} ({shared} shared with {others} requests)"))
        blocks = sharing.format(blocks=blocks, shared=format_int(len(shared)),
                                others=next(iter(others)) if len(others) == 1 else len(others))
    prompt = QCoreApplication.translate("Inspector", "{count} tokens").format(
        count=format_int(request.num_prompt_tokens))
    if request.first_scheduled_ns >= 0:
        prompt += QCoreApplication.translate("Inspector", ", {hit} from cache").format(
            hit=format_int(request.hit_tokens))
    preempted = QCoreApplication.translate("Inspector", "never")
    if request.num_preemptions:
        times = (QCoreApplication.translate("Inspector", "once, {lost} tokens computed again")
                 if request.num_preemptions == 1 else
                 QCoreApplication.translate("Inspector", "{count} times, {lost} tokens computed again"))
        preempted = times.format(count=request.num_preemptions, lost=format_int(request.lost_tokens))
    facts = [
        (_tr_state(), request_state_text(request, state)),
        (QCoreApplication.translate("Inspector", "prompt"), prompt),
        (QCoreApplication.translate("Inspector", "output"),
         QCoreApplication.translate("Inspector", "{count} of at most {most} tokens").format(
             count=format_int(len(request.output_token_ids)), most=format_int(request.max_tokens))),
        (QCoreApplication.translate("Inspector", "blocks"), blocks),
        (QCoreApplication.translate("Inspector", "preempted"), preempted),
        (QCoreApplication.translate("Inspector", "arrived"),
         QCoreApplication.translate("Inspector", "step {step}, {seconds} s").format(
             step=format_int(request.arrival_step), seconds=f"{request.arrival_ns / 1e9:.2f}")),
        ("TTFT", format_ms(request.ttft_ns / 1e6) if request.ttft_ns >= 0 else "–"),
        (QCoreApplication.translate("Inspector", "ITL, mean"), _mean_itl(request)),
    ]
    if request.priority:
        facts.append((QCoreApplication.translate("Inspector", "priority"), str(request.priority)))
    return facts + sampling_facts(request)


def _tr_state() -> str:
    return QCoreApplication.translate("Inspector", "state")


def _mean_itl(request: RequestView) -> str:
    gaps = len(request.output_token_ids) - 1
    if gaps < 1:
        return "–"
    return format_ms((request.last_token_ns - request.first_token_ns) / gaps / 1e6)


def block_facts(block: int, state: EngineState) -> Facts:
    """A physical block: who holds it, what is in it, and when it will be handed out."""
    if not 0 <= block < state.num_blocks:
        return [(_tr_state(), QCoreApplication.translate("Inspector", "no such block in this pool"))]
    if block == 0:
        return [(_tr_state(), QCoreApplication.translate(
            "Inspector", "the null block: a placeholder that is never handed out"))]
    holders = state.holders.get(block, [])
    cached = int(state.block_hash[block]) != 0
    if holders:
        text = (QCoreApplication.translate("Inspector", "in use, shared by {count}").format(count=len(holders))
                if len(holders) > 1 else QCoreApplication.translate("Inspector", "in use"))
    else:
        text = (QCoreApplication.translate("Inspector", "free, but cached: a hit would bring it back") if cached
                else QCoreApplication.translate("Inspector", "free"))
    facts = [(_tr_state(), text)]
    if holders:
        first = state.requests[holders[0]]
        index = first.blocks.index(block)
        names = ", ".join(holders[:6]) + (" …" if len(holders) > 6 else "")
        facts.append((QCoreApplication.translate("Inspector", "held by"), names))
        facts.append((QCoreApplication.translate("Inspector", "place"), QCoreApplication.translate(
            "Inspector", "number {index} in the table of {request}: tokens {first}–{last}").format(
                index=index, request=holders[0], first=format_int(index * state.block_size),
                last=format_int((index + 1) * state.block_size - 1))))
    else:
        free = state.ref_count[1:] == 0
        ahead = int((free & (state.free_rank[1:] < state.free_rank[block])).sum())
        facts.append((QCoreApplication.translate("Inspector", "free queue"), QCoreApplication.translate(
            "Inspector", "number {place} of {count} to be handed out").format(
                place=format_int(ahead + 1), count=format_int(int(free.sum())))))
    facts.append((QCoreApplication.translate("Inspector", "fill"), QCoreApplication.translate(
        "Inspector", "{fill} of {size} tokens").format(fill=int(state.fill[block]), size=state.block_size)))
    facts.append((QCoreApplication.translate("Inspector", "hash"),
                  f"{int(state.block_hash[block]):016x}" if cached else "–"))
    facts.append((QCoreApplication.translate("Inspector", "last event"), _touch_text(
        Touch(int(state.touch[block])), int(state.touch_step[block]))))
    return facts


def _touch_text(touch: Touch, step: int) -> str:
    if touch == Touch.NONE or step < 0:
        return QCoreApplication.translate("Inspector", "never used")
    word = {
        Touch.ALLOCATED: QCoreApplication.translate("Inspector", "allocated at step {step}"),
        Touch.HIT: QCoreApplication.translate("Inspector", "hit at step {step}"),
        Touch.FREED: QCoreApplication.translate("Inspector", "freed at step {step}"),
        Touch.CACHED: QCoreApplication.translate("Inspector", "filled and cached at step {step}"),
        Touch.EVICTED: QCoreApplication.translate("Inspector", "evicted and reused at step {step}"),
        Touch.PREEMPTED: QCoreApplication.translate("Inspector", "taken by a preemption at step {step}"),
    }[touch]
    return word.format(step=format_int(step))


def mode_text(mode: str) -> str:
    """How a step's forward pass ran on a GPU, in words; one that is not known as it is."""
    kind, _, size = mode.partition(" ")
    text = {"eager": QCoreApplication.translate("Inspector", "eager, kernel by kernel"),
            "graph": QCoreApplication.translate("Inspector", "CUDA graph of size {size}"),
            "capture": QCoreApplication.translate("Inspector", "CUDA graph of size {size}, captured on the way"),
            }.get(kind)
    return text.format(size=size) if text is not None and bool(size) == (kind != "eager") else mode


def step_facts(events: StepEvents, state: EngineState) -> Facts:
    """A step: what was scheduled, why it ended there, and what else happened."""
    tokens = sum(s.num_tokens for s in events.scheduled)
    facts = [
        (QCoreApplication.translate("Inspector", "tokens"),
         (QCoreApplication.translate("Inspector", "{tokens} of {budget} for 1 request") if len(events.scheduled) == 1
          else QCoreApplication.translate("Inspector", "{tokens} of {budget} for {count} requests")).format(
             tokens=format_int(tokens), budget=format_int(int(state.knobs.get("max_num_batched_tokens", 0))),
             count=len(events.scheduled))),
    ]
    if events.scheduled or events.stopped_by:
        why = stop_reason_text(events.stopped_by) or QCoreApplication.translate("Inspector", "nothing was left to do")
        if events.stopped_at:
            why = QCoreApplication.translate("Inspector", "{why}, at {request}").format(
                why=why, request=events.stopped_at)
        facts.append((QCoreApplication.translate("Inspector", "stopped by"), why))
    facts.append((QCoreApplication.translate("Inspector", "free blocks"), QCoreApplication.translate(
        "Inspector", "{free} of {all}").format(free=format_int(events.free_blocks_after),
                                               all=format_int(state.num_blocks - 1))))
    if events.mode:
        facts.append((QCoreApplication.translate("Inspector", "forward pass"), mode_text(events.mode)))
    hits = sum(s.hit_tokens for s in events.scheduled)
    evicted = sum(len(e.blocks) for e in events.pool if isinstance(e, Evicted))
    for name, text in (
        (QCoreApplication.translate("Inspector", "knobs"),
         ", ".join(f"{k.name} {k.old} → {k.new}" for k in events.knobs)),
        (QCoreApplication.translate("Inspector", "arrived"), _names([a.request_id for a in events.arrived])),
        (QCoreApplication.translate("Inspector", "preempted"), _names([p.request_id for p in events.preempted])),
        (QCoreApplication.translate("Inspector", "prefix hits"),
         QCoreApplication.translate("Inspector", "{count} tokens").format(count=format_int(hits)) if hits else ""),
        (QCoreApplication.translate("Inspector", "evicted"),
         "" if not evicted else QCoreApplication.translate("Inspector", "1 block") if evicted == 1
         else QCoreApplication.translate("Inspector", "{count} blocks").format(count=format_int(evicted))),
        (QCoreApplication.translate("Inspector", "finished"), _names([f.request_id for f in events.finished])),
    ):
        if text:
            facts.append((name, text))
    return facts


def _names(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" … ({len(names)})" if len(names) > 5 else "")


def phase_times(events: StepEvents) -> list[tuple[str, int]]:
    """The phases of a step with their nanoseconds, in order; the names are the engine's own."""
    p = events.phases
    return [("schedule", p.schedule), ("prepare", p.prepare), ("forward", p.forward), ("sample", p.sample),
            ("publish", p.publish)]
