"""A request on its way through the engine."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from engine.sampling_params import SamplingParams

__all__ = ["Request", "RequestRefused", "RequestStatus", "SamplingParams"]


class RequestStatus(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"  # waiting again, its blocks gone, its output tokens kept
    FINISHED = "finished"


class RequestRefused(ValueError):
    """The request can never be served. ``reason`` is a code of ours, the message is for people, and a
    :class:`~engine.trace.source.Notice` where it can be said in another language."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(slots=True, eq=False)
class Request:
    """A request and how far it has come.

    ``token_ids`` holds the prompt and then every output token. ``num_computed_tokens`` of them have their keys and
    values in the cache; preemption sets that back to 0 and keeps the tokens. ``block_ids`` is the block table.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    arrival_ns: int = 0
    priority: int = 0
    salt: str | None = None
    prompt_text: str = ""
    source: str = ""  # where it comes from: a scenario's name, "user", "cli"

    status: RequestStatus = RequestStatus.WAITING
    token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    block_ids: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)  # of its whole blocks, as far as tokens exist
    num_cached_blocks: int = 0  # leading blocks of the table that carry a hash in the pool
    num_preemptions: int = 0
    arrival_order: int = 0  # set by the scheduler; breaks ties of priority
    length_limit: int = 0  # set by the scheduler: with so many tokens it ends
    stop_ids: frozenset[int] = frozenset()  # set by the scheduler: with one of these tokens it ends
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        if not self.token_ids:
            self.token_ids = list(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)
