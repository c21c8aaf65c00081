"""OpenAI's two dialects, chat completions and text completions: a request body out, an event in. No I/O.

Events are decoded into typed structs, which is fast and skips what nobody asked for. Where a server's types are its
own (counts as strings, content as a list of parts), the event is read again by hand, field by field.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

Prompt = str | tuple[int, ...] | tuple[dict[str, Any], ...]  # text, token ids (completions only), messages (chat only)
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


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """What one event says. `output`: it carries text, reasoning or a tool call; `answer`: not only reasoning."""

    text: str = ""
    output: bool = False
    answer: bool = False
    finish_reason: str | None = None
    final: bool = False  # the end marker, or the usage event that comes after all choices
    done: bool = False  # the end marker: nothing counts that comes after it
    usage: Usage | None = None
    error: str | None = None
    said: str | None = None  # the part of `text` that is neither reasoning nor a tool call; None: all of it


END = Chunk(final=True, done=True)
NOTHING = Chunk()


class NotJsonError(ValueError):
    """The data of an event is not JSON."""


def body(dialect: Dialect, prompt: Prompt, output_tokens: int, extra: Mapping[str, Any] | None = None) -> bytes:
    """`extra` is what the request itself asks for besides; the user's own `Dialect.extra` goes before it.

    Raises ValueError for messages where the API is that of text completions.
    """
    fields: dict[str, Any] = {"model": dialect.model}
    if dialect.api == "chat":
        fields["messages"] = messages(prompt)
    else:
        if not isinstance(prompt, str) and isinstance(prompt[0], dict):
            raise ValueError("a prompt of messages needs the chat API: use --api chat, or prompts of text")
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
    fields |= extra or {}
    fields |= dialect.extra
    return msgspec.json.encode({key: value for key, value in fields.items() if value is not None})


def messages(prompt: Prompt) -> tuple[Any, ...]:
    """A prompt as OpenAI's messages: text is one of the user."""
    return ({"role": "user", "content": prompt},) if isinstance(prompt, str) else prompt


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None
    function_call: dict[str, Any] | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Event(msgspec.Struct, gc=False):
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
    return _chunk(event) if name != b"error" else Chunk(error=error_body(data))


def _read_odd(name: bytes, data: bytes) -> Chunk:
    data = data.strip()
    if data == b"[DONE]":
        return END
    if name == b"error":
        return Chunk(error=error_body(data) or "no message")
    if not data:
        return NOTHING
    try:
        return _chunk(_by_hand(_any_json(data)))
    except (ValueError, RecursionError) as error:
        # Some servers put two JSON objects under one blank line: each data line may be whole by itself.
        lines = data.split(b"\n")
        if len(lines) == 1:
            raise NotJsonError(f"an event is not JSON ({_short(str(error))}): {_short(data)}") from None
        return _merge([read(name, line) for line in lines])


def _any_json(data: bytes) -> Any:
    """JSON, and what some servers take for it: NaN, control characters, half a surrogate pair, invalid UTF-8.

    Raises ValueError, RecursionError.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        # Python's own int refuses thousands of digits; no count is that large.
        return json.loads(data.decode("utf-8", "replace"), strict=False, parse_int=float)


def _chunk(event: _Event) -> Chunk:
    usage = None if event.usage is None else _usage(event.usage)
    if event.error or event.object == "error":
        return Chunk(usage=usage, error=error_text(event.error or event.message or "no message"))
    choices = event.choices
    if not choices:
        return NOTHING if usage is None else Chunk(usage=usage, final=True)
    text = said = ""
    answer = output = False
    finish_reason = None
    for choice in choices:
        if choice.text:
            text += choice.text
            said += choice.text
            answer = True
        if (delta := choice.delta) is not None:
            if thought := delta.reasoning_content or delta.reasoning or delta.thinking:
                text += thought
                output = True
            if content := delta.content or delta.refusal:
                text += content
                said += content
                answer = True
            if delta.tool_calls or delta.function_call:
                text += _call_text(delta)
                answer = True
        if choice.finish_reason:
            finish_reason = choice.finish_reason
    if finish_reason == "error":
        return Chunk(usage=usage, error="the server ended the answer with finish_reason error")
    aside = len(said) < len(text)
    return Chunk(text, output or answer, answer, finish_reason, usage=usage, said=said if aside else None)


def _call_text(delta: _Delta) -> str:
    calls = [_dict(_dict(call).get("function")) for call in delta.tool_calls or ()] + [_dict(delta.function_call)]
    return "".join(_string(call.get(key)) or "" for call in calls for key in ("name", "arguments"))


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
        any(chunk.done for chunk in chunks),
        next((chunk.usage for chunk in reversed(chunks) if chunk.usage), None),
        next((chunk.error for chunk in chunks if chunk.error), None),
        None
        if all(chunk.said is None for chunk in chunks)
        else "".join(chunk.text if chunk.said is None else chunk.said for chunk in chunks),
    )


def error_text(value: Any) -> str:
    """The readable part of an error object in any of the forms that servers give it."""
    keys = ("error", "message", "detail")
    while isinstance(value, dict) and (inner := next((value[key] for key in keys if value.get(key)), None)):
        value = inner
    if not isinstance(value, str):
        try:
            value = json.dumps(value, ensure_ascii=False)
        except RecursionError:
            value = "an error nested too deep to show"
    return _short(value)


def error_body(content: bytes) -> str:
    """The readable part of an error response or event, JSON or not."""
    try:
        return error_text(_any_json(content))
    except (ValueError, RecursionError):
        return _short(content)


def _short(text: str | bytes) -> str:
    if isinstance(text, bytes):
        text = text[: 4 * _MESSAGE_LIMIT].decode("utf-8", "replace")
    text = " ".join(text[: 4 * _MESSAGE_LIMIT].split())
    text = "".join(filter(str.isprintable, text))  # it will be shown in a terminal
    return text if len(text) <= _MESSAGE_LIMIT else text[:_MESSAGE_LIMIT] + "..."


# Reading by hand, for events whose types are not the specification's.


def _by_hand(plain: Any) -> _Event:
    plain = _dict(plain)
    choices, usage = plain.get("choices"), plain.get("usage")
    return _Event(
        [_choice_by_hand(_dict(choice)) for choice in choices] if isinstance(choices, list) else None,
        _usage_by_hand(usage) if isinstance(usage, dict) else None,
        plain.get("error"),
        _string(plain.get("object")),
        plain.get("message"),
    )


def _choice_by_hand(plain: dict[str, Any]) -> _Choice:
    delta = _dict(plain.get("delta"))
    texts = {key: _string(delta.get(key)) for key in ("content", "reasoning_content", "reasoning", "refusal")}
    thinking = _string(delta.get("thinking")) or _thoughts(delta.get("content"))
    calls = delta.get("tool_calls")
    calls = calls if isinstance(calls, list) else None
    made = _Delta(**texts, thinking=thinking, tool_calls=calls, function_call=_dict(delta.get("function_call")))
    return _Choice(made, _string(plain.get("text")), _string(plain.get("finish_reason")))


def _usage_by_hand(plain: dict[str, Any]) -> _Usage:
    asked, answered = _dict(plain.get("prompt_tokens_details")), _dict(plain.get("completion_tokens_details"))
    return _Usage(
        _count(plain.get("prompt_tokens")),
        _count(plain.get("completion_tokens")),
        _Details(cached_tokens=_count(asked.get("cached_tokens"))),
        _Details(reasoning_tokens=_count(answered.get("reasoning_tokens"))),
    )


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _string(value: Any) -> str | None:
    """Text, or the text of a list of content parts."""
    if isinstance(value, list):
        value = "".join(_string(_dict(part).get("text")) or "" for part in value)
    # Half of a surrogate pair is text to JSON, but to nothing that the text goes to.
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None


def _thoughts(content: Any) -> str:
    """The reasoning in a list of content parts: {"type": "thinking", "thinking": [{"type": "text", "text": ...}]}."""
    parts = content if isinstance(content, list) else []
    return "".join(_string(_dict(part).get("thinking")) or "" for part in parts)
