"""Who may import whom: the design's one-way dependencies, read from the source itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
QT = {"PySide6", "shiboken6", "pyqtgraph"}
HEAVY = {"torch", "transformers", "accelerate", "triton"}
OURS = {"app", "widgets", "engine"}


def modules(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, f"there is nothing in {folder}"
    return found


def imports(path: Path, *, at_start: bool = False) -> Iterator[tuple[str, int]]:
    """(module, line) of every import in a file; ``at_start`` only of those that run when it is imported."""
    yield from _walk(ast.parse(path.read_text("utf-8")).body, path, at_start)


def _walk(body: list[ast.stmt], path: Path, at_start: bool) -> Iterator[tuple[str, int]]:
    for node in body:
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # relative: name the package that it means
                package = path.relative_to(ROOT).with_suffix("").parts[:-node.level]
                base = ".".join([*package, base]).rstrip(".")
            yield base, node.lineno
            for name in node.names:  # "from engine import scheduler" imports engine.scheduler
                yield f"{base}.{name.name}", node.lineno
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from _walk(node.orelse, path, at_start)  # what only a type checker sees is no dependency at run time
        elif not (at_start and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))):
            for field in ("body", "orelse", "finalbody"):
                yield from _walk(getattr(node, field, []) or [], path, at_start)
            for handler in getattr(node, "handlers", []):
                yield from _walk(handler.body, path, at_start)


def offences(folder: str, forbidden: set[str], *, at_start: bool = False) -> list[str]:
    return [f"{path.relative_to(ROOT)}:{line} imports {module}" for path in modules(folder)
            for module, line in imports(path, at_start=at_start) if module.split(".")[0] in forbidden]


def test_the_engine_knows_no_qt_and_nothing_above_it() -> None:
    assert not offences("engine", QT | {"app", "widgets"})


def test_the_trace_imports_no_torch_and_nothing_of_the_engine_proper() -> None:
    assert not offences("engine/trace", HEAVY | QT)
    for path in modules("engine/trace"):
        for module, line in imports(path):
            if module.split(".")[0] in OURS:
                assert module.startswith("engine.trace"), f"{path.name}:{line} imports {module}"


def test_widgets_know_the_trace_and_nothing_else_of_ours() -> None:
    assert not offences("widgets", HEAVY | {"app"})
    for path in modules("widgets"):
        for module, line in imports(path):
            if module.split(".")[0] == "engine":
                assert module.startswith("engine.trace"), f"{path.name}:{line} imports {module}"


def test_the_program_imports_no_torch() -> None:
    assert not offences("app", HEAVY)


def test_kernels_and_only_kernels_are_in_the_kernels_folder() -> None:
    """Nothing else of the engine's start-up may need a GPU's compiler."""
    assert not [o for o in offences("engine", {"triton"}, at_start=True) if "engine/kernels" not in o]


@pytest.mark.parametrize(("module", "absent"), [
    ("engine.trace.reader", HEAVY | QT),
    ("engine.trace.summary", HEAVY | QT),
    ("engine.worker", HEAVY | QT),
    ("engine.model.library", HEAVY | QT),
    ("app.cli", HEAVY | QT | {"numpy"}),
    ("app.headless", HEAVY | QT),
    ("app.session", HEAVY | {"pyqtgraph"}),
    ("app.main_window", HEAVY),
])
def test_what_importing_a_module_brings_along(module: str, absent: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert not absent & set(run.stdout.split())


def test_this_test_would_notice() -> None:
    """The rules are read from the source, so a rule that reads nothing would always hold."""
    found = {module for module, _ in imports(ROOT / "app" / "session.py")}
    assert {"engine.worker", "widgets.view"} <= found
    assert "torch" in {module for path in modules("engine") for module, _ in imports(path)}
    assert offences("app", {"PySide6"})
