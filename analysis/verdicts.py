"""Does an SLO hold at a load? A verdict for each term, by the interval of what exceeds its limit; and goodput.

Rules
- All must pass for the SLO to hold, so PASS pays nothing for several terms; any of them may fail, so FAIL divides alpha
  by their number. Who looks several times divides alpha by the number of looks.
- Where nobody knows whether a value exceeds the limit (see `fates`), PASS needs it counted as exceeding, FAIL as not.
- All levels at one load are decided together (see `decision`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from analysis import blocks, decision, fates, metrics, records, slo
from analysis.decision import ALPHA, Sample
from analysis.window import block_rates

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from analysis.records import Bools, Floats, Header, Requests
    from analysis.slo import Term
    from analysis.window import Window

OFTEN = (0.9, 0.75)  # quantiles that enough values exceed to show how these bunch


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that met every term. `share` is of the measured ones: failed and cancelled ones are misses, who left by
    themselves only where they had waited too long. `requests_per_s` is of the answers that ended in the window."""

    requests_per_s: float | None
    share: float | None


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """Of the levels at one load, or of a class of their mix."""

    goodput: Goodput | None = None
    verdicts: tuple[decision.Verdict, ...] = ()


NOTHING = Statement()


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A level that is held to an SLO. `tokens` are those of each event; `steady` is None where there is no window."""

    requests: Requests
    tokens: Floats
    steady: Window | None


def terms(header: Header) -> tuple[Term, ...]:
    """What the whole of a level is held to: --slo, which goes before what a workload of one class says."""
    classes = header.workload.classes
    own = classes[0].slo if len(classes) == 1 else None
    return slo.terms([*(own or ()), *(header.slo or ())])


def class_terms(header: Header) -> dict[str, tuple[Term, ...]]:
    """What each class of a mix is held to, beside that."""
    classes = header.workload.classes
    return {one.name or "": slo.terms(one.slo or ()) for one in classes} if len(classes) > 1 else {}


def of_levels(header: Header, held: Sequence[Held], *, alpha: float = ALPHA, looks: int = 1) -> dict[str, Statement]:
    """What all of them together say of the load that they share: the statement at "", and those of the classes of a mix
    at their names; empty where nothing is asked."""
    whole, each = terms(header), class_terms(header)
    count = len(whole) + sum(map(len, each.values()))
    if not count:
        return {}
    outcomes = [_outcome(one.requests, one.tokens, whole, each) for one in held]

    def statement(name: str | None, held_to: Sequence[Term]) -> Statement:
        parts = [_part(*pair, name) for pair in zip(held, outcomes, strict=True)]
        verdicts = [
            decision.decide(term, [sample(term, one) for one, _ in parts], alpha=alpha / looks, of=count)
            for term in held_to
        ]
        return Statement(goodput=goodput(parts), verdicts=tuple(verdicts))

    return {name: statement(name, held_to) for name, held_to in each.items()} | {"": statement(None, whole)}


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Of each request under all its terms: it met them, or is known to have missed one; of a third nobody knows."""

    good: Bools
    missed: Bools


def _outcome(requests: Requests, tokens: Floats, whole: Sequence[Term], each: dict[str, tuple[Term, ...]]) -> Outcome:
    found = [fates.fate(term, requests, tokens) for term in whole]
    for name, held_to in each.items():
        mask = np.strings.equal(requests.class_name, name)
        found += [fates.only(mask, fates.fate(term, requests, tokens)) for term in held_to]
    missed = np.logical_or.reduce([requests.failed, *(one.exceeds for one in found)])
    good = np.logical_and.reduce([requests.ok, ~missed, *(~one.unknown for one in found)])
    return Outcome(good=good, missed=missed)


def _part(held: Held, outcome: Outcome, name: str | None) -> tuple[Held, Outcome]:
    """Only the class `name`; all where it is None."""
    if name is None:
        return held, outcome
    chosen = np.strings.equal(held.requests.class_name, name)
    events = np.repeat(chosen, held.requests.events)
    return (
        Held(requests=records.subset(held.requests, chosen), tokens=held.tokens[events], steady=held.steady),
        Outcome(good=outcome.good[chosen], missed=outcome.missed[chosen]),
    )


def withheld(statement: Statement) -> Statement:
    """Of a level that is INVALID: what was observed stays, but decides nothing."""
    undecided = tuple(msgspec.structs.replace(one, verdict="UNDECIDED") for one in statement.verdicts)
    return msgspec.structs.replace(statement, verdicts=undecided)


def judge(
    term: Term, requests: Requests, tokens: Floats, steady: Window | None, *, alpha: float = ALPHA, of: int = 1
) -> decision.Verdict:
    """Of one term on one level, one `of` so many. `tokens` are those of each event."""
    held = Held(requests=requests, tokens=tokens, steady=steady)
    return decision.decide(term, [sample(term, held)], alpha=alpha, of=of)


def sample(term: Term, held: Held) -> Sample:
    """Of the measured requests of one level."""
    requests, steady = held.requests, held.steady
    if term.metric == "throughput":
        if steady is None:
            return Sample()
        return Sample(rates=block_rates(requests, held.tokens, steady), length_s=steady.length_s)
    sampled = requests.measured if steady is None else requests.measured & ~(requests.sent_us > steady.end_us)
    if term.metric == "itl":
        found, times_us = fates.gaps(term, requests, sampled, steady)
    else:
        found, times_us = fates.only(sampled, fates.fate(term, requests, held.tokens)), requests.due_us
    return _share_sample(term, found, times_us, steady)


def _share_sample(term: Term, found: fates.Fate, times_us: Floats, steady: Window | None) -> Sample:
    counted = found.counted
    values, exceeds, unknown = found.values[counted], found.exceeds[counted], found.unknown[counted]
    start_us, end_us = (0.0, 0.0) if steady is None else (steady.start_us, steady.end_us)
    where = blocks.places(np.nan_to_num(times_us[counted], nan=start_us), start_us, end_us)
    valued = ~np.isnan(values)
    ranked = np.where(valued, values, np.inf) if term.percent is not None and len(values) else None
    least = _effect(exceeds, where, ranked, 1 - term.allowed)
    most = _effect(exceeds | unknown, where, ranked, 1 - term.allowed) if unknown.any() else least
    return Sample(
        n=len(exceeds),
        exceed=int(exceeds.sum()),
        unknown=int(unknown.sum()),
        effects=(most, least),
        values=values[valued],
        beyond=int(np.sum(exceeds & ~valued)),  # no value, but known to be over the limit
    )


def _effect(exceeds: Bools, where: npt.NDArray[np.uint8], values: Floats | None, quantile: float) -> float:
    """The design effect that a verdict rests on: the largest of those of three limits, the term's own and the sample's
    p90 and p75.

    A calm sample shows few misses and little dependence at once: by its own limit alone, an open loop near saturation
    (28/s of tests/bench/verdicts.py) passes 5 to 21 % of the levels that just fail, and by all three at most 6 %.
    """
    spreads = [exceeds]
    if values is not None:
        limits = {float(np.quantile(values, min(quantile, q), method="lower")) for q in OFTEN}
        spreads += [values > limit for limit in limits]
    return max(blocks.design_effect(spread, where) for spread in spreads)


def goodput(parts: Sequence[tuple[Held, Outcome]]) -> Goodput:
    good = counted = ended = 0
    length_s = 0.0
    for held, one in parts:
        requests = held.requests
        chosen = requests.measured & (~requests.left | one.missed)
        good += int(one.good[chosen].sum())
        counted += int(chosen.sum())
        if held.steady is not None:
            last_us = requests.due_us + metrics.e2e_ms(requests) * 1e3
            ended += int(np.sum(one.good & held.steady.holds(last_us)))
            length_s += held.steady.length_s
    return Goodput(
        requests_per_s=ended / length_s if length_s else None,
        share=good / counted if counted else None,
    )
