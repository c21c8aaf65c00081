"""vLLM's API without the network: request bodies in, refusals and answer bodies out.

As vLLM does, the first chat event has a role and empty content, the last token's event carries the finish reason, and
usage comes in an event of its own with empty `choices`. Unlike vLLM, an answer that ends by itself spends no token on
its end mark.
"""

from typing import Any, Literal

import msgspec

from analysis import hardware_words
from loadgen.sim import tokens
from loadgen.sim.spec import Spec

DONE = b"data: [DONE]\n\n"


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """What the client is told instead of a completion."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = {400: "BadRequestError", 404: "NotFoundError", 405: "MethodNotAllowedError"}.get(status, "Error")
        error = {"message": message, "type": kind, "param": param, "code": status}
        self.body = msgspec.json.encode({"error": error})


class _Part(msgspec.Struct):
    type: str
    text: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Body(msgspec.Struct):
    model: str | None = None
    messages: list[_Message] | None = None
    prompt: str | list[Any] | None = None
    add_generation_prompt: bool = True
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted request, and the length its answer will have."""

    chat: bool
    prompt: tuple[int, ...]
    output_tokens: int
    finish_reason: Literal["length", "stop"]
    stream: bool
    include_usage: bool
    continuous_usage: bool


def read_completion(body: bytes, spec: Spec, *, chat: bool, natural_tokens: int) -> Completion:
    """`natural_tokens` is where the answer would end by itself. Raises Refused."""
    asked = _decode(body, spec)
    if asked.n is not None and asked.n != 1:
        raise Refused(f"n must be 1 on this server, got {asked.n}", param="n")
    stream = bool(asked.stream)
    options = asked.stream_options or _StreamOptions()
    if asked.stream_options is not None and not stream:
        raise Refused("Stream options can only be defined when `stream=True`.", param="stream_options")
    prompt = _chat_prompt(asked) if chat else _text_prompt(asked)
    limit = _output_limit(asked, len(prompt), spec.max_model_len, chat=chat)
    least = asked.min_tokens or 0
    if not 0 <= least <= limit:
        raise Refused(f"min_tokens must be from 0 to max_tokens={limit}, got {least}", param="min_tokens")
    length = limit if asked.ignore_eos else min(limit, max(least, natural_tokens))
    return Completion(
        chat=chat,
        prompt=prompt,
        output_tokens=length,
        finish_reason="stop" if length == natural_tokens and not asked.ignore_eos else "length",
        stream=stream,
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
    )


def tokenize(body: bytes, spec: Spec) -> bytes:
    """The answer of POST /tokenize, which takes `prompt` or `messages`. Raises Refused."""
    asked = _decode(body, spec)
    ids = _chat_prompt(asked) if asked.messages is not None else _text_prompt(asked)
    return msgspec.json.encode(
        {"count": len(ids), "max_model_len": spec.max_model_len, "tokens": ids, "token_strs": None}
    )


def models(spec: Spec, created: int) -> bytes:
    name = spec.model.name
    card = {"id": name, "object": "model", "created": created, "owned_by": "loadgen", "root": name, "parent": None}
    more = {"max_model_len": spec.max_model_len, "hardware": hardware_words.words(spec.hardware)}
    return msgspec.json.encode({"object": "list", "data": [card | more]})


class Answer:
    """The bodies and events of one completion."""

    def __init__(self, completion: Completion, *, completion_id: str, created: int, model: str) -> None:
        self._completion = completion
        self.id = completion_id
        self._about = {"id": completion_id, "created": created, "model": model}
        kind, opening = (
            ("chat.completion.chunk", '"delta":{"content":"') if completion.chat else ("text_completion", '"text":"')
        )
        about = f'"id":"{completion_id}","object":"{kind}","created":{created},"model":"{model}"'
        self._event_head = f"data: {{{about},"
        self._text_head = f'{self._event_head}"choices":[{{"index":0,{opening}'
        self._text_end = '"}' if completion.chat else '"'

    def role_event(self, cached: int) -> bytes:
        usage = self._running_usage(0, cached)
        choice = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        return f'{self._event_head}"choices":[{choice}]{usage}}}\n\n'.encode()

    def text_event(self, text: str, generated: int, cached: int, *, last: bool) -> bytes:
        """`generated` tokens so far, this event's included; `text` needs no escapes."""
        reason = f'"{self._completion.finish_reason}"' if last else "null"
        usage = self._running_usage(generated, cached) if self._completion.continuous_usage else ""
        return (
            f'{self._text_head}{text}{self._text_end},"logprobs":null,"finish_reason":{reason}}}]{usage}}}\n\n'.encode()
        )

    def closing_events(self, cached: int) -> bytes:
        if not self._completion.include_usage:
            return DONE
        usage = msgspec.json.encode(self._usage(self._completion.output_tokens, cached)).decode()
        return f'{self._event_head}"choices":[],"usage":{usage}}}\n\n'.encode() + DONE

    def whole(self, text: str, cached: int) -> bytes:
        """The body of an answer that is not streamed."""
        choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": self._completion.finish_reason}
        if self._completion.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        kind = "chat.completion" if self._completion.chat else "text_completion"
        usage = self._usage(self._completion.output_tokens, cached)
        return msgspec.json.encode({**self._about, "object": kind, "choices": [choice], "usage": usage})

    def _running_usage(self, generated: int, cached: int) -> str:
        if not self._completion.continuous_usage:
            return ""
        return f',"usage":{msgspec.json.encode(self._usage(generated, cached)).decode()}'

    def _usage(self, generated: int, cached: int) -> dict[str, object]:
        prompt = len(self._completion.prompt)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + generated,
            "completion_tokens": generated,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


def _decode(body: bytes, spec: Spec) -> _Body:
    try:
        asked = msgspec.json.decode(body, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"Invalid request body: {error}") from None
    if asked.model is not None and asked.model != spec.model.name:
        raise Refused(f"The model `{asked.model}` does not exist.", status=404, param="model")
    return asked


def _chat_prompt(asked: _Body) -> tuple[int, ...]:
    if not asked.messages:
        raise Refused("messages must hold at least one message", param="messages")
    pairs = [(message.role, _text_of(message.content)) for message in asked.messages]
    return tokens.encode_chat(pairs, add_generation_prompt=asked.add_generation_prompt)


def _text_of(content: str | list[_Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part.text for part in content if part.text is not None]
    if len(texts) < len(content):
        raise Refused("this model takes text only", param="messages")
    return "".join(texts)


def _text_prompt(asked: _Body) -> tuple[int, ...]:
    prompt = asked.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return tokens.encode_prompt(prompt)
    if not prompt:
        raise Refused("prompt must be a text or a list of at least one token id", param="prompt")
    if not all(type(token) is int and 0 <= token < tokens.VOCABULARY for token in prompt):
        raise Refused(
            f"prompt must be one text or one list of token ids from 0 to {tokens.VOCABULARY - 1}", param="prompt"
        )
    return tuple(prompt)


def _output_limit(asked: _Body, prompt_tokens: int, max_model_len: int, *, chat: bool) -> int:
    """The most tokens the answer may have: as asked; else 16 for a text completion, and what is left for a chat."""
    left = max_model_len - prompt_tokens
    if left < 1:
        raise Refused(
            f"This model's maximum context length is {max_model_len} tokens. However, your request has "
            f"{prompt_tokens} input tokens. Please reduce the length of the input messages."
        )
    limit = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    if limit is None:
        return left if chat else min(16, left)
    if limit < 1:
        raise Refused(f"max_tokens must be at least 1, got {limit}", param="max_tokens")
    if limit > left:
        raise Refused(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{prompt_tokens + limit} tokens ({prompt_tokens} in the messages, {limit} in the completion). Please "
            "reduce the length of the messages or completion.",
            param="max_tokens",
        )
    return limit
