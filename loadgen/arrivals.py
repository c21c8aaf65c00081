"""What comes back for one request: a connection puts it in, an exchange takes it out."""

import asyncio
import re
from collections.abc import Callable

import httpx

GATHER_BYTES = 65536
HOLD_BYTES = 16 * 2**20

_END_MARKER = re.compile(rb"[\r\n]data: ?\[DONE\]")
_END_MARKER_BYTES = 13


class Arrivals:
    """What came back for one request: times in ns of CLOCK_REALTIME, and body bytes as (stamp, bytes) in order.

    `on_gathered` is called each time another 64 KiB lie here unread, so that a long stream never holds all its bytes.
    From `HOLD_BYTES` on the connection reads no more until they are taken: a server cannot fill the memory.
    """

    __slots__ = (
        "_awaiter",
        "_chunks",
        "_gathered_bytes",
        "_on_gathered",
        "_tail",
        "_unread_bytes",
        "connect_ns",
        "end_ns",
        "ended",
        "error",
        "headers",
        "headers_ns",
        "hold",
        "last_ns",
        "read_lag_ns",
        "retries",
        "sent_ns",
        "status",
        "unframe",
        "unstamped_reads",
    )

    def __init__(self, on_gathered: Callable[[], None] | None = None) -> None:
        self.connect_ns: int | None = None  # when a connection began to be opened for this request; None: reused
        self.sent_ns = 0
        self.headers_ns: int | None = None
        self.last_ns = 0
        self.end_ns = 0
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.unframe: Callable[[], None] | None = None  # brings in what the connection has read and not parsed yet
        self.hold: Callable[[bool], None] | None = None  # tells the connection to stop reading, and to go on
        self.read_lag_ns = 0
        self.unstamped_reads = 0
        self.retries = 0
        self.ended = False
        self.error: httpx.TransportError | None = None
        self._chunks: list[tuple[int, bytes]] = []
        self._awaiter: asyncio.Future[None] | None = None
        self._on_gathered = on_gathered
        self._gathered_bytes = 0
        self._unread_bytes = 0
        self._tail = b"\n"

    def take(self) -> list[tuple[int, bytes]]:
        """The body bytes that came since the last call."""
        if self.unframe is not None:
            self.unframe()
        chunks = self._chunks
        self._chunks = []
        if self._unread_bytes >= HOLD_BYTES and self.hold is not None:
            self.hold(False)
        self._gathered_bytes = self._unread_bytes = 0
        return chunks

    def add(self, stamp_ns: int, body: bytes) -> bool:
        """Append body bytes; True if they hold the end marker of an event stream."""
        tail = self._tail
        self.add_events(stamp_ns, body)
        if body.endswith(b"}\n\n") and body.rfind(b"[DONE]") < 0:  # nearly all
            return False
        joined = tail + body
        self._tail = joined[1 - _END_MARKER_BYTES :]
        return _END_MARKER.search(joined) is not None

    def add_events(self, stamp_ns: int, body: bytes) -> None:
        """Append body bytes that end with an event other than the end marker."""
        self._chunks.append((stamp_ns, body))
        self._tail = b"\n"
        self._gathered_bytes += len(body)
        if self._gathered_bytes >= GATHER_BYTES:
            self._gather()

    def _gather(self) -> None:
        self._unread_bytes += self._gathered_bytes
        self._gathered_bytes = 0
        if self._unread_bytes >= HOLD_BYTES and self.hold is not None:
            self.hold(True)
        if self._on_gathered is not None:
            self._on_gathered()

    def finish(self, end_ns: int, error: httpx.TransportError | None = None) -> None:
        self.end_ns = end_ns
        self.error = error
        self.ended = True
        self.unframe = self.hold = self._on_gathered = None  # no cycle stays behind, see load.clear_the_way
        self.wake()

    def give_up(self, end_ns: int) -> None:
        """The request is cut off here; what has been read of its answer still counts."""
        if self.unframe is not None:
            self.unframe()
        if not self.ended:
            self.finish(end_ns)

    def wake(self) -> None:
        if self._awaiter is not None and not self._awaiter.done():
            self._awaiter.set_result(None)

    async def wait_headers(self) -> None:
        while self.headers_ns is None and not self.ended:
            await self._wait()

    async def wait_end(self) -> None:
        while not self.ended:
            await self._wait()

    async def _wait(self) -> None:
        self._awaiter = asyncio.get_running_loop().create_future()
        await self._awaiter
