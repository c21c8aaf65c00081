from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis import blocks, decision, slo

P99 = slo.parse("ttft p99 < 300ms")


def counted(n: int, exceed: int, effect: float = 0.0, unknown: int = 0) -> decision.Sample:
    known = np.full(n - unknown, 100.0)
    known[:exceed] = 400.0
    return decision.Sample(n=n, exceed=exceed, unknown=unknown, effects=(effect, effect), values=known)


@pytest.mark.parametrize(
    ("samples", "verdict", "n", "n_eff", "exceed"),
    [
        ([(200, 0), (98, 0)], "UNDECIDED", 298, 298, 0),
        ([(200, 0), (99, 0)], "PASS", 299, 299, 0),
        ([(310, 0, 2.0), (310, 0, 2.0)], "PASS", 620, 300, 0),
        ([(320, 0, 1.0), (960, 0, 5.0)], "PASS", 1280, 302, 0),
        ([(1000, 10), (1000, 12), (1000, 8)], "UNDECIDED", 3000, 3000, 0.01),
        ([(1000, 14), (1000, 16), (1000, 18)], "FAIL", 3000, 3000, 0.016),
        ([(500, 4), (500, 12)], "UNDECIDED", 1000, 246, 0.016),  # alike they would be FAIL: 16 of 1000 is
        ([(0, 0), (299, 0)], "PASS", 299, 299, 0),
    ],
)
def test_levels_are_pooled(samples: list[tuple[int, int]], verdict: str, n: int, n_eff: int, exceed: float) -> None:
    found = decision.decide(P99, [counted(*one) for one in samples])
    assert (found.verdict, found.n, found.n_eff, found.exceed) == (verdict, n, n_eff, exceed)
    assert found.exceed_ci[0] is not None
    assert found.exceed_ci[1] is not None
    assert found.exceed_ci[0] <= exceed <= found.exceed_ci[1]


def test_nothing_but_levels_without_a_value_decides_nothing() -> None:
    for samples in ([], [decision.Sample()], [counted(9, 0, unknown=9), counted(5, 0, unknown=5)]):
        assert decision.decide(P99, samples) == decision.Verdict(term=str(P99), verdict="UNDECIDED")


def test_the_quantile_is_that_of_all_values() -> None:
    samples = [decision.Sample(n=50, values=np.arange(50.0)), decision.Sample(n=51, values=np.arange(50.0, 101))]
    found = decision.decide(slo.parse("ttft p90 < 1s"), samples)
    assert found.observed_ms == 90
    samples[0] = msgspec.structs.replace(samples[0], n=70, exceed=20, beyond=20)
    assert decision.decide(slo.parse("ttft p90 < 1s"), samples).observed_ms is None


some_samples = st.lists(
    st.integers(1, 3000).flatmap(
        lambda n: st.builds(counted, st.just(n), st.integers(0, n // 5), st.floats(1, 1 + n / 20))
    ),
    min_size=1,
    max_size=5,
)


@given(some_samples, st.randoms(use_true_random=False))
def test_the_order_of_levels_does_not_matter(samples: list[decision.Sample], random: Any) -> None:
    shuffled = random.sample(samples, len(samples))
    found, again = decision.decide(P99, samples), decision.decide(P99, shuffled)
    assert again.exceed_ci == pytest.approx(found.exceed_ci)
    assert (again.exceed, again.observed_ms) == (found.exceed, found.observed_ms)


@given(some_samples, st.integers(1, 3))
def test_more_of_the_same_only_makes_sure(samples: list[decision.Sample], more: int) -> None:
    """Each level again: what they say together stays, and is known better."""
    few, many = decision.decide(P99, samples), decision.decide(P99, samples * (1 + more))
    if few.n_eff == few.n or many.n_eff == 0 or few.n_eff is None or many.n_eff is None:
        return
    if many.n_eff >= few.n_eff and few.verdict != "UNDECIDED":  # else they are called different only now
        assert many.verdict == few.verdict


@given(st.integers(1, 3000), st.floats(0, 0.05), st.floats(1, 9), st.integers(1, 4))
def test_levels_of_one_share_never_turn(n: int, share: float, effect: float, more: int) -> None:
    one = counted(n, round(share * n), min(effect, n))
    few, many = decision.decide(P99, [one]), decision.decide(P99, [one] * (1 + more))
    assert few.verdict in ("UNDECIDED", many.verdict)
    assert many.exceed == few.exceed


def test_rates_are_pooled_by_length() -> None:
    term, random = slo.parse("throughput > 100"), np.random.default_rng(3)
    rates = random.normal(105, 5, (2, blocks.LONG))
    alike = decision.decide(term, [decision.Sample(rates=one, length_s=30) for one in rates])
    mean, error = rates.mean(), np.sqrt(rates.var(axis=1, ddof=1).sum() / blocks.LONG) / 2
    one, two = rates.var(axis=1, ddof=1)
    free = (one + two) ** 2 / (one**2 + two**2) * (blocks.LONG - 1)
    assert alike.observed_per_s == pytest.approx(mean)
    assert alike.per_s_ci[0] == pytest.approx(mean - stats.t.ppf(0.95, free) * error)
    unlike = decision.decide(
        term, [decision.Sample(rates=one, length_s=length) for one, length in zip(rates, (90, 30), strict=True)]
    )
    assert unlike.observed_per_s == pytest.approx(rates.mean(axis=1) @ [0.75, 0.25])
    alone = decision.decide(term, [decision.Sample(rates=rates[0], length_s=30), decision.Sample()])
    assert alone.per_s_ci == pytest.approx(blocks.mean_interval(rates[0], 0.1))


def test_rates_that_differ_between_levels_are_known_less() -> None:
    term, rates = slo.parse("throughput > 100"), np.random.default_rng(3).normal(110, 2, (3, blocks.LONG))
    shifted = rates + np.array([[-9], [0], [9]])
    alike, apart = (
        decision.decide(term, [decision.Sample(rates=one, length_s=30) for one in some]) for some in (rates, shifted)
    )
    assert (alike.verdict, apart.verdict) == ("PASS", "UNDECIDED")
    assert decision.decide(term, [decision.Sample(rates=np.full(10, 120.0), length_s=9)] * 2).verdict == "PASS"


@pytest.mark.parametrize(
    ("term", "alpha", "count"),
    [
        ("ttft p99 < 1s", 0.05, 299),
        ("ttft p99 < 1s", 0.01, 459),
        ("e2e p90 < 1s", 0.05, 29),
        ("error_rate < 0.1%", 0.05, 2995),
        ("throughput > 5", 0.05, None),
    ],
)
def test_the_fewest_that_pass(term: str, alpha: float, count: int | None) -> None:
    parsed = slo.parse(term)
    assert decision.fewest(parsed, alpha=alpha) == count
    for n in () if count is None else (count - 1, count):
        passes = decision.decide(parsed, [counted(n, 0)], alpha=alpha).verdict == "PASS"
        assert passes == (n == count)


@pytest.mark.parametrize(
    ("sample", "count"),
    [
        (counted(100, 0), 299),
        (counted(100, 0, 4.0), 299 * 4 * blocks.unsure(0.05)),
        (counted(400, 2), 1149),  # a half of what is allowed
        (counted(1000, 15), 1358),
        (counted(1000, 10), None),
        (counted(1000, 0, unknown=20), None),
    ],
)
def test_what_would_decide(sample: decision.Sample, count: int | None) -> None:
    found = decision.needed(decision.decide(P99, [sample]))
    assert found == (count if count is None else pytest.approx(count, rel=0.03))


@given(st.integers(50, 3000), st.floats(0, 0.05), st.floats(1, 9), st.sampled_from([1, 3]))
def test_that_much_does_decide(n: int, share: float, effect: float, looks: int) -> None:
    rule: dict[str, Any] = {"alpha": decision.ALPHA / looks, "of": looks}
    found = decision.decide(P99, [counted(n, round(share * n), effect)], **rule)
    times = decision.growth(found, **rule)
    if times is None:
        assert found.verdict == "UNDECIDED"
        return

    def grown(times: float) -> str:
        n_eff = (found.n_eff or 0) * times
        many = 100_000
        effect = many / n_eff / blocks.unsure(decision.ALPHA / looks**2)
        return decision.decide(P99, [counted(many, round((found.exceed or 0) * many), effect)], **rule).verdict

    if n * times / effect < 50_000:
        assert grown(1.1 * times) != "UNDECIDED"
    if times > 1.1:
        assert grown(times / 1.1) == "UNDECIDED"


def test_how_much_longer_a_throughput_takes() -> None:
    rates = np.random.default_rng(3).normal(105, 5, blocks.LONG)
    close = decision.decide(slo.parse("throughput > 103.2"), [decision.Sample(rates=rates, length_s=30)])
    assert close.verdict == "UNDECIDED"
    times = decision.growth(close)
    assert times is not None
    enough = [decision.Sample(rates=rates, length_s=30)] * int(np.ceil(times))
    assert decision.decide(slo.parse("throughput > 103.2"), enough).verdict == "PASS"
    assert decision.needed(close) is None
    at = decision.decide(slo.parse(f"throughput > {rates.mean():.6f}"), enough)
    assert decision.growth(at) is None
    assert decision.growth(decision.Verdict(term="ttft p99 < 1s", verdict="UNDECIDED")) is None
