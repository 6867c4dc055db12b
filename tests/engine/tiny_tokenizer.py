"""A small tokenizer made on the spot: one token a byte, so that every text can be written."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers

from engine.model.tokenizer import Tokenizer


def make_tokenizer(folder: Path) -> Tokenizer:
    """Token ids: 0 the end of a sequence, then the 256 bytes, then fillers up to 509."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<end>": 0} | {letter: 1 + i for i, letter in enumerate(alphabet)}
    vocabulary |= {f"w{i}": i for i in range(len(vocabulary), 509)}
    raw = RawTokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(["<end>"])
    folder.mkdir(parents=True, exist_ok=True)
    raw.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"eos_token": "<end>", "chat_template": "{% for m in messages %}{{ m.content }}\\n{% endfor %}"}')
    (folder / "config.json").write_text('{"eos_token_id": 0}')
    return Tokenizer.load(folder)
