"""The only module that reads a clock.

Arrivals are stamped by the kernel with CLOCK_REALTIME, so the send time beside them is read from the same clock; due
times and timers use the monotonic clock. `Drift` watches the offset between the two, because a step of the wall clock
in the middle of a level would otherwise be reported as the server's latency.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

wall_ns = time.time_ns  # CLOCK_REALTIME
mono_ns = time.monotonic_ns
process_ns = time.process_time_ns  # processor time of this process, all threads


def utc(at_ns: int) -> datetime:
    """A time of the wall clock as a date, to the microsecond."""
    seconds, ns = divmod(at_ns, 1_000_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=ns // 1000)


def ns_of(date: datetime) -> int:
    """The inverse of `utc`, exact to the microsecond."""
    since = date - datetime.fromtimestamp(0, UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000


async def sleep_until(due_ns: int) -> None:
    """Return at `due_ns` of the monotonic clock or after, never before: event loops round timers and wake early."""
    while (left_ns := due_ns - mono_ns()) > 0:  # noqa: ASYNC110 - it waits for a time, not for an event
        await asyncio.sleep(left_ns / 1e9)


class Drift:
    """The largest step, in ns, of the wall clock against the monotonic clock between two samples."""

    def __init__(self, wall: Callable[[], int] = wall_ns, mono: Callable[[], int] = mono_ns) -> None:
        self._wall = wall
        self._mono = mono
        self._offset_ns = self._read()
        self.largest_step_ns = 0

    def _read(self) -> int:
        # Preempted between the two reads, the difference would look like a step: take the tightest of three.
        tries = []
        for _ in range(3):
            before = self._mono()
            wall = self._wall()
            after = self._mono()
            tries.append((after - before, wall - (before + after) // 2))
        return min(tries)[1]

    def sample(self) -> None:
        offset_ns = self._read()
        step_ns = offset_ns - self._offset_ns
        self._offset_ns = offset_ns
        if abs(step_ns) > abs(self.largest_step_ns):
            self.largest_step_ns = step_ns
