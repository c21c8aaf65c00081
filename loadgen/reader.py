"""Reads the sockets that have something, and hands on what they held.

    read    every socket that has something, once, however much it holds: no stream keeps the others waiting
    take    what was read, in its order, for as long as a slice; then the sockets are looked at again

Reading comes first. The kernel has stamped what a socket holds, so nothing is measured later for being taken later; but
a socket that is not read before the stream's next token comes gives both of them the stamp of the second. So a core
that is too slow for both, for a while, still reads in time.

A loop that wakes for every token of hundreds of streams spends more on waking than on reading. From `MANY` sockets on,
all that are ready are read together, about once a millisecond. Where the kernel does not stamp, each is read at once.
"""

import asyncio
import contextlib
import select
from collections import deque
from collections.abc import Callable

from loadgen.clock import mono_ns

MANY = 200
# About a tenth of a second's work. Behind by more, taking keeps pace with reading.
MOST_UNTAKEN = 10_000  # reads
MOST_UNTAKEN_BYTES = 8 * 2**20  # what so many long reads hold: one of a stream that pours has hundreds of events
_PAUSE_S = 0.001  # the loop's timers know no less
_SLICE_NS = 1_000_000
_A_FEW = 16  # taken between two looks at the clock

Read = tuple[int, int | None, bytes]  # when it was read; the stamp, where there is one; the bytes, none at the end
_Source = tuple[Callable[[], Read | None], Callable[[Read], None]]


class Reader:
    """Of the running loop. `stamped`: the kernel stamps what arrives."""

    def __init__(self, stamped: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._stamped = stamped
        self._sources: dict[int, _Source] = {}
        self._untaken: deque[tuple[int, _Source, Read]] = deque()
        self._epoll = select.epoll()
        self._long_bytes = 0  # no less than the long ones among the untaken hold
        self._next: asyncio.Handle | None = None  # turn; None: the loop waits for a socket
        self._loop.add_reader(self._epoll.fileno(), self._turn)

    def add(self, file: int, read: Callable[[], Read | None], take: Callable[[Read], None]) -> None:
        """`read` is called when there is something, and does not wait; `take` gets what it returned, later. After its
        end nothing is read."""
        self._sources[file] = read, take
        self._epoll.register(file, select.EPOLLIN)

    def remove(self, file: int) -> None:
        """Before the file is closed. What it held and was not taken is dropped."""
        del self._sources[file]
        with contextlib.suppress(FileNotFoundError):  # its end was read
            self._epoll.unregister(file)

    def held_long(self, size_bytes: int) -> None:
        """Said by a `read` of more than an event or two: the others are many, and not worth the counting."""
        self._long_bytes += size_bytes

    def take_now(self, file: int) -> None:
        """What was read of this one, before its turn; not what the socket holds."""
        source = self._sources[file]
        own = [read for _, one, read in self._untaken if one is source]
        if own:
            others = [one for one in self._untaken if one[1] is not source]
            self._untaken.clear()
            self._untaken.extend(others)
        for read in own:
            if self._sources.get(file) is source:  # else it was closed meanwhile
                source[1](read)

    def close(self) -> None:
        if self._next is None:
            self._loop.remove_reader(self._epoll.fileno())
        else:
            self._next.cancel()
        self._untaken.clear()
        self._epoll.close()

    def _turn(self) -> None:
        found = 0
        try:
            found = self._read_ready()
            self._take_some()
        finally:  # one that raises does not stop the others
            self._plan(found)

    def _plan(self, found: int) -> None:
        """The next turn: at once, after a pause, or when a socket has something."""
        waits = self._next is None
        if self._untaken:
            self._next = self._loop.call_soon(self._turn)
        elif found and self._stamped and len(self._sources) >= MANY:
            self._next = self._loop.call_later(_PAUSE_S, self._turn)
        else:
            self._next = None
        if waits and self._next is not None:
            self._loop.remove_reader(self._epoll.fileno())
        elif not waits and self._next is None:
            self._loop.add_reader(self._epoll.fileno(), self._turn)

    def _read_ready(self) -> int:
        ready = self._epoll.poll(0)
        sources, untaken = self._sources, self._untaken
        for file, _ in ready:
            source = sources[file]
            if (read := source[0]()) is not None:
                untaken.append((file, source, read))
                if not read[2]:  # which the system would say again and again
                    self._epoll.unregister(file)
        return len(ready)

    def _take_some(self) -> None:
        until_ns = mono_ns() + _SLICE_NS
        while self._untaken:
            self._take(_A_FEW)
            if mono_ns() >= until_ns and not self._far_behind():
                break

    def _far_behind(self) -> bool:
        if self._long_bytes > MOST_UNTAKEN_BYTES:  # since it was counted last: most may have been taken
            self._long_bytes = sum(len(read[2]) for _, _, read in self._untaken)
        return len(self._untaken) > MOST_UNTAKEN or self._long_bytes > MOST_UNTAKEN_BYTES

    def _take(self, most: int) -> None:
        sources, untaken = self._sources, self._untaken
        for _ in range(min(most, len(untaken))):
            file, source, read = untaken.popleft()
            if sources.get(file) is source:  # else it was closed meanwhile
                source[1](read)
