"""Every kernel against its float32 reference: random inputs, poisoned outputs, NaN in whatever was not written.

The cases are compiled and run in several processes, because compiling is what takes the time.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from engine.kernels import operations as kernels
from engine.kernels.attention import HEAD_SIZES, attention, choose_tile, cut_tiles
from engine.kernels.cache import reshape_and_cache, rotate_and_cache
from engine.kernels.experts import experts
from engine.kernels.sampling import argmax, draw, penalise
from engine.model import operations as plain
from engine.model.rope import Rope
from engine.sampling_params import SamplingParams
from tests.gpu.deadline import Deadline
from tests.gpu.report import Report, Row
from tests.gpu.stand_ins import stand_in
from tests.kernels.drawn import kept
from tests.kernels.interpreted.close import random
from tests.kernels.memory import fresh_memory, poison
from tests.kernels.paged import (
    Case,
    Pool,
    as_slots,
    make_cache,
    make_pool,
    make_slots,
    padded,
    reference,
    run_split,
    run_whole,
)

TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
LIMIT = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
"""float32: of every element, as a share of the largest; narrower types: by norm."""

WORKERS = 12


class Outcome(NamedTuple):
    """The largest error of a case, in units of what is allowed: up to 1 is fine, NaN never."""

    error: float
    comparisons: int


Check = Callable[[str], Iterator[float]]
"""Given the device, yields the error of each comparison in units of what is allowed."""


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """In units of what is allowed; NaN if anything is not finite, because memory was read that nobody wrote."""
    if not bool(found.isfinite().all()):
        return float("nan")
    off, size = found.double() - expected.double(), expected.double()
    if found.dtype == torch.float32:
        return float(off.abs().max()) / max(1e-30, float(size.abs().max())) / LIMIT[found.dtype]
    return float(off.norm()) / max(1e-30, float(size.norm())) / LIMIT[found.dtype]


# ---- the cases -------------------------------------------------------------------------------------------------------


def checks(small: bool) -> dict[str, Check]:
    """All of them by name; ``small``: few and tiny ones, for the interpreter."""
    found: dict[str, Check] = {}
    types = [torch.float32, torch.bfloat16] if small else list(TYPES)
    pairs = list(zip(types, (64, 80), strict=True)) if small else list(itertools.product(types, HEAD_SIZES))
    for dtype, head in pairs:
        kind = f"{TYPES[dtype]} {head}"
        for single in (False, True):
            found[f"attention {'decode' if single else 'mixed'} {kind}"] = _attention(head, dtype, single, small)
        found[f"attention split {kind}"] = _split(head, dtype, small)
        found[f"reshape_and_cache {kind}"] = _reshape(head, dtype)
        found[f"rotate_and_cache {kind}"] = _rotate(head, dtype, small)
    for dtype in types:
        for hidden in (72, 300) if small else (300, 576, 1024, 2048, 4096, 8192, 16384):
            found[f"rms_norm {TYPES[dtype]} {hidden}"] = _norm(hidden, dtype)
        for size in (96,) if small else (301, 1536, 3072, 14336):
            found[f"gated {TYPES[dtype]} {size}"] = _gated(size, dtype)
        for count in (3,) if small else (8, 128):
            found[f"experts {TYPES[dtype]} {count}"] = _experts(count, dtype, small)
    for vocab in (500,) if small else (49152, 128256, 151937):
        found[f"argmax {vocab}"] = _argmax(vocab)
        found[f"draw {vocab}"] = _draw(vocab, 4 if small else 40)
        found[f"penalise {vocab}"] = _penalise(vocab, 50 if small else 3000)
    return found


def _attention(head: int, dtype: torch.dtype, single: bool, small: bool) -> Check:
    """Contexts of one token, a whole block, one more; permuted and shared blocks; the null block; a padded request."""
    lengths = [(33, 20), (1, 1), (16, 16), (17, 1)] if small else [
        (700, 300), (1, 1), (16, 16), (17, 1), (64, 64), (65, 7), (1000, 1), (256, 256), (3, 2)]  # fmt: skip
    shapes = [(16, 2, 3, 0)] if small else [
        (16, 2, 4, 0), (8, 1, 3, 0), (256, 2, 1, 100), (64, 1, 20, 0), (32, 2, 8, 7)]  # fmt: skip

    def check(device: str) -> Iterator[float]:
        for block_size, kv_heads, group, window in shapes:
            requests = tuple((context, 1 if single else new) for context, new in lengths)
            case = Case(requests, head, kv_heads, group, block_size, dtype, window, seed=head + block_size)
            pool, scale = make_pool(case, device), head**-0.5
            expected = reference(case, pool, scale)
            with fresh_memory(poison):
                yield distance(run_whole(case, pool, scale), expected)
            if single:
                with fresh_memory(poison):
                    # A padded batch is that of a graph: its last request has no context and must get zeros.
                    found = _run_padded(case, padded(pool), scale)
                yield distance(found[:-1], expected)
                yield 0.0 if not bool(found[-1].any()) else float("nan")

    return check


def _run_padded(case: Case, pool: Pool, scale: float) -> torch.Tensor:
    tile = choose_tile(case.head_size, case.dtype, case.group, single=True)
    requests, tokens = (pool.on_device(part) for part in cut_tiles(pool.starts, case.group, tile))
    return attention(pool.queries, pool.keys, pool.values, requests, tokens, pool.on_device(pool.starts),
                     pool.on_device(pool.contexts), pool.tables, tile=tile, scale=scale,
                     window=case.window)  # fmt: skip


def _split(head: int, dtype: torch.dtype, small: bool) -> Check:
    contexts = (1, 17, 40) if small else (1, 16, 300, 257, 5000)

    def check(device: str) -> Iterator[float]:
        for splits, group, window in [(3, 3, 0)] if small else [(2, 4, 0), (9, 1, 0), (64, 8, 0), (7, 16, 100)]:
            case = Case(tuple((context, 1) for context in contexts), head, 2, group, 16, dtype, window, splits,
                        seed=head + splits)  # fmt: skip
            pool, scale = make_pool(case, device), head**-0.5
            expected = reference(case, pool, scale)
            with fresh_memory(poison):
                found = run_split(case, padded(pool), scale)
            yield distance(found[:-1], expected)
            yield 0.0 if not bool(found[-1].any()) else float("nan")

    return check


def _cached(cache: torch.Tensor, expected: torch.Tensor, slots: torch.Tensor) -> float:
    """What is in the slots, and that everything else is as it was."""
    flat, used = as_slots(cache), slots >= 0
    untouched = torch.ones(len(flat), dtype=torch.bool, device=cache.device)
    untouched[slots[used]] = False
    if not bool(flat[untouched].isnan().all()):
        return float("nan")
    return distance(flat[slots[used]], expected[used])


def _reshape(head: int, dtype: torch.dtype) -> Check:
    def check(device: str) -> Iterator[float]:
        for block_size, kv_heads in ((16, 2), (256, 3), (8, 1)):
            tokens = min(40, 2 * block_size)
            qkv = random(tokens, 3 * kv_heads, head, dtype=dtype, seed=block_size).to(device)
            _, keys, values = qkv.split(kv_heads, dim=1)
            slots = make_slots(tokens, block_size, seed=head).to(device)
            caches = [make_cache(4, kv_heads, block_size, head, dtype, device) for _ in range(2)]
            reshape_and_cache(keys, values, caches[0], caches[1], slots)
            for cache, expected in zip(caches, (keys, values), strict=True):
                yield _cached(cache, expected, slots)

    return check


def _rotate(head: int, dtype: torch.dtype, small: bool) -> Check:
    def check(device: str) -> Iterator[float]:
        for norm in ("", "same", "wide"):
            block_size, kv_heads, group = (16, 2, 3) if norm else (8, 1, 4)
            tokens, heads = 12 if small else 24, kv_heads * group
            qkv = random(tokens, heads + 2 * kv_heads, head, dtype=dtype, seed=head).to(device)
            positions = torch.randint(0, 2000, (tokens,), generator=torch.Generator().manual_seed(head))
            cos, sin = (torch.from_numpy(table)[positions].to(device) for table in Rope().table(2000, head))
            kind = torch.float32 if norm == "wide" else dtype
            norms = [random(head, seed=i).abs().add(0.5).to(device, kind) for i in (1, 2)] if norm else [None, None]
            slots = make_slots(tokens, block_size, seed=head).to(device)
            caches = [make_cache(4, kv_heads, block_size, head, dtype, device) for _ in range(2)]
            with fresh_memory(poison):
                found = rotate_and_cache(qkv, cos, sin, slots, caches[0], caches[1], heads, norms[0], norms[1], 1e-5)
            queries, keys, values = qkv.float().split((heads, kv_heads, kv_heads), dim=1)
            if norms[0] is not None and norms[1] is not None:
                queries = plain.rms_norm(queries, norms[0].float(), 1e-5)
                keys = plain.rms_norm(keys, norms[1].float(), 1e-5)
            yield distance(found, plain.rotate(queries, cos[:, None], sin[:, None]))
            yield _cached(caches[0], plain.rotate(keys, cos[:, None], sin[:, None]), slots)
            yield _cached(caches[1], values, slots)

    return check


def _norm(hidden: int, dtype: torch.dtype) -> Check:
    def check(device: str) -> Iterator[float]:
        x, residual = (random(5, hidden, dtype=dtype, seed=i).to(device) for i in (0, 1))
        for kind in dict.fromkeys((dtype, torch.float32)):
            weight = random(hidden, seed=2).to(device, kind)
            with fresh_memory(poison):
                normed, total = kernels.add_rms_norm(x, residual, weight, 1e-6)
                alone = kernels.rms_norm(x, weight, 1e-6)
            expected = x.float() + residual.float()
            yield distance(total, expected)
            yield distance(normed, plain.rms_norm(expected, weight.float(), 1e-6))
            yield distance(alone, plain.rms_norm(x.float(), weight.float(), 1e-6))

    return check


def _gated(size: int, dtype: torch.dtype) -> Check:
    def check(device: str) -> Iterator[float]:
        x = 3 * random(7, 2 * size, dtype=dtype, seed=size).to(device)
        for name in ("silu", "gelu_tanh"):
            with fresh_memory(poison):
                found = kernels.gated(x, name)
            yield distance(found, plain.gated(x.float(), name))

    return check


def _experts(count: int, dtype: torch.dtype, small: bool) -> Check:
    """Tokens that go to many experts, and tokens that all go to the same few."""
    each, hidden, inner = (2, 33, 20) if small else (min(8, count // 2), 520, 390)

    def check(device: str) -> Iterator[float]:
        for tokens, alike in ((5, False),) if small else ((1, False), (70, False), (900, False), (200, True)):
            liking = random(tokens, count, seed=tokens)
            weights, chosen = (liking[:1].expand(tokens, count) if alike else liking).softmax(-1).topk(each, dim=-1)
            x, gate_up, down = (random(*shape, dtype=dtype, seed=count + i).to(device) for i, shape in enumerate(
                ((tokens, hidden), (count, 2 * inner, hidden), (count, hidden, inner))))  # fmt: skip
            weights, chosen = weights.to(device, dtype), chosen.to(device)
            with fresh_memory(poison):
                found = experts(x, weights, chosen, gate_up, down, "silu")
            expected = torch.zeros(tokens, hidden, device=device)
            for expert in range(count):
                row, rank = (chosen == expert).nonzero(as_tuple=True)
                active = plain.gated(x[row].float() @ gate_up[expert].float().T, "silu")
                expected[row] += weights[row, rank, None].float() * (active @ down[expert].float().T)
            yield distance(found, expected)

    return check


def _draw(vocab: int, rows: int) -> Check:
    """Is each token among those left, and does its share of the line hold the number that decided?"""

    def check(device: str) -> Iterator[float]:
        logits = 3 * random(rows, vocab, seed=vocab)
        params = [SamplingParams(temperature=0.5 + i / rows, top_k=(0, 50, 1)[i % 3], top_p=(1.0, 0.9, 0.6)[i // 3 % 3],
                                 min_p=(0.0, 0.1)[i % 5 == 4]) for i in range(rows)]  # fmt: skip
        uniform = np.random.default_rng(vocab).random(rows)
        columns = np.array([(row, one.temperature, one.top_k, one.top_p, one.min_p, number)
                            for row, (one, number) in enumerate(zip(params, uniform, strict=True))])  # fmt: skip
        with fresh_memory(poison):
            tokens = draw(logits.to(device), torch.from_numpy(columns).to(device)).tolist()
        for row, (one, number, token) in enumerate(zip(params, uniform, tokens, strict=True)):
            left, weights = kept(logits[row], one)
            total = float(weights.sum())
            before = float(weights[:token].sum())
            off = max(before - number * total, number * total - before - float(weights[token]), 0.0)
            yield off / total / 1e-5 if bool(left[token]) else float("nan")

    return check


def _argmax(vocab: int) -> Check:
    """The largest logit; the first of several."""

    def check(device: str) -> Iterator[float]:
        for logits in (random(6, vocab, seed=vocab), random(6, vocab, seed=1).round()):
            with fresh_memory(poison):
                found = argmax(logits.to(device)).cpu()
            first = (logits == logits.amax(dim=1, keepdim=True)).int().argmax(dim=1)
            yield 0.0 if torch.equal(found, first) else float("inf")

    return check


def _penalise(vocab: int, pairs: int) -> Check:
    def check(device: str) -> Iterator[float]:
        generator = np.random.default_rng(vocab)
        logits = random(3, vocab, seed=vocab)
        places = generator.choice(3 * vocab, pairs, replace=False)
        rows, tokens = torch.from_numpy(places // vocab), torch.from_numpy(places % vocab)
        counts = torch.from_numpy(generator.integers(0, 4, pairs).astype(np.float32))
        repetition, frequency, presence = (
            torch.from_numpy(generator.uniform(low, 2, pairs).astype(np.float32)) for low in (0.5, -2, -2))
        found = logits.clone().to(device)
        penalise(found, *(part.to(device) for part in (rows, tokens, counts, repetition, frequency, presence)))
        expected = logits.clone()
        value = expected[rows, tokens]
        value = torch.where(value > 0, value / repetition, value * repetition) - frequency * counts
        expected[rows, tokens] = value - presence * (counts > 0)
        yield distance(found.cpu(), expected)

    return check


# ---- running them ----------------------------------------------------------------------------------------------------


def run_check(name: str, device: str, small: bool) -> Outcome:
    """One case by name, here."""
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    errors = list(checks(small)[name](device))
    worst = max(errors, key=lambda error: float("inf") if error != error else error)
    return Outcome(worst, len(errors))


def _in_worker(arguments: tuple[str, str, bool]) -> tuple[str, Outcome | str]:
    try:
        return arguments[0], run_check(*arguments)
    except Exception as error:  # whatever it is, it is this case's result
        return arguments[0], f"{type(error).__name__}: {str(error)[:200]}"


def check_kernels(report: Report, device: str, small: bool, deadline: Deadline) -> None:
    """Run all cases and add a row for each kernel and type."""
    names = list(checks(small))
    outcomes: dict[str, Outcome | str] = {}
    work = [(name, device, small) for name in names]
    if device == "cpu":
        for arguments in work:
            if deadline.over:
                break
            outcomes.update([_in_worker(arguments)])
    else:
        # Attention takes the longest to compile and so comes first.
        work.sort(key=lambda arguments: "attention" not in arguments[0])
        with multiprocessing.get_context("spawn").Pool(min(WORKERS, os.cpu_count() or 1), stand_in) as pool:
            arriving = pool.imap_unordered(_in_worker, work)
            try:
                while len(outcomes) < len(work):
                    outcomes.update([arriving.next(timeout=deadline.left)])
            except (multiprocessing.TimeoutError, StopIteration):
                pass
    for kind in dict.fromkeys(_kind(name) for name in names):
        _add_row(report, kind, {name: outcomes.get(name) for name in names if _kind(name) == kind})
    if missing := [name for name in names if name not in outcomes]:
        deadline.stop(f"{len(missing)} of {len(names)} cases did not come to their turn")


def _kind(name: str) -> str:
    """The row that a case belongs to: the kernel, and the type where it has one."""
    return name.rpartition(" ")[0]


def _add_row(report: Report, kind: str, outcomes: dict[str, Outcome | str | None]) -> None:
    done = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Outcome)}
    bad = [f"{name.rpartition(' ')[2]}: {outcome}" for name, outcome in outcomes.items() if isinstance(outcome, str)]
    bad += [f"{name.rpartition(' ')[2]}: error {o.error:.3g} of what is allowed" for name, o in done.items()
            if not o.error <= 1]  # fmt: skip
    if missing := len(outcomes) - len(done) - sum(isinstance(outcome, str) for outcome in outcomes.values()):
        bad.append(f"{missing} cases were not reached")
    worst = max((o.error for o in done.values()), default=float("nan"))
    count = sum(outcome.comparisons for outcome in done.values())
    note = "; ".join(bad) or f"the largest error of {count} is {worst:.2g} of what is allowed"
    report.add(Row("kernels agree with float32", kind, ok=not bad, note=note,
                   figures={"errors": {name: outcome.error for name, outcome in done.items()}}))  # fmt: skip


def check_large_offsets(report: Report, device: str, free: int) -> None:
    """A pool of more than 2**31 elements, of which the last blocks are used."""
    head, kv_heads, size = 128, 8, 16
    blocks = 2**31 // (kv_heads * size * head) + 100
    if 2 * blocks * kv_heads * size * head * 2 > 0.8 * free:
        return
    start = time.perf_counter()
    case = Case(((40, 40), (100, 1), (33, 5)), head, kv_heads, 4, size, torch.bfloat16)
    pool = make_pool(case, device)
    expected = reference(case, pool, head**-0.5)
    used = len(pool.keys)
    keys, values = (make_cache(blocks, kv_heads, size, head, torch.bfloat16, device) for _ in range(2))
    keys[-used:], values[-used:] = pool.keys, pool.values
    pool.keys, pool.values, pool.tables = keys, values, pool.tables + blocks - used
    with fresh_memory(poison):
        off = distance(run_whole(case, pool, head**-0.5), expected)
    report.add(Row("kernels agree with float32", "attention beyond 2**31 elements", ok=off <= 1,
                   note=f"error {off:.2g} of what is allowed, {time.perf_counter() - start:.1f} s"))  # fmt: skip
