"""Scenario files: those that ship, and what is said of bad ones."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from engine.scenario import (
    PROMPT_FOLDER,
    SCENARIO_FOLDER,
    Arrivals,
    ScenarioError,
    Traffic,
    list_scenarios,
    load_scenario,
)
from engine.trace.knobs import KNOBS

GOOD = """
title = "Mine"
about = "About it."
[knobs]
num_blocks = 64
[arrivals]
process = "poisson"
[[traffic]]
name = "chat"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_shipped_scenarios_are_there_in_order_and_in_both_languages() -> None:
    scenarios = list_scenarios()
    names = [s.name for s in scenarios]
    assert names[0] == "one-chat"
    assert {"one-chat", "shared-prefix", "long-document", "memory-pressure", "burst"} <= set(names)
    for scenario in scenarios:
        assert scenario.titles.keys() == scenario.abouts.keys() == {"en", "zh"}
        assert scenario.title_in("zh_CN") == scenario.titles["zh"] != scenario.title
        assert scenario.about_in("zh_CN") == scenario.abouts["zh"]
        assert scenario.title_in("en") == scenario.title_in("fr_FR") == scenario.title
        assert "\n" not in scenario.about
        assert scenario.arrivals.requests == 0, "a demonstration goes on"
        assert load_scenario(scenario.name) == scenario
        for name, value in scenario.knobs.items():
            assert KNOBS[name].check(value) == value


def test_every_prompt_file_is_used_by_a_scenario() -> None:
    used = {f"system/{t.system}" for s in list_scenarios() for t in s.traffic if t.system} | {"preambles/workspaces"}
    for scenario in list_scenarios():
        for t in scenario.traffic:
            used |= {f"{folder}/{name}" for folder, names in (
                ("questions", t.questions), ("follow-ups", t.follow_ups), ("backgrounds", t.backgrounds),
                ("remarks", t.remarks), ("tasks", t.tasks), ("documents", t.documents)) for name in names}
    shipped = {f"{p.parent.name}/{p.stem}" for p in PROMPT_FOLDER.glob("*/*.txt")}
    assert shipped == used


def test_prompts_are_many_and_documents_are_long() -> None:
    questions = [line for path in (PROMPT_FOLDER / "questions").glob("*.txt")
                 for line in path.read_text("utf-8").splitlines()]
    assert len(questions) == len(set(questions)) >= 60
    english = [p for p in (PROMPT_FOLDER / "documents").glob("*.txt") if not p.stem.endswith("-zh")]
    assert len(english) >= 5
    assert all(600 <= len(p.read_text("utf-8").split()) <= 1500 for p in english)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    scenario = load_scenario(write(tmp_path, GOOD))
    assert (scenario.name, scenario.title, scenario.about) == ("mine", "Mine", "About it.")
    assert scenario.knobs == {"num_blocks": 64}
    assert scenario.title_in("zh") == "Mine"
    assert scenario.traffic[0].documents, "all documents by default"
    assert load_scenario(str(tmp_path / "mine.toml")) == scenario


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load_scenario(path).title == "Mine"


def test_unknown_names_list_what_exists() -> None:
    with pytest.raises(ScenarioError, match=r"no scenario 'shared'; there are burst, .*shared-prefix"):
        load_scenario("shared")
    with pytest.raises(ScenarioError, match=r"no scenario file nowhere/x\.toml"):
        load_scenario("nowhere/x.toml")
    with pytest.raises(ScenarioError, match=r"there is no scenario '\.\./scenarios/burst'"):
        load_scenario("../scenarios/burst")


@pytest.mark.parametrize(("change", "message"), [
    (('title = "Mine"', ""), r"mine.toml: title is missing"),
    (('title = "Mine"', "title = 3"), r"mine.toml: title: 3 is not allowed; it takes a text"),
    (('title = "Mine"', 'title = {zh = "x"}'), r"mine.toml: title.en is missing"),
    (('title = "Mine"', 'title = {en = "x", de = "y"}'), r"no key title.de; title takes en, zh"),
    (('title = "Mine"', 'title = "Mine"\ncolour = 1'), r"no key colour; a scenario takes order, title"),
    (("num_blocks = 64", "num_blocks = 4"), r"knobs.num_blocks: 4 is not a whole number from 8 to 65,536"),
    (("num_blocks = 64", "num_bloks = 64"), r"no knob knobs.num_bloks; the knobs are max_num_batched_tokens"),
    (("num_blocks = 64", 'policy = "lifo"'), r"knobs.policy: 'lifo' is not one of fcfs, priority"),
    (("num_blocks = 64", "prompt_tokens_min = 900"), r"prompt_tokens_min: 900 .* at most prompt_tokens_max"),
    (("[knobs]\nnum_blocks = 64", "knobs = 1"), r"knobs must be a table"),
    (('process = "poisson"', 'process = "posson"'), r"arrivals.process: 'posson' .*poisson, uniform, burst"),
    (('process = "poisson"', "requests = -1"), r"arrivals.requests: -1 .* a whole number from 0 to 1,000,000"),
    (('process = "poisson"', "requests = true"), r"arrivals.requests: True .* a whole number"),
    (('process = "poisson"', "users = 3"), r"no key arrivals.users; arrivals takes process, requests"),
    (('process = "poisson"', 'process = "burst"\ntrickle = 1.0'), r"arrivals.trickle: 1.0 .* from 0 to 0.9"),
    (('[[traffic]]\nname = "chat"', ""), r"traffic is missing; it takes at least one \[\[traffic\]\]"),
    (('name = "chat"', ""), r"traffic\[1\].name is missing"),
    (('name = "chat"', 'name = ""'), r"traffic\[1\].name: '' is not allowed"),
    (('name = "chat"', 'name = "a"\n[[traffic]]\nname = "a"'), r"traffic.name: 'a' is there twice"),
    (('name = "chat"', 'name = "chat"\nkind = "novel"'), r"traffic\[1\].kind: 'novel' .* chat, document"),
    (('name = "chat"', 'name = "chat"\nkind = "conversation"'), r'needs arrivals.process = "closed_loop"'),
    (('name = "chat"', 'name = "chat"\nsystem = "supprt"'), r"traffic\[1\].system: 'supprt' .* support"),
    (('name = "chat"', 'name = "chat"\nquestions = "riders"'), r"traffic\[1\].questions: 'riders' .* a list of f"),
    (('name = "chat"', 'name = "chat"\nquestions = ["x"]'), r"files of assets/prompts/questions: chinese, coding"),
    (('name = "chat"', 'name = "chat"\nfollow_ups = []'), r"files of assets/prompts/follow-ups: "),
    (('name = "chat"', 'name = "chat"\nprompt_tokens = [9, 3]'), r"prompt_tokens: \[9, 3\] .*the smaller first"),
    (('name = "chat"', 'name = "chat"\nprompt_tokens = 9'), r"prompt_tokens: 9 .*two whole numbers"),
    (('name = "chat"', 'name = "chat"\nweight = 0'), r"traffic\[1\].weight: 0 .* from 0.001 to 1000"),
    (('name = "chat"', 'name = "chat"\nturns = 3'), r"no key traffic\[1\].turns"),
    (("[knobs]", "[knobs"), r"mine.toml: is not valid TOML: .*line 4"),
    (("[knobs]", "[sampling]\ntop_p = 2\n[knobs]"), r"sampling.top_p: 2 .* from 0.01 to 1"),
    (("[knobs]", "[sampling]\nignore_eos = 1\n[knobs]"), r"sampling.ignore_eos: 1 .* true or false"),
])
def test_bad_files_are_refused_with_file_key_and_what_is_allowed(
        tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert change[0] in GOOD
    with pytest.raises(ScenarioError, match=message) as caught:
        load_scenario(write(tmp_path, GOOD.replace(*change)))
    assert "mine.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b'title = "\xff\xfe"')
    with pytest.raises(ScenarioError, match=r"mine.toml: is not UTF-8 text"):
        load_scenario(path)
    with pytest.raises(ScenarioError, match="no scenario file"):
        load_scenario(tmp_path / "folder.toml")


def test_the_page_of_documentation_names_every_scenario_and_key_and_its_example_loads(tmp_path: Path) -> None:
    page = (SCENARIO_FOLDER / "README.md").read_text("utf-8")
    for scenario in list_scenarios():
        assert f"| `{scenario.name}` |" in page
    for key in [f.name for kind in (Arrivals, Traffic) for f in fields(kind)]:
        assert f"`{key}`" in page
    example = page.split("```toml\n")[1].split("```")[0]
    assert load_scenario(write(tmp_path, example)).title_in("zh") == "午餐时间"
