from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import curve, laws
from analysis.curve import Estimate, Measured

if TYPE_CHECKING:
    from collections.abc import Callable

    from analysis.records import Floats

N = [1, 2, 4, 8, 16, 32, 64]


def asymptotic(knee: float) -> Any:
    return lambda n: n / (0.007 * (1 + n / knee))


def usl(n: Floats) -> Floats:
    return n / (0.007 + 1e-4 * n + 4e-6 * n**2)


def capped(n: Floats) -> Floats:
    batch = np.minimum(n, 32)
    return batch / (0.007 + 9e-5 * batch)


def level(number: int, **changes: Any) -> Measured:
    facts: dict[str, Any] = {
        "level": number, "concurrency": None, "load": None, "valid": True, "over_saturated": False, "one_rate": False,
        "tokens_per_s": 100.0, "tokens_per_s_ci95": (98.0, 102.0), "verdicts": frozenset(),
    }  # fmt: skip
    return Measured(**(facts | changes))


def sweep(law: Callable[[Floats], Floats], n: list[int] = N) -> list[Measured]:
    rates = law(np.array(n, float))
    return [
        level(
            i, concurrency=load, load=load, tokens_per_s=float(rate), tokens_per_s_ci95=(rate * 0.98, rate * 1.02)
        )
        for i, (load, rate) in enumerate(zip(n, rates, strict=True))
    ]  # fmt: skip


def near(estimate: Estimate, value: float, share: float) -> bool:
    low, high = estimate.ci95
    assert estimate.value is not None
    return abs(estimate.value / value - 1) < share and (low is None or low <= value) and (high is None or value <= high)


def test_a_cap_is_the_knee_and_the_end_of_growth() -> None:
    found = curve.curve(sweep(capped))
    assert found.fit is not None
    assert (found.fit.law, found.fit.first, found.fit.last, found.fit.c2_ms) == ("capped", 1, 64, None)
    assert found.fit.cap is not None
    assert near(found.fit.cap, 32, 0.02)
    assert near(found.fit.c0_ms, 7, 0.01)
    assert near(found.fit.c1_ms, 0.09, 0.05)
    assert near(found.knee, 32, 0.02)
    # The smallest N with X(2N) - X(N) under 5 % of X(32): all N from 30 on.
    assert near(found.saturated, 30, 0.04)
    assert near(found.saturation_tokens_per_s, 32 / (0.007 + 9e-5 * 32), 0.01)


def test_fixed_cost_over_cost_a_request_is_the_knee() -> None:
    found = curve.curve(sweep(asymptotic(20)))
    assert found.fit is not None
    assert (found.fit.law, found.fit.cap) == ("asymptotic", None)
    assert near(found.knee, 20, 0.01)
    assert found.saturated == Estimate(value=None, ci95=(found.saturated.ci95[0], None))
    assert found.saturation_tokens_per_s == Estimate()


def test_requests_in_each_others_way() -> None:
    found = curve.curve(sweep(usl))
    assert found.fit is not None
    assert found.fit.law == "usl"
    assert found.fit.c2_ms is not None
    assert near(found.fit.c2_ms, 0.004, 0.01)
    n = np.arange(1.0, 65)
    assert near(found.knee, n[np.argmax(usl(n) ** 2 / n)], 0.01)
    assert near(found.saturation_tokens_per_s, usl(n).max(), 0.01)


def test_a_server_without_batching_is_saturated_by_one() -> None:
    found = curve.curve(sweep(lambda n: np.full(len(n), 140.0)))
    assert (found.knee.value, found.saturated.value) == (1, 1)
    assert near(found.saturation_tokens_per_s, 140, 0.01)


@pytest.mark.parametrize(
    ("knee", "n", "ci95"), [(300, [8, 16, 32, 64], (64, None)), (3, [16, 32, 64, 128], (None, 16))]
)
def test_a_knee_outside_of_what_was_measured_is_unknown(knee: float, n: list[int], ci95: tuple[Any, Any]) -> None:
    assert curve.curve(sweep(asymptotic(knee), n)).knee == Estimate(value=None, ci95=ci95)


def test_an_interval_may_end_beyond_the_last_level() -> None:
    knee = curve.curve(sweep(asymptotic(62))).knee
    assert knee.value == pytest.approx(62, abs=1)
    assert knee.ci95[0] is not None
    assert knee.ci95[1] is None


def test_too_few_levels_are_no_curve() -> None:
    found = curve.curve(sweep(capped, [1, 2, 4]))
    assert found.fit is None
    assert found.why_no_fit == "it takes 4 valid levels of different concurrency, not 3"
    assert (found.knee, found.saturated, found.saturation_tokens_per_s) == (Estimate(), Estimate(), Estimate())
    again = curve.curve([*sweep(capped, [1, 2, 4]), *sweep(capped, [1, 2, 4])])
    assert again.fit is None


def test_invalid_levels_are_left_out_and_named() -> None:
    levels = sweep(asymptotic(20))
    broken = [*levels[:-1], level(6, concurrency=64, load=64, valid=False, tokens_per_s=9.0)]
    found = curve.curve(broken)
    assert found.left_out == (6,)
    assert found.fit is not None
    assert found.fit.last == 32
    assert found == curve.curve([*levels[:-1], level(6, concurrency=64, load=64, tokens_per_s=None)])


def test_a_curve_of_no_law_is_not_fitted() -> None:
    levels = sweep(asymptotic(20))
    levels[3] = level(3, concurrency=8, load=8, tokens_per_s=300.0)
    found = curve.curve(levels)
    assert found.fit is None
    assert found.why_no_fit is not None
    assert found.why_no_fit.startswith("the nearest law misses the level at 8 by ")


def test_levels_that_scatter_widen_the_intervals() -> None:
    n = np.array(N, float)
    exact = asymptotic(20)(n)
    rough = exact * np.array([1.06, 0.94, 1.05, 0.95, 1.06, 0.95, 1.04])
    calm, wild = (curve.fitted(n, rates, np.full(7, 0.001)) for rates in (exact, rough))
    widths = [found.knee.ci95[1] - found.knee.ci95[0] for found in (calm, wild)]  # type: ignore[operator]
    assert widths[1] > 1.5 * widths[0]  # what a law is off by is in both


@pytest.mark.parametrize("scatter", [0.0, 0.03])
def test_intervals_cover_the_truth(scatter: float) -> None:
    """Of four levels, which one law can explain. For the other laws see tests/bench/curve_coverage.py."""
    random, n = np.random.default_rng(3), np.array([8, 16, 32, 64], float)
    law, covered = asymptotic(20), 0
    for _ in range(150):
        rates = law(n) * np.exp(random.normal(0, np.hypot(0.02, scatter), 4))
        low, high = curve.fitted(n, rates, np.full(4, 0.02)).knee.ci95
        covered += (low is None or low <= 20) and (high is None or high >= 20)
    assert covered >= 0.92 * 150


rates = st.lists(st.floats(1.0, 1e5), min_size=4, max_size=7)


@settings(deadline=None, max_examples=25)
@given(rates, st.floats(0, 0.3), st.integers(1, 40))
def test_nothing_is_said_of_what_was_not_measured(values: list[float], noise: float, first: int) -> None:
    n = np.array([first * 2**i for i in range(len(values))], float)
    found = curve.fitted(n, np.array(values), np.full(len(n), noise))
    for estimate in (found.knee, found.saturated):
        assert estimate.value is None or n[0] <= estimate.value < n[-1]
        known = [end for end in estimate.ci95 if end is not None]
        assert known == sorted(known)
        assert all(n[0] <= end <= n[-1] for end in known)
    assert (found.fit is None) == (found.why_no_fit is not None)
    if found.saturated.value is not None:
        assert 2 * found.saturated.value <= n[-1]
        assert found.saturation_tokens_per_s.value is not None
    if found.fit is not None:
        line = curve.throughput(found.fit, n)
        assert np.abs(np.array(values) / line - 1).max() == pytest.approx(found.fit.worst, rel=1e-6)


@settings(deadline=None, max_examples=4)
@given(st.permutations(range(7)), st.floats(0.01, 100))
def test_order_and_unit_do_not_matter(order: list[int], scale: float) -> None:
    levels = sweep(usl)
    found = curve.curve(levels)
    assert curve.curve([levels[i] for i in order]) == found
    scaled = curve.curve(sweep(lambda n: scale * usl(n)))
    assert scaled.knee == found.knee
    assert scaled.saturated == found.saturated


PASS, FAIL, UNDECIDED, MIXED = (
    {"verdicts": frozenset(found)} for found in (["PASS"], ["FAIL", "PASS"], ["UNDECIDED"], ["PASS", "UNDECIDED"])
)
KEPT: dict[str, Any] = {"one_rate": True}
OVER: dict[str, Any] = {"one_rate": True, "valid": False, "over_saturated": True}
INVALID: dict[str, Any] = {"one_rate": True, "valid": False}


@pytest.mark.parametrize(
    ("states", "holds", "fails"),
    [
        ([], None, None),
        ([{}, {}], None, None),  # no SLO in the closed loop
        ([KEPT, KEPT, OVER], 2, 3),
        ([KEPT, OVER, KEPT], 1, 2),  # what holds above a failure does not count
        ([OVER, KEPT], None, 1),
        ([KEPT, INVALID, OVER], 1, 3),
        ([INVALID], None, None),
        ([PASS, PASS, FAIL], 2, 3),
        ([PASS, UNDECIDED, FAIL], 1, 3),
        ([PASS, MIXED], 1, None),
        ([FAIL, PASS], None, 1),
        ([PASS | KEPT, FAIL | KEPT, OVER], 1, 2),
        ([UNDECIDED | KEPT], None, None),
        ([FAIL | INVALID], None, None),
    ],
)
def test_the_load_that_holds(states: list[dict[str, Any]], holds: float | None, fails: float | None) -> None:
    for order in (1, -1):
        levels = [level(i, load=float(i + 1), **state) for i, state in enumerate(states)][::order]
        found = curve.curve(levels)
        assert (found.holds, found.fails) == (holds, fails)
        assert (found.fit, found.why_no_fit) == (None, None)


def test_words_of_the_closed_loop() -> None:
    law, knee = curve.words(curve.curve(sweep(capped)), slo=False)
    assert law.startswith("throughput of N at once: N / (7 ms + 0.09 ms N) up to N = 32 (")
    assert law.endswith(") and no more from there on; every level within 0.1 %")
    assert knee.startswith("knee at N = 32 (")
    assert "on a doubling gains under 5 %: 3239 (" in knee
    assert curve.words(curve.curve(sweep(usl)), slo=False)[0].startswith(
        "throughput of N at once: N / (7 ms + 0.1 ms N + 0.004 ms N^2); every"
    )
    beyond = curve.words(curve.curve(sweep(asymptotic(300))), slo=False)[1]
    assert beyond == "no knee up to N = 64; not saturated up to N = 64 (95 % intervals)"
    below = curve.words(curve.curve(sweep(asymptotic(3), [16, 32, 64, 128, 256])), slo=False)[1]
    assert below.startswith("the knee lies below N = 16; from N = ")
    open_ended = curve.words(curve.curve(sweep(asymptotic(62))), slo=False)[1]
    assert open_ended.startswith("knee at N = 62 (")
    assert " to ?), the most throughput" in open_ended
    few = curve.words(curve.curve(sweep(capped, [1, 2])), slo=False, left_out=["4", "8"])
    assert few == ["no law of the throughput (without 4, 8): it takes 4 valid levels of different concurrency, not 2"]


@pytest.mark.parametrize(
    ("states", "slo", "words"),
    [
        ([KEPT, OVER], False, ["the server keeps the rate up to 1/s; it is over-saturated at 2/s"]),
        ([KEPT], False, ["the server keeps the rate up to 1/s"]),
        ([OVER], False, ["it is over-saturated at 1/s"]),
        ([PASS, FAIL], True, ["the SLO holds up to 1/s; it fails at 2/s"]),
        ([UNDECIDED], True, []),
    ],
)
def test_words_of_what_holds(states: list[dict[str, Any]], slo: bool, words: list[str]) -> None:
    levels = [level(i, load=float(i + 1), **state) for i, state in enumerate(states)]
    assert curve.words(curve.curve(levels), slo=slo, unit="/s") == words


def test_gain_of_a_doubling_is_of_whole_numbers_that_were_measured() -> None:
    fits = laws.Fits(law="capped", costs_s=np.array([[1.0, 0, 0]]), cap=np.array([4.0]), chi2=np.zeros(1))
    knee, saturated, most = (float(values[0]) for values in curve.bends(fits, 1, 16))
    assert (knee, saturated, most) == (4, 4, 4)
    knee, saturated, most = (float(values[0]) for values in curve.bends(fits, 3, 5))
    assert (knee, saturated, most) == (4, 5, 4)  # no doubling was measured
