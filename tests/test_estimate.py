"""How long a run will take, and how many requests it will have: tables of numbers, and what is said of them."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.cli.options import Options, settings
from loadgen.estimate import Ahead, Need, ahead, duration, words
from loadgen.load import levels_of
from loadgen.record import LevelPlan
from loadgen.settings import Settings

P99 = Need("a p99", 368)


def chosen(**flags: Any) -> Settings:
    return settings("localhost:1", Options(**({"input": "20", "output": "10"} | flags)))


def of_all(asked: Settings, request_s: float) -> list[Ahead]:
    return [ahead(asked, plan, request_s) for plan in levels_of(asked)]


@pytest.mark.parametrize(
    ("flags", "request_s", "lasts_s", "requests"),
    [
        ({"concurrency": "4"}, 2.0, 34, 60),  # 30 s, two requests around it
        ({"concurrency": "4"}, 5.0, 60, 40),  # 10 requests a slot take longer
        ({"concurrency": "4", "requests": 100}, 2.0, 54, 100),
        ({"concurrency": "4", "requests": 100, "duration": "10s"}, 2.0, 14, 20),
        ({"concurrency": "4", "max_rps": "1"}, 2.0, 44, 40),
        ({"rate": "8"}, 2.0, 34, 240),
        ({"rate": "8", "requests": 80}, 2.0, 14, 80),
        ({"rate": "8", "requests": 80, "duration": "5s"}, 20.0, 26.25, 40),  # a quarter of it is warm-up, at most
        ({"arrivals": "ramp:2..10"}, 2.0, 32, 180),
    ],
)
def test_a_level_lasts_its_time_and_a_request_before_and_after(
    flags: dict[str, Any], request_s: float, lasts_s: float, requests: float
) -> None:
    (found,) = of_all(chosen(**flags), request_s)
    assert (found.lasts_s, found.requests) == pytest.approx((lasts_s, requests))


def test_a_level_with_an_end_of_its_own() -> None:
    found = ahead(chosen(concurrency="4"), LevelPlan(0, 4, requests=8), 2.0)
    assert (found.lasts_s, found.requests) == (8, 8)


def test_users_who_think_send_less(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text('input = "20"\noutput = "10"\nturns = 4\nthink_ms = 4000\n')
    (found,) = of_all(settings("localhost:1", Options(concurrency="4", workload=str(tmp_path / "w.toml"))), 2.0)
    assert found.per_s == pytest.approx(4 / (2 + 3))


def test_a_trace_is_known(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("0\n10\n20\n60\n")
    asked = chosen(arrivals=f"trace:{tmp_path / 't.txt'}", speed="1,2")
    assert [(one.lasts_s, one.requests) for one in of_all(asked, 2.0)] == [(62, 4), (32, 4)]
    cut = chosen(arrivals=f"trace:{tmp_path / 't.txt'}", duration="30s")
    assert [(one.lasts_s, one.requests) for one in of_all(cut, 2.0)] == [(32, 3)]
    assert words(asked, of_all(asked, 2.0), P99) == [
        "2 levels, about 94 s",
        "a p99 needs 368 requests that do not depend on each other: levels 1 and 2 will have about 4 and 4",
    ]


@given(
    st.sampled_from([{"concurrency": "1,7,64"}, {"rate": "1,7,64"}, {"concurrency": "5", "max_rps": "3"}]),
    st.one_of(st.none(), st.integers(1, 5000)),
    st.one_of(st.none(), st.integers(1, 1000)),
    st.floats(0.001, 100),
)
def test_nothing_lasts_longer_or_has_more_than_was_asked(
    flags: dict[str, Any], requests: int | None, seconds: int | None, request_s: float
) -> None:
    asked = chosen(**flags, requests=requests, duration=None if seconds is None else f"{seconds}s")
    for one in of_all(asked, request_s):
        assert one.lasts_s > 0
        assert one.requests > 0
        assert requests is None or one.requests <= requests * (1 + 1e-9)
        assert seconds is None or one.lasts_s <= seconds + 2 * request_s + 1e-6


# What is said


def test_of_a_sweep_it_says_how_long_and_where_the_sample_is_short() -> None:
    asked = chosen(concurrency="1,2,4,64")
    assert words(asked, of_all(asked, 1.0), P99) == [
        "4 levels, about 2 min 10 s (by the probe; at higher loads answers take longer)",
        "a p99 needs 368 requests that do not depend on each other: levels 1 to 3 will have about 30, 60 and 120; "
        "--requests 368 would take about 9 min 10 s more",
    ]


def test_of_one_level_and_of_many() -> None:
    asked = chosen(concurrency="1")
    assert words(asked, of_all(asked, 1.0), P99)[1] == (
        "a p99 needs 368 requests that do not depend on each other: the level will have about 30; "
        "--requests 368 would take about 5 min 40 s more"
    )
    asked = chosen(concurrency="1,2,3,4,5")
    assert "levels 1 to 5 will have about 30 to 150;" in words(asked, of_all(asked, 1.0), P99)[1]


def test_of_enough_there_is_no_word() -> None:
    asked = chosen(rate="20,40")
    assert words(asked, of_all(asked, 1.0), P99) == ["2 levels, about 64 s"]
    assert len(words(asked, of_all(asked, 1.0), Need("a PASS of ttft p99 < 500ms", 601))) == 2


def test_of_levels_that_end_when_their_sample_suffices_it_says_the_least_and_the_most() -> None:
    asked = chosen(concurrency="4,8", requests="enough")
    assert words(asked, of_all(asked, 1.0), P99) == [
        "2 levels, about 2 min 20 s at least (by the probe; at higher loads answers take longer), at most 20 min"
    ]
    asked = chosen(rate="4", requests="enough", duration="30s")
    assert words(asked, of_all(asked, 1.0), P99) == [
        "1 level, about 32 s",
        "a p99 needs 368 requests that do not depend on each other: the level will have about 120; "
        "a longer --duration would take about 62 s more",
    ]


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one\ntwo\n")
    asked = chosen(input=None, dataset=tmp_path / "p.txt", concurrency="40")
    said = words(asked, of_all(asked, 1.0), P99, may_stop=True)
    assert said[1:] == ["a level ends before that where its share of the data set is used up"]
    asked = chosen(concurrency="40,80")
    assert words(asked, of_all(asked, 1.0), P99, may_stop=True) == [
        "2 levels, about 64 s (by the probe; at higher loads answers take longer), "
        "fewer once throughput has stopped growing"
    ]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.04 s"), (1.2, "1 s"), (119, "119 s"), (120, "2 min"), (203, "3 min 20 s"), (599.6, "10 min"),
     (3000, "50 min"), (7200, "2 h"), (7800, "2 h 10 min")],
)  # fmt: skip
def test_a_duration_is_rounded(seconds: float, said: str) -> None:
    assert duration(seconds) == said
