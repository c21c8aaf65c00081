"""One level of closed loop: so many slots, each sending its next request when its last stream has ended.

warm-up   every slot's first request, and whatever starts before all slots have started
measure   from then on; `requests` and `duration_s` count here, so warm-up is extra
drain     what has started is allowed to end, since it belongs to the sample; after an interrupt only for DRAIN_S
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from loadgen.clock import Drift, mono_ns, process_ns, sleep_until, wall_ns
from loadgen.pacing import stagger_s
from loadgen.record import EndedBy, LevelPlan, LevelRow, Phase
from workloads.request import Request

DRAIN_S = 5.0
CLOCK_SAMPLE_S = 1.0
FAILURE_PAUSE_S = 0.1  # a slot whose request failed waits, longer each time: a server that refuses is not hammered
FAILURE_PAUSE_MAX_S = 2.0
HOPELESS_FAILURES = 20  # so many requests, and twice as many as slots, have failed and none succeeded: give up

Send = Callable[[Request, Phase], Awaitable[bool]]  # returns when the stream has ended; False: it did not go well


class Until(msgspec.Struct, frozen=True):
    """When a level stops starting requests.

    At `requests` measured ones or after `duration_s` of measuring, whichever comes first; but not before every slot
    could have had `per_slot` of them.
    """

    requests: int | None = None
    duration_s: float | None = None
    per_slot: int = 0
    errors: int | None = None  # so many failed requests end it, whatever else


class Share(msgspec.Struct, frozen=True):
    """Which of the slots, and of the requests of the plan, are this process': each `workers`-th from `worker` on."""

    worker: int = 0
    workers: int = 1

    def count(self, total: int) -> int:
        """How many of `total` things in a row are its own."""
        return len(range(self.worker, total, self.workers))


WHOLE = Share()
DEFAULT_UNTIL = Until(duration_s=30.0, per_slot=10)


class Course:
    """How far a level has come; decides the phase of each request and when to stop."""

    def __init__(self, slots: int, until: Until) -> None:
        self._slots = slots
        self._until = until
        self._slots_started = 0
        self._measured = 0
        self._measuring_since_ns: int | None = None
        self.measure_from_ns = 0  # not before: slots of other processes may still have to start
        self._failed = 0
        self._any_ok = False
        self.ended_by: EndedBy | None = None

    def begin_slot(self) -> Phase | None:
        self._slots_started += 1
        return "warmup" if self.ended_by is None else None

    def next_phase(self, now_ns: int) -> Phase | None:
        """The phase of a slot's further request that starts now; None when no more are to start."""
        if self.ended_by is not None:
            return None
        if self._slots_started < self._slots or now_ns < self.measure_from_ns:
            return "warmup"
        if self._measuring_since_ns is None:
            self._measuring_since_ns = now_ns
        self.ended_by = self._end(now_ns - self._measuring_since_ns)
        if self.ended_by is not None:
            return None
        self._measured += 1
        return "measure"

    def _end(self, measured_ns: int) -> EndedBy | None:
        until = self._until
        if self._measured < until.per_slot * self._slots:
            return None
        if until.requests is not None and self._measured >= until.requests:
            return "requests"
        if until.duration_s is not None and measured_ns >= until.duration_s * 1e9:
            return "duration"
        return None

    def finished(self, ok: bool) -> None:
        """A request of the level has become a row."""
        self._any_ok = self._any_ok or ok
        self._failed += not ok
        hopeless = not self._any_ok and self._failed >= max(HOPELESS_FAILURES, 2 * self._slots)
        too_many = self._until.errors is not None and self._failed >= self._until.errors
        if (hopeless or too_many) and self.ended_by is None:
            self.ended_by = "errors"


async def closed_loop(
    plan: LevelPlan,
    requests: Iterator[Request],
    send: Send,
    course: Course,
    *,
    request_s: float,
    stop: asyncio.Event,
    start_ns: int,
    wait_turn: Callable[[], Awaitable[None]] | None = None,
    share: Share = WHOLE,
    begin_ns: int | None = None,
) -> LevelRow:
    """Run one level, or this process' share of it, to its end.

    `request_s` is about how long one request takes; `stop` interrupts; times in the row count from `start_ns` of the
    wall clock; `wait_turn` is awaited before each send; slots start from `begin_ns` of the monotonic clock on.
    """
    drift = Drift()
    cpu_ns = process_ns()
    begun_wall_ns, begun_ns = wall_ns(), mono_ns() if begin_ns is None else begin_ns
    offsets_s = stagger_s(plan.concurrency, request_s)
    course.measure_from_ns = begun_ns + int(offsets_s[-1] * 1e9)
    sending: set[int] = set()

    async def slot(number: int, offset_s: float) -> None:
        await sleep_until(begun_ns + int(offset_s * 1e9))
        pause_s = 0.0
        for turn in itertools.count():
            if wait_turn is not None:
                await wait_turn()
            phase = course.next_phase(mono_ns()) if turn else course.begin_slot()
            if phase is None or stop.is_set():
                return
            sending.add(number)
            ok = await send(next(requests), phase)
            sending.remove(number)
            pause_s = 0.0 if ok else min(max(FAILURE_PAUSE_S, 2 * pause_s), FAILURE_PAUSE_MAX_S)
            if pause_s:
                await asyncio.sleep(pause_s)

    own = enumerate(offsets_s[share.worker :: share.workers])
    slots = [asyncio.create_task(slot(number, offset_s)) for number, offset_s in own]
    try:
        await _until_done(slots, sending, course, stop, drift)
    finally:
        for task in slots:
            task.cancel()
        await asyncio.wait(slots)
    if faults := [fault for task in slots if not task.cancelled() and (fault := task.exception())]:
        raise faults[0]  # a full disk, or a fault of ours
    drift.sample()
    return LevelRow(
        level=plan.level,
        start_us=(begun_wall_ns - start_ns) // 1000,
        end_us=(wall_ns() - start_ns) // 1000,
        ended_by="interrupt" if stop.is_set() else course.ended_by or "requests",
        cpu_us=(process_ns() - cpu_ns) // 1000,
        clock_step_us=drift.largest_step_ns // 1000,
    )


async def _until_done(
    slots: list[asyncio.Task[None]], sending: set[int], course: Course, stop: asyncio.Event, drift: Drift
) -> None:
    """Wait for the slots, sampling the clocks. Once the level is over, only for those that are sending; after `stop`,
    no longer than DRAIN_S."""
    pending = set(slots)
    stopped_ns: int | None = None
    while pending:
        done, pending = await asyncio.wait(pending, timeout=CLOCK_SAMPLE_S, return_when=asyncio.FIRST_EXCEPTION)
        drift.sample()
        if any(not task.cancelled() and task.exception() for task in done):
            return
        if stop.is_set() or course.ended_by is not None:
            for number, task in enumerate(slots):
                if number not in sending:  # it waits to start, for its turn, or after a failure
                    task.cancel()
        if stop.is_set():
            stopped_ns = stopped_ns or mono_ns()
            if mono_ns() - stopped_ns > DRAIN_S * 1e9:
                return
