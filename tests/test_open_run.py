"""Whole runs of open loop over real HTTP: schedules, traces, data sets, conversations, users who leave, workers."""

import asyncio
import gc
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadgen.load import timetable_of
from loadgen.open import NoRoom
from loadgen.record import LevelPlan
from tests.fakes_api import Api, on_uvloop
from tests.fakes_client import nothing_leaks
from tests.fakes_tls import little_trust
from tests.test_run import Told, chosen, lines, run_against

__all__ = ["little_trust"]

LOAD = {"concurrency": None, "input": "20", "output": "4"}


@pytest.fixture(autouse=True)
def no_leaks(little_trust: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with nothing_leaks():
        yield
    gc.unfreeze()


async def rows_of(api: Api, told: Told | None = None, **flags: Any) -> list[dict[str, Any]]:
    outcome = await run_against(api, told, **(LOAD | {"requests": None} | flags))
    return lines(outcome.directory, "requests.jsonl")


def level_rows() -> list[dict[str, Any]]:
    return lines(Path("out"), "levels.jsonl")


def header() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("out/run.json").read_text())
    return found


@on_uvloop
async def test_requests_are_due_as_the_schedule_says_and_sent_then() -> None:
    rows = await rows_of(Api(), rate="100,200", requests=20)
    assert header()["arrivals"] == "poisson"
    assert header()["levels"] == [
        {"level": 0, "concurrency": None, "rate_per_s": 100, "speed": None, "requests": None, "duration_s": None},
        {"level": 1, "concurrency": None, "rate_per_s": 200, "speed": None, "requests": None, "duration_s": None},
    ]
    asked = chosen("localhost:1", **LOAD, rate="100,200", requests=20)
    for level, (rate, end) in enumerate(zip((100, 200), level_rows(), strict=True)):
        own = sorted((row for row in rows if row["level"] == level), key=lambda row: row["index"])
        due_us = [row["due_us"] - end["start_us"] for row in own]
        table = timetable_of(asked, LevelPlan(level, None, rate), request_s=1.0)
        assert due_us == list(table.due_us[: len(own)])
        assert [row["phase"] for row in own].count("measure") == 20
        assert (end["ended_by"], end["due"], end["dropped"]) == ("requests", len(own), 0)
        assert all(row["sent_us"] - row["due_us"] >= 0 for row in own)
        assert {row["status"] for row in own} == {"ok"}


@on_uvloop
async def test_the_cap_holds_and_the_wait_counts_from_due() -> None:
    api = Api(delay_s=0.02)
    rows = await rows_of(api, rate="500", arrivals="constant", requests=12, max_concurrency=2)
    assert api.most_in_flight == 2
    waits_us = [row["sent_us"] - row["due_us"] for row in sorted(rows, key=lambda row: row["index"])]
    assert all(wait_us >= (index // 2) * 18_000 - 2000 * index for index, wait_us in enumerate(waits_us))
    (end,) = level_rows()
    assert end["waited_max"] >= 5


@on_uvloop
async def test_a_trace_is_replayed_at_its_speeds_with_its_lengths() -> None:
    Path("t.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00,30,3\n2024-05-10 00:00:00.2,40,4\n2024-05-10 00:00:00.3,50,5\n"
    )
    rows = await rows_of(Api(), arrivals="trace:t.csv", speed="2,4", input=None, output=None)
    assert {row["phase"] for row in rows} == {"measure"}
    for level, (speed, end) in enumerate(zip((2, 4), level_rows(), strict=True)):
        own = sorted((row for row in rows if row["level"] == level), key=lambda row: row["index"])
        offsets_us = [row["due_us"] - end["start_us"] for row in own]
        assert offsets_us == [0, 200_000 // speed, 300_000 // speed]
        assert [(row["prompt_tokens"], row["output_tokens"]) for row in own] == [(30, 3), (40, 4), (50, 5)]
        assert end["ended_by"] == "schedule"
    assert header()["levels"][1]["speed"] == 4
    assert header()["levels"][1]["rate_per_s"] == pytest.approx(3 / 0.3 * 4)
    assert header()["arrivals"] == "trace:t.csv"


@on_uvloop
async def test_a_data_set_is_dealt_out_and_used_up() -> None:
    Path("p.txt").write_text("".join(f"Prompt number {number}\n" for number in range(25)))
    api = Api()
    rows = await rows_of(api, rate="200,400", dataset=Path("p.txt"), input=None, duration="10s")
    assert [(end["ended_by"], end["due"]) for end in level_rows()] == [("schedule", 13), ("schedule", 12)]
    assert sorted(row["item"] for row in rows) == list(range(25))
    assert [row["item"] % 2 == row["level"] for row in rows] == [True] * 25
    prompts = [fields["messages"][0]["content"] for fields in api.asked()]
    assert sum(prompt.startswith("Prompt number") for prompt in prompts) == 25
    (one,) = header()["workload"]["classes"]
    assert one["input"] == "dataset:p.txt"


@pytest.mark.parametrize("load", [{"rate": "100"}, {"concurrency": "2"}])
@on_uvloop
async def test_a_conversation_holds_what_this_server_said(load: dict[str, Any]) -> None:
    Path("w.toml").write_text('input = 20\noutput = "uniform:2..6"\nturns = 3\nthink_ms = 5\n')
    api = Api()
    rows = await rows_of(api, workload="w.toml", input=None, output=None, requests=12, **load)
    asked = {json.dumps(fields["messages"]): fields for fields in api.asked()}
    longest = [fields["messages"] for fields in asked.values() if len(fields["messages"]) == 5]
    assert len(longest) >= 2
    for messages in longest:
        assert [message["role"] for message in messages] == ["user", "assistant"] * 2 + ["user"]
        for turn in (1, 3):  # each turn was asked with just what is repeated after it
            before = asked[json.dumps(messages[:turn])]
            assert messages[turn]["content"] == " word" * before["max_tokens"]
    by_index = {row["index"]: row for row in rows}
    later = [row for row in rows if "turn" in row]
    assert later
    for row in later:
        before = by_index[row["index"] - 1]
        assert (row["session"], row["turn"]) == (row["index"] - row["turn"], before.get("turn", 0) + 1)
        assert row["due_us"] == pytest.approx(before["sent_us"] + before["end_us"] + 5000, abs=2)
        assert row["sent_us"] >= row["due_us"]
    assert sum(row["phase"] == "measure" for row in rows) == 12


@pytest.mark.parametrize("load", [{"rate": "100"}, {"concurrency": "2"}])
@on_uvloop
async def test_users_who_leave_are_neither_failures_nor_waited_for(load: dict[str, Any]) -> None:
    Path("w.toml").write_text("input = 20\noutput = 4\nleave_share = 1.0\nleave_after_ms = 15\n")
    api, told = Api(), Told()

    def hold(_: object, __: object) -> None:
        api.hold = asyncio.Event()

    told.watcher = msgspec.structs.replace(told.watcher, on_begin=hold)
    rows = await rows_of(api, told, workload="w.toml", input=None, output=None, requests=30, max_errors=1, **load)
    assert {(row["status"], row["left"]) for row in rows} == {("cancelled", True)}
    assert sum(row["phase"] == "measure" for row in rows) == 30
    assert level_rows()[0]["ended_by"] == "requests"
    sent = [row for row in rows if row["sent_us"] is not None]  # on a busy machine one may leave before
    assert sent
    assert all(row["sent_us"] + row["end_us"] - row["due_us"] >= 15_000 for row in sent)
    assert api.in_flight <= 30


@on_uvloop
async def test_an_interrupt_keeps_what_has_ended_and_counts_what_had_been_due() -> None:
    told = Told()
    task = asyncio.create_task(rows_of(Api(), told, rate="100", duration="100s"))
    while len(told.rows) < 5:
        await told.row_came.wait()
        told.row_came.clear()
    os.kill(os.getpid(), signal.SIGINT)
    async with asyncio.timeout(10):
        rows = await task
    (end,) = level_rows()
    assert end["ended_by"] == "interrupt"
    assert end["due"] == len(rows) >= 5
    assert end["dropped"] == 0


@on_uvloop
async def test_a_server_that_does_not_keep_up_ends_the_run_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.load.room", lambda: 6)
    monkeypatch.setattr("loadgen.levels.DRAIN_S", 0.05)
    api, told = Api(), Told()

    def slow_down(_: object, __: object) -> None:
        api.delay_s = 30

    told.watcher = msgspec.structs.replace(told.watcher, on_begin=slow_down)
    with pytest.raises(NoRoom, match=r"^6 requests are in flight .*--max-concurrency.*loadgen report out$"):
        await rows_of(api, told, rate="200", duration="10s")
    assert {row["status"] for row in lines(Path("out"), "requests.jsonl")} == {"cancelled"}
