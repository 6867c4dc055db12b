"""Every text that a user sees is translated, and the compiled file is the translation's."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PySide6.QtCore import QCoreApplication

from app.application import make_application
from app.engine_texts import KNOB_TEXTS, MODEL_TEXTS, RECORDING_TEXTS, REFUSAL_TEXTS, RUNNER_TEXTS, refusal_text, say
from app.key_list import key_groups
from app.main_window import MainWindow
from app.session import LiveSession
from app.translation import TRANSLATIONS, Language
from engine.config import SchedulerConfig
from engine.core import Engine
from engine.model.problems import STAGES, TEXTS, ModelUnavailable
from engine.sampling_params import SamplingParams
from engine.trace.events import Refused, decode_step, encode_step
from engine.trace.knobs import KnobError
from engine.trace.source import Notice
from tests.engine.token_runner import TokenRunner

ROOT = Path(__file__).resolve().parents[2]
TS = TRANSLATIONS / "cutaway_zh_CN.ts"
UNTRANSLATED = {"prefill", "decode", "prompt", "KV", "tok/s", "decode {count}", "{count} tok", "{rate} tok/s",
                "{count} tok · {reason}", "prefill chunk", "KV cache", "{free} of {all}"}
"""Texts that are the same in both languages, as the field says them."""


def messages(path: Path) -> dict[tuple[str, str], ET.Element]:
    """Every message that is in use, by context and source text."""
    found = {}
    for context in ET.parse(path).getroot().iter("context"):
        for message in context.iter("message"):
            translation = message.find("translation")
            assert translation is not None
            if translation.get("type") not in ("vanished", "obsolete"):
                found[context.findtext("name", ""), message.findtext("source", "")] = translation
    return found


def tool(name: str) -> str:
    path = Path(sys.executable).parent / f"pyside6-{name}"
    if not path.exists():
        pytest.skip(f"pyside6-{name} is not installed")
    return str(path)


@pytest.fixture
def chinese() -> Any:
    make_application()
    yield Language("zh")
    Language("en")
    app = QCoreApplication.instance()
    assert app is not None


def test_every_text_of_the_program_is_in_the_translation(tmp_path: Path) -> None:
    sources = [str(p) for folder in ("app", "widgets") for p in sorted((ROOT / folder).glob("*.py"))]
    fresh = tmp_path / "fresh.ts"
    subprocess.run([tool("lupdate"), *sources, "-ts", str(fresh), "-locations", "none"], check=True,
                   capture_output=True)
    missing = sorted(set(messages(fresh)) - set(messages(TS)))
    assert not missing, f"run lupdate and translate (see {TRANSLATIONS / 'README.md'}): {missing}"
    assert len(messages(fresh)) > 300


def test_no_text_hides_where_lupdate_does_not_look() -> None:
    """Inside an f-string a text is neither extracted nor missed."""
    for folder in ("app", "widgets"):
        for path in (ROOT / folder).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
                    assert not [c for c in calls if c.func.attr in ("tr", "translate")], f"{path.name}:{node.lineno}"


def test_every_text_is_translated() -> None:
    for (context, source), translation in messages(TS).items():
        assert translation.get("type") is None, f"{context}: {source!r} is unfinished"
        assert translation.text, f"{context}: {source!r} is empty"
        if source not in UNTRANSLATED:
            assert translation.text != source or not re.search("[a-z]{4}", source), f"{context}: {source!r}"


def test_translations_keep_the_places_for_values() -> None:
    for (context, source), translation in messages(TS).items():
        def places(text: str) -> list[str]:
            return sorted(set(re.findall(r"\{[a-z_]*\}|%n", text)))
        assert places(source) == places(translation.text or ""), f"{context}: {source!r}"


def test_the_compiled_file_is_up_to_date(tmp_path: Path) -> None:
    fresh = tmp_path / "fresh.qm"
    subprocess.run([tool("lrelease"), str(TS), "-qm", str(fresh)], check=True, capture_output=True)
    assert fresh.read_bytes() == TS.with_suffix(".qm").read_bytes()


def templates_in(folder: str) -> set[str]:
    """The templates of the notices that are made in the files of a folder."""
    found = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Notice" and node.args:
                assert isinstance(node.args[0], ast.Constant), f"{path.name}:{node.lineno}: a template must be literal"
                found.add(node.args[0].value)
    return found


def test_the_lists_of_the_engines_texts_are_complete() -> None:
    engine, listed = templates_in("engine"), {*RECORDING_TEXTS, *KNOB_TEXTS, *REFUSAL_TEXTS, *RUNNER_TEXTS}
    assert len(engine) > 20
    assert engine - listed == set(), "not listed, so never translated"
    assert listed - engine - templates_in("app") == set(), "said by nobody"
    assert {*TEXTS.values(), *STAGES.values()} - {"{reason}"} <= set(MODEL_TEXTS)


def test_the_engine_speaks_chinese(chinese: Language) -> None:
    assert say(Notice("{path} is empty.", path="a.mcap")) == "a.mcap 是空的。"
    assert say(ValueError(Notice("{path} is empty.", path="b"))) == "b 是空的。"
    assert "CUTAWAY_CACHE" in say(ModelUnavailable("not_writable", folder="/x", reason="no"))
    assert "文件夹" in say(ModelUnavailable("not_writable", folder="/x", reason="no"))
    assert say("loading the model") == "正在加载模型"
    assert say("something new") == "something new"
    assert "请" in say(KnobError(Notice(KNOB_TEXTS[0], blocks="9", size=16, wanted="90", allowed="12")))
    assert say("") == ""
    chinese.set("en")
    assert say(Notice("{path} is empty.", path="a.mcap")) == "a.mcap is empty."


def test_refusals_are_said_in_chinese_with_their_figures(chinese: Language) -> None:
    engine = Engine(TokenRunner(), None, SchedulerConfig(num_blocks=10, max_model_len=256))  # type: ignore[arg-type]
    for params in ({"top_k": -3}, {"logprobs": 99}, {"temperature": 9.0}, {"top_p": 2.0}, {"stop": ("",)},
                   {"n": 2}, {"seed": 2**64}, {"logit_bias": {3: 999.0}}, {"stop_token_ids": (-1,)}):
        engine.add_request([1, 2, 3], SamplingParams(**params))  # type: ignore[arg-type]
    for length in (0, 200, 400):
        engine.add_request([5] * length, SamplingParams())
    events = engine.step()
    assert events is not None
    said = [refusal_text(decode_step(encode_step(events)).refused[i]) for i in range(len(events.refused))]
    assert all(re.search("[一-鿿]", text) for text in said), said
    assert ["-3" in said[0], "20" in said[1], "999.0" in said[7], "144" in said[10], "256" in said[11]] == [True] * 5
    chinese.set("en")
    assert [refusal_text(r) for r in events.refused] == [r.message for r in events.refused]


def test_a_template_of_a_damaged_recording_is_not_filled_in(chinese: Language) -> None:
    for template, values in (("{a.__class__}", {"a": 1}), ("{a:>999999999}", {"a": 1}),
                             ("{name} is {value}; it must be true or false.", {"name": "x"})):
        assert refusal_text(Refused("r1", "bad_parameters", "as it was said", "", template, values)) == "as it was said"
    old = msgspec.msgpack.decode(msgspec.msgpack.encode(["r1", "empty_prompt", "The prompt is empty."]), type=Refused)
    assert refusal_text(old) == "The prompt is empty."  # from before there were templates


def test_no_text_is_lost_on_the_way_there_and_back(window: MainWindow, live: Callable[..., LiveSession],
                                                   qtbot: Any) -> None:
    session = live()
    qtbot.waitUntil(lambda: session.time.step > 5)

    def texts() -> list[str]:
        return [*(panel.title for panel in window.panels.values()), window.commands.file.title(),
                *(dock.windowTitle() for dock in window.docks.docks.values()), window.transport.play.toolTip(),
                window.knobs.control("max_num_seqs").toolTip(), *(what for _, keys in key_groups() for _, what in keys)]

    before = texts()
    window.set_language("zh")
    qtbot.waitUntil(lambda: window.commands.file.title() == "文件(&F)")
    for text in texts():
        assert re.search("[一-鿿]", text), f"{text!r} stays English"
    window.set_language("en")
    qtbot.waitUntil(lambda: window.commands.file.title() == "&File")
    assert texts() == before


def test_the_file_may_be_written_anew_while_the_program_runs(qapp: Any, tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / TS.with_suffix(".qm").name
    copy.write_bytes(TS.with_suffix(".qm").read_bytes())
    monkeypatch.setattr("app.translation.TRANSLATIONS", tmp_path)
    language = Language("zh")
    try:
        copy.write_bytes(b"")
        gc.collect()
        assert QCoreApplication.translate("Panel", "This panel failed. The run goes on.").startswith("这个面板")
    finally:
        language.set("en")
