from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import blocks, metrics, window
from analysis.window import Flow, Window
from tests import fakes_run as fakes

if TYPE_CHECKING:
    import random


def flow_of(rows: list[dict[str, Any]]) -> tuple[Window | None, Flow | None, float | None]:
    requests = fakes.requests(*rows)
    tokens = metrics.event_tokens(requests)
    found = window.find(requests)
    whole = window.whole_run_tokens_per_s(requests, tokens)
    return found, None if found is None else window.flow(requests, tokens, found), whole


@pytest.mark.parametrize("slots", [1, 2, 7, 10])
def test_a_steady_closed_loop_has_its_exact_rates(slots: int) -> None:
    _, flow, whole = flow_of(fakes.closed_loop(slots, each=20, ttft_us=100_000, itl_us=20_000, events=10))
    assert flow is not None
    assert flow.concurrency == pytest.approx(slots)
    assert flow.output_tokens_per_s == pytest.approx(slots * 10 / 0.28, rel=0.01)
    assert flow.requests_per_s == pytest.approx(slots / 0.28, rel=0.01)
    assert flow.starts_per_s == pytest.approx(slots / 0.28, rel=0.01)
    assert flow.total_tokens_per_s == pytest.approx(slots * 522 / 0.28, rel=0.01)
    assert flow.residence_s == pytest.approx(0.28)
    assert whole is not None
    assert whole <= flow.output_tokens_per_s


def test_window_lies_between_measured_starts() -> None:
    rows = [fakes.row(0, 0, phase="warmup"), fakes.row(1, 10), fakes.row(2, 70), fakes.row(3, 90, phase="warmup")]
    found, *_ = flow_of(rows)
    assert found == Window(start_us=10, end_us=70)


def test_in_the_open_loop_later_turns_move_no_end_of_the_window() -> None:
    rows = [fakes.row(0, 10), fakes.row(1, 70), fakes.row(2, 900, turn=1, session=1)]
    requests = fakes.requests(*rows)
    assert window.find(requests, open_loop=True) == Window(start_us=10, end_us=70)
    assert window.find(requests) == Window(start_us=10, end_us=900)


def test_an_open_loop_without_ramp_has_its_exact_rates() -> None:
    requests = fakes.requests(*fakes.open_loop(per_s=10, seconds=60, took_us=280_000))
    steady = window.find(requests, open_loop=True)
    assert steady == Window(start_us=1_000_000, end_us=59_900_000)
    flow = window.flow(requests, metrics.event_tokens(requests), steady)
    assert flow.starts_per_s == pytest.approx(10)
    assert flow.requests_per_s == pytest.approx(10)
    assert flow.concurrency == pytest.approx(2.8)
    assert flow.output_tokens_per_s == pytest.approx(100, rel=0.01)
    assert (flow.late_starts, flow.late_ended, flow.thinking) == (295, 295, 0)


def test_thinking_users_are_counted_by_the_turns_that_start() -> None:
    _, flow, _ = flow_of(fakes.conversations(slots=4, each=20, turns=5, think_us=720_000))
    assert flow is not None
    cycle_s = 5 * 0.28 + 4 * 0.72
    assert flow.concurrency == pytest.approx(4 * 5 * 0.28 / cycle_s, rel=0.01)
    assert flow.thinking == pytest.approx(4 * 4 * 0.72 / cycle_s, rel=0.01)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [fakes.row(0, 5)],
        [fakes.row(0, 5), fakes.row(1, 5)],
        [fakes.row(0, 5, phase="warmup"), fakes.row(1, 9)],
        [fakes.failed(0, None), fakes.row(1, 5)],
    ],
)
def test_b35_no_window_where_there_are_not_two_starts(rows: list[dict[str, Any]]) -> None:
    assert flow_of(rows)[0] is None


def test_all_that_arrives_in_the_window_counts_and_failures_do_not() -> None:
    s = 1_000_000
    rows = [
        fakes.row(0, 0, (s // 2, s + 1, 2 * s), phase="warmup"),  # two in the window
        fakes.row(1, s, (s, 2 * s, 3 * s)),  # two
        fakes.row(2, s + 1, (s // 2,), status="failed", error={"kind": "truncated", "message": ""}),
        fakes.row(3, s + 2, (s // 2,), status="cancelled"),  # one
        fakes.row(4, 3 * s, (s,)),  # after it
        fakes.failed(5, None),
    ]
    found, flow, whole = flow_of(rows)
    assert found == Window(start_us=s, end_us=3 * s)
    assert flow is not None
    assert flow.output_tokens_per_s == 5 / 2
    assert flow.requests_per_s == 1 / 2  # the warm-up request ends in the window, the first measured one after it
    assert whole == 8 / 4


def test_whole_run_has_ramp_and_drain_in_it() -> None:
    """B35: eight slots, sixteen requests of a second, one straggler of ten."""
    rows = [fakes.row(i, 0, range(10_000, 1_000_001, 10_000), phase="warmup") for i in range(8)]
    rows += [fakes.row(8 + i, 1_000_000 + i, range(10_000, 1_000_001, 10_000)) for i in range(7)]
    rows += [fakes.row(15, 1_000_000, range(100_000, 10_000_001, 100_000))]
    _, _, whole = flow_of(rows)
    assert whole == pytest.approx(1600 / 11)


def test_nothing_sent_is_no_rate() -> None:
    assert flow_of([fakes.failed(0, None)]) == (None, None, None)


def test_prompt_tokens_unknown_is_no_total() -> None:
    _, flow, _ = flow_of([fakes.row(0, 0, prompt_tokens=None), fakes.row(1, 200_000, prompt_tokens=None)])
    assert flow is not None
    assert flow.total_tokens_per_s is None


rows_of_a_level = st.lists(
    st.tuples(
        st.integers(0, 5_000_000),
        st.lists(st.integers(0, 5_000_000), max_size=12).map(sorted),
        st.sampled_from(["ok", "cancelled", "failed"]),
        st.sampled_from(["warmup", "measure"]),
        st.integers(0, 60),
    ),
    max_size=12,
)


@fakes.few_examples
@given(rows_of_a_level, st.randoms(use_true_random=False))
def test_peak_is_never_under_the_mean_and_order_changes_nothing(rows: list[Any], shuffler: random.Random) -> None:
    made = [
        fakes.row(i, sent, events, status=status, phase=phase, output_tokens=tokens, end_us=max(events, default=3))
        for i, (sent, events, status, phase, tokens) in enumerate(rows)
    ]
    found, flow, whole = flow_of(made)
    shuffled = made.copy()
    shuffler.shuffle(shuffled)
    assert flow_of(shuffled) == (found, flow, whole)
    if flow is not None:
        assert flow.peak_tokens_per_s >= flow.output_tokens_per_s * (1 - 1e-9)
        assert 0 <= flow.concurrency <= len(rows)


def test_rates_of_blocks_are_of_what_arrived_in_them() -> None:
    requests = fakes.requests(*fakes.closed_loop(4, each=20), fakes.failed(900, 1_000_000))
    tokens = metrics.event_tokens(requests)
    found = window.find(requests)
    assert found is not None
    rates = window.block_rates(requests, tokens, found)
    assert len(rates) == blocks.LONG
    assert rates.mean() == pytest.approx(window.flow(requests, tokens, found).output_tokens_per_s)
    assert rates.min() > 0
