"""The largest load at which an SLO holds: which load to measure next, by what has been measured so far.

Rules
- The first level at a load is its probe. Probes double the load until one fails, or halve it until one holds; then they
  go where the margin, log(limit / observed), crosses zero, by isotonic regression over the log of the load, until the
  bracket is 5 % wide, or 1 for whole loads.
- Probes are short, so nothing rests on them: a load is settled by three fresh replicates, judged together, or by
  over-saturation. First the lower end of the bracket, then the upper one.
- A lower end that is not PASS steps down and an upper one that is not FAIL steps up, by 5 % (or 1) and then by twice as
  much each time, until both ends are settled. What lies between them and is UNDECIDED is the undecided band.
- The bracket is the first that became narrow enough, whatever was measured later: so the steps start where they did,
  and from any answers the search ends.

Nothing is remembered: the points say it all, in the order in which their loads were first measured. So a search goes on
where another has stopped.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
from scipy import optimize

from analysis import decision, slo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.decision import Verdict
    from analysis.records import Floats
    from analysis.slo import Term

CLOSE = 1.05  # the ends of a narrow bracket
REPLICATES = 3
FAR = math.log(2)  # a larger margin says no more about where it crosses zero
INSIDE = 0.25  # of a bracket, in logs: as near to an end as a probe may go
ENOUGH = 4.0  # times the fewest values that can pass
A_SLOT = 10  # requests


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One level, or several judged together, under the whole SLO.

    `margin` is the smallest of log(limit / observed) over the terms (of a throughput, log(observed / limit)), None
    where it is unknown; `weight` is the n_eff of that term. Of an over-saturated level the verdict is FAIL.
    """

    verdict: Literal["PASS", "FAIL", "UNDECIDED"]
    margin: float | None = None
    weight: float = 1.0
    over_saturated: bool = False

    @property
    def holds(self) -> bool:
        """As it seems: where there is no verdict, by the margin."""
        return self.verdict == "PASS" or (self.verdict == "UNDECIDED" and self.margin is not None and self.margin >= 0)


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a load. `confirmed` is over the `replicates`, without the probe."""

    load: float
    probe: Look
    confirmed: Look | None = None
    replicates: int = 0

    @property
    def settled(self) -> Literal["PASS", "FAIL", "UNDECIDED"] | None:
        """None: not yet."""
        if self.probe.over_saturated or (self.confirmed is not None and self.confirmed.over_saturated):
            return "FAIL"
        if self.replicates < REPLICATES:
            return None
        return "UNDECIDED" if self.confirmed is None else self.confirmed.verdict

    @property
    def verdict(self) -> str:
        return self.settled or self.probe.verdict


class Loads(msgspec.Struct, frozen=True, kw_only=True):
    """Where to look, both ends included. `whole`: concurrency; else rates, rounded to three digits."""

    first: float
    lowest: float
    highest: float
    whole: bool

    def __post_init__(self) -> None:
        if not 0 < self.lowest <= self.first <= self.highest < math.inf:
            found = f"{self.lowest:g}, {self.first:g} and {self.highest:g}"
            raise ValueError(f"loads to search: expected 0 < lowest <= first <= highest, not {found}")


class Next(msgspec.Struct, frozen=True):
    """`confirm` asks for one more replicate; everything else is the probe of a load not yet measured."""

    load: float
    why: Literal["first", "double", "halve", "cross", "confirm", "step"]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """`holds` is the largest load that is settled as PASS below `fails`, the smallest one settled as FAIL.

    undecided              loads between them that stayed UNDECIDED
    seems                  the bracket by the probes: the load that seems to hold, and the one that seems to fail
    passed_after_failing   a load that passed, with the next lower one that had failed, by probes too
    edge                   there is no `holds` down to the lowest load, or no `fails` up to the highest
    """

    holds: float | None = None
    fails: float | None = None
    undecided: tuple[float, ...] = ()
    seems: tuple[float | None, float | None] = (None, None)
    passed_after_failing: tuple[tuple[float, float], ...] = ()
    edge: Literal["lowest", "highest"] | None = None


def following(points: Sequence[Point], loads: Loads) -> Next | Found:
    """The next level to measure, or the answer. Points beyond `loads` do not count."""
    points = _within(points, loads)
    bracket = _bracket(points, loads)
    if isinstance(bracket, Next):
        return bracket
    low, high = bracket
    step = None if low is None else _walk(points, loads, low, "PASS")
    failed = _lowest_failed(points)
    if step is None and high is not None and (failed is None or failed > high):
        step = _walk(points, loads, high, "FAIL")
    return answer(points, loads) if step is None else step


def answer(points: Sequence[Point], loads: Loads) -> Found:
    """What can be said now, also in the middle of a search."""
    points = sorted(_within(points, loads), key=_load)
    if not points:
        return Found()
    fails = _lowest_failed(points)
    below = [point for point in points if fails is None or point.load < fails]
    holds = max((point.load for point in below if point.settled == "PASS"), default=None)
    above = [point for point in below if holds is None or point.load > holds]
    edge: Literal["lowest", "highest"] | None = None
    if holds is None and points[0].load == loads.lowest and not _hopeful(points[0], "PASS"):
        edge = "lowest"
    elif fails is None and points[-1].load == loads.highest and not _hopeful(points[-1], "FAIL"):
        edge = "highest"
    return Found(
        holds=holds,
        fails=fails,
        undecided=tuple(point.load for point in above if point.settled == "UNDECIDED"),
        seems=_ends(points, _fit(points)),
        passed_after_failing=_passed_after_failing(points),
        edge=edge,
    )


def look(verdicts: Sequence[Verdict], *, over_saturated: bool = False) -> Look:
    """What the verdicts of all terms (at least one) say together."""
    found = {one.verdict for one in verdicts}
    margins = {margin(one): one.n_eff for one in verdicts}
    known = [one for one in margins if one is not None]
    least = min(known) if len(known) == len(margins) else None
    return Look(
        verdict="FAIL" if over_saturated or "FAIL" in found else "UNDECIDED" if "UNDECIDED" in found else "PASS",
        margin=least,
        weight=1.0 if least is None else float(margins[least] or 1),
        over_saturated=over_saturated,
    )


def margin(verdict: Verdict) -> float | None:
    """log(limit / observed), of a throughput log(observed / limit): above 0 where the term seems to hold.

    None also where so many failed that the quantile has no value."""
    term = slo.parse(verdict.term)
    more: float | None = term.limit
    less = verdict.exceed if term.percent is None else verdict.observed_ms
    if term.metric == "throughput":
        more, less = verdict.observed_per_s, term.limit
    if more is None or less is None:
        return None
    return math.inf if not less else math.log(more / less) if more else -math.inf


def probe_requests(terms: Sequence[Term], slots: float) -> int:
    """Measured requests of a probe, with so many at once: it only shows the way."""
    return _at_least(slots, [decision.fewest(term) for term in terms if term.percent is not None])


def replicate_requests(probe: Sequence[Verdict], requests: int, slots: float) -> int:
    """Measured requests of each replicate, by what the `requests` of the probe were worth: all together are worth
    ENOUGH times the fewest values that can pass, so that some may be over the limit."""
    wanted = []
    for verdict in probe:
        fewest = decision.fewest(slo.parse(verdict.term))
        if fewest is not None and verdict.n_eff:
            wanted.append(ENOUGH / REPLICATES * fewest * requests / verdict.n_eff)
    return _at_least(slots, wanted)


def _at_least(slots: float, wanted: Sequence[float | None]) -> int:
    return math.ceil(max([A_SLOT * slots, *(one for one in wanted if one is not None)]))


def _load(point: Point) -> float:
    return point.load


def _lowest_failed(points: Sequence[Point]) -> float | None:
    return min((point.load for point in points if point.settled == "FAIL"), default=None)


def _within(points: Sequence[Point], loads: Loads) -> list[Point]:
    return [point for point in points if loads.lowest <= point.load <= loads.highest]


def _bracket(points: Sequence[Point], loads: Loads) -> Next | tuple[float | None, float | None]:
    """The largest load that holds and the smallest that fails, of the first probes that bring them close together."""
    found: Next | tuple[float | None, float | None] = Next(loads.first, "first")
    for count in range(1, len(points) + 1):
        found = _narrower(sorted(points[:count], key=_load), loads)
        if not isinstance(found, Next):
            break
    return found


def _narrower(points: Sequence[Point], loads: Loads) -> Next | tuple[float | None, float | None]:
    fitted = _fit(points)
    low, high = _ends(points, fitted)
    if high is None:
        top = points[-1].load
        more = _rounded(2 * top, loads) if 2 * top < loads.highest else loads.highest  # which is not rounded
        return (low, high) if top >= loads.highest else Next(more, "double")
    if low is None:
        bottom = points[0].load
        less = _rounded(bottom / 2, loads) if bottom / 2 > loads.lowest else loads.lowest
        return (low, high) if bottom <= loads.lowest else Next(less, "halve")
    if high <= low * CLOSE or (loads.whole and high <= low + 1):
        return low, high
    above, below = fitted[fitted >= 0][-1], fitted[fitted < 0][0]
    part = min(max(above / (above - below), INSIDE), 1 - INSIDE)  # else it may creep up from one side
    load = _rounded(low * (high / low) ** part, loads)
    return Next(min(max(load, low + 1), high - 1) if loads.whole else load, "cross")


def _fit(points: Sequence[Point]) -> Floats:
    """The margins of probes, sorted by load, as a line that only falls. Each keeps the sign of what its probe says."""
    margins = []
    for look in (point.probe for point in points):
        known = None if look.over_saturated else look.margin
        size = FAR if known is None else min(FAR, abs(known))
        margins.append(size if look.holds else -max(size, 1e-9))
    weights = np.array([max(point.probe.weight, 1.0) for point in points])
    return np.asarray(optimize.isotonic_regression(np.array(margins), weights=weights, increasing=False).x)


def _ends(points: Sequence[Point], fitted: Floats) -> tuple[float | None, float | None]:
    """The neighbours between which the fit crosses zero."""
    held = int(np.sum(fitted >= 0))
    return (points[held - 1].load if held else None), (points[held].load if held < len(points) else None)


def _walk(points: Sequence[Point], loads: Loads, start: float, wanted: Literal["PASS", "FAIL"]) -> Next | None:
    """From `start` down to a load settled as PASS that lies below every FAIL, or up to one settled as FAIL. None where
    it has been found, or the edge reached."""
    known = {point.load: point for point in points}
    failed = _lowest_failed(points)
    load, size = start, math.log(CLOSE)
    while load in known:
        point = known[load]
        if wanted == "FAIL" or failed is None or load < failed:
            if point.settled == wanted:
                return None
            if point.settled is None and _hopeful(point, wanted):
                return Next(load, "confirm")
        after = _stepped(load, -size if wanted == "PASS" else size, known, loads)
        if after == load:
            return None
        load, size = after, 2 * size
    return Next(load, "step")


def _hopeful(point: Point, wanted: Literal["PASS", "FAIL"]) -> bool:
    """Whether the load may turn out, or has, as wanted."""
    if point.settled is not None:
        return point.settled == wanted
    return point.probe.holds == (wanted == "PASS")


def _stepped(load: float, size: float, known: dict[float, Point], loads: Loads) -> float:
    """The load `size` (in logs) away, or one near it that has been measured; at the edge, that."""
    target = load * math.exp(size)
    if loads.whole:
        target = min(target, load - 1) if size < 0 else max(target, load + 1)
    if target <= loads.lowest or target >= loads.highest:
        return loads.lowest if size < 0 else loads.highest
    size = math.log(target / load)
    near = [other for other in known if abs(math.log(other / target)) <= abs(size) / 4]
    if near:
        return min(near, key=lambda other: (abs(math.log(other / target)), other))
    return _rounded(target, loads)


def _rounded(load: float, loads: Loads) -> float:
    near = float(round(load)) if loads.whole else float(f"{load:.3g}")
    return min(max(near, loads.lowest), loads.highest)


def _passed_after_failing(points: Sequence[Point]) -> tuple[tuple[float, float], ...]:
    found: list[tuple[float, float]] = []
    failed: float | None = None
    for point in points:
        if point.verdict == "FAIL":
            failed = point.load
        elif point.verdict == "PASS" and failed is not None:
            found.append((failed, point.load))
    return tuple(found)
