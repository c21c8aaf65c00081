from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis import quantiles
from analysis.quantiles import Distribution
from analysis.window import Window

if TYPE_CHECKING:
    from analysis.records import Floats

samples = st.lists(st.floats(-1e6, 1e6), max_size=500).map(np.array)
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@pytest.mark.parametrize(("q", "n"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368), (0.1, 36), (0.01, 368)])
def test_min_n(q: float, n: int) -> None:
    assert quantiles.min_n(q) == n


@settings(deadline=None)
@given(st.floats(0.001, 0.999))
def test_min_n_is_the_smallest_whose_range_is_an_interval(q: float) -> None:
    n = quantiles.min_n(q)
    assert max(q**n, (1 - q) ** n) <= 0.025 * (1 + 1e-9)
    assert max(q ** (n - 1), (1 - q) ** (n - 1)) > 0.025 * (1 - 1e-9)


@pytest.mark.parametrize("q", [0, 1, -1, 1.5])
def test_no_quantile_outside(q: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        quantiles.min_n(q)


def test_definition_is_linear_between_order_statistics() -> None:
    assert quantiles.point(np.array([1.0, 2.0, 4.0]), 0.75) == 3.0
    assert quantiles.point(np.array([]), 0.5) is None
    assert quantiles.quantile(np.arange(5.0), 0.5) is None
    assert quantiles.quantile(np.arange(6.0), 0.5) == 2.5


def test_known_distribution() -> None:
    values = np.random.default_rng(0).permutation(np.append(np.arange(1.0, 1002.0), np.nan))
    expected = Distribution(n=1001, mean=501, min=1, p50=501, p90=901, p95=951, p99=991, max=1001)
    assert quantiles.distribution(values) == expected


@settings(deadline=None)
@given(samples)
def test_nulls_below_min_n_monotone_and_finite(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    spread = quantiles.distribution(values)
    for name, q in QUANTILES.items():
        assert (getattr(spread, name) is None) == (len(values) < quantiles.min_n(q))
    known = [spread.min, *(getattr(spread, name) for name in QUANTILES), spread.max]
    known = [value for value in known if value is not None]
    assert known == sorted(known)
    assert all(np.isfinite(value) for value in known)
    assert spread.n == len(values)


@pytest.mark.parametrize("values", [[], [np.nan, np.nan]])
def test_an_empty_sample_is_all_null(values: list[float]) -> None:
    spread = msgspec.to_builtins(quantiles.distribution(np.array(values)))
    assert spread.pop("n") == 0
    assert {str(value) for value in spread.values()} == {"None", "(None, None)"}


def test_intervals_are_null_where_dependence_is_not_known() -> None:
    spread = quantiles.distribution(np.arange(1000.0))
    assert (spread.n_eff, spread.p50_ci95, spread.p99_ci95) == (None, (None, None), (None, None))


WINDOW = Window(start_us=0, end_us=1000)


@pytest.mark.parametrize(("trials", "q"), [(20, 0.5), (40, 0.5), (500, 0.99), (2000, 0.99)])
def test_ends_of_an_interval_are_those_of_the_binomial_law(trials: int, q: float) -> None:
    """Of so many values, 0 and on: as few above the high end as the law allows, as many above the low one."""
    low, high = quantiles.interval(np.arange(float(trials)), q, round(trials / quantiles.KNOWN))
    assert low is not None
    assert high is not None
    above = trials - 1 - np.array([high, low])
    assert stats.binom.cdf(above[0] - 1, trials, 1 - q) <= 0.025
    assert stats.binom.cdf(above[0] + 1, trials, 1 - q) > 0.025
    assert stats.binom.sf(above[1], trials, 1 - q) <= 0.025
    assert stats.binom.sf(above[1] - 3, trials, 1 - q) > 0.025


def test_an_end_that_the_sample_cannot_carry_is_null() -> None:
    ordered = np.arange(300.0)
    assert quantiles.interval(ordered, 0.99, 367)[1] is None
    assert quantiles.interval(ordered, 0.99, 368)[1] == 299
    assert quantiles.interval(ordered, 0.99, 100)[0] is not None
    assert quantiles.interval(ordered, 0.5, 5) == (None, None)


def test_copies_do_not_make_a_sample_larger() -> None:
    """A thousand independent values, and the same ones ten times each at the same moment."""
    random = np.random.default_rng(7)
    values, times = random.random(1000), random.random(1000) * 1000
    once = quantiles.distribution(values, times, WINDOW)
    tenfold = quantiles.distribution(np.repeat(values, 10), np.repeat(times, 10), WINDOW)
    assert once.n_eff is not None
    assert tenfold.n_eff is not None
    assert once.n_eff > 600
    assert tenfold.n_eff == pytest.approx(once.n_eff, rel=0.35)
    assert tenfold.n == 10_000
    assert tenfold.p50 == pytest.approx(once.p50, abs=0.01)
    assert tenfold.p50_ci95 == pytest.approx(once.p50_ci95, abs=0.02)


def test_what_depends_carries_fewer_quantiles() -> None:
    values = np.repeat(np.random.default_rng(8).random(60), 100)
    spread = quantiles.distribution(values, np.arange(6000.0) / 6, WINDOW)
    assert spread.n_eff is not None
    assert 20 < spread.n_eff < 72
    assert spread.p50 is not None
    assert (spread.p95, spread.p99, spread.p99_ci95[1]) == (None, None, None)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1000)), min_size=1, max_size=400))
def test_intervals_hold_the_quantile_and_lie_in_the_sample(rows: list[tuple[float, float]]) -> None:
    values, times = np.array(rows).T
    spread = quantiles.distribution(values, times, WINDOW)
    assert spread.n_eff is not None
    assert 1 <= spread.n_eff <= spread.n
    for quantile, (low, high) in ((spread.p50, spread.p50_ci95), (spread.p99, spread.p99_ci95)):
        held = [value for value in (spread.min, low, quantile, high, spread.max) if value is not None]
        assert held == sorted(held)
    assert spread.p99 is None or None not in spread.p99_ci95
    assert (spread.p50 is None) == (spread.n < 6)


def test_a_value_without_a_number_is_left_out_with_its_time() -> None:
    values, times = np.arange(500.0), np.arange(500.0) * 2
    holes, where = np.insert(values, 100, np.nan), np.insert(times, 100, 3.0)
    assert quantiles.distribution(holes, where, WINDOW) == quantiles.distribution(values, times, WINDOW)


def test_intervals_cover_in_a_queue() -> None:
    """Waits in a queue at 60 % of its capacity, 150 levels; tests/bench/coverage.py has the engine and more loads."""
    random = np.random.default_rng(9)
    levels = [waits(random, 2000, load=0.6) for _ in range(150)]
    truth = np.quantile(np.concatenate([values for values, _ in levels]), [0.5, 0.9])
    covered = [
        blocked.p50_ci95[0] <= truth[0] <= blocked.p50_ci95[1]
        for blocked in (quantiles.distribution(*level, Window(start_us=0, end_us=level[1][-1])) for level in levels)
        if blocked.p50_ci95[0] is not None and blocked.p50_ci95[1] is not None
    ]
    naive = [
        low <= truth[0] <= high
        for low, high in (quantiles.interval(np.sort(values), 0.5, len(values)) for values, _ in levels)
        if low is not None and high is not None
    ]
    assert len(covered) == 150
    assert np.mean(covered) >= 0.92
    assert np.mean(naive) < 0.75


def waits(random: np.random.Generator, count: int, load: float) -> tuple[Floats, Floats]:
    """Sojourns in a queue of one server, by Lindley's recursion, and when each arrived."""
    gaps, service = random.exponential(1 / load, count + 500), random.exponential(1.0, count + 500)
    walk = np.cumsum(service[:-1] - gaps[1:])
    wait = walk - np.minimum.accumulate(np.minimum(walk, 0))
    sojourn: Floats = wait[499:] + service[500:]
    return sojourn, np.cumsum(gaps)[500:]
