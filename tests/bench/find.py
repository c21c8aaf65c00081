"""Does the search find the true capacity? `analysis.search` with real verdicts on the simulated engine.

    python -m tests.bench.find [--seeds 20] [--truth-minutes 30] [--case users]

Each case has an SLO. Long runs at loads around the crossing, and a line through their margins, tell the load at which
it holds just so. Then searches, each with seeds of its own; virtual time, one core. A search is right where the true
capacity lies between what it says holds and what it says fails.

right     searches of all
width     of the band, fails / holds - 1: median and largest
levels    played, median and largest; `minutes` of the server, likewise
open      searches without one of the two ends

Measured (20 searches each), median and largest:

                             true   right   width          levels    minutes
    users                    29.9   20      81 (331) %     32 (40)    9 (14)
    users, max_num_seqs 24   26.4   20       8 (17) %      19 (23)    3 (4)
    rate                     30.6   20      42 (144) %     27 (38)   22 (31)

The band is as wide as latency is flat: 10 % more users make it 5 % longer in the first case, 50 % in the second.
"""

import argparse
import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from analysis import decision, metrics, search, slo, verdicts, window
from analysis.decision import ALPHA, Verdict
from analysis.records import Requests
from analysis.slo import Term
from analysis.verdicts import Held
from tests.bench import virtual

SHORT = virtual.Lengths(output=(24.0, 0.6))
WARM_UP_S = 10.0  # of the open loop
PROBE_S = 30.0
START_S = 0.3  # how long a request takes, while nothing is known
Run = Callable[[float, float, float, int], Requests]  # at a load, of so many seconds, how long a request takes, a seed


class Case(msgspec.Struct, frozen=True):
    name: str
    run: Run
    terms: tuple[Term, ...]
    loads: search.Loads
    near: tuple[float, ...]  # loads around the capacity


class Played(msgspec.Struct):
    """The levels at one load: its probe, then replicates. `requests` and `takes_s` are those of the probe."""

    held: list[Held]
    verdicts: list[Verdict]
    requests: int
    takes_s: float
    confirmed: search.Look | None = None


class Outcome(msgspec.Struct):
    found: search.Found
    levels: int
    minutes: float


def cases() -> list[Case]:
    users = search.Loads(first=1, lowest=1, highest=1024, whole=True)
    rates = search.Loads(first=1, lowest=0.1, highest=200, whole=False)

    def closed(spec: str) -> Run:
        served = virtual.spec(spec)
        return lambda load, seconds, takes_s, seed: virtual.closed_loop(
            served, int(load), seconds, seed, request_s=takes_s, lengths=SHORT
        )

    def opened(load: float, seconds: float, takes_s: float, seed: int) -> Requests:
        return virtual.open_loop(virtual.spec(), load, seconds, seed, lengths=SHORT, warm_up_s=WARM_UP_S)

    wide, capped = (f"llama-3.1-8b@h100,max_num_seqs={cap},prefix_cache=0" for cap in (64, 24))
    return [
        Case("users", closed(wide), slo.terms(["ttft p95 < 95ms", "itl p99 < 125ms"]), users, tuple(range(24, 39, 2))),
        Case("users, max_num_seqs 24", closed(capped), slo.terms(["ttft p95 < 150ms"]), users, tuple(range(25, 29))),
        Case(
            "rate", opened, slo.terms(["ttft p95 < 130ms", "itl p99 < 90ms"]), rates,
            tuple(float(rate) for rate in range(26, 37, 2)),
        ),
    ]  # fmt: skip


def held(requests: Requests) -> Held:
    return Held(requests=requests, tokens=metrics.event_tokens(requests), steady=window.find(requests))


def judged(case: Case, levels: Sequence[Held]) -> list[Verdict]:
    samples = {term: [verdicts.sample(term, one) for one in levels] for term in case.terms}
    return [decision.decide(term, of_term, alpha=ALPHA, of=len(case.terms)) for term, of_term in samples.items()]


def margins(case: Case, minutes: float) -> list[float]:
    """The true ones at the loads near the capacity."""
    found = []
    for load in case.near:
        look = search.look(judged(case, [held(case.run(load, 60 * minutes, 1.0, 1))]))
        assert look.margin is not None, "a long run has values"
        found.append(look.margin)
    return found


def capacity(loads: Sequence[float], margins: Sequence[float]) -> float:
    """Where a line through the four margins around zero crosses it."""
    near = np.argsort(np.abs(margins))[:4]
    slope, at = np.polyfit(np.log(np.array(loads)[near]), np.array(margins)[near], 1)
    return math.exp(-at / slope)


def flow(case: Case, load: float, takes_s: float) -> tuple[float, float]:
    """Requests at once, and per second."""
    return (load, load / takes_s) if case.loads.whole else (load * takes_s, load)


def play(case: Case, load: float, seconds: float, takes_s: float, seed: int) -> tuple[Held, int, float, float]:
    """A level, its measured requests, how long one takes, and how many minutes the level does."""
    requests = case.run(load, seconds, takes_s, seed)
    end_us = float(np.max(requests.sent_us + requests.end_us))
    took_s = float(np.mean(metrics.e2e_ms(requests)[requests.measured])) / 1e3
    return held(requests), int(requests.measured.sum()), took_s, end_us / 6e7


def find(case: Case, seed: int) -> Outcome:
    known: dict[float, Played] = {}
    levels, minutes, takes_s, last = 0, 0.0, START_S, case.loads.first
    while True:
        points = [
            search.Point(
                load=load,
                probe=search.look(one.verdicts),
                confirmed=one.confirmed,
                replicates=len(one.held) - 1,
            )
            for load, one in known.items()
        ]
        step = search.following(points, case.loads)
        if isinstance(step, search.Found):
            return Outcome(step, levels, minutes)
        old = known.get(step.load)
        if old is None:
            takes_s *= max(1.0, step.load / last)
            slots, per_s = flow(case, step.load, takes_s)
            seconds = max(min(search.probe_requests(case.terms, slots) / per_s, PROBE_S), search.A_SLOT * slots / per_s)
        else:
            takes_s = old.takes_s
            slots, per_s = flow(case, step.load, takes_s)
            seconds = search.replicate_requests(old.verdicts, old.requests, slots) / per_s
        level, count, takes_s, spent = play(case, step.load, seconds, takes_s, 1000 * seed + levels)
        levels, minutes, last = levels + 1, minutes + spent, step.load
        if old is None:
            known[step.load] = Played([level], judged(case, [level]), count, takes_s)
        else:
            old.held.append(level)
            old.confirmed = search.look(judged(case, old.held[1:]))


def is_right(found: search.Found, true: float) -> bool:
    return (found.holds is None or found.holds <= true) and (found.fails is None or found.fails >= true)


def report(case: Case, true: float, outcomes: Sequence[Outcome]) -> str:
    right = sum(is_right(one.found, true) for one in outcomes)
    bands = [(one.found.holds, one.found.fails) for one in outcomes]
    widths = [fails / holds - 1 for holds, fails in bands if holds is not None and fails is not None]
    figures = (
        ("width", [100 * width for width in widths] or [math.nan], " %"),
        ("levels", [float(one.levels) for one in outcomes], ""),
        ("minutes", [one.minutes for one in outcomes], ""),
    )
    text = ", ".join(f"{name} {np.median(all_):.0f} ({max(all_):.0f}){unit}" for name, all_, unit in figures)
    return f"{case.name}: true {true:.1f}; {right} of {len(outcomes)} right; {text}; open {len(outcomes) - len(widths)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--truth-minutes", type=float, default=30.0, help="of each long run")
    parser.add_argument("--case", default="", help="only cases whose name holds this")
    options = parser.parse_args()
    for case in cases():
        if options.case not in case.name:
            continue
        true_margins = margins(case, options.truth_minutes)
        true = capacity(case.near, true_margins)
        print(" ".join(f"{load:g}:{margin:+.3f}" for load, margin in zip(case.near, true_margins, strict=True)))
        outcomes = []
        for seed in range(1, options.seeds + 1):
            outcomes.append(find(case, seed))
            found = outcomes[-1].found
            print(f"  {found.holds} {found.fails} undecided {found.undecided} {outcomes[-1].levels}", flush=True)
        print(report(case, true, outcomes), flush=True)


if __name__ == "__main__":
    main()
