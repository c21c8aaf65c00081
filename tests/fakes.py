"""A server on loopback that writes given bytes at given times, and what a test needs to send it one request.

    async with serve(stream(ROLE, At(50), content("a"), FIN, DONE)) as server:
        row = await one_row(server.url)

A script is what the server does with one request, step by step:

    bytes       written in one piece; the wall-clock times around the write are kept in `written`
    At(50)      wait until 50 ms after the request was read
    CLOSE       close the connection in order; RESET: with a TCP reset
    SILENCE     write no more, and keep the connection open until the client closes it

After the last step the connection waits for the next request. All requests get the same script, or that of a
function of the request; `in_turn(a, b)` gives a to the first, b to all after it.
"""

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

import httpx

from loadgen.dialects import Dialect
from loadgen.exchange import Exchange, Limits, Wire
from loadgen.record import Row, Secrets
from loadgen.sending import Client, sender
from loadgen.slices import Slices
from loadgen.transport import StampedTransport
from workloads.request import Request

KERNEL_SLACK_US = 10_000  # loopback stamps within the write itself, unless the machine is busy
USER_SLACK_US = 500_000  # both ends share one event loop


class At(NamedTuple):
    ms: float


class End(Enum):
    CLOSE = 1
    RESET = 2
    SILENCE = 3


CLOSE, RESET, SILENCE = End
Step = bytes | At | End
Script = Sequence[Step]


class Received(NamedTuple):
    """One request; `connection` is the number of its connection, from 0, and `read_ns` the time it was complete."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    read_ns: int


class Written(NamedTuple):
    begun_ns: int
    ended_ns: int
    piece: bytes


class Server:
    def __init__(self, script: Script | Callable[[Received], Script]) -> None:
        self._script = script
        self._handlers: set[asyncio.Task[None]] = set()
        self.url = ""
        self.port = 0
        self.connections = 0
        self.requests: list[Received] = []
        self.written: list[Written] = []

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.create_task(self._serve(reader, writer, self.connections))
        self.connections += 1
        self._handlers.add(handler)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while not writer.is_closing():
                    received = await _read_request(reader, connection)
                    self.requests.append(received)
                    script = self._script(received) if callable(self._script) else self._script
                    for step in script:
                        await self._do(step, received, reader, writer)
        finally:
            writer.transport.abort()

    async def _do(
        self, step: Step, received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        match step:
            case bytes():
                begun_ns = time.time_ns()
                writer.write(step)
                self.written.append(Written(begun_ns, time.time_ns(), step))
                await writer.drain()
            case At():
                await asyncio.sleep(received.read_ns / 1e9 + step.ms / 1e3 - time.time())
            case End.CLOSE:
                writer.close()
                await writer.wait_closed()
            case End.RESET:
                linger_s = 0
                option = struct.pack("ii", 1, linger_s)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
                writer.transport.abort()
                await writer.wait_closed()
            case End.SILENCE:
                await reader.read()

    async def stop(self) -> None:
        for handler in self._handlers:
            handler.cancel()
        for result in await asyncio.gather(*self._handlers, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    def assert_stamps(
        self, row: Row, stamps_us: Sequence[int | None], *parts: bytes, slack_us: int = KERNEL_SLACK_US
    ) -> None:
        """The stamps, in microseconds since `row` was sent, lie within the writes of `parts`; its run began at 0."""
        assert row.sent_us is not None
        for stamp_us, part in zip(stamps_us, parts, strict=True):
            write = next(write for write in self.written if part in write.piece)
            assert stamp_us is not None
            assert write.begun_ns // 1000 - row.sent_us - 1 <= stamp_us  # 1: both are rounded down
            assert stamp_us <= write.ended_ns // 1000 - row.sent_us + slack_us


@contextlib.asynccontextmanager
async def serve(script: Script | Callable[[Received], Script]) -> AsyncIterator[Server]:
    server = Server(script)
    listener = await asyncio.start_server(server.accept, "127.0.0.1", 0, limit=2**25)
    server.port = listener.sockets[0].getsockname()[1]
    server.url = f"http://127.0.0.1:{server.port}"
    try:
        yield server
    finally:
        listener.close()
        await server.stop()
        await asyncio.sleep(0)  # aborted connections close in the loop's next turn


async def _read_request(reader: asyncio.StreamReader, connection: int) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Received(method, path, headers, body, connection, time.time_ns())


def in_turn(*scripts: Script) -> Callable[[Received], Script]:
    left = list(scripts)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


# Responses


def stream(*steps: Step, end: bool = True, content_type: str = "text/event-stream") -> list[Step]:
    """An event stream in chunked encoding, each bytes step one chunk; `end`: with the last chunk, of length 0."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    framed = [b"%x\r\n%b\r\n" % (len(step), step) if isinstance(step, bytes) else step for step in steps]
    return [head, *framed, *([b"0\r\n\r\n"] if end else [])]


def response(status: int, body: str | bytes | dict[str, Any], *headers: str) -> list[Step]:
    content = json.dumps(body) if isinstance(body, dict) else body
    content = content if isinstance(content, bytes) else content.encode()
    head = [f"HTTP/1.1 {status} Any", f"content-length: {len(content)}", *headers]
    return ["\r\n".join([*head, "", ""]).encode() + content]


# Events


def event(data: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(data, separators=(",", ":")).encode()


def delta(usage: int | None = None, finish_reason: str | None = None, index: int = 0, **fields: Any) -> bytes:
    """A chat chunk; `usage`: with that running count of completion tokens."""
    choice = {"index": index, "delta": fields} | ({"finish_reason": finish_reason} if finish_reason else {})
    counts = {} if usage is None else {"usage": {"prompt_tokens": 5, "completion_tokens": usage}}
    return event({"choices": [choice]} | counts)


def content(text: str, usage: int | None = None) -> bytes:
    return delta(usage, content=text)


def usage(prompt_tokens: int, completion_tokens: int, **fields: Any) -> bytes:
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return event({"choices": [], "usage": counts | {"total_tokens": prompt_tokens + completion_tokens} | fields})


ROLE = delta(role="assistant", content="")
FIN = delta(finish_reason="stop")
DONE = b"data: [DONE]\n\n"


# One request


def a_request(index: int = 0) -> Request:
    return Request(index=index, level=0, prompt="Hello", want_input_tokens=1, want_output_tokens=2)


@contextlib.asynccontextmanager
async def a_wire(
    url: str,
    rows: list[Row],
    *,
    transport: httpx.AsyncBaseTransport | None = None,
    headers: dict[str, str] | None = None,
    **changes: Any,
) -> AsyncIterator[Wire]:
    """What an Exchange needs, by our own transport where no other is given; at the end all is in `rows`.

    `changes` are fields of the Wire. Its run starts at 0 of the wall clock.
    """
    slices = Slices()
    facts: dict[str, Any] = {
        "dialect": Dialect(api="chat", model="tiny"),
        "limits": Limits(first_s=2, idle_s=2, total_s=5, connect_s=2),
        "secrets": Secrets([]),
        "start_ns": 0,
        "line_limit_bytes": 2**24,
    }
    async with Client(transport=transport or StampedTransport(), headers=headers, trust_env=False) as client:
        facts |= changes
        send = sender(client, httpx.URL(url), facts["limits"].connect_s)
        try:
            yield Wire(send=send, slices=slices, emit=rows.append, **facts)
            await slices.drain()
        finally:
            await slices.aclose()


async def one_row(url: str, **changes: Any) -> Row:
    """The row of one request; `changes` as in `a_wire`."""
    rows: list[Row] = []
    async with a_wire(url, rows, **changes) as wire:
        await Exchange(wire, a_request(), "measure").run()
    (row,) = rows
    return row
