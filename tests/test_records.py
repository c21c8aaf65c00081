from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import hardware, records
from tests import fakes_run as fakes


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


def test_hardware_is_read_back_and_old_runs_have_none(tmp_path: Path) -> None:
    assert records.read(fakes.write(tmp_path, [])).header.hardware is None
    on = hardware.parse("mixtral-8x7b@h100,dtype=fp8,gpus=2")
    kept = msgspec.to_builtins(on)
    assert records.read(fakes.write(tmp_path, [], head=fakes.header(hardware=kept))).header.hardware == on
    for broken in ({"dtype": "fp7"}, {"kv_cache_dtype": "x"}, {"gpus": 0}, {"gpu": None}):
        fakes.write(tmp_path, [], head=fakes.header(hardware=kept | broken))
        with pytest.raises(ValueError, match=r"run\.json cannot be read: .*hardware"):
            records.read(tmp_path)


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


FIXTURES = Path(__file__).parent / "golden" / "runs"


@pytest.mark.parametrize(("name", "rows"), [("first", 6), ("conversations", 12)])
def test_runs_of_every_shape_so_far_are_read(name: str, rows: int) -> None:
    run = records.read(FIXTURES / name)
    assert sum(len(requests.index) for requests in run.requests.values()) == rows
    assert all(run.ended[level].ended_by for level in run.requests)


def test_what_an_older_run_does_not_have_is_read_as_none() -> None:
    run = records.read(FIXTURES / "first")
    requests = run.requests[0]
    assert (run.header.arrivals, run.header.workload.classes, run.ended[0].due) == (None, (), None)
    assert set(requests.class_name) == {""}
    assert not (requests.left | (requests.turn > 0) | (requests.shared_tokens > 0)).any()
    assert np.isnan([requests.item, requests.group, requests.session]).all()


def test_a_run_of_the_present_format() -> None:
    run = records.read(FIXTURES / "conversations")
    requests = run.requests[0]
    assert run.header.arrivals == "poisson"
    assert [kind.name for kind in run.header.workload.classes] == ["chat", "rag"]
    assert run.header.workload.classes[1].weight == 1
    assert (run.header.planned(1).speed, run.header.planned(0).open_loop) == (None, True)
    end = run.ended[0]
    assert (end.ended_by, end.due, end.dropped, end.waited_max) == ("schedule", 9, 1, 2)
    assert requests.class_name.tolist()[:4] == ["chat", "chat", "rag", "chat"]
    assert requests.turn.tolist()[:4] == [0, 1, 0, 0]
    assert requests.session.tolist()[:2] == [0, 0]
    assert np.isnan(requests.session[2])
    assert requests.item[2] == 4
    assert (requests.group[3], requests.shared_tokens[3]) == (1, 96)
    assert requests.left.tolist() == [False] * 11 + [True]
    assert not requests.cancelled.any()


def test_left_counts_only_where_the_stream_was_cancelled() -> None:
    requests = fakes.requests(
        fakes.row(0, left=True), fakes.row(1, status="cancelled", left=True), fakes.row(2, status="cancelled")
    )
    assert requests.left.tolist() == [False, True, False]
    assert requests.cancelled.tolist() == [False, False, True]


@fakes.few_examples
@given(st.lists(st.tuples(st.lists(st.integers(0, 99), max_size=4).map(sorted), st.booleans()), max_size=9))
def test_a_subset_is_what_its_rows_alone_would_be(rows: list[tuple[list[int], bool]]) -> None:
    made = [fakes.row(i, i, events, output_tokens=i) for i, (events, _) in enumerate(rows)]
    chosen = np.array([inside for _, inside in rows], np.bool_)
    some = records.subset(fakes.requests(*made), chosen)
    alone = fakes.requests(*(row for row, inside in zip(made, chosen, strict=True) if inside))
    for name in records.Requests.__struct_fields__:
        np.testing.assert_array_equal(getattr(some, name), getattr(alone, name), err_msg=name)


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
