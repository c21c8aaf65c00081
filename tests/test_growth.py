"""When what is in flight grows without end, and when it only looks so."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.growth import FIRST_LOOK, Growth, grows
from tests.bench import growth as bench


def even(rate_per_s: float, lasts_s: int) -> bench.Floats:
    return (np.arange(int(rate_per_s * lasts_s), dtype=np.float64) + 0.5) / np.float64(rate_per_s)


def slots(count: int, takes_s: float) -> Callable[[bench.Floats], bench.Floats]:
    return lambda come_s: bench.in_line(come_s, np.full(len(come_s), takes_s), count)


@pytest.mark.parametrize(
    ("rate_per_s", "server", "earliest_s", "latest_s"),
    [
        (5.2, slots(4, 1.0), 100, 160),  # 1.3 times what it can do
        (8.0, slots(4, 1.0), 20, 30),
        (16.0, slots(4, 1.0), 7, 15),
        (80.0, slots(32, 1.0), 7, 10),
        (80.0, slots(32, 4.0), 8, 20),
        (20.0, lambda come_s: np.full(len(come_s), np.inf), 301, 301),  # none has ended: nothing can be said
    ],
)
def test_a_line_that_only_grows_is_found_soon(
    rate_per_s: float, server: Callable[[bench.Floats], bench.Floats], earliest_s: int, latest_s: int
) -> None:
    come_s = even(rate_per_s, 300)
    assert earliest_s <= (bench.stopped_s(come_s, server(come_s), 300, 1.0) or 301) <= latest_s


@given(st.sampled_from(sorted(bench.LAWS)), st.integers(1, 30), st.integers(1, 40), st.integers(0, 10**6))
def test_filling_up_is_no_growth_however_long_requests_take(
    lengths: str, rate_per_s: int, takes_s: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    come_s = bench.arrivals(rng, rate_per_s, 40, 1.0)
    assert bench.stopped_s(come_s, come_s + takes_s * bench.LAWS[lengths](rng, len(come_s)), 40, 1.0) is None


@pytest.mark.parametrize(("count", "takes_s", "lasts_s"), [(1, 0.2, 60), (4, 0.5, 60), (4, 2.0, 30), (16, 1.0, 30)])
@pytest.mark.parametrize("load", [0.8, 0.95])
def test_a_server_that_keeps_up_is_left_alone(load: float, count: int, takes_s: float, lasts_s: int) -> None:
    rng = np.random.default_rng(5)
    found = [bench.level(rng, bench.slots(count, takes_s), load, lasts_s, cv=1.0) for _ in range(10)]
    assert found == [None] * 10


def test_bursts_of_the_schedule_are_no_growth() -> None:
    rng = np.random.default_rng(3)
    found = [bench.level(rng, bench.slots(4, 0.25), 0.9, 60, cv=3.0) for _ in range(10)]
    assert found == [None] * 10


def test_an_engine_that_slows_down_as_it_fills_settles() -> None:
    server = bench.Server("", None, 2.0, sharing=True, in_flight=20, lengths="equal")
    rng = np.random.default_rng(1)
    assert [bench.level(rng, server, 0.8, 30, cv=1.0) for _ in range(3)] == [None] * 3


def test_where_the_rate_changes_as_planned_nothing_is_said() -> None:
    come_s = even(80, 60)
    assert bench.stopped_s(come_s, slots(4, 1.0)(come_s), 60, 1.0) is not None
    growth = Growth(None)
    for _ in range(60):
        for _ in range(80):
            growth.came()
        assert not growth.look()


# The rule


def line(kept: float, rate: int = 100, looks: int = 30) -> Iterator[tuple[list[int], list[int], int]]:
    """At each look: `rate` come between two, and all of them but the share `kept` are served in turn."""
    started = [rate * look for look in range(looks + 1)]
    in_flight = [round(kept * come) for come in started]
    for last in range(1, looks + 1):
        late = min(in_flight[last], started[last] - started[last // 3])
        yield started[: last + 1], in_flight[: last + 1], late


@pytest.mark.parametrize(("kept", "since"), [(0.05, None), (0.09, None), (0.2, 8), (0.5, 6), (0.9, 6)])
def test_a_tenth_of_those_who_come_must_stay(kept: float, since: int | None) -> None:
    found = [len(started) - 1 for started, in_flight, late in line(kept) if grows(started, in_flight, late, 1.0)]
    assert found == ([] if since is None else list(range(found[0], 31)))
    assert since is None or found[0] <= since + 3


def test_wilder_arrivals_need_more_growth() -> None:
    def first(dispersion: float) -> int:
        return next((len(s) for s, n, late in line(0.3, rate=20, looks=200) if grows(s, n, late, dispersion)), 999)

    assert FIRST_LOOK < first(0.0) <= first(1.0) < first(9.0) < first(25.0)


def test_it_must_hold_for_a_quarter_of_the_time() -> None:
    growth = Growth(1.0)
    looked, tickets = [], []
    for look in itertools.count(1):
        tickets += [growth.came() for _ in range(100)]
        for ticket in tickets[(look - 1) * 20 : look * 20]:
            growth.gone(ticket)
        looked.append(growth.look())
        if looked[-1]:
            break
    held = [look for look in range(1, len(looked) + 1) if grows(*_series(look))]
    assert len(looked) >= 1.25 * held[0]
    assert len(looked) - 1 < 1.25 * held[0]


def _series(looks: int) -> tuple[list[int], list[int], int, float]:
    started = [100 * look for look in range(looks + 1)]
    in_flight = [80 * look for look in range(looks + 1)]
    return started, in_flight, min(in_flight[-1], started[looks] - started[looks // 3]), 1.0


def test_nothing_at_all_is_no_growth() -> None:
    growth = Growth(1.0)
    assert [growth.look() for _ in range(100)] == [False] * 100
