"""`loadgen plan`: what it prints, and how it ends."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.app import execute
from workloads.plan import digest
from workloads.workload import load

LOADGEN = (sys.executable, "-m", "loadgen.cli.app")


class Printed:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def text(self, *arguments: str) -> str:
        assert execute(["plan", *arguments]) == 0
        out, err = self._capsys.readouterr()
        assert err == ""
        return out

    def lines(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text(*arguments).splitlines()]

    def complaint(self, *arguments: str) -> str:
        assert execute(["plan", *arguments]) == 2
        out, err = self._capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        return err


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    return Printed(capsys)


def test_ten_requests_unless_told(printed: Printed) -> None:
    lines = printed.lines()
    assert [line["index"] for line in lines] == list(range(10))
    assert set(lines[0]) == {"level", "index", "want_input_tokens", "want_output_tokens", "prompt"}
    assert len(printed.lines("--requests", "3")) == 3


def test_the_same_arguments_print_the_same_bytes(printed: Printed) -> None:
    arguments = ("--workload", "agent", "--seed", "5", "--requests", "4", "--rate", "3")
    assert printed.text(*arguments) == printed.text(*arguments)
    assert printed.text(*arguments) != printed.text(*arguments, "--salt", "x")
    other = printed.lines(*arguments, "--level", "1")
    assert {line["level"] for line in other} == {1}


def test_lengths_can_be_overridden(printed: Printed) -> None:
    lines = printed.lines("--input", "20", "--output", "uniform:5..6")
    assert {line["want_input_tokens"] for line in lines} == {20}
    assert {line["want_output_tokens"] for line in lines} == {5, 6}
    assert {len(line["prompt"].split()) for line in lines} == {20}


def test_groups_say_what_they_share(printed: Printed) -> None:
    lines = printed.lines("--workload", "rag", "--input", "20", "--requests", "3")
    assert {line["shared_tokens"] for line in lines} == {9961}
    assert all(line["want_input_tokens"] == 9981 for line in lines)
    assert all(0 <= line["group"] < 20 for line in lines)


def test_each_turn_has_a_line(printed: Printed, tmp_path: Path) -> None:
    path = tmp_path / "talk.toml"
    path.write_text("input = 20\noutput = 5\nturns = 3\nthink_ms = 40\n")
    lines = printed.lines("--workload", str(path), "--requests", "4", "--rate", "2")
    assert [(line["index"], line["session"], line["turn"], line["think_us"]) for line in lines] == [
        (0, 0, 0, 0),
        (1, 0, 1, 40_000),
        (2, 0, 2, 40_000),
        (3, 3, 0, 0),
    ]
    assert [line["want_input_tokens"] for line in lines] == [20, None, None, 20]
    assert ["due_us" in line for line in lines] == [True, False, False, True]


def test_a_schedule_says_when(printed: Printed) -> None:
    constant = printed.lines("--arrivals", "constant", "--rate", "4", "--requests", "3")
    assert [line["due_us"] for line in constant] == [0, 250_000, 500_000]
    ramp = printed.lines("--arrivals", "ramp:1..5", "--duration", "2s", "--requests", "99")
    assert 1 <= len(ramp) <= 20
    assert all(line["due_us"] <= 2_000_000 for line in ramp)


def test_a_trace_says_when_and_how_long(printed: Printed, tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,30,5\n2023-11-16 18:15:48,40,6\n")
    lines = printed.lines("--arrivals", f"trace:{path}", "--speed", "2")
    assert [(line["due_us"], line["want_input_tokens"], line["want_output_tokens"]) for line in lines] == [
        (0, 30, 5),
        (1_000_000, 40, 6),
    ]
    only_times = printed.lines("--arrivals", f"trace:{path}", "--workload", "chat")
    assert [line["want_input_tokens"] for line in only_times] == [
        line["want_input_tokens"] for line in printed.lines("--requests", "2")
    ]


def test_a_data_set_is_dealt_out(printed: Printed, tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\ntwo\nzw\u00f6lf\n")
    lines = printed.lines("--dataset", str(path), "--level", "0", "--levels", "2")
    assert [(line["item"], line["prompt"], line["want_input_tokens"]) for line in lines] == [
        (0, "one", None),
        (2, "zw\u00f6lf", None),
    ]
    assert printed.text("--dataset", str(path)).isascii()  # nothing steers a terminal


def test_the_digest_is_that_of_a_run(printed: Printed) -> None:
    assert printed.text("--digest") == digest(load("chat"), seed=0, api="chat") + "\n"
    assert printed.text("--digest", "--seed", "3", "--rate", "2", "--api", "completions").strip() == digest(
        load("chat"), seed=3, api="completions", arrivals="poisson"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--requests", "0"], "--requests must be at least 1"),
        (["--seed", "-1"], "--seed at least 0"),
        (["--api", "x"], "--api x: expected chat or completions"),
        (["--workload", "nope"], "no workload 'nope'"),
        (["--input", "x"], "input: length 'x'"),
        (["--rate", "0"], "is no rate"),
        (["--arrivals", "sometimes"], "arrivals 'sometimes'"),
        (["--arrivals", "poisson"], "no rate"),
        (["--level", "9999"], "4096 levels"),
        (["--dataset", "nope"], "nope"),
    ],
)
def test_a_mistake_is_one_line(printed: Printed, arguments: list[str], says: str) -> None:
    assert says in printed.complaint(*arguments)


def test_a_reader_that_has_seen_enough_ends_it_quietly() -> None:
    command = [*LOADGEN, "plan", "--requests", "100000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["index"] == 0
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=20) == 0
