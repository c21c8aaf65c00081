"""PASS, FAIL or UNDECIDED: a term, and what the levels at one load say of it. And how much it takes to decide.

- A term is PASS where the upper bound of what exceeds its limit is at most what it allows, FAIL where the lower bound
  is above that, else UNDECIDED. Each bound errs in `alpha` of the cases; dependence is measured over time blocks.
- Levels at one load are pooled: each has a design effect of its own, and counts for as many values as it has. (By
  what they are worth, a calm level would count for more than one with bursts: that passed 10 % at the limit, not 4 %.)
- Where levels differ by more than their own blocks explain, as when a server changes between them, that counts instead:
  the variance is then larger by Birge's ratio, chi square by its degrees of freedom.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
from scipy import special

from analysis import blocks, quantiles, slo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.records import Floats
    from analysis.slo import Term

ALPHA = 0.05
FAR = 50  # times as much as was measured: more is no advice
DIFFER = 0.05  # chance of levels that are alike to be called different


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`exceed` is the share over the limit (1 - exceed is the attainment), `exceed_ci` the two one-sided bounds that
    decided, and `unknown` the share of the `n` values of which nobody knows. Of throughput there are `observed_per_s`
    and `per_s_ci` in their place."""

    term: str
    verdict: Literal["PASS", "FAIL", "UNDECIDED"]
    observed_ms: float | None = None
    exceed: float | None = None
    exceed_ci: tuple[float | None, float | None] = (None, None)
    unknown: float | None = None
    n: int | None = None
    n_eff: int | None = None
    observed_per_s: float | None = None
    per_s_ci: tuple[float | None, float | None] = (None, None)


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What one level says of one term.

    n, exceed, unknown   how many values there are, exceed the limit, or may or may not
    effects              design effects: the unknown counted as exceeding, and as not
    values, beyond       those that are known, in ms, and how many more lie above any
    rates, length_s      of throughput: output tokens/s in blocks of a window so long
    """

    n: int = 0
    exceed: int = 0
    unknown: int = 0
    effects: tuple[float, float] = (1.0, 1.0)
    values: Floats = np.empty(0)
    beyond: int = 0
    rates: Floats = np.empty(0)
    length_s: float = 0.0


def decide(term: Term, samples: Sequence[Sample], *, alpha: float = ALPHA, of: int = 1) -> Verdict:
    """Of one term, one `of` so many, on all levels at one load together."""
    if term.metric == "throughput":
        return _decide_rate(term, [one for one in samples if len(one.rates)], alpha, of)
    return _decide_share(term, [one for one in samples if one.n], alpha, of)


def _decide_share(term: Term, samples: Sequence[Sample], alpha: float, of: int) -> Verdict:
    n, exceed, unknown = (sum(getattr(one, name) for one in samples) for name in ("n", "exceed", "unknown"))
    if n == unknown:
        return Verdict(term=str(term), verdict="UNDECIDED")
    sizes = np.array([one.n for one in samples], np.float64)
    over = np.array([(one.exceed + one.unknown, one.exceed) for one in samples], np.float64)
    effects = np.array([one.effects for one in samples])
    most = _worth(sizes, over[:, 0], effects[:, 0], alpha)
    least = _worth(sizes, over[:, 1], effects[:, 1], alpha / of)
    _, high = blocks.interval((exceed + unknown) / n * most, most, 2 * alpha)
    low, _ = blocks.interval(exceed / n * least, least, 2 * alpha / of)
    quantile = 1 - term.allowed
    values, beyond = np.concatenate([one.values for one in samples]), sum(one.beyond for one in samples)
    return Verdict(
        term=str(term),
        verdict="PASS" if high <= term.allowed else "FAIL" if low > term.allowed else "UNDECIDED",
        observed_ms=None if term.percent is None else _observed(values, beyond, quantile),
        exceed=exceed / (n - unknown),
        exceed_ci=(low, high),
        unknown=unknown / n,
        n=n,
        n_eff=int(min(most, least)),
    )


def _worth(sizes: Floats, over: Floats, effects: Floats, alpha: float) -> float:
    """How many independent values all levels together are worth: the variance of their share is the sum of theirs."""
    n = float(sizes.sum())
    share, parts = float(over.sum()) / n, sizes * effects
    independent = share * (1 - share) / sizes
    effect = max(1.0, float(parts.sum()) / n * blocks.unsure(alpha, _free(parts, blocks.BLOCKS)))
    effect *= _apart(over / sizes - share, independent * np.maximum(effects, 1))
    return n / min(effect, n)


def _free(variances: Floats, count: int) -> float:
    """The degrees of freedom of a sum of variances, each known from `count` blocks (Welch and Satterthwaite)."""
    squares = float(np.sum(variances**2))
    return (count - 1) * (float(variances.sum()) ** 2 / squares if squares else len(variances))


def _apart(differences: Floats, variances: Floats) -> float:
    """By how much levels vary more than they should: 1 unless that is clear (Cochran's Q), else Birge's ratio."""
    free = len(variances) - 1
    if not free or not variances.all():
        return 1.0
    q = float(np.sum(differences**2 / variances))
    return q / free if special.chdtrc(free, q) < DIFFER else 1.0


def _observed(values: Floats, beyond: int, quantile: float) -> float | None:
    """The quantile of the values and `beyond` infinite ones; None where it is one of these, or there is nothing."""
    whole = np.concatenate((values, np.full(beyond, np.inf)))
    if math.ceil(quantile * (len(whole) - 1)) >= len(values):
        return None
    return quantiles.point(whole, quantile)


def _decide_rate(term: Term, samples: Sequence[Sample], alpha: float, of: int) -> Verdict:
    """By a t interval over the rates of a few long blocks, so long that neighbours know little of each other.

    Levels count by their length.
    """
    if not samples:
        return Verdict(term=str(term), verdict="UNDECIDED")
    lengths_s = np.array([one.length_s for one in samples])
    weights = lengths_s / lengths_s.sum()
    means = np.array([one.rates.mean() for one in samples])
    variances = np.array([one.rates.var(ddof=1) / len(one.rates) for one in samples])
    mean, parts = float(weights @ means), weights**2 * variances
    variance = float(parts.sum())
    free = _free(parts, blocks.LONG)
    error = math.sqrt(variance * _apart(means - mean, variances))
    low = mean - error * float(special.stdtrit(free, 1 - alpha))
    high = mean + error * float(special.stdtrit(free, 1 - alpha / of))
    return Verdict(
        term=str(term),
        verdict="PASS" if low >= term.limit else "FAIL" if high < term.limit else "UNDECIDED",
        observed_per_s=mean,
        per_s_ci=(low, high),
    )


def fewest(term: Term, *, alpha: float = ALPHA) -> int | None:
    """How many independent values of which none exceeds make PASS: 299 for p99. None for throughput."""
    if term.metric == "throughput":
        return None
    return math.ceil(math.log(alpha) / math.log1p(-term.allowed))


def growth(verdict: Verdict, *, alpha: float = ALPHA, of: int = 1) -> float | None:
    """About how many times as much as was measured would decide, were the rest like it; None where that is unknown or
    more than FAR. `alpha` and `of` as for the verdict."""
    term = slo.parse(verdict.term)
    low, high = verdict.per_s_ci
    if verdict.observed_per_s is not None and low is not None and high is not None:
        margin = verdict.observed_per_s - term.limit
        half = verdict.observed_per_s - low if margin > 0 else high - verdict.observed_per_s
        return max(1.0, (half / margin) ** 2) if half < abs(margin) * math.sqrt(FAR) else None
    exceed, unknown, n_eff = verdict.exceed, verdict.unknown, verdict.n_eff
    if exceed is None or unknown is None or not n_eff:
        return None
    least = exceed * (1 - unknown)

    def decided(times: float) -> bool:
        n = times * n_eff
        _, high = blocks.interval((least + unknown) * n, n, 2 * alpha)
        low, _ = blocks.interval(least * n, n, 2 * alpha / of)
        return high <= term.allowed or low > term.allowed

    if not decided(FAR):
        return None
    few, many = 1.0, float(FAR)
    while many > 1.01 * few:
        middle = math.sqrt(few * many)
        few, many = (few, middle) if decided(middle) else (middle, many)
    return many


def needed(verdict: Verdict, *, alpha: float = ALPHA, of: int = 1) -> int | None:
    """About how many values, of those that were measured and others like them, would decide; as `growth`."""
    times = growth(verdict, alpha=alpha, of=of)
    return None if times is None or verdict.n is None else math.ceil(times * verdict.n)
