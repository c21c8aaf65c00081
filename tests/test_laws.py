from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import laws

N = np.array([1, 2, 4, 8, 16, 32, 64], float)
costs = st.floats(1e-4, 1e-1)


def one(law: laws.Law, c0: float, c1: float, c2: float = 0.0, cap: float = np.inf) -> laws.Fits:
    return laws.Fits(law=law, costs_s=np.array([[c0, c1, c2]]), cap=np.array([cap]), chi2=np.zeros(1))


@settings(deadline=None, max_examples=30)
@given(c0=costs, c1=costs, c2=costs, cap=st.integers(4, 48))
def test_each_law_is_found_again(c0: float, c1: float, c2: float, cap: int) -> None:
    for truth in (one("asymptotic", c0, c1), one("usl", c0, c1, c2), one("capped", c0, c1, cap=cap)):
        x = truth.throughput(N)
        found = laws.fit(truth.law, N, N / x, x[0] / N / 0.01)
        assert found.chi2[0] < 1e-6
        np.testing.assert_allclose(found.throughput(N), x, rtol=1e-5)
        if truth.law != "capped":
            np.testing.assert_allclose(found.throughput(np.array([3.0, 50.0])), truth.throughput(np.array([3.0, 50.0])))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(1.0, 1e5), min_size=7, max_size=7), st.sampled_from(list(laws.PARAMETERS)))
def test_no_cost_is_below_zero_and_more_laws_fit_no_worse(rates: list[float], law: laws.Law) -> None:
    x = np.array([rates])
    simple, found = (laws.fit(each, N, N / x, x[0] / N / 0.01) for each in ("asymptotic", law))
    assert (found.costs_s >= 0).all()
    assert (found.throughput(N) > 0).all()
    if law == "usl":  # it has the asymptotic one in it
        assert found.chi2[0] <= simple.chi2[0] * (1 + 1e-9)


def test_least_squares_agrees_with_a_search() -> None:
    """Where the cost of a request would be negative, it is 0 and the other is the best alone."""
    step = np.array([10.0, 9.9, 9.7, 9.4, 9.1, 8.7, 8.2])
    found = laws.fit("asymptotic", N, step[None], np.ones(7))
    assert found.costs_s[0].tolist() == [pytest.approx(step.mean()), 0, 0]
    assert found.chi2[0] == pytest.approx(np.sum((step - step.mean()) ** 2))


def test_draws_are_fitted_each_for_itself() -> None:
    random = np.random.default_rng(1)
    steps = 0.007 + 0.0001 * N * random.uniform(0.9, 1.1, (5, 7))
    for law in laws.PARAMETERS:
        together = laws.fit(law, N, steps, np.ones(7))
        for i, step in enumerate(steps):
            alone = laws.fit(law, N, step[None], np.ones(7))
            np.testing.assert_allclose(together.costs_s[i], alone.costs_s[0])
            assert together.cap[i] == alone.cap[0]


def test_a_cap_ends_the_growth() -> None:
    x = one("capped", 0.007, 0.0001, cap=32).throughput(np.array([16.0, 32.0, 33.0, 640.0]))[0]
    assert x[0] < x[1] == x[2] == x[3] == 32 / (0.007 + 0.0032)


def test_criteria_prefer_fewer_parameters_of_equal_fits() -> None:
    few, many = one("asymptotic", 1, 1), one("usl", 1, 1)
    assert laws.aic(many) - laws.aic(few) == 2
    assert laws.aicc(few, 7) == pytest.approx(4 + 12 / 4)
    assert laws.aicc(many, 7) == pytest.approx(6 + 24 / 3)


@pytest.mark.parametrize(("points", "names"), [(3, []), (4, ["asymptotic"]), (5, ["asymptotic", "usl", "capped"])])
def test_levels_decide_which_laws_can_be_told_apart(points: int, names: list[str]) -> None:
    assert laws.allowed(points) == names


def test_places_are_whole_and_hold_both_ends() -> None:
    assert laws.places(1, 64).tolist() == list(range(1, 65))
    for first, last in ((1, 8), (3, 1000), (16, 65536)):
        places = laws.places(first, last)
        assert (places[0], places[-1]) == (first, last)
        assert (places == np.round(places)).all()
        assert len(places) <= laws.PLACES
