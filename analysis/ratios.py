"""How much larger is one than the other? Differences of logarithms, so ratios, with what is known of their error.

Two kinds of evidence, never mixed:

- Blocks. The unit of replication is a start of the server. In each block both settings were started and asked the same;
  what the block has in common (the hour, the seed) falls out of its log ratio. Over blocks, a t interval of the mean.
- Within. One run of each: all that is known is how well each run knows its own value, from time blocks within it. The
  interval is that of MOVER (Zou and Donner, 2008) on logarithms: the two distances to the nearer ends of the separate
  intervals, squared, add up, each side by itself, for such intervals are lopsided. It knows nothing of restarts, so it
  speaks of these two runs only. Both were asked the same, which it does not use: it is rather too wide than too narrow.

How far a call reaches: from five blocks on it is a claim about the settings, from two to four an indication (the same t
interval, wide as it must be), and with one start of each it is about these two runs: whether the next start would show
it too, only restarts can tell.

Claims are tested, not read off intervals: that two intervals overlap says nothing. A difference: the t test of the
log ratio. No difference: two one-sided t tests within a margin (Schuirmann, 1987). Many claims at once: Holm (1979).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
from scipy import special

from analysis import blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.measured import Level
    from analysis.quantiles import Distribution

ALPHA = 0.05
POWER = 0.8  # with which the smallest difference that could have been seen would have been
MOST = 10.0  # a larger one is no number
RESOLUTION = 1e-6  # relative: what six digits cannot tell

Interval = tuple[float | None, float | None]
Metric = Literal[
    "ttft p50", "ttft p99", "itl p50", "itl p99", "tpot p50", "e2e p50", "e2e p99", "throughput", "goodput"
]
METRICS: tuple[Metric, ...] = (
    "throughput", "goodput", "ttft p50", "ttft p99", "itl p50", "itl p99", "tpot p50", "e2e p50", "e2e p99",
)  # fmt: skip
Reach = Literal["claim", "indication", "these runs"]
CLAIM_BLOCKS = 5
MORE_IS_BETTER: tuple[Metric, ...] = ("throughput", "goodput")


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """Logarithm of a value, with the standard errors that its own interval stands for, below and above it.

    They are known from `free` degrees of freedom; None where the run does not tell.
    """

    at: float
    below: float | None = None
    above: float | None = None
    free: int = 1


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Log of the ratio b/a. `blocks` is 1 where restarts were not replicated."""

    at: float
    below: float | None
    above: float | None
    free: float
    blocks: int


def value(level: Level, metric: Metric) -> tuple[float | None, Interval, int]:
    """In ms or per second, with its 95 % interval and the degrees of freedom of that.

    The summary has no interval of the goodput: only blocks tell.
    """
    if metric == "throughput":
        rate = level.throughput
        return rate.output_tokens_per_s, rate.output_tokens_per_s_ci95, blocks.LONG - 1
    if metric == "goodput":
        return None if level.goodput is None else level.goodput.requests_per_s, (None, None), 1
    name, q = metric.split()
    spread: Distribution = getattr(level, f"{name}_ms")
    at, ci95 = (spread.p50, spread.p50_ci95) if q == "p50" else (spread.p99, spread.p99_ci95)
    return at, ci95, blocks.BLOCKS - 1


def logged(levels: Sequence[Level], metric: Metric) -> Logged | None:
    """The mean over levels of one load and one server; None where one of them has no such value, or 0."""
    found = [_logged(*value(level, metric)) for level in levels]
    known = [one for one in found if one is not None]
    if not known or len(known) < len(found):
        return None
    return Logged(
        at=sum(one.at for one in known) / len(known),
        below=_together([one.below for one in known]),
        above=_together([one.above for one in known]),
        free=known[0].free,
    )


def _logged(at: float | None, ci95: Interval, free: int) -> Logged | None:
    if at is None or at <= 0:
        return None
    (low, high), t = ci95, _t(free)
    return Logged(
        at=math.log(at),
        below=math.log(at / low) / t if low else None,
        above=math.log(high / at) / t if high else None,
        free=free,
    )


def _together(errors: list[float | None]) -> float | None:
    """Standard error of the mean of independent values."""
    known = [error for error in errors if error is not None]
    return math.hypot(*known) / len(known) if known and len(known) == len(errors) else None


def difference(pairs: Sequence[tuple[Logged, Logged]], started: int) -> Difference | None:
    """Of b to a, one pair a block; None where there is none. `started` blocks had both, whether they tell or not.

    One pair of several blocks has no error: that within it would be of another kind.
    """
    if not pairs:
        return None
    if started == 1:
        return _within(*pairs[0])
    if len(pairs) == 1:
        a, b = pairs[0]
        return Difference(at=b.at - a.at, below=None, above=None, free=1, blocks=1)
    logs = np.array([b.at - a.at for a, b in pairs])
    error = max(float(logs.std(ddof=1)) / math.sqrt(len(logs)), RESOLUTION)
    return Difference(at=float(logs.mean()), below=error, above=error, free=len(logs) - 1, blocks=len(logs))


def _within(a: Logged, b: Logged) -> Difference:
    known = [(b.below, a.above), (b.above, a.below)]
    sides = [None if x is None or y is None else (x, y) for x, y in known]
    below, above = (None if side is None else max(math.hypot(*side), RESOLUTION) for side in sides)
    free = min((_free(side, (b.free, a.free)) for side in sides if side is not None), default=1.0)
    return Difference(at=b.at - a.at, below=below, above=above, free=free, blocks=1)


def _free(errors: tuple[float, float], free: tuple[int, int]) -> float:
    """Welch and Satterthwaite."""
    variances = [max(error, RESOLUTION) ** 2 for error in errors]
    return sum(variances) ** 2 / sum(v**2 / f for v, f in zip(variances, free, strict=True))


def interval(found: Difference, alpha: float = ALPHA) -> Interval:
    """Of the ratio, two-sided; an end that is not known is None."""
    t = _t(found.free, alpha)
    low = None if found.below is None else math.exp(max(found.at - t * found.below, -700.0))
    high = None if found.above is None else math.exp(min(found.at + t * found.above, 700.0))
    return low, high


def p_above(found: Difference, ratio: float) -> float | None:
    """That the ratio is not above `ratio`, tested: a small p says that it is."""
    return None if found.below is None else float(special.stdtr(found.free, (math.log(ratio) - found.at) / found.below))


def p_below(found: Difference, ratio: float) -> float | None:
    return None if found.above is None else float(special.stdtr(found.free, (found.at - math.log(ratio)) / found.above))


def p_differs(found: Difference) -> float | None:
    """Two-sided."""
    above, below = p_above(found, 1.0), p_below(found, 1.0)
    return None if above is None or below is None else min(1.0, 2 * min(above, below))


def p_alike(found: Difference, margin: float) -> float | None:
    """That the ratio lies outside of 1 / (1 + margin) to 1 + margin, tested: a small p says that it is within."""
    low, high = p_above(found, 1 / (1 + margin)), p_below(found, 1 + margin)
    return None if low is None or high is None else max(low, high)


def detectable(found: Difference, tests: int = 1) -> float | None:
    """The smallest difference, as a share, that had a chance of 80 % to be seen among so many tests, up or down.

    Seen is what passes the strictest step of Holm. By the noncentral t, with the error as it was found. None above 10.
    """
    if found.below is None or found.above is None:
        return None
    shift = float(special.nctdtrinc(found.free, 1 - POWER, _t(found.free, ALPHA / tests)))
    most = shift * max(found.below, found.above)
    return math.expm1(most) if most < math.log1p(MOST) else None


def reach(blocks: int) -> Reach:
    return "claim" if blocks >= CLAIM_BLOCKS else "indication" if blocks > 1 else "these runs"


def holm(values: Sequence[float]) -> list[float]:
    """p values of a family, adjusted step by step; in the order given."""
    adjusted, least = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        least = max(least, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = least
    return adjusted


def _t(free: float, alpha: float = ALPHA) -> float:
    return float(special.stdtrit(free, 1 - alpha / 2))
