"""Every kernel against its reference, and the engine with all of them, in Triton's interpreter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(400)
def test_the_kernels_agree_with_their_references() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "tests/kernels/interpreted", "--durations=5"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=390)
    print(run.stdout[-6000:], run.stderr[-2000:])
    assert run.returncode == 0, "see the output above"
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed
    assert int(passed[1]) >= 25
    assert "skipped" not in run.stdout
