"""The viewing step under every sequence of commands, and the rules that it must keep."""

from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from app.time_control import SPEEDS, TimeControl
from engine.trace.conditions import CONDITIONS

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

    def next_match(self, condition: str, after: int, upto: int) -> int | None:
        steps = self.marks.get(condition, [])
        index = bisect_right(steps, after)
        return steps[index] if index < len(steps) and steps[index] <= upto else None

    def event_after(self, step: int) -> int | None:
        return min((s for steps in self.marks.values() for s in steps if step < s <= self.last_step), default=None)

    def event_before(self, step: int) -> int | None:
        return max((s for steps in self.marks.values() for s in steps if s < step), default=None)


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


@settings(max_examples=60, deadline=None)
@given(start=st.integers(0, 99), rate=st.floats(0.5, 1000), seconds=st.lists(st.floats(0, 3), min_size=1, max_size=400),
       is_live=st.booleans())
def test_every_step_is_shown_once_at_any_rate_however_late_the_frames(start: int, rate: float, seconds: list[float],
                                                                     is_live: bool) -> None:
    if is_live:
        time, steps = live(100)
        steps.ended = True
        time.seek(start)
    else:
        time = replay(100)
        time.seek(start)
    time.set_speed(rate, "steps")
    time.play()
    shown, now = [time.step], 0.0
    for elapsed in seconds:
        now += elapsed
        if time.tick(now):
            shown.append(time.step)
    begun = 0 if start == 99 else start  # at the end of a run, playing begins again
    assert shown == list(range(begun, begun + len(shown)))


def test_every_step_of_a_live_run_is_shown_once_even_when_many_come_at_a_time() -> None:
    time, steps = live(10)
    time.set_speed(30, "steps")
    shown, now = [], 0.0
    for new in (0, 3, 0, 1, 5, 0, 0, 0, 0, 0, 2, 0, 0):
        steps.last_step += new
        now += 1 / 60
        if time.tick(now):
            shown.append(time.step)
    assert shown == list(range(10, 21))
    assert time.following


def in_loop(count: int, first: int, last: int) -> TimeControl:
    time = replay(count)
    time.seek(last)
    time.mark_loop_end()
    time.seek(first)
    time.mark_loop_start()
    return time


@settings(max_examples=40, deadline=None)
@given(ends=st.lists(st.integers(0, 49), min_size=2, max_size=2, unique=True).map(sorted), data=st.data())
def test_a_loop_shows_each_of_its_steps_once_a_lap(ends: list[int], data: st.DataObject) -> None:
    first, last = ends
    time = in_loop(50, first, last)
    start = data.draw(st.integers(first, last))
    time.seek(start)
    time.set_speed(10, "steps")
    time.play()
    shown, now = [start], 0.0
    for elapsed in data.draw(st.lists(st.floats(0, 0.5), max_size=300)):
        now += elapsed
        if time.tick(now):
            shown.append(time.step)
        assert time.playing
    length = last - first + 1
    assert shown == [first + (start - first + i) % length for i in range(len(shown))]


@pytest.mark.parametrize("speed", SPEEDS)
def test_a_loop_keeps_the_run_clocks_pace(speed: float) -> None:
    time = in_loop(100, 20, 69)  # two seconds
    time.set_speed(speed)
    time.play()
    laps = 0
    before, frames = time.step, round(3 * 2 / speed * 240)
    for frame in range(frames + 8):
        time.tick(frame / 240)
        laps += time.step < before
        before = time.step
        assert 20 <= time.step <= 69
    assert laps == pytest.approx(3, abs=1 if speed > 1 else 0)


def test_the_ends_of_a_loop_are_set_and_cleared_where_one_is() -> None:
    time = replay(100)
    time.seek(10)
    time.mark_loop_start()
    time.mark_loop_start()
    assert (time.loop_start, time.loop) == (None, None)
    time.mark_loop_start()
    time.seek(20)
    time.mark_loop_end()
    assert time.loop == (10, 20)
    time.seek(30)
    time.mark_loop_start()  # behind the end: that goes
    assert (time.loop_start, time.loop_end) == (30, None)
    time.seek(30)
    time.mark_loop_end()  # a range of one step is none
    assert (time.loop_start, time.loop_end) == (None, 30)
    time.clear_loop()
    assert (time.loop_start, time.loop_end) == (None, None)


def test_playing_into_a_loop_stays_in_it_and_beyond_it_goes_on() -> None:
    time = in_loop(100, 20, 30)
    time.set_speed(1000, "steps")
    time.seek(15)
    time.play()
    shown = []
    for tick in range(40):
        time.tick(tick / 10)
        shown.append(time.step)
    assert max(shown) == 30
    assert shown.count(20) >= 2
    time.seek(31)
    for tick in range(100):
        time.tick(4 + tick / 10)
    assert (time.step, time.playing) == (99, False)


def test_a_loop_that_is_closed_while_following_is_looked_at_while_the_run_goes_on() -> None:
    time, steps = live(100)
    time.mark_loop_start()
    steps.last_step = 120
    time.tick(0.1)
    time.mark_loop_end()
    assert (time.loop, time.attached, time.playing) == ((99, 120), False, True)
    now, shown = 0.1, set()
    for _ in range(300):
        now += 1 / 60
        steps.last_step += 1
        time.tick(now)
        shown.add(time.step)
    assert shown == set(range(99, 121))
    time.follow()
    time.tick(now + 0.1)
    assert (time.step, time.following) == (steps.last_step, True)


def test_run_until_stops_in_a_loop_too_also_at_its_first_step() -> None:
    time = in_loop(100, 20, 30)
    time._steps.marks["hit"] = [20, 25]  # type: ignore[attr-defined]
    time.set_speed(1000, "steps")
    stops, now = [], 0.0
    time.run_until("hit")
    for _ in range(4):
        while time.playing:
            now += 0.1
            time.tick(now)
        stops.append(time.step)
        time.play()
    assert stops == [25, 20, 25, 20]


def test_events_are_visited_in_both_directions_and_pause() -> None:
    time = replay(100, hit=[10, 40], preemption=[40, 70])
    time.play()
    visited = []
    while time.next_event():
        assert not time.playing
        visited.append(time.step)
    assert visited == [10, 40, 70]
    time.play()
    assert not time.next_event()
    assert (time.step, time.playing) == (70, True)  # nothing to jump to changes nothing
    assert time.previous_event()
    assert time.step == 40
    watching, _ = live(100, hit=[10])
    assert watching.previous_event()
    assert (watching.step, watching.attached) == (10, False)


def test_detaching_stays_and_leaves_a_replay_alone() -> None:
    time, steps = live(100)
    time.detach()
    steps.last_step = 150
    time.tick(1.0)
    assert (time.step, time.attached, time.playing) == (99, False, False)
    other = replay(100)
    other.play()
    other.detach()
    assert other.playing


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
    time.mark_loop_start()
    time.seek(60)
    time.mark_loop_end()
    time.seek(3)
    steps.first_step = 50
    time.tick(0.0)
    assert time.step == 50
    assert time.loop == (50, 60)
    steps.first_step = 60
    time.tick(1.0)
    assert (time.loop_start, time.loop_end) == (None, None)


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
        looping, loop = self.time.looping, self.time.loop
        moved = self.time.tick(self.now)
        assert moved == (self.time.step != before)
        assert self.time.attached == attached
        if looping and loop is not None:
            assert loop[0] <= self.time.step <= loop[1]
        if self.time.step < before:
            assert looping
            assert self.time.step == loop[0]  # type: ignore[index]
            return
        if not playing:
            assert self.time.step <= before + owed
        if playing and self.time.pacing == "steps":
            assert self.time.step <= max(before, -1) + 1
        elif self.time.following and self.steps.last_step >= 0:
            assert self.time.step == self.steps.last_step
        if playing and self.time.until:  # no mark was run over
            missed = self.steps.next_match(self.time.until, before, self.time.step - 1)
            assert missed is None

    @rule()
    def toggle(self) -> None:
        before, attached = self.time.step, self.time.attached
        restarts = self.steps.ended and self.time.at_edge and not self.time.playing and not self.time.looping
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

    @rule(end=st.sampled_from(["start", "end", "neither"]))
    def loop(self, end: str) -> None:
        before, playing = self.time.step, self.time.playing
        {"start": self.time.mark_loop_start, "end": self.time.mark_loop_end, "neither": self.time.clear_loop}[end]()
        assert (self.time.step, self.time.playing) == (before, playing)
        if self.time.loop is not None:
            assert self.time.loop[0] < self.time.loop[1]
            assert not self.time.attached

    @rule(forwards=st.booleans())
    def event(self, forwards: bool) -> None:
        before, playing = self.time.step, self.time.playing
        marked = {s for steps in self.steps.marks.values() for s in steps}
        if self.time.next_event() if forwards else self.time.previous_event():
            assert self.time.step in marked
            assert not self.time.playing
            between = range(before + 1, self.time.step) if forwards else range(self.time.step + 1, before)
            assert not marked & set(between)
        else:
            assert (self.time.step, self.time.playing) == (before, playing)

    @rule()
    def pan(self) -> None:
        before = self.time.step
        self.time.detach()
        assert self.time.step == before
        assert not self.time.attached

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
