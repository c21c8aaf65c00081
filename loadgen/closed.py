"""One level of closed loop: so many slots, each sending its next request when its last stream has ended.

warm-up   every slot's first request, and whatever starts before all slots have started
measure   from then on; `requests` and `duration_s` count here, so warm-up is extra

A slot is a user: it stays with its conversation, and between two turns it thinks.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator

from loadgen.clock import mono_ns, sleep_until
from loadgen.course import WHOLE, Course, Share
from loadgen.levels import Moment, Prepare, Users, Watch, now
from loadgen.pacing import stagger_s
from loadgen.record import LevelPlan, LevelRow
from workloads.request import Request

FAILURE_PAUSE_S = 0.1  # a slot whose request failed waits, longer each time: a server that refuses is not hammered
FAILURE_PAUSE_MAX_S = 2.0


async def closed_loop(
    plan: LevelPlan,
    requests: Iterator[Request],
    prepare: Prepare,
    course: Course,
    *,
    request_s: float,
    stop: asyncio.Event,
    start_ns: int,
    wait_turn: Callable[[], Awaitable[None]] | None = None,
    share: Share = WHOLE,
    begin: Moment | None = None,
) -> LevelRow:
    """Run one level, or this process' share of it, to its end.

    `request_s` is about how long one request takes; `stop` interrupts; times in the row count from `start_ns` of the
    wall clock; `wait_turn` is awaited before each send; slots start from `begin` on.
    """
    assert plan.concurrency is not None
    begin = begin or now()
    watch, users = Watch(plan, begin, start_ns), Users()
    offsets_s = stagger_s(plan.concurrency, request_s)
    course.measure_from_ns = begin.mono_ns + int(offsets_s[-1] * 1e9)

    async def slot(offset_s: float) -> None:
        me = asyncio.current_task()
        assert me is not None
        await sleep_until(begin.mono_ns + int(offset_s * 1e9))
        pause_s = 0.0
        turn: Request | None = None  # of the conversation that the slot is in
        due_ns: int | None = None
        for count in itertools.count():
            if wait_turn is not None:
                await wait_turn()
                due_ns = None  # the wait is ours, not the server's
            request = turn or next(requests, None)
            if request is None:  # the data set is used up
                return
            phase = course.next_phase(mono_ns()) if count else course.begin_slot()
            if phase is None or stop.is_set():
                return
            users.busy.add(me)
            sent = await prepare(request, phase, due_ns)()
            users.busy.discard(me)
            turn, due_ns = sent.then, sent.then_due_ns
            pause_s = 0.0 if sent.ok else min(max(FAILURE_PAUSE_S, 2 * pause_s), FAILURE_PAUSE_MAX_S)
            if pause_s:
                await asyncio.sleep(pause_s)
            elif due_ns is not None:
                await sleep_until(begin.mono_of(due_ns))

    for offset_s in offsets_s[share.worker :: share.workers]:
        users.add(slot(offset_s))
    await users.see_out(course, stop, watch.drift)
    return watch.row("interrupt" if stop.is_set() else course.ended_by or "schedule")
