"""Which level a run of `loadgen slo` plays next, by what its levels have said so far. It works between the levels.

At a given load each look has twice the sample of the one before; the last one has what the budget gives. In search of
the largest load `analysis.search` says where to go.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from analysis import decision, records, search, slo, summary
from analysis.answer import LOOKS, Trial, answer, every, points_of, statements, where
from analysis.answer_tables import headline
from loadgen.checks import request_s
from loadgen.clock import mono_ns
from loadgen.load import MOST_LEVELS
from loadgen.preflight import Server
from loadgen.record import LevelPlan, LevelRow
from loadgen.settings import Settings

LEAST_S = 5.0  # of measuring, in a level
PROBE_SHARE = 1 / 24  # of the budget, at most
REPLICATE_SHARE = 1 / 12
AROUND = 3  # requests one after another: what a level takes besides measuring, to fill up and to drain


class Steps:
    """`plans` are the levels, each decided when the one before has ended."""

    def __init__(self, settings: Settings, budget_s: float, now_ns: Callable[[], int] = mono_ns) -> None:
        self._settings = settings
        self._budget_s = budget_s
        self._now_ns = now_ns
        self._begun_ns = now_ns()
        self._request_s = 0.0
        self._next = 0
        self._trials: list[Trial] = []

    def begin(self, directory: Path, server: Server) -> None:
        """With what levels of an earlier run in the directory have said. Raises ValueError."""
        self._begun_ns = self._now_ns()
        self._request_s = request_s(self._settings, server)
        run = records.read(directory)
        self._header = run.header
        self._next = 1 + max((plan.level for plan in run.header.levels), default=-1)
        self._trials = summary.trials(run)
        self._answer = answer(self._header, self._trials)

    def ahead(self) -> list[str]:
        """Before the load: how long it may take, and whether the budget has room for what the terms take to pass."""
        there = f"{len(self._trials)} level{' is' if len(self._trials) == 1 else 's are'} there already"
        lines = [f"{there}: {headline(self._answer)}"] if self._trials else []
        minutes = f"{self._budget_s / 60:.3g} min"
        if self._header.seeks != "verdict":
            return [
                *lines,
                f"up to {minutes}; each load is probed, and both ends are measured {search.REPLICATES} times more",
            ]
        lines.append(f"up to {minutes}, looked at {LOOKS} times at most: it ends as soon as it is decided")
        at = self._load()
        per_s = at if self._settings.law is not None else at / self._request_s
        expected = per_s * max(self._left_s(), 0.0)
        for term in (slo.parse(text) for text in self._header.slo or ()):
            fewest = decision.fewest(term, alpha=decision.ALPHA / LOOKS)
            if fewest is not None and term.metric != "itl":
                room = f"by the probe there is room for about {expected:.2g}"
                short = "" if expected >= fewest else ": it can fail, but not pass, within this --budget"
                lines.append(f"{term} passes with {fewest} independent requests at least, and {room}{short}")
        return lines

    def so_far(self) -> str:
        return headline(self._answer)

    def level_ended(self, directory: Path, row: LevelRow) -> None:
        run = records.read(directory, only=row.level)
        self._header = run.header  # it has the level now
        self._trials += summary.trials(run)
        took_us = self._trials[-1].held.requests.end_us if self._trials else np.empty(0)
        if not np.isnan(took_us).all():
            self._request_s = float(np.nanmean(took_us)) / 1e6
        self._answer = answer(self._header, self._trials)

    def plans(self) -> Iterator[LevelPlan]:
        steps = self._looks() if self._header.seeks == "verdict" else self._steps()
        yield from itertools.islice(steps, MOST_LEVELS - self._next)

    def _looks(self) -> Iterator[LevelPlan]:
        while True:
            known = next(iter(self._answer.loads), None)
            looks, measured_s = (0, 0.0) if known is None else (len(known.levels), known.measured_s)
            if looks == LOOKS or (known is not None and (known.verdict != "UNDECIDED" or self._left_s() < LEAST_S)):
                return
            wanted_s = self._budget_s * 2.0 ** (1 + looks - LOOKS) - measured_s
            yield self._plan(self._load(), None, wanted_s)

    def _load(self) -> float:
        return float((self._settings.concurrency or self._settings.rates)[0])

    def _steps(self) -> Iterator[LevelPlan]:
        while (step := self._step()) is not None and (self._left_s() >= LEAST_S or not self._trials):
            share = REPLICATE_SHARE if step.why == "confirm" else PROBE_SHARE
            yield self._plan(step.load, self._requests(step), share * self._budget_s)

    def _step(self) -> search.Next | None:
        allowed, points = where(self._header, self._trials), points_of(self._header, self._trials)
        if allowed is None:
            return None
        step = search.following(points, allowed) if points else search.Next(self._first(), "first")
        return step if isinstance(step, search.Next) else None

    def _first(self) -> float:
        """About one request in flight."""
        lowest, highest = self._header.bounds or (1.0, math.inf)
        if self._header.seeks == "concurrency":
            return lowest
        return min(max(lowest, float(f"{1 / self._request_s:.2g}")), highest)

    def _requests(self, step: search.Next) -> int:
        slots = step.load if self._header.seeks == "concurrency" else step.load * self._request_s
        seen = [one for one in self._trials if one.load == step.load and one.why_not is None]
        stated = every(statements(self._header, seen[:1]))
        if step.why != "confirm":
            return search.probe_requests([slo.parse(one.term) for one in stated], slots)
        return search.replicate_requests(stated, int(seen[0].held.requests.measured.sum()), slots)

    def _left_s(self) -> float:
        """For measuring, before the budget ends."""
        spent_s = (self._now_ns() - self._begun_ns) / 1e9
        return self._budget_s - spent_s - AROUND * self._request_s

    def _plan(self, load: float, requests: int | None, wanted_s: float) -> LevelPlan:
        """Not too short to be worth its warm-up, but within the budget."""
        level, self._next = self._next, self._next + 1
        duration_s = max(min(max(wanted_s, AROUND * self._request_s), self._left_s()), LEAST_S)
        if self._settings.law is None:
            return LevelPlan(level, round(load), requests=requests, duration_s=duration_s)
        return LevelPlan(level, None, load, requests=requests, duration_s=duration_s)
