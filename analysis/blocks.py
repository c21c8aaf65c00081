"""How much a sample says whose values are not independent: dependence measured over blocks of time.

Concurrent streams share every engine step, and neighbours in a queue share their wait. So the window is cut into blocks
of equal length, and the variance of the share of values above a limit is that of the block sums, over that of as many
independent values: the design effect d. n values that depend are worth n/d that do not.

- Kish, Survey Sampling (1965): ratio of the block sums to their sizes, failures and all.
- Blocks are neighbours: where a request is longer than a block, or the load swings slowly, their sums go together.
  Where the correlation of next neighbours is above 0.1, autocovariances are added as long as pairs of them stay
  positive and fall (Geyer, 1992, initial monotone sequence).
- Few blocks that are free of each other say little about their own variance: d grows by the square of t over z then.
- A limit far out is passed in a few bursts, and a burst that did not come leaves no trace. Where fewer than 10
  independent values are above, d is also that of a limit passed five times as often, whichever is larger.

Intervals are those of Clopper and Pearson with real arguments (Korn and Graubard, 1998).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from analysis.records import Bools, Floats, Ints

    Places = npt.NDArray[np.uint8]

BLOCKS = 30
LONG = 10  # longer ones, which know less of each other: of a rate
ALPHA = 0.05
FEW = 10  # independent values above a limit
OFTEN = 5  # times as often
ALIKE = 0.1  # correlation of next neighbours
_AT_ONCE = 1 << 17  # values that fit a processor's cache


def places(times_us: Floats, start_us: float, end_us: float) -> Places:
    """The block of each time, 0 to BLOCKS - 1; what lies outside belongs to the first or the last, NaN to the first."""
    length_us = end_us - start_us
    if not length_us > 0:
        return np.zeros(len(times_us), np.uint8)
    result = np.empty(len(times_us), np.uint8)
    for first in range(0, len(result), _AT_ONCE):
        chosen = slice(first, first + _AT_ONCE)
        scaled = (times_us[chosen] - start_us) * (BLOCKS / length_us)
        result[chosen] = np.fmin(np.fmax(scaled, 0), BLOCKS - 1)  # NaN to 0
    return result


def effect_at(values: Floats, where: Places, q: float, value_at: Callable[[float], float]) -> float:
    """The design effect of the share above the sample's own quantile, at least 1; `value_at` finds that."""
    above = _above(values, value_at(q))
    effect, often = max(1.0, design_effect(above, where)), OFTEN * (1 - q)
    if np.count_nonzero(above) / effect >= FEW or often > 0.5:
        return effect
    return max(effect, design_effect(_above(values, value_at(1 - often)), where))


def _above(values: Floats, limit: float) -> Bools:
    """The values over the limit; where that is the largest of them, those at it."""
    above = values > limit
    return above if above.any() else values >= limit


def design_effect(exceeds: Bools, where: Places) -> float:
    """Variance of the share, by blocks, over that of independent values; 0 where all are alike, which tells nothing.

    All values in one block may be one and the same event: they are worth one.
    """
    below, above = _counts(exceeds, where)
    sizes = below + above
    n, k, used = int(sizes.sum()), int(above.sum()), int(np.count_nonzero(sizes))
    if used < 2:
        return float(n)
    if k in (0, n):
        return 0.0
    p = k / n
    excess = above - p * sizes
    variance = float(np.sum(excess**2)) * _together(excess, used) / n**2
    return min(variance / (p * (1 - p) / n), float(n))


def _counts(exceeds: Bools, where: Places) -> Ints:
    """Of each block the values that do not exceed, and those that do."""
    counts = np.zeros(2 * BLOCKS, np.int64)
    for first in range(0, len(where), _AT_ONCE):
        chosen = slice(first, first + _AT_ONCE)
        counts += np.bincount(2 * where[chosen] + exceeds[chosen], minlength=2 * BLOCKS)
    return counts.reshape(BLOCKS, 2).T


def _together(excess: Floats, used: int) -> float:
    """By how much the variance of the sum of `excess` is larger than the sum of its squares."""
    lags = np.correlate(excess, excess, "full")[BLOCKS - 1 :] / (np.sum(excess**2) or 1.0)
    if lags[1] <= ALIKE:
        return used / (used - 1)
    pairs = lags[:-1:2] + lags[1::2]
    positive = pairs[: np.argmax(pairs <= 0)]  # the excess sums to 0 and the lags to 1/2: some pair is negative
    longer = max(1.0, 2 * float(np.minimum.accumulate(positive).sum()) - 1)
    free = max(used / longer, min(used, 3.0))
    return longer * free / (free - 1) * unsure(ALPHA / 2, free - 1)


def unsure(alpha: float, free: float = BLOCKS - 1) -> float:
    """By how much a variance that is known by so many degrees of freedom counts for more, where a bound errs in `alpha`
    of the cases: the square of Student's t over z."""
    return float(special.stdtrit(free, 1 - alpha) / special.ndtri(1 - alpha)) ** 2


def mean_interval(means: Floats, alpha: float = ALPHA) -> tuple[float, float]:
    """Two-sided t interval of the mean over blocks of equal length.

    Of output tokens/s in LONG blocks, simulated (an engine at 1 to 128 requests at once, 150 to 200 runs of 14 to 23
    requests a slot, standard error 2 points): 93 to 99 % of the nominal 95 % cover the true rate.
    """
    mean, error = float(means.mean()), float(means.std(ddof=1)) / len(means) ** 0.5
    half = error * float(special.stdtrit(len(means) - 1, 1 - alpha / 2))
    return mean - half, mean + half


def interval(k: float, n: float, alpha: float = ALPHA) -> tuple[float, float]:
    """Two-sided Clopper-Pearson interval of k of n; both may be real numbers."""
    low = float(special.betaincinv(k, n - k + 1, alpha / 2)) if k > 0 else 0.0
    high = float(special.betaincinv(k + 1, n - k, 1 - alpha / 2)) if k < n else 1.0
    return low, high
