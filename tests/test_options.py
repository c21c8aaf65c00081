"""From flags to settings, and to what run.json keeps of them."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.options import Options, recorded, settings
from loadgen.course import DEFAULT_UNTIL, Until
from loadgen.exchange import Limits

TARGET = "localhost:8000"


def test_the_defaults_are_those_of_the_contract() -> None:
    chosen = settings(TARGET, Options())
    assert chosen.concurrency == (1, 2, 4, 8, 16, 32, 64)
    assert chosen.until == DEFAULT_UNTIL == Until(duration_s=30, per_slot=10)
    assert chosen.workload.name == "chat"
    assert chosen.limits == Limits(first_s=60, idle_s=30, total_s=600, connect_s=10)
    assert (chosen.seed, chosen.api, chosen.model, chosen.max_rps, chosen.extra) == (0, None, None, None, {})
    assert (chosen.access.api_key_env, chosen.access.transport, chosen.access.insecure) == (
        "OPENAI_API_KEY",
        "stamped",
        False,
    )


@pytest.mark.parametrize(
    ("flags", "until"),
    [
        ({"requests": 5}, Until(requests=5)),
        ({"duration": "2m"}, Until(duration_s=120)),
        ({"requests": 5, "duration": "1s"}, Until(requests=5, duration_s=1)),
        ({"requests": "enough"}, Until(duration_s=600, enough=True)),
        ({"requests": "enough", "duration": "1h", "rate": "4"}, Until(duration_s=3600, enough=True)),
        ({"requests": "enough", "max_errors": 3}, Until(duration_s=600, errors=3, enough=True)),
    ],
)
def test_when_a_level_ends(flags: dict[str, Any], until: Until) -> None:
    assert settings(TARGET, Options(**flags)).until == until


def test_every_flag_reaches_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-1")
    chosen = settings(
        TARGET,
        Options(
            concurrency="3,5", max_rps="2/s", input="100", output="uniform:5..9", seed=7, tokenizer=Path("t.json"),
            model="m", api="completions", body='{"temperature": 0}', header=("X-A: 1", "X-B: 2"), api_key_env="MY_KEY",
            timeout="first=1s,connect=2s", ca_file=Path("ca.pem"), insecure=True, transport="httpx", out=Path("o"),
            metrics=("localhost:9090",), hardware="@h100,dtype=fp8",
        ),
    )  # fmt: skip
    assert chosen.hardware == chosen.options["hardware"] == "@h100,dtype=fp8"
    assert chosen.metrics == ("localhost:9090",)
    assert (chosen.concurrency, chosen.max_rps, chosen.seed, chosen.tokenizer) == ((3, 5), 2.0, 7, Path("t.json"))
    assert (str(chosen.workload.classes[0].input), str(chosen.workload.classes[0].output)) == ("100", "uniform:5..9")
    assert (chosen.model, chosen.api, chosen.extra, chosen.out) == ("m", "completions", {"temperature": 0}, Path("o"))
    assert chosen.access.headers == (("X-A", "1"), ("X-B", "2"))
    assert (chosen.access.api_key, chosen.access.api_key_env) == ("sk-1", "MY_KEY")
    assert (chosen.access.ca_file, chosen.access.insecure, chosen.access.transport) == (Path("ca.pem"), True, "httpx")
    assert chosen.limits == Limits(first_s=1, idle_s=30, total_s=600, connect_s=2)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"concurrency": ""}, "--concurrency ''"),
        ({"concurrency": "0"}, "--concurrency '0': a level is a number"),
        ({"concurrency": "8..1"}, "--concurrency '8..1': the range 8..1 runs backwards, write 1..8"),
        ({"requests": 0}, "--requests 0: expected at least 1"),
        ({"duration": "0s"}, "--duration '0s' is no duration"),
        ({"duration": ""}, "--duration '' is no duration"),
        ({"max_rps": "0"}, "--max-rps '0' is no rate"),
        ({"max_errors": 0}, "--max-errors 0: expected at least 1"),
        ({"max_event": "1"}, "--max-event '1' is no size"),
        ({"seed": -1}, "--seed -1: expected 0 or more"),
        ({"input": "-5"}, "length '-5'"),
        ({"output": "0"}, "length '0'"),
        ({"workload": "nope"}, "no workload 'nope'"),
        ({"api": "responses"}, "--api responses: expected chat or completions"),
        ({"transport": "curl"}, "--transport curl: expected stamped or httpx"),
        ({"body": "["}, "--body is not JSON"),
        ({"timeout": "all=1s"}, "--timeout"),
        ({"header": ("CANARY",)}, "--header expects 'Name: value'"),
        ({"hardware": "h100"}, "--hardware a model has no size in bytes without a precision"),
        ({"hardware": "lama-3.1-8b@h100,dtype=bf16"}, "--hardware unknown model 'lama-3.1-8b'; nearest: llama-3.1-8b"),
        ({"metrics": ("none", "localhost:9090")}, "--metrics none stands alone"),
        ({"metrics": ("ftp://u:CANARY@x",)}, "--metrics: expected http(s)://host[:port][/path] of a Prometheus page"),
        ({"api_key_env": "sk-CANARY"}, "--api-key-env expects the name of an environment variable, not the key"),
    ],
)
def test_the_first_flag_that_makes_no_sense_is_named(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match="^[^\n]*" + re.escape(says)) as caught:
        settings(TARGET, Options(**flags))
    assert "CANARY" not in str(caught.value)


def test_a_bad_target_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(ValueError, match=r"^target 'nowhere'"):
        settings("nowhere", Options())
    assert settings("sim:any@thing", Options()).target == "sim:any@thing"


def test_what_is_recorded_is_every_flag_without_its_secrets() -> None:
    body = {"user": "me", "api_key": "CANARY", "extra": [{"token": "CANARY", "deep": {"secret": {"a": "CANARY"}}}]}
    kept = recorded(
        Options(
            header=("X-Team: blue", "Authorization: Bearer CANARY", "x-api-key: CANARY"),
            body=json.dumps(body),
            out=Path("some/where"),
            metrics=("http://me:CANARY@here:9090/metrics?key=CANARY",),
        )
    )
    assert set(kept) == {field.name for field in fields(Options)}
    assert "CANARY" not in json.dumps(kept)
    assert kept["header"] == ["X-Team: blue", "Authorization: ***", "x-api-key: ***"]
    assert kept["body"] == {"user": "me", "api_key": "***", "extra": [{"token": "***", "deep": {"secret": "***"}}]}
    assert kept["out"] == "some/where"
    assert "here:9090/metrics" in kept["metrics"][0]
    assert kept["insecure"] is False


def test_slo_values_are_read_and_kept_as_terms(tmp_path: Path) -> None:
    assert settings(TARGET, Options()).slo == ()
    chosen = settings(TARGET, Options(slo=("chat", "TTFT p99 <= 0.5s", "error_rate<1%")))
    assert chosen.slo == ("ttft p99 < 500ms", "tpot p99 < 50ms", "error_rate < 1%")
    assert chosen.options["slo"] == ("chat", "TTFT p99 <= 0.5s", "error_rate<1%")
    with pytest.raises(ValueError, match=r"--slo 'tfft p99 < 1s': there is no metric 'tfft'; nearest: ttft"):
        settings(TARGET, Options(slo=("tfft p99 < 1s",)))
    file = tmp_path / "mine.toml"
    file.write_text('input = 1\noutput = 1\nslo = ["ttft < 1s"]\n')
    with pytest.raises(ValueError, match="workload mine: slo 'ttft < 1s': ttft needs a percentile"):
        settings(TARGET, Options(workload=str(file)))
