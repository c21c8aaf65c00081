"""When an event says the same as another but for its text, and what an answer makes of it."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen import answer as answers
from loadgen import dialects
from loadgen.likeness import Likeness, likeness
from tests.fakes import DONE, FIN, ROLE, content, delta, usage
from tests.test_loadgen_answer import ERROR, A, B, C, answer_at_once, answer_of, count_words, seen


def likeness_of(delta: bytes, text: str) -> Likeness | None:
    data = b'{"choices":[{"delta":%b}]}' % delta
    return likeness(b"data: %b\n\n" % data, b"", data, text)


@pytest.mark.parametrize(
    ("delta", "covered"),
    [
        (b'{"content":"bc"}', True),
        (b'{"content":"a"}', True),
        (b'{"content":""}', False),
        (b'{"content":"}', False),
        (b'{"content":"b","c":"d"}', False),
        (b'{"content":"b\\"}', False),
        (b'{"content":"b\nc"}', False),
    ],
)
def test_likeness(delta: bytes, covered: bool) -> None:
    found = likeness_of(b'{"content":"a"}', "a")
    assert found is not None
    assert found.covers(b'data: {"choices":[{"delta":%b}]}\n\n' % delta) == covered


@pytest.mark.parametrize(
    ("delta", "text"),
    [
        (b'{"a":"x","content":"x"}', "x"),
        (b'{"content":"\\u0061"}', "a"),
        (b'{"content":"\\u0061","id":"a"}', "a"),
        (b'{"content":"\\u0061","a":1}', "a"),
        (b'{"content":"conten\\u0074"}', "content"),
        (b'{"content":"\\u002c", "x":["p","q"]}', ","),
        (b'{"reasoning":"a","content":"b","id":"ab"}', "ab"),
        (b'{"content":"a\xff","id":"a\xef\xbf\xbd"}', "a\ufffd"),
    ],
)
def test_no_likeness_where_the_text_is_in_no_single_place(delta: bytes, text: str) -> None:
    assert likeness_of(delta, text) is None


# Events that an answer does not decode because they are like the one before

ODD_TEXTS = ["", "a", '"', "\\", "é", "\n", "\x7f", "\u2028", "null", "content", '"}', "tiny", "x" * 300, "\ud83d"]
LIKE = [content(text) for text in ODD_TEXTS] + [delta(reasoning_content=text) for text in ("a", "b", "")]
UNLIKE = [
    ROLE,
    FIN,
    DONE,
    ERROR,
    usage(5, 1),
    b": ping\n\n",
    content("a", usage=1),
    content("b", usage=2),
    b"data: x\n\n",
]
UNLIKE += [delta(tool_calls=[{"index": 0, "function": {"arguments": text}}]) for text in ("", "a", "b")]
UNLIKE += [b'data: {"choices":[{"delta":{"content":"a"}}],"of":"%d"}\n\n' % number for number in range(10)]
UNLIKE += [
    A[:-1],
    b"\n",
    b"data: ",
    A.replace(b"\n\n", b"\r\n\r\n"),
    b"event: error\n" + A,
    content("a") + content("b"),
]
UNLIKE += [A.replace(b'"a"', text) for text in (b'"\xff"', b'"a\nb"', b'"a\rb"', b'"\\u0061"', b'["a"]', b"1")]
# The text escaped, and what it says elsewhere: as another value, as a name, as what marks an error.
UNLIKE += [A.replace(b'"a"', b'"\\u0061","%b":"%b"' % pair) for pair in ((b"id", b"a"), (b"id", b"b"), (b"a", b"x"))]
UNLIKE += [
    b'data: {"object":"%b","choices":[{"delta":{"content":"thin\\u0067"}}]}\n\n' % name for name in (b"thing", b"error")
]


@given(
    st.lists(st.sampled_from([*LIKE, *LIKE, *UNLIKE]) | st.text(max_size=5).map(content), max_size=30),
    st.sampled_from([2**20, len(content("x" * 250))]),
    st.booleans(),
)
def test_what_is_not_decoded_is_taken_as_if_it_were(chunks: list[bytes], limit_bytes: int, keep_said: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        taken = answer_at_once(*chunks, limit_bytes=limit_bytes, keep_said=keep_said)
        patch.setattr(answers, "likeness", lambda *_: None)
        decoded = answer_at_once(*chunks, limit_bytes=limit_bytes, keep_said=keep_said)
    assert seen(taken) == seen(decoded)
    assert taken.events_ns == decoded.events_ns
    assert taken.counts(count_words) == decoded.counts(count_words)


@pytest.mark.parametrize(("over", "events"), [(0, 3), (1, 2)])
def test_the_limit_holds_for_an_event_that_is_like_the_one_before(over: int, events: int) -> None:
    limit_bytes = len(content("x" * 100))
    answer = answer_at_once(A, B, content("x" * (100 + 3 * over)), limit_bytes=limit_bytes)
    assert (len(answer.events_ns), answer.broken is None) == (events, over == 0)


@pytest.mark.parametrize(
    "chunks",
    [
        [A + C[:9], C[9:], B + C[:9], C[9:]],
        [A[:9], A[9:], B[9:]],
        [A, b"event: error\n", B, C],
        [A, b"data: 1\n", B],
        [A.rstrip() + b"\n", b"\n", B.rstrip() + b"\n"],
    ],
)
def test_only_a_chunk_that_is_one_event_is_like_another(chunks: list[bytes]) -> None:
    assert seen(answer_at_once(*chunks)) == seen(answer_of((1, b"".join(chunks))))


@pytest.mark.parametrize("texts", ["abc", ["a", "b\n", "cd", '"'], ["Hel", "lo é"]])
def test_what_is_said_is_the_answer_without_reasoning_and_tool_calls(texts: Sequence[str]) -> None:
    thoughts = [delta(reasoning_content=text) for text in ("t", "u", "v")]
    calls = [delta(tool_calls=[{"function": {"arguments": text}}]) for text in ("f", "g")]
    answer = answer_at_once(*thoughts, *map(content, texts), *calls, *map(content, texts), FIN, keep_said=True)
    assert answer.said() == 2 * "".join(texts)


def test_an_error_is_heard_where_its_name_stood_for_the_text() -> None:
    """`thing` is the text, escaped, and is also what the object is called; then that becomes `error`."""
    one, error = UNLIKE[-2:]
    assert answer_at_once(one, error).error is not None


def test_events_that_differ_in_their_text_alone_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []

    def counted(name: bytes, data: bytes) -> Any:
        decoded.append(data)
        return dialects.read(name, data)

    monkeypatch.setattr(answers, "read", counted)
    answer = answer_at_once(ROLE, *(content(f"t{number}") for number in range(100)), FIN, DONE)
    assert (len(answer.events_ns), len(decoded)) == (100, 4)  # of the like ones, one
    assert answer.counts(len).output_tokens == 290


def test_a_stream_whose_events_are_all_different_is_not_compared_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(answers, "likeness", lambda *event: compared.append(event))
    answer_at_once(*(delta(content="a", usage=None, index=number) for number in range(100)))
    assert len(compared) == answers._MOST_TRIES


def test_an_event_that_differs_in_an_escaped_text_alone_is_not_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def noted(*event: Any) -> Likeness | None:
        compared.append(event)
        return likeness(*event)

    monkeypatch.setattr(answers, "likeness", noted)
    answer = answer_at_once(*map(content, ["a", "\n", "b", '"', "c"]))
    assert (len(answer.events_ns), len(compared)) == (5, 1)
