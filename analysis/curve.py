"""What the levels say together: how throughput grows with the load, where it bends, and the last load that holds.

A law of the closed loop is fitted to the relative errors of the levels, and chosen by AICc. Intervals are those of a
parametric bootstrap of all laws, each by its Akaike weight: where two fit as well, one alone would be too sure of
the knee. Nothing is said beyond the last level measured, where memory may end.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from analysis import laws
from analysis.laws import Fits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.laws import Table
    from analysis.records import Floats

GAIN = 0.05  # of the largest throughput: a doubling that gains less is not worth its latency
LEVEL_NOISE = 0.01  # relative: what a window does not see of its own error (method.md: it is within 1 %)
# A law is a model: off by that much at two levels a doubling apart, it is off by this in its slope of log X over log N.
# The knee is where that slope is 1/2, and it may be nearly so for long.
TILT = math.sqrt(2) * LEVEL_NOISE / math.log(2)
MISFIT, SIGMAS = 0.1, 3  # a law that misses a level by more, relatively and in its noise, is none
DRAWS = 1000
Z95 = 1.96

Interval = tuple[float | None, float | None]


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A value or an end of its interval that lies outside of what was measured is None."""

    value: float | None = None
    ci95: Interval = (None, None)


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Of levels from `first` to `last` requests at once. `worst` is the largest relative distance of one from it."""

    law: laws.Law
    first: int
    last: int
    c0_ms: Estimate
    c1_ms: Estimate
    c2_ms: Estimate | None
    cap: Estimate | None
    worst: float


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """Of the closed loop.

    why_no_fit   for people
    knee         N of the largest X/R, Kleinrock's power, with R = N/X: what a user thinks is latency too
    saturated    the smallest N from which on a doubling gains under 5 % of the largest X; twice of it was measured
    saturation_tokens_per_s   the largest X of the law, where it is saturated
    """

    fit: Fit | None = None
    why_no_fit: str | None = None
    knee: Estimate = Estimate()
    saturated: Estimate = Estimate()
    saturation_tokens_per_s: Estimate = Estimate()


class Curve(Growth, frozen=True, kw_only=True):
    """Of a whole run. A load is a concurrency, a rate, or the speed of a trace.

    holds      the largest load under `fails` that passes every SLO term; without an SLO, the largest rate that is kept
    fails      the smallest load that fails a term, or over-saturates the server
    left_out   levels that are INVALID, or have no throughput
    """

    holds: float | None
    fails: float | None
    left_out: tuple[int, ...]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the curve needs of a level. `load` is its concurrency, rate or speed; `one_rate` is an open loop throughout
    which the schedule asks for one rate."""

    level: int
    concurrency: int | None
    load: float | None
    valid: bool
    over_saturated: bool
    one_rate: bool
    tokens_per_s: float | None
    tokens_per_s_ci95: Interval
    verdicts: frozenset[str]


def curve(levels: Sequence[Measured]) -> Curve:
    """Levels that are INVALID are left out of the fit: their throughput is not the server's."""
    growth = Growth()
    if levels and all(level.concurrency is not None for level in levels):
        points = sorted((level.concurrency, level.tokens_per_s, _noise(level)) for level in levels if _usable(level))
        growth = fitted(*np.array(points, np.float64).reshape(-1, 3).T)
    holds, fails = _held(levels)
    return Curve(
        **{name: getattr(growth, name) for name in Growth.__struct_fields__},
        holds=holds,
        fails=fails,
        left_out=tuple(level.level for level in levels if not _usable(level)),
    )


def _usable(level: Measured) -> bool:
    return level.valid and bool(level.tokens_per_s)


def _noise(level: Measured) -> float:
    """Relative standard error of the output tokens/s; 0 where the window does not tell."""
    low, high = level.tokens_per_s_ci95
    return 0.0 if low is None or high is None or not level.tokens_per_s else (high - low) / 2 / Z95 / level.tokens_per_s


def _held(levels: Sequence[Measured]) -> tuple[float | None, float | None]:
    """The largest load that holds below the smallest that fails. Without verdicts a rate holds that the server keeps.

    A level that is INVALID for another reason, or UNDECIDED, does neither.
    """
    held, failed = [], []
    for level in levels:
        if level.load is None:
            continue
        if (level.valid and "FAIL" in level.verdicts) or level.over_saturated:
            failed.append(level.load)
        elif level.valid and (level.verdicts == {"PASS"} or (level.one_rate and not level.verdicts)):
            held.append(level.load)
    fails = min(failed, default=None)
    return max((load for load in held if fails is None or load < fails), default=None), fails


def fitted(n: Floats, tokens_per_s: Floats, noise: Floats) -> Growth:
    """Of levels by rising concurrency `n`: each with its throughput, and the relative standard error of that.

    Intervals of the laws themselves at 1 to 64, with noise of 1 to 3 %, known or not, cover the truth in 93 to 100 %
    (tests/bench/curve_coverage.py, 150 runs each, standard error up to 2 points). The simulated engine follows no law
    exactly: 97 to 100 % cover its knee, at 46 or at its cap.
    """
    different = len(np.unique(n))
    if different < laws.FEWEST:
        return Growth(why_no_fit=f"it takes {laws.FEWEST} valid levels of different concurrency, not {different}")
    noise = np.hypot(noise, LEVEL_NOISE)
    fits = [laws.fit(law, n, (n / tokens_per_s)[None], tokens_per_s / n / noise) for law in laws.allowed(different)]
    chosen = int(np.argmin([laws.aicc(one, len(n)) for one in fits]))
    best = fits[chosen]
    off = np.abs(tokens_per_s / best.throughput(n)[0] - 1)
    if (off > np.maximum(MISFIT, SIGMAS * noise)).any():
        worst = int(np.argmax(off))
        return Growth(why_no_fit=f"the nearest law misses the level at {n[worst]:.0f} by {100 * off[worst]:.0f} %")
    free = len(n) - laws.PARAMETERS[best.law]
    scatter = max(1.0, float(best.chi2[0]) / free)
    draws = [_draw(one, n, noise, scatter, free) for one in fits]
    aic = np.array([laws.aic(one, scatter) for one in fits])
    bends = _bends(best, draws, np.exp((aic.min() - aic) / 2), (float(n[0]), float(n[-1])))
    return msgspec.structs.replace(bends, fit=_fit(best, draws[chosen], n, float(off.max())))


def throughput(fit: Fit, n: Floats) -> Floats:
    """Output tokens/s of the law at each of `n`, all of them between its first and its last."""
    costs_ms = [0.0 if cost is None or cost.value is None else cost.value for cost in (fit.c0_ms, fit.c1_ms, fit.c2_ms)]
    cap = np.inf if fit.cap is None or fit.cap.value is None else fit.cap.value
    law = Fits(law=fit.law, costs_s=np.array([costs_ms]) / 1e3, cap=np.array([cap]), chi2=np.zeros(1))
    return np.asarray(law.throughput(n)[0])


def _draw(one: Fits, n: Floats, noise: Floats, scatter: float, free: int) -> Fits:
    """The law fitted to throughputs drawn around it.

    Levels that scatter more than their noise widen the draws, by a factor that is known from `free` levels only, so by
    Student's t.
    """
    random = np.random.default_rng(0)
    normal = random.standard_normal((DRAWS, len(n)))
    if scatter > 1:
        noise = noise * scatter**0.5
        normal *= np.sqrt(free / random.chisquare(free, DRAWS))[:, None]
    expected = one.throughput(n)[0]
    return laws.fit(one.law, n, n / (expected * np.exp(noise * normal)), expected / n / noise)


def _fit(best: Fits, draws: Fits, n: Floats, worst: float) -> Fit:
    c0_ms, c1_ms, c2_ms = (
        Estimate(value=1e3 * float(best.costs_s[0, i]), ci95=_interval(1e3 * draws.costs_s[:, i])) for i in range(3)
    )
    measured = (float(n[0]), float(n[-1]))
    return Fit(
        law=best.law,
        first=int(n[0]),
        last=int(n[-1]),
        c0_ms=c0_ms,
        c1_ms=c1_ms,
        c2_ms=c2_ms if best.law == "usl" else None,
        cap=_within(float(best.cap[0]), _interval(draws.cap), measured) if best.law == "capped" else None,
        worst=worst,
    )


def _bends(best: Fits, draws: Sequence[Fits], weights: Floats, measured: tuple[float, float]) -> Growth:
    """Of the best law; the intervals are of all laws, each by its weight."""
    at_knee, at_saturated, at_most = (float(values[0]) for values in bends(best, *measured))
    tilt = TILT * np.random.default_rng(1).standard_normal(DRAWS)
    each = np.repeat(weights, DRAWS)
    drawn = zip(*(bends(fits, *measured, tilt) for fits in draws), strict=True)
    knee, saturated, most = (_interval(np.concatenate(values), each) for values in drawn)
    return Growth(
        knee=_within(at_knee, knee, measured),
        saturated=_within(at_saturated, saturated, measured),
        saturation_tokens_per_s=Estimate(value=at_most, ci95=most) if at_saturated < measured[1] else Estimate(),
    )


def bends(fits: Fits, first: float, last: float, tilt: Floats | None = None) -> tuple[Floats, Floats, Floats]:
    """Knee, saturation and largest throughput of each draw. Both N are `last` where they are not reached before.

    `tilt` is added to the slope of log X over log N, for each draw.
    """

    def throughputs(n: Floats) -> Table:
        x = fits.throughput(n)
        return x if tilt is None else x * (n / last) ** tilt[:, None]

    n = laws.places(first, last)
    x = throughputs(n)
    most = x.max(axis=1)
    knee = n[np.argmax(x**2 / n, axis=1)]
    doubled = n[2 * n <= last]
    gains = throughputs(2 * doubled) - throughputs(doubled) >= GAIN * most[:, None]
    # The place after the last one that gains: of a flat start the first ones may gain little too.
    after = np.max(gains * np.arange(1, len(doubled) + 1), axis=1, initial=0)
    return knee, np.append(doubled, last)[after], most


def _interval(drawn: Floats, weights: Floats | None = None) -> tuple[float, float]:
    low, high = np.quantile(drawn, (0.025, 0.975), method="inverted_cdf", weights=weights)
    return float(low), float(high)


def _within(value: float, ci95: tuple[float, float], measured: tuple[float, float]) -> Estimate:
    """Of a concurrency. At an end of what was measured it lies there or beyond; below 1 there is nothing."""
    (first, last), (low, high) = measured, ci95
    floor = 0 if first == 1 else first
    return Estimate(
        value=value if floor < value < last else None,
        ci95=(low if low > floor else None, high if high < last else None),
    )


def words(found: Curve, *, slo: bool, unit: str = "", left_out: Sequence[str] = ()) -> list[str]:
    """For people; `unit` is that of a load, such as "/s", and `left_out` names the levels that are."""
    lines, without = [], f" (without {', '.join(left_out)})" if left_out else ""
    if found.fit is not None:
        lines = [f"{_law(found.fit)}{without}", f"{_knee(found, found.fit)} (95 % intervals)"]
    elif found.why_no_fit is not None:
        lines = [f"no law of the throughput{without}: {found.why_no_fit}"]
    holds, fails = ("the SLO holds", "it fails") if slo else ("the server keeps the rate", "it is over-saturated")
    held = [] if found.holds is None else [f"{holds} up to {found.holds:g}{unit}"]
    failed = [] if found.fails is None else [f"{fails} at {found.fails:g}{unit}"]
    return [*lines, *filter(None, ["; ".join(held + failed)])]


def _law(fit: Fit) -> str:
    terms = [(fit.c0_ms, ""), (fit.c1_ms, " N"), (fit.c2_ms, " N^2")]
    step = " + ".join(f"{cost.value:.3g} ms{of}" for cost, of in terms if cost is not None and cost.value)
    cap = "" if fit.cap is None else f" up to N = {_about(fit.cap)} and no more from there on"
    return f"throughput of N at once: N / ({step}){cap}; every level within {max(0.1, 100 * fit.worst):.1f} %"


def _knee(found: Curve, fit: Fit) -> str:
    knee, end, most = found.knee, found.saturated, found.saturation_tokens_per_s
    if knee.value is not None:
        first = f"knee at N = {_about(knee)}, the most throughput for its latency"
    else:
        first = f"the knee lies below N = {fit.first}" if knee.ci95[0] is None else f"no knee up to N = {fit.last}"
    if most.value is None:
        return f"{first}; not saturated up to N = {fit.last}"
    since = f"N = {fit.first}" if end.value is None else f"N = {_about(end)}"
    return f"{first}; from {since} on a doubling gains under {100 * GAIN:.0f} %: {_about(most)} tok/s is the most"


def _about(estimate: Estimate) -> str:
    """Such as `32 (30 to 34)`; an end that is not known lies outside of what was measured."""
    low, high = ("?" if end is None else f"{end:.0f}" for end in estimate.ci95)
    return f"{estimate.value or 0:.0f} ({low} to {high})"
