"""`loadgen tune`: what it refuses before anything starts, what it says, and that no server outlives it."""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.cli.app import execute
from loadgen.cli.tune import TuneOptions, _asked
from tests.fakes_tls import little_trust
from tests.test_launch import free_port
from tests.test_supervisor import alive, wait_until
from tests.test_tune import SERVER, SIM, pids

__all__ = ["little_trust"]

PYTHON = sys.executable
SMALL = ["--concurrency", "2", "--requests", "4", "--input", "16", "--output", "2", "--metrics", "none"]
LONG = ["--concurrency", "2", "--duration", "60s", "--input", "16", "--output", "2", "--metrics", "none"]


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, little_trust: None) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Path("server.py").write_text(SERVER)
    yield
    gc.unfreeze()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--launch", "true"], "which settings? Say --set NAME=V1,V2, with {NAME} in --launch or TARGET"),
        (["--set", "n=1"], "--set n changes nothing"),
        (["localhost:{n}", "--set", "n=1"], "say --launch 'vllm serve MODEL ...', or a target sim:MODEL@GPU"),
        (["--launch", "true {n}"], "which settings?"),
        (["--launch", "true {n} {m}", "--set", "n=1"], "{m} has no value: say --set m=V1,V2"),
        (["--launch", "true {n}", "--set", "n=1", "--set", "m=1"], "--set m changes nothing"),
        (["--launch", "true {n}", "--set", "n"], "--set n: expected NAME=V1,V2"),
        (["--launch", "true {n} {m}", "--set", "n=1,2", "--set", "m=1", "--paired"], "n has 2, m has 1"),
        (["--launch", "true '{n}", "--set", "n=1"], "--launch cannot be split into words"),
        (["--launch", "no-such-program {n}", "--set", "n=1"], "there is no program no-such-program here"),
        (["--launch", "N=1 true {n}", "--set", "n=1"], "no shell reads it"),
        (["--launch", "true --port {n}", "--set", "n=1,2"], "--launch has several ports: say the target too"),
        (["nowhere", "--launch", "true {n}", "--set", "n=1"], "target 'nowhere'"),
        ([SIM, "--launch", "true", "--set", "n=1"], "leave one of them out"),
        ([SIM, "--set", "n=1", "--set", "env:X=1"], "the simulated engine reads none"),
        ([SIM, "--set", "n=1", "--repeats", "0"], "--repeats 0: expected at least 1"),
        ([SIM, "--set", "n=1", "--ready-timeout", "5"], "--ready-timeout '5' is no duration"),
        ([SIM, "--set", "n=1", "--concurrency", "0"], "a level is a number from 1"),
        ([SIM, "--set", "n=1", "--hardware", "@h100,dtype={d}"], "{d} has no value: say --set d=V1,V2"),
        ([SIM, "--set", "n=1,0", "--hardware", "@h100,dtype=bf16,gpus={n}"], "--hardware gpus=0: expected a whole"),
    ],
)
def test_a_mistake_is_one_line_before_anything_starts(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["tune", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("loadgen: ")
    assert err.count("\n") == 1
    assert says in err
    assert os.listdir() == ["server.py"]


@pytest.mark.parametrize(
    ("target", "launch", "expected"),
    [
        (None, "true {n}", "http://localhost:8000"),
        (None, "true {n} --port 8123", "http://localhost:8123"),
        (None, "true {n} --port=8123", "http://localhost:8123"),
        ("gpu:80", "true {n} --port 8123", "gpu:80"),
        ("http://localhost:{n}", "true --port {n}", "http://localhost:{n}"),
    ],
)
def test_where_the_server_is_looked_for(target: str | None, launch: str, expected: str) -> None:
    settings, plan = _asked(target, TuneOptions(launch=launch, set=("n=81",), api_key_env="NONE"))
    assert plan.target == expected
    assert settings.target == expected.replace("{n}", "81")


def test_flags_become_a_plan_and_the_settings_of_a_run() -> None:
    options = TuneOptions(launch="true {n}", set=("n=1,2",), repeats=5, ready_timeout="2m", concurrency="3", seed=4)
    settings, plan = _asked(None, options)
    assert (settings.hardware, settings.options["hardware"]) == (None, None)
    assert (plan.launch, [one.name for one in plan.settings]) == ("true {n}", ["n=1", "n=2"])
    assert (plan.blocks, plan.ready_s) == (5, 120)
    assert (settings.concurrency, settings.seed) == ((3,), 4)
    assert not {"launch", "set", "repeats", "paired", "ready_timeout"} & set(settings.options)  # they can have secrets


def test_hardware_can_change_with_the_setting() -> None:
    settings, _ = _asked(None, TuneOptions(launch="true {n}", set=("n=1,2",), hardware="@h100,dtype=fp8,gpus={n}"))
    assert settings.hardware == settings.options["hardware"] == "@h100,dtype=fp8,gpus={n}"


def test_a_tune_of_the_simulated_engine(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--set", "n=8,0", "--repeats", "2", *SMALL, "--out", "out"]
    assert execute(["tune", SIM, *flags]) == 3  # one setting alone was measured
    said = capsys.readouterr().err
    assert "nothing to compare: " in said
    assert "block 1/2, 1 of 2: n=" in said
    assert "block 2/2, 2 of 2: n=" in said
    assert "· 4 runs left" in said
    assert "s left" in said
    assert "n=0: the simulated engine did not start" in said
    assert "level 1/1 · concurrency 2" in said
    assert sorted(path.parent.name for path in Path("out").rglob("summary.json")) == ["n=8", "n=8"]
    assert sorted(path.parent.name for path in Path("out").rglob("curve.png")) == ["n=8", "n=8"]


def test_the_end_of_a_log_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    launch, target = f"{PYTHON} server.py {{mode}} {port}", f"127.0.0.1:{port}"
    assert execute(["tune", target, "--launch", launch, "--set", "mode=dead", *SMALL, "--out", "out"]) == 2
    said = capsys.readouterr().err
    assert "mode=dead: the server ended with exit code 1 before it was ready\n" in said
    assert "    out of memory\n    out/block-0/mode=dead.log\n" in said
    assert said.endswith(
        "loadgen: no setting could be measured; the last one: the server ended with exit code 1 before it was ready "
        "(out/block-0/*.log)\n"
    )


async def loading() -> tuple[subprocess.Popen[bytes], list[int]]:
    """A tune in its own group, in the load of its first run; its server's processes."""
    port = free_port()
    launch = f"{PYTHON} server.py {{mode}} {port}"
    words = [PYTHON, "-m", "loadgen.cli.app", "tune", f"127.0.0.1:{port}", "--launch", launch]
    words += ["--set", "mode=good,fine", *LONG, "--out", "out"]
    with Path("said").open("wb") as said:
        process = subprocess.Popen(words, stderr=said, process_group=0)
    for _ in range(2500):
        if any(path.stat().st_size for path in Path("out").glob("block-0/*/requests.jsonl")):
            break
        assert process.poll() is None, Path("said").read_text()
        await asyncio.sleep(0.02)
    (log,) = Path("out/block-0").glob("*.log")
    found = pids(log)
    assert [alive(pid) for pid in found] == [True, True]
    return process, found


async def test_an_interrupt_at_the_terminal_drains_and_leaves_no_server() -> None:
    process, found = await loading()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait(30) == 130
    assert [alive(pid) for pid in found] == [False, False]
    (levels,) = Path("out/block-0").glob("*/levels.jsonl")
    assert json.loads(levels.read_text())["ended_by"] == "interrupt"
    assert json.loads(Path("out/tune.json").read_text())["runs"] == []
    assert "Traceback" not in Path("said").read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_signal_leaves_no_server(number: signal.Signals) -> None:
    process, found = await loading()
    os.killpg(process.pid, number)
    assert process.wait(30) == (130 if number == signal.SIGTERM else -number)
    assert wait_until(lambda: not any(map(alive, found)))
    assert "Traceback" not in Path("said").read_text()
