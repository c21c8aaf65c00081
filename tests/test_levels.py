"""What both loops share, in virtual time: who is sent away when, and what a level's row counts from."""

import asyncio

import pytest

from loadgen import levels
from loadgen.clock import Drift
from loadgen.course import Course, Until
from loadgen.levels import Moment, Users, Watch, now
from loadgen.record import LevelPlan
from tests.fakes_time import in_virtual_time


def test_a_moment_is_one_on_both_clocks() -> None:
    at = now()
    assert at.wall_ns % 1000 == 0
    later = at.later(5_000_000)
    assert (later.mono_ns - at.mono_ns, later.wall_ns - at.wall_ns) == (5_000_000, 5_000_000)
    assert at.mono_of(later.wall_ns) == later.mono_ns
    again = now()
    assert abs((again.wall_ns - at.wall_ns) - (again.mono_ns - at.mono_ns)) < 50_000_000


def test_the_idle_are_sent_away_when_the_level_is_over_and_the_busy_when_they_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone: list[tuple[str, float, bool]] = []

    async def main() -> int:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        users, course, looks = Users(), Course(Until()), 0

        async def user(name: str, seconds: float) -> None:
            finished = False
            try:
                await asyncio.sleep(seconds)
                finished = True
            finally:
                gone.append((name, round(loop.time() - begun_s, 3), finished))

        def look() -> None:
            nonlocal looks
            looks += 1

        users.add(user("idle", 100))
        users.add(user("busy", 100), busy=True)
        users.add(user("short", 2))
        loop.call_later(10.5, course.end, "errors")
        await users.see_out(course, asyncio.Event(), Drift(), look)
        return looks

    looks = in_virtual_time(monkeypatch, main())
    assert [(name, finished) for name, _, finished in gone] == [("short", True), ("idle", False), ("busy", True)]
    assert gone[1][1] <= 10.5 + levels.CLOCK_SAMPLE_S
    assert looks == pytest.approx(100 / levels.CLOCK_SAMPLE_S, abs=2)


def test_a_fault_of_one_is_raised_and_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        users = Users()

        async def fail() -> None:
            raise ZeroDivisionError

        users.add(asyncio.sleep(100), busy=True)
        users.add(fail())
        with pytest.raises(ZeroDivisionError):
            await users.see_out(Course(Until()), asyncio.Event(), Drift())
        assert asyncio.all_tasks() == {asyncio.current_task()}

    in_virtual_time(monkeypatch, main())


def test_the_row_counts_from_the_runs_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        watch = Watch(LevelPlan(3, 8), Moment(0, 10**18 + 2_000_000_000), 10**18)
        await asyncio.sleep(0)
        row = watch.row("requests", due=7, dropped=0)
        assert (row.level, row.start_us, row.ended_by) == (3, 2_000_000, "requests")
        assert row.end_us == 1_000_000_000  # the virtual clock begins at 1000 s
        assert (row.due, row.dropped, row.waited_max) == (7, 0, None)

    in_virtual_time(monkeypatch, main())
