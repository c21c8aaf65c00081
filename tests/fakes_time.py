"""Time that passes only where everything waits for it: a level of half a minute is run in milliseconds."""

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from loadgen import clock, closed, levels
from loadgen import open as open_module

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time jumps to its next timer as soon as nothing is ready to run."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0].cancelled():
            heapq.heappop(timers)._scheduled = False  # type: ignore[attr-defined]
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
        if not self._ready and timers:  # type: ignore[attr-defined]
            self.now_s = max(self.now_s, timers[0].when())
        super()._run_once()  # type: ignore[misc]


class VirtualAlarm:
    """Rings in the loop's own time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def set(self, due_ns: int) -> None:
        self.close()
        self._timer = self._loop.call_at(due_ns / 1e9, self._ring)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def in_virtual_time(monkeypatch: pytest.MonkeyPatch, main: Coroutine[Any, Any, T]) -> T:
    """The result of `main`; the clocks of the levels follow the loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        monkeypatch.setattr(open_module, "Alarm", VirtualAlarm)
        for module in (clock, levels, closed, open_module):
            monkeypatch.setattr(module, "mono_ns", lambda: round(loop.time() * 1e9))
            if hasattr(module, "wall_ns"):
                monkeypatch.setattr(module, "wall_ns", lambda: 10**18 + round(loop.time() * 1e9))
        return runner.run(main)
