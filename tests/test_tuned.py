from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from analysis import tuned
from tests import fakes_compare as fakes
from tests import fakes_run

if TYPE_CHECKING:
    from pathlib import Path


def test_a_run_is_a_setting_measured_once(tmp_path: Path) -> None:
    directory = fakes_run.write(tmp_path / "before", fakes_run.clean(), [fakes_run.ended()])
    (one,) = tuned.read([directory])
    assert (one.name, one.source, one.tuned, one.blocks, one.failures) == ("before", str(directory), False, (0,), ())


def test_settings_of_a_tune_directory_with_their_blocks(tmp_path: Path) -> None:
    eight, sixteen, broken = tuned.read([fakes.tune(tmp_path, ("n=8", "n=16", "n=99"))])
    assert [(one.name, one.values, one.blocks) for one in (eight, sixteen)] == [
        ("n=8", (("n", "8"),), (0, 1)),
        ("n=16", (("n", "16"),), (0, 1)),
    ]
    assert [one.run.seed for one in eight.replicates] == [0, 1]
    assert [one.run.workload.digest for one in eight.replicates] == ["block 0", "block 1"]
    why = "the server exited with 1 (last line of its log: CUDA out of memory)"
    assert (broken.blocks, broken.failures) == ((), (f"block 0: {why}", f"block 1: {why}"))


def test_a_run_that_cannot_be_read_is_a_failure_of_its_block(tmp_path: Path) -> None:
    fakes.tune(tmp_path)
    (tmp_path / "block-1" / "n=8" / "requests.jsonl").unlink()
    eight, sixteen = tuned.read([tmp_path])
    assert (eight.blocks, sixteen.blocks) == ((0,), (0, 1))
    assert "block 1: " in eight.failures[0]
    assert "requests.jsonl is missing" in eight.failures[0]


@pytest.mark.parametrize(
    ("log", "text"), [(None, "not measured"), ("none.log", "not measured"), ("empty.log", "not measured")]
)
def test_a_failure_without_words(tmp_path: Path, log: str | None, text: str) -> None:
    (tmp_path / "empty.log").write_text("\n \n")
    rows = [
        {"setting": 0, "block": 0, "order": 0, "log": log},
        {"setting": 1, "block": 0, "order": 1, "directory": "b"},
    ]
    fakes_run.write(tmp_path / "b", fakes_run.clean())
    names = [{"name": "a"}, {"name": "b"}]
    facts = {"format": 1, "launch": "", "settings": names, "blocks": 1, "seed": 0, "runs": rows}
    (tmp_path / "tune.json").write_text(json.dumps(facts))
    assert tuned.read([tmp_path])[0].failures == (f"block 0: {text}",)


def test_only_the_end_of_a_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\xff" * 50_000 + b"\nthe end")
    assert tuned._last_line(tmp_path, "log") == "(last line of its log: the end)"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": 2}, "format 2, this loadgen reads up to 1"),
        ({"settings": []}, r"runs\[0\]: setting 0, and there are 0"),
        ({"blocks": "x"}, "cannot be read: Expected `int`"),
    ],
)
def test_a_broken_file_is_one_line(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    fakes.tune(tmp_path, count=1, **changes)
    with pytest.raises(ValueError, match=says):
        tuned.read([tmp_path])


def test_no_json_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tune.json").write_text("{")
    with pytest.raises(ValueError, match=r"tune\.json cannot be read"):
        tuned.read([tmp_path])


def test_nothing_measured(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no setting that could be measured: block 0: the server exited"):
        tuned.read([fakes.tune(tmp_path, ("n=99",), count=1)])
    (tmp_path / "new").mkdir()
    with pytest.raises(ValueError, match="no run has ended yet"):
        tuned.read([fakes.tune(tmp_path / "new", count=0)])


def test_the_same_directory_twice(tmp_path: Path) -> None:
    run = fakes_run.write(tmp_path / "run", fakes_run.clean())
    with pytest.raises(ValueError, match="given twice"):
        tuned.read([run, tmp_path / "run" / ".." / "run"])


def test_names_tell_settings_apart(tmp_path: Path) -> None:
    runs = [fakes_run.write(tmp_path / where / "run", fakes_run.clean()) for where in ("x", "y")]
    assert [one.name for one in tuned.read(runs)] == [str(run) for run in runs]
    tunes = []
    for where in ("t", "u"):
        (tmp_path / where).mkdir()
        tunes.append(fakes.tune(tmp_path / where, count=1))
    assert [one.name for one in tuned.read(tunes)][:2] == [f"{tunes[0]}: n=8", f"{tunes[0]}: n=16"]
    (tmp_path / "v").mkdir()
    fakes.tune(tmp_path / "v", ("n=8", "n=8"), count=1)
    assert [one.name for one in tuned.read([tmp_path / "v"])] == ["n=8", "n=8 #2"]


def test_levels_that_count_by_load_and_block() -> None:
    run = fakes.run(fakes.level(16), fakes.level(8), fakes.invalid(4), fakes.level(8, rate=50))
    found = tuned.levels(fakes.tuned("a", [run, fakes.run(fakes.level(8))]))
    assert [(load, {block: len(levels) for block, levels in of.items()}) for load, of in found.items()] == [
        ("8", {0: 2, 1: 1}),
        ("16", {0: 1}),
    ]
