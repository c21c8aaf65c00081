"""What a run of `loadgen slo` answers, on levels whose latencies are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from analysis import records, search, summary
from analysis.answer import LOOKS, TRIES, answer, closest, points_of, where
from tests import fakes_run as fakes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from analysis.answer import Answer, Trial
    from analysis.records import Header

SECOND = 1_000_000
LIMITED = {"cpu_us": 30 * SECOND}  # a core all the time
ALL_LIMITED = dict(enumerate([LIMITED] * TRIES))
Level = tuple[float, int]  # load, and TTFT in ms


def run(
    directory: Path,
    levels: list[Level],
    *,
    seeks: str = "concurrency",
    slo: tuple[str, ...] = ("ttft p95 < 200ms",),
    each: int = 40,
    ends: dict[int, dict[str, Any]] | None = None,
    change: Callable[[int, list[fakes.Row]], list[fakes.Row]] = lambda level, rows: rows,
) -> tuple[Header, list[Trial]]:
    """A run whose levels follow each other, each a minute after the one before."""
    rows, ended = [], []
    for level, (load, ttft_ms) in enumerate(levels):
        start_us = level * 60 * SECOND
        made = fakes.closed_loop(int(load), each=each, ttft_us=ttft_ms * 1000)
        for one in made:
            one |= {"level": level, "sent_us": one["sent_us"] + start_us, "due_us": one["sent_us"] + start_us}
        rows += change(level, made)
        ended.append(fakes.ended(level, start_us, start_us + 30 * SECOND) | (ends or {}).get(level, {}))
    plans = [{"level": level, "concurrency": int(load)} for level, (load, _) in enumerate(levels)]
    head = fakes.header(levels=plans, seeks=seeks, bounds=None if seeks == "verdict" else [1, 64], slo=list(slo))
    made_run = records.read(fakes.write(directory, rows, ended, head))
    return made_run.header, summary.trials(made_run)


def answered(directory: Path, levels: list[Level], **changes: Any) -> Answer:
    return answer(*run(directory, levels, **changes))


# One load


@pytest.mark.parametrize(("ttft_ms", "verdict"), [(100, "PASS"), (300, "FAIL")])
def test_a_load_that_is_far_from_its_limit_is_decided(tmp_path: Path, ttft_ms: int, verdict: str) -> None:
    said = answered(tmp_path, [(8, ttft_ms)], seeks="verdict")
    assert (said.by, said.verdict, said.found) == ("concurrency", verdict, None)
    assert (said.holds, said.fails) == ((8.0, None) if verdict == "PASS" else (None, 8.0))


def test_a_sample_too_small_to_pass_is_undecided(tmp_path: Path) -> None:
    assert answered(tmp_path, [(1, 100)], seeks="verdict").verdict == "UNDECIDED"  # 40 requests; a p95 takes 90


def test_levels_at_one_load_are_one_sample(tmp_path: Path) -> None:
    (at,) = answered(tmp_path, [(1, 100)] * 3, seeks="verdict").loads
    assert (at.verdict, at.levels, at.requests) == ("PASS", (0, 1, 2), 120)
    assert at.measured_s > 0


def test_each_look_pays_its_part(tmp_path: Path) -> None:
    """60 independent values of which none exceeds pass a p95 at 5 %, and not at 1 %."""
    assert LOOKS == 5
    header, trials = run(tmp_path, [(1, 100)], seeks="verdict", each=70)
    assert answer(header, trials).verdict == "UNDECIDED"
    (probe,) = points_of(header, trials)
    assert probe.probe.verdict == "PASS"


def test_a_level_that_the_client_limited_says_nothing(tmp_path: Path) -> None:
    said = answered(tmp_path, [(8, 300), (8, 100)], seeks="verdict", ends={0: LIMITED})
    assert (said.verdict, said.loads[0].levels, said.loads[0].unusable) == ("PASS", (1,), (0,))
    said = answered(tmp_path / "twice", [(8, 100)] * TRIES, seeks="verdict", ends=ALL_LIMITED)
    assert said.verdict == "INVALID"
    assert said.loads[0].why_not is not None
    assert said.loads[0].why_not.startswith("client-cpu: ")
    assert (said.limited_at, said.holds, said.fails) == (8.0, None, None)


def test_failures_are_the_servers_answer_unless_nothing_succeeds(tmp_path: Path) -> None:
    failure = {"status": "failed", "error": {"kind": "http_status", "message": "503"}}

    def most(_: int, rows: list[fakes.Row]) -> list[fakes.Row]:
        return [row | (failure if row["index"] % 3 else {}) for row in rows]

    def every(_: int, rows: list[fakes.Row]) -> list[fakes.Row]:
        return [row | failure for row in rows]

    assert answered(tmp_path / "most", [(8, 100)], seeks="verdict", change=most).verdict == "FAIL"
    assert answered(tmp_path / "every", [(8, 100)] * TRIES, seeks="verdict", change=every).verdict == "INVALID"


def test_a_level_that_was_stopped_because_the_server_fell_behind_fails(tmp_path: Path) -> None:
    said = answered(tmp_path, [(8, 100)], seeks="verdict", ends={0: {"ended_by": "over-saturated"}})
    assert (said.verdict, said.loads[0].kept_up) == ("FAIL", False)


def test_a_level_that_was_interrupted_or_cut_does_not_count(tmp_path: Path) -> None:
    header, trials = run(tmp_path, [(8, 300), (8, 100)], seeks="verdict", ends={0: {"ended_by": "interrupt"}})
    assert [one.level for one in trials] == [1]
    assert answer(header, trials).verdict == "PASS"
    (tmp_path / "levels.jsonl").write_text("")
    assert answer(header, summary.trials(records.read(tmp_path))).verdict == "UNDECIDED"


# A search


def test_the_first_level_at_a_load_is_its_probe_and_no_part_of_the_verdict(tmp_path: Path) -> None:
    levels = [(8, 100), (9, 300), *[(8, 150)] * 3, *[(9, 250)] * 3]
    header, trials = run(tmp_path, [(float(load), ttft) for load, ttft in levels])
    low, high = points_of(header, trials)
    assert (low.load, low.replicates, low.settled, high.load, high.settled) == (8, 3, "PASS", 9, "FAIL")
    said = answer(header, trials)
    assert (said.verdict, said.holds, said.fails) == ("PASS", 8.0, 9.0)
    assert [(at.load, at.probe, at.levels) for at in said.loads] == [(8, 0, (2, 3, 4)), (9, 1, (5, 6, 7))]


def test_a_probe_states_nothing(tmp_path: Path) -> None:
    said = answered(tmp_path, [(8, 100), (9, 300)])
    assert said.verdict == "UNDECIDED"
    assert {at.verdict for at in said.loads} == {"UNDECIDED"}
    assert said.found is not None
    assert said.found.seems == (8, 9)


def test_a_smallest_load_that_fails_is_a_failure(tmp_path: Path) -> None:
    said = answered(tmp_path, [(1, 300)] * 4)
    assert (said.verdict, said.holds, said.fails) == ("FAIL", None, 1.0)


def test_a_largest_load_that_holds_is_the_end(tmp_path: Path) -> None:
    said = answered(tmp_path, [(64, 100)] * 4, each=12)
    assert (said.verdict, said.holds, said.fails) == ("PASS", 64.0, None)


def test_a_search_does_not_go_to_where_the_client_was_the_limit(tmp_path: Path) -> None:
    header, trials = run(tmp_path, [(8, 100), *[(16, 100)] * TRIES], ends=dict.fromkeys(range(1, 1 + TRIES), LIMITED))
    assert where(header, trials) == search.Loads(first=1, lowest=1, highest=8, whole=True)
    assert [point.load for point in points_of(header, trials)] == [8]
    assert answer(header, trials).verdict == "INVALID"
    header, trials = run(tmp_path / "all", [(1, 100)] * TRIES, ends=ALL_LIMITED)
    assert where(header, trials) is None
    assert answer(header, trials).verdict == "INVALID"


def test_a_busy_moment_is_no_limit_where_a_higher_load_was_measured(tmp_path: Path) -> None:
    ends = dict.fromkeys(range(1, 1 + TRIES), LIMITED)
    header, trials = run(tmp_path, [(8, 100), *[(16, 100)] * TRIES, (32, 100)], ends=ends)
    allowed = where(header, trials)
    assert allowed is not None
    assert allowed.highest == 64
    assert answer(header, trials).limited_at is None


def test_the_closest_term_is_named(tmp_path: Path) -> None:
    terms = ("ttft p95 < 200ms", "itl p95 < 21ms", "error_rate < 5%")
    (at,) = answered(tmp_path, [(8, 100)], seeks="verdict", slo=terms).loads
    worst = closest(at.statements)
    assert worst is not None
    assert worst.term == "itl p95 < 21ms"


def test_a_run_of_given_levels_has_no_answer(tmp_path: Path) -> None:
    header, trials = run(tmp_path, [(8, 100)], seeks="verdict")
    (tmp_path / "run.json").write_text(
        (tmp_path / "run.json").read_text().replace('"seeks": "verdict"', '"seeks": null')
    )
    made = summary.summarize(tmp_path)
    assert (made.answer, header.seeks) == (None, "verdict")
    with pytest.raises(ValueError, match="loadgen slo"):
        answer(records.read_header(tmp_path), trials)


def test_the_summary_has_the_answer_and_its_exit_code(tmp_path: Path) -> None:
    for name, ttft_ms, code in (("pass", 100, 0), ("fail", 300, 1)):
        run(tmp_path / name, [(8, ttft_ms)], seeks="verdict")
        made = summary.summarize(tmp_path / name)
        assert made.answer is not None
        assert summary.exit_code(made) == code
        assert (made.curve.holds, made.curve.fails) == (made.answer.holds, made.answer.fails)
    run(tmp_path / "few", [(1, 100)], seeks="verdict")
    assert summary.exit_code(summary.summarize(tmp_path / "few")) == 3
    run(tmp_path / "limited", [(8, 100)] * TRIES, seeks="verdict", ends=ALL_LIMITED)
    assert summary.exit_code(summary.summarize(tmp_path / "limited")) == 4
