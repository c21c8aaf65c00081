"""Which levels the flags ask for, and which flags do not go together."""

import re
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.options import Options, settings
from loadgen.course import Until
from loadgen.load import level_count, levels_of
from loadgen.record import LevelPlan
from loadgen.settings import Settings

TARGET = "localhost:8000"


@pytest.fixture(autouse=True)
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four requests in 3 s, as trace.txt; azure.csv has lengths too."""
    monkeypatch.chdir(tmp_path)
    Path("trace.txt").write_text("10\n11\n11.5\n13\n")
    Path("azure.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,100,20\n2024-05-10 00:00:02,300,7\n"
    )
    Path("prompts.txt").write_text("One\nTwo\n")


def chosen(**flags: Any) -> Settings:
    return settings(TARGET, Options(**flags))


def test_an_open_loop_is_poisson_and_lasts_30_s_unless_said_otherwise() -> None:
    made = chosen(rate="2,4..16")
    assert str(made.law) == "poisson"
    assert (made.rates, made.concurrency, made.until) == ((2, 4, 8, 16), (), Until(duration_s=30))
    assert levels_of(made) == [LevelPlan(level, None, 2.0 * 2**level) for level in range(4)]
    assert level_count(made) == 4
    made = chosen(rate="3", arrivals="gamma:2", max_concurrency=7, requests=5, max_errors=2)
    assert (str(made.law), made.max_concurrency, made.until) == ("gamma:2", 7, Until(requests=5, errors=2))


def test_a_ramp_is_one_level_with_rates_of_its_own() -> None:
    made = chosen(arrivals="ramp:2..10", max_errors=3)
    assert made.until == Until(duration_s=30, errors=3)
    assert levels_of(made) == [LevelPlan(0, None, 6.0)]
    assert level_count(made) == 1
    assert chosen(arrivals="ramp:2..10", requests=9, duration="2m").until == Until(requests=9, duration_s=120)


def test_a_trace_is_replayed_whole_at_each_speed() -> None:
    made = chosen(arrivals="trace:trace.txt", speed="1,2")
    assert (made.until, made.speeds) == (Until(), (1, 2))
    plans = levels_of(made)
    assert [plan.speed for plan in plans] == [1, 2]
    assert [plan.rate_per_s for plan in plans] == pytest.approx([4 / 3, 8 / 3])
    assert level_count(made) == 2
    assert chosen(arrivals="trace:trace.txt").speeds == (1,)
    (cut,) = levels_of(chosen(arrivals="trace:trace.txt", duration="2s"))
    assert cut == LevelPlan(0, None, 1.5, 1.0)  # three requests in 2 s


def test_a_trace_of_one_moment_has_no_rate() -> None:
    Path("trace.txt").write_text("10\n")
    assert levels_of(chosen(arrivals="trace:trace.txt")) == [LevelPlan(0, None, None, 1.0)]


def test_the_lengths_of_a_trace_stand_in_for_the_default_workload_only() -> None:
    assert chosen(arrivals="trace:azure.csv").workload.classes[0].needs_trace
    assert not chosen(arrivals="trace:azure.csv", workload="chat").workload.classes[0].needs_trace
    assert not chosen(arrivals="trace:trace.txt").workload.classes[0].needs_trace


def test_a_data_set_is_used_once_or_again_and_again() -> None:
    (once,) = chosen(dataset=Path("prompts.txt")).workload.classes
    (again,) = chosen(dataset=Path("prompts.txt"), repeat=True).workload.classes
    assert (once.dataset, once.repeat, again.repeat) == (Path("prompts.txt"), False, True)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"rate": "2", "concurrency": "2"}, "--concurrency is a closed loop and --rate an open one: choose one"),
        ({"arrivals": "ramp:1..2", "concurrency": "2"}, "--concurrency is a closed loop and --arrivals an open one"),
        ({"arrivals": "poisson"}, "--arrivals poisson needs a rate: say --rate"),
        ({"arrivals": "gamma:2"}, "--arrivals gamma:2 needs a rate: say --rate"),
        ({"arrivals": "constant"}, "--arrivals constant needs a rate: say --rate"),
        (
            {"arrivals": "ramp:1..2", "rate": "3"},
            "--arrivals ramp:1..2 goes from one rate to another",
        ),
        ({"arrivals": "trace:trace.txt", "rate": "3"}, "--arrivals trace:trace.txt has its own times"),
        ({"arrivals": "ramp:1..2", "speed": "2"}, "--speed is that of a trace, and --arrivals ramp:1..2 is none"),
        ({"rate": "3", "speed": "2"}, "--speed is that of a trace, and --arrivals poisson is none: use --rate"),
        ({"speed": "2"}, "--speed is that of a trace: say --arrivals trace:FILE"),
        ({"concurrency": "2", "speed": "2"}, "--speed is that of a trace"),
        ({"rate": "3", "max_rps": "2"}, "--max-rps slows a closed loop"),
        ({"max_concurrency": 3}, "--max-concurrency is the cap of an open loop"),
        ({"concurrency": "2", "max_concurrency": 3}, "--max-concurrency is the cap of an open loop"),
        ({"rate": "3", "max_concurrency": 0}, "--max-concurrency 0: expected at least 1"),
        ({"rate": "3", "requests": 0}, "--requests 0: expected at least 1"),
        ({"arrivals": "ramp:1..2", "requests": "enough"}, "--requests enough: --arrivals ramp:1..2 changes its rate"),
        ({"rate": "0"}, "--rate '0' is no rate"),
        ({"rate": ""}, "--rate '' is no rate"),
        ({"rate": "5..2"}, "--rate '5..2': the range 5..2 runs backwards"),
        ({"rate": "9" * 400}, "expected 1e-06 to 1000000 requests per second"),
        ({"rate": "2,0.0000001"}, "--rate 1e-07: expected 1e-06 to 1000000 requests per second"),
        ({"rate": "2", "arrivals": "uniform"}, "--arrivals 'uniform': expected poisson, constant, gamma:CV"),
        ({"arrivals": ""}, "--arrivals ''"),
        ({"arrivals": "trace:nowhere.csv"}, "trace nowhere.csv: No such file"),
        ({"arrivals": "trace:trace.txt", "speed": "0"}, "--speed '0' is no speed"),
        ({"repeat": True}, "--repeat is about a data set: say --dataset"),
        ({"dataset": Path("prompts.txt"), "input": "50"}, "input: the prompts are those of the data set"),
    ],
)
def test_flags_that_do_not_go_together(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(says) if says.startswith("--") else re.escape(says)) as caught:
        chosen(**flags)
    assert "\n" not in str(caught.value)
