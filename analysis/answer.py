"""What a run of `loadgen slo` answers: does the SLO hold at this load, or which is the largest load at which it does?

- All usable levels at one load are one sample, so a verdict is of a load.
- At a given load the sample is doubled until it decides. It is looked at LOOKS times at most, and each look pays its
  part of alpha.
- In search of the largest load, the first level at a load is its probe, which only says where to look next. What is
  stated rests on the fresh levels that come after it, looked at once.
- A level that the client limited says nothing. One that the server could not keep up with, or in which most requests
  failed, does: that is the server's answer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import msgspec

from analysis import search, verdicts
from analysis.search import Look, Point

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.decision import Verdict
    from analysis.records import Header
    from analysis.verdicts import Held

LOOKS = 5
TRIES = 3  # of a load at which the client was the limit
MOST_TRIES = 6  # where it was not at a higher load
SERVERS_OWN = {"over-saturated", "survivors"}  # findings of severity error that are the server's answer

Answered = Literal["PASS", "FAIL", "UNDECIDED", "INVALID"]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A level that has ended. `why_not` is the finding that makes it useless; `kept_up` is false where it was stopped
    because the server did not."""

    level: int
    load: float
    held: Held
    kept_up: bool
    why_not: str | None


class AtLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What the levels at one load say together: `statements` of the whole is at "", of a mix's classes at their names.

    `probe` is the first of them in a search, and no part of that. `unusable` levels are left out; `why_not` says why.
    """

    load: float
    verdict: Answered
    levels: tuple[int, ...]
    probe: int | None
    unusable: tuple[int, ...]
    why_not: str | None
    requests: int
    measured_s: float
    kept_up: bool
    statements: dict[str, verdicts.Statement]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`found` is of a search. `limited_at` is the load at which the client was the limit. A load is a concurrency, or a
    rate per second."""

    by: Literal["concurrency", "rate"]
    verdict: Answered
    loads: tuple[AtLoad, ...]
    found: search.Found | None
    limited_at: float | None

    @property
    def holds(self) -> float | None:
        """The largest load that is known to hold."""
        if self.found is not None:
            return self.found.holds
        return self.loads[0].load if self.verdict == "PASS" else None

    @property
    def fails(self) -> float | None:
        if self.found is not None:
            return self.found.fails
        return self.loads[0].load if self.verdict == "FAIL" else None


def answer(header: Header, trials: Sequence[Trial]) -> Answer:
    """Of the levels that have ended, in their order. Raises ValueError for a run that has no such question."""
    if header.seeks is None:
        raise ValueError("this run has measured levels that were given; `loadgen slo` asks whether an SLO holds")
    searching, limited = header.seeks != "verdict", _limited(trials)
    by: Literal["concurrency", "rate"] = "rate" if any(plan.open_loop for plan in header.levels) else "concurrency"
    loads = tuple(
        _at(header, load, group, searching=searching, limited=load in limited)
        for load, group in sorted(_by_load(trials).items())
    )
    limited_at = min((one.load for one in loads if one.verdict == "INVALID"), default=None)
    if not searching:
        verdict: Answered = loads[0].verdict if loads else "UNDECIDED"
        return Answer(by=by, verdict=verdict, loads=loads, found=None, limited_at=limited_at)
    found, allowed = search.Found(), where(header, trials)
    if allowed is not None:
        found = search.answer(points_of(header, trials), allowed)
    if found.holds is not None and (found.fails is not None or (found.edge == "highest" and limited_at is None)):
        verdict = "PASS"
    elif found.fails is not None and allowed is not None and found.fails <= allowed.lowest:
        verdict = "FAIL"
    else:
        verdict = "UNDECIDED" if limited_at is None else "INVALID"
    return Answer(by=by, verdict=verdict, loads=loads, found=found, limited_at=limited_at)


def points_of(header: Header, trials: Sequence[Trial]) -> list[Point]:
    """What a search goes by: each load with a usable level, in the order in which they were first measured."""
    points = []
    for load, group in _by_load(trials).items():
        usable = [one for one in group if one.why_not is None]
        if usable:
            probe, *fresh = usable
            confirmed = _look(header, fresh) if fresh else None
            points.append(Point(load=load, probe=_look(header, [probe]), confirmed=confirmed, replicates=len(fresh)))
    return points


def where(header: Header, trials: Sequence[Trial]) -> search.Loads | None:
    """Where a search may go: not to where the client was the limit. None where it was everywhere."""
    lowest, highest = header.bounds or (1.0, math.inf)
    limited = min(_limited(trials), default=math.inf)
    if limited < math.inf:
        highest = max((one.load for one in trials if one.why_not is None and one.load < limited), default=0.0)
    if highest < lowest:
        return None
    return search.Loads(first=lowest, lowest=lowest, highest=highest, whole=header.seeks == "concurrency")


def statements(header: Header, trials: Sequence[Trial], *, looks: int = 1) -> dict[str, verdicts.Statement]:
    return verdicts.of_levels(header, [one.held for one in trials], looks=looks)


def _by_load(trials: Sequence[Trial]) -> dict[float, list[Trial]]:
    found: dict[float, list[Trial]] = {}
    for one in trials:
        found.setdefault(one.load, []).append(one)
    return found


def _limited(trials: Sequence[Trial]) -> set[float]:
    """The loads at which the client was the limit. Where it was not at a higher one, it was a busy moment."""
    usable = max((one.load for one in trials if one.why_not is None), default=0.0)
    tried = {load: sum(one.why_not is not None for one in group) for load, group in _by_load(trials).items()}
    return {load for load, tries in tried.items() if tries >= (MOST_TRIES if load < usable else TRIES)}


def _at(header: Header, load: float, group: Sequence[Trial], *, searching: bool, limited: bool) -> AtLoad:
    usable = [one for one in group if one.why_not is None]
    judged = usable[1:] or usable if searching else usable
    stated = statements(header, judged, looks=1 if searching else LOOKS) if judged else {}
    kept_up = all(one.kept_up for one in usable)
    settled = not searching or len(usable) > search.REPLICATES or not kept_up
    verdict: Answered = "UNDECIDED"
    if judged and settled:
        verdict = search.look(every(stated), over_saturated=not kept_up).verdict
    if verdict == "UNDECIDED" and limited:
        verdict = "INVALID"
    return AtLoad(
        load=load,
        verdict=verdict,
        levels=tuple(one.level for one in judged),
        probe=usable[0].level if searching and usable else None,
        unusable=tuple(one.level for one in group if one.why_not is not None),
        why_not=next((one.why_not for one in group if one.why_not is not None), None),
        requests=sum(int(one.held.requests.measured.sum()) for one in judged),
        measured_s=sum(one.held.steady.length_s for one in judged if one.held.steady is not None),
        kept_up=kept_up,
        statements=stated,
    )


def _look(header: Header, trials: Sequence[Trial]) -> Look:
    return search.look(every(statements(header, trials)), over_saturated=not all(one.kept_up for one in trials))


def every(stated: dict[str, verdicts.Statement]) -> list[Verdict]:
    """Those of the whole and of the classes of a mix."""
    return [one for statement in stated.values() for one in statement.verdicts]


def closest(stated: dict[str, verdicts.Statement]) -> Verdict | None:
    """The term nearest to its limit, or farthest beyond it."""
    known = [(off, one) for one in every(stated) if (off := search.margin(one)) is not None]
    return min(known, key=lambda pair: pair[0])[1] if known else None
