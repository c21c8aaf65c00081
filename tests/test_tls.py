"""TLS: what is trusted, what is refused and how it is said, and ciphertext in any split."""

import asyncio
import contextlib
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.connection import Connection
from loadgen.reader import Reader
from loadgen.tls import Tls
from tests.fakes_api import LAST_CHUNK, STREAM_HEAD, answer, both_loops, chunked, listening, on_uvloop, receive, run_on
from tests.fakes_client import client, echo, nothing_leaks, post
from tests.fakes_pair import REQUEST, Kept
from tests.fakes_tls import TlsPeer, certificates


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    certificates()
    with nothing_leaks():
        yield


def is_tls(error: httpx.ConnectError) -> bool:
    return isinstance(error.__cause__, ssl.SSLError)


@both_loops
async def test_a_trusted_server_is_talked_to_on_one_connection() -> None:
    known = certificates()
    async with listening(echo, tls=known.server) as server, client(known.client) as http:
        for host in ("127.0.0.1", "127.0.0.1", "localhost"):
            arrivals, body = await post(http, f"https://{host}:{server.port}/", b"hello")
            assert (arrivals.status, body, arrivals.unstamped_reads) == (200, b"hello", 0)
        assert server.accepted == 2


@both_loops
async def test_large_bodies_go_both_ways() -> None:
    known = certificates()
    content = os.urandom(2**20) * 8
    async with listening(echo, tls=known.server) as server, client(known.client) as http:
        for _ in range(2):
            _, body = await post(http, server.url(scheme="https"), content)
            assert body == content
        assert server.accepted == 1


@on_uvloop
async def test_an_unknown_certificate_is_refused() -> None:
    async with listening(echo, tls=certificates().server) as server, client() as http:
        with pytest.raises(httpx.ConnectError, match=r"^TLS certificate of 127.0.0.1 refused: unable to get") as caught:
            await post(http, server.url(scheme="https"))
        assert is_tls(caught.value)


@on_uvloop
async def test_a_certificate_of_another_host_is_refused() -> None:
    other = certificates("other.test")
    async with listening(echo, tls=other.server) as server, client(other.client) as http:
        with pytest.raises(httpx.ConnectError, match=r"refused: IP address mismatch.* '127.0.0.1'") as caught:
            await post(http, server.url(scheme="https"))
        assert is_tls(caught.value)


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x28"])
@on_uvloop
async def test_a_handshake_that_fails_is_a_tls_error(greeting: bytes) -> None:
    async def no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(greeting)

    async with listening(no_tls) as server, client(certificates().client) as http:
        with pytest.raises(httpx.ConnectError, match=r"^TLS handshake with 127.0.0.1 failed: .") as caught:
            await post(http, server.url(scheme="https"))
        assert is_tls(caught.value)
        await server.idle.wait()


@on_uvloop
async def test_a_handshake_has_the_time_limit_of_a_connect() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            pass

    async with listening(silent) as server, client(certificates().client) as http:
        with pytest.raises(httpx.ConnectTimeout):
            await http.get(server.url(scheme="https"), timeout=httpx.Timeout(5, connect=0.05))
        await server.idle.wait()


@on_uvloop
async def test_a_server_that_hangs_up_after_the_handshake_is_no_tls_error() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await receive(reader)

    known = certificates()
    async with listening(hang_up, tls=known.server) as server, client(known.client) as http:
        with pytest.raises(httpx.ReadError, match="before any answer"):  # session tickets are no answer
            await post(http, server.url(scheme="https"))


# Ciphertext, read by read


class Served:
    """A connection under TLS over a socket pair, and the server's end."""

    def __init__(self, near: socket.socket, tls: Tls, far: socket.socket, peer: TlsPeer) -> None:
        self.far = far
        self.peer = peer
        self.idle: list[Connection] = []
        self.reader = Reader(stamped=False)
        self.connection = Connection(near, self.reader, tls, self.idle.append, lambda _: None)

    def send(self) -> Kept:
        arrivals = Kept()
        self.connection.send(REQUEST, arrivals)
        return arrivals

    async def deliver(self, *pieces: bytes) -> None:
        for piece in pieces:
            await asyncio.get_running_loop().sock_sendall(self.far, piece)
            await asyncio.sleep(0.0005)


@contextlib.asynccontextmanager
async def served(context: ssl.SSLContext | None = None) -> AsyncIterator[Served]:
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    tls, peer = Tls(certificates().client, "localhost"), TlsPeer(far, context)
    await asyncio.gather(tls.handshake(near), peer.handshake(), return_exceptions=context is not None)
    made = Served(near, tls, far, peer)
    try:
        yield made
    finally:
        made.connection.close()
        made.reader.close()
        far.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 600), max_size=10), st.lists(st.integers(1, 200), min_size=1, max_size=5))
def test_records_may_be_split_and_joined_anywhere(cuts: list[int], sizes: list[int]) -> None:
    async def main() -> None:
        async with served() as s:
            cipher = s.peer.encrypted(STREAM_HEAD)
            for size in sizes:
                cipher += s.peer.encrypted(chunked(b"x" * size))
            cipher += s.peer.encrypted(LAST_CHUNK)
            ends = sorted({cut for cut in cuts if cut < len(cipher)})
            arrivals = s.send()
            await s.deliver(*(cipher[a:b] for a, b in zip([0, *ends], [*ends, len(cipher)], strict=True)))
            assert (arrivals.ended, arrivals.status, arrivals.error) == (True, 200, None)
            assert len(arrivals.body) == sum(sizes)
            assert s.idle == [s.connection]

    run_on("uvloop", main())


@both_loops
async def test_a_close_notify_ends_a_body_without_a_length() -> None:
    async with served() as s:
        arrivals = s.send()
        await s.deliver(s.peer.encrypted(b"HTTP/1.1 200 OK\r\n\r\n"), s.peer.encrypted(b"body"))
        assert not arrivals.ended
        await s.deliver(s.peer.close_notify())  # the socket itself stays open
        assert (arrivals.ended, arrivals.error) == (True, None)
        assert arrivals.body == b"body"
        assert s.connection.closed


@both_loops
async def test_a_reset_after_the_close_notify_takes_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is read before what came before it is taken."""
    async with served() as s:
        arrivals = s.send()
        await s.deliver(s.peer.encrypted(b"HTTP/1.1 200 OK\r\n\r\n"))
        monkeypatch.setattr(Reader, "_take_some", lambda _: None)
        await s.deliver(s.peer.encrypted(b"body") + s.peer.close_notify())
        s.far.close()  # on an unread request: a reset
        while s.connection._lost_by is None:
            await asyncio.sleep(0)
        assert not arrivals.ended
        arrivals.catch_up()
        assert (arrivals.ended, arrivals.error, arrivals.body) == (True, None, b"body")


@both_loops
async def test_a_close_notify_before_the_end_is_a_lost_connection() -> None:
    async with served() as s:
        arrivals = s.send()
        await s.deliver(s.peer.encrypted(answer(b"whole")[:-1]) + s.peer.close_notify())
        assert isinstance(arrivals.error, httpx.ReadError)
        assert "in the middle of the answer" in str(arrivals.error)


@both_loops
async def test_a_close_notify_ends_an_idle_connection() -> None:
    async with served() as s:
        arrivals = s.send()
        await s.deliver(s.peer.encrypted(answer(b"x")) + s.peer.close_notify())
        assert (arrivals.ended, arrivals.error, s.connection.closed) == (True, None, True)


@both_loops
async def test_a_session_ticket_leaves_an_idle_connection_alone() -> None:
    async with served() as s:
        tickets = s.peer.encrypted(b"")
        assert tickets
        await s.deliver(tickets)
        assert not s.connection.closed
        arrivals = s.send()
        await s.deliver(s.peer.encrypted(answer(b"x")))
        assert (arrivals.ended, arrivals.error) == (True, None)


@both_loops
async def test_a_server_that_wants_a_client_certificate_is_a_tls_error() -> None:
    known = certificates()
    asking = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    known.issuer.issue_cert("localhost").configure_cert(asking)
    known.issuer.configure_trust(asking)
    asking.verify_mode = ssl.CERT_REQUIRED
    async with served(asking) as s:  # under TLS 1.3 the client learns of it after its handshake
        arrivals = s.send()
        await s.deliver(s.peer.encrypted(b""))
        assert isinstance(arrivals.error, httpx.ConnectError)
        assert is_tls(arrivals.error)
        assert "certificate required" in str(arrivals.error)


@both_loops
async def test_a_record_that_is_none_ends_the_connection() -> None:
    async with served() as s:
        arrivals = s.send()
        await s.deliver(s.peer.encrypted(STREAM_HEAD), b"\x17\x03\x03" + struct.pack(">H", 20) + b"x" * 20)
        assert isinstance(arrivals.error, httpx.ReadError)
        assert "in the middle of the answer" in str(arrivals.error)
        assert s.connection.closed
