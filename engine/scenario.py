"""Scenarios: what a run is about. Small TOML files that set knobs and say who sends what, and when.

A scenario is data only: :mod:`engine.workload` draws its requests. The format is documented for people in
``assets/scenarios/README.md``; this module checks a file completely before anything runs, and every refusal names
the file, the key, and what is allowed there.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from engine.trace.knobs import KNOBS, KnobError, KnobValue, knob

SCENARIO_FOLDER = Path(__file__).resolve().parents[1] / "assets" / "scenarios"
PROMPT_FOLDER = Path(__file__).resolve().parents[1] / "assets" / "prompts"

Process = Literal["poisson", "uniform", "burst", "closed_loop"]
Kind = Literal["chat", "document", "conversation"]
PROCESSES: tuple[Process, ...] = ("poisson", "uniform", "burst", "closed_loop")
KINDS: tuple[Kind, ...] = ("chat", "document", "conversation")
LANGUAGES = ("en", "zh")


class ScenarioError(ValueError):
    """A scenario that does not exist or cannot be used. The message says what, where, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When requests come. How often, on average, is the knob ``arrival_rate``.

    ``initial`` requests are there when the run begins. ``requests`` ends the run after that many; 0 goes on for
    ever, and then arrivals that find ``max_unfinished`` requests unfinished are turned away.
    ``burst_size`` and ``trickle`` (the share that comes singly, between bursts) belong to "burst", ``users`` to
    "closed_loop".
    """

    process: Process = "poisson"
    requests: int = 0
    initial: int = 0
    max_unfinished: int = 200
    burst_size: int = 16
    trickle: float = 0.2
    users: int = 1


@dataclass(frozen=True, slots=True)
class Traffic:
    """One kind of request in the mix. ``weight`` is its share against the others.

    ``system`` names a file of ``assets/prompts/system`` (without .txt); "" sends no system prompt of ours.
    ``questions``, ``follow_ups`` (later turns of a conversation), ``backgrounds`` (what somebody says before a
    question, where the prompt is to be longer; ``heading`` then stands between the two), ``remarks`` (short sentences
    behind it, which make up the length), ``tasks`` and ``documents`` name files of the folders called so.
    ``prompt_tokens`` and ``output_tokens`` are ranges of its own, (0, 0) follows the knobs. ``turns`` is how long a
    conversation goes on.
    """

    name: str
    kind: Kind = "chat"
    weight: float = 1.0
    system: str = ""
    questions: tuple[str, ...] = ("engineering", "everyday")
    follow_ups: tuple[str, ...] = ("questions",)
    backgrounds: tuple[str, ...] = ("general",)
    heading: str = "Question:"
    remarks: tuple[str, ...] = ("questions",)
    tasks: tuple[str, ...] = ("documents",)
    documents: tuple[str, ...] = ()
    prompt_tokens: tuple[int, int] = (0, 0)
    output_tokens: tuple[int, int] = (0, 0)
    priority: int = 0
    turns: int = 4


@dataclass(frozen=True, slots=True)
class Scenario:
    """A checked scenario. ``knobs`` are presets of knobs of any group; those not named keep their defaults."""

    name: str
    title: str
    about: str
    knobs: dict[str, KnobValue]
    arrivals: Arrivals
    traffic: tuple[Traffic, ...]
    ignore_eos: bool = False
    top_k: int = 0
    top_p: float = 1.0
    titles: dict[str, str] = field(default_factory=dict)
    abouts: dict[str, str] = field(default_factory=dict)
    path: Path | None = None

    def title_in(self, language: str) -> str:
        """The title in a language such as "zh_CN", or in English."""
        return self.titles.get(language[:2], self.title)

    def about_in(self, language: str) -> str:
        """The description in a language such as "zh_CN", or in English."""
        return self.abouts.get(language[:2], self.about)


def list_scenarios() -> list[Scenario]:
    """Every scenario that ships, the simplest first (files are sorted by their ``order``, then by name)."""
    loaded = [_read(path) for path in sorted(SCENARIO_FOLDER.glob("*.toml"))]
    return [scenario for _, scenario in sorted(loaded, key=lambda pair: (pair[0], pair[1].name))]


def load_scenario(name_or_path: str | Path) -> Scenario:
    """Load a shipped scenario by its name, or any by the path of its TOML file. Raises :class:`ScenarioError`."""
    text = str(name_or_path)
    path = Path(text)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise ScenarioError(f"there is no scenario file {text}")
        return _read(path)[1]
    shipped = SCENARIO_FOLDER / f"{text}.toml"
    names = sorted(p.stem for p in SCENARIO_FOLDER.glob("*.toml"))
    if text not in names:
        raise ScenarioError(f"there is no scenario {text!r}; there are {', '.join(names)}, or give the path of a "
                            "scenario's .toml file")
    return _read(shipped)[1]


def prompt_file_names(folder: str) -> list[str]:
    """What ships in ``assets/prompts/<folder>``, without .txt."""
    return sorted(p.stem for p in (PROMPT_FOLDER / folder).glob("*.txt"))


# ---- reading and checking ----------------------------------------------------------------------------------------

T = TypeVar("T")


class _Table:
    """A TOML table that is used up key by key, so that a key that nobody asked for is noticed and refused."""

    def __init__(self, file: str, where: str, values: object) -> None:
        self.file, self.where = file, where
        if not isinstance(values, dict):
            raise ScenarioError(f"{file}: {where} must be a table")
        self._left: dict[str, Any] = dict(values)
        self._known: list[str] = []

    def refuse(self, key: str, value: object, allowed: str) -> ScenarioError:
        return ScenarioError(f"{self.file}: {self._full(key)}: {value!r} is not allowed; it takes {allowed}")

    def _full(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def take(self, key: str) -> Any:
        self._known.append(key)
        return self._left.pop(key, None)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.take(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise ScenarioError(f"{self.file}: {self._full(key)} is missing; it takes a text in quotes")
        if not isinstance(value, str) or (default is None and not value.strip()):
            raise self.refuse(key, value, "a text in quotes")
        return value

    def number(self, key: str, default: float, low: float, high: float) -> float:
        value = self.take(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self.refuse(key, value, f"a number from {low:g} to {high:g}")
        return float(value)

    def whole(self, key: str, default: int, low: int, high: int) -> int:
        value = self.take(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refuse(key, value, f"a whole number from {low:,} to {high:,}")
        return value

    def truth(self, key: str, default: bool) -> bool:
        value = self.take(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(key, value, "true or false")
        return value

    def choice(self, key: str, default: T, choices: Collection[T]) -> T:
        value = self.take(key)
        if value is None:
            return default
        if value not in choices:
            raise self.refuse(key, value, "one of " + ", ".join(map(str, choices)))
        return value

    def names(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """A list of prompt files of the folder that is called like the key."""
        value = self.take(key)
        if value is None:
            return default
        folder = key.replace("_", "-")
        known = prompt_file_names(folder)
        if not isinstance(value, list) or not value or not all(v in known for v in value):
            raise self.refuse(key, value, f"a list of files of assets/prompts/{folder}: {', '.join(known)}")
        return tuple(value)

    def token_range(self, key: str) -> tuple[int, int]:
        value = self.take(key)
        if value is None:
            return (0, 0)
        if (not isinstance(value, list) or len(value) != 2
                or not all(isinstance(v, int) and not isinstance(v, bool) and 1 <= v <= 8192 for v in value)
                or value[0] > value[1]):
            raise self.refuse(key, value, "two whole numbers from 1 to 8,192, the smaller first, such as [20, 80]")
        return (value[0], value[1])

    def done(self) -> None:
        """Refuse what is left."""
        for key in self._left:
            raise ScenarioError(f"{self.file}: there is no key {self._full(key)}; "
                                f"{self.where or 'a scenario'} takes {', '.join(self._known)}")


def _read(path: Path) -> tuple[int, Scenario]:
    """Read one file; returns its place in the list and the scenario."""
    file = path.name
    try:
        raw = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{file}: is not UTF-8 text (at byte {error.start})") from error
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{file}: is not valid TOML: {error}") from error
    top = _Table(file, "", raw)
    order = top.whole("order", 1000, 0, 1000)
    titles = _texts(file, "title", top.take("title"))
    abouts = _texts(file, "about", top.take("about"))
    arrivals = _arrivals(_Table(file, "arrivals", top.take("arrivals") or {}))
    sampling = _Table(file, "sampling", top.take("sampling") or {})
    ignore_eos = sampling.truth("ignore_eos", False)
    top_k = sampling.whole("top_k", 0, 0, 100_000)
    top_p = sampling.number("top_p", 1.0, 0.01, 1.0)
    sampling.done()
    knobs = _knobs(file, top.take("knobs") or {})
    traffic = _traffic_list(file, top.take("traffic"))
    top.done()
    if arrivals.process != "closed_loop" and any(t.kind == "conversation" for t in traffic):
        raise ScenarioError(f'{file}: traffic.kind: "conversation" needs arrivals.process = "closed_loop", because the '
                            "next turn waits for the answer")
    return order, Scenario(
        name=path.stem, title=titles["en"], about=abouts["en"], knobs=knobs, arrivals=arrivals, traffic=traffic,
        ignore_eos=ignore_eos, top_k=top_k, top_p=top_p, titles=titles, abouts=abouts, path=path)


def _texts(file: str, key: str, value: object) -> dict[str, str]:
    """A text in each language. One plain text is taken as English."""
    if value is None:
        raise ScenarioError(f'{file}: {key} is missing; it takes a text in quotes, or a table with "en" and "zh"')
    if isinstance(value, str):
        value = {"en": value}
    if not isinstance(value, dict):
        raise ScenarioError(f'{file}: {key}: {value!r} is not allowed; it takes a text in quotes, or a table with "en" '
                            'and "zh"')
    table = _Table(file, key, value)
    texts = {"en": table.text("en")}
    for language in LANGUAGES[1:]:
        if other := table.text(language, ""):
            texts[language] = other
    table.done()
    return {language: " ".join(text.split()) for language, text in texts.items()}


def _arrivals(table: _Table) -> Arrivals:
    basic = Arrivals()
    process = table.choice("process", basic.process, PROCESSES)
    arrivals = Arrivals(
        process=process,
        requests=table.whole("requests", basic.requests, 0, 1_000_000),
        initial=table.whole("initial", basic.initial, 0, 1000),
        max_unfinished=table.whole("max_unfinished", basic.max_unfinished, 1, 100_000),
        burst_size=table.whole("burst_size", basic.burst_size, 1, 1000) if process == "burst" else basic.burst_size,
        trickle=table.number("trickle", basic.trickle, 0.0, 0.9) if process == "burst" else basic.trickle,
        users=table.whole("users", basic.users, 1, 1000) if process == "closed_loop" else basic.users,
    )
    table.done()
    return arrivals


def _knobs(file: str, values: object) -> dict[str, KnobValue]:
    if not isinstance(values, dict):
        raise ScenarioError(f"{file}: knobs must be a table")
    checked: dict[str, KnobValue] = {}
    for name, value in values.items():
        if name not in KNOBS:
            raise ScenarioError(f"{file}: there is no knob knobs.{name}; the knobs are {', '.join(KNOBS)}")
        try:
            checked[name] = knob(name).check(value)
        except KnobError as error:
            raise ScenarioError(f"{file}: knobs.{error}") from None
    _check_ranges(file, checked)
    return checked


def _check_ranges(file: str, knobs: Mapping[str, KnobValue]) -> None:
    for what in ("prompt_tokens", "output_tokens"):
        low, high = (knobs.get(f"{what}_{end}", KNOBS[f"{what}_{end}"].default) for end in ("min", "max"))
        if low > high:  # type: ignore[operator]
            raise ScenarioError(f"{file}: knobs.{what}_min: {low} is not allowed; it takes at most {what}_max, "
                                f"which is {high}")


def _traffic_list(file: str, values: object) -> tuple[Traffic, ...]:
    if not isinstance(values, list) or not values:
        raise ScenarioError(f"{file}: traffic is missing; it takes at least one [[traffic]] table with a name")
    traffic = tuple(_traffic(_Table(file, f"traffic[{i}]", value)) for i, value in enumerate(values, 1))
    names = [t.name for t in traffic]
    for name in names:
        if names.count(name) > 1:
            raise ScenarioError(f"{file}: traffic.name: {name!r} is there twice; it takes a name of its own each time")
    return traffic


def _traffic(table: _Table) -> Traffic:
    name = table.text("name")
    basic = Traffic(name)
    kind = table.choice("kind", basic.kind, KINDS)
    traffic = Traffic(
        name=name,
        kind=kind,
        weight=table.number("weight", basic.weight, 0.001, 1000),
        system=table.choice("system", basic.system, ["", *prompt_file_names("system")]),
        questions=table.names("questions", basic.questions),
        follow_ups=table.names("follow_ups", basic.follow_ups),
        backgrounds=table.names("backgrounds", basic.backgrounds),
        heading=table.text("heading", basic.heading),
        remarks=table.names("remarks", basic.remarks),
        tasks=table.names("tasks", basic.tasks),
        documents=table.names("documents", tuple(prompt_file_names("documents"))),
        prompt_tokens=table.token_range("prompt_tokens"),
        output_tokens=table.token_range("output_tokens"),
        priority=table.whole("priority", basic.priority, -1000, 1000),
        turns=table.whole("turns", basic.turns, 1, 100) if kind == "conversation" else basic.turns,
    )
    table.done()
    return traffic
