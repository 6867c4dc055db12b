"""What every knob is called on the panel, what it does, and when to turn it which way.

The texts are translated when they are asked for, so that a change of language only has to ask again.
"""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QCoreApplication

from engine.trace.knobs import Knob
from widgets.scale import Scale

REBUILDS_POOL = frozenset({"block_size", "num_blocks"})
"""Knobs that act by preempting every running request and making the pool anew."""


@dataclass(frozen=True, slots=True)
class KnobText:
    """``up`` and ``down`` say when to turn a number up or down, or a switch on or off."""

    label: str
    does: str
    up: str
    down: str


def group_title(group: str) -> str:
    """The heading of a knob group."""
    return {
        "scheduler": QCoreApplication.translate("Knobs", "Scheduler"),
        "kv_cache": QCoreApplication.translate("Knobs", "KV cache"),
        "device": QCoreApplication.translate("Knobs", "Device"),
        "workload": QCoreApplication.translate("Knobs", "Workload"),
        "sampling": QCoreApplication.translate("Knobs", "Sampling"),
    }.get(group, group)


def range_label(low_name: str) -> str:
    """The label of a smallest-largest pair, from the name of its smaller knob."""
    return {
        "prompt_tokens_min": QCoreApplication.translate("Knobs", "prompt tokens"),
        "output_tokens_min": QCoreApplication.translate("Knobs", "output tokens"),
    }.get(low_name, low_name)


def knob_text(name: str) -> KnobText:
    """The texts of a knob; one that nobody has described yet shows its bare name."""
    texts = _texts()
    return texts.get(name, KnobText(name, "", "", ""))


def _texts() -> dict[str, KnobText]:
    return {
        "max_num_batched_tokens": KnobText(
            "max_num_batched_tokens",
            QCoreApplication.translate(
                "Knobs", "The token budget: at most this many tokens, of decodes and prefill chunks together, are "
                         "computed in one step."),
            QCoreApplication.translate(
                "Knobs", "for throughput and a shorter TTFT: prompts are computed in fewer, larger chunks."),
            QCoreApplication.translate(
                "Knobs", "for a smooth ITL: a long prompt takes less of each step, so running decodes wait less for "
                         "it.")),
        "max_num_seqs": KnobText(
            "max_num_seqs",
            QCoreApplication.translate("Knobs", "At most this many requests run at once; the others wait."),
            QCoreApplication.translate(
                "Knobs", "when requests queue while blocks are free: larger decode batches give more tokens a second."),
            QCoreApplication.translate(
                "Knobs", "when requests preempt one another, or when ITL matters more than throughput.")),
        "long_prefill_token_threshold": KnobText(
            "long_prefill_token_threshold",
            QCoreApplication.translate(
                "Knobs", "The most tokens that one request may have in a step, so that a long prompt cannot take the "
                         "whole budget. It does not bind a request that is alone in the engine. 0 turns it off."),
            QCoreApplication.translate("Knobs", "when long prompts should get on faster."),
            QCoreApplication.translate(
                "Knobs", "when short prompts wait behind a long one: they then fit beside its chunks.")),
        "enable_chunked_prefill": KnobText(
            "chunked prefill",
            QCoreApplication.translate(
                "Knobs", "A prompt may be computed in pieces over several steps, beside running decodes. Off, a prompt "
                         "waits until all of it fits in what is left of the budget."),
            QCoreApplication.translate(
                "Knobs", "nearly always: decodes keep their pace while a long prompt is worked in."),
            QCoreApplication.translate(
                "Knobs", "to see what it spares you: a prompt larger than what is left of the budget blocks the queue "
                         "behind it.")),
        "policy": KnobText(
            "policy",
            QCoreApplication.translate(
                "Knobs", "Who is admitted first and who is preempted first. fcfs: in order of arrival, and the last "
                         "one admitted is the first to lose its blocks. priority: the smaller number first, and the "
                         "largest is preempted."),
            QCoreApplication.translate("Knobs", "fcfs when all requests matter equally."),
            QCoreApplication.translate("Knobs", "priority when some requests must not wait behind others.")),
        "reserve_full_input": KnobText(
            "reserve full input",
            QCoreApplication.translate(
                "Knobs", "Admit a request only when blocks for all of its prompt are free, not only for its first "
                         "chunk."),
            QCoreApplication.translate(
                "Knobs", "to keep long prompts from being admitted, running out of blocks half-way and being "
                         "preempted."),
            QCoreApplication.translate(
                "Knobs", "to start long prompts earlier, at the price of more preemptions when the pool is tight.")),
        "watermark": KnobText(
            "watermark",
            QCoreApplication.translate(
                "Knobs", "The share of the pool that admission leaves free while something is running, as room for "
                         "running requests to grow."),
            QCoreApplication.translate("Knobs", "when newly admitted requests cause preemptions."),
            QCoreApplication.translate("Knobs", "when blocks stay free while requests wait for them.")),
        "num_blocks": KnobText(
            "num_blocks",
            QCoreApplication.translate(
                "Knobs", "How many blocks the KV pool has. One of them is the null block and is never handed out."),
            QCoreApplication.translate(
                "Knobs", "for more requests at once, fewer preemptions, and a prefix cache that keeps more."),
            QCoreApplication.translate(
                "Knobs", "to see memory pressure: waiting for blocks, evictions, preemptions.")),
        "block_size": KnobText(
            "block_size",
            QCoreApplication.translate(
                "Knobs", "Tokens that one KV block holds. A request's last block is rarely full; only whole blocks "
                         "can be shared."),
            QCoreApplication.translate("Knobs", "for shorter block tables and less bookkeeping a token."),
            QCoreApplication.translate(
                "Knobs", "for less space wasted in last blocks and finer sharing of prefixes.")),
        "enable_prefix_caching": KnobText(
            "prefix caching",
            QCoreApplication.translate(
                "Knobs", "Whole blocks stay findable by a hash of their tokens and of all before them, so that a "
                         "prompt that begins like an earlier one takes those blocks over instead of computing them."),
            QCoreApplication.translate(
                "Knobs", "when prompts share beginnings: system prompts, few-shot examples, long chats."),
            QCoreApplication.translate("Knobs", "to see what it saves; without sharing it changes next to nothing.")),
        "enforce_eager": KnobText(
            "enforce eager",
            QCoreApplication.translate(
                "Knobs", "Launch every kernel of every step one by one. Otherwise a step in which all requests decode "
                         "replays a CUDA graph: the hundreds of launches that such a step consists of were recorded "
                         "once for each batch size, and one call starts them all. Steps with prefill chunks are "
                         "launched one by one either way."),
            QCoreApplication.translate(
                "Knobs", "to see launch overhead: with few requests the GPU is done with a kernel before the next "
                         "one is launched, and ITL rises while the arithmetic stays the same."),
            QCoreApplication.translate(
                "Knobs", "nearly always: the graphs cost some memory and a few seconds of capturing at the start.")),
        "overlap": KnobText(
            "overlap",
            QCoreApplication.translate(
                "Knobs", "While the GPU computes a step, the engine makes the texts and events of the step before and "
                         "prepares the input of the one that most likely comes next. The scheduler still waits for "
                         "the sampled tokens, so no decision changes; events are only told a step later."),
            QCoreApplication.translate(
                "Knobs", "when steps are short and the engine's own share of them shows: small models, many requests."),
            QCoreApplication.translate(
                "Knobs", "to see the phases of a step one after the other, each with a time of its own.")),
        "arrival_rate": KnobText(
            "arrival rate",
            QCoreApplication.translate(
                "Knobs", "New requests a second, on average. The gaps are random, so they come in clusters as real "
                         "ones do."),
            QCoreApplication.translate("Knobs", "until the queue grows, to find how much the engine can carry."),
            QCoreApplication.translate("Knobs", "to let the queue drain; 0 stops new arrivals.")),
        "common_prefix": KnobText(
            "common prefix",
            QCoreApplication.translate("Knobs", "The share of new requests that begin with the same system prompt."),
            QCoreApplication.translate("Knobs", "to see the prefix cache pay: hits rise, TTFT falls."),
            QCoreApplication.translate("Knobs", "to see it starve: without reuse, caching serves nothing.")),
        "prompt_tokens_min": KnobText(
            "prompt_tokens_min",
            QCoreApplication.translate("Knobs", "The length of new prompts, shortest and longest, in tokens."),
            QCoreApplication.translate(
                "Knobs", "for more prefill work and more blocks a request: budget and pool fill up."),
            QCoreApplication.translate("Knobs", "for chat-like traffic, where decodes dominate.")),
        "prompt_tokens_max": KnobText(
            "prompt_tokens_max",
            QCoreApplication.translate("Knobs", "The length of new prompts, shortest and longest, in tokens."),
            QCoreApplication.translate(
                "Knobs", "for more prefill work and more blocks a request: budget and pool fill up."),
            QCoreApplication.translate("Knobs", "for chat-like traffic, where decodes dominate.")),
        "output_tokens_min": KnobText(
            "output_tokens_min",
            QCoreApplication.translate(
                "Knobs", "The most tokens that a new request may produce (max_tokens), drawn between the two."),
            QCoreApplication.translate("Knobs", "for longer decodes: requests stay, and their caches grow."),
            QCoreApplication.translate("Knobs", "for requests that come and go, where prefill dominates.")),
        "output_tokens_max": KnobText(
            "output_tokens_max",
            QCoreApplication.translate(
                "Knobs", "The most tokens that a new request may produce (max_tokens), drawn between the two."),
            QCoreApplication.translate("Knobs", "for longer decodes: requests stay, and their caches grow."),
            QCoreApplication.translate("Knobs", "for requests that come and go, where prefill dominates.")),
        "temperature": KnobText(
            "temperature",
            QCoreApplication.translate(
                "Knobs", "How freely the next token is drawn, for new requests. 0 is greedy: always the likeliest "
                         "token, and the same text at every run."),
            QCoreApplication.translate("Knobs", "for more varied text."),
            QCoreApplication.translate("Knobs", "for text that can be compared between runs.")),
    }


def knob_tooltip(knob: Knob) -> str:
    """Rich text: what the knob does, when to turn it which way, when it acts, its range, and vLLM's name for it."""
    text = knob_text(knob.name)
    if knob.kind == "bool":
        directions = [(QCoreApplication.translate("Knobs", "On"), text.up),
                      (QCoreApplication.translate("Knobs", "Off"), text.down)]
    elif knob.kind == "choice":
        directions = [("", text.up), ("", text.down)]
    else:
        directions = [(QCoreApplication.translate("Knobs", "Up"), text.up),
                      (QCoreApplication.translate("Knobs", "Down"), text.down)]
    lines = [f"<b>{text.label}</b>", text.does]
    lines += [f"<b>{way}</b> {when}" if way else when for way, when in directions if when]
    lines.append(f"<i>{_acts(knob)}</i>")
    if knob.vllm_flag:
        lines.append(QCoreApplication.translate("Knobs", "In vLLM: {flag}").format(
            flag=f"<code>{knob.vllm_flag}</code>"))
    elif knob.group == "workload":
        lines.append(QCoreApplication.translate(
            "Knobs", "Belongs to the load, not to the engine: vLLM has no flag for it."))
    elif knob.name == "temperature":
        lines.append(QCoreApplication.translate("Knobs", "In vLLM: {flag}").format(
            flag="<code>SamplingParams.temperature</code>"))
    if knob.kind in ("int", "float"):
        scale = Scale(knob)
        lines.append(QCoreApplication.translate("Knobs", "{low} to {high}, default {default}").format(
            low=scale.format(scale.value(0.0)), high=scale.format(scale.value(1.0)),
            default=scale.format(knob.default)))
        lines.append(QCoreApplication.translate(
            "Knobs", "Click the number to type it, double-click for the default."))
    return "<div style='max-width: 360px'>" + "".join(f"<p style='margin: 3px 0'>{line}</p>" for line in lines) \
        + "</div>"


def _acts(knob: Knob) -> str:
    if knob.name in REBUILDS_POOL:
        return QCoreApplication.translate(
            "Knobs", "Acts when you let go, and at a price: the pool is made anew, so every running request is "
                     "preempted and recomputes, and the prefix cache is lost. No text changes.")
    if knob.group in ("workload", "sampling"):
        return QCoreApplication.translate("Knobs", "Acts on requests that arrive from now on.")
    return QCoreApplication.translate("Knobs", "Acts at the next step.")
