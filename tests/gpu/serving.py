"""The same requests served by the engine, in each of its modes, and by transformers' continuous batching."""

from __future__ import annotations

import os
import random as chance
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch

from engine.config import EngineConfig, SchedulerConfig
from engine.core import Engine
from engine.model.tokenizer import Tokenizer
from engine.request import SamplingParams
from engine.trace.events import StepEvents
from tests.gpu.deadline import Deadline
from tests.gpu.measure import Meter
from tests.gpu.models import Size, make_runner, make_transformers
from tests.gpu.report import Report, Row, say

BLOCK = 16
HEADROOM = 8 << 30
PHASES = ("schedule", "prepare", "forward", "sample", "publish")

MODES = (
    ("graphs", {"enforce_eager": False, "overlap": False}),
    ("no graphs", {"enforce_eager": True, "overlap": False}),
    ("graphs, overlap", {"enforce_eager": False, "overlap": True}),
)


@dataclass(frozen=True)
class Requests:
    """Random prompts, all there at once; each is answered with ``output`` tokens, chosen greedily."""

    prompts: list[list[int]]
    output: int

    @property
    def num_output_tokens(self) -> int:
        return len(self.prompts) * self.output

    @property
    def num_blocks(self) -> int:
        return 2 + sum(-(-(len(prompt) + self.output) // BLOCK) for prompt in self.prompts)


def make_requests(vocab: int, small: bool) -> Requests:
    numbers = chance.Random(0)
    count, output, shortest, longest = (2, 3, 3, 6) if small else (128, 128, 64, 448)
    lengths = [shortest + (longest - shortest) * i // (count - 1) for i in range(count)]
    numbers.shuffle(lengths)
    return Requests([[numbers.randrange(3, vocab) for _ in range(length)] for length in lengths], output)


def time_serving(meter: Meter, size: Size, small: bool, report: Report, deadline: Deadline) -> None:
    """A row for each mode of the engine."""
    requests = make_requests(size.config.vocab_size, small)
    if _fits(meter, size, requests, report):
        _time_engine(report, meter, size, requests, small, deadline)
        meter.free_memory()


def time_transformers(meter: Meter, size: Size, small: bool, report: Report, deadline: Deadline) -> None:
    """A row for transformers' continuous batching of the same requests.

    Its warming up has no limit of its own and may take the rest of the part, so this comes after all that is ours.
    """
    requests = make_requests(size.config.vocab_size, small)
    if not _fits(meter, size, requests, report):
        return
    try:
        _time_transformers(report, meter, size, requests, small, deadline)
    except Exception as error:  # not ours to mend: the row says it, and the engine's own rows stand
        report.add(Row(f"{size.name} serving", "transformers failed", note=f"{type(error).__name__}: {error}"[:300]))
    meter.free_memory()


def _fits(meter: Meter, size: Size, requests: Requests, report: Report) -> bool:
    shape = size.config
    needed = 2 * shape.num_parameters + requests.num_blocks * BLOCK * shape.bytes_per_token(2) + HEADROOM
    if meter.on_gpu and needed > meter.free_memory():
        report.add(Row(f"{size.name} serving", "left out", note=f"needs {needed / 2**30:.0f} GiB"))
        return False
    return True


# ---- the engine ------------------------------------------------------------------------------------------------------


def _time_engine(report: Report, meter: Meter, size: Size, requests: Requests, small: bool,
                 deadline: Deadline) -> None:  # fmt: skip
    count = len(requests.prompts)
    scheduler = SchedulerConfig(
        num_blocks=requests.num_blocks, block_size=BLOCK, max_num_seqs=count, enable_prefix_caching=False,
        max_num_batched_tokens=32 if small else 8192, max_model_len=64 if small else 2048)
    runner = make_runner(size, EngineConfig(device=meter.device, num_threads=1, scheduler=scheduler))
    engine = Engine(runner, number_tokenizer(size.config.vocab_size), scheduler)
    if not small:  # without it graphs are made on the way
        say(f"  {size.name}: warming up")
        runner.warm_up()
    section = f"{size.name} serving"
    texts: dict[str, list[list[int]]] = {}
    for name, knobs in MODES:
        if deadline.over:
            return deadline.stop(f"not {name} and what follows")
        for knob, value in knobs.items():
            engine.set_knob(knob, value)
        if meter.on_gpu and not texts:
            _serve(engine, requests)  # whatever happens the first time only
        served = _serve(engine, requests)
        texts[name] = served.tokens
        report.add(Row(
            section, f"{count} requests, {name}", seconds=served.seconds, tokens=requests.num_output_tokens,
            note=f"{served.steps} steps; a decode step's "
                 + ", ".join(f"{phase} {served.phases[phase] / 1e3:.0f}" for phase in PHASES) + " us",
            figures={f"{phase}_ns": served.phases[phase] for phase in PHASES} | {"steps": served.steps}))  # fmt: skip
    first, *others = texts.values()
    report.add(Row(section, "graphs and overlap change no token", ok=all(other == first for other in others),
                   note=f"{requests.num_output_tokens} tokens in {len(texts)} modes"))  # fmt: skip
    return None


@dataclass
class _Served:
    seconds: float
    steps: int
    phases: dict[str, float]  # nanoseconds, the medians over the steps in which everybody has one token
    tokens: list[list[int]]


def _serve(engine: Engine, requests: Requests) -> _Served:
    """All requests from the first step to the last token."""
    params = SamplingParams(max_tokens=requests.output, ignore_eos=True)
    start = time.perf_counter()
    ids = [engine.add_request(prompt, params, source="check") for prompt in requests.prompts]
    tokens: dict[str, list[int]] = {request_id: [] for request_id in ids}
    steps: list[StepEvents] = []
    while engine.advance(steps.append):  # with overlap a step is told while the next one runs
        pass
    seconds = time.perf_counter() - start
    for events in steps:
        for sampled in events.sampled:
            tokens[sampled.request_id].append(sampled.token_id)
    decodes = [events for events in steps if events.scheduled and all(s.num_tokens == 1 for s in events.scheduled)]
    phases = {phase: statistics.median([getattr(events.phases, phase) for events in decodes or steps])
              for phase in PHASES}  # fmt: skip
    if any(len(got) != requests.output for got in tokens.values()):
        raise AssertionError("some request did not get all its tokens")
    return _Served(seconds, len(steps), phases, [tokens[request_id] for request_id in ids])


def number_tokenizer(vocab: int) -> Tokenizer:
    """One in which every token is the word of its number."""
    from tokenizers import Tokenizer as RawTokenizer
    from tokenizers import models

    raw = RawTokenizer(models.WordLevel({f"w{i}": i for i in range(vocab)}, unk_token="w0"))
    return Tokenizer(raw, chat_template=None, special_tokens={"eos_token": "w2"})


# ---- transformers ----------------------------------------------------------------------------------------------------


def _time_transformers(report: Report, meter: Meter, size: Size, requests: Requests, small: bool,
                       deadline: Deadline) -> None:  # fmt: skip
    """Its continuous batching with its own choices, warmed up before the clock starts as the engine is."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # it would look for kernels to download
    import transformers
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    transformers.logging.set_verbosity_error()
    model = make_transformers(size, torch.float32 if small else torch.bfloat16, meter.device)
    settings = {"num_blocks": 8, "max_batch_tokens": 64} if small else {"max_memory_percent": 0.5}
    generation = GenerationConfig(max_new_tokens=requests.output, do_sample=False, eos_token_id=-1, pad_token_id=0)
    batching = ContinuousBatchingConfig(allow_block_sharing=False, **settings)
    times: list[float] = []
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=batching, block=True, timeout=10
    ) as manager:
        say(f"  {size.name}: transformers is warm")
        try:
            for _ in range(1 if small else 2):
                if deadline.over:
                    break
                times.append(_ask(manager, requests, deadline))
        finally:  # leaving the block would wait until everybody is served, however long that takes
            manager.stop(block=True, timeout=10, hard_stop=True)
    if not times or times[-1] != times[-1]:
        return deadline.stop("transformers did not finish")
    attention = getattr(model.config, "_attn_implementation", "")
    report.add(Row(
        f"{size.name} serving", f"{len(requests.prompts)} requests, transformers", seconds=times[-1],
        tokens=requests.num_output_tokens, note=f"continuous batching of transformers {transformers.__version__}, "
        f"{attention}", figures={"all_s": times}))  # fmt: skip
    return None


def _ask(manager: Any, requests: Requests, deadline: Deadline) -> float:
    """Seconds until every request has all its tokens; NaN if that does not happen in time."""
    start = time.perf_counter()
    manager.add_requests(inputs=requests.prompts, max_new_tokens=requests.output)
    finished = 0
    while finished < len(requests.prompts):
        result = manager.get_result(timeout=1)
        if result is None:
            if deadline.over or not manager.is_running():
                return float("nan")
        elif result.is_finished():
            if len(result.generated_tokens) != requests.output:
                raise AssertionError(f"transformers gave {len(result.generated_tokens)} tokens: {result.error}")
            finished += 1
    return time.perf_counter() - start


