"""Regression gates: `ttft p99 +5%`, the worst that a metric may do against the baseline.

- FAIL where the interval excludes the limit: a one-sided t test at 5 %, Holm over all gates, loads and settings.
- PASS where the one-sided 95 % bound is within the limit. All must pass, so several pay nothing.
- Else UNDECIDED: neither shown to be worse nor shown not to be. Longer levels, or more blocks, decide.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Literal

import msgspec

from analysis import ratios

if TYPE_CHECKING:
    from collections.abc import Sequence

_GATE = re.compile(r"([a-z0-9_]+)(?:\s+(p[0-9.]+))?\s*([+-])\s*([0-9]{1,4}(?:\.[0-9]{1,3})?)\s*%")
_EXAMPLES = "'ttft p99 +5%' or 'throughput -3%'"


class Gate(msgspec.Struct, frozen=True):
    """`limit` is the ratio to the baseline that is just allowed."""

    metric: ratios.Metric
    limit: float

    def __str__(self) -> str:
        return f"{self.metric} {100 * (self.limit - 1):+.6g}%"


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """`ci90` is of the ratio: each end is a one-sided 95 % bound. `p` is for worse than the limit, Holm's."""

    gate: str
    setting: str
    load: str
    verdict: Literal["PASS", "FAIL", "UNDECIDED"]
    ratio: float | None
    ci90: ratios.Interval
    p: float | None


class Case(msgspec.Struct, frozen=True):
    """What a gate is held against; no difference where the metric is not known."""

    gate: Gate
    setting: str
    load: str
    found: ratios.Difference | None


def parse(text: str) -> Gate:
    """Raises ValueError, one line, with what was expected."""
    match = _GATE.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is no gate: write one such as {_EXAMPLES}")
    name, quantile, sign, percent = match.groups()
    wanted = " ".join(filter(None, (name, quantile)))
    wanted = "tpot p50" if wanted == "tpot" else wanted
    metric = next((known for known in ratios.METRICS if known == wanted), None)
    if metric is None:
        raise ValueError(f"{text!r}: there is no {wanted!r} to compare; known: {', '.join(ratios.METRICS)}")
    worse = "-" if metric in ratios.MORE_IS_BETTER else "+"
    if sign != worse:
        raise ValueError(f"{text!r}: a gate says how much worse is allowed, so write {metric} {worse}{percent}%")
    limit = 1 + float(f"{sign}{percent}") / 100
    if not 0 < limit <= ratios.MOST:
        raise ValueError(f"{text!r}: expected a percentage below {100 if worse == '-' else 900}")
    return Gate(metric, limit)


def judge(cases: Sequence[Case]) -> list[Judged]:
    """Each case, as one of all of them."""
    tested = [_p_worse(case) for case in cases]
    places = [place for place, p in enumerate(tested) if p is not None]
    adjusted = dict(zip(places, ratios.holm([p for p in tested if p is not None]), strict=True))
    return [_judged(case, adjusted.get(place)) for place, case in enumerate(cases)]


def _judged(case: Case, p: float | None) -> Judged:
    found, limit, more = case.found, case.gate.limit, case.gate.metric in ratios.MORE_IS_BETTER
    low, high = (None, None) if found is None else ratios.interval(found, 2 * ratios.ALPHA)
    worst = low if more else high
    kept = worst is not None and (worst >= limit if more else worst <= limit)
    return Judged(
        gate=str(case.gate),
        setting=case.setting,
        load=case.load,
        verdict="FAIL" if p is not None and p <= ratios.ALPHA else "PASS" if kept else "UNDECIDED",
        ratio=None if found is None else math.exp(found.at),
        ci90=(low, high),
        p=p,
    )


def _p_worse(case: Case) -> float | None:
    if case.found is None:
        return None
    test = ratios.p_below if case.gate.metric in ratios.MORE_IS_BETTER else ratios.p_above
    return test(case.found, case.gate.limit)
