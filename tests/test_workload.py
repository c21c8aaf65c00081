"""Workload files: what they say, what they may not say, and the presets."""

import re
from math import exp, log
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from workloads.lengths import Lengths, mean, parse
from workloads.traces import Trace
from workloads.workload import Class, Workload, input_text, load, mean_output, output_text, override, presets

FLAT = Workload(name="flat", classes=(Class(input=parse("uniform:1..60"), output=parse("lognormal:20,1")),))
MIX = """
description = "Chats and a batch"
[[class]]
name = "chat"
weight = 7
workload = "chat"
slo = ["ttft p99 < 500ms"]
[[class]]
name = "batch"
weight = 3
input = 2048
output = "uniform:10..20"
"""
Z = np.array([0, 1.2816, 2.3263])  # of p50, p90 and p99


def written(folder: Path, text: str, name: str = "mine.toml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def only(workload: Workload) -> Class:
    (one,) = workload.classes
    return one


def a_trace(**fields: object) -> Trace:
    said: dict[str, object] = {
        "name": "t",
        "offsets_us": np.array([0, 10]),
        "input_tokens": np.array([5, 7]),
        "output_tokens": np.array([3, 9]),
        "blocks": None,
        "block_tokens": None,
        "digest": "ab",
    }
    return Trace(**(said | fields))  # type: ignore[arg-type]


def test_one_class_stands_at_the_top(tmp_path: Path) -> None:
    workload = load(written(tmp_path, 'input = 512\noutput = "normal:64,8"\n'))
    assert workload == Workload(name="mine", classes=(Class(input=parse("512"), output=parse("normal:64,8")),))


def test_everything_a_class_can_say(tmp_path: Path) -> None:
    text = """
        description = "all"
        input = 512
        output = 64
        shared_prefix = 1000
        groups = 50
        zipf = 1
        turns = "uniform:1..8"
        think_ms = "lognormal:5000,1"
        leave_share = 0.1
        leave_after_ms = 2000
        slo = ["ttft p99 < 1s", "tpot p90 < 50ms"]
    """
    assert only(load(written(tmp_path, text))) == Class(
        input=parse("512"),
        output=parse("64"),
        shared_prefix=1000,
        groups=50,
        zipf=1.0,
        turns=parse("uniform:1..8"),
        think_ms=parse("lognormal:5000,1"),
        leave_share=0.1,
        leave_after_ms=parse("2000"),
        slo=("ttft p99 < 1s", "tpot p90 < 50ms"),
    )


def test_a_mix_has_a_table_for_each_class(tmp_path: Path) -> None:
    workload = load(written(tmp_path, MIX))
    chat, batch = workload.classes
    assert workload.description == "Chats and a batch"
    assert (chat.name, chat.weight, chat.slo) == ("chat", 7, ("ttft p99 < 500ms",))
    assert (chat.input, chat.output) == (only(load("chat")).input, only(load("chat")).output)
    assert (batch.name, batch.weight, batch.input) == ("batch", 3, parse("2048"))


def test_names_in_a_file_are_relative_to_it(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "lengths.txt").write_text("3\n4\n")
    (inner / "pairs.csv").write_text("3,4\n")
    written(inner, 'input = "file:lengths.txt"\noutput = 1', "base.toml")
    text = """
        [[class]]
        name = "a"
        workload = "base.toml"
        [[class]]
        name = "b"
        pairs = "pairs.csv"
        [[class]]
        name = "c"
        dataset = "prompts.jsonl"
    """
    a, b, c = load(written(inner, text)).classes
    assert a.input == Lengths("file", values=(3, 4), file="lengths.txt")
    assert b.pairs is not None
    assert (b.pairs.input, b.pairs.output, b.input) == ((3,), (4,), None)
    assert c.dataset == inner / "prompts.jsonl"


def test_what_a_class_says_goes_before_what_it_starts_from(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("3,4\n")
    start = '[[class]]\nname = "a"\nworkload = "rag"\n'
    rag = only(load("rag"))
    other_output = msgspec.structs.replace(rag, name="a", output=parse("7"))
    assert only(load(written(tmp_path, start + "output = 7"))) == other_output
    paired = only(load(written(tmp_path, start + 'pairs = "pairs.csv"')))
    assert (paired.input, paired.output, paired.shared_prefix) == (None, None, rag.shared_prefix)
    asked = only(load(written(tmp_path, start + 'dataset = "x.jsonl"')))
    assert asked == Class(name="a", dataset=tmp_path / "x.jsonl")


CLASS = '[[class]]\nname = "a"\ninput = 1\noutput = 1\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('input = 1\noutput = 1\noutputs = "2"', "outputs"),
        ("input = 1", "output is missing"),
        ("", "input is missing"),
        ("output = 1", "input is missing"),
        ("input = 1\noutput = 1.5", r"\$.output"),
        ("input = 1\noutput = true", r"\$.output"),
        ('input = 1\noutput = "uniform:9..3"', "output: length 'uniform:9..3': .*uniform:3..9"),
        ("input = 0\noutput = 1", "input: length '0': .*at least 1"),
        ('input = "file:absent"\noutput = 1', "input: .*absent: No such file"),
        ("input = ", "mine.toml"),
        ("input = 1\noutput = 1\nrepeat = true", "repeat: only a data set"),
        ("input = 1\noutput = 1\nshared_prefix = 15", "shared_prefix 15: expected 0, or 16"),
        ("input = 1\noutput = 1\nshared_prefix = -1", "shared_prefix -1"),
        ("input = 1\noutput = 1\nshared_prefix = 16\ngroups = 0", "groups 0: expected 1"),
        ("input = 1\noutput = 1\ngroups = 2", "of a shared_prefix, and there is none"),
        ("input = 1\noutput = 1\nzipf = 1", "of a shared_prefix, and there is none"),
        ("input = 1\noutput = 1\nshared_prefix = 16\nzipf = -0.1", "zipf -0.1: expected an exponent"),
        ("input = 1\noutput = 1\nshared_prefix = 16\nzipf = nan", "zipf nan"),
        ("input = 1\noutput = 1\nturns = 0", "turns: length '0'"),
        ("input = 1\noutput = 1\nthink_ms = 5", "think_ms is the time between turns"),
        ("input = 1\noutput = 1\nleave_share = 1.1\nleave_after_ms = 1", "leave_share 1.1: expected a share"),
        ("input = 1\noutput = 1\nleave_share = 0.5", "need each other"),
        ("input = 1\noutput = 1\nleave_after_ms = 5", "need each other"),
        ('input = 1\noutput = 1\nslo = "ttft p99 < 1s"', r"\$.slo"),
        ('pairs = "absent.csv"', "pairs: .*absent.csv: No such file"),
        ('pairs = "a.csv"\ndataset = "b"', "absent|pairs"),
        ('dataset = "b"\ninput = 5', "input: the prompts are those of the data set"),
        ('dataset = "b"\nshared_prefix = 16', "shared_prefix: the prompts of a data set"),
        ("weight = 2\ninput = 1\noutput = 1", "weight"),
        ("input = 1\n" + CLASS, r"input stands beside \[\[class\]\]"),
        (CLASS + "weight = 0", "class 'a': weight 0: expected more than 0"),
        (CLASS + "weight = -1", "class 'a': weight -1"),
        (CLASS + "weight = nan", "class 'a': weight nan"),
        (CLASS + "weight = inf", "class 'a': weight inf"),
        (CLASS + "colour = 1", "colour"),
        (CLASS + CLASS, "two classes are called 'a'"),
        ("[[class]]\ninput = 1\noutput = 1", "name"),
        ('[[class]]\nname = " "\ninput = 1\noutput = 1', "name: expected 1 to 60"),
        ('[[class]]\nname = "a\\n"\ninput = 1\noutput = 1', "name: expected 1 to 60"),
        ('[[class]]\nname = "a"\nworkload = "nope"', "class 'a': .*nope"),
        ('[[class]]\nname = "a"\nworkload = "mine.toml"', "mine.toml is a mix itself"),
        ('[[class]]\nname = "a"\ndataset = "d"\n[[class]]\nname = "b"\ndataset = "d"', "d is in two classes"),
        ("[[class]]\n" * 2 + "x", "mine.toml"),
    ],
)
def test_a_bad_file_is_named_with_its_key(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        load(written(tmp_path, text))
    assert "mine.toml: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent.toml: No such file"):
        load(str(tmp_path / "absent.toml"))
    with pytest.raises(ValueError, match=r"class 'a': workload: workload .*absent.toml: No such file"):
        load(written(tmp_path, '[[class]]\nname = "a"\nworkload = "absent.toml"'))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"binary.toml: "):
        load(str(tmp_path / "binary.toml"))
    with pytest.raises(ValueError, match="no workload 'chatt': expected agent, chat, code"):
        load("chatt")


def test_override_leaves_the_rest_and_names_what_is_wrong() -> None:
    assert override(FLAT) == FLAT
    assert only(override(FLAT, output="7")) == msgspec.structs.replace(only(FLAT), output=parse("7"))
    with pytest.raises(ValueError, match="output: length 'x'"):
        override(FLAT, output="x")


def test_a_data_set_takes_the_place_of_the_lengths() -> None:
    assert only(override(load("rag"), dataset="d.jsonl")) == Class(dataset=Path("d.jsonl"))
    assert only(override(FLAT, output="7", dataset="d.jsonl")) == Class(dataset=Path("d.jsonl"), output=parse("7"))
    with pytest.raises(ValueError, match="input: the prompts are those of the data set"):
        override(FLAT, input="7", dataset="d.jsonl")


def test_a_trace_takes_the_place_of_the_lengths_where_it_has_some() -> None:
    assert only(override(load("rag"), trace=a_trace())) == Class()
    assert only(override(FLAT, output="7", trace=a_trace())) == Class(output=parse("7"))
    assert override(FLAT, trace=a_trace(input_tokens=None, output_tokens=None)) == FLAT


@pytest.mark.parametrize("given", [{"input": "5"}, {"output": "5"}, {"dataset": "d"}])
def test_a_mix_keeps_its_own_lengths(tmp_path: Path, given: dict[str, Any]) -> None:
    mix = load(written(tmp_path, MIX))
    assert override(mix, trace=a_trace()) == mix
    with pytest.raises(ValueError, match=rf"{next(iter(given))}: mine is a mix \(chat, batch\)"):
        override(mix, **given)


def test_the_mean_output_is_that_of_the_requests(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("3,4\n5,8\n")
    text = """
        [[class]]
        name = "a"
        weight = 3
        pairs = "pairs.csv"
        turns = 2
        [[class]]
        name = "b"
        weight = 2
        input = 1
        output = "uniform:100..200"
        [[class]]
        name = "c"
        weight = 1
        dataset = "d"
    """
    # 6 requests of 6 tokens, 2 of 150, one of which nothing is known but the default
    assert mean_output(load(written(tmp_path, text))) == pytest.approx((6 * 6 + 2 * 150 + 256) / 9)
    assert mean_output(override(FLAT, trace=a_trace()), a_trace()) == 6
    assert mean_output(FLAT) == mean(parse("lognormal:20,1"))


def test_lengths_have_a_text_for_people(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("3,4\n")
    paired = only(load(written(tmp_path, 'pairs = "pairs.csv"')))
    assert (input_text(only(load("rag"))), output_text(paired)) == (
        "9961 shared + lognormal:5364,1.42",
        "pairs:pairs.csv",
    )
    assert (input_text(paired), output_text(only(FLAT))) == ("pairs:pairs.csv", "lognormal:20,1")
    assert input_text(Class(dataset=tmp_path / "d.jsonl")) == "dataset:d.jsonl"
    assert input_text(Class()) == "trace"


# The presets

FOLDER = Path(__file__).parents[1] / "workloads" / "presets"


def test_the_presets_are_these() -> None:
    assert presets() == ["agent", "chat", "code", "long-chat", "rag", "reasoning", "summarize"]


@pytest.mark.parametrize("name", presets())
def test_a_preset_loads_and_says_where_it_comes_from(name: str) -> None:
    workload = load(name)
    assert workload.name == name
    assert workload.description
    assert (FOLDER / f"{name}.toml").read_text().startswith("# Source: ")


def table(name: str) -> dict[tuple[str, str], list[float | None]]:
    """Of a preset's comment: ("input", "trace") to mean, p50, p90 and p99."""
    rows = re.findall(r"# (input|output), +(trace|here)((?: +(?:\d+|-)){4})\n", (FOLDER / f"{name}.toml").read_text())
    return {(side, of): [None if cell == "-" else float(cell) for cell in cells.split()] for side, of, cells in rows}


@pytest.mark.parametrize("name", [name for name in presets() if table(name)])
@pytest.mark.parametrize("side", ["input", "output"])
def test_a_preset_is_fitted_as_it_says(name: str, side: str) -> None:
    one = only(load(name))
    law, shared = (one.input, one.shared_prefix) if side == "input" else (one.output, 0)
    assert law is not None
    average, sigma = law.parameters

    def quantiles(s: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return shared + np.exp(log(average) - s**2 / 2 + Z * s)

    facts = table(name)
    average_there, *there = facts[side, "trace"]
    known = [place for place, value in enumerate(there) if value is not None]
    target = np.log([value for value in there if value is not None])
    sigmas = np.arange(0.2, 1.6, 0.001)
    errors = [((np.log(quantiles(s)[known]) - target) ** 2).sum() for s in sigmas]
    assert sigma == pytest.approx(sigmas[np.argmin(errors)], abs=0.0051)
    assert shared + mean(law) == pytest.approx(average_there, rel=0.003)
    assert facts[side, "here"] == [average_there, *np.rint(quantiles(sigma))]


def test_prefixes_of_presets_are_the_share_they_say() -> None:
    for name, share, average in (("rag", 0.65, 15325), ("agent", 0.59, 8596)):
        one = only(load(name))
        assert one.input is not None
        assert one.shared_prefix == round(share * average)
        assert one.shared_prefix + one.input.parameters[0] == average


def test_the_long_prompts_of_presets_are_as_rare_as_they_say() -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    for name, per_thousand in (("long-chat", 3), ("rag", 2)):
        one = only(load(name))
        assert one.input is not None
        average, sigma = one.input.parameters
        drawn = one.shared_prefix + exp(log(average) - sigma**2 / 2) * np.exp(sigma * rng.standard_normal(1_000_000))
        assert (drawn > 131_072).mean() * 1000 == pytest.approx(per_thousand, rel=0.15)
