"""What the block table's tooltips say of a block and of a request."""

from __future__ import annotations

from html import escape

import numpy as np
from PySide6.QtCore import QCoreApplication

from engine.trace.state import EngineState, RequestView
from widgets.painting import format_int
from widgets.theme import theme


def block_tooltip(state: EngineState, block: int) -> str:
    """Number, state, tokens, holders, references, hash, and for a free block its place in the free queue."""
    if block == 0:
        return _table(QCoreApplication.translate("BlockTooltip", "Block 0: the null block"), [
            (QCoreApplication.translate("BlockTooltip", "use"),
             QCoreApplication.translate("BlockTooltip", "stands for no block; never handed out"))])
    lines = [(QCoreApplication.translate("BlockTooltip", "tokens"), f"{state.fill[block]} / {state.block_size}")]
    holders = state.holders.get(block, [])
    if holders:
        names = ", ".join(holders[:8]) + (" …" if len(holders) > 8 else "")
        lines.append((QCoreApplication.translate("BlockTooltip", "held by"), names))
    lines.append((QCoreApplication.translate("BlockTooltip", "references"), str(int(state.ref_count[block]))))
    if state.block_hash[block]:
        lines.append((QCoreApplication.translate("BlockTooltip", "hash"), f"{int(state.block_hash[block]):016x}"))
    if not holders:
        free = state.ref_count[1:] == 0
        place = int(np.count_nonzero(free & (state.free_rank[1:] < state.free_rank[block]))) + 1
        lines.append((QCoreApplication.translate("BlockTooltip", "free queue"),
                      QCoreApplication.translate("BlockTooltip", "place {place} of {total}").format(
                          place=format_int(place), total=format_int(state.num_free_blocks))))
    number = QCoreApplication.translate("BlockTooltip", "Block {n}").format(n=format_int(block))
    return _table(f"{number} · {_block_state(state, block)}", lines)


def _block_state(state: EngineState, block: int) -> str:
    references = int(state.ref_count[block])
    if references > 1:
        return QCoreApplication.translate("BlockTooltip", "shared by {n} requests").format(n=references)
    if references:
        return QCoreApplication.translate("BlockTooltip", "in use")
    if state.block_hash[block]:
        return QCoreApplication.translate("BlockTooltip", "cached, free")
    return QCoreApplication.translate("BlockTooltip", "free")


def request_tooltip(request: RequestView) -> str:
    """Name, state, tokens, and what of it is in the cache."""
    statuses = {
        "running": QCoreApplication.translate("BlockTooltip", "running"),
        "waiting": QCoreApplication.translate("BlockTooltip", "waiting"),
        "preempted": QCoreApplication.translate("BlockTooltip", "preempted"),
        "finished": QCoreApplication.translate("BlockTooltip", "finished"),
    }
    tokens = QCoreApplication.translate("BlockTooltip", "{prompt} prompt, {output} output").format(
        prompt=format_int(request.num_prompt_tokens), output=format_int(len(request.output_token_ids)))
    return _table(f"{request.request_id} · {statuses.get(request.status, request.status)}", [
        (QCoreApplication.translate("BlockTooltip", "tokens"), tokens),
        (QCoreApplication.translate("BlockTooltip", "computed"), format_int(request.num_computed_tokens)),
        (QCoreApplication.translate("BlockTooltip", "blocks"), format_int(len(request.blocks))),
        (QCoreApplication.translate("BlockTooltip", "from the prefix cache"),
         QCoreApplication.translate("BlockTooltip", "{n} tokens").format(n=format_int(request.hit_tokens))),
    ])


def _table(heading: str, lines: list[tuple[str, str]]) -> str:
    secondary = theme().secondary
    rows = "".join(f'<tr><td style="color:{secondary}">{escape(name)}&nbsp;&nbsp;</td><td>{escape(value)}</td></tr>'
                   for name, value in lines)
    return f"<b>{escape(heading)}</b><table cellspacing=0>{rows}</table>"
