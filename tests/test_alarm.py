"""The timer of the kernel: on time, never early, and the last setting holds."""

import asyncio

import pytest

from loadgen.alarm import Alarm
from loadgen.clock import mono_ns
from tests.fakes_api import both_loops

MS = 1_000_000


class Bell:
    def __init__(self) -> None:
        self.rung_ns: list[int] = []
        self.came = asyncio.Event()
        self.alarm = Alarm(asyncio.get_running_loop(), self.ring)

    def ring(self) -> None:
        self.rung_ns.append(mono_ns())
        self.came.set()

    async def wait(self) -> int:
        async with asyncio.timeout(5):
            await self.came.wait()
        self.came.clear()
        return self.rung_ns[-1]


@both_loops
async def test_it_rings_at_its_time_and_not_before() -> None:
    bell = Bell()
    for ahead_ns in (0, 100_000, 3 * MS):
        due_ns = mono_ns() + ahead_ns
        bell.alarm.set(due_ns)
        assert await bell.wait() >= due_ns
    bell.alarm.close()


@both_loops
async def test_a_time_gone_by_rings_at_once() -> None:
    bell = Bell()
    bell.alarm.set(mono_ns() - 10**9)
    assert await bell.wait() > 0
    bell.alarm.close()


@both_loops
async def test_the_last_time_set_holds() -> None:
    bell = Bell()
    bell.alarm.set(mono_ns() + 10**12)
    due_ns = mono_ns() + MS
    bell.alarm.set(due_ns)
    assert await bell.wait() >= due_ns
    assert len(bell.rung_ns) == 1
    bell.alarm.close()


async def test_what_is_closed_does_not_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    bell = Bell()
    bell.alarm.set(mono_ns())
    bell.alarm.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bell.rung_ns == []
