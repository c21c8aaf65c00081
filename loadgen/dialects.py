"""OpenAI's two dialects, chat completions and text completions: a request body out, an event in. No I/O.

Events are decoded into typed structs, which is fast and skips what nobody asked for. Where a server's types are its
own (counts as strings, content as a list of parts), the event is read again by hand, field by field.
"""

from typing import Any, Literal

import msgspec

Api = Literal["chat", "completions"]
COUNT_LIMIT = 2**31  # a token count beyond this is a fault, not a number to compute with
_MESSAGE_LIMIT = 300


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """How to ask this server. The preflight turns off what the server refuses."""

    api: Api
    model: str
    usage: bool = True  # stream_options.include_usage
    running_usage: bool = False  # stream_options.continuous_usage_stats: needed where an event carries several tokens
    ignore_eos: bool = True
    min_tokens: bool = True
    limit_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    extra: dict[str, Any] = {}  # the user's --body; None removes a default key


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None


class Chunk(msgspec.Struct, frozen=True):
    """What one event says. `output`: it carries text, reasoning or a tool call; `answer`: not only reasoning."""

    text: str = ""
    output: bool = False
    answer: bool = False
    finish_reason: str | None = None
    final: bool = False  # the end marker, or the usage event that comes after all choices
    usage: Usage | None = None
    error: str | None = None


END = Chunk(final=True)
NOTHING = Chunk()


class NotJsonError(ValueError):
    """The data of an event is not JSON."""


def body(dialect: Dialect, prompt: str | tuple[int, ...], output_tokens: int) -> bytes:
    fields: dict[str, Any] = {"model": dialect.model}
    if dialect.api == "chat":
        fields["messages"] = [{"role": "user", "content": prompt}]
    else:
        fields["prompt"] = prompt
    fields[dialect.limit_key] = output_tokens
    fields["stream"] = True
    if dialect.usage:
        fields["stream_options"] = {"include_usage": True}
        if dialect.running_usage:
            fields["stream_options"]["continuous_usage_stats"] = True
    if dialect.ignore_eos:
        fields["ignore_eos"] = True
    if dialect.min_tokens:
        fields["min_tokens"] = output_tokens
    for key, value in dialect.extra.items():
        if value is None:
            fields.pop(key, None)
        else:
            fields[key] = value
    return msgspec.json.encode(fields)


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None
    function_call: dict[str, Any] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None
    message: Any = None


_decode = msgspec.json.Decoder(_Event).decode


def read(name: bytes, data: bytes) -> Chunk:
    """What the event (`name`, `data`) says. Raises NotJsonError."""
    try:
        event = _decode(data)
    except (msgspec.DecodeError, RecursionError):
        return _read_odd(name, data)
    return _chunk(event) if name != b"error" else _error_event(data)


def _read_odd(name: bytes, data: bytes) -> Chunk:
    data = data.strip()
    if data == b"[DONE]":
        return END
    if not data:
        return NOTHING
    if name == b"error":
        return _error_event(data)
    try:
        plain = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        # Some servers put two JSON objects under one blank line: each data line may be whole by itself.
        lines = data.split(b"\n")
        if len(lines) == 1:
            raise NotJsonError(f"an event is not JSON ({_short(str(error))}): {_short(data)}") from None
        return _merge([read(name, line) for line in lines])
    return _chunk(_by_hand(plain))


def _chunk(event: _Event) -> Chunk:
    usage = None if event.usage is None else _usage(event.usage)
    if event.error is not None or event.object == "error":
        return Chunk(usage=usage, error=error_text(event.error if event.error is not None else event.message))
    if not event.choices:
        return NOTHING if usage is None else Chunk(usage=usage, final=True)
    text = ""
    answer = output = False
    finish_reason = None
    for choice in event.choices:
        if choice.text:
            text += choice.text
            answer = True
        if (delta := choice.delta) is not None:
            if said := delta.content or delta.refusal:
                text += said
                answer = True
            elif thought := delta.reasoning_content or delta.reasoning or delta.thinking:
                text += thought
                output = True
            if delta.tool_calls or delta.function_call:
                text += _call_text(delta)
                answer = True
        if choice.finish_reason:
            finish_reason = choice.finish_reason
    if finish_reason == "error":
        return Chunk(usage=usage, error="the server ended the answer with finish_reason error")
    return Chunk(text, output or answer, answer, finish_reason, usage=usage)


def _call_text(delta: _Delta) -> str:
    calls = [call.get("function") for call in delta.tool_calls or () if isinstance(call, dict)]
    texts = []
    for call in (*calls, delta.function_call):
        if isinstance(call, dict):
            texts += [value for key in ("name", "arguments") if isinstance(value := call.get(key), str)]
    return "".join(texts)


def _usage(usage: _Usage) -> Usage:
    asked, answered = usage.prompt_tokens_details, usage.completion_tokens_details
    return Usage(
        _count(usage.prompt_tokens),
        _count(usage.completion_tokens),
        None if answered is None else _count(answered.reasoning_tokens),
        None if asked is None else _count(asked.cached_tokens),
    )


def _count(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 12:
        value = int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < COUNT_LIMIT:
        value = int(value)
    return value if type(value) is int and 0 <= value < COUNT_LIMIT else None


def _merge(chunks: list[Chunk]) -> Chunk:
    return Chunk(
        "".join(chunk.text for chunk in chunks),
        any(chunk.output for chunk in chunks),
        any(chunk.answer for chunk in chunks),
        next((chunk.finish_reason for chunk in chunks if chunk.finish_reason), None),
        any(chunk.final for chunk in chunks),
        next((chunk.usage for chunk in reversed(chunks) if chunk.usage), None),
        next((chunk.error for chunk in chunks if chunk.error), None),
    )


def _error_event(data: bytes) -> Chunk:
    try:
        return Chunk(error=error_text(msgspec.json.decode(data)))
    except (msgspec.DecodeError, RecursionError):
        return Chunk(error=_short(data))


def error_text(value: Any) -> str:
    """The readable part of an error object in any of the forms that servers give it."""
    if isinstance(value, dict):
        inner = value.get("error", value.get("message", value.get("detail")))
        if inner is not None:
            return error_text(inner)
        value = msgspec.json.encode(value)
    return _short(value if isinstance(value, str | bytes) else str(value))


def error_body(content: bytes) -> str:
    """The readable part of the body of an error response, JSON or not."""
    try:
        return error_text(msgspec.json.decode(content))
    except (msgspec.DecodeError, RecursionError):
        return _short(content)


def _short(text: str | bytes) -> str:
    if isinstance(text, bytes):
        text = text[: 4 * _MESSAGE_LIMIT].decode("utf-8", "replace")
    text = " ".join(text.split())
    return text if len(text) <= _MESSAGE_LIMIT else text[:_MESSAGE_LIMIT] + "..."


# Reading by hand, for events whose types are not the specification's.


def _by_hand(plain: Any) -> _Event:
    if not isinstance(plain, dict):
        return _Event()
    choices = plain.get("choices")
    return _Event(
        [_choice_by_hand(choice) for choice in choices if isinstance(choice, dict)]
        if isinstance(choices, list)
        else None,
        _usage_by_hand(plain.get("usage")),
        plain.get("error"),
        _string(plain.get("object")),
        plain.get("message"),
    )


def _choice_by_hand(plain: dict[str, Any]) -> _Choice:
    delta = plain.get("delta")
    if isinstance(delta, dict):
        strings = {
            key: _string(delta.get(key)) for key in ("content", "reasoning_content", "reasoning", "thinking", "refusal")
        }
        calls, call = delta.get("tool_calls"), delta.get("function_call")
        made = _Delta(
            **strings,
            tool_calls=calls if isinstance(calls, list) else None,
            function_call=call if isinstance(call, dict) else None,
        )
    else:
        made = None
    return _Choice(made, _string(plain.get("text")), _string(plain.get("finish_reason")))


def _usage_by_hand(plain: Any) -> _Usage | None:
    if not isinstance(plain, dict):
        return None

    def details(key: str) -> _Details | None:
        inner = plain.get(key)
        if not isinstance(inner, dict):
            return None
        return _Details(_count(inner.get("cached_tokens")), _count(inner.get("reasoning_tokens")))

    return _Usage(
        _count(plain.get("prompt_tokens")),
        _count(plain.get("completion_tokens")),
        details("prompt_tokens_details"),
        details("completion_tokens_details"),
    )


def _string(value: Any) -> str | None:
    """Text, or the text of a list of content parts."""
    if isinstance(value, list):
        parts = [part.get("text") for part in value if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str)) or None
    return value if isinstance(value, str) else None
