from __future__ import annotations

import numpy as np
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


def test_independent_values_count_in_full_and_copies_once() -> None:
    random = np.random.default_rng(1)
    few = random.random(3000) < 0.1
    times = np.sort(random.random(3000))
    alone = blocks.share(few, times, 0, 1)
    assert alone.design_effect < 1.8
    copies = blocks.share(np.repeat(few, 50), np.repeat(times, 50), 0, 1)
    assert copies.design_effect == pytest.approx(50 * alone.design_effect, rel=0.5)
    assert copies.exceed == alone.exceed
    assert copies.high - copies.low == pytest.approx(alone.high - alone.low, rel=0.3)


def test_the_formula_of_the_design_effect() -> None:
    """Of 30 blocks of 20 with 5 each, one has 20."""
    exceeds = np.tile(np.arange(20) < 5, blocks.BLOCKS)
    exceeds[40:60] = True
    times = np.repeat(np.arange(blocks.BLOCKS) + 0.5, 20)
    n, p = 600, 165 / 600
    variance = 30 / 29 * (29 * (5 - 20 * p) ** 2 + (20 - 20 * p) ** 2) / n**2
    expected = variance / (p * (1 - p) / n)
    assert blocks.share(exceeds, times, 0, blocks.BLOCKS).design_effect == pytest.approx(expected, rel=1e-4)


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
        together = blocks.share(exceeds, times, 0, 30).design_effect
        ratios.append(together / blocks.share(apart, times, 0, 30).design_effect)
    assert np.median(ratios) > 2.5


def test_where_none_exceeds_the_own_quantile_measures_the_dependence() -> None:
    values = np.repeat(np.random.default_rng(2).random(300), 100)
    times = np.repeat(np.arange(300.0), 100)
    none = np.zeros(len(values), np.bool_)
    blind = blocks.share(none, times, 0, 300)
    seeing = blocks.share(none, times, 0, 300, values=values, quantile=0.9)
    assert blind.design_effect == 1
    assert seeing.design_effect > 30
    assert seeing.high > 30 * blind.high


def test_few_exceedances_borrow_the_dependence_of_a_lower_limit() -> None:
    """One burst of ten in which one value is far out: alone it looks like an independent one."""
    values = np.random.default_rng(4).random(1000)
    values[500:550] += 1
    values[500] = 9
    times = np.arange(1000.0)
    assert blocks.share(values > 5, times, 0, 1000).design_effect == pytest.approx(1, abs=0.2)
    assert blocks.share(values > 5, times, 0, 1000, values=values, quantile=0.99).design_effect > 10
    unknown = np.where(values > 5, np.nan, values)  # a failure has no value and lies above all
    assert blocks.share(values > 5, times, 0, 1000, values=unknown, quantile=0.99).design_effect > 10


def test_all_in_one_block_are_worth_one() -> None:
    assert blocks.share(np.array([True, False, True]), np.array([5.0, 5.0, 5.0]), 5, 5).n_eff == 1


def test_an_empty_sample_has_no_share() -> None:
    with pytest.raises(ValueError, match="empty"):
        blocks.share(np.empty(0, np.bool_), np.empty(0), 0, 1)


def test_places_are_clipped_to_the_window() -> None:
    assert blocks.places(np.array([-9.0, 0, 1, 29.9, 30, 99]), 0, 30).tolist() == [0, 0, 1, 29, 29, 29]


@given(st.lists(st.tuples(st.booleans(), st.floats(-10, 40)), min_size=1, max_size=200), st.floats(0.001, 0.5))
def test_the_interval_holds_the_share_and_n_eff_lies_in_bounds(rows: list[tuple[bool, float]], alpha: float) -> None:
    found = blocks.share(np.array([row[0] for row in rows]), np.array([row[1] for row in rows]), 0, 30, alpha=alpha)
    assert 0 <= found.low <= found.exceed <= found.high <= 1
    assert 1 <= found.n_eff * (1 + 1e-9) <= found.n * (1 + 1e-8)
    assert found.n_eff * found.design_effect == pytest.approx(found.n)


def test_interval_of_a_mean_is_students() -> None:
    means = np.random.default_rng(2).normal(10, 3, blocks.LONG)
    expected = stats.ttest_1samp(means, 0).confidence_interval(0.95)
    assert blocks.mean_interval(means) == pytest.approx((expected.low, expected.high))
    assert blocks.mean_interval(np.full(30, 7.0)) == (7, 7)
