from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import measured, records, summary
from tests import fakes_run as fakes

if TYPE_CHECKING:
    import random
    from pathlib import Path

# summary.json of contract.md, key by key.
DISTRIBUTION = "n n_eff mean min p50 p90 p95 p99 max p50_ci95 p99_ci95"
LEVEL: dict[str, str | None] = {
    "level": None,
    "concurrency": None,
    "rate_per_s": None,
    "speed": None,
    "validity": None,
    "findings": None,
    "requests": "sent ok failed cancelled left errors",
    "window_s": None,
    "achieved": "concurrency rate_per_s",
    "schedule": None,
    "throughput": (
        "requests_per_s output_tokens_per_s total_tokens_per_s output_tokens_per_s_ci95 "
        "whole_run_output_tokens_per_s per_user_tokens_per_s"
    ),
    "goodput": None,
    **dict.fromkeys(("ttft_ms", "ttft_sent_ms", "ttfat_ms", "itl_ms", "tpot_ms", "e2e_ms"), DISTRIBUTION),
    "tokens": "prompt_mean output_mean want_output_mean from per_event cached_share cacheable_share distinct_prompts",
    "phases": None,
    "classes": None,
    "turns": None,
    "verdicts": None,
    "client": "clock read_lag_ms send_lag_ms bound_share cpu_share",
    "server": None,
    "floors": None,
    "diagnoses": None,
}
HEADER = (
    "format loadgen started_at target model api hardware workload arrivals seed slo clock host server options "
    "phases seeks answer curve diagnoses levels"
)


def shape_of(level: dict[str, Any]) -> dict[str, str | None]:
    return {key: " ".join(level[key]) if LEVEL.get(key) is not None else None for key in level}


@pytest.mark.parametrize("rows", [[], fakes.closed_loop(4, each=20)])
def test_every_field_of_the_contract_is_there(tmp_path: Path, rows: list[Any]) -> None:
    made = summary.summarize(fakes.write(tmp_path, rows, [fakes.ended()]))
    text = summary.dumps(made)
    assert " ".join(json.loads(text)) == HEADER
    level = json.loads(text)["levels"][0]
    assert shape_of(level) == LEVEL
    assert (level["schedule"], level["classes"], level["turns"]) == (None, [], None)
    assert (level["goodput"], level["verdicts"], level["server"], level["floors"]) == (None, [], None, None)


def test_the_curve_is_of_all_levels(tmp_path: Path) -> None:
    made = summary.summarize(fakes.sweep(tmp_path))
    assert made.curve.fit is not None
    assert (made.curve.fit.first, made.curve.fit.last, made.curve.left_out) == (1, 128, (4,))
    assert made.curve.fit.worst == float(f"{made.curve.fit.worst:.6g}")
    low, high = made.levels[3].throughput.output_tokens_per_s_ci95
    assert low is not None
    assert high is not None
    assert low <= (made.levels[3].throughput.output_tokens_per_s or 0) <= high


def test_phases_are_those_of_the_lightest_valid_level(tmp_path: Path) -> None:
    rows, ends, plans = [], [], []
    for level, (slots, ttft_us) in enumerate(((8, 900_000), (1, 50_000), (2, 100_000))):
        made = fakes.closed_loop(slots, each=12, ttft_us=ttft_us, level=level)
        if slots == 1:
            made = [row | {"status": "failed", "error": {"kind": "empty", "message": ""}} for row in made]
        rows += made
        ends.append(fakes.ended(level))
        plans.append({"level": level, "concurrency": slots})
    result = summary.summarize(fakes.write(tmp_path, rows, ends, fakes.header(levels=plans)))
    assert [level.phases and level.phases.heavy for level in result.levels] == ["prefill", None, "decode"]
    assert result.phases == summary.RunPhases(level=2, prefill_share=0.357143, heavy="decode")
    assert summary.summarize(fakes.write(tmp_path / "none", [])).phases is None


def test_levels_that_were_not_run_are_left_out_and_empty_ones_are_invalid(tmp_path: Path) -> None:
    head = fakes.header(levels=[{"level": i, "concurrency": 2**i} for i in range(3)])
    fakes.write(tmp_path, fakes.closed_loop(1, each=9, level=0), [fakes.ended(0), fakes.ended(1)], head)
    made = summary.summarize(tmp_path)
    assert [(level.concurrency, level.validity) for level in made.levels] == [(1, "VALID"), (2, "INVALID")]
    assert summary.exit_code(made) == 4


def test_exit_code(tmp_path: Path) -> None:
    rows = fakes.closed_loop(1, each=9)
    assert summary.exit_code(summary.summarize(fakes.write(tmp_path / "a", rows, [fakes.ended()]))) == 0
    assert (
        summary.exit_code(summary.summarize(fakes.write(tmp_path / "b", rows, [fakes.ended(clock_step_us=9999)]))) == 4
    )
    assert summary.exit_code(summary.summarize(fakes.write(tmp_path / "c", []))) == 4


SLO = ["ttft p95 < 150ms", "ttft p50 < 1ms"]


@pytest.mark.parametrize(
    ("slo", "code"), [(SLO[:1], 0), (SLO, 1), (["ttft p99.9 < 150ms"], 3), (["ttft p99.9 < 150ms", SLO[1]], 1)]
)
def test_exit_code_of_verdicts(tmp_path: Path, slo: list[str], code: int) -> None:
    rows, head = fakes.closed_loop(4, each=100), fakes.header(slo=slo, levels=[{"level": 0, "concurrency": 4}])
    made = summary.summarize(fakes.write(tmp_path, rows, [fakes.ended()], head))
    assert summary.exit_code(made) == code
    assert [one.term for one in made.levels[0].verdicts] == slo
    made = summary.summarize(fakes.write(tmp_path / "invalid", rows, [fakes.ended(clock_step_us=9999)], head))
    assert summary.exit_code(made) == 4
    assert {one.verdict for one in made.levels[0].verdicts} == {"UNDECIDED"}


def test_a_failing_class_fails_the_run(tmp_path: Path) -> None:
    classes = [{"name": "chat", "slo": ["ttft p90 < 1s"]}, {"name": "rag", "slo": ["ttft p90 < 1s"]}]
    head = fakes.header(workload={"name": "mix", "classes": classes}, levels=[{"level": 0, "concurrency": 5}])
    made = summary.summarize(fakes.write(tmp_path, fakes.mix(), [], head))
    level = made.levels[0]
    assert [(name, [one.verdict for one in stated.verdicts]) for name, stated in measured.statements(level)] == [
        ("", []),
        ("chat", ["PASS"]),
        ("rag", ["FAIL"]),
    ]
    assert level.goodput is not None
    assert level.goodput.share == pytest.approx(300 / 360, rel=1e-5)
    assert summary.exit_code(made) == 1


def test_a_cut_row_is_a_finding(tmp_path: Path) -> None:
    fakes.write(tmp_path, fakes.closed_loop(1, each=9))
    with (tmp_path / "requests.jsonl").open("a") as file:
        file.write('{"level": 0, "ind')
    assert "cut-row" in {finding.code for finding in summary.summarize(tmp_path).levels[0].findings}


def test_bytes_are_strict_ascii_and_the_same(tmp_path: Path) -> None:
    fakes.sweep(tmp_path, model="\x9b31mmodèle")
    for name in ("a", "b"):
        summary.write(summary.summarize(tmp_path), tmp_path / name)
    data = (tmp_path / "a").read_bytes()
    assert data == (tmp_path / "b").read_bytes()
    assert data.isascii()
    assert not set(range(32)) - {10} & set(data)
    assert msgspec.json.decode(data, type=summary.Summary) == summary.summarize(tmp_path)


def test_nan_is_refused(tmp_path: Path) -> None:
    made = summary.summarize(fakes.write(tmp_path, fakes.closed_loop(1, each=9)))
    broken = msgspec.structs.replace(made.levels[0], window_s=float("nan"))
    with pytest.raises(ValueError, match=r"[Nn]a[Nn]|JSON"):
        summary.dumps(msgspec.structs.replace(made, levels=(broken,)))


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict | list | tuple):
        return [leaf for item in (value.values() if isinstance(value, dict) else value) for leaf in leaves(item)]
    return [value]


awkward_rows = st.lists(
    st.fixed_dictionaries(
        {
            "events_us": st.lists(st.integers(0, 10**7), max_size=5).map(sorted),
            "status": st.sampled_from(["ok", "failed", "cancelled"]),
            "left": st.booleans(),
            "class": st.sampled_from(["a", "b", None]),
            "turn": st.integers(0, 2),
            "phase": st.sampled_from(["warmup", "measure"]),
            "sent_us": st.none() | st.integers(0, 10**7),
            "due_us": st.none() | st.integers(0, 10**7),
            "end_us": st.none() | st.integers(0, 10**7),
            "tokens_from": st.none() | st.sampled_from(["usage", "tokenizer", "events"]),
            **dict.fromkeys(
                (
                    "item",
                    "group",
                    "session",
                    "prompt_tokens",
                    "output_tokens",
                    "reasoning_tokens",
                    "cached_tokens",
                    "bounds",
                    "read_lag_us",
                ),
                st.none() | st.integers(0, 1000),
            ),
        }
    ),
    max_size=10,
)


@fakes.few_examples
@given(awkward_rows, st.randoms(use_true_random=False))
def test_any_rows_give_strict_json_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], shuffler: random.Random
) -> None:
    made = [fakes.row(index, **row) for index, row in enumerate(rows)]
    directory = tmp_path_factory.mktemp("run")
    first = summary.summarize(fakes.write(directory, made, [fakes.ended()]))
    numbers = [leaf for leaf in leaves(json.loads(summary.dumps(first))["levels"]) if isinstance(leaf, float)]
    assert all(float(f"{number:.6g}") == number for number in numbers)
    shuffler.shuffle(made)
    assert summary.summarize(fakes.write(directory, made, [fakes.ended()])) == first
    for level in first.levels:
        counts = level.requests
        assert counts.sent == counts.ok + counts.failed + counts.cancelled + counts.left
        assert level.requests.ok or level.validity == "INVALID"


def ladder(*steps: tuple[int, float | None], invalid: int | None = None) -> list[measured.Level]:
    level = measured.summarize_level(
        records.Run(header=msgspec.convert(fakes.header(), records.Header), ended={}, requests={}, cut_rows=0), 0
    )
    return [
        msgspec.structs.replace(
            level,
            concurrency=concurrency,
            validity="INVALID" if concurrency == invalid else "VALID",
            throughput=msgspec.structs.replace(level.throughput, output_tokens_per_s=rate),
        )
        for concurrency, rate in steps
    ]


@pytest.mark.parametrize(
    ("steps", "invalid", "expected"),
    [
        ([], None, False),
        ([(1, 100.0)], None, False),
        ([(1, 100.0), (2, 190.0)], None, False),
        ([(1, 100.0), (2, 106.0)], None, False),
        ([(1, 100.0), (2, 104.0)], None, True),
        ([(1, 100.0), (2, 90.0)], None, True),
        ([(1, 100.0), (4, 110.0)], None, True),  # two doublings
        ([(1, 100.0), (4, 112.0)], None, False),
        ([(1, 100.0), (2, None)], None, False),
        ([(1, 100.0), (2, 100.0)], 2, False),
        ([(2, 100.0), (1, 100.0)], None, False),
    ],
)
def test_saturated(steps: list[tuple[int, float | None]], invalid: int | None, expected: bool) -> None:
    assert summary.saturated(ladder(*steps, invalid=invalid)) is expected


def test_the_numbers_need_neither_plots_nor_tables() -> None:
    code = "import sys, analysis.summary; print({'matplotlib', 'rich', 'loadgen', 'httpx'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
