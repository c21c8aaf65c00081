"""Workloads on a real vLLM: what its prefix cache found is what the plan says it shares, and no more."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from analysis import prompts, records
from tests.engine.conftest import Engine

BLOCK_TOKENS = 32  # of this vLLM: see FLAGS

MIXED = """
description = "short chats, and questions on one of three documents"

[[class]]
name = "chat"
weight = 2
input = "lognormal:120,0.4"
output = "uniform:8..24"

[[class]]
name = "documents"
weight = 1
input = 40
output = 8
shared_prefix = 300
groups = 3
"""
CONVERSATIONS = """
input = "uniform:40..80"
output = 16
turns = 3
think_ms = 100
"""


class Run(msgspec.Struct, frozen=True):
    level: dict[str, Any]
    rows: list[dict[str, Any]]
    header: records.Header
    exit_code: int


def measure(engine: Engine, folder: Path, *flags: str, workload: str) -> Run:
    (folder / "workload.toml").write_text(workload)
    command: list[str | Path] = [Path(sys.executable).with_name("loadgen"), "run", engine.url]
    command += ["--workload", folder / "workload.toml"]
    done = subprocess.run(
        [*command, *flags, "--out", folder / "run", "--json"], capture_output=True, text=True, timeout=400
    )
    assert done.stdout, done.stderr[-4000:]
    rows = [json.loads(line) for line in (folder / "run" / "requests.jsonl").read_text().splitlines()]
    (level,) = json.loads(done.stdout)["levels"]
    return Run(level, rows, records.read_header(folder / "run"), done.returncode)


def errors(run: Run) -> set[str]:
    return {finding["code"] for finding in run.level["findings"] if finding["severity"] == "error"}


def cached_if_seen(run: Run, shared_tokens: int) -> int:
    """What is in the cache of a prefix that an earlier request had, by workloads/text.py."""
    head = prompts.common_tokens(run.header)
    assert head is not None
    return int(head + shared_tokens) // BLOCK_TOKENS * BLOCK_TOKENS


@pytest.fixture(scope="module")
def mixed(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Run:
    flags = ("--concurrency", "4", "--requests", "120")
    return measure(engine, tmp_path_factory.mktemp("mixed"), *flags, workload=MIXED)


@pytest.fixture(scope="module")
def conversations(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Run:
    flags = ("--concurrency", "3", "--requests", "60")
    return measure(engine, tmp_path_factory.mktemp("conversations"), *flags, workload=CONVERSATIONS)


@pytest.fixture(scope="module")
def open_loop(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Run:
    flags = ("--rate", "4", "--duration", "20s", "--workers", "2", "--input", "64", "--output", "8")
    return measure(engine, tmp_path_factory.mktemp("open"), *flags, workload="input = 1\noutput = 1\n")


@pytest.mark.parametrize("name", ["mixed", "conversations", "open_loop"])
def test_every_request_succeeds(name: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(name)
    assert {row["status"] for row in run.rows} == {"ok"}
    # The server computes on the client's cores: when others do too, "the client was late" is the right answer.
    assert errors(run) <= {"client-lag", "send-lag"}, run.level["findings"]
    assert run.exit_code == (4 if errors(run) else 0)


def test_lengths_are_exact_also_with_a_shared_prefix(mixed: Run) -> None:
    assert [row["prompt_tokens"] for row in mixed.rows] == [row["want_input_tokens"] for row in mixed.rows]
    assert [row["output_tokens"] for row in mixed.rows] == [row["want_output_tokens"] for row in mixed.rows]
    documents = [row for row in mixed.rows if row["class"] == "documents"]
    assert {(row["prompt_tokens"], row["shared_tokens"]) for row in documents} == {(340, 300)}


def test_where_nothing_is_shared_nothing_is_cached(mixed: Run, open_loop: Run) -> None:
    chats = [row for row in mixed.rows if row["class"] == "chat"]
    assert len(chats) > 50
    assert {row["cached_tokens"] for row in chats} == {0}
    assert {row["cached_tokens"] for row in open_loop.rows} == {0}


def test_a_shared_prefix_is_cached_as_the_plan_says(mixed: Run) -> None:
    documents = [row for row in mixed.rows if row["class"] == "documents"]
    ends: dict[int, int] = {}  # when the first answer of each group ended: until then its blocks may not be there yet
    for row in documents:
        end = row["sent_us"] + row["end_us"]
        ends[row["group"]] = min(end, ends.get(row["group"], end))
    assert sorted(ends) == [0, 1, 2]
    later = [row["cached_tokens"] for row in documents if row["sent_us"] > ends[row["group"]]]
    assert len(later) > 20
    planned = cached_if_seen(mixed, 300)
    assert planned >= 288
    assert set(later) <= {planned, planned + BLOCK_TOKENS}  # one block more where two prompts' next words are alike
    assert later.count(planned) > len(later) / 2
    assert not {row["cached_tokens"] for row in documents} - {0, *later}
    codes = {finding["code"] for finding in mixed.level["findings"]}
    assert not codes & {"cached-prompts", "input-length", "output-length"}


def test_each_class_is_told_apart(mixed: Run) -> None:
    classes = {part["name"]: part for part in mixed.level["classes"]}
    assert sorted(classes) == ["chat", "documents"]
    assert classes["documents"]["tokens"]["prompt_mean"] == 340
    assert classes["chat"]["tokens"]["cached_share"] == 0
    sent = sum(part["requests"]["sent"] for part in classes.values())
    assert sent == mixed.level["requests"]["sent"]


def test_a_conversation_grows_by_the_servers_answers_and_finds_them_in_the_cache(conversations: Run) -> None:
    turns: dict[int, dict[int, dict[str, Any]]] = {}
    for row in conversations.rows:
        turns.setdefault(row["session"], {})[row.get("turn", 0)] = row
    whole = [session for session in turns.values() if len(session) == 3]
    assert len(whole) >= 12
    for session in whole:
        assert session[0]["cached_tokens"] == 0
        for turn in (1, 2):
            before, now = session[turn - 1], session[turn]
            ended_us = before["sent_us"] + before["end_us"]
            assert now["due_us"] - ended_us == pytest.approx(100_000, abs=2)  # rows are cut to whole us
            assert now["prompt_tokens"] > before["prompt_tokens"] + 40  # the words of this turn are 40 to 80
            # The prompt of the turn before is cached but for its last, unfilled block and the template's tail.
            assert now["cached_tokens"] >= before["prompt_tokens"] - 2 * BLOCK_TOKENS
            assert now["cached_tokens"] <= now["prompt_tokens"]
    first, later = conversations.level["turns"]["first"], conversations.level["turns"]["later"]
    assert first["tokens"]["cached_share"] == 0
    assert later["tokens"]["cached_share"] > 0.3


def test_an_open_loop_keeps_its_rate_on_a_real_server(open_loop: Run) -> None:
    assert open_loop.level["rate_per_s"] == 4
    assert open_loop.level["schedule"]["achieved_share"] == pytest.approx(1, abs=0.02)
    assert open_loop.level["schedule"]["dropped"] == 0
