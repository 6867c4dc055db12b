"""The command line: what it refuses, in how many lines and with which status, and what it does not import."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.cli import LAYOUT_NAMES, build_parser, main, parse_knobs
from app.layouts import LAYOUTS
from engine.trace.history import LiveHistory
from engine.trace.reader import RecordingError, open_recording
from tests.app.conftest import STEPS

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "QT_QPA_PLATFORM": "offscreen", "OMP_NUM_THREADS": "1"}


def cutaway(*arguments: object, code: str = "", timeout: float = 60, **environment: str) -> subprocess.CompletedProcess:
    """Run the program as a user does; ``code`` runs before it, in the same interpreter."""
    command = [sys.executable, "-m", "app"] if not code else [sys.executable, "-c", code]
    return subprocess.run([*command, *map(str, arguments)], cwd=ROOT, env=ENVIRONMENT | environment,
                          capture_output=True, text=True, timeout=timeout)


@pytest.fixture
def not_a_model(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "readme.txt").write_text("nothing")
    return folder


@pytest.mark.parametrize(("arguments", "says"), [
    (["nonsense"], "nonsense"),
    (["run", "--scenario", "no-such"], "shared-prefix"),  # the refusal lists what there is
    (["run", "--scenario", "/no/such.toml"], "/no/such.toml"),
    (["run", "--set", "speed=3"], "max_num_seqs"),
    (["run", "--set", "max_num_seqs"], "KNOB=VALUE"),
    (["run", "--set", "max_num_seqs=0"], "from 1 to 256"),
    (["run", "--set", "block_size=17"], "power of two"),
    (["run", "--set", "policy=lifo"], "fcfs"),
    (["run", "--set", "enforce_eager=on"], "--device cuda"),
    (["run", "--gpu-memory-utilization", "0.5"], "--set num_blocks"),
    (["run", "--gpu-memory-utilization", "1.5"], "up to 1"),
    (["generate", "hi", "--gpu-memory-utilization", "nan"], "up to 1"),
    (["run", "--exit-after", "0"], "above 0"),
    (["run", "--exit-after", "soon"], "soon"),
    (["run", "--record", "/no/such/folder/a.mcap"], "/no/such/folder/a.mcap"),
    (["run", "--record", "/"], "folder"),
    (["run", "--model", "/no/such/model"], "/no/such/model"),
    (["run", "--model", "{folder}"], "config.json"),
    (["run", "--headless", "--screenshot", "{folder}/a.png"], "window"),
    (["open", "/no/such.mcap"], "/no/such.mcap"),
    (["open", "{folder}"], "{folder}"),
    (["open", "{folder}/readme.txt"], "readme.txt"),
    (["open", "{folder}/readme.txt", "--screenshot", "/no/such/a.png"], "/no/such/a.png"),
    (["info", "{folder}/readme.txt"], "readme.txt"),
    (["generate", "hi", "--temperature", "9"], "from 0 to 2"),
    (["generate", "hi", "--max-tokens", "0"], "--max-tokens is 0; it must be a whole number at least 1"),
    (["generate", "hi", "--top-p", "0"], "above 0, up to 1"),
    (["generate", "hi", "--top-k", "many"], "--top-k"),
    (["generate", "hi", "--stop", ""], "--stop is ['']; it must be strings that are not empty"),
    (["generate", "hi", "--n", "3"], "with temperature 0 all samples would be the same"),
    (["generate", "hi", "--logprobs", "50"], "from 0 to 20"),
    (["generate", "  "], "empty"),
    (["conform", "/no/such.jsonl"], "/no/such.jsonl"),
    (["bench"], "WHAT"),
    (["bench", "gui", "--requests", "-1"], "-1"),
    (["--lang", "fr"], "fr"),
])
def test_bad_arguments_are_refused_in_one_line(arguments: list[str], says: str, not_a_model: Path,
                                               capfd: pytest.CaptureFixture[str]) -> None:
    filled = [a.replace("{folder}", str(not_a_model)) for a in arguments]
    assert main(filled) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert says.replace("{folder}", str(not_a_model)) in err
    assert "Traceback" not in err


def test_what_exists_is_not_touched_by_a_refusal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept.mcap"
    kept.write_bytes(b"precious")
    assert main(["run", "--record", str(kept), "--scenario", "no-such"]) == 2
    assert main(["run", "--record", str(kept), "--headless", "--screenshot", str(tmp_path / "a.png")]) == 2
    assert kept.read_bytes() == b"precious"
    assert not (tmp_path / "a.png").exists()
    capfd.readouterr()


def test_knobs_are_read_in_their_own_types() -> None:
    assert parse_knobs(["num_blocks=64", "enable_prefix_caching=off", "watermark=0.1", "policy=priority"]) == {
        "num_blocks": 64, "enable_prefix_caching": False, "watermark": 0.1, "policy": "priority"}


def test_language_and_theme_count_before_and_after_the_command() -> None:
    for words in (["--lang", "zh", "--theme", "light", "open", "x"], ["open", "x", "--lang", "zh", "--theme", "light"]):
        arguments = build_parser().parse_args(words)
        assert (arguments.lang, arguments.theme) == ("zh", "light")
    assert build_parser().parse_args(["open", "x"]).lang is None


def test_the_layouts_of_the_command_line_are_those_of_the_window() -> None:
    assert tuple(LAYOUTS) == LAYOUT_NAMES
    assert build_parser().parse_args(["open", "x", "--layout", "stage"]).layout == "stage"


def test_version_and_help_say_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    for argument in ("--version", "--help"):
        with pytest.raises(SystemExit) as end:
            main([argument])
        assert end.value.code == 0
    out = capsys.readouterr().out
    assert re.search(r"cutaway \d+\.\d+\.\d+", out)
    for command in ("open", "run", "generate", "info", "models", "conform", "bench"):
        assert command in out


def test_info_sums_up_without_torch_and_qt(recording: Path, run: LiveHistory) -> None:
    code = ("import sys; from app.cli import main; status = main(sys.argv[1:]);"
            "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'PySide6', 'transformers'}));"
            "sys.exit(status)")
    done = cutaway("info", recording, "--json", code=code)
    assert done.returncode == 0, done.stderr
    text, _, imported = done.stdout.rstrip().rpartition("\n")
    assert imported == "[]"
    summary = json.loads(text)
    counters = run.state_at(STEPS - 1).counters
    assert list(summary) == ["steps", "requests", "finished_requests", "output_tokens", "prefix_hit_tokens",
                             "preemptions", "chunked_prefills", "evictions", "knob_changes", "seconds", "model",
                             "schema", "complete", "device"]
    assert (summary["steps"], summary["requests"], summary["finished_requests"], summary["preemptions"]) == (
        STEPS, counters.arrived, counters.finished, counters.preemptions)
    assert summary["complete"] is True


def test_info_for_people(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(recording)]) == 0
    assert re.search(r"^steps +300$", capsys.readouterr().out, re.M)


def test_a_cut_recording_opens_and_the_loss_is_told(recording: Path, tmp_path: Path,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    cut = tmp_path / "cut.mcap"
    cut.write_bytes(recording.read_bytes()[:-2000])
    status = main(["info", str(cut), "--json"])
    out, err = capsys.readouterr()
    assert status == 0, err
    assert json.loads(out)["complete"] is False
    assert "cut.mcap" in err


def test_open_shows_a_recording_and_imports_no_torch(recording: Path, tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    code = ("import sys; from app.cli import main; status = main(sys.argv[1:]);"
            "print('torch' in sys.modules, 'transformers' in sys.modules); sys.exit(status)")
    done = cutaway("open", recording, "--step", 120, "--exit-after", 0.5, "--screenshot", picture, "--theme", "light",
                   "--lang", "zh", "--layout", "stage", code=code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False False"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 50_000


def test_a_live_window_is_up_before_torch_is_imported(tmp_path: Path) -> None:
    code = """
import sys
from app import application, cli
from app.main_window import MainWindow

def start(self, spec, record=None):
    print(self.isVisible(), self.windowHandle().isExposed(), "torch" in sys.modules)
    self.close()

MainWindow.start_live = start
sys.exit(cli.main(sys.argv[1:]))
"""
    done = cutaway("run", code=code, XDG_CONFIG_HOME=str(tmp_path), APPDATA=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True", "False"]


@pytest.mark.parametrize("extra", [[], ["--headless"]])
def test_a_run_whose_model_cannot_be_had_ends_with_a_reason(extra: list[str], tmp_path: Path) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("where the cache would be a folder")
    done = cutaway("run", "--exit-after", 5, *extra, CUTAWAY_CACHE=str(blocked / "cache"))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "CUTAWAY_CACHE" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_closes_the_window(recording: Path, number: signal.Signals) -> None:
    code = """
import sys
from app import cli
from app.main_window import MainWindow

show = MainWindow.show_recording

def show_and_tell(*arguments, **options):
    show(*arguments, **options)
    print("up", flush=True)

MainWindow.show_recording = show_and_tell
sys.exit(cli.main(sys.argv[1:]))
"""
    process = subprocess.Popen([sys.executable, "-c", code, "open", str(recording), "--exit-after", "50"], cwd=ROOT,
                               env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()


def steps_in(path: Path) -> int:
    """How many steps a recording holds that is still being written."""
    try:
        source = open_recording(path)
    except RecordingError:
        return 0
    try:
        return source.last_step + 1
    finally:
        source.close()


@pytest.mark.model
def test_a_headless_run_is_recorded_and_ends_cleanly_on_a_signal(tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "run", "--scenario", "one-chat", "--headless", "--record", str(path)], cwd=ROOT,
        env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 60
        while steps_in(path) < 2 and time.monotonic() < until:
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 0, err
    finally:
        process.kill()
    done = cutaway("info", path, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["complete"] is True
    assert summary["steps"] > 0


@pytest.mark.model
def test_generate_answers_on_stdout_and_nothing_else() -> None:
    done = cutaway("generate", "What is the capital of France? Answer briefly.", timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "The capital of France is Paris.\n"


@pytest.mark.model
def test_generate_computes_as_it_is_told() -> None:
    done = cutaway("generate", "What is the capital of France? Answer briefly.", "--forward-path", "torch", timeout=100)
    assert (done.returncode, done.stdout) == (0, "The capital of France is Paris.\n"), done.stderr
    refused = cutaway("generate", "hello", "--forward-path", "triton", timeout=100)
    assert refused.returncode == 1
    assert "kernels need a GPU" in refused.stderr.splitlines()[-1]


@pytest.mark.model
def test_a_gpu_that_is_not_there_is_told_in_one_line() -> None:
    done = cutaway("generate", "hello", "--device", "cuda", CUDA_VISIBLE_DEVICES="-1", timeout=100)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == (
        "cutaway: The device cuda was asked for, but this machine has no usable NVIDIA GPU; use cpu.")
    assert "Traceback" not in done.stderr


@pytest.mark.model
def test_generate_takes_vllms_parameters() -> None:
    question = "What is the capital of France? Answer briefly."
    done = cutaway("generate", question, "--stop", " is Par", "--logprobs", "2", timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "The capital of France\n"
    assert re.search(r"' capital' -0\.\d{3} \(\d\d\.\d%\) +of  ' capital' .*%\)   '.*%\)", done.stderr)
    many = [cutaway("generate", question, "--n", "3", "--temperature", "1.5", "--top-k", "40", "--seed", seed,
                    "--max-tokens", "20", timeout=100).stdout for seed in (7, 7, 8)]
    assert many[0] == many[1] != many[2]
    assert re.findall(r"^\[(\d)\] \S", many[0], re.M) == ["1", "2", "3"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is always a screen")
@pytest.mark.parametrize("environment", [
    {"QT_QPA_PLATFORM": "xcb", "DISPLAY": ":9999"}, {"QT_QPA_PLATFORM": "no-such-platform"}])
def test_without_a_screen_it_says_so_instead_of_aborting(recording: Path, environment: dict[str, str]) -> None:
    done = cutaway("open", recording, "--exit-after", 1, **environment)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "the window cannot be opened" in line
    assert "QT_QPA_PLATFORM=offscreen" in line


def test_a_run_that_cannot_be_begun_ends_with_a_reason() -> None:
    code = ("import sys\nfrom app.application import WindowRequest, run_application\n"
            "from engine.worker import RunSpec\n"
            "sys.exit(run_application(WindowRequest(spec=RunSpec(scenario='/no/such.toml'))))")
    done = cutaway(code=code, timeout=30)
    assert done.returncode == 1
    assert "cutaway: there is no scenario file /no/such.toml" in done.stderr.splitlines()


def test_a_signal_that_comes_before_the_event_loop_ends_the_program_too(recording: Path) -> None:
    code = ("import os, signal, sys\nfrom PySide6.QtWidgets import QApplication\nfrom app.cli import main\n"
            "run = QApplication.exec\n"
            "QApplication.exec = lambda self: (os.kill(os.getpid(), signal.SIGTERM), run())[1]\n"
            "sys.exit(main(sys.argv[1:]))")
    done = cutaway("open", recording, code=code, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_while_the_window_is_built_ends_the_program(recording: Path) -> None:
    code = ("import os, signal, sys\nfrom app import application\nfrom app.cli import main\n"
            "build = application.MainWindow.resizeEvent\n"
            "def resized(self, event):\n"
            "    os.kill(os.getpid(), signal.SIGINT)\n"
            "    build(self, event)\n"
            "application.MainWindow.resizeEvent = resized\n"
            "sys.exit(main(sys.argv[1:]))")
    done = cutaway("open", recording, code=code, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
