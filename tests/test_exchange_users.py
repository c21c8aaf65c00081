"""What users do besides waiting, over real sockets: they leave, and they go on with a conversation."""

import asyncio
import json
from typing import Any

import httpx
import msgspec
import pytest

from loadgen.clock import wall_ns
from loadgen.dialects import Dialect
from loadgen.exchange import Exchange, Sent
from loadgen.reader import Reader
from loadgen.record import Row
from tests.fakes import (
    DONE,
    FIN,
    RESET,
    ROLE,
    SILENCE,
    At,
    Script,
    a_request,
    a_wire,
    content,
    delta,
    response,
    serve,
    stream,
    usage,
)
from tests.test_exchange import TLS
from workloads.request import Request

HELD = stream(ROLE, content("a"), content("b"), SILENCE)


def request(**changes: Any) -> Request:
    return msgspec.structs.replace(a_request(), **changes)


async def sent_and_row(script: Script, asked: Request, due_ns: int | None = None, **changes: Any) -> tuple[Sent, Row]:
    rows: list[Row] = []
    async with serve(script) as server, a_wire(server.url, rows, **changes) as wire, asyncio.timeout(10):
        sent = await Exchange(wire, asked, "measure", due_ns).run()
    (row,) = rows
    return sent, row


# Leaving


@pytest.mark.parametrize("own_transport", [True, False])
async def test_who_leaves_closes_the_connection_in_the_middle_of_the_answer(own_transport: bool) -> None:
    rows: list[Row] = []
    transport = None if own_transport else httpx.AsyncHTTPTransport(verify=TLS)
    async with serve(HELD) as server, a_wire(server.url, rows, transport=transport) as wire, asyncio.timeout(10):
        sent = await Exchange(wire, request(leave_us=60_000), "measure").run()
        (handler,) = server._handlers
        await asyncio.wait([handler])  # the server has seen the end of its connection
    (row,) = rows
    assert sent == Sent(ok=True)
    assert (row.status, row.left, row.error, row.http_status) == ("cancelled", True, None, 200)
    assert len(row.events_us) == 2
    assert row.end_us is not None
    assert 60_000 <= row.end_us < 1_000_000


async def test_who_leaves_has_had_what_was_there_though_it_is_taken_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reader, "_take_some", lambda _: None)
    _, row = await sent_and_row(HELD, request(leave_us=200_000))
    assert (row.status, row.left, len(row.events_us)) == ("cancelled", True, 2)


async def test_who_would_leave_after_the_end_does_not() -> None:
    script = stream(ROLE, content("a"), FIN, usage(7, 1), DONE)
    sent, row = await sent_and_row(script, request(leave_us=5_000_000))
    assert (sent.ok, row.status, row.left) == (True, "ok", False)


async def test_an_answer_that_was_whole_when_its_user_left_is_whole() -> None:
    script = stream(ROLE, content("a"), FIN, SILENCE)  # and the connection is held open
    sent, row = await sent_and_row(script, request(leave_us=60_000))
    assert (sent.ok, row.status, row.left, row.finish_reason) == (True, "ok", False, "stop")


async def test_the_time_to_leave_counts_from_due() -> None:
    _, row = await sent_and_row(HELD, request(leave_us=5_060_000), wall_ns() - 5_000_000_000)
    assert (row.status, row.left) == ("cancelled", True)
    assert row.end_us is not None
    assert row.end_us < 2_000_000


async def test_who_has_left_before_its_turn_is_not_sent_at_all() -> None:
    rows: list[Row] = []
    async with serve(HELD) as server, a_wire(server.url, rows) as wire:
        sent = await Exchange(wire, request(leave_us=1000), "measure", wall_ns() - 5_000_000).run()
        assert server.requests == []
    (row,) = rows
    assert (sent.ok, row.status, row.left, row.sent_us, row.end_us) == (True, "cancelled", True, None, None)


@pytest.mark.parametrize(
    ("script", "kind"),
    [(response(500, "no"), "http_status"), (stream(content("a"), At(5), RESET), "truncated")],
)
async def test_a_failure_before_is_a_failure(script: Script, kind: str) -> None:
    sent, row = await sent_and_row(script, request(leave_us=2_000_000))
    assert row.error is not None
    assert (sent.ok, row.status, row.left, row.error.kind) == (False, "failed", False, kind)


async def test_the_end_of_the_level_is_no_leaving() -> None:
    rows: list[Row] = []
    async with serve(HELD) as server, a_wire(server.url, rows) as wire:
        task = asyncio.create_task(Exchange(wire, request(leave_us=9_000_000), "measure").run())
        while not server.requests:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
    assert (rows[0].status, rows[0].left) == ("cancelled", False)


# Conversations


async def test_a_conversation_repeats_what_the_server_said() -> None:
    script = stream(ROLE, content("a"), delta(reasoning="hm"), content(" b"), delta(tool_calls=[]), FIN, DONE)
    third = request(index=6, prompt="third", turn=2, then=None)
    second = request(index=5, prompt="second", turn=1, think_us=70_000, then=third)
    rows: list[Row] = []
    async with serve(script) as server, a_wire(server.url, rows) as wire:
        turn: Request | None = request(index=4, prompt="first", then=second)
        due_ns: int | None = None
        dues_ns = []
        while turn is not None:
            sent = await Exchange(wire, turn, "measure", due_ns).run()
            assert sent.ok
            turn, due_ns = sent.then, sent.then_due_ns
            dues_ns.append(due_ns)
    asked = [json.loads(one.body)["messages"] for one in server.requests]
    said = {"role": "assistant", "content": "a b"}  # neither the reasoning nor the tool call
    assert asked[0] == [{"role": "user", "content": "first"}]
    assert asked[1] == [*asked[0], said, {"role": "user", "content": "second"}]
    assert asked[2] == [*asked[1], said, {"role": "user", "content": "third"}]
    assert [(row.index, row.session, row.turn) for row in rows] == [(4, 4, 0), (5, 4, 1), (6, 4, 2)]
    ends_us = [(row.sent_us or 0) + (row.end_us or 0) for row in rows]
    assert [(due_ns or 0) // 1000 for due_ns in dues_ns] == pytest.approx([ends_us[0] + 70_000, ends_us[1], 0], abs=2)
    assert [row.due_us for row in rows[1:]] == [(due_ns or 0) // 1000 for due_ns in dues_ns[:2]]


async def test_completions_go_on_with_their_text() -> None:
    script = stream(*(b'data: {"choices":[{"text":"%b"}]}\n\n' % text for text in (b" c", b" d")), DONE)
    dialect = Dialect(api="completions", model="tiny")
    sent, _ = await sent_and_row(script, request(prompt="a b", then=request(prompt="e", turn=1)), dialect=dialect)
    assert sent.then is not None
    assert sent.then.prompt == "a b c d\ne"


@pytest.mark.parametrize(
    ("script", "leave_us", "ok"),
    [
        (response(500, "no"), None, False),
        (stream(ROLE, FIN, DONE), None, False),
        (HELD, 50_000, True),
    ],
)
async def test_a_turn_that_failed_or_was_left_ends_its_conversation(
    script: Script, leave_us: int | None, ok: bool
) -> None:
    sent, row = await sent_and_row(script, request(leave_us=leave_us, then=request(turn=1)))
    assert sent == Sent(ok=ok)
    assert (row.session, row.turn) == (0, 0)


async def test_what_the_plan_says_of_a_request_is_in_its_row() -> None:
    script = stream(ROLE, content("a"), FIN, DONE)
    asked = request(class_name="rag", item=7, group=3, shared_tokens=64, extra={"tools": [1]}, want_input_tokens=None)
    rows: list[Row] = []
    async with serve(script) as server, a_wire(server.url, rows) as wire:
        await Exchange(wire, asked, "warmup").run()
    (row,) = rows
    assert (row.class_name, row.item, row.group, row.shared_tokens, row.want_input_tokens) == ("rag", 7, 3, 64, None)
    assert (row.session, row.turn) == (None, 0)
    assert json.loads(server.requests[0].body)["tools"] == [1]
