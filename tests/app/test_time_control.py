"""The viewing step under every sequence of commands, and the rules that it must keep."""

from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from app.time_control import CONDITIONS, SPEEDS, TimeControl

STEP_NS = 40_000_000  # every step of the fake run takes 40 ms


class FakeSteps:
    """A run of steps of equal length; ``marks`` says in which step what happened."""

    def __init__(self, count: int, *, ended: bool, marks: dict[str, list[int]] | None = None) -> None:
        self.first_step = 0
        self.last_step = count - 1
        self.ended = ended
        self.marks = marks or {}

    def end_ns(self, step: int) -> int:
        return (step + 1) * STEP_NS

    def step_at(self, time_ns: int) -> int:
        return max(self.first_step, min(time_ns // STEP_NS - 1, self.last_step))

    def next_mark(self, kind: str, after: int, upto: int) -> int | None:
        steps = self.marks.get(kind, [])
        index = bisect_right(steps, after)
        return steps[index] if index < len(steps) and steps[index] <= upto else None


def replay(count: int = 100, **marks: list[int]) -> TimeControl:
    return TimeControl(FakeSteps(count, ended=True, marks=marks), live=False)


def live(count: int = 100, **marks: list[int]) -> tuple[TimeControl, FakeSteps]:
    steps = FakeSteps(count, ended=False, marks=marks)
    return TimeControl(steps, live=True), steps


def test_a_replay_starts_paused_at_its_first_step() -> None:
    time = replay()
    time.tick(0.0)
    assert (time.step, time.playing, time.attached) == (0, False, False)


def test_a_live_view_follows_the_newest_step() -> None:
    time, steps = live()
    steps.last_step = 105
    assert time.tick(0.0)
    assert time.step == 105
    assert time.following


@pytest.mark.parametrize("speed", SPEEDS)
def test_the_run_clock_sets_the_pace(speed: float) -> None:
    time = replay(10_000)
    time.set_speed(speed)
    time.play()
    for tick in range(241):
        time.tick(tick / 60)  # four seconds
    assert time.step == pytest.approx(4 * speed * 1e9 / STEP_NS, abs=1)


def test_every_step_is_shown_once_at_a_rate() -> None:
    time = replay(100)
    time.set_speed(30, "steps")
    time.play()
    shown = []
    for tick in range(601):
        if time.tick(tick / 60):
            shown.append(time.step)
    assert shown == list(range(1, 100))
    assert not time.playing


def test_pause_and_play_go_on_from_the_same_step() -> None:
    time = replay()
    time.play()
    time.tick(0.0)
    time.tick(1.0)
    at = time.step
    time.toggle()
    time.tick(50.0)
    assert time.step == at
    time.toggle()
    time.tick(50.0)
    assert time.step == at
    time.tick(50.0 + 1.01 * STEP_NS / 1e9)
    assert time.step == at + 1


def test_scrubbing_a_live_view_detaches_and_only_follow_attaches() -> None:
    time, steps = live()
    time.seek(40)
    steps.last_step = 200
    time.tick(1.0)
    assert (time.step, time.attached, time.playing, time.behind) == (40, False, False, 160)
    time.seek(200)
    assert not time.attached
    time.play()
    steps.last_step = 300
    time.tick(1.0)
    assert not time.following
    time.follow()
    assert (time.step, time.following) == (300, True)


def test_a_paused_live_view_stays_and_takes_up_following_where_it_was() -> None:
    time, steps = live()
    time.pause()
    steps.last_step = 101  # the step that was under way
    time.tick(1.0)
    assert time.step == 99
    time.play()
    time.tick(1.1)
    assert (time.step, time.following) == (101, True)


def test_stepping_beyond_the_edge_waits_for_the_engine_and_goes_no_further() -> None:
    time, steps = live()
    assert time.step_forward(3) == 3
    time.tick(0.1)
    assert time.step == 99
    steps.last_step = 101
    time.tick(0.2)
    assert time.step == 101
    steps.last_step = 110
    time.tick(0.3)
    assert time.step == 102
    time.tick(0.4)
    assert time.step == 102


@pytest.mark.parametrize("condition", CONDITIONS)
def test_run_until_stops_exactly_there_and_then_at_the_next(condition: str) -> None:
    time = replay(200, **{condition: [17, 17, 90]})
    time.set_speed(16)
    time.run_until(condition)
    now = 0.0
    stops = []
    for _ in range(2):
        while time.playing:
            time.tick(now)
            now += 0.1
        stops.append(time.step)
        assert time.stopped_by == condition
        time.play()
    assert stops == [17, 90]


def test_run_until_stops_a_live_view_at_the_step_not_at_the_edge() -> None:
    time, steps = live(10, preemption=[14])
    time.run_until("preemption")
    steps.last_step = 20
    time.tick(0.0)
    assert (time.step, time.playing, time.attached) == (14, False, True)


def test_unknown_conditions_and_speeds_are_refused() -> None:
    time = replay()
    with pytest.raises(ValueError, match="preemption"):
        time.run_until("sunset")
    for speed in (0, -1, 5000, float("nan")):
        with pytest.raises(ValueError, match="speed"):
            time.set_speed(speed)


def test_the_end_of_a_live_run_makes_it_a_replay() -> None:
    time, steps = live(10)
    steps.last_step, steps.ended = 12, True
    time.end_of_run()
    assert (time.step, time.following) == (12, False)
    time.follow()
    assert not time.attached
    time.play()
    assert time.step == 0


def test_dropped_steps_push_the_view_forward() -> None:
    time, steps = live(100)
    time.seek(3)
    steps.first_step = 50
    time.tick(0.0)
    assert time.step == 50


class Machine(RuleBasedStateMachine):
    """Every sequence of commands, ticks and new data, against the rules of the design."""

    @initialize(count=st.integers(0, 60), is_live=st.booleans(), data=st.data())
    def start(self, count: int, is_live: bool, data: st.DataObject) -> None:
        count = max(count, 0 if is_live else 1)
        marks = {c: sorted(data.draw(st.lists(st.integers(0, 120), max_size=4))) for c in CONDITIONS}
        self.steps = FakeSteps(count, ended=not is_live, marks=marks)
        self.time = TimeControl(self.steps, live=is_live)
        self.is_live = is_live
        self.now = 0.0

    @invariant()
    def inside_the_run(self) -> None:
        if hasattr(self, "time") and self.steps.last_step >= 0:
            assert -1 <= self.time.step <= self.steps.last_step
            assert self.is_live or self.time.step >= 0

    @rule(new=st.integers(0, 5))
    def data_comes(self, new: int) -> None:
        if self.is_live:
            before = self.time.step
            self.steps.last_step += new
            assert self.time.step == before

    @rule(seconds=st.floats(0, 2))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        before, playing, attached, owed = self.time.step, self.time.playing, self.time.attached, self.time._owed
        moved = self.time.tick(self.now)
        assert moved == (self.time.step != before)
        assert self.time.step >= before
        assert self.time.attached == attached
        if not playing:
            assert self.time.step <= before + owed
        if self.time.following and self.steps.last_step >= 0:
            assert self.time.step == self.steps.last_step
        if playing and self.time.until:  # no mark was run over
            missed = self.steps.next_mark(self.time.until, before, self.time.step - 1)
            assert missed is None

    @rule()
    def toggle(self) -> None:
        before, attached = self.time.step, self.time.attached
        restarts = self.steps.ended and self.time.at_edge and not self.time.playing
        self.time.toggle()
        assert self.time.attached == attached
        assert restarts or self.time.step == before

    @rule(count=st.integers(1, 12))
    def forward(self, count: int) -> None:
        before, attached = self.time.step, self.time.attached
        owed = self.time.step_forward(count)
        assert self.time.attached == attached
        assert not self.time.playing
        if self.is_live:
            assert self.time.step + owed == before + count
        else:
            assert owed == 0

    @rule(count=st.integers(1, 12))
    def back(self, count: int) -> None:
        before = self.time.step
        self.time.step_back(count)
        assert not self.time.attached
        assert self.time.step <= before

    @rule(step=st.integers(-5, 130))
    def seek(self, step: int) -> None:
        self.time.seek(step)
        assert not self.time.attached
        assert self.time.step == max(-1, min(max(step, 0), self.steps.last_step))

    @rule()
    def follow(self) -> None:
        self.time.follow()
        assert self.time.step == self.steps.last_step
        assert self.time.following == self.is_live

    @rule(speed=st.sampled_from(SPEEDS), pacing=st.sampled_from(["clock", "steps"]))
    def speed(self, speed: float, pacing: str) -> None:
        before = self.time.step
        self.time.set_speed(speed, pacing)  # type: ignore[arg-type]
        assert self.time.step == before

    @rule(condition=st.sampled_from(["", *CONDITIONS]))
    def until(self, condition: str) -> None:
        attached = self.time.attached
        self.time.run_until(condition)
        assert self.time.attached == attached


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("command", [
    lambda time: time.play(), lambda time: time.toggle(), lambda time: time.first(), lambda time: time.follow(),
    lambda time: time.step_forward(3), lambda time: time.step_back(3), lambda time: time.seek(7),
    lambda time: time.run_until("hit"), lambda time: time.end_of_run(),
])
@pytest.mark.parametrize("is_live", [False, True])
def test_a_run_without_steps_shows_none_whatever_is_asked(command, is_live: bool) -> None:
    time = TimeControl(FakeSteps(0, ended=not is_live), live=is_live)
    for now in range(4):
        command(time)
        time.tick(float(now))
        assert time.step == -1
