"""What one process does of a run: its share of requests, errors and rate; and the user's tokenizer."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.answer import Answer
from loadgen.course import Share, Until
from loadgen.exchange import Exchange, Limits
from loadgen.load import _share_of, clear_the_way, dispersion, text_counter
from loadgen.record import Failure
from tests.fakes import SILENCE, a_request, a_wire, serve
from tests.fakes_api import tokenizer_file
from tests.test_exchange import EXPIRING, FAILURES, GOOD
from workloads.schedule import parse

if TYPE_CHECKING:
    from loadgen.record import Row


@given(st.integers(1, 8), st.integers(0, 1000))
def test_the_shares_of_all_workers_are_the_whole(workers: int, total: int) -> None:
    shares = [Share(worker, workers) for worker in range(workers)]
    counts = [share.count(total) for share in shares]
    assert sum(counts) == total
    assert max(counts) - min(counts) <= 1
    own = [_share_of(Until(requests=total, duration_s=3, per_slot=2), share) for share in shares]
    assert [until.requests for until in own] == counts
    assert {(until.duration_s, until.per_slot, until.errors) for until in own} == {(3, 2, None)}


@pytest.mark.parametrize(
    ("law", "variance_over_mean"),
    [("poisson", 1), ("constant", 0), ("gamma:3", 9), ("gamma:0.5", 0.25), ("ramp:1..5", None)],
)
def test_how_wild_arrivals_are(law: str, variance_over_mean: float | None) -> None:
    assert dispersion(parse(law)) == variance_over_mean
    assert dispersion(None) is None


def test_one_process_counts_its_errors_and_several_leave_it_to_the_first() -> None:
    assert _share_of(Until(errors=9), Share()).errors == 9
    assert [_share_of(Until(errors=9), Share(worker, 4)).errors for worker in range(4)] == [None] * 4


def test_a_tokenizer_counts_a_text(tmp_path: Path) -> None:
    count = text_counter(tokenizer_file(tmp_path))
    assert [count(text) for text in ("", "The", "The weather today")] == [0, 1, 3]


@pytest.mark.parametrize("content", [None, "", "{}", "no JSON"])
def test_a_file_that_is_no_tokenizer_is_a_mistake_of_the_user(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=r"^--tokenizer .*tokenizer\.json: (no such file|not a tokenizer\.json)"):
        text_counter(path)


# What must end the run


@pytest.mark.parametrize("own_transport", [True, False])
async def test_a_fault_of_ours_is_raised_at_once_and_said_in_the_row(
    own_transport: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(Answer, "feed", fail)
    rows: list[Row] = []
    transport = None if own_transport else httpx.AsyncHTTPTransport()
    async with (
        serve([*GOOD, SILENCE]) as server,
        a_wire(server.url, rows, transport=transport, limits=Limits()) as wire,
    ):
        with pytest.raises(KeyError, match="ours"):
            async with asyncio.timeout(5):  # less than any time limit
                await Exchange(wire, a_request(), "measure").run()
    (row,) = rows
    assert row.error == Failure("client", "a fault of loadgen: KeyError('ours')")


# The collector stays out of the load: nothing may be left to it


async def left_to_the_collector(
    url: str, send: Callable[[Exchange], Awaitable[None]], asked: dict[str, Any] | None = None, **changes: Any
) -> list[str]:
    """What ten requests leave in cycles, of our own: the server is in this process too."""
    rows: list[Row] = []
    async with a_wire(url, rows, **changes) as wire:
        gc.collect()
        gc.freeze()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for index in range(10):
                await send(Exchange(wire, msgspec.structs.replace(a_request(index), **(asked or {})), "measure"))
            await wire.slices.drain()
            await asyncio.sleep(0)
            gc.collect()
            return sorted(filter(None, map(ours, gc.garbage)))
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.unfreeze()
            assert len(rows) == 10


def ours(thing: Any) -> str | None:
    if isinstance(thing, FrameType):
        return thing.f_code.co_qualname if "/loadgen/" in thing.f_code.co_filename else None
    kind = type(thing)
    return kind.__qualname__ if kind.__module__.startswith("loadgen") else None


async def run(exchange: Exchange) -> None:
    await exchange.run()


@pytest.mark.parametrize("name", ["good", *FAILURES])
async def test_a_request_leaves_no_cycle_whatever_becomes_of_it(name: str) -> None:
    async with serve(FAILURES[name][0] if name in FAILURES else GOOD) as server:
        assert await left_to_the_collector(server.url, run) == []


@pytest.mark.parametrize("name", ["no answer", "silence in the middle"])
async def test_a_request_that_runs_into_a_limit_leaves_none_either(name: str) -> None:
    script, limits, *_ = EXPIRING[name]
    async with serve(script) as server:
        assert await left_to_the_collector(server.url, run, limits=limits) == []


async def test_nor_does_a_turn_of_a_conversation_or_a_user_who_leaves() -> None:
    async with serve(GOOD) as server:
        assert await left_to_the_collector(server.url, run, {"then": a_request(1)}) == []
    async with serve(EXPIRING["no answer"][0]) as server:
        assert await left_to_the_collector(server.url, run, {"leave_us": 10_000}) == []


async def test_a_refused_request_leaves_none_either(dead_port: int) -> None:
    assert await left_to_the_collector(f"http://127.0.0.1:{dead_port}", run) == []


def test_the_collector_comes_only_where_very_much_has_piled_up() -> None:
    before = gc.get_threshold()
    try:
        clear_the_way()
        assert gc.isenabled()
        assert gc.get_threshold()[0] >= 1_000_000
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
