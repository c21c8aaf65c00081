"""One level of open loop: requests start when the schedule says, whatever has become of those before.

schedule  drawn whole before the level's clock starts; each worker has its stride of the one schedule
due       a time on that clock, never a gap after the last: a late request is sent at once, and its wait counts
ahead     prompts and bodies are made before they are due, in slices between the socket reads
warm-up   what is due within about one request of the start
cap       who finds no place waits in line and keeps its due time; after the end the line is served on, but no longer
          than the level took if its end was not a number of requests
growth    where what is in flight, or waits for the cap, grows without end, the level ends early
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from loadgen.alarm import Alarm
from loadgen.cap import Line
from loadgen.clock import mono_ns, sleep_until
from loadgen.course import WHOLE, Course, Share
from loadgen.exchange import Sent
from loadgen.growth import Growth
from loadgen.levels import Moment, Prepare, Users, Watch, now
from loadgen.pacing import Timetable
from loadgen.record import LevelPlan, LevelRow, Phase
from workloads.request import Request

AHEAD = 128  # requests made ready before they are due
_SLICE_NS = 500_000
_LEAD_NS = 20_000_000  # before the clock starts: time to make the first ones ready


class NoRoom(ValueError):  # noqa: N818 - it names what is missing
    """More requests are due in flight than this process can have."""


async def open_loop(
    plan: LevelPlan,
    timetable: Timetable,
    requests: Iterator[Request],
    prepare: Prepare,
    course: Course,
    *,
    stop: asyncio.Event,
    start_ns: int,
    room: int,
    line: Line | None = None,
    dispersion: float | None = None,
    share: Share = WHOLE,
    begin: Moment | None = None,
) -> LevelRow:
    """Run one level, or this process' share of it, to its end.

    `requests` are those of the share; `stop` interrupts; times in the row count from `start_ns` of the wall clock; due
    times count from `begin`; `line` is the cap; `dispersion` is that of a steady schedule, see Growth. Raises NoRoom
    where more than `room` would be in flight without a cap.
    """
    begin = begin or now().later(_LEAD_NS)
    level = _Open(
        timetable, requests, prepare, course, stop, begin=begin, share=share, room=room, line=line,
        growth=Growth(dispersion),
    )  # fmt: skip
    watch = Watch(plan, begin, start_ns)
    level.users.add(level.pace())
    try:
        await level.users.see_out(course, stop, watch.drift, level.look)
    finally:
        if line is not None:
            line.close()
    return watch.row(
        "interrupt" if stop.is_set() else course.ended_by or level.ended_by,
        due=level.due,
        dropped=level.due - level.sent,
        waited_max=None if line is None else line.most_waiting,
    )


class _Ready(msgspec.Struct, frozen=True):
    due_ns: int  # monotonic clock
    phase: Phase
    send: Callable[[], Awaitable[Sent]]


class _Open:
    def __init__(
        self,
        timetable: Timetable,
        requests: Iterator[Request],
        prepare: Prepare,
        course: Course,
        stop: asyncio.Event,
        *,
        begin: Moment,
        share: Share,
        room: int,
        line: Line | None,
        growth: Growth,
    ) -> None:
        self._timetable = timetable
        self._due_us = timetable.due_us[share.worker :: share.workers]
        self._upcoming = zip(self._due_us, requests, strict=False)  # either can be used up first
        self._prepare = prepare
        self._course = course
        self._stop = stop
        self._begin = begin
        self._room = room
        self._line = line
        self._growth = growth
        self._ready: deque[_Ready] = deque()
        self._made = 0
        self._rung = asyncio.Event()
        self._full = False
        self._over_ns = 0
        self.ended_by = timetable.ended_by
        self.users = Users()
        self.due = self.sent = 0  # of the timetable's requests, not of the later turns of conversations

    async def pace(self) -> None:
        """Start each request when it is due. Raises NoRoom."""
        alarm = Alarm(asyncio.get_running_loop(), self._ring)
        try:
            while self._start_due():
                if len(self._ready) <= AHEAD // 2 and self._make_ready():
                    await asyncio.sleep(0)
                elif self._ready:
                    self._rung.clear()
                    alarm.set(self._ready[0].due_ns)
                    await self._rung.wait()
                else:
                    await self._end()
                    return
        finally:
            self._over_ns = mono_ns()
            alarm.close()
        if self._full:
            raise NoRoom(
                f"{self._room} requests are in flight and more are due, as many as this process has files for: "
                "the server does not keep up; with --max-concurrency they wait for their turn"
            )

    def _ring(self) -> None:
        self._start_due()  # here and not when `pace` wakes: that is a turn of the loop, and a slice of parsing, later
        self._rung.set()

    def _start_due(self) -> bool:
        """False where the level is over."""
        while self._ready and self._ready[0].due_ns <= mono_ns():
            self._full = self._line is None and len(self.users.busy) >= self._room
            if self._full or self._stop.is_set() or not self._course.start(self._ready[0].phase, mono_ns()):
                return False
            self.due += 1
            self.users.add(self._visit(self._ready.popleft()), busy=True)
        return True

    def _make_ready(self) -> bool:
        """Make some more requests until one that was ready is due; False where there are no more.

        Where none was ready, all that can be made in a slice: one in each turn of the loop would never catch up.
        """
        until_ns, behind = mono_ns() + _SLICE_NS, not self._ready
        while len(self._ready) < AHEAD:
            if (following := next(self._upcoming, None)) is None:
                return False
            due_us, request = following
            due = self._begin.later(due_us * 1000)
            phase = self._timetable.phase(due_us)
            self._ready.append(_Ready(due.mono_ns, phase, self._prepare(request, phase, due.wall_ns)))
            self._made += 1
            if mono_ns() >= (until_ns if behind else min(until_ns, self._ready[0].due_ns)):
                break
        return True

    async def _end(self) -> None:
        if self._made < len(self._due_us):
            self.ended_by = "schedule"  # the data set is used up
        elif self.ended_by == "duration" and self._timetable.end_us is not None:
            await sleep_until(self._begin.later(self._timetable.end_us * 1000).mono_ns)
            self._course.end("duration")

    async def _visit(self, ready: _Ready) -> None:
        """One user: a request and, each after the answer before, the further turns of its conversation."""
        me = asyncio.current_task()
        assert me is not None
        sent = await self._in_turn(ready, first=True)
        while sent is not None and sent.then is not None and sent.then_due_ns is not None:
            self.users.busy.discard(me)
            due_ns = self._begin.mono_of(sent.then_due_ns)
            due_us = (due_ns - self._begin.mono_ns) // 1000
            if self._timetable.end_us is not None and due_us >= self._timetable.end_us:
                return
            phase = self._timetable.phase(due_us)
            ready = _Ready(due_ns, phase, self._prepare(sent.then, phase, sent.then_due_ns))
            await sleep_until(due_ns)
            if self._stop.is_set() or not self._course.start(phase, due_ns):
                return
            self.users.busy.add(me)
            sent = await self._in_turn(ready)

    async def _in_turn(self, ready: _Ready, *, first: bool = False) -> Sent | None:
        """Send it as soon as there is a place; None where there was none until the end."""
        came = self._growth.came()
        try:
            if self._line is not None and not await self._line.enter(ready.due_ns):
                return None
            try:
                self.sent += first
                return await ready.send()
            finally:
                if self._line is not None:
                    self._line.leave()
        finally:
            self._growth.gone(came)

    def look(self) -> None:
        """Once a second: end the level if it is over-saturated; once it is over, see if the line is still served."""
        if not self._over_ns and self._growth.look():
            self._course.end("over-saturated")
        if self._line is None:
            return
        took_ns = self._over_ns - self._begin.mono_ns
        too_long = self._course.ended_by in ("duration", "enough") and mono_ns() - self._over_ns > took_ns
        if self._stop.is_set() or self._course.ended_by in ("errors", "over-saturated") or too_long:
            self._line.close()
