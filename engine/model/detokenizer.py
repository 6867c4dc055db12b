"""Token ids to text, one at a time, without ever showing half a character.

One token is not one piece of text: a Chinese character or an emoji may be spread over several tokens, and an emoji
over several code points (a family, a flag, a skin tone). What is not whole yet is held back. The pieces together are
exactly what :meth:`Tokenizer.decode` makes of all the ids at once; each token costs the same, however long the text.
"""

from __future__ import annotations

import codecs
import re
from typing import Protocol

from engine.model.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_ZWJ = 0x200D
_MAX_CLUSTER = 32  # code points of one emoji; more than any real one, and a limit to what is held back


class IncrementalDetokenizer:
    """The text of one request as it grows: ``add`` each token, ``flush`` at the end."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decoder: _Decoder = (_ByteLevelDecoder if tokenizer.is_byte_level else _WindowDecoder)(tokenizer)
        self._held = ""  # an emoji that may not be over

    def add(self, token_id: int) -> str:
        """What became readable with this token: often a word, sometimes nothing yet."""
        text = self._decoder.add(token_id)
        if not text:
            return ""
        text = self._held + text
        start = _start_of_open_emoji(text)
        self._held = text[start:]
        return text[:start]

    @property
    def held(self) -> str:
        """Whole characters that are held back because a later one may still join them."""
        return self._held

    def flush(self) -> str:
        """What was still held back. After this the detokenizer is as new."""
        text = self._held + self._decoder.flush()
        self._held = ""
        return text


class _Decoder(Protocol):
    def add(self, token_id: int) -> str: ...
    def flush(self) -> str: ...


class _ByteLevelDecoder:
    """Byte-level BPE: every token is a string of bytes, and the text is their UTF-8."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_id: int) -> str:
        if token_id in self._tokenizer.skipped_ids:
            return ""
        token = self._tokenizer.raw.id_to_token(token_id)
        return self._utf8.decode(_bytes_of(token)) if token else ""

    def flush(self) -> str:
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text


class _WindowDecoder:
    """Any other tokenizer: decode the new tokens together with the ones before, and take what is new.

    The tokens before are needed because decoders treat the beginning of a text in a way of their own (they strip a
    space). Tokens that are single bytes are kept until the run of them ends: only then is it known whether they make
    characters, because one wrong byte spoils the run.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []  # the last group that was decoded
        self._pending: list[int] = []

    def add(self, token_id: int) -> str:
        if token_id in self._tokenizer.skipped_ids:
            return ""
        token = self._tokenizer.raw.id_to_token(token_id)
        if not token:
            return ""
        if _BYTE_TOKEN.fullmatch(token):
            self._pending.append(token_id)
            return ""
        # Two steps: the bytes are over now, and the new token must not be part of what is compared with later bytes.
        text = self._take()
        self._pending.append(token_id)
        return text + self._take()

    def flush(self) -> str:
        text = self._take()
        self._before = []
        return text

    def _take(self) -> str:
        if not self._pending:
            return ""
        decode = self._tokenizer.decode
        text = decode(self._before + self._pending)[len(decode(self._before)) if self._before else 0 :]
        self._before, self._pending = self._pending, []
        return text


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level BPE writes for the 256 bytes: itself if visible, else one from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in visible}
    hidden = (byte for byte in range(256) if byte not in set(visible))
    alphabet.update((chr(0x100 + n), byte) for n, byte in enumerate(hidden))
    return alphabet


_ALPHABET = _byte_alphabet()


def _bytes_of(token: str) -> bytes:
    try:
        return bytes(_ALPHABET[character] for character in token)
    except KeyError:  # an added token, written as it is
        return token.encode()


def _start_of_open_emoji(text: str) -> int:
    """Where the emoji at the end of the text begins that a later code point may still join; the length if none."""
    end = len(text)
    if not _continues_or_is_emoji(ord(text[-1])):
        return end
    start = end
    lowest = max(0, end - _MAX_CLUSTER)
    if _is_regional(ord(text[-1])):  # flags are pairs: an odd one out waits, and so does a pair for nothing
        while start > lowest and _is_regional(ord(text[start - 1])):
            start -= 1
        return end - (end - start) % 2
    while start > lowest:
        code = ord(text[start - 1])
        if _joins(code):
            start -= 1
            continue
        if _is_pictograph(code):
            start -= 1
            if start > lowest and ord(text[start - 1]) == _ZWJ:
                continue
        break
    return start if start > lowest or lowest == 0 else end


def _continues_or_is_emoji(code: int) -> bool:
    return code >= _ZWJ and (_joins(code) or _is_pictograph(code) or _is_regional(code))


def _joins(code: int) -> bool:
    """Joiners, variation selectors, keycaps, skin tones and tags: they belong to what stands before them."""
    return (
        code == _ZWJ or code == 0x20E3 or 0xFE00 <= code <= 0xFE0F
        or 0x1F3FB <= code <= 0x1F3FF or 0xE0020 <= code <= 0xE007F
    )  # fmt: skip


def _is_regional(code: int) -> bool:
    return 0x1F1E6 <= code <= 0x1F1FF


def _is_pictograph(code: int) -> bool:
    emoji_planes = 0x1F000 <= code <= 0x1FAFF and not _is_regional(code)
    return emoji_planes or 0x2600 <= code <= 0x27BF or 0x2B00 <= code <= 0x2BFF
