"""Stop strings: found wherever tokens cut them, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model.detokenizer import IncrementalDetokenizer
from engine.model.tokenizer import Tokenizer
from engine.output_text import OutputText
from tests.engine.tiny_tokenizer import make_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One token a byte: every character beyond ASCII is spread over several tokens."""
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


class Words:
    """Stands where a detokenizer does: token ``i`` is the ``i``-th piece."""

    held = ""

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces

    def add(self, token_id: int) -> str:
        return self._pieces[token_id]

    def flush(self) -> str:
        return ""


def run(text: OutputText, token_ids: list[int]) -> tuple[str, str | None, int]:
    """What was shown, what stopped it, and how many tokens it took."""
    shown = ""
    for count, token_id in enumerate(token_ids, 1):
        shown += text.add(token_id)
        if text.stopped_by is not None:
            return shown + text.flush(), text.stopped_by, count
    return shown + text.flush(), None, len(token_ids)


def run_pieces(pieces: list[str], stop: tuple[str, ...], min_tokens: int = 0) -> tuple[str, str | None, int]:
    return run(OutputText(Words(pieces), stop, min_tokens), list(range(len(pieces))))  # type: ignore[arg-type]


def run_text(tokenizer: Tokenizer, text: str, stop: tuple[str, ...]) -> tuple[str, str | None, int]:
    return run(OutputText(IncrementalDetokenizer(tokenizer), stop), tokenizer.encode(text))


@pytest.mark.parametrize(("pieces", "stop", "shown", "by", "tokens"), [
    (["Hello", " wor", "ld END", " more"], ("END",), "Hello world ", "END", 3),
    (["a E", "N", "D b"], ("END",), "a ", "END", 3),
    (["a EN", "DLESS"], ("ENDING",), "a ENDLESS", None, 2),
    (["aab", "aabaac"], ("aabaac",), "aab", "aabaac", 2),
    (["x", "\n", "\n", "y"], ("\n\n",), "x", "\n\n", 3),
    (["one two", " three"], ("three", "two th"), "one ", "two th", 2),  # completed first, not begun first
    (["abc"], ("bc", "abc"), "a", "bc", 1),  # completed by the same character: the first of the list
    (["END"], ("END",), "", "END", 1),
    (["end"], ("END",), "end", None, 1),
])
def test_stop_strings_across_tokens(pieces: list[str], stop: tuple[str, ...], shown: str, by: str | None,
                                    tokens: int) -> None:
    assert run_pieces(pieces, stop) == (shown, by, tokens)


@pytest.mark.parametrize(("text", "stop", "shown"), [
    ("从前有一座山。山上有庙。", "山上", "从前有一座山。"),
    ("答案是四十二。", "。", "答案是四十二"),
    ("好的👋🏽再见", "👋🏽", "好的"),
    ("好的👋", "👋", "好的"),
    ("家：👨‍👩‍👧，猫", "👧，", "家：👨‍👩‍"),
])
def test_stop_strings_in_characters_of_several_tokens(tokenizer: Tokenizer, text: str, stop: str, shown: str) -> None:
    found, by, tokens = run_text(tokenizer, text, (stop,))
    assert (found, by) == (shown, stop)
    assert tokens == len((shown + stop).encode())


def test_a_character_that_ends_like_a_stop_string_is_not_one(tokenizer: Tokenizer) -> None:
    """The last bytes of 山 alone are no text, whatever stands before."""
    assert run_text(tokenizer, "山丘", ("丘山",))[:2] == ("山丘", None)


def test_nothing_counts_before_min_tokens() -> None:
    assert run_pieces(["END", "a", "END", "b", "END"], ("END",), min_tokens=3) == ("ENDaENDb", "END", 5)
    assert run_pieces(["a", "EN", "D", "b"], ("END",), min_tokens=2) == ("a", "END", 3)  # completed after them
    assert run_pieces(["aa", "a", "a"], ("aa",), min_tokens=1) == ("a", "aa", 2)
    assert run_pieces(["END", "x"], ("END",), min_tokens=2) == ("ENDx", None, 2)


def test_what_can_be_shown_is_shown_at_once() -> None:
    text = OutputText(Words(["Hello", " <", "b", "> <", "/s", "top>"]), ("</stop>",))  # type: ignore[arg-type]
    assert [text.add(i) for i in range(6)] == ["Hello", " ", "<b", "> ", "", ""]
    assert text.stopped_by == "</stop>"


@given(pieces=st.lists(st.text("ab", max_size=4), max_size=12), min_tokens=st.integers(0, 4),
       stop=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_against_looking_at_the_whole_text_after_each_token(pieces: list[str], stop: list[str],
                                                            min_tokens: int) -> None:
    expected: tuple[str, str | None, int] = ("".join(pieces), None, len(pieces))
    text = ""
    for count, piece in enumerate(pieces, 1):
        ends = [(at + len(one), order, at) for order, one in enumerate(stop) for at in range(len(text + piece))
                if (text + piece).startswith(one, at) and at + len(one) > len(text)]
        text += piece
        if ends and count > min_tokens:
            _, order, at = min(ends)
            expected = (text[:at], stop[order], count)
            break
    assert run_pieces(pieces, tuple(stop), min_tokens) == expected


def test_pieces_hold_together_with_the_real_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A stop string that does not come leaves the text as it is, byte by byte."""
    text = "Ein Text, 一段文字, naïve 👩‍🚀 end"
    assert run_text(tokenizer, text, ("never", "文字x", "👩‍🚀!")) == (text, None, len(text.encode()))
