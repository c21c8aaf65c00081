"""Several processes send what one would: the same requests, the limit kept, one stream of rows; none is left."""

import asyncio
import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from loadgen import run as run_module
from loadgen.cli.options import Options, settings
from loadgen.record import LevelPlan, LevelRow, Row
from loadgen.run import Outcome, Watcher, run
from loadgen.workers import End, Workers, _joined
from tests.fakes_api import Api, Handle, answer, listening, receive
from tests.fakes_tls import little_trust

__all__ = ["little_trust"]

WATCHER = Watcher(
    on_begin=lambda _, __: None, on_level=lambda _: None, on_row=lambda _: None, after_level=lambda _, __: True
)


def measured(tmp_path: Path, api: Handle, watcher: Watcher = WATCHER, **options: Any) -> Outcome:
    async def main() -> Outcome:
        async with listening(api) as server, asyncio.timeout(50):
            flags: dict[str, Any] = {
                "input": "uniform:20..60",
                "output": "uniform:2..9",
                "out": tmp_path / f"run{options['workers']}",
                "metrics": ("none",),
            }
            return await run(settings(server.url(), Options(**(flags | options))), watcher)

    outcome = uvloop.run(main())
    assert multiprocessing.active_children() == []
    return outcome


def rows_of(outcome: Outcome) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (outcome.directory / "requests.jsonl").read_text().splitlines()]


def levels_of(outcome: Outcome) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (outcome.directory / "levels.jsonl").read_text().splitlines()]


def plan_of(rows: list[dict[str, Any]]) -> dict[tuple[int, int], tuple[int, int]]:
    return {(row["level"], row["index"]): (row["want_input_tokens"], row["want_output_tokens"]) for row in rows}


def test_three_workers_send_the_plan_of_one(tmp_path: Path) -> None:
    apis = {workers: Api(delay_s=0.005) for workers in (1, 3)}
    runs = {
        workers: rows_of(measured(tmp_path, api, concurrency="1,7", requests=30, workers=workers))
        for workers, api in apis.items()
    }
    alone, together = (plan_of(runs[workers]) for workers in (1, 3))
    assert len(together) == len(runs[3])  # no request twice
    shared = alone.keys() & together.keys()
    assert len(shared) > 50
    assert [alone[key] for key in shared] == [together[key] for key in shared]
    for rows in runs.values():
        assert [row["status"] for row in rows] == ["ok"] * len(rows)
        for level in (0, 1):
            assert len([row for row in rows if row["level"] == level and row["phase"] == "measure"]) == 30
    assert apis[3].most_in_flight <= 7
    assert apis[3].most_in_flight > 3


def test_three_workers_keep_the_one_schedule_and_the_one_cap(tmp_path: Path) -> None:
    load: dict[str, Any] = {"rate": "150", "requests": 60, "max_concurrency": 3}
    apis = {workers: Api(delay_s=0.03) for workers in (1, 3)}
    outcomes = {workers: measured(tmp_path, api, workers=workers, **load) for workers, api in apis.items()}
    due = {}
    for workers, outcome in outcomes.items():
        (end,) = levels_of(outcome)
        rows = sorted(rows_of(outcome), key=lambda row: row["index"])
        assert {row["status"] for row in rows} == {"ok"}
        assert [row["index"] for row in rows] == list(range(len(rows)))
        assert [row["phase"] for row in rows].count("measure") == 60
        assert (end["ended_by"], end["due"], end["dropped"]) == ("requests", len(rows), 0)
        assert end["waited_max"] > 10  # 100/s is what goes through
        due[workers] = [row["due_us"] - end["start_us"] for row in rows]
        assert apis[workers].most_in_flight == 3
    assert due[1][:60] == due[3][:60]


def test_the_rate_limit_is_shared_out(tmp_path: Path) -> None:
    rows = rows_of(measured(tmp_path, Api(), concurrency="6", requests=18, max_rps="60", workers=3))
    sent_us = [row["sent_us"] for row in rows]
    assert len(sent_us) == 24  # eight of each worker, which has a third of the rate
    assert max(sent_us) - min(sent_us) > 0.9 * 7 / 20 * 1e6


@pytest.mark.parametrize(("load", "workers"), [({"concurrency": "3"}, 1), ({"rate": "200"}, 2)])
def test_a_level_can_have_its_own_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: dict[str, Any], workers: int
) -> None:
    slots, rate = (None, 200.0) if "rate" in load else (3, None)
    plans = [
        LevelPlan(0, slots, rate),
        LevelPlan(1, slots, rate, requests=13),
        LevelPlan(2, slots, rate, duration_s=0.1),
    ]
    monkeypatch.setattr(run_module, "levels_of", lambda _: plans)
    outcome = measured(tmp_path, Api(delay_s=0.002), requests=5, workers=workers, **load)
    assert [level["ended_by"] for level in levels_of(outcome)] == ["requests", "requests", "duration"]
    phases = [(row["level"], row["phase"]) for row in rows_of(outcome)]
    assert [phases.count((level, "measure")) for level in (0, 1)] == [5, 13]
    assert phases.count((2, "measure")) > 0


def test_a_stop_reaches_all_workers_and_keeps_what_has_ended(tmp_path: Path) -> None:
    seen = 0

    def on_row(_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == 20:
            os.kill(os.getpid(), signal.SIGINT)

    watcher = Watcher(
        on_begin=WATCHER.on_begin, on_level=WATCHER.on_level, on_row=on_row, after_level=WATCHER.after_level
    )
    outcome = measured(tmp_path, Api(delay_s=0.005), watcher, concurrency="4", duration="40s", workers=2)
    assert outcome.interrupted
    assert len(rows_of(outcome)) == seen >= 20
    assert [level["ended_by"] for level in levels_of(outcome)] == ["interrupt"]


def test_a_level_that_one_worker_ends_is_over_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, made, start = 0, [], Workers.start

    async def started(*arguments: Any) -> Workers:
        made.append(await start(*arguments))
        return made[0]

    def on_row(_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == 20:
            made[0]._tell(made[0]._pipes[:1], End("over-saturated"))

    monkeypatch.setattr(Workers, "start", started)
    watcher = Watcher(
        on_begin=WATCHER.on_begin, on_level=WATCHER.on_level, on_row=on_row, after_level=WATCHER.after_level
    )
    outcome = measured(tmp_path, Api(delay_s=0.005), watcher, rate="100,300", requests=200, workers=3)
    assert not outcome.interrupted
    assert [level["ended_by"] for level in levels_of(outcome)] == ["over-saturated", "requests"]
    phases = [(row["level"], row["phase"]) for row in rows_of(outcome)]
    assert phases.count((0, "measure")) < 200
    assert phases.count((1, "measure")) == 200


@pytest.mark.parametrize("load", [{"concurrency": "4"}, {"rate": "100"}])
def test_so_many_errors_of_one_worker_end_the_level_for_all(tmp_path: Path, load: dict[str, Any]) -> None:
    api = Api(delay_s=0.002)
    failing: list[asyncio.StreamWriter] = []  # the first connection of the load: it has all errors
    begun = False

    def on_begin(_: object, __: object) -> None:
        nonlocal begun
        begun = True

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not begun or failing:
            await api(reader, writer)
        failing.append(writer)
        while True:
            await receive(reader)
            writer.write(answer("no", "500 No"))

    watcher = msgspec.structs.replace(WATCHER, on_begin=on_begin)
    outcome = measured(tmp_path, serve, watcher, max_errors=4, duration="20s", workers=2, **load)
    (level,) = levels_of(outcome)
    assert level["ended_by"] == "errors"
    assert level["end_us"] - level["start_us"] < 20_000_000
    assert [row["status"] for row in rows_of(outcome)].count("failed") >= 4


def test_the_errors_of_one_level_are_none_of_the_next(tmp_path: Path) -> None:
    api = Api(delay_s=0.002)
    failed = 0

    def on_level(_: object) -> None:
        nonlocal failed
        failed = 0
        api.refuses = ["model"]

    def on_row(row: Row) -> None:
        nonlocal failed
        failed += row.status == "failed"
        if failed >= 8:
            api.refuses = []

    watcher = msgspec.structs.replace(WATCHER, on_level=on_level, on_row=on_row)
    outcome = measured(tmp_path, api, watcher, concurrency="4,3", max_errors=16, requests=40, workers=2)
    assert [level["ended_by"] for level in levels_of(outcome)] == ["requests", "requests"]
    assert [row["status"] for row in rows_of(outcome)].count("failed") >= 16


def test_a_worker_that_dies_ends_the_run_with_its_rows_kept(tmp_path: Path) -> None:
    seen = 0

    def on_row(_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == 20:
            multiprocessing.active_children()[0].kill()

    watcher = Watcher(
        on_begin=WATCHER.on_begin, on_level=WATCHER.on_level, on_row=on_row, after_level=WATCHER.after_level
    )
    with pytest.raises(OSError, match="a worker process has ended unexpectedly"):
        measured(tmp_path, Api(delay_s=0.005), watcher, concurrency="4", duration="40s", workers=2)
    assert len((tmp_path / "run2" / "requests.jsonl").read_text().splitlines()) == seen >= 20
    assert multiprocessing.active_children() == []


def test_the_row_of_a_level_is_that_of_all_its_workers() -> None:
    rows = [
        LevelRow(level=2, start_us=5, end_us=90, ended_by="duration", cpu_us=30, clock_step_us=-40),
        LevelRow(level=2, start_us=3, end_us=95, ended_by="errors", cpu_us=50, clock_step_us=7),
    ]
    assert _joined(rows).due is None
    more = [msgspec.structs.replace(row, due=7, dropped=1, waited_max=2) for row in rows]
    assert (_joined(more).due, _joined(more).dropped, _joined(more).waited_max) == (14, 2, 4)
    over = msgspec.structs.replace(rows[0], ended_by="over-saturated")
    assert _joined([*rows, over]).ended_by == "over-saturated"
    for end in ("requests", "schedule"):  # one had used up its share before the others came to their end
        assert _joined([rows[0], msgspec.structs.replace(rows[0], ended_by=end)]).ended_by == end
    assert _joined(rows) == LevelRow(level=2, start_us=3, end_us=95, ended_by="errors", cpu_us=50, clock_step_us=-40)
