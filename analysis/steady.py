"""Where a level has settled: the transient is cut off, and what remains is tested for a trend.

The level is looked at second by second: tokens/s, requests in flight, TTFT. MSER-5 (White, 1997) cuts the means of
five seconds each where the mean of what remains is known best; the largest cut of the three counts. Left alone it also
cuts half of the short levels that have no transient. So a cut is made only where

- there are four such means at least, and half of them stay;
- every mean in it differs from the rest by 5 % and by more than chance (a t test at 1 %), the first one too: a hiccup
  that comes later is no transient, and stays;
- what remains has no trend, for else it is not steady either;
- no request failed in it: a server that fails at first is not warming up.

The trend test is that of Mann and Kendall on ten equal parts: their order agrees with time by more than chance (0.2 %,
as neighbours are alike without a trend too), and over the window the series moves by 10 %.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from scipy import special

from analysis import metrics, window

if TYPE_CHECKING:
    from analysis.records import Floats, Requests
    from analysis.window import Window

BATCH = 5  # values of a series in one mean
MIN_BATCHES = 4
CUT_SHARE = 0.05
CUT_ALPHA = 0.01
TREND_PARTS = 10
TREND_SHARE = 0.1
TREND_ALPHA = 0.002


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """`name` went from `first` to `last` over the window, by its straight line."""

    name: str
    first: float
    last: float


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """A level whose transient is warm-up too. `cut_s` is its length, `cut_requests` were measured in it."""

    requests: Requests
    window: Window
    cut_s: float = 0.0
    cut_requests: int = 0
    trend: Trend | None = None


def settle(requests: Requests, tokens: Floats, found: Window, *, open_loop: bool = False) -> Settled:
    """`tokens` are those of each event, `found` is the window from the first measured start to the last."""
    every = series(requests, tokens, found)
    parts = max(map(len, every.values()))
    cut = max(map(mser5, every.values()))
    rest = trend({name: values[cut:] for name, values in every.items()})
    from_us = found.start_us + cut * (found.end_us - found.start_us) / parts
    early = requests.measured & (requests.sent_us < from_us)
    if cut and rest is None and not (early & requests.failed).any():
        settled = msgspec.structs.replace(requests, phase=np.where(early, "warmup", requests.phase))
        kept = window.find(settled, open_loop=open_loop)
        if kept is not None:
            cut_s = (kept.start_us - found.start_us) / 1e6
            return Settled(requests=settled, window=kept, cut_s=cut_s, cut_requests=int(early.sum()))
    return Settled(requests=requests, window=found, trend=trend(every))


def series(requests: Requests, tokens: Floats, steady: Window) -> dict[str, Floats]:
    """Means over equal parts of at least a second. TTFT, in ms, is of the requests due in a part; NaN where none is."""
    arrived = window.arrived(requests, tokens, steady)
    parts = len(arrived)
    part_s = steady.length_s / parts
    edges_us = np.linspace(steady.start_us, steady.end_us, parts + 1)
    sent = ~np.isnan(requests.sent_us)
    held_us = np.diff(_since(requests.sent_us[sent], edges_us) - _since(window.ended_us(requests)[sent], edges_us))
    answered = metrics.answered(requests)
    due_us, ttft_ms = requests.due_us[answered], metrics.ttft_ms(requests)[answered]
    inside = (due_us >= steady.start_us) & (due_us <= steady.end_us)
    place = np.minimum((due_us[inside] - steady.start_us) / (part_s * 1e6), parts - 1).astype(np.int64)
    count = np.bincount(place, minlength=parts)
    total = np.bincount(place, weights=ttft_ms[inside], minlength=parts)
    return {
        "tokens/s": arrived / part_s,
        "in flight": held_us / (part_s * 1e6),
        "TTFT": np.divide(total, count, out=np.full(parts, np.nan), where=count > 0),
    }


def mser5(values: Floats) -> int:
    """How many values to cut off; 0 where there are too few, some batch has none, or the cut is not worth it."""
    batches = _batches(values)
    if len(batches) < MIN_BATCHES or np.isnan(batches).any():
        return 0
    cuts = range(len(batches) // 2 + 1)
    best = min(cuts, key=lambda cut: float(np.var(batches[cut:])) / (len(batches) - cut))
    rest = batches[best:]
    odd = [_differs(float(mean - rest.mean()), rest) for mean in batches[:best]]
    run = odd.index(False) if False in odd else best
    return len(values) % BATCH + BATCH * run if run else 0


def trend(every: dict[str, Floats]) -> Trend | None:
    """Of the series that moves most, by its share; None where all stand still, or are shorter than 20 parts."""
    found: list[tuple[float, Trend]] = []
    for name, values in every.items():
        parts = [part[~np.isnan(part)] for part in np.array_split(values, TREND_PARTS)]
        if len(values) < MIN_BATCHES * BATCH or not all(map(len, parts)):
            continue
        from scipy import stats  # takes half a second, and few levels are long enough to need it

        points = np.array([part.mean() for part in parts])
        time = (np.arange(TREND_PARTS) + 0.5) / TREND_PARTS - 0.5
        middle, slope = float(points.mean()), float(stats.theilslopes(points, time).slope)
        if abs(slope) <= TREND_SHARE * middle or stats.kendalltau(time, points).pvalue > TREND_ALPHA:
            continue
        found.append((abs(slope) / middle, Trend(name=name, first=middle - slope / 2, last=middle + slope / 2)))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _batches(values: Floats) -> Floats:
    """Means of whole batches, from the end: what is left over lies where a cut would be. NaN where a batch has none."""
    groups = values[len(values) % BATCH :].reshape(-1, BATCH)
    count = np.sum(~np.isnan(groups), axis=1)
    result: Floats = np.divide(np.nansum(groups, axis=1), count, out=np.full(len(groups), np.nan), where=count > 0)
    return result


def _differs(difference: float, rest: Floats) -> bool:
    """Of one more mean from those of the rest."""
    degrees = len(rest) - 1
    chance = float(special.stdtrit(degrees, 1 - CUT_ALPHA / 2)) * float(rest.std(ddof=1)) * (1 + 1 / len(rest)) ** 0.5
    return bool(abs(difference) > max(chance, CUT_SHARE * abs(float(rest.mean()))))


def _since(times_us: Floats, at_us: Floats) -> Floats:
    """The sum over `times_us` of how long before each of `at_us` they lie, 0 for those that lie after it."""
    times_us = np.sort(times_us)
    before = np.searchsorted(times_us, at_us)
    total_us = np.concatenate(([0.0], np.cumsum(times_us)))
    since_us: Floats = before * at_us - total_us[before]
    return since_us
