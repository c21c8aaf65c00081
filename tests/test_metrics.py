"""The B numbers are those of the collected cases of public bug reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import metrics, records
from tests import fakes_run as fakes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.records import Requests


def ms(*values: int) -> list[int]:
    return [value * 1000 for value in values]


def tpot(requests: Requests) -> list[float]:
    return list(metrics.tpot_ms(requests, metrics.event_tokens(requests)))


def itl(requests: Requests) -> list[float]:
    return list(metrics.itl_ms(requests, requests.ok))


def test_latencies_count_from_due() -> None:
    requests = fakes.requests(fakes.row(0, 5_000, ms(200, 220, 250), due_us=2_000, answer_event=1))
    assert metrics.ttft_ms(requests).tolist() == [203]
    assert metrics.ttft_sent_ms(requests).tolist() == [200]
    assert metrics.ttfat_ms(requests).tolist() == [223]
    assert metrics.e2e_ms(requests).tolist() == [253]
    assert metrics.e2e_sent_ms(requests).tolist() == [250]
    assert metrics.send_lag_ms(requests).tolist() == [3]
    assert itl(requests) == [20, 30]
    assert tpot(requests) == [25]


def test_connecting_is_no_send_lag() -> None:
    rows = [fakes.row(i, 50_000, due_us=2_000, connect_us=connect_us) for i, connect_us in enumerate((2_500, None))]
    assert metrics.send_lag_ms(fakes.requests(*rows)).tolist() == [0.5, 48]


def test_b17_reasoning_is_output_and_answer_has_its_own_time() -> None:
    requests = fakes.requests(
        fakes.row(0, events_us=ms(100, 120, 140), answer_event=2, reasoning_tokens=2),
        fakes.row(1, events_us=ms(100, 120), answer_event=None, reasoning_tokens=2),
    )
    assert metrics.ttft_ms(requests).tolist() == [100, 100]
    assert metrics.ttfat_ms(requests)[0] == 140
    assert np.isnan(metrics.ttfat_ms(requests)[1])
    assert itl(requests) == [20, 20, 20]
    assert metrics.visible_tokens(requests).tolist() == [3, 2]


@pytest.mark.parametrize("shares", [None, [1, 1], [399, 1]])
def test_b19_hidden_reasoning_is_in_no_rate(shares: Sequence[int] | None) -> None:
    hidden: dict[str, Any] = {"output_tokens": 400, "reasoning_tokens": 398, "events_tokens": shares}
    requests = fakes.requests(fakes.row(0, events_us=ms(5000, 5010), **hidden))
    assert metrics.visible_tokens(requests).tolist() == [2]
    assert metrics.event_tokens(requests).tolist() == [1, 1]
    assert tpot(requests) == [10]


def test_reasoning_beside_the_output_count_hides_nothing() -> None:
    requests = fakes.requests(fakes.row(0, events_us=ms(10, 20), output_tokens=2, reasoning_tokens=50))
    assert metrics.visible_tokens(requests).tolist() == [2]


def test_b20_reasoning_is_a_part_of_the_output() -> None:
    requests = fakes.requests(fakes.row(0, events_us=ms(*range(100)), answer_event=60, reasoning_tokens=60))
    assert metrics.visible_tokens(requests).tolist() == [100]


def test_b21_events_of_several_tokens() -> None:
    stream: dict[str, Any] = {"events_us": ms(100, 130, 140), "output_tokens": 7}
    requests = fakes.requests(fakes.row(0, **stream, events_tokens=[3, 3, 1]), fakes.row(1, **stream))
    assert itl(requests) == [30, 10, 30, 10]
    assert tpot(requests) == pytest.approx([40 / (7 - 3), 40 / (7 - 7 / 3)])
    assert metrics.per_event(requests, requests.ok) == pytest.approx(7 / 3)


def test_b33_e2e_ends_at_the_last_output_event() -> None:
    requests = fakes.requests(fakes.row(0, events_us=ms(100), end_us=600_000))
    assert metrics.e2e_ms(requests).tolist() == [100]
    assert np.isnan(tpot(requests)).all()


def test_b04_equal_stamps_are_gaps_of_zero() -> None:
    assert itl(fakes.requests(fakes.row(0, events_us=ms(5, 5, 5)))) == [0, 0]


def test_gaps_stay_within_requests_and_leave_out_what_is_not_chosen() -> None:
    rows = [
        fakes.failed(0),
        fakes.row(1, events_us=ms(1, 3)),
        fakes.failed(2),
        fakes.row(3, events_us=ms(10, 14), status="failed"),
        fakes.row(4, events_us=ms(100)),
        fakes.row(5, events_us=ms(7, 8)),
        fakes.failed(6),
    ]
    requests = fakes.requests(*rows)
    assert itl(requests) == [2, 1]
    assert metrics.itl_ms(requests, requests.failed).tolist() == [4]
    assert np.isnan(metrics.ttft_ms(requests)).tolist() == [True, False, True, False, False, False, True]
    assert itl(fakes.requests(fakes.failed(0))) == []
    assert itl(records.NO_REQUESTS) == []


def test_a_cut_request_without_usage_has_the_tokens_an_event_of_the_others() -> None:
    cut: dict[str, Any] = {"status": "cancelled", "tokens_from": "events"}
    requests = fakes.requests(
        fakes.row(0, events_us=ms(1, 2), output_tokens=8),
        fakes.row(1, events_us=ms(1, 2, 3), output_tokens=3, **cut),
        fakes.row(2, events_us=ms(1, 2), output_tokens=None, **cut),
    )
    assert metrics.event_tokens(requests).tolist() == [4] * 7
    alone = fakes.requests(fakes.row(0, events_us=ms(1, 2), output_tokens=2, **cut))
    assert metrics.event_tokens(alone).tolist() == [1, 1]


def test_who_left_after_the_first_token_has_answered() -> None:
    requests = fakes.requests(
        fakes.row(0),
        fakes.row(1, status="cancelled", left=True),
        fakes.row(2, events_us=(), status="cancelled", left=True),
        fakes.row(3, status="cancelled"),
        fakes.row(4, status="cancelled", left=True, phase="warmup"),
        fakes.failed(5),
    )
    assert metrics.answered(requests).tolist() == [True, True, False, False, False, False]


def test_shares() -> None:
    requests = fakes.requests(
        fakes.row(0, prompt_tokens=100, cached_tokens=50, bounds=1),
        fakes.row(1, prompt_tokens=300, cached_tokens=None, bounds=0),
        fakes.failed(2),
    )
    assert metrics.share_of_prompts(requests, requests.cached_tokens, requests.ok) == 0.5
    assert metrics.bound_share(requests, requests.measured) == 0.25
    assert metrics.share_of_prompts(requests, requests.cached_tokens, requests.failed) is None
    assert metrics.per_event(requests, requests.failed) is None
    assert metrics.known_mean(requests.prompt_tokens) == 200
    assert metrics.known_mean(requests.prompt_tokens[2:]) is None


streams = st.lists(st.integers(0, 10**7), min_size=1, max_size=30).map(sorted)


@fakes.few_examples
@given(st.lists(st.tuples(streams, st.integers(0, 10**6)), min_size=1, max_size=8))
def test_itl_and_ttft_sum_to_e2e(rows: list[tuple[list[int], int]]) -> None:
    requests = fakes.requests(*(fakes.row(i, 50 + lag, stream, due_us=50) for i, (stream, lag) in enumerate(rows)))
    sums = [metrics.itl_ms(requests, requests.index == i).sum() for i in range(len(rows))]
    np.testing.assert_allclose(np.array(sums) + metrics.ttft_ms(requests), metrics.e2e_ms(requests))


@fakes.few_examples
@given(st.lists(st.tuples(streams, st.integers(0, 500)), min_size=1, max_size=8))
def test_event_tokens_sum_to_the_visible_tokens(rows: list[tuple[list[int], int]]) -> None:
    requests = fakes.requests(
        *(fakes.row(i, 0, stream, output_tokens=tokens) for i, (stream, tokens) in enumerate(rows))
    )
    sums = metrics.tokens_per_request(requests, metrics.event_tokens(requests))
    np.testing.assert_allclose(sums, [tokens for _, tokens in rows])


def played_back(arrivals_ms: Sequence[float], each_ms: float) -> float:
    """The reader as a loop: each token is read for `each_ms` as soon as it is there and those before are read."""
    ready, stalled = arrivals_ms[0], 0.0
    for arrival in arrivals_ms:
        stalled += max(0.0, arrival - ready)
        ready = max(ready, arrival) + each_ms
    return stalled


@pytest.mark.parametrize(
    ("events", "stall"),
    [
        (ms(900), 0),
        (ms(900, 950, 1000), 0),
        (ms(0, 100, 200), 0),
        (ms(0, 150, 250), 50),
        (ms(0, 150, 400), 200),
        (ms(0, 10, 20, 1000), 700),  # three tokens are read by 300
    ],
)
def test_stall(events: list[int], stall: float) -> None:
    requests = fakes.requests(fakes.row(0, events_us=events))
    assert metrics.stall_ms(requests, metrics.event_tokens(requests)).tolist() == [stall]


@fakes.few_examples
@given(st.lists(st.lists(st.integers(0, 3_000_000), max_size=8).map(sorted), max_size=5), st.sampled_from([2, 10, 40]))
def test_stall_is_what_a_reader_waits(streams: list[list[int]], speed: int) -> None:
    requests = fakes.requests(*(fakes.row(i, i, events) for i, events in enumerate(streams)))
    found = metrics.stall_ms(requests, metrics.event_tokens(requests), speed)
    assert len(found) == len(streams)
    for events, stall in zip(streams, found, strict=True):
        if events:
            assert stall == pytest.approx(played_back([time / 1e3 for time in events], 1e3 / speed), abs=1e-6)
        else:
            assert np.isnan(stall)


def test_a_stall_counts_the_tokens_of_an_event() -> None:
    requests = fakes.requests(fakes.row(0, events_us=ms(0, 1000, 2000), events_tokens=[10, 5, 1], output_tokens=16))
    assert metrics.stall_ms(requests, metrics.event_tokens(requests)).tolist() == [500]
