"""A body in HTTP chunks: a read that holds one whole chunk takes a short way, and comes to the same."""

import asyncio
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen import connection as module
from loadgen.answer import Answer
from loadgen.arrivals import Arrivals, Said
from loadgen.connection import SMALL_READ_BYTES, Connection
from tests.fakes import content
from tests.fakes_api import LAST_CHUNK, STREAM_HEAD, both_loops, chunked, run_on
from tests.fakes_pair import pair

EVENTS = [b'data: {"a":%d}\n\n' % number for number in range(6)]
EVENT = EVENTS[0]
FRAMES = [
    *map(chunked, EVENTS[:2]),
    b"%X\r\n%b\r\n" % (len(EVENTS[2]), EVENTS[2]),
    b"000%x\r\n%b\r\n" % (len(EVENTS[3]), EVENTS[3]),
    b"%x;name=value\r\n%b\r\n" % (len(EVENTS[4]), EVENTS[4]),
    chunked(EVENTS[5]),
]
LONG = b"data: " + b"x" * 5000 + b"\n\n"  # longer than the table of the short way


def pieces_of(data: bytes, places: Iterable[int]) -> Iterator[bytes]:
    ends = sorted({place for place in places if 0 < place < len(data)})
    for begin, end in itertools.pairwise([0, *ends, len(data)]):
        yield data[begin:end]


@settings(max_examples=60)
@given(cuts=st.lists(st.integers(0, sum(map(len, FRAMES))), max_size=12), at_frames=st.booleans())
def test_chunks_are_the_same_whether_a_read_holds_one_or_any_piece(cuts: list[int], at_frames: bool) -> None:
    ends = itertools.accumulate(map(len, FRAMES)) if at_frames else ()

    async def main() -> None:
        async with pair() as p:
            arrivals = p.send()
            await p.deliver(STREAM_HEAD, *pieces_of(b"".join(FRAMES), {*cuts, *ends}), LAST_CHUNK)
            assert arrivals.ended
            assert arrivals.error is None
            assert arrivals.chunks == sorted(arrivals.chunks, key=lambda chunk: chunk[0])
            assert arrivals.body == b"".join(EVENTS)
            assert p.idle == [p.connection]

    run_on("uvloop", main())


@pytest.mark.parametrize("length", [b"ff", b"1", b"0xf", b"+f", b"0_f", b" f", b"-f", b"f ", b""])
def test_a_chunk_that_does_not_say_its_length_is_left_to_the_parser(length: bytes) -> None:
    assert len(EVENT) == 0xF

    async def main() -> None:
        async with pair() as p:
            arrivals = p.send()
            await p.deliver(STREAM_HEAD, chunked(EVENTS[1]), b"%b\r\n%b\r\n" % (length, EVENT))
            if not arrivals.ended:
                await p.deliver(LAST_CHUNK)
            if not arrivals.ended:
                await p.hang_up()
            assert arrivals.error is not None
            assert arrivals.chunks[0][1] == EVENTS[1]

    run_on("uvloop", main())


ODD_FRAMES = [
    *(
        chunked(EVENT),
        chunked(b"x"),
        chunked(b"y" * 171),
        b"AB\r\n%b\r\n" % (b"z" * 171),
        b"aB\r\n%b\r\n" % (b"z" * 171),
    ),
    *(chunked(b"ends as a chunk does\r\n"), chunked(b"\r\n"), chunked(b"3\r\nabc\r\n"), chunked(LONG)),
    *(b"f\r\n%b\n\n" % EVENT, b"f\r\n%b\r\r" % EVENT, b"f\r\n%bxx" % EVENT, b"f\n%b\r\n" % EVENT, b"f\r\n%b" % EVENT),
    *(b"e\r\n%b\r\n" % EVENT, b"10\r\n%b\r\n" % EVENT, b"0f\r\n%b\r\n" % EVENT, b"f;a=b\r\n%b\r\n" % EVENT),
    *(b"0\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"\r\n", b"f\r\n", b"rubbish\r\n"),
]


def alike_by_the_parser_alone(pieces: Sequence[bytes]) -> None:
    async def main() -> None:
        came = await _came_of(pieces)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_BEGIN", [()] * len(module._BEGIN))
            assert await _came_of(pieces) == came

    run_on("uvloop", main())


async def _came_of(pieces: Sequence[bytes]) -> tuple[object, ...]:
    async with pair() as p:
        arrivals = p.send()
        for piece in pieces:
            if p.connection.closed:
                break
            await p.deliver(piece)
        said = (arrivals.ended, repr(arrivals.error), arrivals.status, len(p.idle), p.connection.closed)
        reads = [len(body) for _, body in arrivals.chunks]
        assert arrivals.chunks == sorted(arrivals.chunks, key=lambda chunk: chunk[0])
        if not p.connection.closed:
            await p.hang_up()
        return (*said, repr(arrivals.error), arrivals.body, reads)


@settings(max_examples=150)
@given(
    frames=st.lists(st.sampled_from(ODD_FRAMES), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 6000), max_size=4),
    at_frames=st.booleans(),
)
def test_what_comes_of_any_read_is_what_the_parser_alone_makes_of_it(
    frames: list[bytes], cuts: list[int], at_frames: bool
) -> None:
    stream = chunked(EVENT) + b"".join(frames)
    ends = itertools.accumulate(map(len, (chunked(EVENT), *frames))) if at_frames else ()
    alike_by_the_parser_alone([STREAM_HEAD, *pieces_of(stream, {*cuts, *ends})])


@pytest.mark.parametrize("before", [b"1", b"0", b"\r\n", b"5;x=", b"15\r\n", b"15\r\nabc\r\n"])
def test_what_looks_like_a_chunk_within_another_is_none(before: bytes) -> None:
    pieces = [STREAM_HEAD, chunked(EVENT), before, chunked(b"hello"), b"x" * 14 + b"\r\n", LAST_CHUNK]
    alike_by_the_parser_alone(pieces)


@both_loops
async def test_what_looks_like_a_chunk_where_an_answer_should_begin_is_none() -> None:
    async with pair() as p:
        p.send()
        await p.deliver(STREAM_HEAD, chunked(EVENT), LAST_CHUNK)
        arrivals = p.send()
        await p.deliver(chunked(EVENT))
        assert "not a valid HTTP response" in str(arrivals.error)
        assert arrivals.chunks == []


@pytest.mark.parametrize("body", [b"x", EVENT, b"y" * 171, b"y" * 4000], ids=len)
@pytest.mark.parametrize("write", ["%x", "%X"])
def test_one_whole_chunk_does_not_reach_the_parser(body: bytes, write: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    parse = Connection._parse

    def noted(connection: Connection, stamp_ns: int, data: bytes, arrivals: Arrivals) -> None:
        parsed.append(data)
        parse(connection, stamp_ns, data, arrivals)

    monkeypatch.setattr(Connection, "_parse", noted)
    frame = (write % len(body)).encode() + b"\r\n" + body + b"\r\n"

    async def main() -> None:
        async with pair() as p:
            arrivals = p.send()
            first = STREAM_HEAD + chunked(EVENT)
            await p.deliver(first, frame, frame, LAST_CHUNK)
            assert parsed == [first, LAST_CHUNK]
            assert (arrivals.ended, arrivals.error, arrivals.body) == (True, None, EVENT + body + body)

    run_on("uvloop", main())


# Small reads and large ones


@pytest.mark.parametrize("size", [SMALL_READ_BYTES - 1, SMALL_READ_BYTES, SMALL_READ_BYTES + 1, 50_000, 300_000])
@both_loops
async def test_what_is_longer_than_a_small_read_arrives_whole_with_its_stamps(size: int) -> None:
    async with pair() as p:
        arrivals = p.send()
        await p.deliver(STREAM_HEAD)
        times_ns = [time.time_ns()]
        for letter in (b"a", b"b"):
            frame = chunked(letter * size)
            await p.deliver(*(frame[place : place + 30_000] for place in range(0, len(frame), 30_000)))
            times_ns.append(time.time_ns())
        await p.deliver(LAST_CHUNK)
        assert (arrivals.ended, arrivals.error, arrivals.unstamped_reads) == (True, None, 0)
        assert arrivals.body == b"a" * size + b"b" * size
        for letter, begin_ns, end_ns in zip((b"a", b"b"), times_ns, times_ns[1:], strict=False):
            stamps = [stamp_ns for stamp_ns, body in arrivals.chunks if body.startswith(letter)]
            assert begin_ns <= min(stamps) <= max(stamps) <= end_ns
            if size >= 50_000:
                assert len(stamps) < size / SMALL_READ_BYTES / 2  # by far the most came in large reads


@pytest.mark.parametrize("size", [300, 20_000])
@both_loops
async def test_all_that_lies_in_the_socket_has_the_stamp_of_its_end(size: int) -> None:
    """Though a small read ended within the second segment: it would have the stamp of that, and the first event too."""
    async with pair() as p:
        arrivals = p.send()
        await p.deliver(STREAM_HEAD)
        p.server.sendall(chunked(b"a" * size))
        time.sleep(0.01)  # the loop is busy
        between_ns = time.time_ns()
        await p.deliver(chunked(b"b" * size))
        ((stamp_ns, body),) = arrivals.chunks
        assert body == b"a" * size + b"b" * size
        assert stamp_ns >= between_ns
        assert arrivals.unstamped_reads == 0


@pytest.mark.parametrize("reset", [False, True])
@both_loops
async def test_a_loss_behind_a_long_read_is_said_as_it_was(reset: bool) -> None:
    async with pair() as p:
        arrivals = p.send()
        await p.deliver(STREAM_HEAD)
        p.server.sendall(chunked(b"a" * 2 * SMALL_READ_BYTES)[:SMALL_READ_BYTES])
        await p.hang_up(reset=reset)
        assert len(arrivals.body) > SMALL_READ_BYTES - 8
        assert ("reset by peer" if reset else "closed by the server") in str(arrivals.error)


# What the reader of the body says


def saying(what: Said, *, at: int) -> Iterator[Said]:
    return itertools.chain([None] * at, [what], itertools.repeat(None))


@pytest.mark.parametrize("at", [0, 1], ids=["parsed", "one whole chunk"])
@both_loops
async def test_a_broken_answer_ends_at_once_and_its_connection_too(at: int) -> None:
    async with pair() as p:
        says = saying("broken", at=at)
        arrivals = p.send(say=lambda *_: next(says))
        waiting = asyncio.create_task(arrivals.wait_end())
        await p.deliver(STREAM_HEAD + chunked(EVENT))
        assert arrivals.ended is (at == 0)
        await p.deliver(*([chunked(EVENT)] * at))
        assert isinstance(arrivals.error, httpx.RemoteProtocolError)
        assert (p.idle, p.closed, len(arrivals.chunks)) == ([], [p.connection], at + 1)
        assert arrivals.end_ns == arrivals.chunks[-1][0]
        await waiting


@both_loops
async def test_a_whole_answer_that_is_broken_leaves_its_connection() -> None:
    async with pair() as p:
        arrivals = p.send(say=lambda *_: "broken")
        await p.deliver(STREAM_HEAD + chunked(EVENT) + LAST_CHUNK)
        assert (arrivals.ended, arrivals.error, p.idle) == (True, None, [p.connection])


@pytest.mark.parametrize("at", [0, 1], ids=["parsed", "one whole chunk"])
@both_loops
async def test_an_end_marker_gives_the_last_chunk_a_moment(at: int) -> None:
    async with pair() as p:
        says = saying("done", at=at)
        arrivals = p.send(say=lambda *_: next(says))
        await p.deliver(STREAM_HEAD + chunked(EVENT), *([chunked(EVENT)] * at))
        assert not arrivals.ended
        await p.deliver(LAST_CHUNK)
        assert (arrivals.ended, arrivals.error, p.idle) == (True, None, [p.connection])


@pytest.mark.parametrize("at", [0, 1], ids=["parsed", "one whole chunk"])
@both_loops
async def test_a_fault_of_ours_is_raised_to_whoever_waits(at: int) -> None:
    def say(*_: object) -> Said:
        if len(arrivals.chunks) > at:
            raise KeyError("ours")
        return None

    async with pair() as p:
        arrivals = p.send(say=say)
        waiting = asyncio.create_task(arrivals.wait_end())
        await p.deliver(STREAM_HEAD + chunked(EVENT), *([chunked(EVENT)] * at))
        with pytest.raises(KeyError, match="ours"):
            await waiting
        assert p.closed == [p.connection]


def test_an_answer_says_done_at_its_end_marker_and_broken_at_once() -> None:
    answer = Answer(2**20, keep_text=False)
    assert [answer.feed(1, piece) for piece in (b'data: {"a":1}\n\ndata: [DO', b"NE]\n\n", b"data: {]\n\n")] == [
        None,
        "done",
        None,
    ]
    answer = Answer(2**20, keep_text=False)
    assert [answer.feed(1, piece) for piece in (b"data: {}\n\n", b"data: {]\n\n", b"data: [DONE]\n\n")] == [
        None,
        "broken",
        None,
    ]


def test_an_answer_of_too_many_events_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where several come at once: one at a time, they take more time than there is."""
    monkeypatch.setattr("loadgen.answer.MOST_EVENTS", 5)
    answer = Answer(2**20, keep_text=False)
    assert [answer.feed(1, content("a") * 2) for _ in range(4)] == [None, None, "broken", None]
    assert answer.broken == "an answer of over 5 output events"
    assert len(answer.events_ns) == 6


@pytest.mark.parametrize("kept", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("events", [1, 2])
def test_text_that_is_kept_has_a_limit(kept: tuple[bool, bool], events: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.answer.MOST_KEPT_CHARS", 50)
    answer = Answer(2**20, *kept)
    said = [answer.feed(1, content("0123456789") * events) for _ in range(8)]
    assert said.index("broken") == 5 // events
    assert answer.broken == "an answer of over 50 characters"
    answer = Answer(2**20, keep_text=False)
    assert {answer.feed(1, content("0123456789") * events) for _ in range(8)} == {None}
