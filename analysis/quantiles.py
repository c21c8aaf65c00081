"""One definition of a quantile, its interval, and how many samples it takes.

A quantile is numpy's method "linear" (type 7 of Hyndman and Fan), as in the tools whose numbers these are set beside.

Values are not independent: concurrent streams share every engine step. So what a sample can carry is decided by n_eff,
the number of independent values that would say as much, measured over time blocks (see `blocks`): a high quantile is
None below `min_n`, the end of an interval where not even the extreme of n_eff values is one. The interval inverts the
binomial test on the number of values above, as SLO verdicts do: its end is the limit at which a verdict would turn.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from scipy import special

from analysis import blocks

if TYPE_CHECKING:
    from analysis.records import Floats
    from analysis.window import Window

ALPHA = 0.05  # of a two-sided interval
KNOWN = 1 / blocks.unsure(ALPHA / 2)  # 0.92


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """A sample in the unit of its name. What the sample cannot support is None.

    `n_eff` is that of the tail, and decides about p90, p95 and p99; it is None where the dependence is not known. About
    the median n decides: it is the middle of what was measured, and its interval, or that it has none, says the rest.
    """

    n: int
    n_eff: int | None = None
    mean: float | None = None
    min: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    p50_ci95: tuple[float | None, float | None] = (None, None)
    p99_ci95: tuple[float | None, float | None] = (None, None)


def min_n(q: float) -> int:
    """The smallest sample with a two-sided 95 % interval for the quantile `q`: q^n and (1-q)^n are at most 0.025.

    Below it not even the range of the sample is such an interval. 6 for p50, 36 for p90, 72 for p95, 368 for p99.
    """
    if not 0 < q < 1:
        raise ValueError(f"a quantile lies between 0 and 1, not at {q}")
    return math.ceil(math.log(ALPHA / 2) / math.log(max(q, 1 - q)))


def point(values: Floats, q: float) -> float | None:
    """The sample's own quantile, however small the sample; None of an empty one. For checks, not for results."""
    return float(np.quantile(values, q, method="linear")) if len(values) else None


def quantile(ordered: Floats, q: float, n_eff: int | None = None) -> float | None:
    """The quantile `q` of a sorted sample; None where `n_eff`, or n if that is not known, is below `min_n`."""
    return _at(ordered, q) if (len(ordered) if n_eff is None else n_eff) >= min_n(q) else None


def interval(ordered: Floats, q: float, n_eff: int | None) -> tuple[float | None, float | None]:
    """The 95 % interval of the quantile `q` of a sorted sample: values with so many above as the binomial law allows.

    That law has the share 1 - q and n_eff trials, fewer by the square of z over Student's t, since n_eff is known from
    30 blocks only; each trial counts for its part of the values.
    """
    if n_eff is None:
        return None, None
    n, trials = len(ordered), n_eff * KNOWN
    weight = n / trials
    low = high = None
    if q**n_eff <= ALPHA / 2:
        fewest = float(special.bdtrik(ALPHA / 2, trials, 1 - q))
        high = float(ordered[n - 1 - math.floor(max(fewest, 0.0) * weight)])
    if (1 - q) ** n_eff <= ALPHA / 2:
        most = float(special.bdtrik(1 - ALPHA / 2, trials, 1 - q)) + 1
        low = float(ordered[max(n - 1 - math.ceil(most * weight), 0)])
    return low, high


def distribution(values: Floats, times_us: Floats | None = None, steady: Window | None = None) -> Distribution:
    """Of the values that are there: NaN stands for a request that has no such value.

    Without the time of each value and a window their dependence is not known: no interval, and n decides what is null.
    """
    known = ~np.isnan(values)
    if not known.all():
        values, times_us = values[known], None if times_us is None else times_us[known]
    if not len(values):
        return Distribution(n=0)
    ordered = np.sort(values)
    middle = tail = None
    if times_us is not None and steady is not None:
        where = blocks.places(times_us, steady.start_us, steady.end_us)
        middle, tail = (
            math.floor(len(values) / blocks.effect_at(values, where, q, partial(_at, ordered))) for q in (0.5, 0.99)
        )
    return Distribution(
        n=len(values),
        n_eff=tail,
        mean=float(ordered.mean()),
        min=float(ordered[0]),
        p50=quantile(ordered, 0.50),
        p90=quantile(ordered, 0.90, tail),
        p95=quantile(ordered, 0.95, tail),
        p99=quantile(ordered, 0.99, tail),
        max=float(ordered[-1]),
        p50_ci95=interval(ordered, 0.50, middle),
        p99_ci95=interval(ordered, 0.99, tail),
    )


def _at(ordered: Floats, q: float) -> float:
    """As `point`, without a search."""
    place = (len(ordered) - 1) * q
    below = math.floor(place)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    return float(low + (high - low) * (place - below))
