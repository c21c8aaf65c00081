"""The streamed answer to one request: stamped bytes in, times and tokens of its output events out. No I/O.

An output event is one that carries output: text, reasoning or a tool call. Role-only, empty, usage-only and comment
events are none. How many tokens an output event carries is known where the server sends its running count with each,
or where it sends as many events as it counts tokens; else it is unknown, and stays so.

The answer is whole when a terminal marker has come and no output after it: the end marker, a finish_reason, or a
usage event.
"""

import contextlib
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import msgspec

from loadgen.arrivals import Said
from loadgen.dialects import END_MARKER, Chunk, NotJsonError, read
from loadgen.likeness import Likeness, likeness
from loadgen.sse import Decoder, LineTooLongError

SAMPLE_BYTES = 2048
# Of one answer, which else could fill the memory before its time limit.
MOST_EVENTS = 1_000_000  # of output
MOST_KEPT_CHARS = 16 * 2**20  # of text, where it is kept
_MOST_TRIES = 8


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    cached_tokens: int | None
    events_tokens: list[int] | None
    tokens_from: Literal["usage", "tokenizer", "events"] | None  # None: output_tokens is unknown


class Answer:
    def __init__(self, line_limit_bytes: int, keep_text: bool, keep_said: bool = False) -> None:
        self.events_ns: list[int] = []
        self.answer_event: int | None = None
        self.bounds = 0
        self.finish_reason: str | None = None
        self.ended = False  # a terminal marker was seen, and no output after it
        self.error: str | None = None  # the server reported an error inside the stream
        self.broken: str | None = None  # not SSE, not JSON
        self.sample = b""  # the first bytes, for the message where this is no event stream
        self._texts: list[str] | None = [] if keep_text else None
        self._said: list[str] | None = [] if keep_said else None
        self._kept_chars = 0
        self._running: list[int] = []  # the server's count at each output event, as far as it sends one
        self._prompt_tokens: int | None = None
        self._output_tokens: int | None = None
        self._reasoning_tokens: int | None = None
        self._cached_tokens: int | None = None
        self._decoder = Decoder(line_limit_bytes)
        self._limit_bytes = line_limit_bytes
        self._done = False  # what comes after the end marker is ignored
        self._last_ns = 0
        self._like: Likeness | None = None  # the last event that brought nothing but output
        self._compared_at = 0  # events
        self._tries = _MOST_TRIES  # to find such events that others are like

    def feed(self, stamp_ns: int, chunk: bytes) -> Said:
        """Take the bytes of one read, all stamped `stamp_ns`."""
        if self.broken or self._done:
            return None
        self._last_ns = stamp_ns
        # What nearly every chunk is, without decoding its JSON again.
        if (
            (like := self._like) is not None
            and self._decoder.between_events
            and len(chunk) <= self._limit_bytes
            and like.covers(chunk)
        ):
            self.ended = False
            self.events_ns.append(stamp_ns)
            if self._texts is not None or self._said is not None:
                text = chunk[like.text_from : like.text_to].decode("utf-8", "replace")
                self._keep(text, text)
                return "broken" if self.broken else None
            return None
        if len(self.sample) < SAMPLE_BYTES:
            self.sample += chunk[: SAMPLE_BYTES - len(self.sample)]
        try:
            whole = self._decoder.between_events
            events = self._decoder.feed(chunk)
            alone = whole and len(events) == 1 and self._decoder.between_events
            self._take(stamp_ns, events, chunk if alone else None)
            if not self._decoder.between_events and self._decoder.ends_with(END_MARKER):  # nobody may end its line
                self._take(stamp_ns, self._decoder.flush())
        except (LineTooLongError, NotJsonError) as error:
            self.broken = str(error)
        if self.broken:
            return "broken"
        return "done" if self._done else None

    def close(self) -> None:
        """The stream has ended: take what its last line holds, where it is whole."""
        if self.broken or self._done:
            return
        with contextlib.suppress(NotJsonError, LineTooLongError):  # cut off: then there is no terminal marker either
            self._take(self._last_ns, self._decoder.flush())

    def _take(self, stamp_ns: int, events: list[tuple[bytes, bytes]], alone: bytes | None = None) -> None:
        """`alone`: the bytes of the only event."""
        outputs = 0
        for name, data in events:
            chunk = read(name, data)
            if chunk.output:
                outputs += 1
                self.ended = False
                self.events_ns.append(stamp_ns)
                if self._texts is not None or self._said is not None:
                    self._keep(chunk.text, chunk.text if chunk.said is None else chunk.said)
                if chunk.answer and self.answer_event is None:
                    self.answer_event = len(self.events_ns) - 1
            if chunk.usage is not None or chunk.finish_reason is not None or chunk.final or chunk.error is not None:
                self._take_rest(chunk)
                if self._done:
                    break
            elif alone is not None and chunk.text and (self._said is None or chunk.said is None):
                self._compare(alone, name, data, chunk.text)
        if outputs > 1:
            # The stamp is that of the read's last segment: for the output events before the last it is an upper bound.
            self.bounds += outputs - 1
            if len(self.events_ns) > MOST_EVENTS:  # asked here alone: who pours sends many at once
                self.broken = f"an answer of over {MOST_EVENTS} output events"

    def _keep(self, text: str, said: str) -> None:
        if self._texts is not None:
            self._texts.append(text)
        if self._said is not None:
            self._said.append(said)
        self._kept_chars += len(text)
        if self._kept_chars > MOST_KEPT_CHARS:
            self.broken = f"an answer of over {MOST_KEPT_CHARS} characters"

    def _compare(self, event: bytes, name: bytes, data: bytes, text: str) -> None:
        if self._like is not None and self._like.surrounds(event):
            return  # the text was escaped; the next will not be
        if len(self.events_ns) > self._compared_at + 1:  # others were like the last one
            self._tries = _MOST_TRIES
        self._compared_at = len(self.events_ns)
        if self._tries:
            self._tries -= 1
            self._like = likeness(event, name, data, text)

    def _take_rest(self, chunk: Chunk) -> None:
        """What an event says beside its output."""
        if (usage := chunk.usage) is not None:
            self._prompt_tokens = _newer(usage.prompt_tokens, self._prompt_tokens)
            self._output_tokens = _newer(usage.completion_tokens, self._output_tokens)
            self._reasoning_tokens = _newer(usage.reasoning_tokens, self._reasoning_tokens)
            self._cached_tokens = _newer(usage.cached_tokens, self._cached_tokens)
            if chunk.output and usage.completion_tokens is not None:
                self._running.append(usage.completion_tokens)
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
        if chunk.error is not None and self.error is None:
            self.error = chunk.error
        if chunk.final or chunk.finish_reason is not None:
            self.ended = True
        self._done = chunk.done

    def said(self) -> str:
        """The answer as a conversation repeats it, without reasoning and tool calls; needs `keep_said`."""
        return "".join(self._said or ())

    def counts(self, count_text: Callable[[str], int] | None = None) -> Counts:
        """Token counts: the server's usage; else `count_text` of the text, which needs `keep_text`; else the events."""
        output_tokens = self._output_tokens
        tokens_from: Literal["usage", "tokenizer", "events"] | None = "usage"
        if output_tokens is None:
            if not self.events_ns:
                tokens_from = None
            elif count_text is not None and (text := "".join(self._texts or ())):
                tokens_from, output_tokens = "tokenizer", count_text(text)
            else:
                tokens_from, output_tokens = "events", len(self.events_ns)
        return Counts(
            prompt_tokens=self._prompt_tokens,
            output_tokens=output_tokens,
            reasoning_tokens=self._reasoning_tokens,
            cached_tokens=self._cached_tokens,
            events_tokens=None if tokens_from == "events" else self._tokens_per_event(output_tokens),
            tokens_from=tokens_from,
        )

    def _tokens_per_event(self, output_tokens: int | None) -> list[int] | None:
        events = len(self.events_ns)
        if not events or output_tokens is None:
            return None
        if len(self._running) == events and self._running[-1] > 0:  # 0: a usage that is filled in at the end only
            shares = [now - then for then, now in pairwise([0, *self._running])]
            if min(shares) >= 0:
                return shares
        hidden = 0
        if self.answer_event == 0 and (self._reasoning_tokens or 0) < output_tokens:
            hidden = self._reasoning_tokens or 0  # counted, but none of it was streamed
        return [1] * events if events == output_tokens - hidden else None


def _newer(value: int | None, old: int | None) -> int | None:
    return old if value is None else value
