"""What the closed and the open loop share: who takes part in a level, how it ends, and the row that is left of it.

Each who takes part is a task: a slot of the closed loop, a visitor of the open loop, who comes with a request and
stays for the turns of its conversation.

drain     what has started is allowed to end, since it belongs to the sample; only for DRAIN_S after an interrupt, and
          where the server does not keep up with the rate
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from loadgen.clock import Drift, mono_ns, process_ns, wall_ns
from loadgen.course import Course
from loadgen.exchange import Sent
from loadgen.record import EndedBy, LevelPlan, LevelRow, Phase
from workloads.request import Request

DRAIN_S = 5.0
CLOCK_SAMPLE_S = 1.0

# A request made ready to be sent; what it gives returns when the stream has ended. The time is that at which it is due,
# in ns of the wall clock; None: when it is sent.
Prepare = Callable[[Request, Phase, int | None], Callable[[], Awaitable[Sent]]]


class Moment(msgspec.Struct, frozen=True):
    """The same moment on both clocks."""

    mono_ns: int
    wall_ns: int  # in whole microseconds, as rows have them

    def mono_of(self, wall_ns: int) -> int:
        """A time of the wall clock on the monotonic clock, if neither was set since."""
        return self.mono_ns + wall_ns - self.wall_ns

    def later(self, ns: int) -> "Moment":
        return Moment(self.mono_ns + ns, self.wall_ns + ns)


def now() -> Moment:
    wall = wall_ns()
    return Moment(mono_ns() - wall % 1000, wall - wall % 1000)


class Users:
    """Those who take part in a level."""

    def __init__(self) -> None:
        self.busy: set[asyncio.Task[None]] = set()  # those who wait for an answer, and are not to be sent away
        self._all: set[asyncio.Task[None]] = set()
        self._fault: BaseException | None = None
        self._over = asyncio.Event()

    def add(self, coroutine: Coroutine[Any, Any, None], *, busy: bool = False) -> None:
        task = asyncio.create_task(coroutine)
        self._all.add(task)
        if busy:
            self.busy.add(task)
        task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._all.discard(task)
        self.busy.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = self._fault or fault
        if not self._all or self._fault:
            self._over.set()

    def send_idle_away(self) -> None:
        for task in self._all - self.busy:
            task.cancel()

    async def see_out(
        self, course: Course, stop: asyncio.Event, drift: Drift, at_look: Callable[[], None] = lambda: None
    ) -> None:
        """Wait for all to go, sampling the clocks and calling `at_look` each CLOCK_SAMPLE_S. Once the level is over,
        only for the busy; after `stop`, or of an over-saturated level, no longer than DRAIN_S.

        Raises what one of them raised: a full disk, or a fault of ours. None is left, however it returns.
        """
        cut_ns: int | None = None
        try:
            while self._all and self._fault is None:
                await self._look_up()
                drift.sample()
                course.look(mono_ns())
                at_look()
                if stop.is_set() or course.ended_by is not None:
                    self.send_idle_away()
                if stop.is_set() or course.ended_by == "over-saturated":
                    cut_ns = cut_ns or mono_ns()
                    if mono_ns() - cut_ns > DRAIN_S * 1e9:
                        return
        finally:
            await self._send_away()
        if self._fault is not None:
            raise self._fault

    async def _look_up(self) -> None:
        try:
            async with asyncio.timeout(CLOCK_SAMPLE_S):
                await self._over.wait()
        except TimeoutError:
            pass

    async def _send_away(self) -> None:
        for task in self._all:
            task.cancel()
        if self._all:
            await asyncio.wait(list(self._all))


class Watch:
    """The clocks of one level, from when it is made."""

    def __init__(self, plan: LevelPlan, begin: Moment, start_ns: int) -> None:
        self.drift = Drift()
        self._plan = plan
        self._begin = begin
        self._start_ns = start_ns
        self._cpu_ns = process_ns()

    def row(self, ended_by: EndedBy, **of_open_loop: int | None) -> LevelRow:
        """Of the level that ends now."""
        self.drift.sample()
        return LevelRow(
            level=self._plan.level,
            start_us=(self._begin.wall_ns - self._start_ns) // 1000,
            end_us=(wall_ns() - self._start_ns) // 1000,
            ended_by=ended_by,
            cpu_us=(process_ns() - self._cpu_ns) // 1000,
            clock_step_us=self.drift.largest_step_ns // 1000,
            **of_open_loop,
        )
