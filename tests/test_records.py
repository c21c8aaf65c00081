from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from analysis import records
from tests import fakes_run as fakes

if TYPE_CHECKING:
    from pathlib import Path


def test_reads_columns_in_the_order_of_index(tmp_path: Path) -> None:
    rows = [fakes.row(2, 300, (5, 6, 7)), fakes.row(0, 100, (1, 2)), fakes.failed(1, 200)]
    run = records.read(fakes.write(tmp_path, rows, [fakes.ended()]))
    requests = run.requests[0]
    assert requests.index.tolist() == [0, 1, 2]
    assert requests.sent_us.tolist() == [100, 200, 300]
    assert requests.starts.tolist() == [0, 2, 2, 5]
    assert requests.events_us.tolist() == [1, 2, 5, 6, 7]
    assert requests.status.tolist() == ["ok", "failed", "ok"]
    assert requests.error.tolist() == ["", "http_status", ""]
    assert requests.messages == {"http_status": "http_status happened"}
    assert np.isnan(requests.prompt_tokens[1])
    assert run.ended[0].ended_by == "duration"
    assert run.header.planned(0).concurrency == 1


def test_what_is_null_is_unknown_and_due_falls_back_to_sent(tmp_path: Path) -> None:
    rows = [fakes.row(0, 7, due_us=None), fakes.failed(1, None, due_us=3)]
    requests = records.read(fakes.write(tmp_path, rows)).requests[0]
    assert requests.due_us.tolist() == [7, 3]
    assert np.isnan(requests.sent_us[1])
    assert np.isnan(requests.events_tokens).all()


def test_levels_are_apart_and_one_can_be_read_alone(tmp_path: Path) -> None:
    rows = [fakes.row(0, level=0), fakes.row(0, level=1), fakes.row(1, level=1)]
    fakes.write(tmp_path, rows)
    assert {level: len(requests.index) for level, requests in records.read(tmp_path).requests.items()} == {0: 1, 1: 2}
    assert list(records.read(tmp_path, only=1).requests) == [1]


def test_a_cut_last_row_costs_that_row_at_every_cut(tmp_path: Path) -> None:
    whole, last = json.dumps(fakes.row(0)) + "\n", json.dumps(fakes.row(1))
    fakes.write(tmp_path, [])
    for cut in range(1, len(last)):
        (tmp_path / "requests.jsonl").write_text(whole + last[:cut])
        run = records.read(tmp_path)
        assert (run.cut_rows, len(run.requests[0].index)) == (1, 1)
    (tmp_path / "requests.jsonl").write_text(whole + last)
    assert records.read(tmp_path).cut_rows == 0


@pytest.mark.parametrize(
    "bad",
    [
        '{"level": 0',
        "",
        "[]",
        json.dumps(fakes.row(events_tokens=[1])),
        json.dumps(fakes.row(answer_event=2)),
        json.dumps(fakes.row(status="great")),
        json.dumps(fakes.row()).replace("512", "NaN"),
    ],
)
def test_a_malformed_row_in_the_middle_names_file_and_line(tmp_path: Path, bad: str) -> None:
    fakes.write(tmp_path, [])
    good = json.dumps(fakes.row())
    (tmp_path / "requests.jsonl").write_text(f"{good}\n{bad}\n{good}\n")
    with pytest.raises(ValueError, match=r"requests\.jsonl, line 2: "):
        records.read(tmp_path)


def test_unknown_fields_are_tolerated(tmp_path: Path) -> None:
    fakes.write(tmp_path, [fakes.row(new="x")], [fakes.ended(new=1)], fakes.header(new=[1]))
    assert len(records.read(tmp_path).requests[0].index) == 1


def test_levels_file_may_be_missing_or_cut(tmp_path: Path) -> None:
    fakes.write(tmp_path, [fakes.row()], [fakes.ended()])
    levels = tmp_path / "levels.jsonl"
    levels.write_text(levels.read_text()[:-9])
    assert records.read(tmp_path).ended == {}
    levels.unlink()
    assert records.read(tmp_path).ended == {}


def test_a_newer_format_is_refused_even_when_all_else_has_changed(tmp_path: Path) -> None:
    fakes.write(tmp_path, [], head={"format": 2, "target": 5})
    with pytest.raises(ValueError, match="format 2, this loadgen reads up to 1"):
        records.read(tmp_path)


@pytest.mark.parametrize("text", ["", "[1]", '{"format": 1}', '{"format": "x"}'])
def test_a_broken_header_is_named(tmp_path: Path, text: str) -> None:
    fakes.write(tmp_path, [])
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ValueError, match=r"run\.json cannot be read"):
        records.read(tmp_path)


def test_missing_files_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a directory"):
        records.read(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"no run\.json: give the directory"):
        records.read(tmp_path)
    fakes.write(tmp_path, [])
    (tmp_path / "requests.jsonl").unlink()
    with pytest.raises(ValueError, match=r"requests\.jsonl is missing"):
        records.read(tmp_path)
