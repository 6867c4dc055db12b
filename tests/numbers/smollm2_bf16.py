"""SmolLM2 in bfloat16 against transformers on real prompts: ``python -m tests.numbers.smollm2_bf16``.

Both continue the same prompts greedily, one at a time. Where they part, the table tells by how little the two tokens
differed: in transformers' logits, in ours, and in float32, which is what both try to compute. A difference of no more
than the distance between neighbouring bfloat16 numbers of that size is below what the format can tell apart. Before it
stands how far each is from float32, over the logits of all tokens. Takes minutes.

In bfloat16 there is no being almost the same: a sum taken in another order is now and then rounded to the neighbouring
number, the next products spread that over a whole row, and three layers later everything that rounding can move has
moved. So two programs are the same to the bit or as far apart as rounding takes them. ``--twice`` shows it by comparing
transformers with itself, each prompt twice in the batch: that makes a product of one row one of two, which takes the
sum over 1,536 numbers in another order, and a third of the continuations part.

The torch path computes as transformers does, in the same order, and must have the same tokens at nine of ten prompts.
The fused path sums in one order whatever is in the batch, so it cannot be the same; instead it rounds less, and must be
nearer to float32 than transformers is.
"""

from __future__ import annotations

import argparse
import inspect
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.config import EngineConfig, SchedulerConfig
from engine.model.library import find_model
from engine.model.tokenizer import Tokenizer
from engine.request import Request, SamplingParams
from engine.runner import Runner
from engine.scenario import PROMPT_FOLDER
from engine.scheduler import Scheduler
from tests.engine.forward_driver import Driver

MAX_TOKENS = 32
BLOCK = 16
BLOCKS = 200  # one request at a time
DOCUMENT_CHARACTERS = 700


@dataclass
class Parting:
    """Where two continuations differ first, and by how little. Gaps are of logits, theirs minus ours."""

    at: int
    theirs: int
    ours: int
    gap_theirs: float
    gap_ours: float
    gap_float32: float
    resolution: float

    @property
    def explained(self) -> bool:
        """The two logits are the same or neighbours in transformers' bfloat16, or nearer than that in float32."""
        return min(self.gap_theirs, abs(self.gap_float32)) <= self.resolution


def real_prompts(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """Questions of every kind in turn, and each fifth time a task with a piece of a document."""
    questions = [_lines(path) for path in sorted((PROMPT_FOLDER / "questions").glob("*.txt"))]
    tasks = _lines(PROMPT_FOLDER / "tasks" / "documents.txt")
    documents = [path.read_text("utf-8") for path in sorted((PROMPT_FOLDER / "documents").glob("*.txt"))]
    prompts = []
    for i in range(count):
        if i % 5 == 4:
            turn = i // 5
            document = documents[turn % len(documents)]
            start = document.index("\n\n") if "\n\n" in document else 0
            text = f"{tasks[turn % len(tasks)]}\n\n{document[start : start + DOCUMENT_CHARACTERS].strip()}"
        else:
            kind = questions[i % len(questions)]
            text = kind[i // len(questions) % len(kind)]
        prompts.append(tokenizer.chat([{"role": "user", "content": text}]))
    return prompts


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]


@torch.inference_mode()
def transformers_greedy(
    model: Any, prompt: Sequence[int], max_tokens: int, copies: int = 1
) -> tuple[list[int], torch.Tensor]:
    """Transformers' own continuation with its own cache, and the logits that each token was chosen from.

    ``copies`` of the prompt are computed as one batch.
    """
    from transformers import DynamicCache

    keyword = "cache" if "cache" in inspect.signature(model.model.forward).parameters else "past_key_values"
    cache = {keyword: DynamicCache(config=model.config)}
    ids, tokens, rows = torch.tensor([list(prompt)] * copies), list[int](), list[torch.Tensor]()
    for _ in range(max_tokens):
        out = model(ids, use_cache=True, logits_to_keep=1, **cache)
        rows.append(out.logits[0, -1].float())
        tokens.append(int(rows[-1].argmax()))
        ids = torch.tensor([[tokens[-1]]] * copies)
    return tokens, torch.stack(rows)


@torch.inference_mode()
def transformers_logits(model: Any, prompt: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
    """The logits from which each of ``tokens`` is chosen, given those before it."""
    ids = torch.tensor([[*prompt, *tokens[:-1]]])
    return model(ids, logits_to_keep=len(tokens)).logits[0].float()


def make_runner(folder: Path, path: str, threads: int) -> tuple[Runner, SchedulerConfig]:
    """For one request at a time, as transformers computes them: what torch sums depends on how many rows there are."""
    config = SchedulerConfig(block_size=BLOCK, num_blocks=BLOCKS, max_num_seqs=1, enable_prefix_caching=False)
    engine = EngineConfig(dtype="bfloat16", num_threads=threads, forward_path=path, scheduler=config)
    return Runner(folder, engine), config


def our_greedy(runner: Runner, config: SchedulerConfig, prompts: Sequence[list[int]]) -> list[list[int]]:
    """Our continuations, through the scheduler."""
    scheduler = Scheduler(config, ())
    params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    requests = [Request(str(i), prompt, params) for i, prompt in enumerate(prompts)]
    for request in requests:
        scheduler.add_request(request)
    while scheduler.requests:
        plan = scheduler.schedule()
        for request, _ in scheduler.commit(plan, runner.execute(plan)):
            runner.free_request(request.request_id)
    return [request.token_ids[request.num_prompt_tokens :] for request in requests]


def our_logits(runner: Runner, prompts: Sequence[list[int]],
               continuations: Sequence[list[int]]) -> Iterator[torch.Tensor]:  # fmt: skip
    """Our logits where each token of the given continuations is chosen, for one prompt after the other."""
    runner.allocate_cache(BLOCKS, BLOCK)
    driver = Driver(runner, BLOCK, BLOCKS)
    for i, (prompt, tokens) in enumerate(zip(prompts, continuations, strict=True)):
        request, rows = driver.request(f"forced {i}", prompt), list[torch.Tensor]()
        for token in tokens:
            driver.step([(request, len(prompt))])
            rows.append(driver.logits[0])
            request.token_ids[-1] = token
        driver.preempt(request)
        runner.free_request(request.request_id)
        yield torch.stack(rows)


def resolution(logit: float) -> float:
    """The distance between neighbouring bfloat16 numbers of that size: 8 bits of precision."""
    return 2.0 ** (math.floor(math.log2(abs(logit))) - 7)


def parting(theirs: list[int], ours: list[int], logits_theirs: torch.Tensor, logits_ours: torch.Tensor,
            logits_float32: torch.Tensor) -> Parting | None:  # fmt: skip
    """Where two continuations part; None if they do not. Logits are those along theirs."""
    for at, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        if a != b:
            their_gap, our_gap, gap = (
                float(row[at, a] - row[at, b]) for row in (logits_theirs, logits_ours, logits_float32))
            largest = max(float(row[at, token].abs()) for row in (logits_theirs, logits_float32) for token in (a, b))
            return Parting(at, a, b, their_gap, our_gap, gap, resolution(largest))
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder; the default model if not given")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--path", choices=("auto", "torch", "both"), default="both")
    parser.add_argument("--twice", action="store_true", help="also transformers with each prompt twice in the batch")
    # With more, torch's threads wait for one another on a machine that does other things besides.
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    folder = find_model(args.model)
    tokenizer = Tokenizer.load(folder)
    prompts = real_prompts(tokenizer, args.prompts)
    # Ours first: transformers takes minutes, and so long nobody wants to wait for a mistake of ours.
    runners = [make_runner(folder, path, args.threads)
               for path in (("auto", "torch") if args.path == "both" else (args.path,))]  # fmt: skip
    ours = [our_greedy(*runner, prompts) for runner in runners]
    narrow = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    theirs = [transformers_greedy(narrow, prompt, MAX_TOKENS) for prompt in prompts]
    twice = [transformers_greedy(narrow, prompt, MAX_TOKENS, copies=2)[0] for prompt in prompts if args.twice]
    del narrow
    wide = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    exact = [transformers_logits(wide, prompt, tokens) for prompt, (tokens, _) in zip(prompts, theirs, strict=True)]
    del wide

    print(f"{len(prompts)} prompts of {min(map(len, prompts))} to {max(map(len, prompts))} tokens, "
          f"{MAX_TOKENS} tokens each")  # fmt: skip
    their_choices = print_distance("transformers, bfloat16", [logits for _, logits in theirs], exact)
    if twice:
        same = sum(a == b for a, (b, _) in zip(twice, theirs, strict=True))
        print(f"  The same {MAX_TOKENS} tokens with each prompt twice in the batch: {same} of {len(twice)}")
    good = True
    for (runner, _), mine in zip(runners, ours, strict=True):
        forced = list(our_logits(runner, prompts, [tokens for tokens, _ in theirs]))
        choices = print_distance(runner.forward_path, forced, exact)
        found = [
            parting(tokens, own, logits, along, right)
            for (tokens, logits), own, along, right in zip(theirs, mine, forced, exact, strict=True)
        ]
        same, unexplained = print_partings(found, exact, tokenizer)
        if runner.forward_path.startswith("fused"):
            good = good and choices >= their_choices and not unexplained
        else:
            good = good and same >= 0.9 * len(prompts) and not unexplained
    return 0 if good else 1


def print_partings(found: Sequence[Parting | None], exact: Sequence[torch.Tensor],
                   tokenizer: Tokenizer) -> tuple[int, int]:  # fmt: skip
    """The table. How many continuations are the same, and at how many neither bfloat16 nor float32 explains ours."""
    if any(found):
        print("  Where they part: the gaps between the two tokens' logits, and who chooses as float32 does.")
        print("  prompt  token  theirs          ours            gap theirs    ours  float32  resolution  explained  "
              "choice")  # fmt: skip
    unexplained = 0
    for i, one in enumerate(found):
        if one is None:
            continue
        best = int(exact[i][one.at].argmax())
        whose = "theirs" if best == one.theirs else "ours" if best == one.ours else "neither"
        unexplained += not one.explained and whose != "ours"
        a, b = (repr(tokenizer.decode([token])) for token in (one.theirs, one.ours))
        print(f"  {i:>6} {one.at:>6}  {a:14}  {b:14}  {one.gap_theirs:>10.4f} {one.gap_ours:>7.4f} "
              f"{one.gap_float32:>8.4f} {one.resolution:>11.4f}  {'yes' if one.explained else 'NO':9}  {whose}")
    same = sum(one is None for one in found)
    print(f"  The same {MAX_TOKENS} tokens: {same} of {len(found)}; explained neither by bfloat16 nor by float32: "
          f"{unexplained}")  # fmt: skip
    return same, unexplained


def print_distance(name: str, logits: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> int:
    """How far logits are from float32's, along the same texts; at how many tokens the largest is the same."""
    error = math.sqrt(sum(float((a - b).square().mean()) for a, b in zip(logits, exact, strict=True)) / len(exact))
    rows = [(a.argmax(-1) == b.argmax(-1)) for a, b in zip(logits, exact, strict=True)]
    agree, total = sum(int(row.sum()) for row in rows), sum(len(row) for row in rows)
    print(f"{name}: logits off by {error:.4f} (root mean square); the same choice as float32 at {agree:,} of "
          f"{total:,} tokens")  # fmt: skip
    return agree


if __name__ == "__main__":
    sys.exit(main())
