"""A streamed answer, from stamped bytes to times and tokens of its output events."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.answer import SAMPLE_BYTES, Answer, Counts
from tests.fakes import DONE, FIN, ROLE, content, delta, event, usage

A, B, C = content("a"), content("b"), content("c")
ERROR = event({"error": {"message": "engine died"}})


def answer_of(*reads: tuple[int, bytes], limit_bytes: int = 2**20, keep_said: bool = False) -> Answer:
    answer = Answer(limit_bytes, keep_text=True, keep_said=keep_said)
    for stamp_ns, chunk in reads:
        answer.feed(stamp_ns, chunk)
    answer.close()
    return answer


def answer_at_once(*events: bytes, limit_bytes: int = 2**20, keep_said: bool = False) -> Answer:
    """Each event in a read of its own, at 1, 2, 3, ..."""
    return answer_of(*enumerate(events, start=1), limit_bytes=limit_bytes, keep_said=keep_said)


def count_words(text: str) -> int:
    return len(text.split())


def seen(answer: Answer) -> dict[str, Any]:
    """What an answer says, but for its stamps."""
    return {
        "events": len(answer.events_ns),
        "answer_event": answer.answer_event,
        "finish_reason": answer.finish_reason,
        "ended": answer.ended,
        "error": answer.error,
        "broken": answer.broken,
        "counts": answer.counts(),
        "text_tokens": answer.counts(len),
        "texts": answer._texts,
        "said": answer.said(),
    }


# Stamps


def test_only_output_events_are_stamped_and_each_with_its_read() -> None:
    stream = [(5, ROLE), (100, b": ping\n\n"), (200, A), (220, B), (221, FIN), (300, usage(5, 2)), (400, DONE)]
    answer = answer_of(*stream)
    assert answer.events_ns == [200, 220]
    assert (answer.answer_event, answer.bounds) == (0, 0)


def test_an_event_is_stamped_with_the_read_that_ends_it() -> None:
    answer = answer_of((1, A[:20]), (2, A[20:-1]), (3, A[-1:] + B[:10]), (4, B[10:]), (5, FIN))
    assert answer.events_ns == [3, 4]


def test_an_event_that_the_end_of_the_stream_ends_has_the_stamp_of_its_last_read() -> None:
    assert answer_of((1, A), (2, B.rstrip())).events_ns == [1, 2]


def test_the_answer_event_is_the_first_that_is_not_only_reasoning() -> None:
    thoughts = [delta(reasoning_content="t"), delta(reasoning="t"), delta(thinking="t")]
    assert answer_at_once(ROLE, *thoughts, A, B).answer_event == 3
    assert answer_at_once(*thoughts).answer_event is None
    assert answer_at_once(delta(tool_calls=[{"index": 0}])).answer_event == 0


@pytest.mark.parametrize(
    ("read", "bounds"),
    [(A, 0), (ROLE + A, 0), (A + FIN + DONE, 0), (A + B, 1), (A + B + C, 2), (A + FIN + B, 1), (ROLE + FIN + DONE, 0)],
)
def test_bounds_count_the_output_events_before_the_last_of_a_read(read: bytes, bounds: int) -> None:
    assert answer_of((1, read)).bounds == bounds
    assert answer_of((1, read), (2, A + B)).bounds == bounds + (DONE not in read)


# The end

WHOLE: list[tuple[bytes, ...]] = [
    (A, FIN),
    (A, FIN, DONE),
    (A, DONE),
    (A, usage(5, 1)),
    (A, delta(finish_reason="length", content="b")),
    (A, DONE.rstrip()),
    (A, b"data:[DONE]\r\n\r\n"),
    (usage(5, 0), A, FIN),
    (delta(index=0, content="a"), delta(index=0, finish_reason="stop"), delta(index=1, content="b"), FIN),
]
TRUNCATED: list[tuple[bytes, ...]] = [
    (),
    (ROLE,),
    (A,),
    (A, B[:30]),
    (A, content("b", usage=2)),
    (A, b": [DONE]\n\n"),
    (A, b"event: done\n\n"),
    (A, FIN[:-3]),
    (A, FIN, B),
    (usage(5, 0), A),
    (delta(index=0, content="a"), delta(index=0, finish_reason="stop"), delta(index=1, content="b")),
]


@pytest.mark.parametrize("stream", WHOLE)
def test_an_answer_with_a_terminal_marker_is_whole(stream: tuple[bytes, ...]) -> None:
    assert answer_at_once(*stream).ended


@pytest.mark.parametrize("stream", TRUNCATED)
def test_an_answer_without_one_is_not(stream: tuple[bytes, ...]) -> None:
    answer = answer_at_once(*stream)
    assert not answer.ended
    assert answer.broken is None


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (b"data: [DONE]\n\n", "done"),
        (b"data: [DONE]\n", "done"),
        (b"data: [DONE]", "done"),
        (b"data:[DONE]\r\n", "done"),
        (b"data: [DONE", None),
        (b": [DONE]", None),
        (b"data: x\ndata: [DONE]", None),
        (b"id: [DONE]", None),
    ],
)
def test_an_end_marker_is_heard_though_its_line_or_event_is_not_ended(end: bytes, said: str | None) -> None:
    answer = Answer(2**20, keep_text=False)
    assert answer.feed(1, A) is None
    assert answer.feed(2, end) == said
    assert answer.ended == (said == "done")


@given(st.integers(1, 13))
def test_an_end_marker_is_heard_in_any_split(cut: int) -> None:
    answer = Answer(2**20, keep_text=False)
    assert answer.feed(1, A + DONE[:cut]) == ("done" if cut >= 12 else None)
    assert answer.feed(2, DONE[cut:]) == (None if cut >= 12 else "done")


def test_what_comes_after_the_end_marker_is_ignored() -> None:
    late = [B, usage(9, 99), ERROR, b"data: <html>\n\n", b"\xff"]
    expected = answer_at_once(A, FIN, DONE)
    answer = answer_at_once(A, FIN, DONE, *late)
    assert seen(answer) == seen(expected)
    one_read = answer_of((1, A + FIN + DONE + b"".join(late)))
    assert (one_read.events_ns, one_read.error, one_read.broken) == ([1], None, None)


def test_an_error_in_the_stream_is_kept_with_what_came_before() -> None:
    answer = answer_at_once(ROLE, A, ERROR, event({"error": "later"}), DONE)
    assert (answer.error, answer.events_ns) == ("engine died", [2])


def test_what_cannot_be_read_ends_the_reading() -> None:
    answer = answer_at_once(A, b"data: <html>\n\n", B, FIN, DONE)
    assert answer.broken is not None
    assert "<html>" in answer.broken
    assert (answer.events_ns, answer.ended) == ([1], False)


@pytest.mark.parametrize("limit_bytes", [50, len(A) - 1])
@pytest.mark.parametrize("cut", [1, 30, 10_000])
def test_a_line_over_the_limit_is_said(limit_bytes: int, cut: int) -> None:
    long = content("x" * 100)
    answer = answer_of((1, ROLE[:0] + long[:cut]), (2, long[cut:]), limit_bytes=limit_bytes)
    assert answer.broken is not None
    assert f"{limit_bytes} bytes" in answer.broken
    assert answer.events_ns == []


def test_the_sample_is_the_beginning_and_bounded() -> None:
    answer = answer_of(*[(1, b"<html>" * 100)] * 20)
    assert answer.sample == (b"<html>" * 2000)[:SAMPLE_BYTES]


# Tokens


def counts(*events: bytes) -> Counts:
    return answer_at_once(*events).counts()


def test_usage_is_what_the_server_said_last_and_each_count_by_itself() -> None:
    partly = event({"choices": [], "usage": {"prompt_tokens": 12, "total_tokens": 12}})
    details = usage(
        12, 2, prompt_tokens_details={"cached_tokens": 8}, completion_tokens_details={"reasoning_tokens": 1}
    )
    assert counts(A, B, usage(11, 1), details, event({"choices": [], "usage": None})) == Counts(
        prompt_tokens=12,
        output_tokens=2,
        reasoning_tokens=1,
        cached_tokens=8,
        events_tokens=None,
        tokens_from="usage",
    )
    after = counts(A, B, details, partly)
    assert (after.output_tokens, after.cached_tokens) == (2, 8)
    alone = counts(A, B, partly)
    assert (alone.prompt_tokens, alone.output_tokens, alone.tokens_from) == (12, 2, "events")


def test_without_usage_a_tokenizer_counts_the_joined_text() -> None:
    answer = answer_at_once(content("Hel"), content("lo"), content(" world"), FIN)
    found = answer.counts(count_words)
    assert (found.output_tokens, found.tokens_from, found.events_tokens) == (2, "tokenizer", None)
    as_many = answer_at_once(content("Hello"), content(" world"), FIN).counts(count_words)
    assert (as_many.output_tokens, as_many.events_tokens) == (2, [1, 1])


def test_without_either_the_events_are_counted_and_their_tokens_stay_unknown() -> None:
    found = counts(A, B, FIN)
    assert (found.output_tokens, found.tokens_from, found.events_tokens) == (2, "events", None)
    silent = answer_at_once(delta(tool_calls=[{"index": 0}]), FIN).counts(count_words)
    assert (silent.output_tokens, silent.tokens_from) == (1, "events")


def test_without_output_nothing_is_known() -> None:
    found = answer_at_once(ROLE, FIN, DONE).counts(count_words)
    assert (found.output_tokens, found.tokens_from, found.events_tokens) == (None, None, None)
    assert counts(ROLE, FIN, usage(5, 0)).output_tokens == 0


def test_the_tokenizer_is_not_asked_where_the_server_counted() -> None:
    def refuse(text: str) -> int:
        raise AssertionError(text)

    assert answer_at_once(A, usage(5, 1)).counts(refuse).output_tokens == 1


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([A, B, usage(5, 2)], [1, 1]),
        ([A, B, usage(5, 7)], None),
        ([content("abc", 3), content("def", 6), content("g", 7), FIN, usage(5, 7)], [3, 3, 1]),
        ([content("a", 1), content("", 2), content("b", 3), usage(5, 3)], [1, 2]),
        ([content("a", 1), content("half a letter", 1), usage(5, 2)], [1, 0]),
        ([content("a", 1), B, usage(5, 9)], None),  # a running count that stops
        ([content("a", 1), B, usage(5, 2)], [1, 1]),
        ([content("a", 0), content("b", 0), usage(5, 2)], [1, 1]),  # a usage that is filled in at the end only
        ([content("a", 0), content("b", 0), usage(5, 7)], None),
        ([content("a", 5), content("b", 3), usage(5, 7)], None),  # no running count
        ([content("a", 1), content("b", 3)], [1, 2]),  # cut off
    ],
)
def test_tokens_of_each_event(events: list[bytes], expected: list[int] | None) -> None:
    assert counts(*events).events_tokens == expected


def reasoned(output_tokens: int, reasoning_tokens: int) -> bytes:
    return usage(10, output_tokens, completion_tokens_details={"reasoning_tokens": reasoning_tokens})


def test_reasoning_is_a_part_of_the_output() -> None:
    assert counts(A, reasoned(100, 60)).output_tokens == 100


def test_hidden_reasoning_is_not_laid_on_the_visible_events() -> None:
    found = counts(A, B, reasoned(400, 398))
    assert (found.output_tokens, found.reasoning_tokens, found.events_tokens) == (400, 398, [1, 1])
    assert counts(A, reasoned(400, 398)).events_tokens is None


def test_streamed_reasoning_is_laid_on_its_events() -> None:
    thought = delta(reasoning_content="t")
    assert counts(thought, thought, A, reasoned(3, 2)).events_tokens == [1, 1, 1]
    assert counts(thought, thought, reasoned(2, 2)).events_tokens == [1, 1]


def test_reasoning_beside_the_output_is_not_taken_from_it() -> None:
    assert counts(A, B, reasoned(2, 60)).events_tokens == [1, 1]


# Any split


STREAM = b"".join((b": ping\n\n", ROLE, content("a", 1), delta(2, reasoning="b"), FIN, usage(5, 2), DONE, A))
STREAMS = [
    STREAM,
    STREAM.replace(b"\n", b"\r\n"),
    b"".join((b"\xef\xbb\xbfdata:", A[6:], B, b'event: x\ndata: {"choices":\ndata: [{"delta":{"content":"c"}}]}\n\n')),
    A + ERROR + b"data: <html>\n\n" + B,
    "".join(('data: {"choices":[{"delta":{"content":"', "groß 🤖 \\ud83e\\udd16", '"}}]}\n\n')).encode() + FIN,
    A + FIN.rstrip(),
    b"<html>\n<body>data: x</body>\n</html>",
]


@given(st.sampled_from(STREAMS), st.lists(st.integers(0, 700), max_size=8))
def test_the_split_into_reads_changes_nothing_but_the_stamps(stream: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reads = [(place, stream[start:end]) for place, (start, end) in enumerate(pairwise(edges), start=1) if start < end]
    answer = answer_of(*reads)
    assert seen(answer) == seen(answer_of((1, stream)))
    assert answer.events_ns == sorted(answer.events_ns)
    assert answer.bounds == len(answer.events_ns) - len(set(answer.events_ns))


@pytest.mark.parametrize("stream", STREAMS)
def test_one_byte_a_read_and_two_reads_at_every_place(stream: bytes) -> None:
    expected = seen(answer_of((1, stream)))
    single = answer_of(*[(place, stream[place : place + 1]) for place in range(len(stream))])
    assert seen(single) == expected
    assert single.bounds == 0
    for cut in range(1, len(stream)):
        assert seen(answer_of((1, stream[:cut]), (2, stream[cut:]))) == expected


@given(st.lists(st.binary(max_size=40) | st.sampled_from([A, FIN, DONE, ERROR, usage(5, 1)]), max_size=8))
def test_any_bytes_make_an_answer(chunks: list[bytes]) -> None:
    answer = answer_at_once(*chunks)
    found = answer.counts(count_words)
    shares = found.events_tokens
    assert shares is None or len(shares) == len(answer.events_ns)
    assert answer.answer_event is None or answer.answer_event < len(answer.events_ns)
