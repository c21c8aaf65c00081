"""A timer that rings at an absolute time. Event loops count in milliseconds; a timerfd is on time to some 10 us, and
costs nothing while it waits. Linux only, as the kernel's stamps are."""

import asyncio
import ctypes
import os
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Alarm:
    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._fd = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        loop.add_reader(self._fd, self._on_readable)

    def set(self, due_ns: int) -> None:
        """Ring at `due_ns` of the monotonic clock, at once where that has passed; replaces what was set before."""
        interval_and_value = (ctypes.c_long * 4)(0, 0, *divmod(due_ns, 1_000_000_000))
        if _libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, interval_and_value, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _on_readable(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # it was set anew after it had expired
        self._ring()
