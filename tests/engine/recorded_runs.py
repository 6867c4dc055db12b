"""Runs of the real engine over the token runner, with knobs turned, requests aborted and refused, as recordings."""

from __future__ import annotations

import random
from pathlib import Path

from engine.config import SCHEDULER_KNOBS, SchedulerConfig
from engine.core import Engine
from engine.loaded_model import Model
from engine.recorded_engine import SkippingClock
from engine.request import SamplingParams
from engine.trace.events import MachineInfo, RunInfo
from engine.trace.history import LiveHistory
from engine.trace.knobs import KNOBS, KnobValue
from engine.trace.recording import Recorder
from tests.engine.token_runner import VOCABULARY, TokenRunner
from tests.engine.trace_runs import TURNS

SMALL: dict[str, KnobValue] = {"num_blocks": 48, "block_size": 8, "max_num_batched_tokens": 64}


def make_model(tokenizer) -> Model:
    runner = TokenRunner()
    runner.model_info.vocab_size = VOCABULARY
    return Model(runner, tokenizer, MachineInfo("cpu"))


def engine_run(tokenizer, seed: int, *, requests: int = 30, turns: float = 0.0, aborts: float = 0.0,
               samples: bool = False, knobs: dict[str, KnobValue] | None = None) -> LiveHistory:
    """A run to its end: requests at random times (some can never be served), knobs turned, requests aborted, pauses."""
    rng = random.Random(seed)
    model = make_model(tokenizer)
    values = {k.name: k.default for k in KNOBS.values()} | (SMALL if knobs is None else knobs)
    config = SchedulerConfig().with_knobs({n: v for n, v in values.items() if n in SCHEDULER_KNOBS})
    clock = SkippingClock()
    engine = Engine(model.runner, tokenizer, config, values, clock, seed)
    history = LiveHistory(RunInfo(1, "test", "2026-01-01T00:00:00+00:00", 0, model.runner.model_info,
                                  MachineInfo("cpu"), "random", seed, config.max_model_len, dict(engine.knobs)))
    common = [rng.randrange(1, 400) for _ in range(70)]
    ids: list[str] = []
    left = requests
    while left or engine.has_work:
        if left and (rng.random() < 0.1 or not engine.has_work):
            left -= 1
            clock.skip_to(clock.now_ns() + rng.randrange(10**6))
            prompt = (common if rng.random() < 0.5 else []) + [
                rng.randrange(1, 400) for _ in range(rng.choice((3, 20, 60, 900 if rng.random() < 0.2 else 30)))]
            many = samples and rng.random() < 0.3
            params = SamplingParams(max_tokens=rng.randrange(1, 60), ignore_eos=rng.random() < 0.3,
                                    temperature=0.7 if many else 0.0, n=2 if many else 1,
                                    stop_token_ids=(7,) if rng.random() < 0.2 else (),
                                    stop=("zz",) if rng.random() < 0.1 else ())
            ids.append(engine.add_request(prompt, params, prompt_text=f"prompt {left}", priority=rng.randrange(3),
                                          salt=rng.choice([None, None, "a"])))
        if rng.random() < turns:
            name = rng.choice(list(TURNS))
            engine.set_knob(name, rng.choice(TURNS[name]))
        if ids and rng.random() < aborts:
            engine.abort(rng.choice(ids))
        if rng.random() < 0.1:  # a paused engine tells the news without a step
            engine.flush(history.append)
            news = engine.tell_news()
            if news is not None:
                history.append(news)
        else:
            engine.advance(history.append)
    engine.flush(history.append)
    return history


def save(history: LiveHistory, path: Path, steps: int | None = None) -> Path:
    recorder = Recorder(path, history.info)
    for step in range(history.last_step + 1 if steps is None else steps):
        recorder.wait_for_room()
        recorder.put(history.events(step))
    assert recorder.close()
    assert recorder.error is None
    return path
