from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from analysis import summary
from loadgen.cli import report
from tests import fakes_run as fakes
from tests import test_analysis_answer

if TYPE_CHECKING:
    from pathlib import Path

FILES = ("summary.json", "curve.png", "curve.svg")


def test_the_same_bytes_again_also_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = fakes.sweep(tmp_path / "here")
    assert report.report(here) == 4
    first = [(here / name).read_bytes() for name in FILES]
    there = tmp_path / "there"
    there.mkdir()
    for name in ("run.json", "requests.jsonl", "levels.jsonl"):
        shutil.copy(here / name, there)
    assert report.report(there) == 4
    assert [(there / name).read_bytes() for name in FILES] == first
    assert capsys.readouterr().out.count("INVALID") == 2


def test_json_is_the_summary_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = fakes.write(tmp_path, fakes.closed_loop(1, each=9))
    assert report.report(directory, json=True) == 0
    captured = capsys.readouterr()
    assert captured.out == (directory / "summary.json").read_text()
    assert json.loads(captured.out)["levels"][0]["requests"]["ok"] == 9
    assert "curve.png" in captured.err.replace("\n", "")


def test_quiet_says_nothing_beside_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.present(fakes.write(tmp_path, fakes.closed_loop(1, each=9)), quiet=True)
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "TTFT" in captured.out


def test_finish_returns_what_it_wrote(tmp_path: Path) -> None:
    result = report.finish(fakes.write(tmp_path, fakes.closed_loop(1, each=9)))
    assert (tmp_path / "summary.json").read_text() == summary.dumps(result)


def test_hardware_is_said_of_one_report_and_not_written_into_the_record(tmp_path: Path) -> None:
    directory = fakes.sweep(tmp_path)
    record = (directory / "run.json").read_bytes()

    def floors() -> list[object]:
        made = json.loads((directory / "summary.json").read_text())
        return [made["hardware"] and made["hardware"]["gpus"], *(bool(level["floors"]) for level in made["levels"])]

    report.report(directory, hardware="@h100,dtype=bf16,gpus=2")
    assert floors() == [2, True, True, True, True, True]
    report.report(directory)
    assert floors() == [None, False, False, False, False, False]
    assert (directory / "run.json").read_bytes() == record
    with pytest.raises(ValueError, match=r"^--hardware unknown GPU 'h1'"):
        report.report(directory, hardware="@h1,dtype=bf16")


def test_a_directory_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no run\.json"):
        report.report(tmp_path)


@pytest.mark.parametrize(("ttft_ms", "why"), [(100, 0), (300, 1)])
def test_the_screen_of_an_answer_says_why_where_the_slo_does_not_hold(
    ttft_ms: int, why: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test_analysis_answer.run(tmp_path, [(8, ttft_ms)], seeks="verdict")
    report.present(tmp_path, answer_only=True)
    assert capsys.readouterr().out.count("slow at what") == why
