"""The screen of `loadgen slo`: what it says, for each answer."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console
from rich.text import Text

from analysis import answer_tables, decision, search, summary, verdicts
from analysis.answer import Answer, AtLoad
from analysis.tables import UNKNOWN, safe
from tests import fakes_run as fakes
from tests import test_analysis_answer as runs

if TYPE_CHECKING:
    from pathlib import Path


def screen(directory: Path) -> str:
    console = Console(file=io.StringIO(), width=110)
    answer_tables.show(summary.summarize(directory), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_load_that_holds(tmp_path: Path) -> None:
    runs.run(tmp_path, [(8, 100)], seeks="verdict", slo=("ttft p95 < 200ms", "error_rate < 2%"))
    lines = [line.rstrip() for line in screen(tmp_path).splitlines()]
    assert lines == [
        "tiny, chat, http://localhost:8000: ttft p95 < 200ms; error_rate < 2%",
        "PASS: the SLO holds at 8 at once",
        "ttft p95 < 200ms: p95 was 100 ms, 50 % under the limit; 0 % took longer (at most 1.4 %, 95 % sure), and 5 %",
        "may",
        "320 requests in 11 s, 1 level; goodput 28.6 req/s, 100 % of the requests",
        "",
        " conc.  SLO                     observed  % over (bounds)  n_eff",
        " " + 63 * "\N{BOX DRAWINGS LIGHT HORIZONTAL}",
        "     8  ttft p95 < 200ms  PASS    100 ms     0 (0 to 1.4)    320",
        f"        error_rate < 2%   PASS         {UNKNOWN}     0 (0 to 1.4)    320",
        "",
    ]


def test_a_search_names_both_ends_and_how_close_they_are(tmp_path: Path) -> None:
    runs.run(tmp_path, [(8.0, 100), (9.0, 300), *[(8.0, 150)] * 3, *[(9.0, 250)] * 3])
    text = screen(tmp_path)
    assert "PASS: the SLO holds up to 8 at once, and fails from 9 on" in text
    assert "8 at once: ttft p95 < 200ms: p95 was 150 ms, 25 % under the limit" in text
    assert "9 at once: ttft p95 < 200ms: p95 was 250 ms, 25 % over the limit; 100 % took longer (at least" in text


def test_a_limit_missed_by_far_is_a_plain_number(tmp_path: Path) -> None:
    runs.run(tmp_path, [(8, 3500)], seeks="verdict")
    assert "p95 was 3500 ms, 1650 % over the limit" in screen(tmp_path)


def test_an_open_answer_says_what_it_would_take(tmp_path: Path) -> None:
    runs.run(tmp_path, [(1, 100)], seeks="verdict")
    text = screen(tmp_path)
    assert "UNDECIDED: it is not known yet whether the SLO holds at 1 at once" in text
    assert "ttft p95 < 200ms: 40 values that are worth 40 independent ones, and it takes 90 to pass" in text
    assert re.search(r"about 2\.[23] times as much would decide it", text)
    assert "the same command with --out and this directory goes on" in text


def test_an_invalid_answer_says_why(tmp_path: Path) -> None:
    runs.run(tmp_path, [(8, 100)] * len(runs.ALL_LIMITED), seeks="verdict", ends=runs.ALL_LIMITED)
    text = screen(tmp_path)
    assert "INVALID: what was measured at 8 at once is not the server's doing" in text
    assert "8 at once: client-cpu: " in text


def test_a_server_that_fell_behind_is_named(tmp_path: Path) -> None:
    runs.run(tmp_path, [(8, 100)], seeks="verdict", ends={0: {"ended_by": "over-saturated"}})
    assert "the server did not keep up: requests in flight grew without end" in screen(tmp_path)


def test_a_run_without_a_question_has_no_screen(tmp_path: Path) -> None:
    fakes.write(tmp_path, fakes.clean(), [fakes.ended()])
    assert screen(tmp_path) == ""


# Headlines


def said(verdict: str, *, by: str = "rate", limited_at: float | None = None, **found: Any) -> Answer:
    made: Any = {"by": by, "verdict": verdict, "loads": (), "limited_at": limited_at}
    return Answer(**made, found=search.Found(**found))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (said("PASS", holds=3.5, fails=3.7), "PASS: the SLO holds up to 3.5 requests/s, and fails from 3.7 on"),
        (said("PASS", holds=8, edge="highest", by="concurrency"), "up to 8 at once, the largest load asked for"),
        (
            said("FAIL", fails=1, edge="lowest"),
            "FAIL: the SLO does not hold at 1 requests/s, the smallest load asked for",
        ),
        (said("UNDECIDED", holds=2), "holds up to 2 requests/s, and where it ends is not known yet"),
        (said("UNDECIDED", fails=2), "no load is known yet at which the SLO holds, and fails from 2 on"),
        (said("UNDECIDED"), "it is not known yet up to which load the SLO holds"),
        (said("UNDECIDED", seems=(2, 4)), "(it seems to up to 2 requests/s)"),
        (said("UNDECIDED", seems=(None, 4)), "(it seems to fail from 4 requests/s on)"),
        (said("INVALID", holds=8, edge="highest", limited_at=16), "and where it ends is not known yet"),
    ],
)
def test_the_headline_of_a_search(answer: Answer, words: str) -> None:
    assert words in answer_tables.headline(answer)


def test_what_is_odd_is_said_beside() -> None:
    lines = answer_tables.beside(
        said("PASS", holds=4, fails=8, undecided=(5, 6.5), passed_after_failing=((6, 7),), by="concurrency")
    )
    assert lines == [
        "undecided after 3 fresh levels each: 5, 6.5",
        "7 passed although 6 failed: the server does not get worse step by step",
    ]


def test_closeness_of_each_kind_of_term() -> None:
    def verdict(term: str, **facts: Any) -> decision.Verdict:
        return decision.Verdict(term=term, verdict="PASS", **facts)

    share: Any = {"exceed": 0.002, "exceed_ci": (0.001, 0.004), "n": 1000, "n_eff": 900}
    assert answer_tables.closeness(verdict("itl p99 < 50ms", observed_ms=40.0, **share)) == (
        "itl p99 < 50ms: p99 was 40.0 ms, 20 % under the limit; 0.2 % of the gaps were longer (at most 0.4 %, "
        "95 % sure), and 1 % may"
    )
    assert answer_tables.closeness(verdict("error_rate < 1%", **share)) == (
        "error_rate < 1%: 0.2 % of the requests failed (at most 0.4 %, 95 % sure), and 1 % may"
    )
    rate = verdict("throughput > 100", observed_per_s=110.0, per_s_ci=(105.0, 115.0))
    assert answer_tables.closeness(rate) == (
        "throughput > 100: 110 tok/s, 10 % above the limit; 105 to 115 (95 % sure of each end)"
    )
    assert answer_tables.closeness(verdict("ttft p99 < 1s")) == "ttft p99 < 1s: nothing was observed"


def test_what_a_server_says_does_not_steer_the_terminal() -> None:
    at = AtLoad(
        load=1, verdict="INVALID", levels=(), probe=None, unusable=(0,), why_not="odd: \x1b[31m", requests=0,
        measured_s=0, kept_up=True, statements={"a\x1b[2J": verdicts.Statement()},
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=110)
    for line in answer_tables.beside(Answer(by="rate", verdict="INVALID", loads=(at,), found=None, limited_at=1)):
        console.print(Text(safe(line)))
    assert isinstance(console.file, io.StringIO)
    assert "\x1b" not in console.file.getvalue()
