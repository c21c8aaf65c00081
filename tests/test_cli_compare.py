"""`loadgen compare`: what it refuses, what it prints and writes, and every exit code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from loadgen.cli.app import execute
from tests import fakes_compare
from tests import fakes_run as fakes

if TYPE_CHECKING:
    from pathlib import Path


def run(directory: Path, ttft_us: int = 100_000, **changes: Any) -> Path:
    head = fakes.header(levels=[{"level": 0, "concurrency": 4}], **changes)
    return fakes.write(directory, fakes.closed_loop(4, each=150, ttft_us=ttft_us), [fakes.ended()], head)


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    """B takes half as long to the first token."""
    return [str(run(tmp_path / "a")), str(run(tmp_path / "b", 50_000))]


def compare(*arguments: str) -> int:
    return execute(["compare", *arguments])


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert compare(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_two_runs(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(*pair) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "b against a" in out
    assert "about these runs only" in " ".join(out.split())


def test_json_and_nothing_else(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(*pair, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["baseline"], facts["reach"], facts["forced"]) == ("a", "these runs", [])
    ttft = next(one for one in facts["ratios"] if one["metric"] == "ttft p50")
    assert ttft["ratio"] == 0.5
    assert ttft["called"] == "lower"


def test_files_only_where_asked(pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert compare(*pair) == 0
    assert sorted(tmp_path.rglob("*")) == before
    assert compare(*pair, "--out", str(tmp_path / "new" / "place"), "--json") == 0
    captured = capsys.readouterr()
    assert sorted(path.name for path in (tmp_path / "new" / "place").iterdir()) == [
        "compare.json", "compare.png", "compare.svg",
    ]  # fmt: skip
    assert (tmp_path / "new" / "place" / "compare.json").read_text() in captured.out
    assert "compare.png" in captured.err.replace("\n", "")


@pytest.mark.parametrize(
    ("gates", "code"),
    [
        (["ttft p50 +5%"], 0),
        (["ttft p50 +5%", "throughput -3%"], 0),
        (["ttft p99 +5%", "goodput -3%"], 3),
    ],
)
def test_gates(pair: list[str], gates: list[str], code: int) -> None:
    assert compare(*pair, *(word for gate in gates for word in ("--gate", gate))) == code


def test_a_gate_that_fails(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(*reversed(pair), "--gate", "ttft p50 +5%") == 1
    assert "FAIL" in capsys.readouterr().out


def test_nothing_valid(pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = fakes.write(
        tmp_path / "c",
        fakes.clean(),
        [fakes.ended(clock_step_us=9999)],
        fakes.header(levels=[{"level": 0, "concurrency": 4}]),
    )
    assert compare(pair[0], str(broken)) == 4
    assert "left out, INVALID: c at 4 (clock-step)" in capsys.readouterr().out


def test_force(pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = str(run(tmp_path / "c", model="big"))
    assert "not comparable: a and c: models tiny and big: measure one model; --force" in complaint(
        capsys, pair[0], other
    )
    assert compare(pair[0], other, "--force") == 0
    assert "forced although not comparable: a and c: models tiny and big" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name two run directories or more"),
        (["A"], "a alone was measured: a comparison takes two runs"),
        (["A", "A"], "given twice"),
        (["A", "nowhere"], "nowhere is not a directory"),
        (["A", "B", "--gate", "ttft"], "--gate 'ttft' is no gate: write one such as"),
        (["A", "B", "--margin", "0%"], "--margin '0%' is no margin"),
        (["A", "B", "--margin", "5"], "--margin '5' is no margin"),
        (["A", "--aa"], "nothing was started twice in"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], says: str, pair: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    places = dict(zip("AB", pair, strict=True))
    assert says in complaint(capsys, *(places.get(word, word) for word in arguments))


def test_a_tune_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fakes_compare.tune(tmp_path, ("n=8", "n=16", "n=99"))
    assert compare(str(tmp_path)) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "n=16 against n=8" in out
    assert "2 are an indication, 5 make a claim" in out
    assert "n=99: failed in block 0: the server exited with 1 (last line of its log: CUDA out of memory)" in out
    assert "Choose n=16" in out or "do not decide" in out


def test_a_against_a(pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(*pair, "--aa") == 0
    assert "A against A" in capsys.readouterr().out
    (tmp_path / "t").mkdir()
    assert compare(str(fakes_compare.tune(tmp_path / "t")), "--aa", "--json") == 0
    found = json.loads(capsys.readouterr().out)["noise"]
    assert {(one["starts"], one["free"]) for one in found if one["metric"] == "ttft p50"} == {(4, 1)}
