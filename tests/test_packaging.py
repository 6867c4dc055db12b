"""Setting up: the messages for what is missing, and that nothing is done twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the set-up of Linux")


@pytest.fixture
def check_system() -> ModuleType:
    import importlib.util

    spec = importlib.util.spec_from_file_location("check_system", ROOT / "packaging" / "check_system.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_missing_libraries_are_named_with_the_line_that_installs_them(
    check_system: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setattr(check_system, "is_there", lambda library: library not in ("libEGL.so.1", "libxcb-cursor.so.0"))
    monkeypatch.setattr(check_system.shutil, "which", lambda name: name if name == "apt-get" else None)
    monkeypatch.setattr(check_system.os, "geteuid", lambda: 1000)
    assert check_system.main([]) == 1
    said = capsys.readouterr().err
    assert "libEGL.so.1" in said
    assert "sudo apt-get install -y --no-install-recommends libegl1\n" in said
    assert "xcb" not in said  # there is no display to need it

    monkeypatch.setenv("DISPLAY", ":0")
    assert check_system.main([]) == 1
    assert "libegl1 libxcb-cursor0" in capsys.readouterr().err

    monkeypatch.setattr(check_system.shutil, "which", lambda name: None)
    check_system.main([])
    said = capsys.readouterr().err
    assert all(manager in said for manager in ("apt-get", "dnf", "pacman", "zypper"))


def test_nothing_is_said_when_nothing_is_missing(
    check_system: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_system, "is_there", lambda library: True)
    assert check_system.main(["--x11"]) == 0
    assert check_system.main(["--apt-packages"]) == 0
    assert capsys.readouterr().out.strip() == ""


def test_everything_that_qt_links_to_is_checked_for(check_system: ModuleType) -> None:
    """The table against the truth: what Qt's own files say they need."""
    pyside = pytest.importorskip("PySide6")
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("readelf is not installed")
    qt = Path(pyside.__file__).parent / "Qt"
    files = [qt / "plugins" / "platforms" / f"libq{name}.so" for name in ("xcb", "offscreen")]
    files += [qt / "lib" / f"libQt6{n}.so.6" for n in ("Core", "Gui", "Widgets", "DBus", "Svg", "OpenGL", "XcbQpa")]
    printed = subprocess.run([readelf, "-d", *map(str, files)], capture_output=True, text=True, check=True).stdout
    needed = {line.split("[")[1].rstrip("]") for line in printed.splitlines() if "(NEEDED)" in line}
    with_the_system = ("libc.so", "libm.so", "ld-linux", "libstdc++", "libgcc_s", "libz.so", "libpthread", "libdl.so")
    ours = {name for name in needed if not name.startswith((*with_the_system, "libQt6", "libicu"))}
    covered = set(check_system.needed_libraries(with_x11=True)) | {"libxcb.so.1", "libxcb-render.so.0"}
    assert ours - covered == set()


def run_make_venv(folder: Path, path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The script with nothing on the path but ``path`` and the basic tools."""
    environment = {"PATH": f"{path}:/usr/bin-none", "HOME": str(folder.parent), **variables}
    shell = shutil.which("sh") or "/bin/sh"
    return subprocess.run(
        [shell, str(ROOT / "packaging" / "make_venv.sh"), str(folder)], env=environment, capture_output=True, text=True
    )


def write_python(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def test_a_machine_without_a_suitable_python_is_told_so(tmp_path: Path) -> None:
    write_python(tmp_path / "bin", "python3", "exit 1")  # too old
    write_python(tmp_path / "bin", "python3.13", "echo 'not installed' >&2; exit 127")  # a shim for nothing
    done = run_make_venv(tmp_path / "venv", tmp_path / "bin")
    assert done.returncode == 1
    assert "Python 3.11 or newer" in done.stderr


def test_a_python_without_venv_is_told_so(tmp_path: Path) -> None:
    write_python(tmp_path / "bin", "python3", 'case "$2" in *ensurepip*) exit 1;; *print*) echo 3.12;; esac')
    done = run_make_venv(tmp_path / "venv", tmp_path / "bin")
    assert done.returncode == 1
    assert "python3.12-venv" in done.stderr


def test_the_newest_suitable_python_is_taken_and_a_working_environment_kept(tmp_path: Path) -> None:
    write_python(tmp_path / "bin", "python3.12", 'case "$1" in -m) echo "venv $*" >> "$HOME/log";; esac')
    write_python(tmp_path / "bin", "python3.11", "exit 0")
    assert run_make_venv(tmp_path / "venv", tmp_path / "bin").returncode == 0
    assert "--clear" in (tmp_path / "log").read_text()
    write_python(tmp_path / "bin", "chosen", 'case "$1" in -m) echo chosen >> "$HOME/log";; esac')
    assert run_make_venv(tmp_path / "venv", tmp_path / "bin", PYTHON=str(tmp_path / "bin" / "chosen")).returncode == 0
    assert "chosen" in (tmp_path / "log").read_text()

    os.makedirs(tmp_path / "venv" / "bin")
    write_python(tmp_path / "venv" / "bin", "python", "exit 0")
    (tmp_path / "log").unlink()
    assert run_make_venv(tmp_path / "venv", tmp_path / "bin").returncode == 0
    assert not (tmp_path / "log").exists()


def test_make_does_nothing_twice() -> None:
    """With the stamp newer than pyproject.toml only the quick check is left to do."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    plan = subprocess.run(
        [make, "-n", "-o", "pyproject.toml", "-o", "packaging/make_venv.sh", "-o", ".venv/.installed", "setup"],
        cwd=ROOT, capture_output=True, text=True, check=True,
        env={key: value for key, value in os.environ.items() if not key.startswith("MAKE")},
    ).stdout  # fmt: skip
    assert "check_system.py" in plan
    assert "pip install" not in plan
