"""The whole client against a server that writes anything: each request must end in exactly one row.

    python -m tests.fuzz --streams 100000 --seed 1
    python -m tests.fuzz --first 4711 --streams 1 --seed 1      one of them again
    python -m tests.fuzz --sockets 64 --behind ...              one way only

A quarter of the streams goes each way: over few sockets and over so many that they are read together, by a client that
keeps up and by one that is behind, which takes in one read in each turn of its loop.

What the server does with stream i follows from the seed and i alone: whole answers in every form, the same with bytes
changed, noise, cut anywhere, split anywhere, with pauses, and with a close, a reset or a silence at the end. Some
requests are cancelled on the way. Nothing is random in the client; which streams share a connection is up to timing.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, get_args
from unittest import mock

import httpx
import msgspec
import uvloop

from analysis import records
from loadgen.dialects import Dialect
from loadgen.exchange import Exchange, Limits, Wire
from loadgen.reader import MANY
from loadgen.record import Kind, Row, Secrets, Status
from loadgen.sending import Client, sender
from loadgen.slices import Slices
from loadgen.transport import StampedTransport
from tests.fakes_api import listening, receive
from workloads.request import Request

Outcomes = Counter[str]  # "ok", "cancelled", "failed KIND"

WAYS = tuple((sockets, behind) for sockets in (64, MANY + 56) for behind in (False, True))
LIMITS = Limits(first_s=0.3, idle_s=0.2, total_s=0.6, connect_s=2.0)
LINE_LIMIT_BYTES = 16_384
MESSAGE_LIMIT = 700
STUCK_S = 30.0  # far beyond every limit of a request
TICK_S = 0.005
NOTICED_TICKS = 20  # after which nobody waits for a server that has hung up


class FuzzError(AssertionError):
    """What went wrong, with the stream that shows it."""


# What the server writes. `Random` is the stream's own.

_PIECES = (
    *(b"data:", b"data: ", b"[DONE]", b"\n", b"\r", b"\r\n", b"\n\n", b"\xef\xbb\xbf", b"event: error\n", b":"),
    *(b"{", b"}", b"[" * 2000, b'"', b"\\u0000", b"\\ud800", b"null", b"1e999", b"NaN", b"9" * 400, b"-1"),
    *(b"\x00", b"\x1b[2J", b"\xff\xfe", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"Content-Length: 5\r\n", b"x" * 20_000),
    *(b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"data: [DONE]\n\n"),
    *(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', b'data: {"error":{"message":"\x1b[31mno"}}\n\n'),
)


def _output(rng: random.Random, index: int, running: bool) -> dict[str, Any]:
    text: Any = rng.choice(["a", " word", "\n", "é", "\u202e", "", None, ["part"], 7])
    name = rng.choice(["content"] * 6 + ["reasoning", "reasoning_content", "tool_calls", "refusal", "other"])
    event: dict[str, Any] = {"choices": [{"index": 0, "delta": {name: text}}]}
    if rng.random() < 0.1:
        event = {"choices": [{"text": text}]}
    if running:
        event["usage"] = {"prompt_tokens": 5, "completion_tokens": index + 1}
    return event


def _events(rng: random.Random) -> Iterator[bytes]:
    tokens = rng.choice([0, 1, 1, 2, 3, 5, 8, 13, 40])
    running = rng.random() < 0.2
    events: list[dict[str, Any]] = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}]
    events += [_output(rng, index, running) for index in range(tokens)]
    if rng.random() < 0.8:
        events.append({"choices": [{"delta": {}, "finish_reason": rng.choice(["stop", "length", "error"])}]})
    if rng.random() < 0.7:
        count: Any = rng.choice([tokens] * 8 + [None, -1, 2**63, 10**300, "12", 1.5, {}])
        events.append({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": count}})
    if rng.random() < 0.05:
        events.insert(rng.randrange(len(events) + 1), {"error": {"message": "out of memory\x1b[31m", "code": 500}})
    end = rng.choice([b"\n\n"] * 6 + [b"\r\n\r\n", b"\r\r", b"\n"])
    for event in events:
        data = json.dumps(event, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
        yield rng.choice([b"data: ", b"data: ", b"data: ", b"data:", b": ping\n\ndata: "]) + data + end
    if rng.random() < 0.8:
        yield b"data: [DONE]" + end


def _mutated(rng: random.Random, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        start = rng.randrange(len(made) + 1)
        stop = min(len(made), start + rng.choice([1, 1, 4, 60]))
        match rng.randrange(6):
            case 0:
                made[start:stop] = rng.randbytes(stop - start)
            case 1:
                del made[start:stop]
            case 2:
                made[start:start] = rng.choice(_PIECES)
            case 3:
                made[start:start] = made[start:stop] * rng.choice([1, 3])
            case 4:
                del made[start:]
            case 5:
                made[start:stop] = bytes(byte ^ 1 << rng.randrange(8) for byte in made[start:stop])
    return bytes(made)


def _framed(rng: random.Random, pieces: list[bytes]) -> bytes:
    """The body as HTTP carries it: in chunks, with its length, or up to the close; and with a wrong length."""
    body = b"".join(pieces)
    form = rng.randrange(20)
    if form < 14:
        return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece) + b"0\r\n\r\n"
    if form < 17:
        return b"%d" % len(body) + b"\r\n\r\n" + body
    wrong = max(0, len(body) + rng.randrange(-20, 20))
    return b"%d" % wrong + b"\r\n\r\n" + body


def _answer(rng: random.Random) -> bytes:
    if rng.random() < 0.05:
        return rng.randbytes(rng.choice([1, 10, 300, 5000]))
    pieces = list(_events(rng))
    if rng.random() < 0.3:
        pieces = [_mutated(rng, b"".join(pieces))]
    if rng.random() < 0.05:
        pieces = [rng.choice([b"", b"{}", b'{"error":"no"}', b"<html>", b"[" * 9000, rng.randbytes(500)])]
    if rng.random() < 0.2:
        body = b"".join(pieces)
        cuts = sorted(rng.randrange(len(body) + 1) for _ in range(5))
        pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    status = rng.choice(
        [b"200 OK"] * 40 + [b"429 Slow Down", b"503 No", b"500 No", b"307 There", b"204 None", b"999 What"]
    )
    head = (
        b"HTTP/1.1 "
        + status
        + b"\r\n"
        + rng.choice([b"", b"", b"", b"Retry-After: soon\r\n", b"Connection: close\r\n"])
    )
    head += rng.choice([b"Content-Type: text/event-stream\r\n", b"", b"Content-Encoding: gzip\r\n"])
    framed = _framed(rng, pieces)
    if framed[:1].isdigit() and b"\r\n\r\n" in framed[:14] and not framed.endswith(b"0\r\n\r\n"):
        answer = head + b"Content-Length: " + framed
    elif rng.random() < 0.07:
        answer = head + b"\r\n" + b"".join(pieces)  # ends with the connection
    else:
        answer = head + b"Transfer-Encoding: chunked\r\n\r\n" + framed
    if rng.random() < 0.03:
        answer = b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + answer
    if rng.random() < 0.25:
        answer = _mutated(rng, answer)
    return answer


async def _write(rng: random.Random, writer: asyncio.StreamWriter, answer: bytes) -> None:
    """In pieces, with pauses of at most 2 ms."""
    if rng.random() < 0.1:
        answer = answer[: rng.randrange(len(answer) + 1)]
    pieces = rng.choice([1, 1, 2, 3, 6])
    cuts = sorted(rng.randrange(len(answer) + 1) for _ in range(pieces - 1))
    for start, stop in zip([0, *cuts], [*cuts, len(answer)], strict=True):
        writer.write(answer[start:stop])
        await writer.drain()
        if rng.random() < 0.3:
            await asyncio.sleep(rng.random() * 0.002)


def _of(seed: int, index: int) -> random.Random:
    return random.Random(f"{seed} {index}")


def answer_of(seed: int, index: int) -> bytes:
    """What the server means to write to stream `index`, before it is cut and split."""
    return _answer(_of(seed, index))


class HangUps:
    """When the server left a stream, in ticks of the loop: one that stands still has none."""

    def __init__(self) -> None:
        self.ticks = 0
        self.at: dict[int, int] = {}

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.ticks += 1

    def long_ago(self, index: int) -> bool:
        return self.ticks - self.at.get(index, self.ticks) > NOTICED_TICKS


def _server(seed: int, hang_ups: HangUps) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # a client that has gone: uvloop has several ways to say so
            await serve_all(reader, writer)

    async def serve_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            received = await receive(reader)
            index = int(received.json()["messages"][0]["content"])
            hang_ups.at.pop(index, None)  # it is tried again
            rng = _of(seed, index)
            answer = _answer(rng)
            before_any_byte = rng.random() < 0.03
            if not before_any_byte:
                await _write(rng, writer, answer)
            end = rng.random()
            if end < 0.02 and not before_any_byte:
                await reader.read()  # silence, until the client has had enough
            if end < 0.2 or before_any_byte:
                hang_ups.at[index] = hang_ups.ticks
                return _hang_up(rng, writer)

    return serve


def _hang_up(rng: random.Random, writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")  # None where the client has closed it
    if rng.random() < 0.5 and sock is not None:
        linger = struct.pack("ii", 1, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()


# The client, and what must hold


def fault(row: Row) -> str:
    """What cannot be in a row; empty where all can."""
    problems = []
    if row.status not in get_args(Status):
        problems.append("status")
    if (row.status == "failed") != (row.error is not None):
        problems.append("error without failure, or failure without error")
    if row.status == "ok" and not (row.events_us and row.http_status == 200 and row.end_us is not None):
        problems.append("ok without an answer")
    if row.error is not None:
        if row.error.kind not in get_args(Kind) or row.error.kind == "client":
            problems.append("kind")
        if len(row.error.message) > MESSAGE_LIMIT or not row.error.message.isprintable():
            problems.append("message")
    if row.retries not in (0, 1) or row.bounds not in range(len(row.events_us) + 1):
        problems.append("counts")
    times = [row.headers_us, *row.events_us, row.end_us]
    known = [time_us for time_us in times if time_us is not None]
    if (row.sent_us is None and known) or known != sorted(known) or min(known, default=0) < 0:
        problems.append("times")
    try:
        msgspec.json.decode(msgspec.json.encode(row), type=records.Row)
    except (msgspec.MsgspecError, UnicodeError, ValueError) as error:
        problems.append(f"not a row of the format: {error}")
    return ", ".join(problems)


class _Ended:
    """The rows as they come, and what is wrong with any of them."""

    def __init__(self, indices: range, hang_ups: HangUps) -> None:
        self._indices, self._hang_ups = indices, hang_ups
        self._rows = bytearray(len(indices))  # of each stream
        self.outcomes: Outcomes = Counter()
        self.faults: list[str] = []

    def emit(self, row: Row) -> None:
        self._rows[row.index - self._indices.start] += 1
        if problem := fault(row):
            self.faults.append(f"stream {row.index}: {problem}: {row}")
        timed_out = row.error is not None and row.error.kind in ("timeout_first", "timeout_idle", "timeout_total")
        if timed_out and not row.retries and self._hang_ups.long_ago(row.index):  # a second try may not have come there
            self.faults.append(f"stream {row.index}: the server had hung up long before the time limit: {row}")
        self.outcomes[row.status if row.error is None else f"failed {row.error.kind}"] += 1

    def count(self) -> None:
        counts = zip(self._indices, self._rows, strict=True)
        self.faults += [f"stream {index} has {rows} rows" for index, rows in counts if rows != 1]


async def _client(url: str, seed: int, indices: range, sockets: int, hang_ups: HangUps) -> _Ended:
    ended = _Ended(indices, hang_ups)
    left = iter(indices)
    slices = Slices()
    transport = StampedTransport()
    async with Client(transport=transport, trust_env=False) as client:
        wire = Wire(
            send=sender(client, httpx.URL(url), LIMITS.connect_s),
            dialect=Dialect(api="chat", model="tiny"),
            limits=LIMITS,
            slices=slices,
            secrets=Secrets(["sk-canary"]),
            emit=ended.emit,
            start_ns=time.time_ns(),
            line_limit_bytes=LINE_LIMIT_BYTES,
            count_text=len if seed % 2 else None,
        )

        async def slot() -> None:
            for index in left:
                if problem := await _one(wire, index, random.Random(f"client {seed} {index}")):
                    ended.faults.append(f"stream {index} {problem}")
                if ended.faults:
                    return

        await asyncio.gather(*(slot() for _ in range(sockets)))
        await slices.drain()
        await slices.aclose()
        if not ended.faults:
            ended.count()
        await asyncio.sleep(0.002)  # closes that wait for the loop
        if used := transport._open - {one for idle in transport._idle.values() for one in idle}:
            ended.faults.append(f"{len(used)} connections serve nobody and are not idle")
    return ended


async def _one(wire: Wire, index: int, rng: random.Random) -> str | None:
    request = Request(index=index, level=0, prompt=str(index), want_input_tokens=1, want_output_tokens=8)
    task = asyncio.ensure_future(Exchange(wire, request, "measure").run())
    cancel_after_s = rng.random() * 0.004 if rng.random() < 0.05 else None
    done, _ = await asyncio.wait([task], timeout=cancel_after_s or STUCK_S)
    if not done:
        task.cancel()
        await asyncio.wait([task])
        if cancel_after_s is None:
            return "does not end"
    return None if task.cancelled() or task.exception() is None else f"raised {task.exception()!r}"


async def _fuzz(seed: int, indices: range, sockets: int) -> Outcomes:
    hang_ups = HangUps()
    ticking = asyncio.ensure_future(hang_ups.tick())
    stray: list[str] = []  # exceptions in callbacks, which nobody awaits
    asyncio.get_running_loop().set_exception_handler(lambda _, context: stray.append(repr(context)))
    async with listening(_server(seed, hang_ups)) as server:
        ended = await _client(server.url(), seed, indices, sockets, hang_ups)
    ticking.cancel()
    if faults := ended.faults + stray:
        raise FuzzError(f"{len(faults)} faults with seed {seed}: " + "\n".join(faults[:5]))
    return ended.outcomes


def fuzz(streams: int, seed: int, *, first: int = 0, sockets: int = 64, behind: bool = False) -> Outcomes:
    """How many streams ended in what. Raises FuzzError, also for a socket that is left open."""
    uvloop.run(asyncio.sleep(0))  # the first one opens what the process keeps
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    slow = mock.patch.multiple("loadgen.reader", _SLICE_NS=0, _A_FEW=1)
    with slow if behind else contextlib.nullcontext():
        outcomes = uvloop.run(_fuzz(seed, range(first, first + streams), sockets))
    gc.collect()
    if (after := len(os.listdir("/proc/self/fd"))) > before:
        raise FuzzError(f"{after - before} file descriptors are left open")
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the whole client over loopback.")
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--sockets", type=int)
    parser.add_argument("--behind", action="store_true")
    asked = parser.parse_args()
    ways = WAYS if asked.sockets is None else ((asked.sockets, asked.behind),)
    first, end = asked.first, asked.first + asked.streams
    for left, (sockets, behind) in zip(range(len(ways), 0, -1), ways, strict=True):
        streams = (end - first) // left
        _say(streams, asked.seed, first, sockets, behind)
        first += streams
    return 0


def _say(streams: int, seed: int, first: int, sockets: int, behind: bool) -> None:
    begun_s = time.monotonic()
    outcomes = fuzz(streams, seed, first=first, sockets=sockets, behind=behind)
    took_s = time.monotonic() - begun_s
    for outcome, count in outcomes.most_common():
        print(f"{count:8} {outcome}")
    way = f"{sockets} sockets, {'behind' if behind else 'in time'}"
    print(f"{streams:8} streams from {first}, seed {seed}, {way}, {took_s:.1f} s, {streams / took_s:.0f}/s")


if __name__ == "__main__":
    sys.exit(main())
