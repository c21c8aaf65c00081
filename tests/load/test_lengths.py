"""Lengths as a server counts them: of each law, and of pairs, exactly those of the plan and as the law says.

One run of a mix, with a class for each law; the server is the embedded engine, whose own tokenizer counts.
"""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from loadgen.record import Row
from tests.load.command import run

P = 1e-4
EACH = 200  # requests of a class, about
VALUES = {20: 1, 40: 2, 90: 1}  # length -> lines of the file
PAIRS = {(30, 60): 1, (50, 20): 1, (80, 40): 2}
TEXTS = {"fixed": "64", "uniform": "uniform:20..80", "normal": "normal:60,12", "lognormal": "lognormal:50,0.4"}
# Rounded to whole tokens; half a token either way undoes it.
LAWS = {
    "uniform": stats.uniform(19.5, 61),
    "normal": stats.norm(60, 12),
    "lognormal": stats.lognorm(s=0.4, scale=50 * math.exp(-(0.4**2) / 2)),
}
Lengths = NDArray[np.int64]
Sides = dict[str, tuple[Lengths, Lengths]]  # class -> prompt and output tokens


def workload(folder: Path) -> Path:
    (folder / "lengths.txt").write_text("".join(f"{value}\n" * times for value, times in VALUES.items()))
    (folder / "pairs.csv").write_text("".join(f"{one[0]},{one[1]}\n" * times for one, times in PAIRS.items()))
    laws = TEXTS | {"file": "file:lengths.txt"}
    tables = [f'[[class]]\nname = "{name}"\ninput = "{law}"\noutput = "{law}"\n' for name, law in laws.items()]
    path = folder / "lengths.toml"
    path.write_text("\n".join([*tables, '[[class]]\nname = "pairs"\npairs = "pairs.csv"\n']))
    return path


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    folder = tmp_path_factory.mktemp("lengths")
    flags = f"--workload {workload(folder)} --concurrency 64 --requests {EACH * 6}"
    return run(folder / "out", "sim:llama-3.1-8b@h100,bandwidth_efficiency=1,overhead_us=0", *flags.split()).rows


@pytest.fixture(scope="module")
def sides(rows: list[Row]) -> Sides:
    def tokens(name: str) -> tuple[Lengths, Lengths]:
        own = [row for row in rows if row.class_name == name]
        return np.array([row.prompt_tokens for row in own]), np.array([row.output_tokens for row in own])

    return {name: tokens(name) for name in (*TEXTS, "file", "pairs")}


def test_the_server_counts_what_was_wanted(rows: list[Row]) -> None:
    assert len(rows) >= EACH * 6
    assert {(row.status, row.tokens_from) for row in rows} == {("ok", "usage")}
    assert [row.prompt_tokens for row in rows] == [row.want_input_tokens for row in rows]
    assert [row.output_tokens for row in rows] == [row.want_output_tokens for row in rows]


def test_classes_of_one_weight_come_as_often(sides: Sides) -> None:
    assert stats.chisquare([prompts.size for prompts, _ in sides.values()]).pvalue > P


def test_a_fixed_length_is_the_same_for_all(sides: Sides) -> None:
    for lengths in sides["fixed"]:
        assert set(lengths.tolist()) == {64}


@pytest.mark.parametrize("name", LAWS)
def test_lengths_follow_the_law(name: str, sides: Sides) -> None:
    prompts, outputs = sides[name]
    for lengths in (prompts, outputs):
        assert follows(lengths, LAWS[name].cdf)
    assert abs(stats.spearmanr(prompts, outputs).statistic) < 4 / prompts.size**0.5  # drawn apart


@pytest.mark.parametrize(("name", "other"), [("uniform", "normal"), ("normal", "lognormal"), ("lognormal", "normal")])
def test_another_law_is_noticed(name: str, other: str, sides: Sides) -> None:
    assert not follows(sides[other][0], LAWS[name].cdf)


def follows(lengths: Lengths, cdf: Callable[[Any], Any]) -> bool:
    spread = lengths + np.random.default_rng(0).uniform(-0.5, 0.5, lengths.size)
    return bool(stats.kstest(spread, cdf).pvalue > P)


def test_lines_of_a_file_come_as_often_as_they_stand_there(sides: Sides) -> None:
    for lengths in sides["file"]:
        assert drawn_alike(lengths.tolist(), VALUES)


def test_pairs_stay_together(sides: Sides) -> None:
    assert drawn_alike(list(zip(*(side.tolist() for side in sides["pairs"]), strict=True)), PAIRS)


def drawn_alike(found: list[Any], lines: dict[Any, int]) -> bool:
    counts = Counter(found)
    expected = [len(found) * times / sum(lines.values()) for times in lines.values()]
    return set(counts) == set(lines) and bool(stats.chisquare([counts[one] for one in lines], expected).pvalue > P)
