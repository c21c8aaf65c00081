"""Arrivals: body bytes with their stamps, and when they are parsed."""

import itertools

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.arrivals import GATHER_BYTES, Arrivals
from tests.fakes_api import STREAM_HEAD, both_loops, chunked, run_on
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


EVENTS = [b'data: {"a":%d}\n\n' % number for number in range(6)]
FRAMES = [
    *map(chunked, EVENTS[:2]),
    b"%X\r\n%b\r\n" % (len(EVENTS[2]), EVENTS[2]),
    b"000%x\r\n%b\r\n" % (len(EVENTS[3]), EVENTS[3]),
    b"%x;name=value\r\n%b\r\n" % (len(EVENTS[4]), EVENTS[4]),
    chunked(EVENTS[5]),
]


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(0, sum(map(len, FRAMES))), max_size=12), at_frames=st.booleans())
def test_chunks_are_the_same_whether_a_read_holds_one_or_any_piece(cuts: list[int], at_frames: bool) -> None:
    ends = [*itertools.accumulate(map(len, FRAMES))]
    places = sorted({*cuts, *ends} if at_frames else {*cuts, ends[-1]})
    stream = b"".join(FRAMES)

    async def main() -> None:
        async with pair() as p:
            arrivals = p.send()
            pieces = [stream[begin:end] for begin, end in itertools.pairwise([0, *places]) if begin < end]
            await p.deliver(STREAM_HEAD, *pieces, b"0\r\n\r\n")
            assert arrivals.ended
            assert arrivals.error is None
            chunks = arrivals.take()
            assert chunks == sorted(chunks, key=lambda chunk: chunk[0])
            assert b"".join(body for _, body in chunks) == b"".join(EVENTS)
            assert p.idle == [p.connection]

    run_on("uvloop", main())


@pytest.mark.parametrize("length", [b"ff", b"1", b"0xf", b"+f", b"0_f", b" f", b"-f", b"f ", b""])
def test_a_chunk_that_does_not_say_its_length_is_left_to_the_parser(length: bytes) -> None:
    assert len(EVENTS[0]) == 0xF

    async def main() -> None:
        async with pair() as p:
            arrivals = p.send()
            await p.deliver(STREAM_HEAD, chunked(EVENTS[1]), b"%b\r\n%b\r\n" % (length, EVENTS[0]), b"0\r\n\r\n")
            if not arrivals.ended:
                await p.hang_up()
            assert arrivals.error is not None
            assert arrivals.take()[0][1] == EVENTS[1]

    run_on("uvloop", main())
