"""Exchanges of a client that is behind: it has read what came, and not taken it yet."""

import asyncio
from typing import Any

import pytest

from loadgen.connection import Connection
from loadgen.exchange import Exchange, Limits
from loadgen.reader import Reader
from loadgen.record import Kind, Row
from loadgen.transport import StampedTransport
from tests.fakes import DONE, FIN, RESET, ROLE, At, Script, a_request, a_wire, content, in_turn, serve, stream
from tests.test_exchange import GOOD, kind, row_of


@pytest.mark.parametrize(
    ("script", "limits", "expected"),
    [
        (GOOD, Limits(first_s=0.3), None),
        (GOOD, Limits(total_s=0.3), None),
        (stream(content("a"), At(10), RESET), Limits(total_s=0.3), "truncated"),
        (stream(ROLE, At(10), RESET), Limits(first_s=0.3), "truncated"),
        (stream(ROLE, content("a")), Limits(total_s=0.3), "truncated"),
        ([RESET], Limits(first_s=0.3), "connect"),
    ],
)
async def test_no_time_limit_passes_over_what_has_come(
    script: Script, limits: Limits, expected: Kind | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reader, "_take_some", lambda _: None)
    assert kind(await row_of(script, limits=limits)) == expected


async def test_no_time_limit_passes_over_an_end_that_the_request_is_about_to_hear_of() -> None:
    async with serve(GOOD) as server, a_wire(server.url, []) as wire:
        exchange = Exchange(wire, a_request(), "measure")
        exchange._arrivals.sent_ns = 1  # long ago
        assert exchange.overdue()[0] is not None
        exchange._arrivals.finish(2)
        assert exchange.overdue() == (None, 0)


async def test_a_stream_is_not_silent_whose_events_wait_to_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    take_some = Reader._take_some
    rows: list[Row] = []
    script = stream(content("a"), At(30), content("b"), FIN, DONE)
    async with serve(script) as server, a_wire(server.url, rows, limits=Limits(idle_s=0.3)) as wire:
        exchange = Exchange(wire, a_request(), "measure")
        behind = exchange._answer.events_ns
        monkeypatch.setattr(Reader, "_take_some", lambda reader: None if behind else take_some(reader))
        await exchange.run()
    assert (kind(rows[0]), len(rows[0].events_us)) == (None, 2)


async def test_the_second_try_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It connects slowly, after a time limit's length was spent on the first."""
    connect = StampedTransport._connect

    async def slowly(transport: StampedTransport, *about: Any) -> Connection:
        await asyncio.sleep(0.02)
        return await connect(transport, *about)

    rows: list[Row] = []
    script = in_turn(GOOD, [At(150), RESET], GOOD)
    async with serve(script) as server, a_wire(server.url, rows, limits=Limits(first_s=0.3)) as wire:
        await Exchange(wire, a_request(0), "measure").run()
        monkeypatch.setattr(StampedTransport, "_connect", slowly)
        monkeypatch.setattr(Reader, "_take_some", lambda _: None)  # hears of the reset when it looks for the limit
        await Exchange(wire, a_request(1), "measure").run()
    assert [(kind(row), row.retries, len(row.events_us)) for row in rows] == [(None, 0, 2), (None, 1, 2)]
