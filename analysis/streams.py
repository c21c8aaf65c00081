"""What the streams of a level show of the engine behind them: its steps, what holds them up, how many it runs at once.

An engine step makes one token of every sequence it runs. A prompt that it computes beside them, whole or in chunks,
makes the step long for all of them, and ends with a first token. So, from the times of the events alone:

step     the median of the gaps that are not long; a gap is long above LONG times the tenth percentile of the gaps
stall    the time in which half of the streams that run have a long gap; the chunks of one prompt are one stall. One
         stream alone with a long gap, while the others go on, was set aside (preempted), or lost its way in the network
in it    what came in a stall or with its end (the tokens of one step are written one after another: half a step of
         tolerance), or a step later: the last chunk of a prompt can be so short that its step is not long
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from analysis import metrics

if TYPE_CHECKING:
    from analysis.records import Bools, Floats, Ints, Requests
    from analysis.window import Window

LONG = 2.0  # of a step: a larger batch or a longer context adds less, a prompt worth a word adds more
HALF = 0.5  # of the streams; those that a step begins or ends with do not stand still
FASTEST = 0.1  # the quantile of the gaps that stands for an undisturbed step, even where most steps hold a prompt
CROWDED = 0.8  # first tokens a step: FASTEST of the gaps are hardly left without one


class Streams(msgspec.Struct, frozen=True, kw_only=True):
    """
    step_ms       an undisturbed decode step
    stolen_ms     a request, mean: its gaps in stalls that hold a first token, less a step each
    aside_ms      a request, mean: its long gaps that are in no stall, less a step each
    stalls        how many, and `stall_ms` the mean length
    by_prompts    of the time in stalls, the share of those that hold a first token
    firsts        first tokens a step, of the steps in no stall: a stall would hold twice as many by chance, and where
                  nearly each step has one, none is known to be undisturbed
    prompt_ms     a prompt, mean: by how much it made the steps of others longer; None where no other stream ran
    prompt_share  of the time in which something was in flight: no stream ran, or a prompt made the step longer.
                  The network, and a wait at an idle server, are in it too
    wait_ms       a request, mean: TTFT less the stall that its first token came in, or less a step where it made none;
                  0 where no other stream ran, for then nothing tells a wait from a prefill
    decoding      streams that ran at once: mean, and the tenth and ninetieth percentile over time
    """

    step_ms: float
    stolen_ms: float
    aside_ms: float
    stalls: int
    stall_ms: float | None
    by_prompts: float | None
    firsts: float
    prompt_ms: float | None
    prompt_share: float
    wait_ms: float
    decoding: float
    decoding_low: float
    decoding_high: float

    @property
    def crowded(self) -> bool:
        return self.firsts >= CROWDED


class _Spans(NamedTuple):
    """Half open, (start, end]."""

    start_us: Floats
    end_us: Floats

    @property
    def us(self) -> Floats:
        return self.end_us - self.start_us

    def holding(self, times_us: Floats) -> Ints:
        """Of each time the place of the span that holds it; -1 where none does. The spans are in order, and apart."""
        place = np.searchsorted(self.start_us, times_us) - 1
        held = (place >= 0) & (times_us <= np.append(self.end_us, 0)[place])
        return np.where(held, place, -1)


def streams(requests: Requests, steady: Window | None) -> Streams | None:
    """Of the ok requests, in the window; None where there is no gap between two events in it."""
    low_us, high_us = (-np.inf, np.inf) if steady is None else (steady.start_us, steady.end_us)
    gaps = _gaps(requests, low_us, high_us)
    if not len(gaps.us):
        return None
    long_us = LONG * float(np.quantile(gaps.us, FASTEST))
    step_us = float(np.median(gaps.us[gaps.us <= long_us]))
    chosen = requests.ok & (requests.events > 0)
    sent_us = requests.sent_us[chosen]
    first_us = sent_us + 1e3 * metrics.ttft_sent_ms(requests)[chosen]
    last_us = sent_us + 1e3 * metrics.e2e_sent_ms(requests)[chosen]
    long = _Spans(gaps.start_us[gaps.us > long_us], gaps.end_us[gaps.us > long_us])
    stalls = _stalls(long, first_us, last_us, step_us / 2)

    place = _Spans(stalls.start_us, stalls.end_us + LONG * step_us).holding(first_us - step_us / 2)
    beside = _others(first_us, last_us, step_us / 2)
    counted = (first_us > low_us) & (first_us <= high_us)
    holds = np.zeros(len(stalls.us), np.bool_)
    holds[place[(place >= 0) & beside]] = True
    stolen_us, aside_us, slower = _lost(long, stalls, holds, step_us)
    held_us = slower * float(stalls.us[holds].sum())
    made_us = np.where(place >= 0, np.append(stalls.us, 0)[place], step_us)
    waited_us = np.where(beside, np.maximum(first_us - sent_us - made_us, 0), 0)[counted]

    sent_us, begun_us, done_us = (np.clip(times_us, low_us, high_us) for times_us in (sent_us, first_us, last_us))
    flying_us, running_us = (float(_merged(from_us, done_us).us.sum()) for from_us in (sent_us, begun_us))
    mean, low, high = _at_once(begun_us, done_us)
    all_us, prompts, answers = float(stalls.us.sum()), int((counted & beside).sum()), max(1, len(waited_us))
    return Streams(
        step_ms=step_us / 1e3,
        stolen_ms=stolen_us / 1e3 / answers,
        aside_ms=aside_us / 1e3 / answers,
        stalls=len(holds),
        stall_ms=all_us / 1e3 / len(holds) if len(holds) else None,
        by_prompts=float(stalls.us[holds].sum()) / all_us if len(holds) else None,
        firsts=int((counted & beside & (place < 0)).sum()) * step_us / max(step_us, running_us - all_us),
        prompt_ms=held_us / 1e3 / prompts if prompts else None,
        prompt_share=min(1.0, (flying_us - running_us + held_us) / flying_us) if flying_us else 0.0,
        wait_ms=float(waited_us.sum()) / 1e3 / answers,
        decoding=mean,
        decoding_low=low,
        decoding_high=high,
    )


def _gaps(requests: Requests, low_us: float, high_us: float) -> _Spans:
    """Those that end in the window, of all streams."""
    streaming = requests.ok & (requests.events > 1)
    ends_us, gaps_us = metrics.itl_at_us(requests, streaming), 1e3 * metrics.itl_ms(requests, streaming)
    inside = (gaps_us > 0) & (ends_us > low_us) & (ends_us <= high_us)
    return _Spans(ends_us[inside] - gaps_us[inside], ends_us[inside])


def _lost(long: _Spans, stalls: _Spans, holds: Bools, step_us: float) -> tuple[float, float, float]:
    """Of the long gaps, less a step each: the sum of those in stalls for prompts, of those in no stall, and what part
    of the first is more than a step."""
    begun, ended = stalls.holding(long.start_us + step_us / 2), stalls.holding(long.end_us - step_us / 2)
    within = (begun >= 0) & (begun == ended)
    stolen = within & np.append(holds, False)[begun]
    excess_us = long.us - step_us
    stolen_us = float(excess_us[stolen].sum())
    return stolen_us, float(excess_us[~within].sum()), stolen_us / max(1.0, float(long.us[stolen].sum()))


def _merged(start_us: Floats, end_us: Floats, touch_us: float = 0.0) -> _Spans:
    """Of spans in any order, their union; gaps of up to `touch_us` are closed."""
    order = np.argsort(start_us, kind="stable")
    start_us, end_us = start_us[order], np.maximum.accumulate(end_us[order])
    if not len(start_us):
        return _Spans(start_us, end_us)
    apart = start_us[1:] > end_us[:-1] + touch_us
    return _Spans(start_us[np.append(True, apart)], end_us[np.append(apart, True)])


def _stalls(long: _Spans, first_us: Floats, last_us: Floats, touch_us: float) -> _Spans:
    """Where half of the streams that run, from their first to their last token, have a long gap."""
    edges_us = np.concatenate((long.start_us, long.end_us))
    order = np.argsort(edges_us, kind="stable")
    count = np.cumsum(np.repeat((1, -1), len(long.us))[order])[:-1]
    edges_us = edges_us[order]
    middle_us = (edges_us[1:] + edges_us[:-1]) / 2
    running = np.searchsorted(np.sort(first_us), middle_us) - np.searchsorted(np.sort(last_us), middle_us)
    stalled = (count > 0) & (count >= HALF * running)
    return _merged(edges_us[:-1][stalled], edges_us[1:][stalled], touch_us)


def _others(first_us: Floats, last_us: Floats, before_us: float) -> Bools:
    """Of each stream, whether another one ran a little before its first token."""
    at_us = first_us - before_us
    begun = np.searchsorted(np.sort(first_us), at_us)
    ended = np.searchsorted(np.sort(last_us), at_us)
    return begun > ended


def _at_once(first_us: Floats, last_us: Floats) -> tuple[float, float, float]:
    """Streams that run: the mean and the tenth and ninetieth percentile over the time from the first to the last."""
    times_us = np.concatenate((first_us, last_us))
    order = np.argsort(times_us, kind="stable")
    count = np.cumsum(np.repeat((1, -1), len(first_us))[order])[:-1]
    lasts_us = np.diff(times_us[order])
    if not lasts_us.any():
        return 0.0, 0.0, 0.0
    by_count = np.argsort(count, kind="stable")
    shares = np.cumsum(lasts_us[by_count]) / lasts_us.sum()
    low, high = count[by_count][np.minimum(np.searchsorted(shares, (0.1, 0.9)), len(shares) - 1)]
    return float(np.average(count, weights=lasts_us)), float(low), float(high)
