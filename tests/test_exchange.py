"""One exchange over real sockets: every kind of failure caused for real, and stamps against the server's own times."""

import asyncio
import gzip
import socket
import ssl
from typing import Any

import httpx
import pytest

from loadgen.exchange import Exchange, Limits
from loadgen.record import Kind, Row, Secrets
from loadgen.transport import StampedTransport
from tests.fakes import (
    CLOSE,
    DONE,
    FIN,
    KERNEL_SLACK_US,
    RESET,
    ROLE,
    SILENCE,
    USER_SLACK_US,
    At,
    Script,
    Step,
    a_request,
    a_wire,
    content,
    delta,
    event,
    in_turn,
    one_row,
    response,
    serve,
    stream,
    usage,
)

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TLS = ssl.create_default_context()
GOOD = stream(ROLE, content("a"), content("b"), FIN, usage(7, 2), DONE)


async def row_of(script: Script, **changes: Any) -> Row:
    async with serve(script) as server:
        return await one_row(server.url, **changes)


def kind(row: Row) -> str | None:
    """None for a request that went well."""
    assert (row.status == "failed") == (row.error is not None)
    return None if row.error is None else row.error.kind


def message(row: Row) -> str:
    assert row.error is not None
    return row.error.message


async def test_a_whole_answer() -> None:
    async with serve(GOOD) as server:
        row = await one_row(f"{server.url}/v1/chat/completions")
    assert kind(row) is None
    assert (row.http_status, row.retries, row.phase, row.index) == (200, 0, "measure", 0)
    assert (row.prompt_tokens, row.output_tokens, row.tokens_from, row.events_tokens) == (7, 2, "usage", [1, 1])
    assert (row.finish_reason, row.answer_event, len(row.events_us)) == ("stop", 0, 2)
    assert row.due_us == row.sent_us
    assert row.connect_us is not None
    assert row.read_lag_us is not None
    assert row.sent_us is not None
    assert row.connect_us <= row.sent_us
    (received,) = server.requests
    assert (received.method, received.path) == ("POST", "/v1/chat/completions")
    assert received.headers["content-type"] == "application/json"


@pytest.mark.parametrize("own_transport", [True, False])
async def test_stamps_lie_within_the_writes_of_the_server(own_transport: bool) -> None:
    a, b, c = content("a"), content("b"), content("c")
    script = stream(At(10), ROLE, At(30), a, At(45), b, At(46), c, At(60), FIN, usage(7, 3), At(75), DONE)
    async with serve(script) as server:
        row = await one_row(server.url, transport=None if own_transport else httpx.AsyncHTTPTransport(verify=TLS))
    stamps_us = [row.headers_us, *row.events_us, row.end_us]
    slack_us = KERNEL_SLACK_US if own_transport else USER_SLACK_US
    server.assert_stamps(row, stamps_us, HEAD, a, b, c, DONE, slack_us=slack_us)
    assert (row.read_lag_us is not None) == own_transport


async def test_due_and_the_start_of_the_run_count_in_the_row() -> None:
    rows: list[Row] = []
    async with serve(GOOD) as server, a_wire(server.url, rows, start_ns=1_000_000_000_000) as wire:
        await Exchange(wire, a_request(3), "warmup", due_ns=1_000_002_500_000).run()
    (row,) = rows
    assert (row.due_us, row.phase, row.index) == (2500, "warmup", 3)
    assert row.sent_us is not None
    assert 0 <= server.requests[0].read_ns // 1000 - 1_000_000_000 - row.sent_us < USER_SLACK_US


# Failures: where in the answer it happens, and the kind it has to be

ERROR = event({"error": {"message": "engine died", "type": "InternalServerError", "code": 500}})
HTML = "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
DATE = "Wed, 21 Oct 2026 07:28:00 GMT"

FAILURES: dict[str, tuple[Script, Kind, str]] = {
    "reset before any answer": ([RESET], "connect", "before any answer"),
    "closed before any answer": ([CLOSE], "connect", "before any answer"),
    "reset in the headers": ([HEAD[:40], At(10), RESET], "protocol", "response headers"),
    "closed in the headers": ([HEAD[:40], CLOSE], "protocol", "response headers"),
    "reset after the headers": ([HEAD, At(10), RESET], "truncated", "connection lost"),
    "reset in the stream": (stream(content("a"), At(10), RESET), "truncated", "connection lost"),
    "reset in the first event": (stream(content("a")[:20], At(10), RESET), "truncated", "connection lost"),
    "no last chunk": (stream(content("a"), CLOSE), "truncated", "connection lost"),
    "a clean end without a marker": (stream(ROLE, content("a")), "truncated", "without finish_reason"),
    "a clean end in the middle of an event": (stream(ROLE, content("a")[:20]), "truncated", "without finish_reason"),
    "a role and no more": (stream(ROLE), "truncated", "without finish_reason"),
    "pings and no more": (stream(b": ping\n\n", b"event: ping\n\n"), "truncated", "without finish_reason"),
    "500": (response(500, {"error": {"message": "boom"}}), "http_status", "HTTP 500: boom"),
    "500 without a body": (response(500, ""), "http_status", "HTTP 500"),
    "500 cut short": ([b"HTTP/1.1 500 Any\r\ncontent-length: 99\r\n\r\nboom", At(10), CLOSE], "http_status", "boom"),
    "404": (response(404, {"detail": "Not Found"}), "http_status", "HTTP 404: Not Found"),
    "307": (response(307, "", "location: http://elsewhere/"), "http_status", "HTTP 307"),
    "429": (response(429, {"error": "slow down"}), "rate_limited", "HTTP 429: slow down"),
    "429 with seconds": (response(429, "", "retry-after: 7"), "rate_limited", "(retry after 7)"),
    "429 with a date": (response(429, "", f"Retry-After: {DATE}"), "rate_limited", f"(retry after {DATE})"),
    "503 with seconds": (response(503, HTML, "retry-after: 7"), "rate_limited", "502 Bad Gateway"),
    "503": (response(503, HTML), "http_status", "HTTP 503: <html>"),
    "error first": (stream(ERROR, DONE), "stream_error", "engine died"),
    "error in the middle": (stream(ROLE, content("a"), ERROR, DONE), "stream_error", "engine died"),
    "error as a string": (stream(content("a"), event({"error": "out of memory"})), "stream_error", "out of memory"),
    "error as an event": (stream(b'event: error\ndata: {"message": "gone"}\n\n'), "stream_error", "gone"),
    "error as finish_reason": (stream(content("a"), delta(finish_reason="error"), DONE), "stream_error", "error"),
    "error as the whole body": (response(200, {"error": {"message": "bad model"}}), "stream_error", "bad model"),
    "error then reset": (stream(content("a"), ERROR, At(10), RESET), "stream_error", "engine died"),
    "HTML": (response(200, HTML, "content-type: text/html"), "protocol", "not an event stream (text/html)"),
    "a whole answer as JSON": (response(200, {"choices": [{"message": {"content": "a"}}]}), "protocol", "not an event"),
    "not HTTP": ([b"SSH-2.0-OpenSSH_9.6\r\n\r\n", At(10), CLOSE], "protocol", "HTTP"),
    "not HTTP in the middle": ([HEAD, b"zz\r\nx", At(10), CLOSE], "protocol", "HTTP"),
    "compressed": (
        response(200, gzip.compress(DONE), "content-type: text/event-stream", "content-encoding: x-gzip"),
        "protocol",
        "not an event stream (text/event-stream, x-gzip)",
    ),
    "not JSON": (stream(ROLE, b"data: <html>\n\n", DONE), "protocol", "not JSON"),
    "an empty body": (response(200, ""), "empty", "without a body"),
    "an end without output": (stream(ROLE, FIN, usage(7, 0), DONE), "empty", "without any output"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
async def test_failure(name: str) -> None:
    script, expected, text = FAILURES[name]
    row = await row_of(script)
    assert (kind(row), text in message(row)) == (expected, True), row.error
    assert (row.http_status is None) == (row.headers_us is None)
    assert (row.output_tokens is None) == (row.tokens_from is None)


# httpx's own transport tells less, but the kind must not depend on the transport.
LESS_TOLD = ("reset in the headers", "closed in the headers")


@pytest.mark.parametrize("name", [name for name in FAILURES if name not in LESS_TOLD])
async def test_failure_by_httpx_own_transport(name: str) -> None:
    script, expected, _ = FAILURES[name]
    row = await row_of(script, transport=httpx.AsyncHTTPTransport(verify=TLS))
    assert kind(row) == expected, row.error


async def test_what_came_before_a_failure_stays_in_the_row() -> None:
    row = await row_of(stream(ROLE, content("a", 1), content("b", 3), At(10), RESET))
    assert (len(row.events_us), row.events_tokens, row.output_tokens, row.tokens_from) == (2, [1, 2], 3, "usage")
    assert row.end_us is not None
    row = await row_of(stream(ROLE, content("a"), content("b"), At(10), RESET))
    assert (len(row.events_us), row.events_tokens, row.output_tokens, row.tokens_from) == (2, None, 2, "events")


@pytest.mark.parametrize("own_transport", [True, False])
async def test_connection_refused(dead_port: int, own_transport: bool) -> None:
    transport = None if own_transport else httpx.AsyncHTTPTransport(verify=TLS)
    row = await one_row(f"http://127.0.0.1:{dead_port}", transport=transport)
    assert kind(row) == "connect"
    assert (row.sent_us, row.headers_us, row.end_us, row.events_us) == (None, None, None, [])
    assert row.due_us > 0


@pytest.mark.parametrize("own_transport", [True, False])
async def test_tls_with_a_server_that_has_none(own_transport: bool) -> None:
    async def speak_plainly(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(speak_plainly, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        transport = StampedTransport(TLS) if own_transport else httpx.AsyncHTTPTransport(verify=TLS)
        row = await one_row(f"https://127.0.0.1:{port}", transport=transport)
    assert kind(row) == "tls", row.error


# Time limits


def every_20_ms(piece: bytes, times: int) -> list[Step]:
    steps: list[Step] = []
    for turn in range(times):
        steps += [At(20 * turn), piece]
    return steps


SLOW_START = Limits(first_s=0.08)
EXPIRING: dict[str, tuple[Script, Limits, Kind, int]] = {
    "no answer": ([SILENCE], SLOW_START, "timeout_first", 0),
    "no answer in all": ([SILENCE], Limits(total_s=0.08), "timeout_total", 0),
    "headers only": ([HEAD, SILENCE], SLOW_START, "timeout_first", 0),
    "pings only": (
        stream(At(20), b":\n\n", At(40), b": x\n\n", ROLE, At(60), b":\n\n", SILENCE),
        SLOW_START,
        "timeout_first",
        0,
    ),
    "silence in the middle": (stream(ROLE, content("a"), SILENCE), Limits(idle_s=0.15), "timeout_idle", 1),
    "silence after the headers": ([HEAD, SILENCE], Limits(idle_s=0.08), "timeout_idle", 0),
    "dripping": (
        stream(*every_20_ms(content("a"), 20)),
        Limits(total_s=0.15),
        "timeout_total",
        2,
    ),
}


@pytest.mark.parametrize("own_transport", [True, False])
@pytest.mark.parametrize("name", EXPIRING)
async def test_time_limit(name: str, own_transport: bool) -> None:
    script, limits, expected, least_events = EXPIRING[name]
    async with serve(script) as server:
        begun = asyncio.get_running_loop().time()
        row = await one_row(
            server.url, limits=limits, transport=None if own_transport else httpx.AsyncHTTPTransport(verify=TLS)
        )
        took_s = asyncio.get_running_loop().time() - begun
    assert kind(row) == expected, row.error
    limit_s = {"timeout_first": limits.first_s, "timeout_idle": limits.idle_s, "timeout_total": limits.total_s}
    assert limit_s[expected] <= took_s < limit_s[expected] + 5
    assert len(row.events_us) >= least_events


async def test_pings_keep_a_stream_alive() -> None:
    pings: list[Step] = []
    for turn in range(12):
        pings += [At(50 * turn), b": ping\n\n"]
    row = await row_of(stream(*pings, content("a"), FIN, DONE), limits=Limits(idle_s=0.45))
    assert kind(row) is None
    assert row.events_us[0] > 500_000


async def test_connect_limit() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        row = await one_row(f"http://127.0.0.1:{address[1]}", limits=Limits(connect_s=0.08))
        for filler in fillers:
            filler.close()
    assert kind(row) == "timeout_connect"
    assert row.sent_us is None
    assert row.connect_us is not None


# How a stream ends, and what becomes of its connection


@pytest.mark.parametrize("own_transport", [True, False])
async def test_an_end_marker_ends_the_answer_though_the_connection_stays_open(own_transport: bool) -> None:
    async with serve(stream(content("a"), FIN, DONE, SILENCE)) as server:
        transport = None if own_transport else httpx.AsyncHTTPTransport(verify=TLS)
        begun = asyncio.get_running_loop().time()
        row = await one_row(server.url, transport=transport, limits=Limits())
        assert asyncio.get_running_loop().time() - begun < 5  # less than any time limit
    assert kind(row) is None
    server.assert_stamps(row, [row.end_us], DONE, slack_us=KERNEL_SLACK_US if own_transport else USER_SLACK_US)


@pytest.mark.parametrize("own_transport", [True, False])
async def test_an_answer_that_cannot_be_read_ends_at_once(own_transport: bool) -> None:
    async with serve(stream(ROLE, content("a"), b"data: {]\n\n", SILENCE)) as server:
        transport = None if own_transport else httpx.AsyncHTTPTransport(verify=TLS)
        begun = asyncio.get_running_loop().time()
        row = await one_row(server.url, transport=transport, limits=Limits())
        assert asyncio.get_running_loop().time() - begun < 5  # less than any time limit
    assert (kind(row), len(row.events_us)) == ("protocol", 1)
    assert row.end_us is not None
    assert row.end_us >= row.events_us[0]


async def rows_one_after_another(url: str, count: int, **changes: Any) -> list[Row]:
    rows: list[Row] = []
    async with a_wire(url, rows, **changes) as wire:
        for index in range(count):
            await Exchange(wire, a_request(index), "measure").run()
            await asyncio.sleep(0.01)
    return rows


@pytest.mark.parametrize("own_transport", [True, False])
async def test_a_whole_answer_leaves_its_connection_for_the_next_request(own_transport: bool) -> None:
    async with serve(GOOD) as server:
        transport = StampedTransport() if own_transport else httpx.AsyncHTTPTransport(verify=TLS)
        rows = await rows_one_after_another(server.url, 3, transport=transport)
    assert [kind(row) for row in rows] == [None] * 3
    assert [row.connect_us is None for row in rows] == [False, True, True]
    assert (server.connections, len(server.requests)) == (1, 3)


async def test_a_reused_connection_that_dies_unheard_is_replaced_once_and_said() -> None:
    async with serve(in_turn(GOOD, [RESET], GOOD)) as server:
        rows = await rows_one_after_another(server.url, 2)
    assert [(kind(row), row.retries) for row in rows] == [(None, 0), (None, 1)]
    assert (server.connections, len(server.requests)) == (2, 3)


async def test_cancelled() -> None:
    rows: list[Row] = []
    async with serve(stream(content("a"), SILENCE)) as server, a_wire(server.url, rows) as wire:
        exchange = Exchange(wire, a_request(), "measure")
        task = asyncio.create_task(exchange.run())
        while not exchange._answer.events_ns:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    (row,) = rows
    assert (row.status, row.error, len(row.events_us)) == ("cancelled", None, 1)


# Limits of size


async def test_a_line_over_the_limit_fails_that_request_only() -> None:
    async with serve(in_turn(stream(content("a" * 3000), FIN, DONE), GOOD)) as server:
        row = await one_row(server.url, line_limit_bytes=2000)
        assert (kind(row), "2000 bytes" in message(row)) == ("protocol", True)
        assert kind(await one_row(server.url, line_limit_bytes=2000)) is None


async def test_an_event_is_taken_as_it_comes() -> None:
    """No body waits for the end of its stream, which may have none."""
    rows: list[Row] = []
    async with serve(stream(content("a"), content("b"), SILENCE)) as server, a_wire(server.url, rows) as wire:
        exchange = Exchange(wire, a_request(), "measure")
        task = asyncio.create_task(exchange.run())
        while len(exchange._answer.events_ns) < 2:
            await asyncio.sleep(0.005)
        task.cancel()


# Secrets


@pytest.mark.parametrize(
    "body", ["no such key sk-verysecret", "x" * 290 + " sk-verysecret", '{"error": "Bearer sk-verysecret is wrong"}']
)
@pytest.mark.parametrize("status", [200, 401])
async def test_a_key_that_the_server_repeats_is_hidden(body: str, status: int) -> None:
    key = "sk-verysecret"
    async with serve(response(status, body)) as server:
        row = await one_row(server.url, headers={"authorization": f"Bearer {key}"}, secrets=Secrets([key]))
    assert server.requests[0].headers["authorization"] == f"Bearer {key}"
    assert "sk-v" not in message(row)
    assert len(message(row)) < 400


async def test_a_key_in_an_event_is_hidden() -> None:
    secrets = Secrets(["sk-verysecret"])
    row = await row_of(stream(event({"error": {"message": "key sk-verysecret is over"}})), secrets=secrets)
    assert (kind(row), message(row)) == ("stream_error", "key *** is over")
    row = await row_of(stream(content("a"), delta(finish_reason=f"sk-verysecret{'x' * 200}"), DONE), secrets=secrets)
    assert row.finish_reason == "***" + "x" * 97


# Other transports


async def test_a_mock_transport_needs_no_socket() -> None:
    body = ROLE + content("a") + content("b") + FIN + usage(7, 2) + DONE
    row = await one_row("http://mock", transport=httpx.MockTransport(lambda _: httpx.Response(200, content=body)))
    assert (kind(row), len(row.events_us), row.bounds, row.read_lag_us) == (None, 2, 1, None)


async def test_a_fault_of_the_transport_is_a_failure_of_the_client() -> None:
    def fail(_: httpx.Request) -> httpx.Response:
        raise OSError(24, "Too many open files")

    row = await one_row("http://mock", transport=httpx.MockTransport(fail))
    assert (kind(row), message(row)) == ("client", "Too many open files")
