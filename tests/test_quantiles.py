from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import quantiles
from analysis.quantiles import Distribution

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


def test_intervals_are_null_until_dependence_is_measured() -> None:
    spread = quantiles.distribution(np.arange(1000.0))
    assert (spread.n_eff, spread.p50_ci95, spread.p99_ci95) == (None, (None, None), (None, None))
