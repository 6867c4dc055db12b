"""The kernels compile for GPUs that are not here, keep everything in registers, and are imported by nobody else.

``python -m engine.kernels.report --all`` does this for every variant; here it is one of each kind and size.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from engine.kernels.report import SHARED_LIMIT, main, usage
from engine.kernels.variants import ARCHITECTURES, variants
from tests.engine.forward_driver import make_llama

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_representative_variants_compile_and_do_not_spill(architecture: int) -> None:
    chosen = [variant for variant in variants() if variant.representative]
    assert {variant.kernel.fn.__name__ for variant in chosen} == {v.kernel.fn.__name__ for v in variants()}
    for variant in chosen:
        compiled = variant.compile(architecture)
        assert compiled.asm["cubin"][:4] == b"\x7fELF", variant.name
        found = usage(compiled, architecture)
        assert found.spills == 0, f"{variant.name} spills {found.spills} bytes"
        assert 0 < found.registers <= 255
        assert found.shared <= SHARED_LIMIT[architecture], variant.name


@pytest.mark.parametrize("name", ["attention decode bf16 128", "attention split bf16 128"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_next_keys_are_fetched_while_these_are_computed_with(name: str, architecture: int) -> None:
    """Two buffers for keys and two for values, and a wait that leaves the later copies under way."""
    variant = next(v for v in variants() if v.name == name)
    code = variant.compile(architecture).asm["ttgir"]
    buffers = re.findall(r"local_alloc : \(\) -> !ttg.memdesc<(\d+)x", code)
    assert buffers == ["2", "2"]
    assert "{num = 2 : i32}" in code


def test_every_size_and_type_is_listed_once() -> None:
    names = [variant.name for variant in variants()]
    assert len(names) == len(set(names)) > 150
    for kind in ("fp16", "bf16", "fp32"):
        for head in (64, 80, 96, 128, 256):
            for kernel in ("attention decode", "attention mixed", "attention split", "attention merge",
                           "reshape_and_cache", "rotate_and_cache"):  # fmt: skip
                assert f"{kernel} {kind} {head}" in names


def test_the_report_lists_what_a_kernel_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--sm", "90", "--match", "penalise"]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split() == ["kernel", "sm", "registers", "shared", "spills", "warps"]
    assert line.split()[:2] == ["penalise", "90"]


def test_a_spill_would_be_noticed() -> None:
    from dataclasses import replace

    variant = next(v for v in variants() if v.name == "attention decode bf16 256")
    wide = replace(variant, constants=variant.constants | {"BLOCK_M": 128, "BLOCK_N": 64}, num_warps=4)
    assert usage(wide.compile(80), 80).spills > 0


_ON_THE_CPU = """
import sys
from pathlib import Path
from engine.config import EngineConfig, SchedulerConfig
from engine.request import Request, SamplingParams
from engine.runner import Runner
from engine.scheduler import Scheduler

for path in ("auto", "torch"):
    config = EngineConfig(dtype="float32", forward_path=path, num_threads=1, scheduler=SchedulerConfig(num_blocks=8))
    runner, scheduler = Runner(Path(sys.argv[1]), config), Scheduler(config.scheduler, ())
    scheduler.add_request(Request("a", [5, 6, 7], SamplingParams(max_tokens=2, temperature=1.0, top_p=0.9)))
    while scheduler.requests:
        plan = scheduler.schedule()
        scheduler.commit(plan, runner.execute(plan))
    print(path, *(name for name in sys.modules if name.split(".")[0] == "triton" or name.startswith("engine.kernels")))
"""


def test_the_cpu_path_imports_no_triton(tmp_path: Path) -> None:
    """Whole requests on either path; nor does torch bring it along."""
    make_llama(tmp_path)
    command = [sys.executable, "-c", _ON_THE_CPU, str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["auto", "torch"]
