from __future__ import annotations

import io
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console

from analysis import diagnosis_tables, summary
from analysis.diagnosis import Diagnosis
from tests import fakes_engine as engine
from tests import fakes_run
from tests.fakes_engine import Scenario

if TYPE_CHECKING:
    from pathlib import Path

    from analysis.diagnosis import Code
    from analysis.measured import Level

LEVEL = engine.level(
    Scenario(spec="llama-3.1-8b@h100,prefix_cache=0", slots=1, request_s=0.3, requests_each=3, output=(20, 0.0))
)


def one(code: Code, evidence: str = "12 ms of 20 ms") -> Diagnosis:
    return Diagnosis(code=code, words="Something takes the time.", evidence=evidence, lever="Change it.")


def levels(*codes: tuple[Code, ...]) -> list[Level]:
    return [
        msgspec.structs.replace(
            LEVEL, level=number, concurrency=2**number, diagnoses=tuple(one(code, f"at {2**number}") for code in said)
        )
        for number, said in enumerate(codes)
    ]


def seen(*codes: tuple[Code, ...]) -> list[tuple[str, str, str]]:
    return [
        (row.where, row.diagnosis.code, row.diagnosis.evidence) for row in diagnosis_tables.rows(levels(*codes))
    ]  # fmt: skip


def screen(found: list[Level], tmp_path: Path) -> list[str]:
    """Of a run whose diagnoses are those of its last level."""
    run = summary.summarize(fakes_run.write(tmp_path, fakes_run.closed_loop(4, each=20)))
    run = msgspec.structs.replace(run, levels=tuple(found), diagnoses=found[-1].diagnoses if found else ())
    console = Console(file=io.StringIO(), width=80)
    diagnosis_tables.show(run, console)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_neighbours_that_say_the_same_say_it_once_with_the_last_numbers() -> None:
    assert seen(("decode-bound",), ("decode-bound",), ("queueing", "network"), ("queueing",)) == [
        ("1 to 2", "decode-bound", "at 2"),
        ("4 to 8", "queueing", "at 8"),
        ("4", "network", "at 4"),
    ]


def test_a_level_in_between_says_it_anew() -> None:
    assert seen(("unknown",), (), ("unknown",)) == [("1", "unknown", "at 1"), ("4", "unknown", "at 4")]
    assert seen() == []


def test_it_fits_eighty_columns_with_the_code_first(tmp_path: Path) -> None:
    assert screen(levels(("decode-bound",), ("kv-limited",)), tmp_path / "a") == [
        "slow at what: decode-bound at 1; kv-limited at 2",
        "kv-limited Something takes the time.",
        "           at 2",
        "           Change it.",
    ]
    real = screen([LEVEL], tmp_path / "b")
    assert max(map(len, real)) <= 80
    assert LEVEL.diagnoses[0].words.split()[0] in real[1]
    assert screen([], tmp_path / "c") == []


def test_words_from_elsewhere_cannot_steer_a_terminal(tmp_path: Path) -> None:
    bad = msgspec.structs.replace(LEVEL, diagnoses=(one("network", "\x1b[31mred [bold]"),))
    assert any("\\u001b[31mred [bold]" in line for line in screen([bad], tmp_path))
