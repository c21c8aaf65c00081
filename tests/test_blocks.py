from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis import blocks


def test_interval_is_clopper_pearson() -> None:
    for k, n in [(0, 10), (3, 10), (10, 10), (7, 400)]:
        expected = stats.binomtest(k, n).proportion_ci(0.95, method="exact")
        assert blocks.interval(k, n) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_299_without_an_exceedance_are_enough_for_p99_one_sided() -> None:
    assert blocks.interval(0, 299, alpha=0.1)[1] <= 0.01 < blocks.interval(0, 298, alpha=0.1)[1]


def effect(exceeds: npt.NDArray[np.bool_], times_us: npt.NDArray[np.float64], end_us: float) -> float:
    return blocks.design_effect(exceeds, blocks.places(times_us, 0, end_us))


def own_effect(values: npt.NDArray[np.float64], times_us: npt.NDArray[np.float64], end_us: float, q: float) -> float:
    return blocks.effect_at(values, blocks.places(times_us, 0, end_us), q, partial(np.quantile, values))


def test_independent_values_count_in_full_and_copies_once() -> None:
    random = np.random.default_rng(1)
    few = random.random(3000) < 0.1
    times = np.sort(random.random(3000))
    alone = effect(few, times, 1)
    assert alone < 1.8
    copies = effect(np.repeat(few, 50), np.repeat(times, 50), 1)
    assert copies == pytest.approx(50 * alone, rel=0.5)


def test_the_formula_of_the_design_effect() -> None:
    """Of 30 blocks of 20 with 5 each, one has 20."""
    exceeds = np.tile(np.arange(20) < 5, blocks.BLOCKS)
    exceeds[40:60] = True
    times = np.repeat(np.arange(blocks.BLOCKS) + 0.5, 20)
    n, p = 600, 165 / 600
    variance = 30 / 29 * (29 * (5 - 20 * p) ** 2 + (20 - 20 * p) ** 2) / n**2
    expected = variance / (p * (1 - p) / n)
    assert effect(exceeds, times, blocks.BLOCKS) == pytest.approx(expected, rel=1e-4)


def test_neighbours_that_go_together_count_as_one() -> None:
    """Runs of five alike blocks are worth about a fifth of as many free ones, and few of these are known badly."""
    random = np.random.default_rng(3)
    times = np.arange(3000) / 100
    ratios = []
    for _ in range(50):
        high = random.random(6) < 0.5
        free = random.permutation(np.repeat(high, 5))
        exceeds = random.random(3000) < np.where(np.repeat(high, 500), 0.6, 0.4)
        apart = random.random(3000) < np.where(np.repeat(free, 100), 0.6, 0.4)
        ratios.append(effect(exceeds, times, 30) / effect(apart, times, 30))
    assert np.median(ratios) > 2.5


def test_few_exceedances_borrow_the_dependence_of_a_lower_limit() -> None:
    """One burst of fifty in which one value is far out: alone it looks like an independent one."""
    values = np.random.default_rng(4).random(1000)
    values[500:550] += 1
    values[500] = 9
    times = np.arange(1000.0)
    assert effect(values > 5, times, 1000) == pytest.approx(1, abs=0.2)
    assert own_effect(values, times, 1000, 0.99) > 10


def test_all_in_one_block_are_worth_one_and_all_alike_tell_nothing() -> None:
    assert effect(np.array([True, False, True]), np.array([5.0, 5.0, 5.0]), 0) == 3
    assert effect(np.zeros(300, np.bool_), np.arange(300.0), 300) == 0


def test_a_variance_that_is_known_badly_counts_for_more() -> None:
    assert blocks.unsure(0.025, 9) == pytest.approx((2.2622 / 1.96) ** 2, rel=1e-3)
    assert blocks.unsure(0.05, 1e6) == pytest.approx(1, rel=1e-4)
    assert blocks.unsure(0.01) > blocks.unsure(0.05) > 1


def test_places_are_clipped_to_the_window() -> None:
    assert blocks.places(np.array([-9.0, 0, 1, 29.9, 30, 99]), 0, 30).tolist() == [0, 0, 1, 29, 29, 29]


@given(st.lists(st.tuples(st.booleans(), st.floats(-10, 40)), min_size=1, max_size=200), st.floats(0.001, 0.5))
def test_the_interval_holds_the_share_and_the_effect_lies_in_bounds(
    rows: list[tuple[bool, float]], alpha: float
) -> None:
    exceeds, n = np.array([row[0] for row in rows]), len(rows)
    found = effect(exceeds, np.array([row[1] for row in rows]), 30)
    assert 0 <= found <= n
    found = max(found, 1)
    k = np.count_nonzero(exceeds) / found
    low, high = blocks.interval(k, n / found, alpha)
    assert 0 <= low <= k / (n / found) * (1 + 1e-9)
    assert k / (n / found) <= high * (1 + 1e-9) <= 1 + 1e-9


def test_interval_of_a_mean_is_students() -> None:
    means = np.random.default_rng(2).normal(10, 3, blocks.LONG)
    expected = stats.ttest_1samp(means, 0).confidence_interval(0.95)
    assert blocks.mean_interval(means) == pytest.approx((expected.low, expected.high))
    assert blocks.mean_interval(np.full(30, 7.0)) == (7, 7)
