"""`loadgen slo` from the command line: each exit code, over real HTTP; and what it refuses."""

import gc
import itertools
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis import client_findings, plots, validity
from analysis.answer import TRIES
from loadgen.cli.app import execute
from loadgen.cli.slo import SloOptions, asked_of
from loadgen.exchange import Exchange, Sent
from tests.fakes_api import Api, listening_in_a_thread, refusal
from tests.fakes_tls import little_trust
from tests.test_selfcheck import Paced
from workloads import schedule

__all__ = ["little_trust"]

LOAD = ["--concurrency", "4", "--input", "32", "--output", "4", "--metrics", "none"]
Said = tuple[int, dict[str, Any], str]


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, little_trust: None) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(plots, "draw", lambda *_: None)
    monkeypatch.setattr("loadgen.steps.LEAST_S", 0.3)
    # How busy this machine is is not under test.
    servers = [check for check in validity.CHECKS if check.__module__ != client_findings.__name__]
    monkeypatch.setattr(validity, "CHECKS", (*servers, client_findings.clock_step))
    yield
    gc.unfreeze()


@pytest.fixture
def slo(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def slo(*flags: str, api: Api | None = None, load: list[str] = LOAD) -> Said:
        """Exit code, summary, and standard error."""
        with listening_in_a_thread(api or Paced()) as server:
            code = execute(["slo", server.url(), *load, "--json", *flags])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else {}, err

    return slo


# Exit codes


# On a busy machine latencies come in bursts, and many of them are worth a few: these terms are about none.


def test_pass_is_0(slo: Callable[..., Said]) -> None:
    code, said, err = slo("--slo", "error_rate < 50%", "--budget", "10s")
    assert (code, said["answer"]["verdict"], said["curve"]["holds"]) == (0, "PASS", 4.0)
    assert "passes with 7 independent requests at least" in err
    assert "PASS: the SLO holds at 4 at once" in err


def test_fail_is_1(slo: Callable[..., Said]) -> None:
    code, said, _ = slo("--slo", "throughput > 1000000", "--budget", "6s")
    assert (code, said["answer"]["verdict"], said["curve"]["fails"]) == (1, "FAIL", 4.0)


def test_undecided_is_3_and_the_same_directory_goes_on(slo: Callable[..., Said]) -> None:
    flags = ("--slo", "ttft p99.99 < 30s", "--budget", "1s", "--out", "here")  # it takes 46,000 requests to pass
    code, said, _ = slo(*flags)
    assert code == 3
    count = len(said["levels"])
    with listening_in_a_thread(Paced()) as server:
        head = json.loads(Path("here/run.json").read_text())
        head["target"] = re.sub(r":\d+", f":{server.port}", head["target"])
        Path("here/run.json").write_text(json.dumps(head))
        code = execute(["slo", server.url(), *LOAD, "--json", *flags])
    assert code == 3
    rows = [json.loads(line) for line in Path("here/levels.jsonl").read_text().splitlines()]
    assert len(rows) > count
    assert [row["level"] for row in rows] == list(range(len(rows)))


def test_another_question_in_the_same_directory_is_2(slo: Callable[..., Said]) -> None:
    slo("--slo", "ttft p95 < 30s", "--budget", "1s", "--out", "here")
    code, said, err = slo("--slo", "ttft p95 < 20s", "--budget", "1s", "--out", "here")
    assert (code, said) == (2, {})
    assert "here holds a run with another " in err
    assert "choose another --out" in err


def test_a_client_that_is_the_limit_is_4(slo: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    """A wall clock that steps makes any level invalid."""
    from loadgen.clock import Drift

    monkeypatch.setattr(Drift, "sample", lambda self: setattr(self, "largest_step_ns", 1_000_000_000))
    code, said, err = slo("--slo", "ttft p95 < 30s", "--budget", "6s")
    assert (code, said["answer"]["verdict"], len(said["levels"])) == (4, "INVALID", TRIES)
    assert said["answer"]["loads"][0]["why_not"].startswith("clock-step: ")
    assert "INVALID: what was measured at 4 at once is not the server's doing" in err


def test_no_success_is_4(slo: Callable[..., Said]) -> None:
    class Breaks(Api):
        """Answers the preflight, and fails under load."""

        async def _complete(self, fields: dict[str, Any], chat: bool, writer: Any) -> None:
            if fields.get("max_tokens") == 4:
                writer.write(refusal("out of memory", "500 Internal Server Error"))
            else:
                await super()._complete(fields, chat, writer)

    code, said, _ = slo("--slo", "ttft p95 < 30s", "--budget", "4s", api=Breaks())
    assert (code, said["answer"]["verdict"]) == (4, "INVALID")
    assert said["answer"]["loads"][0]["why_not"].startswith("survivors: none of ")


def test_an_interrupt_is_130_and_keeps_what_was_measured(
    slo: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = Exchange.run, itertools.count()

    async def run(self: Exchange) -> Sent:
        if next(calls) == 20:  # the preflight has but a few
            os.kill(os.getpid(), signal.SIGINT)
        return await whole(self)

    monkeypatch.setattr(Exchange, "run", run)
    code, _, _ = slo("--slo", "ttft p95 < 30s", "--budget", "30s", "--out", "here")
    assert code == 130
    assert Path("here/requests.jsonl").read_text()


def test_a_search_over_real_http(slo: Callable[..., Said]) -> None:
    load = ["--find", "concurrency", "--concurrency", "1..2", *LOAD[2:]]
    code, said, err = slo("--slo", "error_rate < 50%", "--budget", "60s", load=load)
    assert (code, said["seeks"], said["answer"]["found"]["holds"]) == (0, "concurrency", 2.0)
    assert "PASS: the SLO holds up to 2 at once, the largest load asked for" in err
    assert {level["concurrency"] for level in said["levels"]} == {1, 2}


# What it refuses


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"concurrency": "4", "requests": 10}, "--requests and --duration are those of run"),
        ({"concurrency": "4", "duration": "10s"}, "say|until --budget ends"),
        ({}, "at which load"),
        ({"concurrency": "4,8"}, "2 loads, and the question is about one"),
        ({"rate": "1..8"}, "4 loads"),
        ({"arrivals": "ramp:1..5"}, "an SLO is held to one load"),
        ({"arrivals": "trace:x.csv", "find": "rate"}, "an SLO is held to one load"),
        ({"find": "size"}, "--find size: expected concurrency or rate"),
        ({"find": "concurrency", "rate": "4"}, "--find concurrency is a closed loop"),
        ({"find": "rate", "concurrency": "4"}, "--find rate is an open loop"),
        ({"find": "concurrency", "concurrency": "64"}, "say a range, such as --concurrency 1..64"),
    ],
)
def test_what_does_not_go_together_is_refused(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        asked_of(SloOptions(**flags))


@pytest.mark.parametrize(
    ("flags", "bounds"),
    [
        ({"find": "concurrency", "concurrency": "4..100"}, (4, 100)),
        ({"find": "rate", "rate": "0.5..20"}, (0.5, 20)),
        ({"find": "rate", "arrivals": "gamma:2"}, (schedule.LOWEST_RATE_PER_S, schedule.HIGHEST_RATE_PER_S)),
    ],
)
def test_where_a_search_looks(flags: dict[str, Any], bounds: tuple[float, float]) -> None:
    asked = asked_of(SloOptions(**flags))
    assert (asked["seeks"], asked["bounds"]) == (flags["find"], bounds)


def test_what_is_to_hold_has_to_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["slo", "localhost:1", "--concurrency", "4"]) == 2
    assert "what is to hold?" in capsys.readouterr().err
    assert execute(["slo", "localhost:1", "--concurrency", "4", "--slo", "chat", "--budget", "soon"]) == 2
    assert "--budget 'soon' is no duration" in capsys.readouterr().err
    assert execute(["slo", "localhost:1", "--find", "rate", "--slo", "throughput > 100"]) == 2
    assert "throughput grows with the load" in capsys.readouterr().err
