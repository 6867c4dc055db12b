"""The model of a recorded run: found, loaded, and used by one run after another."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from engine.config import SchedulerConfig
from engine.core import ModelRunner
from engine.recorded_workload import RerunCancelled, RerunError
from engine.trace.events import MachineInfo, RunInfo
from engine.trace.knobs import knob
from engine.trace.source import Notice


class LoadedModel(Protocol):
    """What a run needs of a model; :func:`load_model` makes one, and several runs may use it after one another."""

    runner: ModelRunner
    tokenizer: Any
    machine: MachineInfo


@dataclass(slots=True)
class Model:
    runner: ModelRunner
    tokenizer: Any  # an engine.model.tokenizer.Tokenizer; None if no text is to be made
    machine: MachineInfo


def load_model(info: RunInfo, *, model: str | None = None, num_threads: int = 0,
               progress: Callable[[str, float | None], None] | None = None,
               cancel: threading.Event | None = None) -> Model:
    """Find and load the model of a recorded run, to be used in this thread. ``model`` is another place to take it from.

    Raises what :func:`engine.model.library.find_model` and :class:`engine.runner.Runner` raise, and
    :class:`RerunError` when it is another model than the recorded one.
    """
    from engine.model.library import find_model

    def tell(stage: str, fraction: float | None) -> None:
        if progress is not None:
            progress(stage, fraction)

    tell("finding the model", None)
    recorded = info.model
    spec = model or (recorded.source if recorded.source and Path(recorded.source).is_dir() else recorded.name)
    folder = find_model(spec, cancel=cancel, progress=lambda report: tell(report.stage, report.fraction))
    if cancel is not None and cancel.is_set():
        raise RerunCancelled
    tell("loading the model", None)

    import torch

    from engine.config import EngineConfig
    from engine.model.tokenizer import Tokenizer
    from engine.runner import Runner
    from engine.worker import processor_name

    on_gpu = info.machine.device not in ("", "cpu") and torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    # The pool is allocated by the engine, once its size is known. CUDA graphs are captured for so many requests.
    most = info.knobs.get("max_num_seqs", 0)
    scheduler = SchedulerConfig(num_blocks=8, max_model_len=info.max_model_len)
    if isinstance(most, int) and 1 <= most <= knob("max_num_seqs").maximum:
        scheduler = replace(scheduler, max_num_seqs=most)
    config = EngineConfig(model=str(folder), device=device, dtype=recorded.dtype or "bfloat16", seed=info.seed,
                          forward_path="torch" if info.path.startswith("torch") else "auto",
                          num_threads=num_threads, scheduler=scheduler)
    runner = Runner(folder, config, progress=tell)
    if recorded.vocab_size and runner.model_info.vocab_size != recorded.vocab_size:
        raise RerunError(Notice("The recording was made with {recorded}, and {found} is another model. Name the "
                                "recorded one.", recorded=recorded.name, found=runner.model_info.name))
    machine = MachineInfo(
        device="cpu" if device == "cpu" else torch.cuda.get_device_name(), processor=processor_name(),
        cores=os.cpu_count() or 0, threads=runner.num_threads,
        system=f"{platform.system()} {platform.release()}", python=platform.python_version(),
        torch=str(torch.__version__))
    return Model(runner, Tokenizer.load(folder), machine)
