"""Arrivals: body bytes with their stamps, and when they are parsed."""

import httpx

from loadgen.arrivals import GATHER_BYTES, Arrivals
from tests.fakes_api import STREAM_HEAD, both_loops, chunked
from tests.fakes_pair import pair


def test_gathered_bytes_are_announced_each_64_kib_and_taken_once() -> None:
    calls: list[int] = []
    arrivals = Arrivals(lambda: calls.append(1))
    for number in range(8):
        arrivals.add(1, b"x" * (GATHER_BYTES // 4))
        assert len(calls) == (number + 1) // 4
    assert len(arrivals.take()) == 8
    assert arrivals.take() == []
    arrivals.add(2, b"x" * GATHER_BYTES)
    assert len(calls) == 3


@both_loops
async def test_whole_events_are_parsed_when_someone_asks_or_the_answer_ends() -> None:
    event = b'data: {"a":1}\n\n'
    async with pair() as p:
        arrivals = p.send()
        await p.deliver(STREAM_HEAD, chunked(event), chunked(event))
        stamps = [stamp for stamp, body in arrivals.take() if body == event]
        assert len(stamps) == 2
        assert stamps[0] < stamps[1]
        await p.deliver(chunked(event), b"0\r\n\r\n")
        assert arrivals.ended
        assert [body for _, body in arrivals.take()] == [event]


@both_loops
async def test_a_broken_frame_behind_whole_events_fails_the_answer() -> None:
    event = b'data: {"a":1}\n\n'
    async with pair() as p:
        arrivals = p.send()
        await p.deliver(STREAM_HEAD, chunked(event), b"rubbish" + chunked(event))
        assert not arrivals.ended
        assert [body for _, body in arrivals.take()] == [event]
        assert isinstance(arrivals.error, httpx.RemoteProtocolError)
        assert p.closed == [p.connection]


@both_loops
async def test_events_read_before_the_connection_was_lost_are_kept() -> None:
    event = b'data: {"a":1}\n\n'
    async with pair() as p:
        arrivals = p.send()
        await p.deliver(STREAM_HEAD, chunked(event))
        await p.hang_up()
        assert isinstance(arrivals.error, httpx.ReadError)
        assert [body for _, body in arrivals.take()] == [event]


@both_loops
async def test_taking_after_closing_parses_what_was_read_and_offers_nothing_for_reuse() -> None:
    event = b'data: {"a":1}\n\n'
    async with pair() as p:
        arrivals = p.send()
        await p.deliver(STREAM_HEAD, chunked(event))
        p.connection.close()
        assert [body for _, body in arrivals.take()] == [event]
        assert p.idle == []
