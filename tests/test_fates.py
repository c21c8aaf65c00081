from __future__ import annotations

import pytest

from analysis import fates, metrics, slo, window
from tests import fakes_run as fakes

MINUTE = window.Window(start_us=0, end_us=60e6)


def of(term: str, **changes: object) -> fates.Fate:
    requests = fakes.requests(fakes.row(0, 0, [100_000, 120_000, 180_000]) | changes)
    return fates.fate(slo.parse(term), requests, metrics.event_tokens(requests))


@pytest.mark.parametrize(
    ("term", "value"),
    [("ttft", 100), ("ttft_sent", 100), ("ttfat", 100), ("tpot", 40), ("e2e", 180), ("stall", 0)],
)
def test_a_value_is_set_against_the_limit(term: str, value: int) -> None:
    kept, missed = of(f"{term} p99 < {max(value, 1)}ms"), of(f"{term} p99 < {max(value - 1, 1)}ms")
    assert kept.values[0] == pytest.approx(value)
    assert (kept.exceeds[0], missed.exceeds[0]) == (False, value > 0)
    assert (kept.unknown[0], kept.counted[0]) == (False, True)


@pytest.mark.parametrize("term", [*(f"{name} p99 < 9s" for name in slo.LATENCIES), "error_rate < 1%", "throughput > 1"])
def test_a_failure_exceeds_every_limit(term: str) -> None:
    assert of(term, status="failed").exceeds[0]


def test_a_wait_that_was_cut_short_is_unknown_and_one_too_long_is_not() -> None:
    gone: dict[str, object] = {"status": "cancelled", "events_us": [], "answer_event": None, "end_us": 500_000}
    early, late, nothing = of("ttft p99 < 600ms", **gone), of("ttft p99 < 400ms", **gone), of("tpot p99 < 1ms", **gone)
    assert (early.exceeds[0], early.unknown[0]) == (False, True)
    assert (late.exceeds[0], late.unknown[0]) == (True, False)
    assert not nothing.counted[0]


def test_a_request_is_judged_by_its_own_gaps() -> None:
    assert of("itl p75 < 30ms").exceeds[0]  # one of two is longer
    assert not of("itl p50 < 30ms").exceeds[0]


def test_gaps_and_those_that_are_owed() -> None:
    rows = [fakes.row(0, 0, [10_000, 20_000, 50_000]), fakes.row(1, 0, [10_000, 20_000])]
    rows[1] |= {"status": "failed", "end_us": 30_000}
    requests = fakes.requests(*rows)
    found, times_us = fates.gaps(slo.parse("itl p99 < 20ms"), requests, requests.measured, MINUTE)
    assert found.exceeds.tolist() == [False, True, False, True]
    assert times_us.tolist() == [20_000, 50_000, 20_000, 30_000]
    early = window.Window(start_us=0, end_us=40_000)
    assert len(fates.gaps(slo.parse("itl p99 < 20ms"), requests, requests.measured, early)[1]) == 3
