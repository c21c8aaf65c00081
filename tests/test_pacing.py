"""When requests start: tables of numbers."""

import itertools
from array import array
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.course import Until
from loadgen.pacing import Timetable, stagger_s, timetable, warmup_us


@pytest.mark.parametrize(
    ("slots", "request_s", "offsets_s"),
    [(1, 8.0, [0]), (2, 8.0, [0, 4]), (4, 8.0, [0, 2, 4, 6]), (3, 0.0, [0, 0, 0])],
)
def test_starts_are_spread_over_one_request(slots: int, request_s: float, offsets_s: list[float]) -> None:
    assert stagger_s(slots, request_s) == offsets_s


@pytest.mark.parametrize(
    ("request_s", "until", "rate_per_s", "warm_up_us"),
    [
        (3.0, Until(duration_s=30), 10, 3_000_000),
        (30.0, Until(duration_s=30), 10, 7_500_000),  # a quarter at most
        (30.0, Until(requests=40), 2, 5_000_000),
        (30.0, Until(requests=40, duration_s=10), 2, 2_500_000),
        (0.0, Until(duration_s=30), 10, 0),
    ],
)
def test_a_level_warms_up_for_one_request(request_s: float, until: Until, rate_per_s: float, warm_up_us: int) -> None:
    assert warmup_us(request_s, until, rate_per_s) == warm_up_us


@pytest.mark.parametrize(
    ("offsets_us", "until", "warm_up_us", "due_us", "end_us", "ended_by"),
    [
        (itertools.count(0, 500_000), Until(duration_s=1), 0, [0, 500_000], 1_000_000, "duration"),
        (itertools.count(0, 500_000), Until(duration_s=1), 500_000, [0, 500_000, 10**6], 1_500_000, "duration"),
        (itertools.count(0, 500_000), Until(requests=2), 500_000, [0, 500_000, 10**6], None, "requests"),
        (itertools.count(0, 500_000), Until(requests=2, duration_s=9), 0, [0, 500_000], 9_000_000, "requests"),
        (itertools.count(0, 500_000), Until(requests=9, duration_s=1), 0, [0, 500_000], 1_000_000, "duration"),
        ([0, 7, 7], Until(), 0, [0, 7, 7], None, "schedule"),
        ([0, 7, 7], Until(requests=2), 0, [0, 7], None, "requests"),
        ([0, 7, 7], Until(requests=3), 0, [0, 7, 7], None, "schedule"),
        ([], Until(duration_s=1), 0, [], 1_000_000, "schedule"),
    ],
)
def test_a_timetable_is_cut_where_its_level_ends(
    offsets_us: Iterable[int], until: Until, warm_up_us: int, due_us: list[int], end_us: int | None, ended_by: str
) -> None:
    table = timetable(offsets_us, until, warm_up_us)
    assert table == Timetable(array("q", due_us), warm_up_us, end_us, ended_by)  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 10**7)).map(sorted), st.integers(0, 10**6), st.integers(1, 20))
def test_so_many_measured_requests_and_all_that_was_due_before(
    offsets_us: list[int], warm_up_us: int, requests: int
) -> None:
    table = timetable(offsets_us, Until(requests=requests), warm_up_us)
    assert list(table.due_us) == offsets_us[: len(table.due_us)]
    phases = [table.phase(due_us) for due_us in table.due_us]
    assert phases == sorted(phases, reverse=True)  # warmup, then measure
    assert phases.count("measure") == min(requests, sum(due_us >= warm_up_us for due_us in offsets_us))
