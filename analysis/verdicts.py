"""Does an SLO hold? A verdict for each term, by the interval of what exceeds its limit; and goodput.

Rules
- A term is PASS where the upper bound of what exceeds its limit is at most what it allows, FAIL where the lower bound
  is above that, else UNDECIDED. Each bound errs in `alpha` of the cases; dependence is measured over time blocks.
- All must pass for the SLO to hold, so PASS pays nothing for several terms; any of them may fail, so FAIL divides alpha
  by their number. Who looks several times divides alpha by the number of looks.
- A failed request exceeds every limit. Of gaps between events it owes those that an ok request has on average and it
  had not yet streamed.
- A request that ended without the value, because its user left, the level ended, or no answer text came, exceeds the
  limit if it had waited that long, and else nobody knows: PASS needs the unknown counted as exceeding, FAIL as not.
  What was seen of an answer cut short has its TTFT, TPOT, ITL and stall; its E2E is unknown.
- Gaps count in the window only: in the drain fewer streams share a step.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from analysis import blocks, metrics, quantiles, records, slo
from analysis.window import block_rates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from analysis.records import Bools, Floats, Header, Requests
    from analysis.slo import Term
    from analysis.window import Window

ALPHA = 0.05
OFTEN = (0.9, 0.75)  # quantiles that enough values exceed to show how these bunch
FOLDS = (1, 2)  # blocks in one


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`exceed` is the share over the limit (1 - exceed is the attainment), `exceed_ci` the two one-sided bounds that
    decided. Of throughput there are `observed_per_s` and `per_s_ci` in their place."""

    term: str
    verdict: Literal["PASS", "FAIL", "UNDECIDED"]
    observed_ms: float | None = None
    exceed: float | None = None
    exceed_ci: tuple[float | None, float | None] = (None, None)
    n_eff: int | None = None
    observed_per_s: float | None = None
    per_s_ci: tuple[float | None, float | None] = (None, None)


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that met every term. `share` is of the measured ones: failed and cancelled ones are misses, who left by
    themselves only where they had waited too long. `requests_per_s` is of the answers that ended in the window."""

    requests_per_s: float | None
    share: float | None


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """Of a level, or of a class of a mix."""

    goodput: Goodput | None = None
    verdicts: tuple[Verdict, ...] = ()


NOTHING = Statement()


def terms(header: Header) -> tuple[Term, ...]:
    """What the whole of a level is held to: --slo, which goes before what a workload of one class says."""
    classes = header.workload.classes
    own = classes[0].slo if len(classes) == 1 else None
    return slo.terms([*(own or ()), *(header.slo or ())])


def class_terms(header: Header) -> dict[str, tuple[Term, ...]]:
    """What each class of a mix is held to, beside that."""
    classes = header.workload.classes
    return {one.name or "": slo.terms(one.slo or ()) for one in classes} if len(classes) > 1 else {}


def of_level(
    header: Header, requests: Requests, tokens: Floats, steady: Window | None, *, alpha: float = ALPHA, looks: int = 1
) -> dict[str, Statement]:
    """The level's statement at "", and those of the classes of a mix at their names; empty where nothing is asked."""
    whole, each = terms(header), class_terms(header)
    count = len(whole) + sum(map(len, each.values()))
    if not count:
        return {}
    fates = [fate(term, requests, tokens) for term in whole]
    masks = {name: np.strings.equal(requests.class_name, name) for name in each}
    for name, mask in masks.items():
        fates += [_only(mask, fate(term, requests, tokens)) for term in each[name]]
    missed = np.logical_or.reduce([requests.failed, *(one.exceeds for one in fates)])
    good = np.logical_and.reduce([requests.ok, ~missed, *(~one.unknown for one in fates)])

    def statement(held_to: Sequence[Term], chosen: Bools) -> Statement:
        some = requests if chosen.all() else records.subset(requests, chosen)
        events = np.repeat(chosen, requests.events)
        judged = [judge(term, some, tokens[events], steady, alpha=alpha / looks, of=count) for term in held_to]
        return Statement(goodput=goodput(some, good[chosen], missed[chosen], steady), verdicts=tuple(judged))

    statements = {name: statement(each[name], mask) for name, mask in masks.items()}
    return statements | {"": statement(whole, np.ones(len(missed), np.bool_))}


def withheld(statement: Statement) -> Statement:
    """Of a level that is INVALID: what was observed stays, but decides nothing."""
    undecided = tuple(msgspec.structs.replace(one, verdict="UNDECIDED") for one in statement.verdicts)
    return msgspec.structs.replace(statement, verdicts=undecided)


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What became of each of a sample under a term: it exceeds the limit, keeps it, or nobody knows. `values` are NaN
    where there is none; what is not `counted` has nothing that the term speaks of, as a single token has no TPOT."""

    values: Floats
    exceeds: Bools
    unknown: Bools
    counted: Bools


def judge(
    term: Term, requests: Requests, tokens: Floats, steady: Window | None, *, alpha: float = ALPHA, of: int = 1
) -> Verdict:
    """Of one term over the measured requests, one `of` so many. `tokens` are those of each event."""
    if term.metric == "throughput":
        return _judge_rate(term, requests, tokens, steady, alpha, of)
    sampled = requests.measured if steady is None else requests.measured & ~(requests.sent_us > steady.end_us)
    if term.metric == "itl":
        found, times_us = _gaps(term, requests, sampled, steady)
    else:
        found, times_us = _only(sampled, fate(term, requests, tokens)), requests.due_us
    return _judge_share(term, found, times_us, steady, alpha, of)


def _judge_share(term: Term, found: Fate, times_us: Floats, steady: Window | None, alpha: float, of: int) -> Verdict:
    counted, latency = found.counted, term.percent is not None
    values, exceeds, unknown = found.values[counted], found.exceeds[counted], found.unknown[counted]
    if not (~unknown).any():
        return Verdict(term=str(term), verdict="UNDECIDED")
    start_us, end_us = (0.0, 0.0) if steady is None else (steady.start_us, steady.end_us)
    where = blocks.places(np.nan_to_num(times_us[counted], nan=start_us), start_us, end_us)
    quantile = 1 - term.allowed
    ranked = np.where(np.isnan(values), np.inf, values) if latency else None

    def bounds(exceeds: Bools, one_sided: float) -> tuple[float, float, float]:
        n_eff = len(exceeds) / _effect(exceeds, where, ranked, quantile)
        return *blocks.interval(float(exceeds.mean()) * n_eff, n_eff, 2 * one_sided), n_eff

    _, high, most = bounds(exceeds | unknown, alpha)
    low, _, least = bounds(exceeds, alpha / of)
    beyond = int(np.sum(exceeds & np.isnan(values)))  # no value, but known to be over the limit
    return Verdict(
        term=str(term),
        verdict="PASS" if high <= term.allowed else "FAIL" if low > term.allowed else "UNDECIDED",
        observed_ms=_observed(values[~np.isnan(values)], beyond, quantile) if latency else None,
        exceed=float(exceeds[~unknown].mean()),
        exceed_ci=(low, high),
        n_eff=int(min(most, least)),
    )


def _effect(exceeds: Bools, where: npt.NDArray[np.uint8], values: Floats | None, quantile: float) -> float:
    """The design effect that a verdict rests on: the largest of those of three limits, the term's own and the sample's
    p90 and p75, over blocks and over pairs of them.

    A calm sample shows few misses and little dependence at once: by its own limit alone, an open loop near saturation
    (28/s of tests/bench/verdicts.py) passes 7 to 11 % of the levels that just fail, and by all three at most 6 %.
    """
    spreads = [exceeds]
    if values is not None:
        limits = {float(np.quantile(values, min(quantile, q), method="lower")) for q in OFTEN}
        spreads += [values > limit for limit in limits]
    return max(blocks.design_effect(spread, where // fold) for spread in spreads for fold in FOLDS)


def _observed(values: Floats, beyond: int, quantile: float) -> float | None:
    """The quantile of the values and `beyond` infinite ones; None where it is one of these, or there is nothing."""
    whole = np.concatenate((values, np.full(beyond, np.inf)))
    if math.ceil(quantile * (len(whole) - 1)) >= len(values):
        return None
    return quantiles.point(whole, quantile)


def _judge_rate(
    term: Term, requests: Requests, tokens: Floats, steady: Window | None, alpha: float, of: int
) -> Verdict:
    """By a t interval over the rates of a few long blocks, so long that neighbours know little of each other."""
    if steady is None:
        return Verdict(term=str(term), verdict="UNDECIDED")
    rates = block_rates(requests, tokens, steady)
    low, _ = blocks.mean_interval(rates, 2 * alpha)
    _, high = blocks.mean_interval(rates, 2 * alpha / of)
    return Verdict(
        term=str(term),
        verdict="PASS" if low >= term.limit else "FAIL" if high < term.limit else "UNDECIDED",
        observed_per_s=float(rates.mean()),
        per_s_ci=(low, high),
    )


def goodput(requests: Requests, good: Bools, missed: Bools, steady: Window | None) -> Goodput:
    """Of the requests that met every term (`good`) and those known to have missed one."""
    last_us = requests.due_us + metrics.e2e_ms(requests) * 1e3
    counted = requests.measured & (~requests.left | missed)
    return Goodput(
        requests_per_s=None if steady is None else float(np.sum(good & steady.holds(last_us)) / steady.length_s),
        share=float(good[counted].mean()) if counted.any() else None,
    )


_VALUES: dict[str, Callable[[Requests, Floats], Floats]] = {
    "ttft": lambda requests, _: metrics.ttft_ms(requests),
    "ttft_sent": lambda requests, _: metrics.ttft_sent_ms(requests),
    "ttfat": lambda requests, _: metrics.ttfat_ms(requests),
    "tpot": metrics.tpot_ms,
    "e2e": lambda requests, _: np.where(requests.ok, metrics.e2e_ms(requests), np.nan),
    "stall": metrics.stall_ms,
}
_WAITED_FOR = ("ttft", "ttft_sent", "ttfat", "e2e")  # who has no value was waiting for it


def fate(term: Term, requests: Requests, tokens: Floats) -> Fate:
    """Of each request. Under an ITL term it is judged by its own gaps."""
    failed, nobody = requests.failed, np.zeros(len(requests.index), np.bool_)
    nothing = np.full(len(nobody), np.nan)
    if term.metric == "itl":
        return Fate(values=nothing, exceeds=failed | _choppy(term, requests), unknown=nobody, counted=~nobody)
    if term.metric not in _VALUES:  # the level as a whole is held to it, and not this or that request
        return Fate(values=nothing, exceeds=failed, unknown=nobody, counted=~requests.cancelled)
    values = np.where(failed, np.nan, _VALUES[term.metric](requests, tokens))
    exceeds, silent = failed | (values > term.limit), ~failed & np.isnan(values)
    if term.metric not in _WAITED_FOR:
        return Fate(values=values, exceeds=exceeds, unknown=nobody, counted=~silent)
    since_us = requests.sent_us if term.metric == "ttft_sent" else requests.due_us
    late = silent & (requests.sent_us + requests.end_us - since_us > term.limit * 1e3)
    return Fate(values=values, exceeds=exceeds | late, unknown=silent & ~late, counted=~nobody)


def _only(chosen: Bools, one: Fate) -> Fate:
    return Fate(
        values=one.values, exceeds=one.exceeds & chosen, unknown=one.unknown & chosen, counted=one.counted & chosen
    )


def _choppy(term: Term, requests: Requests) -> Bools:
    """Whether more of a request's gaps exceed the limit than the term allows."""
    firsts = requests.starts[:-1][requests.events > 0]
    over = np.diff(requests.events_us, prepend=0) > term.limit * 1e3
    over[firsts] = False
    before = np.concatenate(([0], np.cumsum(over)))
    exceeding = before[requests.starts[1:]] - before[requests.starts[:-1]]
    return exceeding > term.allowed * np.maximum(requests.events - 1, 0)


def _gaps(term: Term, requests: Requests, sampled: Bools, steady: Window | None) -> tuple[Fate, Floats]:
    """The gaps that ended in the window, each with its time; and those that failed requests owe, when they failed."""
    values, times_us = metrics.itl_ms(requests, sampled), metrics.itl_at_us(requests, sampled)
    if steady is not None:
        inside = steady.holds(times_us)
        values, times_us = values[inside], times_us[inside]
    gaps, broken = np.maximum(requests.events - 1, 0), sampled & requests.failed
    usual = gaps[sampled & requests.ok].mean() if (sampled & requests.ok).any() else 1.0
    owed = np.maximum(np.rint(usual - gaps[broken]), 1).astype(np.int64)
    failed_us = (requests.sent_us + np.nan_to_num(requests.end_us))[broken]
    exceeds = np.concatenate((values > term.limit, np.ones(owed.sum(), np.bool_)))
    found = Fate(
        values=np.concatenate((values, np.full(owed.sum(), np.nan))),
        exceeds=exceeds,
        unknown=np.zeros(len(exceeds), np.bool_),
        counted=np.ones(len(exceeds), np.bool_),
    )
    return found, np.concatenate((times_us, np.repeat(failed_us, owed)))
