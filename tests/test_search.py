from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import slo
from analysis.decision import Verdict
from analysis.search import (
    ENOUGH,
    REPLICATES,
    Found,
    Loads,
    Look,
    Next,
    Point,
    answer,
    following,
    look,
    probe_requests,
    replicate_requests,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Says = Literal["PASS", "FAIL", "UNDECIDED"]
USERS = Loads(first=1, lowest=1, highest=4096, whole=True)
RATES = Loads(first=1, lowest=0.01, highest=1000, whole=False)
MOST = 90  # levels, over five decades of rates


def a_point(load: float, probe: Says | float, confirmed: Says | None = None, replicates: int = 3) -> Point:
    """Of a probe with a verdict, or an undecided one with a margin."""
    first = Look(verdict=probe) if isinstance(probe, str) else Look(verdict="UNDECIDED", margin=probe)
    if confirmed is None:
        return Point(load=load, probe=first)
    return Point(load=load, probe=first, confirmed=Look(verdict=confirmed), replicates=replicates)


def search(seen: Callable[[float, int], Look], loads: Loads) -> tuple[list[Next], list[Point], Found]:
    """`seen` is what a load shows at its probe (0) and by so many replicates."""
    points: dict[float, Point] = {}
    steps: list[Next] = []
    for _ in range(MOST + 1):
        step = following(list(points.values()), loads)
        if isinstance(step, Found):
            return steps, list(points.values()), step
        steps.append(step)
        count = points[step.load].replicates + 1 if step.why == "confirm" else 0
        shown = seen(step.load, count)
        if count:
            old = points[step.load]
            points[step.load] = Point(load=step.load, probe=old.probe, confirmed=shown, replicates=count)
        else:
            assert step.load not in points, "a second probe of the same load"
            points[step.load] = Point(load=step.load, probe=shown)
    pytest.fail(f"more than {MOST} levels: {steps}")


def clear(capacity: float) -> Callable[[float, int], Look]:
    def seen(load: float, count: int) -> Look:
        return Look(verdict="PASS" if load <= capacity else "FAIL", margin=math.log(capacity / load), weight=300)

    return seen


def test_users_are_doubled_then_bracketed_then_confirmed() -> None:
    steps, _, found = search(clear(20.5), USERS)
    assert [(step.load, step.why) for step in steps] == [
        (1, "first"),
        (2, "double"),
        (4, "double"),
        (8, "double"),
        (16, "double"),
        (32, "double"),
        (20, "cross"),
        (22, "cross"),
        (21, "cross"),
        *[(20, "confirm")] * REPLICATES,
        *[(21, "confirm")] * REPLICATES,
    ]
    assert found == Found(holds=20, fails=21, seems=(20, 21))


def test_a_first_load_that_fails_is_halved() -> None:
    steps, _, found = search(clear(2.5), Loads(first=64, lowest=1, highest=100, whole=True))
    assert [step.load for step in steps if step.why == "halve"] == [32, 16, 8, 4, 2]
    assert (found.holds, found.fails) == (2, 3)


@given(st.floats(1, 4000), st.integers(1, 4096))
def test_clear_verdicts_find_the_number_of_users(capacity: float, first: int) -> None:
    _, _, found = search(clear(capacity), Loads(first=first, lowest=1, highest=4096, whole=True))
    assert found.holds is not None
    assert found.fails is not None
    assert found.holds <= capacity < found.fails
    assert found.fails - found.holds <= max(1, 0.05 * found.holds)
    assert (found.undecided, found.edge, found.passed_after_failing) == ((), None, ())


@given(st.floats(0.012, 900), st.floats(0.01, 1000))
def test_clear_verdicts_find_the_rate(capacity: float, first: float) -> None:
    steps, _, found = search(clear(capacity), Loads(first=first, lowest=0.01, highest=1000, whole=False))
    assert found.holds is not None
    assert found.fails is not None
    assert found.holds <= capacity < found.fails <= 1.05 * found.holds
    assert all(float(f"{step.load:.3g}") == step.load for step in steps if step.load != first)


@pytest.mark.parametrize(("capacity", "edge"), [(10_000, "highest"), (0.001, "lowest")])
def test_limits_of_many_figures_are_reached_as_they_are(capacity: float, edge: str) -> None:
    """Rounded, the load at a limit would never be the limit, and be probed again."""
    loads = Loads(first=40, lowest=0.12361, highest=241.3, whole=False)
    _, points, found = search(clear(capacity), loads)
    assert found.edge == edge
    assert {point.load for point in points} & {loads.lowest, loads.highest}


@given(st.integers(0, 2**32), st.booleans(), st.floats(0, 1), st.floats(0, 0.3))
def test_any_answers_come_to_an_end(seed: int, whole: bool, trust: float, mad: float) -> None:
    """Whatever a noisy server shows, `trust` of it being the truth: the levels are bounded and within the limits."""
    source = random.Random(seed)
    lowest, highest = (1.0, float(source.randint(2, 4096))) if whole else (0.1, source.uniform(0.2, 400))
    first = float(source.randint(1, int(highest))) if whole else source.uniform(lowest, highest)
    loads = Loads(first=first, lowest=lowest, highest=highest, whole=whole)
    capacity = math.exp(source.uniform(math.log(lowest), math.log(highest)))

    def seen(load: float, count: int) -> Look:
        if source.random() < mad:
            margin = source.choice([None, math.inf, -math.inf, math.nan, 0.0])
            verdict: Says = source.choice(["PASS", "FAIL", "UNDECIDED"])
            return Look(verdict=verdict, margin=margin, weight=source.uniform(0, 9), over_saturated=verdict == "FAIL")
        margin = math.log(capacity / load) + source.gauss(0, 1 - trust)
        return Look(verdict="UNDECIDED" if source.random() > trust else "PASS" if margin > 0 else "FAIL", margin=margin)

    steps, points, found = search(seen, loads)
    assert all(lowest <= step.load <= highest for step in steps)
    assert all(step.load == int(step.load) for step in steps if whole)
    assert all(points.count(point) == 1 and point.replicates <= REPLICATES for point in points)
    if found.holds is not None and found.fails is not None:
        assert found.holds < found.fails
    assert found == answer(points, loads) == following(points, loads)


@given(st.integers(0, 2**32), st.sampled_from([USERS, RATES]))
def test_the_worst_answers_come_to_an_end(seed: int, loads: Loads) -> None:
    """Probes that lead to a bracket, in which no replicate then says what is wanted."""
    capacity = math.exp(random.Random(seed).uniform(math.log(loads.lowest), math.log(loads.highest)))

    def seen(load: float, count: int) -> Look:
        return Look(verdict="UNDECIDED", margin=math.log(capacity / load) + 0.001)

    steps, _, found = search(seen, loads)
    assert (found.holds, found.fails) == (None, None)
    assert found.edge == "lowest"
    assert len(steps) > 2 * REPLICATES


def test_an_unsure_lower_end_steps_down_by_twice_as_much_each_time() -> None:
    def seen(load: float, count: int) -> Look:
        if count and 80 < load < 100:
            return Look(verdict="UNDECIDED", margin=0.0)
        return clear(99)(load, count)

    steps, _, found = search(seen, USERS)
    confirmed = list(dict.fromkeys(step.load for step in steps if step.why == "confirm"))
    assert confirmed == [99, 94, 85, 70, 101]
    assert [step.load for step in steps if step.why == "step"] == [94, 85, 70]
    assert found == Found(holds=70, fails=101, undecided=(85, 94, 99), seems=(99, 101))


def test_an_unsure_upper_end_steps_up() -> None:
    def seen(load: float, count: int) -> Look:
        if count and 99 < load < 110:
            return Look(verdict="UNDECIDED", margin=0.0)
        return clear(99)(load, count)

    steps, _, found = search(seen, USERS)
    assert list(dict.fromkeys(step.load for step in steps if step.why == "confirm")) == [99, 101, 106, 117]
    assert [step.load for step in steps if step.why == "step"] == [117]  # 106 had been probed on the way
    assert found == Found(holds=99, fails=117, undecided=(101, 106), seems=(99, 101))


def test_a_lower_end_that_fails_after_all_needs_no_upper_one() -> None:
    def seen(load: float, count: int) -> Look:
        return Look(verdict="FAIL", margin=-0.01) if count and load > 18 else clear(20.5)(load, count)

    steps, _, found = search(seen, USERS)
    assert list(dict.fromkeys(step.load for step in steps if step.why == "confirm")) == [20, 19, 17]
    assert (found.holds, found.fails) == (17, 19)


def test_an_upper_end_that_passes_after_all_is_what_holds() -> None:
    def seen(load: float, count: int) -> Look:
        return clear(24.5 if count else 20.5)(load, count)

    _, _, found = search(seen, USERS)
    assert (found.holds, found.fails) == (24, 29)


def test_over_saturation_needs_no_replicates_but_a_close_failure_is_still_looked_for() -> None:
    def seen(load: float, count: int) -> Look:
        if load > 30:
            return Look(verdict="FAIL", over_saturated=True)
        return clear(20.5)(load, count)

    _, _, found = search(seen, USERS)
    assert (found.holds, found.fails) == (20, 21)
    saturated = Point(load=21, probe=Look(verdict="FAIL", over_saturated=True))
    assert saturated.settled == "FAIL"


@pytest.mark.parametrize(
    ("capacity", "holds", "fails", "edge", "confirmed"),
    [(0.5, None, 1, "lowest", {1}), (20, 8, None, "highest", {8})],
)
def test_the_edges(capacity: float, holds: float | None, fails: float | None, edge: str, confirmed: set[float]) -> None:
    steps, _, found = search(clear(capacity), Loads(first=2, lowest=1, highest=8, whole=True))
    assert (found.holds, found.fails, found.edge) == (holds, fails, edge)
    assert {step.load for step in steps if step.why == "confirm"} == confirmed


def test_a_load_that_passed_after_a_lower_one_failed_is_told() -> None:
    points = [a_point(1, "PASS"), a_point(4, 0.1, "PASS"), a_point(8, -0.1, "FAIL"), a_point(16, "PASS")]
    found = answer(points, USERS)
    assert (found.holds, found.fails, found.passed_after_failing) == (4, 8, ((8, 16),))


def test_a_confirmed_verdict_overrides_the_probe() -> None:
    assert answer([a_point(4, "FAIL", "PASS"), a_point(8, "PASS", "FAIL")], USERS).passed_after_failing == ()


def test_what_passed_above_a_failure_is_not_what_holds() -> None:
    points = [a_point(10, "FAIL", "FAIL"), a_point(20, "PASS", "PASS"), a_point(21, "FAIL", "FAIL")]
    step = following(points, USERS)
    assert isinstance(step, Next)
    assert step.load < 20
    assert answer(points, USERS).holds is None


def test_an_answer_in_the_middle_says_what_is_known() -> None:
    assert answer([], USERS) == Found()
    assert answer([a_point(8, 0.2), a_point(16, "FAIL")], USERS) == Found(seems=(8, 16))
    two = [a_point(8, 0.2, "PASS", replicates=2), a_point(9, -0.1, "FAIL", replicates=2)]
    assert answer(two, USERS) == Found(seems=(8, 9))


def test_a_load_without_any_value_does_not_seem_to_hold() -> None:
    assert following([Point(load=4, probe=Look(verdict="UNDECIDED"))], USERS) == Next(2, "halve")


def test_points_beyond_the_limits_do_not_count() -> None:
    points = [a_point(load, "PASS") for load in (1, 2, 4, 8)]
    narrowed = Loads(first=1, lowest=1, highest=5, whole=True)
    assert following(points, narrowed) == Next(5, "double")


def test_a_search_goes_on_where_another_stopped() -> None:
    steps, points, found = search(clear(20.5), USERS)
    for count in range(len(points)):
        again = [Point(load=point.load, probe=point.probe) for point in points[:count]]
        assert following(again, USERS) == steps[count]
    assert following(points, USERS) == found


def test_noise_in_the_probes_is_pooled() -> None:
    """The fit crosses zero once, however the margins go up and down."""
    points = [a_point(16, 0.05), a_point(8, -0.3), a_point(4, 0.4), a_point(2, -0.1), a_point(1, 0.5)]
    step = following(points, USERS)
    assert isinstance(step, Next)
    assert step.why == "cross"
    assert 4 < step.load < 8


@pytest.mark.parametrize(("first", "lowest", "highest"), [(1, 2, 4), (8, 1, 4), (0, 0, 4), (1, 1, math.inf)])
def test_limits_that_are_none(first: float, lowest: float, highest: float) -> None:
    with pytest.raises(ValueError, match="expected 0 < lowest <= first <= highest"):
        Loads(first=first, lowest=lowest, highest=highest, whole=True)


def test_a_look_is_as_good_as_its_worst_term() -> None:
    ttft = Verdict(term="ttft p99 < 500ms", verdict="PASS", observed_ms=250, exceed=0.001, n_eff=400)
    itl = Verdict(term="itl p99 < 50ms", verdict="UNDECIDED", observed_ms=40, exceed=0.005, n_eff=900)
    rate = Verdict(term="throughput > 1000", verdict="FAIL", observed_per_s=800)
    assert look([ttft]) == Look(verdict="PASS", margin=math.log(2), weight=400)
    assert look([ttft, itl]) == Look(verdict="UNDECIDED", margin=math.log(50 / 40), weight=900)
    assert look([ttft, rate, itl]) == Look(verdict="FAIL", margin=math.log(0.8), weight=1)
    assert look([ttft], over_saturated=True).verdict == "FAIL"


def test_a_margin_is_unknown_where_one_is() -> None:
    ttft = Verdict(term="ttft p99 < 500ms", verdict="PASS", observed_ms=250, exceed=0.001, n_eff=400)
    errors = Verdict(term="error_rate < 1%", verdict="UNDECIDED", exceed=0.0, n_eff=30)
    failed = Verdict(term="itl p99 < 50ms", verdict="UNDECIDED", exceed=0.02, n_eff=9)
    assert look([errors]).margin == math.inf
    assert look([Verdict(term="throughput > 1", verdict="FAIL", observed_per_s=0)]).margin == -math.inf
    assert look([ttft, failed, errors]) == Look(verdict="UNDECIDED")


def test_how_many_requests() -> None:
    terms = [slo.parse(text) for text in ("ttft p99 < 1s", "itl p95 < 50ms", "error_rate < 0.1%", "throughput > 9")]
    assert probe_requests(terms, 8) == 299
    assert probe_requests(terms, 64) == 640
    assert probe_requests(terms[2:], 4) == 40
    ttft = Verdict(term="ttft p99 < 1s", verdict="UNDECIDED", n_eff=150)
    itl = Verdict(term="itl p95 < 50ms", verdict="PASS", n_eff=3000)
    assert replicate_requests([ttft, itl], 300, 8) == math.ceil(ENOUGH * 299 * 2 / REPLICATES)
    assert replicate_requests([itl], 300, 8) == 80
    assert replicate_requests([Verdict(term="throughput > 9", verdict="PASS")], 300, 8) == 80
