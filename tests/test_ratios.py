from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis import ratios
from analysis.ratios import Difference, Logged
from tests import fakes_compare as fakes

logs = st.floats(-2, 2)
errors = st.floats(0.001, 1)


def over_blocks(*logs: float) -> Difference:
    found = ratios.difference([(Logged(at=0.0), Logged(at=log)) for log in logs], len(logs))
    assert found is not None
    return found


def within(log: float, below: float = 0.1, above: float = 0.1) -> Difference:
    a = Logged(at=0.0, below=below, above=above, free=29)
    found = ratios.difference([(a, Logged(at=log, below=below, above=above, free=29))], 1)
    assert found is not None
    return found


@given(st.lists(logs, min_size=2, max_size=9).filter(lambda values: np.std(values) > 1e-3))
def test_blocks_are_the_t_test_of_their_logs(values: list[float]) -> None:
    found, expected = over_blocks(*values), stats.ttest_1samp(values, 0.0)
    low, high = expected.confidence_interval(0.95)
    assert ratios.interval(found) == pytest.approx((math.exp(max(low, -700)), math.exp(min(high, 700))))
    assert ratios.p_differs(found) == pytest.approx(expected.pvalue)
    one_sided = stats.ttest_1samp(values, math.log(1.2), alternative="greater").pvalue
    assert ratios.p_above(found, 1.2) == pytest.approx(one_sided)


def test_blocks_without_any_noise_are_told_apart_by_six_digits() -> None:
    same, other = over_blocks(0.0, 0.0, 0.0), over_blocks(0.01, 0.01, 0.01)
    assert ratios.p_differs(same) == 1.0
    assert ratios.p_alike(same, 0.05) == pytest.approx(0, abs=1e-6)
    assert (ratios.p_differs(other) or 1) < 1e-6


@given(logs, errors, errors)
def test_within_runs_each_side_has_the_ends_that_lie_there(log: float, near: float, far: float) -> None:
    """MOVER: below the ratio lie the lower end of b and the upper one of a."""
    a, b = Logged(at=0.0, below=near, above=far, free=29), Logged(at=log, below=far, above=near, free=29)
    found = ratios.difference([(a, b)], 1)
    assert found is not None
    assert (found.below, found.above) == pytest.approx((math.hypot(far, far), math.hypot(near, near)))
    assert 29 - 1e-9 <= found.free <= 58 + 1e-9
    low, high = ratios.interval(found)
    assert low is not None
    assert high is not None
    assert low < math.exp(log) < high


def test_equal_errors_have_twice_the_freedom() -> None:
    assert within(0.0).free == pytest.approx(58)


def test_an_interval_of_a_metric_is_taken_back_to_its_error() -> None:
    one = ratios.logged([fakes.level(rate=100, off=0.1)], "throughput")
    assert one is not None
    assert one.below == pytest.approx(math.log(1.1) / stats.t.ppf(0.975, 9))
    assert one.free == 9
    assert ratios.logged([fakes.level()], "e2e p99") is not None


def test_levels_of_one_load_are_averaged() -> None:
    one = ratios.logged([fakes.level(rate=100), fakes.level(rate=400)], "throughput")
    first = ratios.logged([fakes.level(rate=100)], "throughput")
    assert one is not None
    assert first is not None
    assert (one.at, one.below) == pytest.approx((math.log(200), (first.below or 0) / math.sqrt(2)))


def test_what_nobody_knows_is_no_number() -> None:
    assert ratios.logged([fakes.level(p99=False), fakes.level()], "ttft p99") is None
    assert ratios.logged([fakes.level(goodput=fakes.goodput(0.0))], "goodput") is None
    assert ratios.difference([], 5) is None
    alone = ratios.difference([(Logged(at=0, below=1, above=1), Logged(at=0, below=1, above=1))], 5)
    assert alone is not None
    assert (ratios.p_differs(alone), ratios.interval(alone)) == (None, (None, None))
    open_above = ratios.difference([(Logged(at=0, below=1, above=1), Logged(at=0, below=1))], 1)
    assert open_above is not None
    assert (ratios.p_differs(open_above), ratios.p_alike(open_above, 0.05)) == (None, None)
    assert ratios.detectable(open_above) is None
    assert (ratios.p_above(open_above, 0.001) or 1) < 0.05


@given(logs, errors)
def test_upside_down_says_the_same(log: float, error: float) -> None:
    one, other = within(log, error, error), within(-log, error, error)
    assert ratios.p_differs(one) == pytest.approx(ratios.p_differs(other))
    assert ratios.p_alike(one, 0.05) == pytest.approx(ratios.p_alike(other, 0.05))


@given(logs, errors, st.floats(0.01, 0.5))
def test_an_interval_and_its_test_agree(log: float, error: float, margin: float) -> None:
    found = within(log, error, error)
    low, high = ratios.interval(found, 0.1)
    assert low is not None
    assert high is not None
    p = ratios.p_alike(found, margin)
    inside = 1 / (1 + margin) <= low and high <= 1 + margin
    assert inside == (p is not None and p <= 0.05)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm(values: list[float]) -> None:
    adjusted = ratios.holm(values)
    assert min(adjusted) == pytest.approx(min(1, len(values) * min(values)))
    assert all(before <= after <= 1 for before, after in zip(values, adjusted, strict=True))
    order = np.argsort(values, kind="stable")
    assert sorted(adjusted) == [adjusted[n] for n in order]


def test_holm_of_the_textbook() -> None:
    assert ratios.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert ratios.holm([]) == []


@pytest.mark.parametrize("tests", [1, 20])
def test_what_could_have_been_seen_is_seen_in_four_of_five(tests: int) -> None:
    found = over_blocks(-0.01, 0.004, 0.012, -0.006, 0.0)
    seen = ratios.detectable(found, tests)
    assert seen is not None
    sd, random = (found.below or 0) * math.sqrt(5), np.random.default_rng(0)
    drawn = random.normal(math.log1p(seen), sd, (20_000, 5))
    t = drawn.mean(axis=1) / (drawn.std(axis=1, ddof=1) / math.sqrt(5))
    assert np.mean(t > stats.t.ppf(1 - 0.025 / tests, 4)) == pytest.approx(0.8, abs=0.01)


def test_a_tenfold_difference_is_no_small_one() -> None:
    assert ratios.detectable(over_blocks(-1.0, 1.0), 20) is None


def test_reach() -> None:
    assert [ratios.reach(blocks) for blocks in (1, 2, 4, 5)] == ["these runs", "indication", "indication", "claim"]
