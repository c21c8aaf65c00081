"""What the README and docs/ say, against the code: presets, keys, workload files, command lines."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from analysis.diagnosis import Code
from loadgen.cli.app import app
from workloads import workload

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
WHY = (ROOT / "docs/why.md").read_text()
WORKLOADS = (ROOT / "docs/workloads.md").read_text()


def in_first_column(text: str) -> set[str]:
    """The names in the first cells of all tables."""
    cells = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]*)`", cell)}


def in_fences(language: str, text: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(text: str) -> Iterator[list[str]]:
    for block in in_fences("", text):
        for line in block.splitlines():
            if line.partition(" ")[0].endswith("loadgen"):
                yield shlex.split(line, comments=True)[1:]


def test_every_preset_is_documented() -> None:
    assert set(workload.presets()) <= in_first_column(README)


def test_every_diagnosis_is_documented_with_its_lever() -> None:
    assert in_first_column(WHY.partition("| diagnosis |")[2]) == {*get_args(Code)}


def test_every_key_of_a_workload_file_is_documented_and_no_other() -> None:
    before_laws = WORKLOADS.partition("## Laws")[0]
    keys = {*workload._File.__struct_encode_fields__, *workload._ClassKeys.__struct_encode_fields__}
    assert in_first_column(before_laws) == keys


@pytest.mark.parametrize("text", [README, WORKLOADS], ids=["README", "workloads"])
def test_workload_files_shown_are_such_files(text: str, tmp_path: Path) -> None:
    shown = in_fences("toml", text)
    assert shown
    for number, one in enumerate(shown):
        (tmp_path / f"{number}.toml").write_text(one)
        assert workload.load(str(tmp_path / f"{number}.toml")).classes


def test_the_command_lines_shown_are_such() -> None:
    shown = list(commands(README))
    assert len(shown) >= 10
    for arguments in shown:
        app.parse_args(arguments, exit_on_error=False, print_error=False)


def test_what_is_not_so_is_noticed() -> None:
    assert in_first_column("| `a`, `b` | `c` |\n|---|\n| d | `e` |\n") == {"a", "b"}
    assert list(commands("```\nx/loadgen run h --rate 4  # 'tis\nmake\n\n```\n")) == [["run", "h", "--rate", "4"]]
