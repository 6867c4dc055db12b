"""Prompts of real text at any length, and the frame that the chat template puts around them."""

from __future__ import annotations

import pytest

from engine.model.problems import ModelError
from engine.model.tokenizer import Tokenizer
from engine.prompts import ChatFrame, Passage, PromptBook, TokenText, cut, encode
from engine.scenario import ScenarioError, prompt_file_names
from tests.engine.prompt_tokenizer import CHAT_TEMPLATE, prompt_tokenizer, trained_tokenizer

TEXT = "The first sentence stands here. A second one follows!\nA new line.\n\nThe other paragraph, is it short? Yes."


@pytest.fixture(params=["model", "trained"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return prompt_tokenizer() if request.param == "model" else trained_tokenizer()


def test_a_passage_gives_exactly_as_many_tokens_as_asked_for(tokenizer: Tokenizer) -> None:
    passage = Passage(TEXT, tokenizer)
    assert len(passage) == 5
    for start in range(len(passage) + 2):
        for n in range(120):
            piece = passage.take(n, start)
            assert len(piece) == n
            assert tokenizer.decode(piece.ids) == piece.text


def test_a_passage_goes_round_as_a_new_paragraph(tokenizer: Tokenizer) -> None:
    passage = Passage(TEXT, tokenizer)
    assert passage.take(passage.num_tokens * 2).text.startswith(TEXT + "\n\nThe first sentence stands here.")


def test_sentences_joined_are_what_the_tokenizer_makes_of_the_whole(tokenizer: Tokenizer) -> None:
    book = PromptBook(tokenizer)
    for name in prompt_file_names("documents"):
        passage = book.passage(f"documents/{name}")
        piece = passage.take(passage.num_tokens * 3 // 4, 2, whole_sentences=True)
        for paragraph in piece.text.split("\n\n"):
            assert paragraph in "\n\n".join([book._read(f"documents/{name}").strip()] * 2)
        # Only line breaks may be split otherwise than by the tokenizer.
        one = max(piece.text.split("\n\n"), key=len)
        ids = encode(tokenizer, one).ids
        joined = piece.ids
        assert any(joined[i:i + len(ids)] == ids for i in range(len(joined)))


def test_whole_sentences_only(tokenizer: Tokenizer) -> None:
    passage = Passage(TEXT, tokenizer)
    for n in range(60):
        piece = passage.take(n, 0, whole_sentences=True)
        assert len(piece) <= n
        assert piece.text == "" or piece.text[-1] in ".!?"


def test_a_cut_never_leaves_half_a_character(tokenizer: Tokenizer) -> None:
    passage = Passage("分页内存管理解决了什么问题？🙂 请简短回答。", tokenizer)
    for n in range(1, passage.num_tokens):
        piece = passage.take(n)
        assert "\ufffd" not in piece.text
        assert n - 3 <= len(piece) <= n
    piece = encode(tokenizer, "你")
    assert cut(piece, len(piece), tokenizer) is piece
    assert cut(piece, 0, tokenizer) == TokenText("", ())


def test_the_frame_is_what_the_template_makes(tokenizer: Tokenizer) -> None:
    frame = ChatFrame.of(tokenizer)
    system, user = "You are brief. Always.", "Why is that so?\n\nTell me."
    ids = [*frame.before_system, *encode(tokenizer, system).ids, *frame.between, *encode(tokenizer, user).ids,
           *frame.after_user]
    assert ids == tokenizer.chat([{"role": "system", "content": system}, {"role": "user", "content": user}])
    ids = [*frame.before_user, *encode(tokenizer, user).ids, *frame.after_user]
    assert ids == tokenizer.chat([{"role": "user", "content": user}])


def test_a_common_preface_is_what_the_template_makes_of_its_messages(tokenizer: Tokenizer) -> None:
    book = PromptBook(tokenizer)
    question = "May I park here?"
    for name in prompt_file_names("system"):
        preface = book.common_preface(name)
        whole = tokenizer.chat([*preface.messages, {"role": "user", "content": question}])
        assert [*preface.ids, *encode(tokenizer, question).ids, *book.frame.after_user] == whole
    turns = book.common_preface("few-shot").messages
    assert [m["role"] for m in turns] == ["system"] + ["user", "assistant"] * 10
    assert all(m["content"].startswith("Category: ") for m in turns[2::2])


def test_a_template_without_system_messages_gets_them_in_front_of_the_users() -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHAT_TEMPLATE
    tokenizer = trained_tokenizer(refusing)
    with pytest.raises(ModelError):
        tokenizer.chat([{"role": "system", "content": "x"}])
    frame = ChatFrame.of(tokenizer)
    ids = [*frame.before_system, *encode(tokenizer, "Be brief.").ids, *frame.between, *encode(tokenizer, "Why?").ids,
           *frame.after_user]
    merged = tokenizer.decode(tokenizer.chat([{"role": "user", "content": "Be brief.\n\nWhy?"}]))
    assert tokenizer.decode(ids) == merged
    book = PromptBook(tokenizer)
    preface = book.common_preface("assistant")
    assert preface.messages[0]["content"] in tokenizer.decode(preface.ids)


def test_a_model_without_a_template_just_continues_the_text() -> None:
    tokenizer = trained_tokenizer(None)
    frame = ChatFrame.of(tokenizer)
    ids = [*frame.before_system, *encode(tokenizer, "Be brief.").ids, *frame.between, *encode(tokenizer, "Why?").ids,
           *frame.after_user]
    assert tokenizer.decode(ids) == "Be brief.\n\nWhy?"


def test_a_missing_file_is_named(tokenizer: Tokenizer) -> None:
    with pytest.raises(ScenarioError, match=r"nothing\.txt: cannot be read"):
        PromptBook(tokenizer).common_preface("nothing")
