from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import gates, ratios
from analysis.gates import Case, Gate
from analysis.ratios import Difference


def found(ratio: float, error: float = 0.01, free: float = 29) -> Difference:
    return Difference(at=math.log(ratio), below=error, above=error, free=free, blocks=1)


def verdict(text: str, *made: Difference | None) -> list[str]:
    gate = gates.parse(text)
    return [one.verdict for one in gates.judge([Case(gate, "b", str(n), one) for n, one in enumerate(made)])]


@pytest.mark.parametrize(
    ("text", "gate"),
    [
        ("ttft p99 +5%", Gate("ttft p99", 1.05)),
        (" TTFT  p99+5 % ", Gate("ttft p99", 1.05)),
        ("throughput -3%", Gate("throughput", 0.97)),
        ("goodput -2.5%", Gate("goodput", 0.975)),
        ("tpot +0%", Gate("tpot p50", 1.0)),
        ("e2e p50 +150%", Gate("e2e p50", 2.5)),
    ],
)
def test_parse(text: str, gate: Gate) -> None:
    assert gates.parse(text) == gate
    assert gates.parse(str(gate)) == gate


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ttft p99", "write one such as 'ttft p99 +5%'"),
        ("ttft p99 < 5ms", "is no gate"),
        ("ttft p99 5%", "is no gate"),
        ("ttft p95 +5%", "there is no 'ttft p95' to compare; known: throughput, goodput, ttft p50"),
        ("speed -5%", "there is no 'speed'"),
        ("throughput +3%", "a gate says how much worse is allowed, so write throughput -3%"),
        ("itl p99 -3%", "so write itl p99 +3%"),
        ("throughput -100%", "expected a percentage below 100"),
        ("itl p99 +9999%", "below 900"),
    ],
)
def test_what_is_no_gate_is_one_line(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        gates.parse(text)
    assert says in str(error.value)


@given(st.text(max_size=20))
def test_any_text_is_a_gate_or_a_complaint(text: str) -> None:
    try:
        gate = gates.parse(text)
    except ValueError:
        return
    assert gates.parse(str(gate)).metric == gate.metric


def test_of_a_latency_more_is_worse_of_a_throughput_less() -> None:
    rates = (1.2, 1.051, 1.0, 0.8)
    assert verdict("ttft p99 +5%", *map(found, rates)) == ["FAIL", "UNDECIDED", "PASS", "PASS"]
    assert verdict("throughput -5%", *map(found, rates)) == ["PASS", "PASS", "PASS", "FAIL"]
    assert verdict("throughput -5%", found(0.949)) == ["UNDECIDED"]


def test_only_an_interval_that_excludes_the_limit_fails() -> None:
    assert verdict("ttft p99 +5%", found(1.2, error=0.2)) == ["UNDECIDED"]
    assert verdict("ttft p99 +5%", None) == ["UNDECIDED"]


def test_an_end_that_is_not_known_decides_nothing_there() -> None:
    half = Difference(at=math.log(1.3), below=0.01, above=None, free=29, blocks=1)
    assert verdict("ttft p99 +5%", half) == ["FAIL"]
    half = Difference(at=math.log(0.9), below=0.01, above=None, free=29, blocks=1)
    assert verdict("ttft p99 +5%", half) == ["UNDECIDED"]


def test_several_gates_pay_for_a_failure_and_not_for_a_pass() -> None:
    worse = found(1.05 * math.exp(0.02))  # two standard errors: p is 0.027
    assert verdict("ttft p99 +5%", worse) == ["FAIL"]
    assert verdict("ttft p99 +5%", worse, found(1.05)) == ["UNDECIDED", "UNDECIDED"]
    better = found(1.05 * math.exp(-0.02))
    assert verdict("ttft p99 +5%", better, better, better) == ["PASS"] * 3


@given(st.floats(0.5, 2), st.floats(0.001, 0.2), st.floats(1, 60))
def test_a_verdict_is_that_of_its_bounds(ratio: float, error: float, free: float) -> None:
    one = gates.judge([Case(Gate("itl p50", 1.05), "b", "8", found(ratio, error, free))])[0]
    low, high = one.ci90
    assert low is not None
    assert high is not None
    assert low <= (one.ratio or 0) <= high
    assert one.verdict == ("FAIL" if low > 1.05 else "PASS" if high <= 1.05 else "UNDECIDED")
    assert one.p == ratios.p_above(found(ratio, error, free), 1.05)
