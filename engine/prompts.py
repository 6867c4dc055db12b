"""Prompts of real text at any length, and the chat template around them.

Everything that ships in ``assets/prompts`` is cut into sentences and tokenised once. A prompt of, say, 137 tokens is
then composed of whole sentences, the last one cut at a token: drawing one takes microseconds, not a tokeniser's run.
Byte-level and sentence-piece tokenisers alike never merge across a space that starts a word, so sentences joined
token by token are what the tokeniser itself would have made of the joined text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engine.scenario import PROMPT_FOLDER, ScenarioError

_SENTENCE_END = re.compile(r"(?<=[.!?])(?= )|(?<=[。！？])(?=.)")


class ChatTokenizer(Protocol):
    """What is needed of a tokeniser; :class:`engine.model.tokenizer.Tokenizer` has it."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class TokenText:
    """A text and its tokens."""

    text: str
    ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def __add__(self, other: TokenText) -> TokenText:
        return TokenText(self.text + other.text, self.ids + other.ids)


def encode(tokenizer: ChatTokenizer, text: str) -> TokenText:
    """A piece of a prompt: no beginning-of-text token."""
    return TokenText(text, tuple(tokenizer.encode(text, add_special_tokens=False)))


class Passage:
    """A text as a ring of sentences, from which a piece of any number of tokens can be taken.

    Every sentence is kept twice: as it starts a piece, and as it follows another one (with the space or line break
    that stands between them).
    """

    def __init__(self, text: str, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        pieces = _split(text)
        self._following = [encode(tokenizer, lead + body) for lead, body in pieces]
        self._starting = [encode(tokenizer, body) for _, body in pieces]
        # Going round starts again with the first sentence: as a new paragraph, not glued to the last one.
        self._following[0] = encode(tokenizer, "\n\n" + pieces[0][1])
        self.paragraphs = [i for i, (lead, _) in enumerate(pieces) if lead in ("", "\n\n")] or [0]

    def __len__(self) -> int:
        return len(self._starting)

    @property
    def num_tokens(self) -> int:
        return sum(len(s) for s in self._following)

    def take(self, num_tokens: int, start: int = 0, whole_sentences: bool = False) -> TokenText:
        """``num_tokens`` tokens from sentence ``start`` on, going round.

        The last sentence is cut, up to three tokens early where a cut would leave half a character; with
        ``whole_sentences`` it is left out instead.
        """
        if num_tokens <= 0:
            return TokenText("", ())
        i = start % len(self)
        sentence = self._starting[i]
        text: list[str] = []
        ids: list[int] = []
        while len(ids) + len(sentence) <= num_tokens:
            text.append(sentence.text)
            ids.extend(sentence.ids)
            i = (i + 1) % len(self)
            sentence = self._following[i]
        if not whole_sentences:
            rest = cut(sentence, num_tokens - len(ids), self._tokenizer)
            text.append(rest.text)
            ids.extend(rest.ids)
        return TokenText("".join(text), tuple(ids))


def cut(piece: TokenText, num_tokens: int, tokenizer: ChatTokenizer) -> TokenText:
    """The first ``num_tokens`` tokens of a piece, fewer where that would end within a character."""
    if num_tokens >= len(piece):
        return piece
    for n in range(num_tokens, 0, -1):
        ids = piece.ids[:n]
        text = tokenizer.decode(ids)
        if not text.endswith("\ufffd"):
            dropped = piece.text.startswith(" ") and not text.startswith(" ")  # as sentence-piece decoders do
            return TokenText(" " + text if dropped else text, ids)
    return TokenText("", ())


def _split(text: str) -> list[tuple[str, str]]:
    """(what stands before it, sentence) for every sentence of a text whose paragraphs are apart by blank lines."""
    pieces: list[tuple[str, str]] = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        for line_number, line in enumerate(paragraph.strip().split("\n")):
            for place, sentence in enumerate(_SENTENCE_END.split(line.strip())):
                space = " " if sentence.startswith(" ") else ""
                lead = space if place else ("\n" if line_number else ("\n\n" if pieces else ""))
                if body := sentence.strip():
                    pieces.append((lead, body))
    return pieces


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """The tokens that the model's chat template puts around a system prompt and a user's message."""

    before_system: tuple[int, ...]
    between: tuple[int, ...]
    before_user: tuple[int, ...]  # when there is no system prompt of ours
    after_user: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: ChatTokenizer) -> ChatFrame:
        """Found by comparing conversations that differ in one place only."""
        plain = tokenizer.chat([{"role": "user", "content": "Kilo"}])
        other = tokenizer.chat([{"role": "user", "content": "Yankee"}])
        before_user, after_user = _common_start(plain, other), _common_end(plain, other)
        try:
            a, b, c = (tokenizer.chat([{"role": "system", "content": s}, {"role": "user", "content": u}])
                       for s, u in (("Alpha", "Kilo"), ("Zulu", "Kilo"), ("Alpha", "Yankee")))
        except Exception:  # a template that refuses system messages (its own way to say so): put it before the user's
            return cls(before_user, encode(tokenizer, "\n\n").ids, before_user, after_user)
        before_system = _common_start(a, b)
        shared_end = _common_end(a, b)  # between, "Kilo", after
        from_c = c[len(a) - len(shared_end):]  # between, "Yankee", after
        return cls(before_system, _common_start(list(shared_end), from_c), before_user, after_user)


def _common_start(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return tuple(a[:n])


def _common_end(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    return tuple(reversed(_common_start(list(reversed(a)), list(reversed(b)))))


@dataclass(frozen=True, slots=True)
class Preface:
    """What stands before a user's words: a system prompt, perhaps some worked examples, and the tokens of it all."""

    messages: tuple[dict[str, str], ...]
    ids: tuple[int, ...]


class PromptBook:
    """The shipped prompts, read and tokenised when first asked for."""

    def __init__(self, tokenizer: ChatTokenizer, folder: Path = PROMPT_FOLDER) -> None:
        self.tokenizer = tokenizer
        self.frame = ChatFrame.of(tokenizer)
        self._folder = folder
        self._lines: dict[tuple[str, ...], list[TokenText]] = {}
        self._passages: dict[tuple[str, ...], Passage] = {}
        self._prefaces: dict[str, Preface] = {}

    def encode(self, text: str) -> TokenText:
        return encode(self.tokenizer, text)

    def lines(self, folder: str, names: Sequence[str]) -> list[TokenText]:
        """The lines of text files of one folder (without .txt), one prompt each."""
        key = tuple(f"{folder}/{name}" for name in names)
        if key not in self._lines:
            self._lines[key] = [self.encode(line.strip()) for path in key
                                for line in self._read(path).splitlines() if line.strip()]
        return self._lines[key]

    def remarks(self, names: Sequence[str]) -> list[TokenText]:
        """Lines that can stand behind another sentence: with a space in front, except in Chinese."""
        return [line if line.text[0] > "\u2e80" else self.encode(" " + line.text)
                for line in self.lines("remarks", names)]

    def passage(self, *paths: str) -> Passage:
        """Text files (paths under the prompt folder, without .txt) joined into one ring of sentences."""
        if paths not in self._passages:
            self._passages[paths] = Passage("\n\n".join(self._read(path) for path in paths), self.tokenizer)
        return self._passages[paths]

    def common_preface(self, name: str) -> Preface:
        """A common system prompt. Its file may go on with worked examples, as turns of a conversation: below lines
        that say ``--- user`` and ``--- assistant``."""
        if name not in self._prefaces:
            instructions, *turns = re.split(r"^--- (user|assistant)$", self._read(f"system/{name}"), flags=re.M)
            messages = [{"role": "system", "content": instructions.strip()}]
            messages += [{"role": role, "content": text.strip()}
                         for role, text in zip(turns[::2], turns[1::2], strict=True)]
            self._prefaces[name] = Preface(tuple(messages), self._tokens_before_user(messages))
        return self._prefaces[name]

    def _tokens_before_user(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        try:
            a, b = (self.tokenizer.chat([*messages, {"role": "user", "content": word}]) for word in ("Kilo", "Yankee"))
        except Exception:  # as in ChatFrame.of
            frame = self.frame
            text = "\n\n".join(message["content"] for message in messages)
            return frame.before_system + self.encode(text).ids + frame.between
        return _common_start(a, b)

    def own_preface(self, opening: str, rest: TokenText) -> Preface:
        """A system prompt made up of two pieces; only the first one has to be tokenised."""
        frame = self.frame
        text = self.encode(opening) + rest
        return Preface(({"role": "system", "content": text.text},), frame.before_system + text.ids + frame.between)

    def no_preface(self) -> Preface:
        return Preface((), self.frame.before_user)

    def _read(self, path: str) -> str:
        file = self._folder / f"{path}.txt"
        try:
            return file.read_text(encoding="utf-8")
        except OSError as error:
            raise ScenarioError(f"{file}: cannot be read: {error.strerror or error}") from error
