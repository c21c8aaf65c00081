"""One connection, of which something was read and is not taken yet."""

import asyncio
import contextlib
import functools
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from loadgen import reader
from loadgen.reader import Read
from tests.fakes_api import STREAM_HEAD, answer, both_loops, chunked
from tests.fakes_pair import Pair, pair


@contextlib.asynccontextmanager
async def before(p: Pair, act: Callable[[], Any]) -> AsyncIterator["asyncio.Future[Any]"]:
    """Act when what comes first now is read, and not taken: another socket is taken before it."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    near, far = socket.socketpair()
    with near, far:
        for _ in range(3):
            await asyncio.sleep(0)  # what had something before stands first with epoll until it is polled again
        far.send(b"x")
        p.reader.add(near.fileno(), lambda: (0, 0, near.recv(1)), lambda _: done.set_result(act()))
        yield done
        p.reader.remove(near.fileno())


@both_loops
async def test_an_answer_that_is_not_taken_yet_counts_before_the_failed_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_SLICE_NS", 0)
    monkeypatch.setattr(reader, "_A_FEW", 1)  # one taken in a turn
    async with pair() as p, before(p, p.send) as sent:
        p.server.sendall(answer(b"no", "503 Service Unavailable"))
        p.server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        p.server.close()
        arrivals = await sent
        async with asyncio.timeout(5):
            await arrivals.wait_end()
        assert (arrivals.status, arrivals.error, arrivals.body) == (503, None, b"no")


@both_loops
async def test_an_end_that_is_not_taken_yet_is_an_end_to_an_idle_connection() -> None:
    async with pair() as p:
        p.send()
        await p.deliver(answer(b"first"))
        async with before(p, p.connection.still_idle) as idle:
            await p.hang_up()
            assert await idle is False
        assert p.closed == [p.connection]


@both_loops
async def test_a_stream_that_pours_is_not_read_far_ahead_of_its_taking(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could fill the memory, and pass for silent while what it said is still to be taken."""
    monkeypatch.setattr(reader, "_SLICE_NS", 0)
    monkeypatch.setattr(reader, "_A_FEW", 1)  # one taken in a turn
    monkeypatch.setattr(reader, "MOST_UNTAKEN_BYTES", 150_000)
    async with contextlib.AsyncExitStack() as stack:
        p = await stack.enter_async_context(pair())
        most = 0

        def look(_: int, __: bytes) -> None:
            nonlocal most
            most = max(most, sum(len(read[2]) for _, _, read in p.reader._untaken))

        def one_byte(near: socket.socket) -> Read:
            return 0, 0, near.recv(1)

        arrivals = p.send(say=look)
        for _ in range(8):  # others, of which one is taken in each turn
            near, far = socket.socketpair()
            stack.enter_context(near)
            stack.enter_context(far)
            far.send(b"x" * 10_000)
            p.reader.add(near.fileno(), functools.partial(one_byte, near), lambda _: None)
            stack.callback(p.reader.remove, near.fileno())
        await p.deliver(STREAM_HEAD, *[chunked(b"x" * 60_000)] * 30, b"0\r\n\r\n")
        await arrivals.wait_end()
        assert arrivals.error is None
        assert len(arrivals.body) == 30 * 60_000
        assert most < 300_000


@both_loops
async def test_bytes_before_the_request_that_are_taken_after_it_are_no_answer_to_it() -> None:
    async with pair() as p:
        p.send()
        await p.deliver(answer(b"first"))
        async with before(p, p.send) as sent:
            p.server.sendall(answer(b"nobody asked for this"))
            arrivals = await sent
            async with asyncio.timeout(5):
                await arrivals.wait_end()
        assert isinstance(arrivals.error, httpx.ReadError)
        assert "before any answer" in str(arrivals.error)
