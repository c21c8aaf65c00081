"""What comes back for one request: a connection puts it in, an exchange waits for its end."""

import asyncio
from collections.abc import Callable
from typing import Literal

import httpx

Said = Literal["done", "broken"] | None  # the end marker has come; no more of this is wanted; go on
Feed = Callable[[int, bytes], Said]


class Arrivals:
    """Times in ns of CLOCK_REALTIME. The body goes to `feed` as it comes, in order, each read's part with its stamp."""

    __slots__ = (
        "_awaiter",
        "catch_up",
        "connect_ns",
        "end_ns",
        "ended",
        "error",
        "fault",
        "feed",
        "headers",
        "headers_ns",
        "last_ns",
        "read_lag_ns",
        "retries",
        "sent_ns",
        "status",
        "unstamped_reads",
    )

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.catch_up: Callable[[], None] = _nothing  # takes in at once what has come; of the connection, once sent
        self.connect_ns: int | None = None  # when a connection began to be opened for this request; None: reused
        self.sent_ns = 0
        self.headers_ns: int | None = None
        self.last_ns = 0
        self.end_ns = 0
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.read_lag_ns = 0
        self.unstamped_reads = 0
        self.retries = 0
        self.ended = False
        self.error: httpx.TransportError | None = None
        self.fault: Exception | None = None  # of ours, while the answer was taken in: it ends the run
        self._awaiter: asyncio.Future[None] | None = None

    def finish(self, end_ns: int, error: httpx.TransportError | None = None) -> None:
        self.end_ns = end_ns
        self.error = error
        self.ended = True
        self.wake()

    def wake(self) -> None:
        if self._awaiter is not None and not self._awaiter.done():
            self._awaiter.set_result(None)

    async def wait_headers(self) -> None:
        """Raises `fault`."""
        while self.headers_ns is None and not self.ended:
            await self._wait()
        if self.fault is not None:
            raise self.fault

    async def wait_end(self) -> None:
        """Raises `fault`."""
        while not self.ended:
            await self._wait()
        if self.fault is not None:
            raise self.fault

    async def _wait(self) -> None:
        self._awaiter = asyncio.get_running_loop().create_future()
        await self._awaiter


def _nothing() -> None:
    pass
