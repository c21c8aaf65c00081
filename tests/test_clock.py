"""The clock: waking, and steps of the wall clock."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen import clock
from loadgen.clock import Drift, mono_ns, ns_of, process_ns, sleep_until, utc, wall_ns

SECOND = 1_000_000_000


class Clocks:
    """A monotonic clock that moves `read_ns` at each reading, and a wall clock at some offset to it."""

    def __init__(self, read_ns: int = 0) -> None:
        self.now_ns = 5 * SECOND
        self.offset_ns = 1_700_000_000 * SECOND
        self.read_ns = read_ns

    def mono(self) -> int:
        self.now_ns += self.read_ns
        return self.now_ns

    def wall(self) -> int:
        self.now_ns += self.read_ns
        return self.now_ns + self.offset_ns


def drift_of(clocks: Clocks) -> Drift:
    return Drift(clocks.wall, clocks.mono)


def test_no_step_while_both_clocks_run_alike() -> None:
    clocks = Clocks(read_ns=100)
    drift = drift_of(clocks)
    for _ in range(10):
        clocks.now_ns += SECOND
        drift.sample()
    assert drift.largest_step_ns == 0


@pytest.mark.parametrize("step_ns", [-5 * SECOND, 3_000_000])
def test_a_step_of_the_wall_clock_is_seen_and_kept(step_ns: int) -> None:
    clocks = Clocks()
    drift = drift_of(clocks)
    clocks.now_ns += SECOND
    clocks.offset_ns += step_ns
    drift.sample()
    clocks.now_ns += SECOND
    drift.sample()
    assert drift.largest_step_ns == step_ns


@given(st.lists(st.integers(-SECOND, SECOND), min_size=1))
def test_the_largest_step_either_way_is_kept(steps: list[int]) -> None:
    clocks = Clocks()
    drift = drift_of(clocks)
    for step_ns in steps:
        clocks.now_ns += SECOND
        clocks.offset_ns += step_ns
        drift.sample()
    assert abs(drift.largest_step_ns) == max(map(abs, steps))
    assert drift.largest_step_ns in (*steps, 0)


def test_slewing_is_no_step() -> None:
    clocks = Clocks()
    drift = drift_of(clocks)
    for _ in range(1000):
        clocks.offset_ns += 10_000
        drift.sample()
    assert drift.largest_step_ns == 10_000


def test_a_pause_between_two_readings_is_no_step() -> None:
    clocks = Clocks(read_ns=50)
    drift = drift_of(clocks)
    pauses = iter([20_000_000, 0, 0])
    undisturbed = clocks.wall

    def preempted() -> int:
        now_ns = undisturbed()
        clocks.now_ns += next(pauses)  # after the wall clock is read, before the monotonic clock
        return now_ns

    drift._wall = preempted
    drift.sample()
    assert drift.largest_step_ns == 0


async def test_sleep_until_sleeps_again_when_it_was_woken_early(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns, slept = 0, []

    async def wakes_early(seconds: float) -> None:
        nonlocal now_ns
        slept.append(seconds)
        now_ns += max(1, int(seconds * 1e9 * 0.9))

    monkeypatch.setattr(clock, "mono_ns", lambda: now_ns)
    monkeypatch.setattr(asyncio, "sleep", wakes_early)
    await sleep_until(10_000_000)
    assert now_ns >= 10_000_000
    assert slept[0] == pytest.approx(0.01)
    assert len(slept) > 3


async def test_sleep_until_a_time_gone_by_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(seconds: float) -> None:
        raise AssertionError(seconds)

    monkeypatch.setattr(asyncio, "sleep", refuse)
    await sleep_until(mono_ns() - 1)


async def test_sleep_until_on_the_real_clock_is_never_early() -> None:
    for microseconds in (50, 300, 1500):
        due_ns = mono_ns() + microseconds * 1000
        await sleep_until(due_ns)
        assert mono_ns() >= due_ns


def test_the_clocks_are_what_they_are_named() -> None:
    assert abs(wall_ns() - time.time() * 1e9) < SECOND
    assert process_ns() > 0


@given(st.integers(0, 4 * 10**18))
def test_a_date_keeps_the_microsecond(at_ns: int) -> None:
    date = utc(at_ns)
    assert date.tzinfo is UTC
    assert (date - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) == at_ns // 1000


@given(st.integers(0, 4_000_000_000_000_000))
def test_a_date_is_the_time_it_was_made_of(us: int) -> None:
    assert ns_of(utc(us * 1000)) == us * 1000
