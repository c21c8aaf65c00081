"""Calls those whose sockets have something to read.

A loop that wakes for every token of hundreds of streams spends more on waking than on reading. From `MANY` sockets on,
all that are ready are read together, about once a millisecond. The kernel has stamped what they hold, so nothing is
measured later for it; where the kernel does not stamp, each is read at once.
"""

import asyncio
import select
from collections.abc import Callable

MANY = 200
_PAUSE_S = 0.001  # the loop's timers know no less


class Reader:
    """Of the running loop. `stamped`: the kernel stamps what arrives."""

    def __init__(self, stamped: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._stamped = stamped
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._epoll = select.epoll()
        self._pause: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._epoll.fileno(), self._read)

    def add(self, file: int, callback: Callable[[], None]) -> None:
        self._callbacks[file] = callback
        self._epoll.register(file, select.EPOLLIN)

    def remove(self, file: int) -> None:
        """Before the file is closed."""
        del self._callbacks[file]
        self._epoll.unregister(file)

    def close(self) -> None:
        if self._pause is None:
            self._loop.remove_reader(self._epoll.fileno())
        else:
            self._pause.cancel()
        self._epoll.close()

    def _read(self) -> None:
        if self._stamped and len(self._callbacks) >= MANY:
            self._loop.remove_reader(self._epoll.fileno())
            self._read_together()
        else:
            self._call_ready()

    def _read_together(self) -> None:
        self._pause = self._loop.call_later(_PAUSE_S, self._read_together)
        if not self._call_ready() or len(self._callbacks) < MANY:  # let the loop wait for the next
            self._pause.cancel()
            self._pause = None
            self._loop.add_reader(self._epoll.fileno(), self._read)

    def _call_ready(self) -> int:
        """Each is called once, however much its socket holds: no stream keeps the others waiting."""
        ready = self._epoll.poll(0)
        for file, _ in ready:
            if callback := self._callbacks.get(file):  # else one that was called before has closed it
                callback()
        return len(ready)
