"""A server that means harm costs one failed request: not the run, not the memory, not the terminal, not the key."""

import asyncio
import contextlib
import gc
import gzip
import itertools
import json
import time
import tracemalloc
import unicodedata
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from analysis import plots
from loadgen.cli.app import execute
from loadgen.connection import HEAD_LIMIT_BYTES, Connection
from loadgen.exchange import Exchange, Limits
from loadgen.record import Row
from loadgen.transport import CONTROL_LIMIT_BYTES, StampedTransport
from tests.fakes import (
    CLOSE,
    DONE,
    FIN,
    ROLE,
    At,
    Script,
    a_request,
    a_wire,
    content,
    event,
    in_turn,
    one_row,
    response,
    serve,
    stream,
    usage,
)
from tests.fakes_api import (
    STREAM_HEAD,
    Api,
    Handle,
    answer,
    chunked,
    listening,
    listening_in_a_thread,
    receive,
    refusal,
)
from tests.fakes_tls import little_trust

__all__ = ["little_trust"]

MIB = 2**20
SOON = Limits(first_s=0.3, idle_s=0.3, total_s=0.4, connect_s=2)
FINE = stream(ROLE, content("a"), FIN, usage(5, 1), DONE)
DEEP = b"[" * 200_000
TERMINAL = "\x1b[2J\x1b]0;title\x07\x9b31m\r\b\u202e"


async def beside_a_fine_one(script: Script, **changes: Any) -> Row:
    """The row of a request that gets `script`; the next request of the same client is none the worse."""
    rows: list[Row] = []
    async with serve(in_turn(script, FINE)) as server, a_wire(server.url, rows, **changes) as wire:
        for index in range(2):
            await Exchange(wire, a_request(index), "measure").run()
    assert [row.index for row in rows] == [0, 1]
    assert rows[1].status == "ok"
    return rows[0]


def failure(row: Row) -> tuple[str, str]:
    assert row.status == "failed"
    assert row.error is not None
    assert row.error.message.isprintable()
    assert len(row.error.message) < 500
    return row.error.kind, row.error.message


OK_HEAD = b"HTTP/1.1 200 OK\r\n"
A = content("a")
CASES: dict[str, tuple[Script, str, str]] = {
    "deep-json": (stream(b"data: " + DEEP + b"\n\n"), "protocol", "not JSON"),
    "deep-json-closed": (stream(b'data: {"x":' + DEEP + b"]" * len(DEEP) + b"}\n\n", FIN), "protocol", "not JSON"),
    "deep-error": (response(500, b'{"error":' + b'{"error":' * 20_000 + b"1" + b"}" * 20_001), "http_status", "500"),
    "deep-error-event": (stream(b'data: {"error":' + b'{"error":' * 900 + b"1" + b"}" * 901), "stream_error", ""),
    "escapes-in-an-error": (response(503, json.dumps({"error": {"message": TERMINAL}})), "http_status", "503"),
    "escapes-raw": (response(503, TERMINAL.encode() + b"\x00\xff"), "http_status", "503"),
    "escapes-in-an-event": (stream(event({"error": {"message": f"no{TERMINAL}"}})), "stream_error", "no"),
    "escapes-in-no-stream": (stream(TERMINAL.encode(), content_type="text/\x9b31m"), "protocol", "not an event"),
    "escapes-in-retry-after": (response(429, "x", "retry-after: \x9b2J" + "9" * 5000), "rate_limited", "retry after"),
    "a-content-type-without-end": (stream(b"<html>", content_type="a" * 9999), "protocol", "not an event"),
    "length-too-large": ([OK_HEAD + b"content-length: 999\r\n\r\n" + A, CLOSE], "truncated", "middle"),
    "length-too-small": ([OK_HEAD + b"content-length: 9\r\n\r\n" + A + FIN + DONE], "truncated", ""),
    "length-no-number": ([OK_HEAD + b"content-length: 1e3\r\n\r\n" + A, CLOSE], "protocol", "HTTP"),
    "length-twice": ([OK_HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcde", CLOSE], "protocol", "HTTP"),
    "chunk-larger-than-any": ([STREAM_HEAD + b"ffffffffffffffffff\r\n" + A, CLOSE], "protocol", "HTTP"),
    "gzip-unasked": (
        response(200, gzip.compress(A + FIN + DONE), "content-encoding: gzip"), "protocol", "gzip",
    ),
    "an-event-over-the-cap": (stream(A, content("x" * 3 * MIB), FIN, DONE), "protocol", "over 2097152 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_one_failed_request(name: str) -> None:
    script, kind, says = CASES[name]
    found = failure(await beside_a_fine_one(script, line_limit_bytes=2 * MIB))
    assert found[0] == kind
    assert says in found[1]


@pytest.mark.parametrize(
    "script",
    [
        stream(*(bytes([byte]) for byte in b"".join([ROLE, *itertools.repeat(content("a"), 60), FIN, DONE]))),
        stream(content("a"), content("x" * MIB), FIN, DONE),
        [b"HTTP/1.1 200 OK\r\ncontent-length: 999999\r\n\r\n" + content("a") + FIN + DONE, CLOSE],
    ],
    ids=["thousands-of-tiny-chunks", "an-event-of-a-mebibyte", "whole-before-a-wrong-length"],
)
async def test_what_is_odd_but_whole_passes(script: Script) -> None:
    assert (await beside_a_fine_one(script, line_limit_bytes=2 * MIB)).status == "ok"


@pytest.mark.parametrize("count", [10**400, 2**63, 10**18, -(10**18), "9" * 4000, 1e300])
async def test_a_count_beyond_reason_is_unknown(count: Any) -> None:
    row = await beside_a_fine_one(stream(content("a"), content("b"), FIN, usage(count, count), DONE))
    assert row.status == "ok"
    assert (row.prompt_tokens, row.output_tokens, row.tokens_from, row.events_tokens) == (None, 2, "events", None)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ([bytes([byte]) for byte in STREAM_HEAD + chunked(content("a"))], "timeout_first"),
        (stream(content("a"), *(bytes([byte]) for byte in content("b") * 3)), "timeout_total"),
    ],
    ids=["head", "body"],
)
async def test_a_slow_drip_ends_at_a_time_limit(script: Script, kind: str) -> None:
    dripping = [step for place, piece in enumerate(script) for step in (At(50 * place), piece)]
    row = await beside_a_fine_one(dripping, limits=SOON)
    assert failure(row)[0] == kind
    assert row.end_us is not None
    assert row.end_us < 2_000_000


# What has no end


@contextlib.asynccontextmanager
async def endless(head: bytes, piece: bytes) -> AsyncIterator[tuple[str, list[int]]]:
    """A server that never stops, and how many bytes it got rid of."""
    written = [0]

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await receive(reader)
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()
            written[0] += len(piece)

    async with listening(handle) as server:
        yield server.url(), written


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n"])
async def test_headers_without_end_are_cut_at_a_limit(head: bytes) -> None:
    async with endless(head, b"X-Filler: " + b"x" * 1000 + b"\r\n") as (url, written):
        assert failure(await one_row(url)) == ("protocol", f"response headers over {HEAD_LIMIT_BYTES} bytes")
    assert written[0] < HEAD_LIMIT_BYTES + 16 * MIB  # what the sockets' buffers took


@pytest.mark.parametrize(
    ("piece", "kind"),
    [
        (chunked(b"x" * 60_000), "protocol"),  # a line
        (chunked((b"data: " + b"x" * 100 + b"\n") * 600), "protocol"),  # an event
        (chunked(b"data: {]\n\n" * 5000), "protocol"),
        (chunked(content("a") * 300), "protocol"),
        (chunked(b": ping\n\n" * 8000), "timeout_first"),
        (chunked(b"\n" * 60_000), "timeout_first"),
    ],
    ids=["line", "event", "no-json", "output", "comments", "blank"],
)
async def test_a_body_without_end_costs_bounded_memory_and_time(
    piece: bytes, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.answer.MOST_EVENTS", 10_000)
    async with endless(STREAM_HEAD, piece) as (url, _):
        tracemalloc.start()
        limits = Limits(first_s=0.3 if kind == "timeout_first" else 5, idle_s=5, total_s=10)
        row = await one_row(url, limits=limits, line_limit_bytes=MIB)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert failure(row)[0] == kind
    assert row.end_us is not None
    assert row.end_us < 3_000_000
    assert peak < 8 * MIB


async def test_a_broken_stream_is_not_read_to_its_end() -> None:
    """Nothing in it can count any more, and it may have none."""
    limits = Limits(first_s=30, idle_s=30, total_s=30)
    async with endless(STREAM_HEAD + chunked(content("a")), chunked(b"x" * 60_000)) as (url, _):
        row = await one_row(url, limits=limits, line_limit_bytes=MIB)
    assert failure(row) == ("protocol", f"an event of over {MIB} bytes")
    assert row.end_us is not None
    assert row.end_us < 5_000_000


async def test_trailers_without_end_are_cut_at_a_limit() -> None:
    head = STREAM_HEAD + chunked(content("a")) + b"0\r\n"
    async with endless(head, b"X-Filler: " + b"x" * 1000 + b"\r\n") as (url, written):
        assert failure(await one_row(url)) == ("protocol", f"response headers over {HEAD_LIMIT_BYTES} bytes")
    assert written[0] < HEAD_LIMIT_BYTES + 16 * MIB


async def test_a_control_answer_without_end_is_cut_at_a_limit() -> None:
    async with endless(STREAM_HEAD, chunked(b"x" * 60_000)) as (url, written):
        async with httpx.AsyncClient(transport=StampedTransport(), trust_env=False, timeout=30) as http:
            with pytest.raises(httpx.RemoteProtocolError, match=f"an answer of over {CONTROL_LIMIT_BYTES} bytes"):
                await http.get(url)
        assert written[0] < CONTROL_LIMIT_BYTES + 16 * MIB


@pytest.mark.parametrize(("seen_before", "retries"), [(True, 0), (False, 1)])
async def test_bytes_that_came_before_a_request_are_no_answer_to_it(
    seen_before: bool, retries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They spoil the connection, also where they are found only after the request has gone out on it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await receive(reader)
        writer.write(answer(A + FIN + DONE, content_type="text/event-stream"))
        await asyncio.sleep(0.01)
        writer.write(answer(content("of another")))
        await reader.read()

    if not seen_before:
        monkeypatch.setattr(Connection, "still_idle", lambda _: True)
    rows: list[Row] = []
    with listening_in_a_thread(handle) as server:
        async with a_wire(server.url(), rows) as wire:
            await Exchange(wire, a_request(0), "measure").run()
            time.sleep(0.1)  # the loop sees nothing of it before the next request is out
            await Exchange(wire, a_request(1), "measure").run()
        assert server.accepted == 2
    assert [(row.status, row.retries) for row in rows] == [("ok", 0), ("ok", retries)]


# The key


@pytest.mark.parametrize("own_transport", [True, False])
async def test_a_redirect_is_not_followed_and_gets_no_key(own_transport: bool) -> None:
    transport = None if own_transport else httpx.AsyncHTTPTransport()
    async with serve(FINE) as other:
        script = response(307, "", f"location: {other.url.replace('127.0.0.1', 'localhost')}/v1")
        async with serve(script) as server:
            row = await one_row(server.url, transport=transport, headers={"Authorization": "Bearer sk-CANARY"})
    assert failure(row) == ("http_status", "HTTP 307")
    assert server.requests[0].headers["authorization"] == "Bearer sk-CANARY"
    assert other.requests == []
    assert other.connections == 0


# The whole program


@pytest.fixture
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, little_trust: None) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    yield
    gc.unfreeze()


def harmless(text: str) -> bool:
    """Nothing that a terminal obeys, or that turns the text about, but line ends."""
    return all(char == "\n" or unicodedata.category(char) not in ("Cc", "Cf", "Cs") for char in text)


class Turning(Api):
    """A fine server to the preflight; under load, every other answer is the next of the hostile ones."""

    def turn(self) -> Handle:
        left = itertools.cycle(
            [b"".join(step for step in one if isinstance(step, bytes)) for one, _, _ in CASES.values()]
        )
        count = itertools.count()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                request = await receive(reader)
                loaded = request.path.endswith("completions") and request.json().get("max_tokens") == 4
                if loaded and next(count) % 2:
                    writer.write(next(left))
                    return
                await self.serve_one(request, writer)

        return handle

    async def serve_one(self, request: Any, writer: asyncio.StreamWriter) -> None:
        single = asyncio.StreamReader()
        length = len(request.body)
        lines = [f"{request.method} {request.path} HTTP/1.1", f"content-length: {length}", "", ""]
        single.feed_data("\r\n".join(lines).encode() + request.body)
        single.feed_eof()
        with contextlib.suppress(asyncio.IncompleteReadError):
            await self(single, writer)


LOAD = ["--concurrency", "4", "--requests", str(3 * len(CASES)), "--input", "32", "--output", "4", "--out", "here"]
LOAD += ["--metrics", "none"]


def test_a_run_survives_them_all(
    somewhere: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("loadgen.closed.FAILURE_PAUSE_S", 0.001)
    with listening_in_a_thread(Turning().turn()) as server:
        flags = [*LOAD, "--max-event", "2MiB", "--timeout", "first=2s,idle=2s,total=3s"]
        code = execute(["run", server.url(), *flags])
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in Path("here/requests.jsonl").read_text().splitlines()]
    assert code in (0, 4)  # half of them failed, and which half is measured is up to the order
    assert sum(row["phase"] == "measure" for row in rows) == 3 * len(CASES)  # a slot may warm up more than once
    assert {row["error"]["kind"] for row in rows if row["error"]} == {kind for _, kind, _ in CASES.values()}
    assert sum(row["status"] == "ok" for row in rows) == pytest.approx(len(rows) / 2, abs=2)
    assert harmless(out)
    assert harmless(err)
    assert "here/" in err


@pytest.mark.parametrize(
    ("command", "json_flag"),
    [
        ("run", []),
        ("run", ["--json"]),
        ("report", []),
        ("report", ["--json"]),
        ("check", []),
        ("check", ["--json"]),
    ],
)
def test_no_name_or_message_reaches_the_terminal_as_it_is(
    command: str,
    json_flag: list[str],
    somewhere: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(plots, "draw", lambda *_: None)
    monkeypatch.setattr("loadgen.closed.FAILURE_PAUSE_S", 0.001)
    api = Api(models=[f"tiny{TERMINAL}"])
    flags = ["--concurrency", "1", "--requests", "3", "--input", "32", "--output", "4", "--out", "here"]
    with listening_in_a_thread(api) as server:
        if command == "check":
            assert execute(["check", server.url(), *json_flag]) == 0
        else:
            execute(["run", server.url(), *flags, *json_flag])
    if command == "report":
        capsys.readouterr()
        rows = Path("here/requests.jsonl").read_text().splitlines()
        failed = json.loads(rows[-1]) | {"status": "failed", "error": {"kind": "connect", "message": TERMINAL}}
        Path("here/requests.jsonl").write_text("\n".join([*rows[:-1], json.dumps(failed), ""]))
        execute(["report", "here", *json_flag])
    out, err = capsys.readouterr()
    assert "tiny" in out + err
    assert harmless(out), ascii(out)
    assert harmless(err), ascii(err)


def test_a_complaint_about_a_hostile_server_is_harmless(somewhere: None, capsys: pytest.CaptureFixture[str]) -> None:
    for hostile in (
        Api(models=[f"a{TERMINAL}", f"b{TERMINAL}"]),
        Api(answers={"/v1/models": refusal(TERMINAL, "500 No")}),
        Api(answers={"/v1/models": answer("", "302 Found", "x", f"Location: http://h/{TERMINAL!r}")}),
        Api(
            answers={
                "/v1/models": answer("x", "200 OK", "text/\x9b2J"),
                "/models": answer("x", "200 OK", "text/\x9b2J"),
            }
        ),
        Api(answers={"/v1/chat/completions": refusal(TERMINAL)}),
    ):
        with listening_in_a_thread(hostile) as server:
            assert execute(["run", server.url(), *LOAD]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert harmless(err), ascii(err)
        assert err.count("\n") == 1
