"""The tokenizer and chat templates: the same ids as transformers, and strangers' templates kept in their box."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as RawTokenizer

from engine.model.problems import ModelError
from engine.model.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}\n"
    "    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' }}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TRICKY = (
    "{{ bos_token }}{% set seen = namespace(n=0) %}\n"
    "  {% for message in messages %}\n"
    "{% if message.role == 'skip' %}{% continue %}{% endif %}\n"
    "{% set seen.n = seen.n + 1 %}[{{ seen.n }}] {{ message | tojson }}\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}{% endgeneration %}{% endif %}\n"
    "  {% endfor %}\n"
    "{% if not tools is defined or not tools %}no tools{% endif %}{{ eos_token }}"
)
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  你好 <b>'quoted'</b> & 🙂\n"},
    {"role": "assistant", "content": "Hi"},
    {"role": "skip", "content": "never seen"},
    {"role": "user", "content": "1 + 1?"},
]


def make_folder(folder: Path, **files: Any) -> Path:
    """A folder with a byte-level tokenizer that puts <s> before a text, and the files given (``name_json=...``)."""
    vocab = {character: n for n, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    raw = RawTokenizer(models.BPE(vocab=vocab, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(t, special=True) for t in ("<s>", "</s>", "<|im_start|>", "<|im_end|>")])
    raw.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", raw.token_to_id("<s>"))]
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(raw.to_str(), "utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": {"content": "</s>"}}
    settings.update(files.pop("settings", {}))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("_dot_", ".")).write_text(text, "utf-8")
    return folder


@pytest.mark.parametrize("template", [CHATML, TRICKY], ids=["chatml", "tricky"])
@pytest.mark.parametrize("prompt", [True, False], ids=["prompt", "no_prompt"])
def test_same_ids_as_transformers(tmp_path: Path, template: str, prompt: bool) -> None:
    from transformers import PreTrainedTokenizerFast

    settings = {"chat_template": template, "eos_token": "</s>"}
    folder = make_folder(tmp_path, settings=settings)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    ours = Tokenizer.load(folder)
    expected = theirs.apply_chat_template(CHAT, add_generation_prompt=prompt, tokenize=False)
    assert ours.render_chat(CHAT, add_generation_prompt=prompt) == expected
    ids = theirs.apply_chat_template(CHAT, add_generation_prompt=prompt, return_dict=False)
    assert ours.chat(CHAT, add_generation_prompt=prompt) == ids
    assert ours.encode("Hello 你好") == theirs.encode("Hello 你好")
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_eos_ids_come_from_every_place_that_names_them(tmp_path: Path) -> None:
    folder = make_folder(
        tmp_path,
        settings={"chat_template": CHATML},
        generation_config_dot_json={"eos_token_id": [7, 8]},
        config_dot_json={"eos_token_id": 9, "text_config": {"eos_token_id": 10}},
    )
    tokenizer = Tokenizer.load(folder)
    end, turn = (tokenizer.raw.token_to_id(token) for token in ("</s>", "<|im_end|>"))
    assert tokenizer.eos_token_ids == {7, 8, 9, 10, end, turn}
    assert tokenizer.vocab_size == 260


def test_a_template_in_a_file_of_its_own_comes_first(tmp_path: Path) -> None:
    settings = {"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}
    assert Tokenizer.load(make_folder(tmp_path / "a", settings=settings)).chat_template == "d"
    both = make_folder(tmp_path / "b", settings=settings, chat_template_dot_jinja="from the file")
    assert Tokenizer.load(both).chat_template == "from the file"


def test_without_a_template_the_text_is_continued(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(make_folder(tmp_path))
    assert tokenizer.chat([{"role": "user", "content": "Once"}]) == tokenizer.encode("Once")


def test_strftime_now_and_raise_exception(tmp_path: Path) -> None:
    dated = Tokenizer.load(make_folder(tmp_path / "a", settings={"chat_template": "{{ strftime_now('%Y') }}"}))
    assert int(dated.render_chat([])) >= 2024
    refusing = make_folder(tmp_path / "b", settings={"chat_template": "{{ raise_exception('roles must alternate') }}"})
    with pytest.raises(ModelError, match="roles must alternate"):
        Tokenizer.load(refusing).chat(CHAT)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.keys() }}",
        "{% include '/etc/passwd' %}",
        "{{ strftime_now.__code__.co_names }}",
        "{% for n in range(10 ** 9) %}{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ 'unclosed",
    ],
)
def test_a_template_cannot_leave_the_sandbox(tmp_path: Path, template: str) -> None:
    tokenizer = Tokenizer.load(make_folder(tmp_path, settings={"chat_template": template}))
    with pytest.raises(ModelError, match="chat template"):
        tokenizer.render_chat(CHAT)


def test_a_folder_without_a_readable_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", "utf-8")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.load(tmp_path)


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, engine.model.library, engine.model.tokenizer, engine.model.detokenizer; "
        "print([m for m in ('torch', 'transformers', 'huggingface_hub', 'numpy', 'PySide6') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
