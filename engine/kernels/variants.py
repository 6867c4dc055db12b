"""Every kernel in every variant that the engine can launch, and how to compile it for a GPU that is not there.

The launching functions and this list take tiles, blocks and numbers of warps from the same functions, so that what is
checked here is what runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.kernels import activation, attention, cache, experts, norm, sampling, split_attention

TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
ARCHITECTURES = (80, 90)
"""Ampere (A100) and Hopper (H100, H200); what sm_80 can hold runs on all later ones."""


@dataclass(frozen=True)
class Variant:
    """``types`` are those of the parameters that are not constants, in Triton's spelling ("*bf16", "i32").

    The parameters ``aligned`` are known to be multiples of 16, so that rows are read in whole vectors.
    """

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    num_warps: int
    num_stages: int = 3
    representative: bool = field(default=False, compare=False)
    aligned: str = ""

    def compile(self, architecture: int) -> Any:
        """Compile to a cubin, e.g. for 90 (sm_90); raises what Triton raises."""
        signature, attributes = {}, {}
        for index, name in enumerate(self.kernel.arg_names):
            signature[name] = self.types.get(name, "constexpr")
            # As a launch specialises: what torch allocates is aligned, views into the middle of it need not be.
            pointer = signature[name].startswith("*")
            if name == self.aligned or (pointer and not self.kernel.params[index].do_not_specialize_on_alignment):
                attributes[(index,)] = [["tt.divisibility", 16]]
        source = ASTSource(self.kernel, signature, self.constants, attributes)
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def variants() -> Iterator[Variant]:
    """All of them. Those that are representative touch every kernel, every type and the largest tiles."""
    for dtype, kind in TYPES.items():
        for head in attention.HEAD_SIZES:
            usual = (head, kind) in ((64, "bf16"), (128, "fp16"), (256, "fp32"))
            yield from _attention(head, dtype, kind, usual)
            yield from _cache(head, kind, usual)
        yield from _norms(kind)
        yield from _experts(dtype, kind)
        for name in activation.ACTIVATIONS:
            yield from _aligned_or_not("size", Variant(
                f"gated {name} {kind}", activation.gated_kernel,
                {"output": f"*{kind}", "gate_up": f"*{kind}", "size": "i32"},
                {"ACTIVATION": name, "BLOCK": activation.BLOCK}, 4, representative=kind == "bf16"))
    yield from _aligned_or_not("size", Variant(
        "draw", sampling.draw_kernel,
        {"tokens": "*i64", "all_logits": "*fp32", "parameters": "*fp64", "size": "i32"},
        {"BLOCK": sampling.BLOCK}, sampling.NUM_WARPS, representative=True))
    yield from _aligned_or_not("size", Variant(
        "largest", sampling.largest_kernel, {"keys": "*i64", "all_logits": "*fp32", "size": "i32"},
        {"BLOCK": sampling.BLOCK, "PART": sampling.PART}, sampling.NUM_WARPS, representative=True))
    yield Variant("first", sampling.first_kernel, {"tokens": "*i64", "keys": "*i64", "parts": "i32"},
                  {"PARTS": sampling.ARGMAX_PARTS}, 1, representative=True)
    yield Variant("penalise", sampling.penalise_kernel,
                  {"logits": "*fp32", "rows": "*i64", "tokens": "*i64", "counts": "*fp32", "repetition": "*fp32",
                   "frequency": "*fp32", "presence": "*fp32", "size": "i32", "pairs": "i32"},
                  {"PAIRS": sampling.PAIRS}, 4, representative=True)


def _aligned_or_not(name: str, variant: Variant) -> Iterator[Variant]:
    """A row's length is a multiple of 16 in every model that people use, and need not be."""
    yield replace(variant, aligned=name)
    yield replace(variant, name=f"{variant.name} unaligned", representative=False)


def _attention(head: int, dtype: torch.dtype, kind: str, usual: bool) -> Iterator[Variant]:
    padded = triton.next_power_of_2(head)
    shared = {"queries": f"*{kind}", "keys": f"*{kind}", "values": f"*{kind}", "context_lens": "*i32",
              "block_tables": "*i32", "heads": "i32", "kv_heads": "i32", "block_shift": "i32", "table_stride": "i32",
              "window": "i32", "scale": "fp32"}
    for single in (True, False):
        tile = attention.choose_tile(head, dtype, group=1, single=single)
        constants = {"HEAD": head, "HEAD_PAD": padded, "BLOCK_M": tile.rows, "BLOCK_N": tile.keys}
        yield Variant(f"attention {'decode' if single else 'mixed'} {kind} {head}", attention.attention_kernel,
                      shared | {"output": f"*{kind}", "tile_requests": "*i32", "tile_tokens": "*i32",
                                "query_starts": "*i32"},
                      constants, tile.num_warps, tile.num_stages, usual)
        if single:
            yield Variant(f"attention split {kind} {head}", split_attention.split_kernel,
                          shared | {"partial": "*fp32", "weights": "*fp32", "splits": "i32"},
                          constants, tile.num_warps, tile.num_stages, usual)
    yield Variant(f"attention merge {kind} {head}", split_attention.merge_kernel,
                  {"output": f"*{kind}", "partial": "*fp32", "weights": "*fp32", "splits": "i32"},
                  {"HEAD": head, "HEAD_PAD": padded, "MOST": split_attention.MAX_SPLITS,
                   "AT_ONCE": split_attention.MERGED_AT_ONCE}, split_attention.MERGE_WARPS, representative=usual)


def _cache(head: int, kind: str, usual: bool) -> Iterator[Variant]:
    cached = {"cached_keys": f"*{kind}", "cached_values": f"*{kind}", "slots": "*i64", "kv_heads": "i32",
              "block_shift": "i32"}
    yield Variant(f"reshape_and_cache {kind} {head}", cache.reshape_and_cache_kernel,
                  cached | {"keys": f"*{kind}", "values": f"*{kind}", "stride": "i32"},
                  {"HEAD": head, "HEAD_PAD": triton.next_power_of_2(head)}, 1, representative=usual, aligned="stride")
    for norm_kind in dict.fromkeys(("", kind, "fp32")):
        factors = f"*{norm_kind or 'fp32'}"
        yield Variant(f"rotate_and_cache {kind} {head}" + f" norm {norm_kind}" * bool(norm_kind),
                      cache.rotate_and_cache_kernel,
                      cached | {"queries": f"*{kind}", "qkv": f"*{kind}", "cos": "*fp32", "sin": "*fp32",
                                "query_norm": factors, "key_norm": factors, "heads": "i32", "eps": "fp32"},
                      {"HEAD": head, "HALF_PAD": triton.next_power_of_2(head // 2), "HAS_NORM": bool(norm_kind)}, 1,
                      representative=usual)


def _experts(dtype: torch.dtype, kind: str) -> Iterator[Variant]:
    for pairs in (1, 1 << 20):
        tile, at_once = experts.choose_expert_tile(dtype, pairs, 1)
        yield from _aligned_or_not("inner", Variant(
            f"experts {'few' if pairs == 1 else 'many'} {kind}", experts.expert_kernel,
            {"output": f"*{kind}", "x": f"*{kind}", "weight": f"*{kind}", "order": "*i64", "starts": "*i64",
             "ends": "*i64", "size": "i32", "inner": "i32", "each": "i32", "experts": "i32"},
            {"BLOCK_M": tile.rows, "BLOCK_N": tile.keys, "BLOCK_K": at_once, "MOST": experts.MAX_EXPERTS},
            tile.num_warps, tile.num_stages, representative=True))


def _norms(kind: str) -> Iterator[Variant]:
    blocks = sorted({norm.block_for(hidden) for hidden in range(1, norm.MAX_HIDDEN + 1, 255)}
                    | {norm.block_for(norm.MAX_HIDDEN)})
    for block, warps in blocks:
        for factors in dict.fromkeys((kind, "fp32")):
            for residual in (False, True):
                name = f"rms_norm{' residual' * residual} {kind} {block}" + " weight fp32" * (factors != kind)
                yield from _aligned_or_not("hidden", Variant(
                    name, norm.rms_norm_kernel,
                    {"output": f"*{kind}", "total": f"*{kind}", "x": f"*{kind}", "residual": f"*{kind}",
                     "weight": f"*{factors}", "hidden": "i32", "eps": "fp32"},
                    {"BLOCK": block, "HAS_RESIDUAL": residual}, warps,
                    representative=residual and block == norm.MAX_HIDDEN))
