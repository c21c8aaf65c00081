"""A connection of which something was read, and is taken only after something else."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from loadgen import reader
from tests.fakes_api import answer, both_loops
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
