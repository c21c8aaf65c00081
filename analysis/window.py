"""The steady part of a level, and what flowed through it.

The window lies between the first and the last start of a measured request: all slots have started before it, and
the drain comes after it. Requests that start in it are sampled and may finish; everything else is counted by its
arrival in it, whichever request it belongs to, warm-up requests that still stream included. Failed requests deliver
nothing. In the open loop later turns of a conversation move no end of it: they go on when no new user comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from analysis import blocks, metrics, prompts

if TYPE_CHECKING:
    from analysis.records import Bools, Floats, Requests


_ROWS = 1000  # at a time: what they need fits a processor's cache, and millions of events need no more memory


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Half open: (start, end], in microseconds since the run's start."""

    start_us: float
    end_us: float

    @property
    def length_s(self) -> float:
        return (self.end_us - self.start_us) / 1e6

    def holds(self, times_us: Floats) -> Bools:
        return (times_us > self.start_us) & (times_us <= self.end_us)


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """What went through a window.

    requests_per_s      complete answers (their last output event)
    starts_per_s        requests sent
    concurrency         time-average of the requests in flight, from sent to the end of the stream
    ended, residence_s  requests whose stream ended, failed or cut ones too, and the mean time those had been in flight
    late_starts, late_ended   requests sent and ended in the second half
    thinking            time-average of the users between two turns of a conversation, by the turns that start in it
    total_tokens_per_s  with the prompt tokens, counted where the prompt has been read: at the first output event
    peak_tokens_per_s   the fullest of equal parts of at least a second; never under the mean
    """

    length_s: float
    requests_per_s: float
    starts_per_s: float
    concurrency: float
    ended: int
    residence_s: float | None
    late_starts: int
    late_ended: int
    thinking: float
    output_tokens_per_s: float
    peak_tokens_per_s: float
    total_tokens_per_s: float | None


def find(requests: Requests, *, open_loop: bool = False) -> Window | None:
    """From the first measured start to the last; None where there are not two different ones."""
    counted = requests.measured & (requests.turn == 0) if open_loop else requests.measured
    starts = requests.sent_us[counted & ~np.isnan(requests.sent_us)]
    if not len(starts) or starts.min() == starts.max():
        return None
    return Window(start_us=float(starts.min()), end_us=float(starts.max()))


def flow(requests: Requests, tokens: Floats, window: Window) -> Flow:
    """`tokens` are those of each event, from `metrics.event_tokens`."""
    length_s = window.length_s
    sent = ~np.isnan(requests.sent_us)
    last_us = requests.due_us + metrics.e2e_ms(requests) * 1e3
    end_us = ended_us(requests)
    spent_us = np.minimum(end_us, window.end_us) - np.maximum(requests.sent_us, window.start_us)
    ended = window.holds(end_us)
    late = Window(start_us=(window.start_us + window.end_us) / 2, end_us=window.end_us)
    thought_us = prompts.think_us(requests)[window.holds(requests.sent_us)]
    by_part = arrived(requests, tokens, window)
    parts = max(1, int(length_s))
    output = float(by_part.sum())
    prompt = _prompt_tokens(requests, window)
    return Flow(
        length_s=length_s,
        requests_per_s=float(np.sum(requests.ok & window.holds(last_us)) / length_s),
        starts_per_s=float(np.sum(window.holds(requests.sent_us)) / length_s),
        concurrency=float(np.maximum(spent_us[sent], 0).sum() / 1e6 / length_s),
        ended=int(ended.sum()),
        residence_s=float((end_us - requests.sent_us)[ended].mean() / 1e6) if ended.any() else None,
        late_starts=int(late.holds(requests.sent_us).sum()),
        late_ended=int(late.holds(end_us).sum()),
        thinking=float(np.maximum(np.nan_to_num(thought_us), 0).sum() / 1e6 / length_s),
        output_tokens_per_s=output / length_s,
        peak_tokens_per_s=float(by_part.max()) / (length_s / parts),
        total_tokens_per_s=None if prompt is None else (output + prompt) / length_s,
    )


def block_rates(requests: Requests, tokens: Floats, window: Window) -> Floats:
    """Output tokens/s in each of `blocks.LONG` equal parts of the window."""
    times_us = np.repeat(requests.sent_us, requests.events) + requests.events_us
    inside = window.holds(times_us) & np.repeat(~requests.failed, requests.events)
    where = blocks.places(times_us[inside], window.start_us, window.end_us) // (blocks.BLOCKS // blocks.LONG)
    sums = np.bincount(where, weights=tokens[inside], minlength=blocks.LONG)
    return np.asarray(sums * (blocks.LONG / window.length_s))


def whole_run_tokens_per_s(requests: Requests, tokens: Floats) -> float | None:
    """Output tokens over the level from its first request sent to the end of its last: ramp and drain included."""
    sent = requests.sent_us[~np.isnan(requests.sent_us)]
    if not len(sent):
        return None
    length_s = (np.nanmax(ended_us(requests)) - sent.min()) / 1e6
    total = float(metrics.tokens_per_request(requests, tokens)[~requests.failed].sum())
    return total / float(length_s) if length_s > 0 else None


def ended_us(requests: Requests) -> Floats:
    """When each stream ended; NaN for one never sent. A row without an end ended at its last event, or at once."""
    last_us = requests.due_us + metrics.e2e_ms(requests) * 1e3 - requests.sent_us
    after_us = np.where(np.isnan(requests.end_us), np.nan_to_num(last_us), requests.end_us)
    return requests.sent_us + after_us


def arrived(requests: Requests, tokens: Floats, window: Window) -> Floats:
    """Output tokens in each of the equal parts of the window."""
    parts = max(1, int(window.length_s))
    total = np.zeros(parts)
    counts, starts, failed = requests.events, requests.starts, requests.failed
    for first in range(0, len(counts), _ROWS):
        rows = slice(first, first + _ROWS)
        events = slice(starts[first], starts[min(first + _ROWS, len(counts))])
        times_us = np.repeat(requests.sent_us[rows], counts[rows])
        times_us += requests.events_us[events]
        inside = window.holds(times_us) & np.repeat(~failed[rows], counts[rows])
        place = (times_us[inside] - window.start_us) * (parts / (window.end_us - window.start_us))
        part = np.clip(np.ceil(place).astype(np.int64) - 1, 0, parts - 1)
        total += np.bincount(part, weights=tokens[events][inside], minlength=parts)
    return total


def _prompt_tokens(requests: Requests, window: Window) -> float | None:
    """Prompt tokens read in the window; a request cut before its usage counts as the mean of the others."""
    mean = metrics.known_mean(requests.prompt_tokens)
    if mean is None:
        return None
    read = ~requests.failed & window.holds(requests.sent_us + metrics.ttft_sent_ms(requests) * 1e3)
    return float(np.where(np.isnan(requests.prompt_tokens), mean, requests.prompt_tokens)[read].sum())
