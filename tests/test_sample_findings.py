from __future__ import annotations

import re

import pytest

from tests import fakes_run as fakes
from tests.fakes_run import findings
from tests.test_steady import cold

OPEN = [{"level": 0, "rate_per_s": 10.0}]


def test_few_samples_says_how_many() -> None:
    found = findings(fakes.closed_loop(fakes.SLOTS, each=10))["few-samples"]
    assert found.severity == "info"
    assert "sample of 40 " in found.message
    assert "needed: p95 72, p99 368; use --requests 368" in found.message
    assert "p90" not in found.message


def test_values_that_depend_need_more() -> None:
    """Twenty slow seconds of a hundred: a thousand requests say little about p99."""
    rows = [row for second in range(100) for row in second_of(second, slow=second // 10 in (3, 4))]
    found = findings(rows, levels=OPEN, arrivals="poisson")["few-samples"]
    assert "a sample of 1000 is too small" in found.message
    assert re.search(r"1000 values of \w+ say as much as \d\d? that do not depend", found.message)
    needed = int(found.message.split("--requests ")[1].split()[0])
    assert needed > 5_000
    assert needed % 100 == 0


def second_of(second: int, *, slow: bool) -> list[fakes.Row]:
    sent = [1_000_000 * second + 100_000 * place for place in range(10)]
    return [
        fakes.row(10 * second + place, at, (100_000, 900_000 if slow else 120_000)) for place, at in enumerate(sent)
    ]


def test_settling_says_what_is_left_out() -> None:
    found = findings(cold(), fakes.ended(end_us=60_000_000, ended_by="schedule"), levels=OPEN)
    assert found["settling"].severity == "info"
    assert found["settling"].message.startswith("the first 1")
    assert "requests more count as warm-up" in found["settling"].message
    assert not {"not-steady", "over-saturated"} & found.keys()


def test_a_trend_is_not_steady() -> None:
    found = findings(fakes.open_loop(10, 60, grows_us=1000), fakes.ended(end_us=60_000_000), levels=OPEN)
    assert found["not-steady"].severity == "warning"
    assert found["not-steady"].message.startswith("in flight went from 3.")


def test_a_ramp_is_asked_for() -> None:
    found = findings(fakes.open_loop(10, 60, grows_us=1000), levels=OPEN, arrivals="ramp:1..7")
    assert not {"not-steady", "settling"} & found.keys()


@pytest.mark.parametrize("ended_by", ["duration", "interrupt"])
def test_a_window_shorter_than_a_request_is_not_steady(ended_by: str) -> None:
    """A trace may send all at once."""
    burst = [fakes.row(i, i, (1_000_000, 2_000_000)) for i in range(9)]
    found = findings(burst, fakes.ended(ended_by=ended_by), levels=[{"level": 0, "speed": 1.0}], arrivals="trace:a.csv")
    assert found["not-steady"].severity == "warning"
    assert "the window (8e-06 s) is shorter than a request takes (2 s)" in found["not-steady"].message
    assert findings([fakes.row(0, 0)], levels=[{"level": 0, "speed": 1.0}]).keys() == {"few-samples"}
