"""A sender that takes as long as it is told, for levels in virtual time."""

import asyncio
import functools
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loadgen.exchange import Sent
from loadgen.record import LevelRow, Phase
from workloads.request import Request

if TYPE_CHECKING:
    from loadgen.course import Course


async def played(
    sender: "Sender",
    course: "Course",
    run: Callable[[asyncio.Event], Coroutine[Any, Any, LevelRow]],
    stop_after_s: float | None,
    cancel_after_s: float | None,
) -> LevelRow:
    """The row of the level that `run` makes of an event that interrupts it. Nothing of it is left behind."""
    loop = asyncio.get_running_loop()
    sender.begun_s = loop.time()
    sender.course = course
    stop = asyncio.Event()
    if stop_after_s is not None:
        loop.call_later(stop_after_s, stop.set)
    level = asyncio.ensure_future(run(stop))
    if cancel_after_s is not None:
        loop.call_later(cancel_after_s, level.cancel)
    try:
        return await level
    finally:
        assert sender.in_flight == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}


def requests(count: int | None = None) -> Iterator[Request]:
    for index in itertools.count() if count is None else range(count):
        yield Request(index=index, level=0, prompt="x", want_input_tokens=1, want_output_tokens=1)


def conversations(turns: int, think_s: float, count: int | None = None) -> Iterator[Request]:
    """Of so many turns each; an index is 10 times the number of its conversation, and the turn."""
    for number in itertools.count() if count is None else range(count):
        then: Request | None = None
        for turn in reversed(range(turns)):
            then = Request(
                index=10 * number + turn, level=0, prompt="x", want_input_tokens=1, want_output_tokens=1, turn=turn,
                think_us=round(think_s * 1e6) if turn else 0, then=then,
            )  # fmt: skip
        assert then is not None
        yield then


@dataclass(frozen=True)
class Asked:
    at_s: float  # since the level's start
    index: int
    phase: Phase
    due_s: float | None


class Sender:
    """Takes `took_s` for a request, and `ok(index)` says whether it goes well."""

    def __init__(self, took_s: float = 1.0, ok: Callable[[int], bool] = lambda _: True) -> None:
        self.took_s = took_s
        self.ok = ok
        self.course: Course | None = None
        self.asked: list[Asked] = []
        self.prepared: list[tuple[float, int]] = []  # when it was made ready, index
        self.in_flight = 0
        self.most_in_flight = 0
        self.cancelled = 0
        self.begun_s = 0.0

    def __call__(self, request: Request, phase: Phase, due_ns: int | None) -> Callable[[], Awaitable[Sent]]:
        self.prepared.append((self._now_s(), request.index))
        return functools.partial(self.send, request, phase, due_ns)

    def _now_s(self) -> float:
        return round(asyncio.get_running_loop().time() - self.begun_s, 6)

    async def send(self, request: Request, phase: Phase, due_ns: int | None) -> Sent:
        due_s = None if due_ns is None else round((due_ns - 10**18) / 1e9 - self.begun_s, 6)
        self.asked.append(Asked(self._now_s(), request.index, phase, due_s))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.took_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1
        assert self.course is not None
        ok = self.ok(request.index)
        self.course.finished(ok)
        if not ok or request.then is None:
            return Sent(ok)
        end_ns = 10**18 + round(asyncio.get_running_loop().time() * 1e9)
        return Sent(ok, request.then, end_ns + request.then.think_us * 1000)

    @property
    def sent(self) -> list[tuple[float, int, Phase]]:
        return [(one.at_s, one.index, one.phase) for one in self.asked]

    def of(self, phase: Phase) -> list[tuple[float, int]]:
        return [(one.at_s, one.index) for one in self.asked if one.phase == phase]
