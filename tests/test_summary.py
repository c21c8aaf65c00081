from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import evidence, pace, parts, quantiles, records, summary
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
}
HEADER = (
    "format loadgen started_at target model api workload arrivals seed slo clock host server options "
    "phases seeks answer curve levels"
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


def test_known_answers(tmp_path: Path) -> None:
    rows = [*fakes.closed_loop(4, each=100), fakes.failed(900, 1_000_000, "rate_limited")]
    rows.append(fakes.row(901, 1_000_000, status="cancelled"))
    ends = [fakes.ended(cpu_us=3_000_000)]
    directory = fakes.write(tmp_path, rows, ends, fakes.header(levels=[{"level": 0, "concurrency": 4}]))
    level = summary.summarize(directory).levels[0]
    counts = parts.Counts(sent=402, ok=400, failed=1, cancelled=1, left=0, errors={"rate_limited": 1})
    assert level.requests == counts
    assert level.validity == "VALID"
    assert level.window_s == pytest.approx(27.93)
    assert level.throughput.output_tokens_per_s == pytest.approx(4 * 10 / 0.28, rel=0.01)
    assert level.throughput.output_tokens_per_s is not None
    assert level.throughput.per_user_tokens_per_s == pytest.approx(level.throughput.output_tokens_per_s / 4, rel=1e-5)
    assert (level.ttft_ms.n, level.ttft_ms.p99, level.e2e_ms.p50, level.tpot_ms.mean) == (400, 100, 280, 20)
    assert (level.itl_ms.n, level.itl_ms.max) == (3600, 20)
    assert (level.tokens.prompt_mean, level.tokens.output_mean, level.tokens.want_output_mean) == (512, 10, 10)
    assert (level.tokens.source, level.tokens.per_event, level.tokens.distinct_prompts) == ("usage", 1, 402)
    assert (level.tokens.cached_share, level.tokens.cacheable_share) == (0, 0)
    assert level.client.read_lag_ms == summary.ReadLag(p50=0.02, p99=0.02, max=0.02)
    assert level.client.cpu_share == 0.1


def test_open_loop_divides_by_the_requests_in_flight(tmp_path: Path) -> None:
    head = fakes.header(levels=[{"level": 0, "rate_per_s": 4.0}])
    level = summary.summarize(fakes.write(tmp_path, fakes.closed_loop(4, each=20), [], head)).levels[0]
    assert level.throughput.per_user_tokens_per_s == pytest.approx(10 / 0.28, rel=0.01)
    assert summary.load(level) == "4/s"


def test_a_level_of_the_open_loop(tmp_path: Path) -> None:
    head = fakes.header(levels=[{"level": 0, "rate_per_s": 10.0}], arrivals="constant")
    end = fakes.ended(ended_by="schedule", due=601, dropped=1, waited_max=None)
    made = summary.summarize(fakes.write(tmp_path, fakes.open_loop(10, 60), [end], head))
    level = made.levels[0]
    assert level.schedule == pace.Schedule(due=601, dropped=1, waited_max=None, rate_per_s=10, achieved_share=0.998336)
    assert level.achieved == summary.Achieved(concurrency=2.8, rate_per_s=10)
    assert (made.arrivals, level.concurrency, level.validity) == ("constant", None, "VALID")


def test_a_mix_and_conversations(tmp_path: Path) -> None:
    level = summary.summarize(fakes.write(tmp_path / "a", fakes.mix())).levels[0]
    assert [part.name for part in level.classes] == ["chat", "rag"]
    assert sum(part.requests.ok for part in level.classes) == level.requests.ok
    level = summary.summarize(fakes.write(tmp_path / "b", fakes.conversations())).levels[0]
    assert level.turns is not None
    assert level.turns.first.requests.ok + level.turns.later.requests.ok == level.requests.ok


def test_an_over_saturated_level_prints_no_latency(tmp_path: Path) -> None:
    head = fakes.header(
        levels=[{"level": 0, "rate_per_s": 10.0}, {"level": 1, "rate_per_s": 20.0}], arrivals="constant"
    )
    rows = fakes.open_loop(10, 60)
    rows += [row | {"level": 1} for row in fakes.open_loop(20, 60, grows_us=50_000)]
    made = summary.summarize(fakes.write(tmp_path, rows, [], head))
    kept, over = made.levels
    assert [summary.over_saturated(level) for level in made.levels] == [False, True]
    assert kept.ttft_ms.p50 is not None
    for latency in (over.ttft_ms, over.ttft_sent_ms, over.ttfat_ms, over.itl_ms, over.tpot_ms, over.e2e_ms):
        assert latency == quantiles.Distribution(n=latency.n)
    assert over.ttft_ms.n
    assert over.throughput.output_tokens_per_s is not None
    assert (made.curve.holds, made.curve.fails, made.curve.left_out) == (10, 20, (1,))


def test_nor_do_its_classes_and_turns() -> None:
    level = ladder((1, 100.0))[0]
    part = parts.Part(
        name="a",
        throughput=parts.Rates(requests_per_s=None, output_tokens_per_s=None, total_tokens_per_s=None),
        **{name: getattr(level, name) for name in parts.Part.__struct_fields__ if name not in ("name", "throughput")},
    )
    part = msgspec.structs.replace(part, ttft_ms=quantiles.Distribution(n=9, p50=1.0))
    found = (evidence.Finding("over-saturated", "error", ""),)
    whole = msgspec.structs.replace(level, findings=found, classes=(part,), turns=parts.Turns(first=part, later=part))
    shown = summary._shown(whole)
    assert shown.turns is not None
    for bare in (*shown.classes, shown.turns.first, shown.turns.later):
        assert bare.ttft_ms == quantiles.Distribution(n=9)


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


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        ({"concurrency": 8}, "8"),
        ({"rate_per_s": 4.0}, "4/s"),
        ({"rate_per_s": 0.25}, "0.25/s"),
        ({"rate_per_s": 3.7, "speed": 2.0}, "2x"),
        ({"speed": 0.5}, "0.5x"),
        ({}, "level 0"),
    ],
)
def test_load_names_what_was_asked(tmp_path: Path, plan: dict[str, Any], text: str) -> None:
    head = fakes.header(levels=[{"level": 0} | plan])
    assert summary.load(summary.summarize(fakes.write(tmp_path, [fakes.row()], [], head)).levels[0]) == text


def test_sources_of_counts_are_named(tmp_path: Path) -> None:
    rows = [fakes.row(0), fakes.row(1, tokens_from="events")]
    assert summary.summarize(fakes.write(tmp_path, rows)).levels[0].tokens.source == "mixed"


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
    assert [(name, [one.verdict for one in stated.verdicts]) for name, stated in summary.statements(level)] == [
        ("", []),
        ("chat", ["PASS"]),
        ("rag", ["FAIL"]),
    ]
    assert level.goodput is not None
    assert level.goodput.share == pytest.approx(300 / 360, rel=1e-5)
    assert summary.exit_code(made) == 1


def test_a_verdict_is_as_the_contract_has_it(tmp_path: Path) -> None:
    directory = fakes.write(tmp_path, fakes.closed_loop(4, each=100), [], fakes.header(slo=SLO))
    level = json.loads(summary.dumps(summary.summarize(directory)))["levels"][0]
    assert level["verdicts"][0] == {
        "term": "ttft p95 < 150ms", "verdict": "PASS", "observed_ms": 100.0, "exceed": 0.0,
        "exceed_ci": [0.0, 0.00746136], "unknown": 0.0, "n": 400, "n_eff": 400,
        "observed_per_s": None, "per_s_ci": [None, None],
    }  # fmt: skip
    assert list(level["goodput"]) == ["requests_per_s", "share"]


def test_a_cut_row_is_a_finding(tmp_path: Path) -> None:
    fakes.write(tmp_path, fakes.closed_loop(1, each=9))
    with (tmp_path / "requests.jsonl").open("a") as file:
        file.write('{"level": 0, "ind')
    assert "cut-row" in {finding.code for finding in summary.summarize(tmp_path).levels[0].findings}


def test_a_level_is_summarised_while_the_run_goes_on(tmp_path: Path) -> None:
    fakes.sweep(tmp_path)
    whole = summary.summarize(tmp_path)
    assert summary.summarize_level(records.read(tmp_path, only=2), 2) == whole.levels[2]


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


def ladder(*steps: tuple[int, float | None], invalid: int | None = None) -> list[summary.Level]:
    level = summary.summarize_level(
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
