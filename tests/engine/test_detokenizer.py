"""Text that grows token by token: never half a character, and in the end exactly the decoded whole."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

from engine.model.detokenizer import IncrementalDetokenizer
from engine.model.tokenizer import Tokenizer

FAMILY = "👨‍👩‍👧‍👦"
WORDS = [
    "你好，世界", "é", "naïve", " 🇩🇪🇫🇷", FAMILY, "👍🏽", "❤️", "1️⃣", "🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "日本語", " plain", "\n\n", "🙂", "한국어", "𝕏",
]  # fmt: skip


def byte_level() -> Tokenizer:
    """Byte-level BPE with a few merges, some of them through the middle of a character, and special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: n for n, character in enumerate(alphabet)}
    merges = []
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str("你好🙂")[0][0]
    for pair in [(spelled[0], spelled[1]), (spelled[2], spelled[3]), (spelled[7], spelled[8]), ("Ġ", "p")]:
        if "".join(pair) not in vocab:
            vocab["".join(pair)] = len(vocab)
            merges.append(pair)
    raw = RawTokenizer(models.BPE(vocab=vocab, merges=merges))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken("<|end|>", special=True)])
    raw.add_tokens([AddedToken("<tool 你>", special=False)])
    return Tokenizer(raw)


def byte_fallback() -> Tokenizer:
    """As Llama 2 and Mistral do it: pieces with a mark for spaces, and single bytes for what has no piece."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "a", "b", "你", "▁plain"]
    vocab = {piece: n for n, piece in enumerate(pieces)}
    raw = RawTokenizer(models.BPE(vocab=vocab, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    raw.add_special_tokens([AddedToken(token, special=True) for token in ("<unk>", "<s>", "</s>")])
    return Tokenizer(raw)


def metaspace() -> Tokenizer:
    raw = RawTokenizer(models.BPE(vocab={p: n for n, p in enumerate(["▁", "▁a", "a", "b"])}, merges=[("▁", "a")]))
    raw.decoder = decoders.Metaspace()
    return Tokenizer(raw)


TOKENIZERS = {"byte_level": byte_level(), "byte_fallback": byte_fallback(), "metaspace": metaspace()}


def pieces_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer)
    return [detokenizer.add(i) for i in ids] + [detokenizer.flush()]


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_pieces_add_up_to_the_decoded_whole_for_any_tokens(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=40))
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@given(text=st.one_of(st.text(max_size=30), st.lists(st.sampled_from(WORDS), max_size=6).map("".join)))
@settings(max_examples=100, deadline=None)
def test_no_piece_shows_half_a_character(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    text = text.encode("utf-8", "ignore").decode()  # lone surrogates are no text
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("emoji", [FAMILY, "👍🏽", "🇩🇪", "❤️", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "🙂"])
def test_an_emoji_of_several_code_points_appears_whole(kind: str, emoji: str) -> None:
    tokenizer = TOKENIZERS[kind]
    pieces = [piece for piece in pieces_of(tokenizer, tokenizer.encode(f"a{emoji}b{emoji}")) if piece]
    assert sum(emoji in piece for piece in pieces) == 2
    assert all(set(piece).isdisjoint(emoji) for piece in pieces if emoji not in piece)


def test_chinese_appears_character_by_character() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    assert [piece for piece in pieces_of(tokenizer, tokenizer.encode("你好，世")) if piece] == list("你好，世")


def test_a_letter_is_shown_at_once() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert [detokenizer.add(i) for i in tokenizer.encode("Hi!")] == ["H", "i", "!"]
    assert detokenizer.flush() == ""


def test_special_tokens_are_left_out_and_added_tokens_are_not() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("a<|end|>b<tool 你>")
    assert tokenizer.raw.token_to_id("<|end|>") in ids
    assert "".join(pieces_of(tokenizer, ids)) == "ab<tool 你>"


def test_what_was_cut_off_in_mid_character_comes_out_as_one_mark() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("好")[:-1]
    assert pieces_of(tokenizer, ids)[-1] == "\ufffd" == tokenizer.decode(ids)


def test_a_flushed_detokenizer_starts_afresh() -> None:
    tokenizer = TOKENIZERS["byte_fallback"]
    detokenizer = IncrementalDetokenizer(tokenizer)
    ids = tokenizer.encode(" a plain 好")
    first = "".join([detokenizer.add(i) for i in ids]) + detokenizer.flush()
    assert first == "".join([detokenizer.add(i) for i in ids]) + detokenizer.flush()


def test_an_endless_chain_of_joined_emoji_is_not_held_for_ever() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    detokenizer = IncrementalDetokenizer(tokenizer)
    ids = tokenizer.encode("👨‍" * 200)
    assert sum(bool(detokenizer.add(i)) for i in ids) > 1


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_a_token_costs_the_same_however_long_the_text(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode("a" * 8000)
    detokenizer = IncrementalDetokenizer(tokenizer)

    def seconds(part: list[int]) -> float:
        start = time.process_time()
        for i in part:
            detokenizer.add(i)
        return time.process_time() - start

    first = seconds(ids[:2000])
    seconds(ids[2000:6000])
    assert seconds(ids[6000:8000]) < 3 * first + 0.02
