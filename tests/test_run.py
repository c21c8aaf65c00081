"""Whole runs over real HTTP, from settings to the run directory, with server and client on one loop."""

import asyncio
import contextlib
import gc
import json
import os
import resource
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.options import Options, settings
from loadgen.preflight import Server, Unusable
from loadgen.record import LevelPlan, LevelRow, Row
from loadgen.run import Outcome, Watcher, probe, run
from loadgen.settings import Settings
from tests.fakes_api import Api, answer, listening, on_uvloop, refusal, tokenizer_file
from tests.fakes_client import nothing_leaks
from tests.fakes_tls import little_trust

__all__ = ["little_trust"]


@pytest.fixture(autouse=True)
def no_leaks(little_trust: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with nothing_leaks():
        yield
    gc.unfreeze()


class Told:
    """What a run tells its watcher."""

    def __init__(self, levels: int = 100) -> None:
        self.servers: list[Server] = []
        self.levels: list[LevelPlan] = []
        self.rows: list[Row] = []
        self.ended: list[LevelRow] = []
        self.row_came = asyncio.Event()
        self.watcher = Watcher(
            on_begin=lambda _, server: self.servers.append(server),
            on_level=self.levels.append,
            on_row=self._row,
            after_level=self._after_level,
        )
        self._most = levels

    def _row(self, row: Row) -> None:
        self.rows.append(row)
        self.row_came.set()

    def _after_level(self, directory: Path, row: LevelRow) -> bool:
        assert (directory / "run.json").is_file()
        self.ended.append(row)
        return len(self.ended) < self._most


def chosen(url: str, **flags: Any) -> Settings:
    usual: dict[str, Any] = {
        "concurrency": "1,3",
        "requests": 6,
        "input": "uniform:20..60",
        "output": "4",
        "out": Path("out"),
        "metrics": ("none",),
    }
    return settings(url, Options(**(usual | flags)))


async def run_against(api: Api, told: Told | None = None, **flags: Any) -> Outcome:
    async with listening(api) as server:
        return await run(chosen(server.url(), **flags), (told or Told()).watcher)


def lines(directory: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / name).read_text().splitlines()]


@on_uvloop
async def test_a_run_writes_every_request_of_every_level() -> None:
    api, told = Api(), Told()
    outcome = await run_against(api, told, concurrency="1,3")
    assert outcome == Outcome(Path("out"), interrupted=False)
    rows = lines(outcome.directory, "requests.jsonl")
    assert [(row["level"], row["phase"]) for row in rows].count((0, "warmup")) == 1
    warmed_up = [(row["level"], row["phase"]) for row in rows].count((1, "warmup"))
    assert warmed_up >= 3  # more, where a slot starts so late that another has its second turn before
    assert [row["phase"] for row in rows].count("measure") == 12
    assert {row["status"] for row in rows} == {"ok"}
    of_each_level = ((0, 1 + 6), (1, warmed_up + 6))
    assert {(row["level"], row["index"]) for row in rows} == {
        (n, i) for n, count in of_each_level for i in range(count)
    }
    assert len(told.rows) == len(rows)
    ends = lines(outcome.directory, "levels.jsonl")
    assert [(end["level"], end["ended_by"]) for end in ends] == [(0, "requests"), (1, "requests")]
    for end in ends:  # no request of one level is alive in another
        own = [row for row in rows if row["level"] == end["level"]]
        assert all(end["start_us"] <= row["sent_us"] <= row["sent_us"] + row["end_us"] <= end["end_us"] for row in own)
    assert ends[0]["end_us"] <= ends[1]["start_us"]
    assert api.most_in_flight <= 3


@on_uvloop
async def test_prompts_are_as_long_as_wanted_and_never_twice_alike() -> None:
    api, count = Api(), 0
    for out in ("a", "b"):
        outcome = await run_against(api, concurrency="1,3", out=Path(out))
        rows = lines(outcome.directory, "requests.jsonl")
        count += len(rows)
        assert all(row["prompt_tokens"] == row["want_input_tokens"] for row in rows)
        assert len({row["want_input_tokens"] for row in rows}) > 5
        assert all(row["output_tokens"] == row["want_output_tokens"] == 4 for row in rows)
    prompts = [fields["messages"][0]["content"] for fields in api.asked()]
    load = [prompt for prompt in prompts if len(prompt.split()) < 60 and prompt.split()[0] == "The" and " " in prompt]
    assert len(load) == len(set(load)) == count >= 32


@on_uvloop
async def test_the_header_says_what_was_asked_and_found() -> None:
    outcome = await run_against(Api(refuses=["ignore_eos"]), concurrency="1,3", seed=5)
    header = json.loads((outcome.directory / "run.json").read_text())
    assert (header["format"], header["model"], header["api"], header["seed"]) == (1, "tiny", "chat", 5)
    assert header["levels"] == [
        {"level": 0, "concurrency": 1, "rate_per_s": None, "speed": None, "requests": None, "duration_s": None},
        {"level": 1, "concurrency": 3, "rate_per_s": None, "speed": None, "requests": None, "duration_s": None},
    ]
    assert header["server"]["dropped"] == ["ignore_eos"]
    assert header["server"]["template_tokens"] == 7
    assert header["clock"] == "kernel"
    assert header["workload"]["input"] == "uniform:20..60"
    assert header["options"]["requests"] == 6
    assert header["host"]["cores"] >= 1
    assert header["target"].startswith("http://127.0.0.1:")


@on_uvloop
async def test_what_the_server_says_of_itself_is_sampled_around_each_level() -> None:
    page = "vllm:num_requests_running 3\nvllm:generation_tokens_total 24\n"
    outcome = await run_against(Api(answers={"/metrics": answer(page)}), metrics=(), concurrency="1,3")
    about, *samples = lines(outcome.directory, "server.jsonl")
    assert about["url"].endswith("/metrics")
    told = [one for one in samples if "running" in one]
    assert len(told) >= 5  # at the start, and before and after each level
    assert {one["running"] for one in told} == {3}
    assert all(row["ended_by"] == "requests" for row in lines(outcome.directory, "levels.jsonl"))


@on_uvloop
async def test_another_transport_is_the_user_clock() -> None:
    outcome = await run_against(Api(), transport="httpx", concurrency="2", requests=4)
    assert json.loads((outcome.directory / "run.json").read_text())["clock"] == "user"
    assert {row["read_lag_us"] for row in lines(outcome.directory, "requests.jsonl")} == {None}


@on_uvloop
async def test_the_watcher_may_end_the_run() -> None:
    told = Told(levels=1)
    outcome = await run_against(Api(), told, concurrency="1,3")
    assert [plan.concurrency for plan in told.levels] == [1]
    assert len(lines(outcome.directory, "levels.jsonl")) == 1


@on_uvloop
async def test_the_rate_is_not_above_the_politeness_cap() -> None:
    api = Api()
    begun_s = time.monotonic()
    outcome = await run_against(api, max_rps="40", concurrency="4", requests=8)
    sent_us = sorted(row["sent_us"] for row in lines(outcome.directory, "requests.jsonl"))
    assert len(sent_us) == 12
    assert sent_us[-1] - sent_us[0] >= 0.7 * 11 * 25_000  # a busy machine may delay any of them
    assert time.monotonic() - begun_s < 10


@pytest.mark.parametrize(("status", "times"), [("200 OK", 2), ("404 Not Found", 1)])
@on_uvloop
async def test_a_prefix_cache_is_reset_before_each_level_where_it_can_be(status: str, times: int) -> None:
    api = Api(answers={"/reset_prefix_cache": answer("{}", status)})
    await run_against(api, concurrency="1,3")
    assert [one.path for one in api.received].count("/reset_prefix_cache") == times


@on_uvloop
async def test_a_server_that_fails_under_load_makes_rows_and_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.closed.FAILURE_PAUSE_S", 0.001)
    api, told = Api(), Told()

    def break_down(_: Path, __: Server) -> None:
        api.answers["/v1/chat/completions"] = refusal("out of memory", "500 Internal Server Error")

    watcher = Watcher(
        on_begin=break_down, on_level=told.levels.append, on_row=told.rows.append, after_level=lambda _, __: False
    )
    async with listening(api) as server:
        outcome = await run(chosen(server.url(), concurrency="20", requests=1000), watcher)
    assert len(told.rows) >= 20
    assert {(row.status, row.http_status) for row in told.rows} == {("failed", 500)}
    assert lines(outcome.directory, "levels.jsonl")[0]["ended_by"] == "errors"


# Interrupts


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@contextlib.asynccontextmanager
async def held_in_the_load(api: Api, told: Told, **flags: Any) -> Any:
    """A run whose requests hang at the server as soon as three rows have come."""
    async with listening(api) as server, asyncio.timeout(10):
        task = asyncio.create_task(run(chosen(server.url(), concurrency="3,5", requests=50, **flags), told.watcher))
        while len(told.rows) < 3:
            await told.row_came.wait()
            told.row_came.clear()
        api.hold = asyncio.Event()
        while api.in_flight < 3:
            await asyncio.sleep(0.001)
        yield task


@on_uvloop
async def test_an_interrupt_lets_requests_end_and_keeps_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.levels.CLOCK_SAMPLE_S", 0.02)
    api, told = Api(), Told()
    async with held_in_the_load(api, told) as task:
        interrupt()
        await asyncio.sleep(0.05)
        assert not task.done()
        assert api.hold is not None
        api.hold.set()
        outcome = await task
    assert outcome.interrupted
    rows = lines(outcome.directory, "requests.jsonl")
    assert len(rows) == len(told.rows) >= 6
    assert {row["status"] for row in rows} == {"ok"}
    assert [end["ended_by"] for end in lines(outcome.directory, "levels.jsonl")] == ["interrupt"]
    assert [plan.level for plan in told.levels] == [0]


@on_uvloop
async def test_after_an_interrupt_hanging_requests_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.levels.CLOCK_SAMPLE_S", 0.02)
    monkeypatch.setattr("loadgen.levels.DRAIN_S", 0.05)
    api, told = Api(), Told()
    async with held_in_the_load(api, told) as task:
        interrupt()
        outcome = await task
    statuses = [row["status"] for row in lines(outcome.directory, "requests.jsonl")]
    assert statuses.count("cancelled") == 3
    assert len(statuses) == len(told.rows)


@on_uvloop
async def test_a_second_interrupt_leaves_at_once_and_keeps_all_rows() -> None:
    api, told = Api(), Told()
    async with held_in_the_load(api, told) as task:
        interrupt()
        await asyncio.sleep(0.01)
        interrupt()
        begun_s = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - begun_s < 0.5
    rows = lines(Path("out"), "requests.jsonl")
    assert len(rows) == len(told.rows)
    assert [row["status"] for row in rows].count("cancelled") == 3
    assert [row["status"] for row in rows].count("ok") >= 3


@on_uvloop
async def test_a_second_interrupt_waits_for_what_is_still_to_be_parsed() -> None:
    api, told = Api(max_model_len=None), Told()
    async with held_in_the_load(api, told, output="4000") as task:
        interrupt()
        assert api.hold is not None
        api.hold.set()
        while api.in_flight:
            await asyncio.sleep(0)
        interrupt()
        with pytest.raises(asyncio.CancelledError):
            await task
    (server,) = told.servers
    sent = len(api.asked()) - server.facts["preflight_requests"]
    assert len(lines(Path("out"), "requests.jsonl")) == len(told.rows) == sent


@on_uvloop
async def test_an_interrupt_before_the_load_leaves_nothing() -> None:
    api = Api(hold=asyncio.Event())  # the first probe hangs
    async with listening(api) as server:
        task = asyncio.create_task(run(chosen(server.url()), Told().watcher))
        while not api.in_flight:
            await asyncio.sleep(0.001)
        interrupt()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert os.listdir() == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# What ends a run before it begins


@on_uvloop
async def test_a_run_is_never_overwritten() -> None:
    Path("out").mkdir()
    Path("out/mine").write_text("kept")
    with pytest.raises(ValueError, match=r"^out exists already: a run is never overwritten, choose another --out$"):
        await run_against(Api())
    assert os.listdir("out") == ["mine"]


@on_uvloop
async def test_requests_over_the_servers_limit_are_refused_before_any_load() -> None:
    api = Api(max_model_len=63)
    with pytest.raises(Unusable, match=r"^a request of 60 input and 4 output tokens is over the server's limit of 63"):
        await run_against(api)
    assert os.listdir() == []
    await run_against(Api(max_model_len=64))


@on_uvloop
async def test_an_unusable_target_leaves_no_directory() -> None:
    with pytest.raises(Unusable):
        await run_against(Api(models=["a", "b"]))
    assert os.listdir() == []


@on_uvloop
async def test_open_files_are_asked_for_and_their_lack_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 100))
    with pytest.raises(ValueError, match=r"^--concurrency 200 needs 264 open files, and this process may have 100: "):
        await run_against(Api(), concurrency="1,200")
    assert asked == []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 100_000))
    await run_against(Api(), concurrency="20")
    assert asked == [(84, 100_000)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await run_against(Api(), concurrency="20", out=Path("more"))
    assert asked == [(84, 100_000)]


@on_uvloop
async def test_a_run_without_a_place_gets_one_named_after_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api(models=["org/tiny: 1"])
    first = (await run_against(api, out=None, concurrency="1", requests=1)).directory
    assert first.parent == Path("runs")
    assert first.name.endswith("-tiny-1-chat")
    monkeypatch.setattr("loadgen.run.utc", lambda _: datetime.strptime(first.name[:15] + "Z", "%Y%m%d-%H%M%S%z"))
    second = (await run_against(api, out=None, concurrency="1", requests=1)).directory
    assert second == first.with_name(first.name + "-2")


@on_uvloop
async def test_secrets_of_the_body_are_hidden_where_the_server_repeats_them() -> None:
    api = Api(refuses=["extra"], says="bad value CANARY-1 of {}")
    with pytest.raises(Unusable) as caught:
        await run_against(api, body='{"extra": [{"api_key": "CANARY-1"}]}')
    assert "CANARY" not in str(caught.value)
    assert "bad value *** of extra" in str(caught.value)


@on_uvloop
async def test_a_probe_is_a_run_without_load() -> None:
    api = Api()
    async with listening(api) as server:
        found = await probe(chosen(server.url()))
    assert found.dialect.model == "tiny"
    assert len(api.asked()) == found.facts["preflight_requests"]
    assert os.listdir() == []


@on_uvloop
async def test_prompts_follow_the_tokenizer_where_the_server_does_not_count(tmp_path: Path) -> None:
    api = Api(tokenizes=False, counts=False, template_tokens=0)
    outcome = await run_against(api, tokenizer=tokenizer_file(tmp_path))
    header = json.loads((outcome.directory / "run.json").read_text())
    assert header["server"]["prompt_tokens_from"] == "tokenizer"
    rows = lines(outcome.directory, "requests.jsonl")
    assert {row["tokens_from"] for row in rows} == {"tokenizer"}
    assert {row["output_tokens"] for row in rows} == {4}
    wanted = sorted(row["want_input_tokens"] for row in rows)
    load = api.asked()[-len(rows) :]
    assert sorted(len(fields["messages"][0]["content"].split()) for fields in load) == wanted
