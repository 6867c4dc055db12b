"""What each kernel takes of a GPU: ``python -m engine.kernels.report [--sm 80 90] [--all] [--match TEXT]``.

Compiles the variants and asks ptxas, which Triton brings along, for registers, shared memory and spills. No GPU is
needed. The exit status is 1 if any variant spills or does not fit.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that one program may have."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Registers a thread, bytes of shared memory a program, bytes a thread that spilled from registers to memory."""

    registers: int
    shared: int
    spills: int
    warps: int


def usage(compiled: Any, architecture: int) -> Usage:
    """What a compiled kernel takes, by ptxas' own account of its PTX."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        ptx = Path(folder) / "kernel.ptx"
        ptx.write_text(compiled.asm["ptx"], encoding="utf-8")
        suffix = "a" if architecture >= 90 else ""
        command = [knobs.nvidia.ptxas.path, "-v", f"--gpu-name=sm_{architecture}{suffix}", str(ptx),
                   "-o", str(Path(folder) / "kernel.cubin")]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
    told = run.stderr + run.stdout
    registers = re.search(r"Used (\d+) registers", told)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", told)
    if registers is None or spills is None:
        raise RuntimeError(f"ptxas told nothing about registers: {told}")
    return Usage(int(registers[1]), compiled.metadata.shared, int(spills[1]) + int(spills[2]),
                 compiled.metadata.num_warps)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.kernels.report", description=__doc__)
    parser.add_argument("--sm", type=int, nargs="+", default=[80, 90], help="compute capabilities, e.g. 80 90")
    parser.add_argument("--all", action="store_true", help="every variant, not only the representative ones")
    parser.add_argument("--match", default="", help="only variants whose name holds this text")
    wanted = parser.parse_args(arguments)
    try:
        from engine.kernels.variants import variants
    except ImportError as error:
        print(f"Triton cannot be used here: {error}", file=sys.stderr)
        return 2
    bad = 0
    print(f"{'kernel':44} {'sm':>3} {'registers':>9} {'shared':>8} {'spills':>6} {'warps':>5}")
    for variant in variants():
        if wanted.match not in variant.name or not (wanted.all or variant.representative or wanted.match):
            continue
        for architecture in wanted.sm:
            found = usage(variant.compile(architecture), architecture)
            bad += found.spills > 0 or found.shared > SHARED_LIMIT.get(architecture, SHARED_LIMIT[80])
            print(f"{variant.name:44} {architecture:3} {found.registers:9} {found.shared:8} {found.spills:6} "
                  f"{found.warps:5}", flush=True)
    if bad:
        print(f"{bad} variants spill or do not fit", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
