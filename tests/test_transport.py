"""The pool, through httpx, over real sockets."""

import asyncio
import contextlib
import gzip
import os
import time
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from loadgen import transport as transport_module
from loadgen.transport import prepare
from tests.fakes_api import (
    LAST_CHUNK,
    STREAM_HEAD,
    Listener,
    answer,
    both_loops,
    chunked,
    listening,
    on_uvloop,
    receive,
)
from tests.fakes_client import client, echo, nothing_leaks, post, transport_of
from tests.fakes_pair import Kept


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    with nothing_leaks():
        yield


# The pool


@both_loops
async def test_requests_one_after_another_share_one_socket() -> None:
    async with listening(echo) as server, client() as http:
        for turn in range(50):
            arrivals, body = await post(http, server.url(), b"%d" % turn)
            assert body == b"%d" % turn
            assert (arrivals.connect_ns is None) is (turn > 0)
        assert (server.accepted, transport_of(http).connections_opened) == (1, 1)


@on_uvloop
async def test_eight_slots_need_eight_sockets() -> None:
    async def slot(http: httpx.AsyncClient, url: str) -> None:
        for _ in range(250):
            arrivals, _ = await post(http, url)
            assert arrivals.status == 200

    async with listening(echo) as server, client() as http:
        await asyncio.gather(*(slot(http, server.url()) for _ in range(8)))
        assert server.accepted == 8


@on_uvloop
async def test_three_hundred_streams_at_once_have_no_cap() -> None:
    everybody_in = asyncio.Event()
    inside = 0

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal inside
        await receive(reader)
        inside += 1
        if inside == 300:
            everybody_in.set()
        writer.write(STREAM_HEAD)
        await everybody_in.wait()
        writer.write(chunked(b"x") + LAST_CHUNK)
        await receive(reader)

    async with listening(hold) as server, client() as http, asyncio.timeout(20):
        done = await asyncio.gather(*(post(http, server.url()) for _ in range(300)))
        assert [body for _, body in done] == [b"x"] * 300
        assert server.accepted == 300


@on_uvloop
async def test_hosts_and_schemes_do_not_share_sockets() -> None:
    async with listening(echo) as one, listening(echo) as other, client() as http:
        for server in (one, other, one, other):
            await post(http, server.url())
        assert (one.accepted, other.accepted) == (1, 1)


@both_loops
async def test_large_bodies_go_both_ways() -> None:
    content = os.urandom(2**20) * 8
    async with listening(echo) as server, client() as http:
        _, body = await post(http, server.url(), content)
        assert body == content
        assert (await http.post(server.url(), content=content)).content == content
        assert server.accepted == 1


@on_uvloop
async def test_the_request_line_and_headers_are_what_httpx_says() -> None:
    seen = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await receive(reader))
        writer.write(answer("{}"))

    async with listening(note) as server, client() as http:
        await http.get(server.url("/a%20b?c=%26&d"), headers={"X-Y": "z"}, auth=("user", "pass"))
    assert seen[0].path == "/a%20b?c=%26&d"
    assert seen[0].headers["host"] == f"127.0.0.1:{server.port}"
    assert seen[0].headers["x-y"] == "z"
    assert seen[0].headers["authorization"] == "Basic dXNlcjpwYXNz"


@on_uvloop
async def test_a_compressed_control_answer_is_decoded() -> None:
    async def compressed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await receive(reader)
        writer.write(answer(gzip.compress(b"plain"), "200 OK", "text/plain", "Content-Encoding: gzip"))

    async with listening(compressed) as server, client() as http:
        assert (await http.get(server.url())).text == "plain"


# The one retry


@contextlib.asynccontextmanager
async def hanging_up_on(*turns: int, heard: bytes = b"") -> AsyncIterator[Listener]:
    """Answers requests, but hangs up on those of these numbers, counted over all connections, having said `heard`."""
    count = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        while True:
            request = await receive(reader)
            count += 1
            if count in turns:
                writer.write(heard)
                return
            writer.write(answer(request.body))

    async with listening(handle) as server:
        yield server


@on_uvloop
async def test_a_reused_connection_that_dies_unheard_is_tried_again_once() -> None:
    async with hanging_up_on(2) as server, client() as http:
        first, _ = await post(http, server.url(), b"a")
        second, body = await post(http, server.url(), b"b")
        assert (first.retries, second.retries) == (0, 1)
        assert (second.error, second.status, body) == (None, 200, b"b")
        assert second.connect_ns is not None
        assert server.accepted == 2


@on_uvloop
async def test_the_retry_is_not_tried_again() -> None:
    async with hanging_up_on(2, 3) as server, client() as http:
        await post(http, server.url())
        with pytest.raises(httpx.ReadError, match="before any answer"):
            await post(http, server.url())
        assert server.accepted == 2


@on_uvloop
async def test_the_retry_trusts_no_other_idle_connection() -> None:
    count = 0
    both = asyncio.Event()

    async def once_each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        await receive(reader)
        count += 1
        if count == 2:
            both.set()
        await both.wait()
        writer.write(answer("{}"))
        if count <= 2:  # gone as soon as the next request comes
            await receive(reader)

    async with listening(once_each) as server, client() as http:
        await asyncio.gather(post(http, server.url()), post(http, server.url()))
        arrivals, _ = await post(http, server.url())
        assert (arrivals.status, arrivals.retries, server.accepted) == (200, 1, 3)


@on_uvloop
async def test_a_fresh_connection_gets_no_retry() -> None:
    async with hanging_up_on(1) as server, client() as http:
        with pytest.raises(httpx.ReadError, match="before any answer"):
            await post(http, server.url())
        assert server.accepted == 1


@on_uvloop
async def test_an_answer_that_had_begun_gets_no_retry() -> None:
    async with hanging_up_on(2, heard=b"HTTP/1.1 200 OK\r\n") as server, client() as http:
        await post(http, server.url())
        with pytest.raises(httpx.RemoteProtocolError, match="middle of the response headers"):
            await post(http, server.url())
        assert server.accepted == 1


@on_uvloop
async def test_an_idle_connection_that_the_server_closes_leaves_the_pool() -> None:
    async def close_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await receive(reader)
        writer.write(answer("{}"))

    async with listening(close_at_once) as server, client() as http:
        for turn in range(3):
            arrivals, _ = await post(http, server.url())
            await server.idle.wait()
            await asyncio.sleep(0.001)
            assert (arrivals.retries, server.accepted) == (0, turn + 1)
        assert len(transport_of(http)._open) == 0


# Time limits and cancellation


@pytest.mark.parametrize("sent", [b"", STREAM_HEAD + chunked(b"x")], ids=["headers", "body"])
@both_loops
async def test_a_control_request_has_a_read_limit(sent: bytes) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await receive(reader)
        writer.write(sent)
        await reader.read()

    async with listening(silent) as server, client() as http:
        with pytest.raises(httpx.ReadTimeout, match=r"^no answer within 0.05 s$"):
            await http.get(server.url(), timeout=httpx.Timeout(5, read=0.05))
        await server.idle.wait()  # the server has seen the end
        assert len(transport_of(http)._open) == 0


@pytest.mark.parametrize("sent", [b"", STREAM_HEAD + chunked(b"x")], ids=["headers", "body"])
@both_loops
async def test_a_cancelled_request_closes_its_socket_and_the_server_sees_it(sent: bytes) -> None:
    begun = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await receive(reader)
        writer.write(sent)
        begun.set()
        assert await reader.read() == b""

    async with listening(silent) as server, client() as http:
        task = asyncio.create_task(post(http, server.url()))
        await begun.wait()
        await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            await server.idle.wait()
        assert len(transport_of(http)._open) == 0


@both_loops
async def test_a_request_that_is_cancelled_as_its_answer_ends_leaves_the_connection_to_others() -> None:
    class CancelledAtItsEnd(Kept):
        def finish(self, end_ns: int, error: httpx.TransportError | None = None) -> None:
            super().finish(end_ns, error)
            task.cancel()

    async with listening(echo) as server, client() as http:
        sent = prepare(http.build_request("POST", server.url()))
        task = asyncio.create_task(transport_of(http).post(sent, b"a", CancelledAtItsEnd(), 5))
        with pytest.raises(asyncio.CancelledError):
            await task
        _, body = await post(http, server.url(), b"b")
        assert (body, server.accepted) == (b"b", 1)


@both_loops
async def test_closing_the_client_closes_what_is_under_way() -> None:
    begun = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await receive(reader)
        begun.set()
        await reader.read()

    async with listening(silent) as server:
        async with client() as http:
            task = asyncio.create_task(post(http, server.url()))
            await begun.wait()
        async with asyncio.timeout(5):
            await server.idle.wait()
        task.cancel()
        await asyncio.wait([task])


# Stamps


@both_loops
async def test_stamps_come_from_the_kernel() -> None:
    written_ns = []

    async def two_writes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await receive(reader)
        for part in (STREAM_HEAD + chunked(b"a"), chunked(b"b"), LAST_CHUNK):
            written_ns.append(time.time_ns())
            writer.write(part)
            await asyncio.sleep(0.005)

    async with listening(two_writes) as server, client() as http:
        arrivals = Kept()
        await transport_of(http).post(prepare(http.build_request("POST", server.url())), b"", arrivals, 5)
        stamps = [stamp for stamp, _ in arrivals.chunks]
        assert [stamp >= written for stamp, written in zip(stamps, written_ns, strict=False)] == [True, True]
        assert stamps[0] < written_ns[1]
        assert (arrivals.unstamped_reads, arrivals.read_lag_ns > 0) == (0, True)
        assert arrivals.sent_ns <= written_ns[0]


@on_uvloop
async def test_without_stamps_the_time_of_the_read_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "SO_TIMESTAMPNS", 9999)  # what a system without it does: setsockopt fails
    async with listening(echo) as server, client() as http:
        arrivals, body = await post(http, server.url(), b"x")
        assert body == b"x"
        assert arrivals.unstamped_reads >= 1
        assert arrivals.read_lag_ns == 0
