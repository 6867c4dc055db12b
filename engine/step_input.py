"""From a plan to the arrays that a forward pass reads, at once or a step ahead.

The step after one in which everybody samples is most often the same requests with one token more each. All of its
input but the tokens themselves can be written while they are still being computed; if the plan then turns out another,
what was written is thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.plan import ScheduledRequest, StepPlan
from engine.request import Request


@dataclass(slots=True)
class StepInput:
    """What one step computes, as arrays; views of buffers that the step after the next one overwrites.

    ``T`` tokens of ``R`` requests, of which ``S`` get a token. Token ``t`` has ``token_ids[t]`` at ``positions[t]``.
    Request ``r`` has the tokens ``query_starts[r]`` to ``query_starts[r + 1]``, then ``context_lens[r]`` tokens in
    the cache, in the blocks ``block_tables[r]`` (padded with the null block). ``sample_rows`` are tokens.
    """

    token_ids: np.ndarray  # int64[T]
    positions: np.ndarray  # int64[T]
    query_starts: np.ndarray  # int64[R + 1]
    context_lens: np.ndarray  # int64[R]
    block_tables: np.ndarray  # int32[R, blocks]
    sample_rows: np.ndarray  # int64[S]


def slots_of(step: StepInput, block_size: int) -> np.ndarray:
    """Where each token's keys and values go, ``block * block_size + offset``: int64[T]."""
    requests = np.repeat(np.arange(len(step.context_lens)), np.diff(step.query_starts))
    blocks = step.block_tables[requests, step.positions // block_size].astype(np.int64)
    slots: np.ndarray = blocks * block_size + step.positions % block_size
    return slots


@dataclass(slots=True)
class _Guess:
    """Input of a step that may come: ``requests`` with one token each at ``positions``.

    The blocks of the rows ``unheld`` were not there yet for that token.
    """

    input: StepInput
    requests: list[Request]
    positions: list[int]
    unheld: list[int]


class InputMaker:
    """Makes the input of one step after another, and keeps the block tables of the requests for it."""

    def __init__(self) -> None:
        self._block_size = 0
        self._buffers, self._next_buffers = _Buffers(), _Buffers()
        self._tables = _BlockTables()
        self._made: tuple[StepPlan, StepInput] | None = None
        self._guess: _Guess | None = None
        self.guessed_right = 0
        """How many steps were prepared ahead, and came."""

    def clear(self, block_size: int, max_model_len: int) -> None:
        """There is a new KV cache: all block tables begin anew."""
        self._block_size = block_size
        self._tables.clear(max_blocks=-(-max_model_len // block_size))
        self._made = self._guess = None

    def free(self, request_id: str) -> None:
        """Forget a request; one that was never seen is fine."""
        self._tables.free(request_id)

    def make(self, plan: StepPlan) -> StepInput:
        """The input of ``plan``, of which something is computed."""
        guess, self._guess = self._guess, None
        self._buffers, self._next_buffers = self._next_buffers, self._buffers
        entries = plan.computed
        if guess is not None and _came(guess, entries):
            self.guessed_right += 1
            step = self._complete(guess)
        else:
            step = self._make(entries)
        self._made = (plan, step)
        return step

    def _make(self, entries: Sequence[ScheduledRequest]) -> StepInput:
        buffers, tables = self._buffers, self._tables
        total = sum(entry.num_tokens for entry in entries)
        buffers.reserve(total, len(entries))
        token_ids, positions = buffers.token_ids, buffers.positions
        at = 0
        samples = 0
        most_blocks = 0
        buffers.query_starts[0] = 0
        for r, entry in enumerate(entries):
            request, computed, n = entry.request, entry.num_computed_tokens, entry.num_tokens
            end = computed + n
            if n == 1:
                token_ids[at] = request.token_ids[computed]
                positions[at] = computed
            else:
                token_ids[at : at + n] = request.token_ids[computed:end]
                positions[at : at + n] = np.arange(computed, end)
            at += n
            buffers.query_starts[r + 1] = at
            buffers.context_lens[r] = end
            blocks = -(-end // self._block_size)
            buffers.table_rows[r] = tables.update(request.request_id, request.block_ids, bool(entry.admission))
            most_blocks = max(most_blocks, blocks)
            if entry.samples:
                buffers.sample_rows[samples] = at - 1
                samples += 1
        requests = len(entries)
        return StepInput(
            token_ids=token_ids[:total],
            positions=positions[:total],
            query_starts=buffers.query_starts[: requests + 1],
            context_lens=buffers.context_lens[:requests],
            block_tables=tables.rows[buffers.table_rows[:requests], :most_blocks],
            sample_rows=buffers.sample_rows[:samples],
        )

    def prepare_ahead(self) -> StepInput | None:
        """Write the input of the step that most likely follows the one made last, all but its tokens.

        If that step comes, :meth:`make` returns the same object. None where nothing can be guessed.
        """
        if self._made is None:
            return None
        (plan, last), self._made = self._made, None
        if plan.orphans or not all(entry.samples for entry in plan.scheduled):
            return None
        count = len(plan.scheduled)
        buffers = self._next_buffers
        buffers.reserve(count, count)
        positions, table_rows = buffers.positions[:count], buffers.table_rows[:count]
        positions[:] = last.context_lens
        np.add(last.context_lens, 1, out=buffers.context_lens[:count])
        table_rows[:] = self._buffers.table_rows[:count]
        buffers.query_starts[: count + 1] = np.arange(count + 1)
        buffers.sample_rows[:count] = buffers.query_starts[:count]
        most_blocks = int(positions.max()) // self._block_size + 1
        made = StepInput(
            token_ids=buffers.token_ids[:count], positions=positions, query_starts=buffers.query_starts[: count + 1],
            context_lens=buffers.context_lens[:count], block_tables=self._tables.rows[table_rows, :most_blocks],
            sample_rows=buffers.sample_rows[:count])  # fmt: skip
        self._guess = _Guess(made, [entry.request for entry in plan.scheduled], positions.tolist(),
                             np.flatnonzero(positions % self._block_size == 0).tolist())
        return made

    def forget_ahead(self) -> None:
        """Throw away what was prepared."""
        self._guess = None

    def _complete(self, guess: _Guess) -> StepInput:
        """Add what was not known: the tokens, and the blocks that begin with them."""
        step, tables = guess.input, self._tables
        step.token_ids[:] = [request.token_ids[-1] for request in guess.requests]
        for r in guess.unheld:
            request = guess.requests[r]
            row = tables.update(request.request_id, request.block_ids, admitted=False)
            step.block_tables[r] = tables.rows[row, : step.block_tables.shape[1]]
        return step


def _came(guess: _Guess, entries: Sequence[ScheduledRequest]) -> bool:
    """Whether the plan is the one that was guessed."""
    return len(entries) == len(guess.requests) and all(
        entry.request is request and entry.num_computed_tokens == position and entry.num_tokens == 1
        and entry.samples and not entry.admission
        for entry, request, position in zip(entries, guess.requests, guess.positions, strict=True))


class _Buffers:
    """Arrays that steps reuse; they grow to the largest step seen."""

    def __init__(self) -> None:
        self._tokens = self._requests = 0
        self.reserve(512, 64)

    def reserve(self, tokens: int, requests: int) -> None:
        if tokens > self._tokens:
            self._tokens = max(tokens, 2 * self._tokens)
            self.token_ids = np.zeros(self._tokens, dtype=np.int64)
            self.positions = np.zeros(self._tokens, dtype=np.int64)
        if requests > self._requests:
            self._requests = max(requests, 2 * self._requests)
            self.query_starts = np.zeros(self._requests + 1, dtype=np.int64)
            self.context_lens = np.zeros(self._requests, dtype=np.int64)
            self.table_rows = np.zeros(self._requests, dtype=np.int64)
            self.sample_rows = np.zeros(self._requests, dtype=np.int64)


class _BlockTables:
    """The block tables of the requests in the cache, one row each, to which a step only adds what is new.

    While a request runs its table only grows; at its admission the whole row is written anew.
    """

    def __init__(self) -> None:
        self.rows = np.zeros((16, 1), dtype=np.int32)
        self._row_of: dict[str, int] = {}
        self._length: list[int] = []
        self._free: list[int] = []

    def clear(self, max_blocks: int) -> None:
        count = self.rows.shape[0]
        self.rows = np.zeros((count, max_blocks), dtype=np.int32)
        self._row_of = {}
        self._length = [0] * count
        self._free = list(range(count - 1, -1, -1))

    def update(self, request_id: str, block_ids: list[int], admitted: bool) -> int:
        """Bring the request's row up to date and say which it is."""
        row = self._row_of.get(request_id)
        if row is None:
            row = self._row_of[request_id] = self._take()
            admitted = True
        known = 0 if admitted else self._length[row]
        count = len(block_ids)
        if count > known:
            self.rows[row, known:count] = block_ids[known:] if known else block_ids
        self._length[row] = count
        return row

    def free(self, request_id: str) -> None:
        row = self._row_of.pop(request_id, None)
        if row is not None:
            self._free.append(row)

    def _take(self) -> int:
        if not self._free:
            count = self.rows.shape[0]
            self.rows = np.concatenate((self.rows, np.zeros_like(self.rows)))
            self._length.extend([0] * count)
            self._free = list(range(2 * count - 1, count - 1, -1))
        return self._free.pop()
