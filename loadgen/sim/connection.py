"""One HTTP/1.1 connection of the simulated server: requests in, one at a time; plain or chunked responses out."""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools
import msgspec

_MAX_BODY_BYTES = 64 << 20
_MAX_UNSENT_BYTES = 16 << 20  # of a stream whose client does not read
_MAX_PENDING = 16  # pipelined requests; past that the socket is not read
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 413: "Content Too Large"}
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


class Request(msgspec.Struct, frozen=True):
    method: str
    path: str
    body: bytes
    keep_alive: bool


def plain(body: bytes, *, status: int = 200, content_type: str = "application/json") -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection(asyncio.Protocol):
    """Calls `handle(self, request)` when a request is complete and all before it are answered.

    `handle` answers with `send`, at once or later and in as many pieces as it likes, and then `end`. Where the client
    goes away before, `on_lost` is called, if set.
    """

    def __init__(self, handle: Callable[["Connection", Request], None]) -> None:
        self._handle = handle
        self.on_lost: Callable[[], None] | None = None
        self._pending: deque[Request] = deque()
        self._current: Request | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        self._refusal: int | None = None  # the status, where what follows on this connection cannot be understood
        self._handling = False
        self._start_message()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._fd = transport.get_extra_info("socket").fileno()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._pending.clear()
        if self.on_lost is not None:
            self.on_lost()

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refusal = 413 if self._body_bytes > _MAX_BODY_BYTES else 400
        self._next()
        if len(self._pending) > _MAX_PENDING and self._transport is not None:
            self._transport.pause_reading()

    # httptools

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"expect" and value.lower() == b"100-continue":
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > _MAX_BODY_BYTES:
            raise ValueError("body too large")  # stops the parser: it reaches `data_received` as a parser error
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = httptools.parse_url(self._url).path.decode("ascii", "replace")
        method = self._parser.get_method().decode("ascii", "replace")
        body = b"".join(self._body)
        self._pending.append(Request(method, path, body, self._parser.should_keep_alive()))
        self._start_message()

    # answers

    def send(self, data: bytes) -> None:
        """Hand bytes to the kernel now. The transport of uvloop alone would keep them until the end of the loop's turn:
        the first event of a step would leave only when all others have been written."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        unsent = transport.get_write_buffer_size()
        if not unsent:
            try:
                sent = os.write(self._fd, data)
            except BlockingIOError:
                sent = 0
            except OSError:
                transport.abort()
                return
            if sent == len(data):
                return
            data = data[sent:]
        elif unsent > _MAX_UNSENT_BYTES:
            transport.abort()
            return
        transport.write(data)

    def end(self) -> None:
        """The current request is answered."""
        self.on_lost = None
        if self._current is not None and not self._current.keep_alive:
            self.close()
            return
        self._current = None
        if not self._handling:  # else the loop in `_next` goes on by itself
            self._next()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _start_message(self) -> None:
        self._url = b""
        self._body: list[bytes] = []
        self._body_bytes = 0

    def _next(self) -> None:
        self._handling = True
        while self._pending and self._current is None and self._transport is not None:
            self._current = self._pending.popleft()
            self._handle(self, self._current)
        self._handling = False
        if self._transport is None or self._current is not None:
            return
        if self._refusal is None:
            self._transport.resume_reading()
        else:
            status = f"{self._refusal} {_REASONS[self._refusal]}"
            self.send(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
            self.close()
