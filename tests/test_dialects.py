"""Request bodies of both APIs, and events of every form that a server has been seen to send."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.dialects import COUNT_LIMIT, END, NOTHING, Chunk, Dialect, NotJsonError, Usage, body, error_body, read

CHAT = Dialect(api="chat", model="tiny")
COMPLETIONS = Dialect(api="completions", model="tiny")


def fields(dialect: Dialect, prompt: str | tuple[int, ...] = "Hi") -> dict[str, Any]:
    made: dict[str, Any] = json.loads(body(dialect, prompt, 16))
    return made


def read_json(data: Any) -> Chunk:
    return read(b"", json.dumps(data).encode())


def read_delta(**delta: Any) -> Chunk:
    return read_json({"choices": [{"index": 0, "delta": delta}]})


# The request


def test_the_whole_body_of_a_chat_request() -> None:
    assert fields(CHAT) == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 16,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "min_tokens": 16,
    }


@pytest.mark.parametrize("prompt", ["Hi", (5, 6, 7)])
def test_a_completions_request_has_a_prompt_of_text_or_ids(prompt: str | tuple[int, ...]) -> None:
    made = fields(COMPLETIONS, prompt)
    assert made["prompt"] == (prompt if isinstance(prompt, str) else [5, 6, 7])
    assert "messages" not in made


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize(
    ("options", "gone", "there"),
    [
        ({"usage": False}, {"stream_options"}, {}),
        ({"usage": False, "running_usage": True}, {"stream_options"}, {}),
        ({"running_usage": True}, set(), {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
        ({"ignore_eos": False}, {"ignore_eos"}, {}),
        ({"min_tokens": False}, {"min_tokens"}, {}),
        ({"limit_key": "max_completion_tokens"}, {"max_tokens"}, {"max_completion_tokens": 16}),
        ({"extra": {"temperature": 0.5, "top_k": [1]}}, set(), {"temperature": 0.5, "top_k": [1]}),
        ({"extra": {"max_tokens": 9, "model": "other"}}, set(), {"max_tokens": 9, "model": "other"}),
        ({"extra": {"stream_options": None, "never_there": None}}, {"stream_options", "never_there"}, {}),
        ({"extra": {"ignore_eos": False}}, set(), {"ignore_eos": False}),
    ],
)
def test_each_option_changes_its_own_keys_only(
    api: Any, options: dict[str, Any], gone: set[str], there: dict[str, Any]
) -> None:
    default = fields(Dialect(api=api, model="tiny"))
    expected = {key: value for key, value in default.items() if key not in gone} | there
    assert fields(Dialect(api=api, model="tiny", **options)) == expected


# Text, reasoning, tool calls

OUTPUT: dict[str, tuple[dict[str, Any], str, bool]] = {
    "content": ({"content": "a"}, "a", True),
    "content as parts": ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab", True),
    "refusal": ({"content": None, "refusal": "no"}, "no", True),
    "reasoning_content": ({"reasoning_content": "hm"}, "hm", False),
    "reasoning": ({"content": "", "reasoning": "hm"}, "hm", False),
    "thinking": ({"content": None, "thinking": "hm"}, "hm", False),
    "thinking as parts": ({"content": [{"type": "thinking", "thinking": [{"text": "hm"}]}]}, "hm", False),
    "both": ({"reasoning": "hm", "content": "a"}, "hma", True),
    "tool call": ({"tool_calls": [{"index": 0, "id": "x", "function": {"name": "f", "arguments": "{}"}}]}, "f{}", True),
    "tool calls": ({"tool_calls": [{"function": {"arguments": "a"}}, {"function": {"arguments": "b"}}]}, "ab", True),
    "tool call without a text": ({"tool_calls": [{"index": 0, "custom": {"input": "a"}}]}, "", True),
    "tool call of odd parts": ({"tool_calls": [None, {"function": 5}, {"function": {"name": 5}}, 7]}, "", True),
    "function_call": ({"function_call": {"name": "f", "arguments": None}}, "f", True),
    "beside odd fields": ({"content": "a", "refusal": 5, "reasoning": {"x": 1}, "role": ["assistant"]}, "a", True),
}


@pytest.mark.parametrize("name", OUTPUT)
def test_output(name: str) -> None:
    delta, text, answer = OUTPUT[name]
    said = "a" if name == "both" else "" if text and re.search("reason|think|call", name) else None
    assert read_delta(**delta) == Chunk(text, output=True, answer=answer, said=said)


def test_output_of_the_completions_api() -> None:
    assert read_json({"choices": [{"index": 0, "text": "a", "logprobs": None}]}) == Chunk("a", output=True, answer=True)


@pytest.mark.parametrize(
    "delta",
    [
        {"role": "assistant"}, {"role": "assistant", "content": ""}, {"role": "assistant", "content": None},
        {"content": []},
        {"content": [None, 5, "x", {"type": "image_url"}, {"text": None}]},
        {"content": 5},
        {"content": {"text": "a"}},
        {"reasoning_content": None, "tool_calls": None, "function_call": None, "refusal": None},
        {"tool_calls": [], "function_call": {}},
        {"tool_calls": {"function": {"name": "f"}}},
    ],
)  # fmt: skip
def test_no_output(delta: Any) -> None:
    assert read_delta(**delta) == NOTHING


@pytest.mark.parametrize(
    "data",
    [
        {"id": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
        {"choices": []},
        {"choices": None},
        {"id": "x", "object": "chat.completion.chunk"},
        {"choices": [None, 5, "x", []]},
        {"choices": {"index": 0}},
        {"choices": "x"},
        {"choices": [{"index": 0}]},
        {"choices": [{"index": 0, "delta": None, "text": None}]},
        {"choices": [{"index": 0, "delta": "x", "text": ""}]},
        {"choices": [{"index": 0, "delta": [], "finish_reason": ""}]},
        {"usage": None, "error": None},
        {"choices": [], "usage": [1], "error": False},
        {"choices": [], "error": {}},
        {"choices": [], "error": ""},
        [], 5, "x", None, True, {},
    ],
)  # fmt: skip
def test_events_that_say_nothing(data: Any) -> None:
    assert read_json(data) == NOTHING


# The end


@pytest.mark.parametrize("data", [b"[DONE]", b" [DONE]", b"[DONE]\n", b"[DONE] \r"])
def test_the_end_marker(data: bytes) -> None:
    assert read(b"", data) == END
    assert END.final
    assert END.done


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter"])
def test_finish_reason(reason: str) -> None:
    assert read_json({"choices": [{"delta": {}, "finish_reason": reason}]}) == Chunk(finish_reason=reason)
    last = {"choices": [{"delta": {"content": 5}, "text": "a", "finish_reason": reason}]}
    assert read_json(last) == Chunk("a", output=True, answer=True, finish_reason=reason)


def test_several_choices_in_one_event() -> None:
    choices = [{"index": 1, "delta": {"content": "a"}}, {"index": 0, "delta": {}, "finish_reason": "stop"}]
    assert read_json({"choices": choices}) == Chunk("a", output=True, answer=True, finish_reason="stop")


# Usage

WHOLE = {
    "prompt_tokens": 12,
    "completion_tokens": 100,
    "total_tokens": 112,
    "prompt_tokens_details": {"cached_tokens": 8},
    "completion_tokens_details": {"reasoning_tokens": 60},
}


def test_usage_is_read_from_any_event_and_ends_the_answer_where_no_choice_is_in_it() -> None:
    whole = Usage(12, 100, 60, 8)
    assert read_json({"choices": [], "usage": WHOLE}) == Chunk(final=True, usage=whole)
    assert read_json({"usage": WHOLE}) == Chunk(final=True, usage=whole)
    running = read_json({"choices": [{"delta": {"content": "a"}}], "usage": WHOLE})
    assert running == Chunk("a", output=True, answer=True, usage=whole)
    assert read_json({"choices": [{"delta": {"content": ["odd"]}}], "usage": WHOLE}) == Chunk(usage=whole)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"prompt_tokens": 12, "total_tokens": 12}, Usage(12)),
        ({"completion_tokens": 3}, Usage(None, 3)),
        ({"prompt_tokens": "12", "completion_tokens": "3"}, Usage(12, 3)),
        ({"prompt_tokens": 12.0, "completion_tokens": 3.5}, Usage(12)),
        ({"prompt_tokens": None, "completion_tokens": 0}, Usage(None, 0)),
        ({"prompt_tokens": True, "completion_tokens": -1}, Usage()),
        ({"prompt_tokens": COUNT_LIMIT, "completion_tokens": COUNT_LIMIT - 1}, Usage(None, COUNT_LIMIT - 1)),
        ({"prompt_tokens": 10**30, "completion_tokens": 1}, Usage(None, 1)),
        ({"prompt_tokens": 10**400, "completion_tokens": "1" * 5000}, Usage()),
        ({"prompt_tokens": [1], "completion_tokens": {"n": 1}}, Usage()),
        ({"prompt_tokens": "many", "completion_tokens": "-3"}, Usage()),
        ({"prompt_tokens": 1, "prompt_tokens_details": None, "completion_tokens_details": [1]}, Usage(1)),
        ({"prompt_tokens_details": {"cached_tokens": "7"}, "completion_tokens_details": {}}, Usage(cached_tokens=7)),
        ({"completion_tokens_details": {"reasoning_tokens": 5.0, "x": 1}}, Usage(reasoning_tokens=5)),
    ],
)
def test_counts_of_odd_types_are_read_or_unknown_and_never_hide_the_others(
    counts: dict[str, Any], expected: Usage
) -> None:
    assert read_json({"choices": [], "usage": counts}).usage == expected


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e999", b"1" * 5000])
def test_numbers_that_are_none(number: bytes) -> None:
    data = b'{"choices":[],"usage":{"prompt_tokens":%b,"completion_tokens":3}}' % number
    assert read(b"", data).usage == Usage(None, 3)


# Errors


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"error": {"message": "engine died", "type": "InternalServerError", "code": 500}}, "engine died"),
        ({"error": "engine died"}, "engine died"),
        ({"error": {"error": {"message": "inner"}}}, "inner"),
        ({"error": {"detail": "what"}}, "what"),
        ({"error": {"message": "", "code": 500}}, '{"message": "", "code": 500}'),
        ({"error": {"message": None, "type": "x"}}, '{"message": null, "type": "x"}'),
        ({"error": 7}, "7"),
        ({"error": True}, "true"),
        ({"error": [{"msg": "field required"}]}, '[{"msg": "field required"}]'),
        ({"object": "error", "message": "old form", "code": 400}, "old form"),
        ({"object": "error"}, "no message"),
        ({"error": {"message": "with choices"}, "choices": [{"delta": {"content": ""}}]}, "with choices"),
        ({"error": "odd counts", "usage": {"prompt_tokens": "x"}}, "odd counts"),
    ],
)
def test_an_error_in_the_stream(data: Any, text: str) -> None:
    assert read_json(data).error == text


def test_finish_reason_error_is_an_error() -> None:
    chunk = read_json({"choices": [{"delta": {"content": "a"}, "finish_reason": "error"}]})
    assert chunk.error is not None
    assert chunk.finish_reason is None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'{"error":{"message":"gone"}}', "gone"),
        (b'{"message":"gone"}', "gone"),
        (b'"gone"', "gone"),
        (b"gone", "gone"),
        (b"{gone", "{gone"),
        (b"", "no message"),
        (b'{"choices":[]}', '{"choices": []}'),
    ],
)
def test_an_event_named_error(data: bytes, text: str) -> None:
    assert read(b"error", data) == Chunk(error=text)


def test_an_error_keeps_the_usage_beside_it() -> None:
    assert read_json({"error": "x", "usage": {"completion_tokens": 3}}).usage == Usage(None, 3)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", ""),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b"<html>\r\n  <b>502</b>\n</html>", "<html> <b>502</b> </html>"),
        (b"\x1b[2J\x07bad\x00", "[2Jbad"),
        ("Zu groß \u202e".encode(), "Zu groß "),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b'{"error":"half \\ud83d"}', "half "),
        (b'{"error":{"message":"' + b"x" * 1000 + b'"}}', "x" * 300 + "..."),
        (b'{"error":' * 600 + b'"deep"' + b"}" * 600, "deep"),
    ],
)
def test_what_is_shown_of_an_error_is_short_and_harmless(content: bytes, text: str) -> None:
    assert error_body(content) == text


# JSON that is none, or not quite


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'{"choices":[{"delta":{"content":"a\xff"}}]}', "a\ufffd"),
        (b'{"choices":[{"delta":{"content":"a\\ud83d"}}]}', "a?"),
        (b'{"choices":[{"delta":{"tool_calls":[{"function":{"name":"\\ud83d"}}]}}]}', "?"),
        (b'{"choices":[{"delta":{"content":"a\x01\tb"}}]}', "a\x01\tb"),
        (b'{"choices":[{"delta":{"content":"a"},"logprobs":{"logprob":NaN}}]}', "a"),
        (b'{"choices":[{"delta":{"content":"a"},"logprobs":{"logprob":-Infinity}}]}', "a"),
        (b'{"choices":[{"delta":{"content":"a"}}],"created":1e999}', "a"),
        (b'{"choices":[{"delta":{"content":"a"}}],"created":' + b"9" * 5000 + b"}", "a"),
        (b'{"choices":[{"delta":{"content":"\\u0061"}}],"choices ":1}', "a"),
    ],
)
def test_a_token_counts_though_its_event_is_not_quite_json(data: bytes, text: str) -> None:
    assert read(b"", data) == Chunk(text, output=True, answer=True, said="" if b"tool_calls" in data else None)


def test_two_objects_under_one_blank_line() -> None:
    content = b'{"choices":[{"delta":{"content":"a"}}]}'
    usage = b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}'
    both = Chunk("a", output=True, answer=True, final=True, usage=Usage(1, 1))
    assert read(b"", content + b"\n" + usage) == both
    assert read(b"", usage + b"\n[DONE]") == Chunk(final=True, done=True, usage=Usage(1, 1))


@pytest.mark.parametrize(
    "data",
    [
        b"<html>", b'{"choices":', b"{'choices':[]}", b"\xff\xfe", b"{}{}", b"DONE", b'{}\n{"a":',
        b'{"a":' + b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_not_json_is_said_so_and_quoted_shortly(data: bytes) -> None:
    with pytest.raises(NotJsonError) as caught:
        read(b"", data)
    assert len(str(caught.value)) < 700


def test_deep_nesting_is_skipped_or_refused_but_never_breaks() -> None:
    for depth in range(100, 3000, 100):
        for opening, closing in ((b"[", b"]"), (b'{"error":', b"}"), (b'[{"text":', b"}]")):
            nest = opening * depth + b"1" + closing * depth
            for field in (b"x", b"error", b"message", b"choices"):
                for form in (b'{"object":"error","%b":%b}', b'{"object":5,"%b":%b}'):
                    reads_or_refuses(b"", form % (field, nest))
            reads_or_refuses(b"", b'{"choices":[{"delta":{"content":%b}}]}' % nest)
            reads_or_refuses(b"error", nest)


def reads_or_refuses(name: bytes, data: bytes) -> None:
    try:
        chunk = read(name, data)
    except NotJsonError:
        return
    for text in (chunk.text, chunk.error, chunk.finish_reason):
        (text or "").encode()  # no half of a surrogate pair
    assert chunk.output or not chunk.answer
    assert chunk.final or not chunk.done


NAMES = [
    *("choices", "delta", "text", "content", "reasoning", "reasoning_content", "thinking", "refusal", "tool_calls"),
    *("function", "function_call", "name", "arguments", "finish_reason", "index", "usage", "prompt_tokens"),
    *("completion_tokens", "prompt_tokens_details", "completion_tokens_details", "cached_tokens", "reasoning_tokens"),
    *("error", "message", "detail", "object", "type"),
]
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["12", "error"])
)
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=20,
)
choices = st.fixed_dictionaries({}, optional={"delta": trees, "text": trees, "finish_reason": trees})
events = st.fixed_dictionaries(
    {},
    optional={"choices": st.lists(choices | trees, max_size=2), "usage": trees, "error": trees, "object": leaves},
)


@given(st.sampled_from([b"", b"error", b"message"]), st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(name: bytes, data: bytes) -> None:
    reads_or_refuses(name, data)
    reads_or_refuses(name, b'{"choices":[{"delta":{"content":"' + data + b'"}}]}')


@given(trees | events, st.booleans())
def test_any_json_is_read(data: Any, ascii_only: bool) -> None:
    encoded = json.dumps(data, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    chunk = read(b"", encoded)
    reads_or_refuses(b"error", encoded)
    for count in () if chunk.usage is None else (chunk.usage.prompt_tokens, chunk.usage.completion_tokens):
        assert count is None or 0 <= count < COUNT_LIMIT


@given(st.text(max_size=8), st.integers(0, 1000), st.integers(0, 1000))
def test_a_right_type_and_an_odd_one_are_read_alike(text: str, prompt_tokens: int, completion_tokens: int) -> None:
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    typed = {"choices": [{"delta": {"content": text}, "finish_reason": "stop"}], "usage": counts}
    odd = {
        "choices": [{"delta": {"content": [{"type": "text", "text": text}]}, "finish_reason": "stop"}],
        "usage": {name: str(count) for name, count in counts.items()},
    }
    assert read_json(odd) == read_json(typed)
