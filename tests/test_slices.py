"""Jobs in slices: their order, the loop between them, and errors that are not swallowed."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from itertools import pairwise

import pytest

from loadgen import slices as module
from loadgen.slices import SLICE_NS, Slices


class Clock:
    """Each reading is `tick_ns` after the last."""

    def __init__(self, tick_ns: int) -> None:
        self.now_ns = 0
        self.tick_ns = tick_ns

    def __call__(self) -> int:
        self.now_ns += self.tick_ns
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(SLICE_NS // 10)
    monkeypatch.setattr(module, "mono_ns", clock)
    return clock


@pytest.fixture
async def work() -> AsyncIterator[Slices]:
    slices = Slices()
    yield slices
    await slices.aclose()


def jobs(log: list[str], name: str, count: int) -> list[Callable[[], None]]:
    return [functools.partial(log.append, f"{name}{number}") for number in range(count)]


def nothing() -> None:
    pass


async def test_jobs_are_done_in_order_and_drain_waits_for_all(work: Slices, clock: Clock) -> None:
    log: list[str] = []
    for name in "abc":
        for job in jobs(log, name, 12):
            work.submit(job)
    await work.drain()
    assert log == [f"{name}{number}" for name in "abc" for number in range(12)]


async def test_drain_with_nothing_to_do_returns(work: Slices) -> None:
    await work.drain()
    work.submit(nothing)
    await work.drain()
    await work.drain()


async def test_drain_waits_for_what_jobs_submit(work: Slices) -> None:
    log: list[str] = []

    def parent() -> None:
        for job in jobs(log, "child", 3):
            work.submit(job)

    work.submit(parent)
    await work.drain()
    assert log == ["child0", "child1", "child2"]


async def test_the_loop_turns_between_slices(work: Slices, clock: Clock) -> None:
    log: list[str] = []

    async def other() -> None:
        while True:
            log.append("turn")
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for job in jobs(log, "a", 100):
        work.submit(job)
    await work.drain()
    task.cancel()
    turns = [place for place, entry in enumerate(log) if entry == "turn"]
    longest = max(after - before - 1 for before, after in pairwise(turns))
    assert longest <= 10  # the clock ticks ten times a slice
    assert log.count("turn") >= 10


async def test_short_jobs_share_a_slice(work: Slices, clock: Clock) -> None:
    clock.tick_ns = 1
    log: list[str] = []
    for job in jobs(log, "a", 3):
        work.submit(job)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert log == ["a0", "a1", "a2"]


async def test_after_each_slice_the_callback_is_called(clock: Clock) -> None:
    log: list[str] = []
    slices = Slices(lambda: log.append("flush"))
    for job in jobs(log, "a", 26):
        slices.submit(job)
    await slices.drain()
    await slices.aclose()
    assert log[-1] == "flush"
    assert "a25" in log
    assert log.count("flush") >= 3


def lost() -> None:
    raise KeyError("lost")


async def test_drain_raises_what_a_job_raised_whenever_it_is_called(work: Slices) -> None:
    log: list[str] = []
    for job in (*jobs(log, "a", 1), lost, *jobs(log, "b", 1)):
        work.submit(job)
    for _ in range(2):
        with pytest.raises(KeyError, match="lost"):
            await work.drain()
    with pytest.raises(KeyError, match="lost"):
        work.submit(nothing)
    assert log == ["a0"]


async def test_drain_raises_what_the_callback_raised() -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    slices = Slices(full)
    slices.submit(nothing)
    with pytest.raises(OSError, match="No space"):
        await slices.drain()
    await slices.aclose()


async def test_closing_drops_what_has_not_begun(clock: Clock) -> None:
    log: list[str] = []
    slices = Slices()
    for job in jobs(log, "a", 1000):
        slices.submit(job)
    for _ in range(3):
        await asyncio.sleep(0)
    await slices.aclose()
    assert 0 < len(log) < 1000


async def test_a_job_is_not_begun_before_the_loop_turns(work: Slices) -> None:
    log: list[str] = []
    work.submit(jobs(log, "a", 1)[0])
    assert log == []


async def test_after_a_failure_nothing_is_taken_any_more() -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    slices = Slices(full)
    slices.submit(nothing)
    for _ in range(5):
        await asyncio.sleep(0)
    with pytest.raises(OSError, match="No space left"):
        slices.submit(nothing)
