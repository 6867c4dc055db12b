"""Takes what people typed out of a run, for recordings that are shown to others: only lengths stay."""

from __future__ import annotations

import msgspec

from engine.trace.events import StepEvents


def without_prompts(events: StepEvents) -> StepEvents:
    """The step without the texts and the tokens of prompts; every prompt is as many zeros. Answers stay."""
    if not events.arrived and not events.refused:
        return events
    replace = msgspec.structs.replace
    return replace(
        events,
        arrived=[replace(a, prompt_text="", prompt_token_ids=[0] * len(a.prompt_token_ids)) for a in events.arrived],
        refused=[replace(r, prompt_text="") for r in events.refused])
