"""The parser of server-sent events: every split and line end, comments, fields, limits."""

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.sse import Decoder, Event, LineTooLongError

STREAM = (
    b': ping\n\nevent: message\nid: 7\nretry: 1000\ndata: {"a":\ndata: 1}\n\n'
    b"data:tight\n\ndata:  two spaces\n\ndata\n\n:\n\n"
)
EVENTS = [(b"message", b'{"a":\n1}'), (b"", b"tight"), (b"", b" two spaces"), (b"", b"")]


def decode(chunks: list[bytes], limit_bytes: int = 10_000) -> list[Event]:
    decoder = Decoder(limit_bytes)
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return events + decoder.flush()


def reference(stream: bytes) -> list[Event]:
    """The standard's algorithm, written as plainly as it reads, over the whole stream."""
    text = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events: list[Event] = []
    name, data = b"", None
    for line in [*text.split(b"\n"), b"", b""]:
        if line == b"":
            if data is not None:
                events.append((name, data))
            name, data = b"", None
        elif not line.startswith(b":"):
            field, _, value = line.partition(b":")
            value = value[1:] if value[:1] == b" " else value
            if field == b"data":
                data = value if data is None else data + b"\n" + value
            elif field == b"event":
                name = value
    return events


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_every_split_in_three_gives_the_same_events(line_end: bytes) -> None:
    stream = b"\xef\xbb\xbf" + STREAM.replace(b"\n", line_end)
    for first in range(len(stream)):
        for second in range(first, len(stream), 7):
            assert decode([stream[:first], stream[first:second], stream[second:]]) == EVENTS


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_one_byte_at_a_time(line_end: bytes) -> None:
    stream = STREAM.replace(b"\n", line_end)
    assert decode([stream[i : i + 1] for i in range(len(stream))]) == EVENTS


FIELDS = [b"data: {x}", b"data:", b"data", b"event: e", b": c", b":", b"id: 1", b"data: x\n\n"]
pieces = st.sampled_from([*FIELDS, b"\n", b"\r", b"\r\n", b"z", b" ", b"\n\n", b"\xef\xbb\xbf"])


@given(st.lists(pieces, max_size=20), st.lists(st.integers(0, 200), max_size=6))
def test_any_stream_in_any_chunks_follows_the_standard(parts: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(parts)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assert decode([stream[a:b] for a, b in pairwise(edges)]) == reference(stream)


def test_an_event_is_given_with_the_chunk_that_ends_it() -> None:
    decoder = Decoder()
    assert decoder.feed(b'data: {"a":1}\n') == []
    assert decoder.feed(b'\ndata: {"b":2}\n\ndata: {"c"') == [(b"", b'{"a":1}'), (b"", b'{"b":2}')]
    assert decoder.feed(b":3}\n\n") == [(b"", b'{"c":3}')]


def test_a_whole_event_in_a_chunk_still_belongs_to_what_came_before_it() -> None:
    """The most frequent chunk has a path of its own in the decoder."""
    whole = b'data: {"a":1}\n\n'
    assert decode([b"event: error\n", whole, whole]) == [(b"error", b'{"a":1}'), (b"", b'{"a":1}')]
    assert decode([b"data: 1\n", whole]) == [(b"", b'1\n{"a":1}')]
    assert decode([b": ping, ", whole, whole]) == [(b"", b'{"a":1}')]
    assert decode([b"data: 1\r", whole]) == [(b"", b'1\n{"a":1}')]
    assert decode([b"data: 1\n\r", whole]) == [(b"", b"1"), (b"", b'{"a":1}')]


def test_a_byte_order_mark_is_skipped_at_the_start_alone() -> None:
    mark, whole = b"\xef\xbb\xbf", b'data: {"a":1}\n\n'
    assert decode([mark + whole, mark + whole, whole]) == [(b"", b'{"a":1}')] * 2
    assert decode([whole, mark + whole]) == [(b"", b'{"a":1}')]


def test_the_last_event_may_lack_its_blank_line() -> None:
    assert decode([b"data: [DONE]"]) == [(b"", b"[DONE]")]
    assert decode([b"data: [DONE]\n"]) == [(b"", b"[DONE]")]


def test_a_megabyte_passes_and_the_limit_holds_in_every_form() -> None:
    big = b"x" * 2**20
    assert decode([b"data: ", big[:1000], big[1000:], b"\n\n"], 2**21) == [(b"", big)]
    for chunks in (
        [b"data: " + big],
        [b"data: " + big + b"\n\n"],
        [b"data: {" + big + b"}\n\n"],
        [b"data: xxxxxxxx\n"] * 10,
        [b"data\n"] * 60,
        [b"x"] * 60,
    ):
        with pytest.raises(LineTooLongError):
            decode(chunks, 50)


@pytest.mark.parametrize(
    "event", [b"data: x\n\n", b"data:x\n\n", b"event: e\ndata: x\n: ping\n\n", b"data:\r\rdata: x\r\r"]
)
@pytest.mark.parametrize("at_once", [True, False])
def test_the_limit_is_of_one_event_however_many_come(event: bytes, at_once: bool) -> None:
    chunks = [event * 200] if at_once else [event] * 200
    assert len(decode(chunks, 40)) == len(decode([event])) * 200


@pytest.mark.parametrize("line_end", [b"", b"\n"])
def test_a_marker_is_not_sought_in_all_of_a_long_line_at_each_of_its_pieces(line_end: bytes) -> None:
    decoder = Decoder()
    decoder.feed(b"data: " + b"x" * 2**20 + line_end)
    tracemalloc.start()
    decoder.feed(b"y")
    assert not decoder.ends_with(b"[DONE]")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 2**16


def test_a_marker_is_found_after_a_long_line() -> None:
    decoder = Decoder()
    for piece in (b"data: " + b"x" * 1000, b"\n\n", b"data: [DO", b"NE] "):
        decoder.feed(piece)
    assert decoder.ends_with(b"[DONE]")
