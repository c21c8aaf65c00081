from __future__ import annotations

from typing import Any

import msgspec
import pytest

from analysis import records
from analysis.pace import Schedule, schedule
from tests import fakes_run as fakes


def of(rows: list[dict[str, Any]], **end: Any) -> Schedule:
    facts: dict[str, Any] = {"ended_by": "schedule", "due": len(rows), "dropped": 0} | end
    return schedule(fakes.requests(*rows), msgspec.convert(fakes.ended(**facts), records.Ended))


def test_a_kept_schedule() -> None:
    made = of(fakes.open_loop(10, 60, lag_us=700), waited_max=3)
    assert (made.due, made.dropped, made.waited_max, made.achieved_share) == (600, 0, 3, 1.0)
    assert made.rate_per_s == pytest.approx(10)


def test_the_rate_is_that_of_the_draw() -> None:
    rows = [fakes.row(i, due_us, due_us=due_us) for i, due_us in enumerate((0, 100_000, 400_000))]
    assert of(rows).rate_per_s == 5


def test_sending_late_and_later_costs_the_rate() -> None:
    late = [row | {"sent_us": row["due_us"] * 2} for row in fakes.open_loop()]
    assert of(late).achieved_share == 0.5
    assert of(late, due=1200, dropped=600).achieved_share == 0.5  # those were the last, and late is what they are
    assert of(late, due=2400, dropped=1800).achieved_share == 0.25
    assert of(late, due=2400, dropped=1800, ended_by="interrupt").achieved_share == 0.5
    first_late = [row | {"sent_us": row["due_us"] + (5_000 if row["index"] == 0 else 0)} for row in fakes.open_loop()]
    assert of(first_late).achieved_share == 1.0


def test_later_turns_are_not_in_the_schedule() -> None:
    rows = fakes.open_loop()
    later = [row | {"index": 1000 + i, "turn": 1, "due_us": 90_000_000 + i} for i, row in enumerate(rows)]
    assert of([*rows, *later]).rate_per_s == pytest.approx(10)


@pytest.mark.parametrize("rows", [[], [fakes.row(0)], [fakes.row(0), fakes.row(1)], [fakes.failed(0, None)]])
def test_what_cannot_be_known_is_none(rows: list[dict[str, Any]]) -> None:
    made = of(rows)
    assert (made.rate_per_s, made.achieved_share) == (None, None)


def test_old_runs_have_no_counts() -> None:
    rows = fakes.open_loop()
    made = schedule(fakes.requests(*rows), None)
    assert (made.due, made.dropped, made.waited_max, made.achieved_share) == (None, None, None, 1.0)
    assert of(rows, due=None, dropped=None).achieved_share == 1.0
