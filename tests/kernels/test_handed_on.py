"""A model with CUDA graphs that serves one engine after another: as with a fresh one each, graphs made anew."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig, SchedulerConfig
from engine.request import Request
from engine.runner import Runner
from engine.scheduler import Scheduler
from tests.kernels.recording_device import RecordingDevice
from tests.kernels.test_graphs import CONFIG, make_requests, make_runner, path_of
from tests.kernels.test_graphs import _plain_kernels as _plain_kernels  # applied to the tests here too
from tests.kernels.test_graphs import model as model

Steps = list[tuple[str, list[int]]]


def serve(runner: Runner, config: SchedulerConfig, requests: list[Request], limit: int = 10**9) -> Steps:
    """How each step ran, and its tokens; ``limit`` leaves off in the middle of things."""
    runner.allocate_cache(config.num_blocks, config.block_size)
    runner.warm_up()
    scheduler, steps = Scheduler(config, ()), []
    for request in requests:
        scheduler.add_request(Request(request.request_id, request.prompt_token_ids, request.params))
    while scheduler.requests and len(steps) < limit:
        plan = scheduler.schedule()
        if len(steps) == limit - 1:
            runner.launch(plan)  # and nobody collects it
            break
        tokens = runner.execute(plan)
        steps.append((runner.step_mode, tokens))
        for request, _ in scheduler.commit(plan, tokens):
            runner.free_request(request.request_id)
    return steps


@pytest.mark.parametrize("overlap", [False, True])
def test_a_model_with_graphs_is_handed_on(model: Path, overlap: bool) -> None:
    requests = make_requests(8, random.Random(7))
    device = RecordingDevice()
    used = make_runner(model, device)
    captured = []
    for config, limit in ((CONFIG, 10**9), (replace(CONFIG, max_num_seqs=9, num_blocks=30), 14),
                          (replace(CONFIG, block_size=16, max_num_seqs=2), 10**9), (CONFIG, 30)):
        used.configure(EngineConfig(dtype="float32", forward_path="torch", num_threads=1, scheduler=config))
        used.set_knob("overlap", overlap)
        fresh = make_runner(model, RecordingDevice(), config)
        fresh.set_knob("overlap", overlap)
        before = device.captures
        steps = serve(used, config, requests, limit)
        assert steps == serve(fresh, config, requests, limit)
        assert any(mode.startswith("graph") for mode, _ in steps)
        assert path_of(used).captured == path_of(fresh).captured  # for as many requests as this one has at once
        captured.append(device.captures - before)
        used.release()
        assert not path_of(used).captured
        with pytest.raises(RuntimeError, match="launched"):
            used.collect()  # what was left of a step is gone
    assert captured[0] == captured[3] > captured[2] > 0
    assert captured[1] > captured[0]
