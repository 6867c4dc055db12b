"""Folders of compiled kernels: what is used stays, what nobody uses goes, and nobody loses the one that it is using."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from engine.model import kernel_cache
from engine.model.file_lock import try_lock, unlock
from engine.model.kernel_cache import UNUSED_S, claim

ROOT = Path(__file__).resolve().parents[2]


def version(parent: Path, digit: str, unused_s: float) -> Path:
    """A folder of a version that was last used so long ago."""
    folder = parent / (digit * 16)
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "kernel.nbc").write_bytes(b"machine code")
    then = time.time() - unused_s
    os.utime(folder, (then, then))
    return folder


def test_what_nobody_used_for_a_month_goes(tmp_path: Path) -> None:
    old, recent, mine = (version(tmp_path, d, s) for d, s in (("a", UNUSED_S + 60), ("b", UNUSED_S - 60),
                                                              ("c", 3 * UNUSED_S)))
    (tmp_path / ".gone-ffffffffffffffff" / "code").mkdir(parents=True)  # somebody was killed here
    strange = version(tmp_path, "not-ours", 9 * UNUSED_S)
    linked = tmp_path / ("d" * 16)
    linked.symlink_to(strange)
    claim(mine)
    assert {p.name for p in tmp_path.iterdir()} == {recent.name, mine.name, strange.name, linked.name, ".lock"}
    assert (mine / "code" / "kernel.nbc").exists()
    assert mine.stat().st_mtime > time.time() - 60
    assert not old.exists()


def test_a_folder_is_made(tmp_path: Path) -> None:
    claim(tmp_path / "not" / "there" / "0123456789abcdef")
    assert (tmp_path / "not" / "there" / "0123456789abcdef").is_dir()


def test_where_another_holds_the_lock_nothing_is_deleted_and_nobody_waits_long(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "LOCK_WAIT_S", 0.05)
    old, mine = version(tmp_path, "a", 2 * UNUSED_S), version(tmp_path, "c", 0)
    with (tmp_path / ".lock").open("a+b") as file:
        assert try_lock(file)
        claim(mine)
        assert old.exists()
        unlock(file)
    claim(mine)
    assert not old.exists()


def test_nobody_loses_the_folder_that_was_just_claimed(tmp_path: Path) -> None:
    """Versions come back to folders that are due for deletion while others clear away."""
    code = textwrap.dedent("""
        import os, sys
        from pathlib import Path
        from engine.model.kernel_cache import claim
        folder = Path(sys.argv[1])
        for turn in range(300):
            claim(folder)
            (folder / "kernel").touch()  # fails if it is gone
            os.utime(folder, (1, 1))     # and now it is as if it had not been used for years
    """)
    running = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / (digit * 16))], cwd=ROOT,
                                stderr=subprocess.PIPE, text=True) for digit in "abc"]
    for process in running:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
