"""Text to token ids and back, on the `tokenizers` library directly: transformers would take seconds to import.

A Hugging Face folder describes its tokenizer in ``tokenizer.json``; names of special tokens and the chat template
stand in ``tokenizer_config.json`` or beside it. Chat templates are small programs by strangers: they run in Jinja's
sandbox, with the few helpers that they expect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from engine.model.problems import ModelError

if TYPE_CHECKING:
    import jinja2
    from tokenizers import Tokenizer as RawTokenizer

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

CHAT_END_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|end_of_turn|>", "<turn|>")
"""Tokens that end a turn. One that the chat template writes ends a generation, whatever the configuration says."""


class Tokenizer:
    """A model's tokenizer and chat template.

    ``eos_token_ids`` are the tokens that end a generation: those of ``generation_config.json`` and ``config.json``,
    the tokenizer's own, and the one that ends a turn of the chat.
    """

    def __init__(
        self,
        raw: RawTokenizer,
        *,
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
        eos_token_ids: Sequence[int] = (),
        folder: str = "",
    ) -> None:
        self.raw = raw
        self.chat_template = chat_template
        self.special_tokens = dict(special_tokens or {})
        self.folder = folder
        self.vocab_size: int = raw.get_vocab_size(with_added_tokens=True)
        self.skipped_ids = frozenset(i for i, token in raw.get_added_tokens_decoder().items() if token.special)
        ends = [self.special_tokens.get("eos_token")]
        ends += [token for token in CHAT_END_TOKENS if token in (chat_template or "")]
        found = (raw.token_to_id(token) for token in ends if token)
        self.eos_token_ids: set[int] = set(eos_token_ids) | {i for i in found if i is not None}

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Read the tokenizer of a Hugging Face folder; raises :class:`ModelError` where there is none."""
        from tokenizers import Tokenizer as RawTokenizer

        folder = Path(folder)
        if not (folder / "tokenizer.json").is_file():
            raise ModelError("no_tokenizer_json", folder=folder)
        try:
            # Not from_file: that cannot open every path on Windows.
            raw = RawTokenizer.from_str((folder / "tokenizer.json").read_text("utf-8"))
        except Exception as error:  # the library raises a bare Exception
            raise ModelError("damaged_folder", folder=folder, what=f"tokenizer.json cannot be read ({error})") from None
        raw.no_padding()
        raw.no_truncation()
        settings = {**_read_json(folder / "special_tokens_map.json"), **_read_json(folder / "tokenizer_config.json")}
        special = {name: text for name in SPECIAL_NAMES if (text := _content(settings.get(name)))}
        ids: list[int] = []
        for name in ("generation_config.json", "config.json"):
            described = _read_json(folder / name)
            for part in (described, described.get("text_config")):
                value = part.get("eos_token_id") if isinstance(part, dict) else None
                ids += [i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int)]
        return cls(
            raw,
            chat_template=_find_chat_template(folder, settings),
            special_tokens=special,
            eos_token_ids=ids,
            folder=str(folder),
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a plain text, with the beginning-of-text token where the model has one."""
        return list(self.raw.encode(text, add_special_tokens=add_special_tokens).ids)

    def chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation (``role`` and ``content`` each), ready for the assistant's answer."""
        if self.chat_template is None:
            return self.encode(self.render_chat(messages, add_generation_prompt))
        return self.encode(self.render_chat(messages, add_generation_prompt), add_special_tokens=False)

    def render_chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """The text that the model gets to see. A model without a chat template just continues the messages' text."""
        if self.chat_template is None:
            return "\n\n".join(message["content"] for message in messages)
        try:
            return self._compiled_template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self.special_tokens,
            )
        except Exception as error:  # a template is a program: it can fail in any way
            raise ModelError("bad_chat_template", folder=self.folder, reason=error) from error

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids. Bytes that are no UTF-8 become U+FFFD; special tokens are left out."""
        return str(self.raw.decode(list(ids), skip_special_tokens=skip_special_tokens))

    @cached_property
    def _compiled_template(self) -> jinja2.Template:
        return _sandbox().from_string(self.chat_template or "")

    @cached_property
    def is_byte_level(self) -> bool:
        """Whether each token stands for bytes by itself (byte-level BPE: GPT-2, Llama 3, Qwen, SmolLM2)."""
        decoder = json.loads(self.raw.to_str(pretty=False))["decoder"] or {}
        parts = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
        return [part.get("type") for part in parts] == ["ByteLevel"]


def _sandbox() -> jinja2.Environment:
    """The environment that chat templates are written for: what Hugging Face gives them, in a sandbox."""
    from datetime import datetime

    import jinja2.nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %} ... {% endgeneration %}`` marks what the assistant said; we only need what is in it."""

        tags = {"generation"}  # noqa: RUF012  (Jinja's own way)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def tojson(
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # Jinja's own filter escapes HTML characters, which a model must not see.
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    helpers: dict[str, Callable[..., object]] = {
        "raise_exception": raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    environment.globals.update(helpers)
    return environment


def _find_chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The default chat template: a file of its own where there is one, else from ``tokenizer_config.json``."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    template = _read_json(folder / "chat_template.json").get("chat_template", settings.get("chat_template"))
    if isinstance(template, list):  # several, each with a name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _content(token: object) -> str:
    """A special token's text; files have it bare or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ModelError("damaged_folder", folder=path.parent, what=f"{path.name} is no JSON ({error})") from None
    return value if isinstance(value, dict) else {}
