from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import metrics, steady, window
from tests import fakes_run as fakes

if TYPE_CHECKING:
    from analysis.records import Floats


def settle(rows: list[dict[str, Any]], *, open_loop: bool = False) -> steady.Settled:
    requests = fakes.requests(*rows)
    found = window.find(requests, open_loop=open_loop)
    assert found is not None
    return steady.settle(requests, metrics.event_tokens(requests), found, open_loop=open_loop)


def cold(seconds: int = 60, slow_s: int = 10, **changes: Any) -> list[dict[str, Any]]:
    """Ten requests a second; those of the first `slow_s` take 2 s and not 280 ms."""
    slow = fakes.open_loop(10, slow_s, took_us=2_000_000, **changes)
    rest = fakes.open_loop(10, seconds)[10 * slow_s :]
    return slow + rest


def test_a_transient_becomes_warm_up() -> None:
    settled = settle(cold(), open_loop=True)
    assert settled.cut_s == pytest.approx(15, abs=3)  # until the slow ones have gone, too
    assert settled.trend is None
    assert settled.window.end_us == 59_900_000
    assert settled.window.start_us == pytest.approx(16_000_000, abs=3_000_000)
    assert settled.cut_requests == int(settled.cut_s * 10)
    assert settled.requests.measured.sum() == 590 - settled.cut_requests
    assert metrics.e2e_ms(settled.requests)[settled.requests.measured].max() == 280


@pytest.mark.parametrize("seconds", [5, 18, 60])
def test_what_is_steady_is_left_alone(seconds: int) -> None:
    rows = fakes.open_loop(10, seconds)
    settled = settle(rows, open_loop=True)
    assert (settled.cut_s, settled.cut_requests, settled.trend) == (0, 0, None)
    assert settled.requests.measured.sum() == len(rows) - 10
    assert settle(fakes.closed_loop(4, each=100)).cut_requests == 0


def test_a_server_that_fails_at_first_does_not_warm_up() -> None:
    rows = cold()
    rows[50] |= fakes.failed(50, 5_000_000)
    assert settle(rows, open_loop=True).cut_requests == 0


def test_a_trend_is_no_transient() -> None:
    settled = settle(fakes.open_loop(10, 60, grows_us=3000), open_loop=True)
    assert settled.cut_requests == 0
    assert settled.trend is not None
    assert settled.trend.name == "in flight"
    assert settled.trend.first == pytest.approx(2.8, rel=0.1)
    assert settled.trend.last == pytest.approx(2.8 + 0.003 * 600 * 10, rel=0.1)


def test_series_of_a_closed_loop() -> None:
    requests = fakes.requests(*fakes.closed_loop(5, each=100, ttft_us=100_000, itl_us=20_000, events=6))
    found = window.find(requests)
    assert found is not None
    every = steady.series(requests, metrics.event_tokens(requests), found)
    assert every["in flight"] == pytest.approx(5)
    assert every["tokens/s"] == pytest.approx(150, rel=0.05)
    assert every["TTFT"] == pytest.approx(100)
    assert {len(values) for values in every.values()} == {int(found.length_s)}


def test_a_second_without_a_request_has_no_ttft() -> None:
    requests = fakes.requests(fakes.row(0, 0), fakes.row(1, 100_000), fakes.row(2, 3_000_000))
    found = window.Window(start_us=0, end_us=3_000_000)
    every = steady.series(requests, metrics.event_tokens(requests), found)
    assert np.isnan(every["TTFT"]).tolist() == [False, True, False]
    assert every["in flight"].tolist() == pytest.approx([0.24, 0, 0])


def transient(random: np.random.Generator, seconds: int, length: int, size: float) -> Floats:
    """Noise of 1 around 20, below it by `size` at first, which dies out over `length`."""
    noise: Floats = 20 + random.standard_normal(seconds)
    noise[:length] -= size * (1 - np.arange(length) / length)
    return noise


def test_mser_cuts_a_known_transient_and_nothing_else() -> None:
    """Of noise, plain MSER-5 would cut a part in half of the levels; of a transient it must leave little."""
    random = np.random.default_rng(5)
    for seconds in (28, 60, 300):
        cuts = [steady.mser5(transient(random, seconds, 0, 0)) for _ in range(200)]
        assert np.mean(np.array(cuts) > 0) < 0.06
        cuts = [steady.mser5(transient(random, seconds, 10, 12)) for _ in range(200)]
        assert np.mean([5 <= cut <= seconds // 2 for cut in cuts]) > 0.75


def test_a_hiccup_is_no_transient() -> None:
    """Nor does a transient before it take it along."""
    random = np.random.default_rng(10)
    for at in (10, 15, 20):
        hiccup = transient(random, 60, 0, 0)
        hiccup[at : at + 4] = 0
        assert steady.mser5(hiccup) == 0
        hiccup[:5] -= 15
        assert 5 <= steady.mser5(hiccup) <= 15


@pytest.mark.parametrize("values", [[], [1.0] * 19, [9.0] * 5 + [1.0] * 14, [np.nan] * 5 + [1.0] * 20, [0.0] * 40])
def test_too_little_to_cut(values: list[float]) -> None:
    assert steady.mser5(np.array(values)) == 0


@given(st.lists(st.floats(0, 1e6), max_size=150), st.floats(0.1, 1e3))
def test_a_cut_is_whole_batches_of_the_first_half_in_any_unit(numbers: list[float], unit: float) -> None:
    values = np.array(numbers)
    cut = steady.mser5(values)
    assert cut % steady.BATCH == 0
    assert cut <= len(values) / 2
    assert steady.mser5(values * 2) == cut
    trend = steady.trend({"x": values})
    assert trend is None or trend.first != trend.last


def test_a_trend_is_seldom_seen_in_noise_and_always_in_growth() -> None:
    random = np.random.default_rng(6)
    noise = [steady.trend({"x": 20 + 5 * random.standard_normal(60)}) for _ in range(300)]
    assert np.mean([one is not None for one in noise]) < 0.03
    growth = [steady.trend({"x": np.linspace(15, 25, 60) + 2 * random.standard_normal(60)}) for _ in range(50)]
    assert all(one is not None and one.first < 18 < 22 < one.last for one in growth)
    assert steady.trend({"x": np.linspace(20, 21, 600)}) is None  # 5 %: nobody minds
    assert steady.trend({"x": np.linspace(1, 9, 12)}) is None  # too short to say
