"""The streamed answer to one request: stamped bytes in, times and tokens of its output events out. No I/O.

An output event is one that carries output: text, reasoning or a tool call. Role-only, empty, usage-only and comment
events are none. How many tokens an output event carries is known where the server sends its running count with each,
or where it sends as many events as it counts tokens; else it is unknown, and stays so.
"""

from typing import Literal

import msgspec

from loadgen.dialects import NotJsonError, read
from loadgen.sse import Decoder, LineTooLongError

SAMPLE_BYTES = 2048


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    cached_tokens: int | None
    events_tokens: list[int] | None
    tokens_from: Literal["usage", "tokenizer", "events"]


class Answer:
    def __init__(self, line_limit_bytes: int, keep_text: bool) -> None:
        self.events_ns: list[int] = []
        self.answer_event: int | None = None
        self.bounds = 0
        self.finish_reason: str | None = None
        self.ended = False  # a terminal marker was seen
        self.error: str | None = None  # the server reported an error inside the stream
        self.broken: str | None = None  # not SSE, not JSON
        self.read_any = False  # at least one event could be read
        self.sample = b""  # the first bytes, for the message where this is no event stream
        self._texts: list[str] | None = [] if keep_text else None
        self._running: list[int] = []  # the server's count at each output event, as far as it sends one
        self._prompt_tokens: int | None = None
        self._output_tokens: int | None = None
        self._reasoning_tokens: int | None = None
        self._cached_tokens: int | None = None
        self._decoder = Decoder(line_limit_bytes)
        self._done = False  # what comes after the end marker is ignored

    def feed(self, stamp_ns: int, chunk: bytes) -> None:
        """Take the bytes of one read, all stamped `stamp_ns`."""
        if self.broken or self._done:
            return
        if len(self.sample) < SAMPLE_BYTES:
            self.sample += chunk[: SAMPLE_BYTES - len(self.sample)]
        try:
            self._take(stamp_ns, self._decoder.feed(chunk))
        except (LineTooLongError, NotJsonError) as error:
            self.broken = str(error)

    def close(self, stamp_ns: int) -> None:
        """The stream has ended: take what its last line holds."""
        if self.broken or self._done:
            return
        try:
            self._take(stamp_ns, self._decoder.flush())
        except (LineTooLongError, NotJsonError) as error:
            if not self.events_ns:  # else the cut-off line of a truncated stream, which is said elsewhere
                self.broken = str(error)

    def _take(self, stamp_ns: int, events: list[tuple[bytes, bytes]]) -> None:
        outputs = 0
        for name, data in events:
            chunk = read(name, data)
            self.read_any = True
            if chunk.usage is not None:
                self._count(chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
                self._reasoning_tokens = _newer(chunk.usage.reasoning_tokens, self._reasoning_tokens)
                self._cached_tokens = _newer(chunk.usage.cached_tokens, self._cached_tokens)
            if chunk.output:
                outputs += 1
                self.events_ns.append(stamp_ns)
                if chunk.answer and self.answer_event is None:
                    self.answer_event = len(self.events_ns) - 1
                if chunk.usage is not None and chunk.usage.completion_tokens is not None:
                    self._running.append(chunk.usage.completion_tokens)
                if self._texts is not None:
                    self._texts.append(chunk.text)
            if chunk.finish_reason is not None:
                self.finish_reason = chunk.finish_reason
            if chunk.error is not None and self.error is None:
                self.error = chunk.error
            if chunk.final or chunk.finish_reason is not None:
                self.ended = True
            if chunk.final and chunk.usage is None:
                self._done = True
                break
        if outputs > 1:
            # The stamp is that of the read's last segment: for the output events before the last it is an upper bound.
            self.bounds += outputs - 1

    def _count(self, prompt_tokens: int | None, output_tokens: int | None) -> None:
        self._prompt_tokens = _newer(prompt_tokens, self._prompt_tokens)
        self._output_tokens = _newer(output_tokens, self._output_tokens)

    def text(self) -> str | None:
        return None if self._texts is None else "".join(self._texts)

    def counts(self, tokenized: int | None) -> Counts:
        """Token counts: the server's usage, else `tokenized` (a tokenizer's count of the text), else the events."""
        events = len(self.events_ns)
        output_tokens = self._output_tokens
        tokens_from: Literal["usage", "tokenizer", "events"] = "usage"
        if output_tokens is None:
            tokens_from = "events" if tokenized is None else "tokenizer"
            output_tokens = events if tokenized is None else tokenized
        return Counts(
            prompt_tokens=self._prompt_tokens,
            output_tokens=output_tokens,
            reasoning_tokens=self._reasoning_tokens,
            cached_tokens=self._cached_tokens,
            events_tokens=self._tokens_per_event(output_tokens),
            tokens_from=tokens_from,
        )

    def _tokens_per_event(self, output_tokens: int) -> list[int] | None:
        events = len(self.events_ns)
        if events and len(self._running) == events:
            before = [0, *self._running[:-1]]
            return [max(0, now - then) for now, then in zip(self._running, before, strict=True)]
        hidden = 0
        if self._reasoning_tokens is not None and self.answer_event == 0:
            hidden = self._reasoning_tokens  # counted, but none of it was streamed
        return [1] * events if events == output_tokens - hidden else None


def _newer(value: int | None, old: int | None) -> int | None:
    return old if value is None else value
