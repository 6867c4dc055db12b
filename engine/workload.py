"""The workload: requests that arrive by themselves, as a scenario says and as the workload knobs say right now.

Two things are kept apart, so that a run can be repeated exactly and a knob turned in it changes only what it is about:

* *When*: arrivals live on an axis of their own, measured in mean numbers of arrivals, on which the k-th arrival's
  place depends on the seed alone. The knob ``arrival_rate`` only says how fast the run's clock moves along that axis.
  A Poisson process stays one under any history of rates, and a pending gap is rescaled by itself.
* *What*: the k-th request is drawn from random streams of its own, one for each purpose, addressed by (seed, purpose,
  k). Turning the output length does not change which question is asked.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.prompts import ChatTokenizer, Passage, Preface, PromptBook, TokenText, cut
from engine.request import SamplingParams
from engine.scenario import Scenario, Traffic
from engine.trace.events import StepEvents
from engine.trace.knobs import KNOBS, KnobValue, knob

WORKLOAD_KNOBS = tuple(name for name, k in KNOBS.items() if k.group in ("workload", "sampling"))
"""The knobs that a workload acts on."""

MIN_OUTPUT_ROOM = 16
"""Tokens of the context that a prompt leaves for the answer, however long it is asked to be."""


OPENING_TOKENS = 16
"""About how long the first sentence of instructions of one's own is."""


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request that has arrived. ``prompt_text`` is the user's part; the tokens hold the system prompt and the chat
    template too. ``source`` names the kind of traffic, ``index`` counts arrivals from 0. The first
    ``common_prefix_tokens`` tokens are the same for everybody who is behind the same system prompt (0: none are).
    """

    index: int
    prompt_token_ids: list[int]
    prompt_text: str
    params: SamplingParams
    arrival_ns: int
    priority: int = 0
    salt: str | None = None
    source: str = ""
    common_prefix_tokens: int = 0


class _Purpose(enum.IntEnum):
    """What a random stream is for. The numbers are part of what a seed means: never renumber."""

    GAP = 1
    TRICKLE = 2
    THINK = 3
    TRAFFIC = 4
    COMMON = 5
    PREAMBLE = 6
    PROMPT_LENGTH = 7
    OUTPUT_LENGTH = 8
    TEXT = 9
    SAMPLING = 10


class _Random:
    """Random streams addressed by purpose and number, all of one seed: no draw depends on how many came before."""

    def __init__(self, seed: int) -> None:
        self._keys = {p: np.random.SeedSequence([seed & (2**64 - 1), p]).generate_state(2, np.uint64)
                      for p in _Purpose}
        self._offsets = {p: float(self.stream(p, 2**63).random()) for p in _Purpose}

    def stream(self, purpose: _Purpose, k: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=self._keys[purpose], counter=[0, 0, k, 0]))

    def even(self, purpose: _Purpose, k: int) -> float:
        """A number in [0, 1) for each k, spread evenly over any few neighbours (a golden-ratio sequence): one in
        eight is then nearly every eighth, and an audience need not wait for its luck."""
        return (self._offsets[purpose] + k * 0.6180339887498949) % 1.0


class _Pace:
    """How the run's clock moves along the arrivals' axis: at ``rate`` a second since the last change."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._place = 0.0
        self._since_ns = 0

    def place_at(self, now_ns: int) -> float:
        return self._place + self.rate * max(0, now_ns - self._since_ns) / 1e9

    def time_of(self, place: float) -> int | None:
        """When the clock reaches ``place``; None if never at this rate."""
        if place <= self._place:
            return self._since_ns
        if self.rate <= 0:
            return None
        return self._since_ns + math.ceil((place - self._place) / self.rate * 1e9)

    def set_rate(self, rate: float, now_ns: int) -> None:
        self._place, self._since_ns, self.rate = self.place_at(now_ns), max(now_ns, self._since_ns), rate


@dataclass(slots=True)
class _User:
    """Somebody in a closed loop: sends, waits for the answer, thinks, sends again."""

    traffic: Traffic | None = None
    messages: list[dict[str, str]] = field(default_factory=list)
    turns_left: int = 0
    common_prefix_tokens: int = 0  # as in NewRequest, for the conversation as a whole


@dataclass(frozen=True, slots=True)
class _Texts:
    """What one kind of traffic is made of, tokenised."""

    preface: Preface
    questions: list[TokenText]
    follow_ups: list[TokenText]
    background: Passage
    long_background: Passage  # runs on into the documents
    heading: TokenText
    remarks: list[TokenText]
    tasks: list[TokenText]
    documents: Passage

    @classmethod
    def of(cls, traffic: Traffic, book: PromptBook) -> _Texts:
        backgrounds = [f"backgrounds/{name}" for name in traffic.backgrounds]
        documents = [f"documents/{name}" for name in traffic.documents]
        return cls(
            preface=book.common_preface(traffic.system) if traffic.system else book.no_preface(),
            questions=book.lines("questions", traffic.questions),
            follow_ups=book.lines("follow-ups", traffic.follow_ups),
            background=book.passage(*backgrounds),
            long_background=book.passage(*backgrounds, *documents),
            heading=book.encode(f"\n\n{traffic.heading}\n" if traffic.heading else "\n\n"),
            remarks=book.remarks(traffic.remarks),
            tasks=book.lines("tasks", traffic.tasks),
            documents=book.passage(*documents))


class Workload:
    """Draws a scenario's requests. Not thread-safe: the engine's thread owns it.

    ``knobs`` may hold any knobs; those of the workload and of sampling override the scenario's presets. ``requests``
    overrides how many there are (0: no end). Raises :class:`~engine.trace.knobs.KnobError` for a value out of range.
    """

    def __init__(self, scenario: Scenario, tokenizer: ChatTokenizer, seed: int = 0,
                 knobs: Mapping[str, KnobValue] | None = None, *, max_model_len: int = 2048,
                 requests: int | None = None) -> None:
        presets: dict[str, KnobValue] = {name: KNOBS[name].default for name in WORKLOAD_KNOBS}
        for name, value in {**scenario.knobs, **(knobs or {})}.items():
            if name in presets:
                presets[name] = knob(name).check(value)
        self.scenario = scenario
        self.knobs = presets
        self.turned_away = 0
        """Arrivals that found too many requests unfinished (only in a run without end)."""
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._limit = scenario.arrivals.requests if requests is None else requests
        self._book = PromptBook(tokenizer)
        self._random = _Random(seed)
        self._pace = _Pace(float(presets["arrival_rate"]))
        self._now_ns = 0
        self._next_index = 0
        self._unfinished: set[int] = set()
        self._ready: list[NewRequest] = []  # arrived, but not yet asked for
        self._pending: list[tuple[float, int, int]] = []  # heap of (place, order, stream or user)
        self._order = 0
        self._gaps = {_Purpose.GAP: 0, _Purpose.TRICKLE: 0}
        self._users = [_User() for _ in range(scenario.arrivals.users)]
        self._user_of: dict[int, int] = {}  # unfinished request -> user
        self._index_of: dict[str, int] = {}  # the engine's id -> request
        self._answers: dict[str, list[str]] = {}  # of conversations: the answer so far
        self._total_weight = sum(t.weight for t in scenario.traffic)
        self._prepare_texts()
        self._begin()

    # ---- what the engine's thread calls ---------------------------------------------------------------------------

    def due(self, now_ns: int) -> list[NewRequest]:
        """The requests that have arrived by ``now_ns`` on the run's clock and were not yet handed out, in order."""
        self._advance(now_ns)
        ready, self._ready = self._ready, []
        return ready

    def next_arrival_ns(self) -> int | None:
        """When the next request comes, as things stand; None if none is coming (rate 0, all users wait, the end)."""
        if self._ready:
            return self._ready[0].arrival_ns
        if not self._pending or self._drawn_all:
            return None
        return self._pace.time_of(self._pending[0][0])

    def set_knob(self, name: str, value: KnobValue, now_ns: int | None = None) -> bool:
        """Turn a knob at ``now_ns`` (or when :meth:`due` was last asked): it acts on arrivals after that.

        False if it is none of the workload's. Raises :class:`~engine.trace.knobs.KnobError`.
        """
        value = knob(name).check(value)
        if name not in self.knobs:
            return False
        self._advance(self._now_ns if now_ns is None else now_ns)
        self.knobs[name] = value
        if name == "arrival_rate":
            self._pace.set_rate(float(value), self._now_ns)
        return True

    def on_admitted(self, new: NewRequest, request_id: str) -> None:
        """Tell which id the engine gave to a request."""
        self._index_of[request_id] = new.index
        number = self._user_of.get(new.index)
        if number is not None and self._users[number].messages:
            self._answers[request_id] = []

    def observe(self, events: StepEvents) -> None:
        """Take note of a step: who has left, and what conversations were answered. To be called for every step."""
        for sampled in events.sampled if self._answers else ():
            if sampled.request_id in self._answers:
                self._answers[sampled.request_id].append(sampled.text)
        for finish in (*events.finished, *events.aborted):
            answer = "".join(self._answers.pop(finish.request_id, ())) + finish.text
            self.on_finished(finish.request_id, events.end_ns, answer)
        for refused in events.refused:
            self.on_finished(refused.request_id, events.end_ns)

    def on_finished(self, request_id: str, now_ns: int, answer: str = "") -> None:
        """Tell that a request has left the engine: finished, aborted or refused. Ids of others are passed over.

        In a closed loop its user then thinks and sends again; a conversation goes on from ``answer``.
        """
        index = self._index_of.pop(request_id, None)
        if index is None:
            return
        self._unfinished.discard(index)
        number = self._user_of.pop(index, None)
        if number is None:
            return
        user = self._users[number]
        if answer.strip():
            user.messages.append({"role": "assistant", "content": answer.strip()})
        else:
            user.turns_left = 0  # no answer, nothing to go on from
        # Thinking takes "users / arrival_rate" on average, so that all users together would send at the rate that the
        # knob says if answers took no time. Gamma rather than exponential: people do not answer in a millisecond.
        think = self._random.stream(_Purpose.THINK, index).gamma(4.0, 0.25) * len(self._users)
        self._push(self._pace.place_at(now_ns) + float(think), number)

    @property
    def exhausted(self) -> bool:
        """Whether every request there will ever be has been handed out."""
        return self._drawn_all and not self._ready

    @property
    def _drawn_all(self) -> bool:
        return 0 < self._limit <= self._next_index

    # ---- when -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        arrivals = self.scenario.arrivals
        if arrivals.process == "closed_loop":
            for number in range(arrivals.users):
                self._push(float(max(0, number - max(arrivals.initial, 1) + 1)), number)
            return
        for _ in range(arrivals.initial):
            self._push(0.0, -1)
        self._push_next(_Purpose.GAP, 0.0)
        if arrivals.process == "burst" and arrivals.trickle > 0:
            self._push_next(_Purpose.TRICKLE, 0.0)

    def _push(self, place: float, stream: int) -> None:
        heapq.heappush(self._pending, (place, self._order, stream))
        self._order += 1

    def _push_next(self, stream: _Purpose, after: float) -> None:
        """Put the next arrival (or burst) of an open process on the axis."""
        arrivals = self.scenario.arrivals
        k = self._gaps[stream]
        self._gaps[stream] = k + 1
        if stream == _Purpose.TRICKLE:
            gap = float(self._random.stream(stream, k).exponential(1.0 / arrivals.trickle))
        elif arrivals.process == "uniform":
            gap = 1.0
        elif arrivals.process == "burst":
            # Bursts are a full cycle apart; the first one comes early, for somebody is watching.
            gap = arrivals.burst_size / (1.0 - arrivals.trickle) * (1.0 if k else 0.3)
        else:
            gap = float(self._random.stream(stream, k).exponential(1.0))
        self._push(after + gap, int(stream))

    def _advance(self, now_ns: int) -> None:
        """Draw everything that has arrived by now."""
        self._now_ns = max(self._now_ns, now_ns)
        while self._pending and not self._drawn_all:
            place, _, stream = self._pending[0]
            arrival_ns = self._pace.time_of(place)
            if arrival_ns is None or arrival_ns > self._now_ns:
                return
            heapq.heappop(self._pending)
            if self.scenario.arrivals.process == "closed_loop":
                self._arrive(arrival_ns, user=stream)
                continue
            burst = self.scenario.arrivals.process == "burst" and stream == _Purpose.GAP
            for _ in range(self.scenario.arrivals.burst_size if burst else 1):
                if not self._drawn_all:
                    self._arrive(arrival_ns)
            if stream >= 0:
                self._push_next(_Purpose(stream), place)

    def _arrive(self, arrival_ns: int, user: int | None = None) -> None:
        index = self._next_index
        self._next_index += 1
        if not self._limit and len(self._unfinished) >= self.scenario.arrivals.max_unfinished:
            self.turned_away += 1
            if user is not None:
                self._push(self._pace.place_at(arrival_ns) + len(self._users), user)
            return
        self._unfinished.add(index)
        if user is None:
            self._ready.append(self._draw(index, arrival_ns, None))
        else:
            self._user_of[index] = user
            self._ready.append(self._draw(index, arrival_ns, self._users[user]))

    # ---- what -----------------------------------------------------------------------------------------------------

    def _prepare_texts(self) -> None:
        """Read and tokenise everything that this scenario can ask for, so that no draw has to."""
        self._texts = {traffic.name: _Texts.of(traffic, self._book) for traffic in self.scenario.traffic}
        self._preambles = self._book.passage("preambles/workspaces")
        self._blank_line = self._book.encode("\n\n")

    def _draw(self, index: int, arrival_ns: int, user: _User | None) -> NewRequest:
        traffic = user.traffic if user is not None and user.turns_left else None
        traffic = traffic or self._choose_traffic(index)
        if traffic.kind == "conversation":
            assert user is not None  # scenarios are checked for it
            ids, text, common = self._take_turn(index, traffic, user)
        else:
            ids, text, common = self._compose(index, traffic)
        low, high = self._range("output_tokens", traffic.output_tokens)
        wanted = self._between(_Purpose.OUTPUT_LENGTH, index, low, high)
        params = SamplingParams(
            temperature=float(self.knobs["temperature"]), top_k=self.scenario.top_k, top_p=self.scenario.top_p,
            seed=int(self._random.stream(_Purpose.SAMPLING, index).integers(0, 2**63)),
            max_tokens=max(1, min(wanted, self._max_model_len - len(ids))), ignore_eos=self.scenario.ignore_eos)
        return NewRequest(index, ids, text, params, arrival_ns, priority=traffic.priority, source=traffic.name,
                          common_prefix_tokens=common)

    def _choose_traffic(self, index: int) -> Traffic:
        mark = self._random.even(_Purpose.TRAFFIC, index) * self._total_weight
        for traffic in self.scenario.traffic:
            mark -= traffic.weight
            if mark < 0:
                break
        return traffic

    def _range(self, what: str, own: tuple[int, int]) -> tuple[int, int]:
        """The range that a length is drawn from: the traffic's own, or the knobs', whichever way round they stand."""
        low, high = own if own != (0, 0) else (int(self.knobs[f"{what}_min"]), int(self.knobs[f"{what}_max"]))
        return min(low, high), max(low, high)

    def _between(self, purpose: _Purpose, index: int, low: int, high: int) -> int:
        return low + int(self._random.stream(purpose, index).random() * (high - low + 1))

    def _compose(self, index: int, traffic: Traffic) -> tuple[list[int], str, int]:
        """Tokens, the user's text, and how many tokens are shared, of a request of one message."""
        preface, common = self._preface(index, traffic)
        after = self._book.frame.after_user
        text = self._user_text(index, traffic, self._max_model_len - len(preface.ids) - len(after))
        return [*preface.ids, *text.ids, *after], text.text, len(preface.ids) if common else 0

    def _take_turn(self, index: int, traffic: Traffic, user: _User) -> tuple[list[int], str, int]:
        """The next turn of a user's conversation: everything said so far, and a question."""
        if user.turns_left:
            message = self._user_text(index, traffic, self._max_model_len, follow_up=True)
            ids = self._tokenizer.chat([*user.messages, {"role": "user", "content": message.text}])
            if len(ids) + self._range("output_tokens", traffic.output_tokens)[1] <= self._max_model_len:
                user.turns_left -= 1
                user.messages.append({"role": "user", "content": message.text})
                return ids, message.text, user.common_prefix_tokens
        ids, text, user.common_prefix_tokens = self._compose(index, traffic)
        user.traffic = traffic
        user.turns_left = traffic.turns - 1
        user.messages = [*self._preface(index, traffic)[0].messages, {"role": "user", "content": text}]
        return ids, text, user.common_prefix_tokens

    def _preface(self, index: int, traffic: Traffic) -> tuple[Preface, bool]:
        """The system prompt and whether it is the common one. The share of ``common_prefix`` gets the common one;
        others get instructions of their own, as long but different from the first word on."""
        common = self._texts[traffic.name].preface
        if not common.messages:
            return common, False
        if self._random.even(_Purpose.COMMON, index) < float(self.knobs["common_prefix"]):
            return common, True
        rng = self._random.stream(_Purpose.PREAMBLE, index)
        opening = f"{rng.integers(10_000, 100_000)} is the workspace, and you are its assistant.\n\n"
        frame = self._book.frame
        room = len(common.ids) - len(frame.before_system) - len(frame.between) - OPENING_TOKENS
        rest = self._preambles.take(room, int(rng.integers(len(self._preambles))))
        return self._book.own_preface(opening, rest), False

    def _user_text(self, index: int, traffic: Traffic, room: int, follow_up: bool = False) -> TokenText:
        """What the user says, as long as the draw and the ``room`` in the context allow."""
        low, high = self._range("prompt_tokens", traffic.prompt_tokens)
        target = max(1, min(self._between(_Purpose.PROMPT_LENGTH, index, low, high), room - MIN_OUTPUT_ROOM))
        rng = self._random.stream(_Purpose.TEXT, index)
        texts = self._texts[traffic.name]
        if traffic.kind == "document":
            return self._document(texts, target, rng)
        choice = int(rng.integers(2**32))
        place = int(rng.integers(2**32))
        questions = texts.follow_ups if follow_up else texts.questions
        fitting = [q for q in questions if len(q) <= target]
        if not fitting:
            return cut(min(questions, key=len), target, self._tokenizer)
        question = fitting[choice % len(fitting)]
        rest = target - len(question) - len(texts.heading)
        background, start = texts.background, place % len(texts.background)
        if rest > background.num_tokens:
            background, start = texts.long_background, 0
        before = background.take(rest, start, whole_sentences=True)
        said = before + texts.heading + question if before.ids else question
        return self._add_remarks(said, texts.remarks, target, rng)

    def _document(self, texts: _Texts, target: int, rng: np.random.Generator) -> TokenText:
        """A task and a document from some paragraph on, cut to the target."""
        # A number of its own comes first, or a document asked for twice would be served from the cache.
        reference = self._book.encode(f"Reference {rng.integers(10_000, 100_000)}.\n\n")
        head = reference + texts.tasks[int(rng.integers(len(texts.tasks)))] + self._blank_line
        paragraphs = texts.documents.paragraphs
        start = paragraphs[int(rng.integers(len(paragraphs)))]
        return cut(head, target, self._tokenizer) + texts.documents.take(target - len(head), start)

    def _add_remarks(self, said: TokenText, remarks: Sequence[TokenText], target: int,
                     rng: np.random.Generator) -> TokenText:
        """What was said, with a few short remarks behind it ("Keep it short."), up to the target or just below."""
        left = list(remarks)
        while fitting := [remark for remark in left if len(remark) <= target - len(said)]:
            longest = max(map(len, fitting))
            best = [remark for remark in fitting if len(remark) == longest]
            remark = best[int(rng.integers(len(best)))]
            left.remove(remark)
            said = said + remark
        return said
