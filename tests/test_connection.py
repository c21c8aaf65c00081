"""One connection, byte by byte."""

import asyncio
import socket
import struct
import time
from collections.abc import Iterator, Sequence

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.answer import Answer
from loadgen.connection import END_MARKER_GRACE_S, HEAD_LIMIT_BYTES
from tests.fakes_api import STREAM_HEAD, answer, both_loops, chunked, run_on
from tests.fakes_pair import REQUEST, pair

DONE = b'data: {"a":1}\n\ndata: [DONE]\n\n'


@both_loops
async def test_an_answer_arrives_with_its_status_headers_and_body() -> None:
    async with pair() as p:
        arrivals = p.send()
        await p.deliver(answer(b"hello", "404 Not Found", "text/plain", "X-Empty:", "X-More: 1"))
        assert arrivals.ended
        assert arrivals.error is None
        assert arrivals.status == 404
        assert arrivals.body == b"hello"
        names = [name for name, _ in arrivals.headers]
        assert names == [b"Content-Type", b"Content-Length", b"X-Empty", b"X-More"]
        assert dict(arrivals.headers)[b"X-Empty"] == b""
        assert p.server.recv(1000) == REQUEST
        assert p.idle == [p.connection]


@both_loops
async def test_a_connection_serves_one_request_after_another() -> None:
    async with pair() as p:
        for turn in range(50):
            arrivals = p.send()
            await p.deliver(STREAM_HEAD + chunked(b"%d" % turn), b"0\r\n\r\n")
            assert (arrivals.ended, arrivals.body) == (True, b"%d" % turn)
        assert len(p.idle) == 50
        assert p.closed == []


@both_loops
async def test_trailers_are_no_headers_of_this_answer_or_the_next() -> None:
    async with pair() as p:
        first = p.send()
        await p.deliver(STREAM_HEAD + chunked(b"a") + b"0\r\nX-Trailer: 1\r\n\r\n")
        assert (first.ended, first.error, len(first.headers)) == (True, None, 2)
        arrivals = p.send()
        await p.deliver(answer(b"b"))
        assert b"X-Trailer" not in dict(arrivals.headers)
        assert arrivals.body == b"b"


RESPONSES = {
    "chunked": STREAM_HEAD + chunked(b"one") + chunked(b"data: two\n\n") + b"0\r\n\r\n",
    "length": answer(b"onedata: two\n\n"),
    "interim": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answer(b"onedata: two\n\n"),
    "until close": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nonedata: two\n\n",
    "version 1.0": b"HTTP/1.0 200 OK\r\nContent-Type: x\r\n\r\nonedata: two\n\n",
}


def pieces_of(data: bytes, cuts: Sequence[int]) -> Iterator[bytes]:
    ends = sorted({cut for cut in cuts if 0 < cut < len(data)})
    for begin, end in zip([0, *ends], [*ends, len(data)], strict=True):
        yield data[begin:end]


@pytest.mark.parametrize("kind", RESPONSES)
@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(0, 130), max_size=12))
def test_an_answer_is_the_same_in_any_split(kind: str, cuts: list[int]) -> None:
    async def main() -> None:
        async with pair() as p:
            arrivals = p.send()
            await p.deliver(*pieces_of(RESPONSES[kind], cuts))
            if kind in ("until close", "version 1.0"):
                assert not arrivals.ended
                await p.hang_up()
            assert arrivals.ended
            assert arrivals.error is None
            assert arrivals.status == 200
            assert b"Link" not in dict(arrivals.headers)
            chunks = arrivals.chunks
            assert chunks == sorted(chunks, key=lambda chunk: chunk[0])
            assert b"".join(body for _, body in chunks) == b"onedata: two\n\n"

    run_on("uvloop", main())


@pytest.mark.parametrize("interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"])
@both_loops
async def test_interim_answers_are_passed_over(interim: bytes) -> None:
    async with pair() as p:
        arrivals = p.send()
        await p.deliver(interim, interim)
        assert arrivals.headers_ns is None
        assert not arrivals.ended
        await p.deliver(answer(b"x"))
        assert (arrivals.status, dict(arrivals.headers)[b"Content-Length"], arrivals.body) == (200, b"1", b"x")
        assert p.idle == [p.connection]


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
@both_loops
async def test_an_answer_without_a_body_ends_with_its_headers(status: bytes) -> None:
    async with pair() as p:
        arrivals = p.send()
        await p.deliver(b"HTTP/1.1 %s\r\nX: y\r\n\r\n" % status)
        assert (arrivals.ended, arrivals.error, arrivals.body) == (True, None, b"")
        assert p.idle == [p.connection]


@pytest.mark.parametrize(
    "more",
    [b"rubbish", answer(b"second"), b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 500 No\r\nContent-"],
    ids=["rubbish", "answer", "interim", "part"],
)
@both_loops
async def test_bytes_after_an_answer_cost_the_connection_and_not_the_answer(more: bytes) -> None:
    async with pair() as p:
        arrivals = p.send()
        await p.deliver(answer(b"first") + more)
        assert (arrivals.ended, arrivals.error, arrivals.status, arrivals.body) == (True, None, 200, b"first")
        assert p.idle == []
        assert p.closed == [p.connection]


@both_loops
async def test_bytes_that_nobody_asked_for_close_an_idle_connection() -> None:
    async with pair() as p:
        p.send()
        await p.deliver(answer(b"first"))
        await p.deliver(answer(b"second"))
        assert p.closed == [p.connection]


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n",
    ],
)
@both_loops
async def test_a_connection_is_not_reused_against_the_servers_word(head: bytes) -> None:
    async with pair() as p:
        arrivals = p.send()
        await p.deliver(head + b"ok")
        assert (arrivals.ended, arrivals.error, arrivals.body) == (True, None, b"ok")
        assert (p.idle, p.closed) == ([], [p.connection])


@pytest.mark.parametrize(
    ("sent", "kind", "says"),
    [
        (b"", httpx.ReadError, "before any answer"),
        (b"HTTP/1.1 200 OK\r\nConte", httpx.RemoteProtocolError, "in the middle of the response headers"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", httpx.RemoteProtocolError, "in the middle of the response headers"),
        (answer(b"whole")[:-1], httpx.ReadError, "in the middle of the answer"),
        (STREAM_HEAD + chunked(b"data"), httpx.ReadError, "in the middle of the answer"),
    ],
)
@pytest.mark.parametrize("reset", [False, True])
@both_loops
async def test_a_lost_connection_says_how_far_it_came(
    sent: bytes, kind: type[httpx.TransportError], says: str, reset: bool
) -> None:
    async with pair() as p:
        arrivals = p.send()
        await p.deliver(sent)
        await p.hang_up(reset=reset)
        assert type(arrivals.error) is kind
        assert says in str(arrivals.error)
        assert ("reset by peer" if reset else "closed by the server") in str(arrivals.error)
        assert p.closed == [p.connection]
        if sent.startswith(STREAM_HEAD):
            assert arrivals.body == b"data"


@pytest.mark.parametrize(
    "rubbish",
    [
        b"SSH-2.0-x\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        STREAM_HEAD + b"zz\r\n",
        b"HTTP/1.1 101 S\r\nUpgrade: h2c\r\n\r\n",
    ],
    ids=["ssh", "tls", "chunk size", "upgrade"],
)
@both_loops
async def test_what_is_not_http_is_said_to_be(rubbish: bytes) -> None:
    async with pair() as p:
        arrivals = p.send()
        await p.deliver(rubbish)
        if not arrivals.ended:  # a 101 without Connection: Upgrade
            await p.hang_up()
        assert isinstance(arrivals.error, httpx.RemoteProtocolError)
        assert p.closed == [p.connection]


@both_loops
async def test_a_switch_to_another_protocol_is_refused() -> None:
    async with pair() as p:
        arrivals = p.send()
        await p.deliver(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nxx")
        assert str(arrivals.error) == "the server switches to another protocol"
        assert p.closed == [p.connection]


@both_loops
async def test_headers_have_a_limit() -> None:
    async with pair() as p:
        arrivals = p.send()
        await p.deliver(b"HTTP/1.1 200 OK\r\n")
        for _ in range(HEAD_LIMIT_BYTES // 8192 + 1):
            await p.deliver(b"X-Header: " + b"a" * 8180 + b"\r\n")
            if arrivals.ended:
                break
        assert str(arrivals.error) == f"response headers over {HEAD_LIMIT_BYTES} bytes"
        assert p.closed == [p.connection]


@both_loops
async def test_an_end_marker_ends_the_stream_though_the_server_keeps_it_open() -> None:
    async with pair() as p:
        arrivals = p.send(say=Answer(2**20, keep_text=False).feed)
        await p.deliver(STREAM_HEAD + chunked(DONE))
        assert not arrivals.ended  # the last chunk may be on its way
        async with asyncio.timeout(5):
            await arrivals.wait_end()
        assert arrivals.error is None
        assert arrivals.end_ns == arrivals.last_ns
        assert p.closed == [p.connection]


@both_loops
async def test_an_end_marker_with_its_last_chunk_close_behind_keeps_the_connection() -> None:
    async with pair() as p:
        arrivals = p.send(say=Answer(2**20, keep_text=False).feed)
        await p.deliver(STREAM_HEAD + chunked(DONE), b"0\r\n\r\n")
        assert arrivals.ended
        assert p.idle == [p.connection]
        second = p.send()
        await asyncio.sleep(END_MARKER_GRACE_S * 1.5)  # the timer of the first must leave it alone
        assert not second.ended
        await p.deliver(answer(b"x"))
        assert second.body == b"x"


@both_loops
async def test_a_request_larger_than_the_socket_buffer_arrives_whole() -> None:
    async with pair() as p:
        message = REQUEST + bytes(range(256)) * 2**15  # 8 MiB
        arrivals = p.send(message)
        got = bytearray()
        p.server.setblocking(False)
        loop = asyncio.get_running_loop()
        while len(got) < len(message):
            got += await loop.sock_recv(p.server, 2**20)
        assert got == message
        p.server.setblocking(True)
        await p.deliver(answer(b"ok"))
        assert arrivals.body == b"ok"
        assert p.idle == [p.connection]


@both_loops
async def test_an_answer_before_the_request_is_sent_counts_and_ends_the_connection() -> None:
    async with pair() as p:
        arrivals = p.send(REQUEST + b"x" * 2**24)
        await p.deliver(answer(b"too large", "413 Too Large"))
        assert (arrivals.status, arrivals.error, arrivals.body) == (413, None, b"too large")
        assert (p.idle, p.closed) == ([], [p.connection])


@both_loops
async def test_an_answer_before_the_request_came_no_earlier_than_it() -> None:
    async with pair() as p:
        p.server.sendall(answer(b"who asks?"))
        arrivals = p.send()
        async with asyncio.timeout(5):
            await arrivals.wait_end()
        assert (arrivals.status, arrivals.error, arrivals.body) == (200, None, b"who asks?")
        assert {arrivals.headers_ns, arrivals.end_ns, arrivals.chunks[0][0]} == {arrivals.sent_ns}


@both_loops
async def test_an_answer_is_read_though_the_server_hung_up_on_the_request() -> None:
    async with pair() as p:
        p.server.sendall(answer(b"no", "400 Bad Request"))
        p.server.shutdown(socket.SHUT_RD)
        p.server.close()
        # The first send may still go through; the reset that answers it must not hide what was said before.
        arrivals = p.send(REQUEST + b"x" * 2**22)
        async with asyncio.timeout(5):
            await arrivals.wait_end()
        assert (arrivals.status, arrivals.error) == (400, None)


@both_loops
async def test_an_answer_is_read_though_the_request_could_not_even_be_begun() -> None:
    async with pair() as p:
        p.server.sendall(answer(b"no", "503 Service Unavailable"))
        p.server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        p.server.close()
        arrivals = p.send()
        async with asyncio.timeout(5):
            await arrivals.wait_end()
        assert (arrivals.status, arrivals.error, arrivals.body) == (503, None, b"no")


@both_loops
async def test_a_send_on_a_dead_connection_fails_before_any_answer() -> None:
    async with pair() as p:
        p.server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        p.server.close()
        arrivals = p.send(REQUEST)
        async with asyncio.timeout(5):
            await arrivals.wait_end()
        assert isinstance(arrivals.error, httpx.ReadError)
        assert "before any answer" in str(arrivals.error)
        assert p.closed == [p.connection]


@both_loops
async def test_stamps_lie_between_the_servers_write_and_the_read() -> None:
    async with pair() as p:
        await asyncio.sleep(0.001)
        arrivals = p.send()
        before_ns = time.time_ns()
        await p.deliver(STREAM_HEAD + chunked(b"a"))
        between_ns = time.time_ns()
        await p.deliver(chunked(b"b"), b"0\r\n\r\n")
        after_ns = time.time_ns()
        (first_ns, _), (second_ns, _) = arrivals.chunks
        assert before_ns <= first_ns <= between_ns <= second_ns <= arrivals.end_ns <= after_ns
        assert arrivals.headers_ns == first_ns
        assert arrivals.unstamped_reads == 0
        assert 0 < arrivals.read_lag_ns < 1_000_000_000


@both_loops
async def test_a_stamp_is_not_moved_by_a_client_that_reads_late() -> None:
    async with pair() as p:
        arrivals = p.send()
        p.server.sendall(STREAM_HEAD + chunked(b"a"))
        written_ns = time.time_ns()
        time.sleep(0.05)  # the loop is busy
        await p.deliver(b"", b"0\r\n\r\n")
        assert arrivals.chunks[0][0] <= written_ns
        assert arrivals.read_lag_ns >= 49_000_000


@both_loops
async def test_reads_without_stamps_take_the_time_of_the_read_and_are_counted() -> None:
    async with pair(stamps=False) as p:
        arrivals = p.send()
        before_ns = time.time_ns()
        await p.deliver(STREAM_HEAD + chunked(b"a"), b"0\r\n\r\n")
        assert before_ns <= arrivals.chunks[0][0] <= time.time_ns()
        assert arrivals.unstamped_reads == 2
        assert arrivals.read_lag_ns == 0


@both_loops
async def test_closing_is_seen_by_the_server_and_done_once() -> None:
    async with pair() as p:
        p.send()
        p.connection.close()
        p.connection.close()
        assert p.closed == [p.connection]
        p.server.recv(1000)
        assert p.server.recv(1) == b""
