"""A tokenizer for prompts: the default model's where it is at hand, else one trained on the prompts themselves."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from engine.model.library import default_model_ready, find_model
from engine.model.tokenizer import Tokenizer
from engine.scenario import PROMPT_FOLDER

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


@cache
def prompt_tokenizer() -> Tokenizer:
    return Tokenizer.load(find_model()) if default_model_ready() else trained_tokenizer()


@cache
def trained_tokenizer(chat_template: str | None = CHAT_TEMPLATE) -> Tokenizer:
    """Byte-level BPE, as SmolLM2's is, with a small vocabulary."""
    raw = RawTokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    raw.decoder = decoders.ByteLevel()
    texts = [path.read_text("utf-8") for path in sorted(PROMPT_FOLDER.glob("*/*.txt"))]
    raw.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=2500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<|im_start|>", "<|im_end|>"]))
    return Tokenizer(raw, chat_template=chat_template, special_tokens={"eos_token": "<|im_end|>"})
