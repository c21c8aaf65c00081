"""The embedded engine near published measurements: the rows that are played in no time. All: tests.bench.published."""

import functools

import msgspec
import numpy as np
import pytest

from loadgen.sim.spec import parse
from tests.bench import published
from tests.bench.published import Result, Row

SHORT = 130_000  # tokens


def tokens(row: Row) -> int:
    return published.load(row).requests * published.lengths(row)[1]


ROWS = published.rows()
QUICK = [row for row in ROWS if tokens(row) < SHORT]
found = functools.cache(published.simulated)


def test_most_rows_are_near() -> None:
    counts = published.counts(published.near(row, found(row)) for row in QUICK)
    assert counts.speed_of >= 18
    assert counts.speed / counts.speed_of >= 0.85
    assert counts.ttft / counts.ttft_of >= 0.70


def test_the_document_has_every_row_as_it_is_found_now() -> None:
    text = published.DOCUMENT.read_text()
    made = text.split(published.BEGIN)[1].split(published.END)[0]
    assert sum(line.startswith(tuple(f"| {row.source} |" for row in ROWS)) for line in made.splitlines()) == len(ROWS)
    for row in QUICK:
        assert published.line(row, found(row)) in made
    assert published.sets() in made


def test_what_is_not_near_is_explained_and_nothing_else() -> None:
    for row in QUICK:
        assert (False in published.near(row, found(row))) == (row.name in published.WHY), row.name
    assert set(published.WHY) <= {row.name for row in ROWS}


def test_a_row_is_saturated_where_the_engine_has_no_room_for_what_is_asked_at_once() -> None:
    full = {row.name.split()[-3] + " x " + row.name.split()[-1] for row in ROWS if published.saturated(row)}
    assert full == {"7000/1000 x 250", "5000/500 x 100", "5000/500 x 150", "5000/500 x 250"}


def test_the_row_that_is_not_fitted_is_played_on_the_defaults() -> None:
    served = parse("llama-3.1-8b@h100")
    assert msgspec.structs.asdict(published.DEFAULTS).items() <= msgspec.structs.asdict(served).items()


def test_near_is_a_ratio_within_its_limit() -> None:
    row = next(row for row in ROWS if not published.saturated(row) and row.itl_ms)
    exact = Result(row.output_tokens_per_s or 0.0, row.ttft_ms or 0.0, row.itl_ms or 0.0)
    assert published.near(row, exact) == (True, True)
    for name, factor, wanted in (("itl_ms", 1.3, (False, True)), ("ttft_ms", 0.4, (True, False))):
        moved = msgspec.structs.replace(exact, **{name: getattr(exact, name) * factor})
        assert published.near(row, moved) == wanted


@pytest.mark.parametrize(
    "row", [row for row in QUICK if row.concurrency and row.concurrency > 1], ids=lambda row: row.name
)
def test_steps_timed_anew_take_what_the_engine_says(row: Row) -> None:
    served = published.spec(row, published.SETS[row.engine, row.gpus])
    load = msgspec.structs.replace(published.load(row), requests=published.load(row).slots, warm_up=0, drained=True)
    played = published.play(served, load, 200, 5)
    np.testing.assert_allclose(published.timed(played, served), played.durations_s)
