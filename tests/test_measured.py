from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from analysis import evidence, hardware, measured, pace, parts, quantiles, records, summary
from tests import fakes_run as fakes

if TYPE_CHECKING:
    from pathlib import Path


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
    assert level.client.read_lag_ms == measured.ReadLag(p50=0.02, p99=0.02, max=0.02)
    assert level.client.cpu_share == 0.1


def test_floors_are_of_the_hardware_that_the_header_names(tmp_path: Path) -> None:
    kept = msgspec.to_builtins(hardware.parse("llama-3.1-8b@h100,dtype=bf16"))
    plan = {"levels": [{"level": 0, "rate_per_s": 10.0}], "hardware": kept}
    calm = summary.summarize(fakes.write(tmp_path / "a", fakes.open_loop(), [], fakes.header(**plan))).levels[0]
    assert calm.floors is not None
    assert calm.floors.ttft_ms == calm.ttft_sent_ms.p50
    assert calm.floors.itl_floor_ms == float(f"{calm.floors.itl_floor_ms:.6g}")
    grows = fakes.write(tmp_path / "b", fakes.open_loop(grows_us=20_000), [], fakes.header(**plan))
    over = summary.summarize(grows).levels[0]
    assert measured.over_saturated(over)
    assert over.floors is not None
    assert over.floors.ttft_floor_ms == calm.floors.ttft_floor_ms
    assert (over.floors.ttft_ms, over.floors.ttft_efficiency) == (None, None)


def test_open_loop_divides_by_the_requests_in_flight(tmp_path: Path) -> None:
    head = fakes.header(levels=[{"level": 0, "rate_per_s": 4.0}])
    level = summary.summarize(fakes.write(tmp_path, fakes.closed_loop(4, each=20), [], head)).levels[0]
    assert level.throughput.per_user_tokens_per_s == pytest.approx(10 / 0.28, rel=0.01)
    assert measured.load(level) == "4/s"


def test_a_level_of_the_open_loop(tmp_path: Path) -> None:
    head = fakes.header(levels=[{"level": 0, "rate_per_s": 10.0}], arrivals="constant")
    end = fakes.ended(ended_by="schedule", due=601, dropped=1, waited_max=None)
    made = summary.summarize(fakes.write(tmp_path, fakes.open_loop(10, 60), [end], head))
    level = made.levels[0]
    assert level.schedule == pace.Schedule(due=601, dropped=1, waited_max=None, rate_per_s=10, achieved_share=0.998336)
    assert level.achieved == measured.Achieved(concurrency=2.8, rate_per_s=10)
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
    assert [measured.over_saturated(level) for level in made.levels] == [False, True]
    assert kept.ttft_ms.p50 is not None
    for latency in (over.ttft_ms, over.ttft_sent_ms, over.ttfat_ms, over.itl_ms, over.tpot_ms, over.e2e_ms):
        assert latency == quantiles.Distribution(n=latency.n)
    assert over.ttft_ms.n
    assert over.throughput.output_tokens_per_s is not None
    assert (made.curve.holds, made.curve.fails, made.curve.left_out) == (10, 20, (1,))


def test_nor_do_its_classes_and_turns() -> None:
    header = msgspec.convert(fakes.header(), records.Header)
    level = measured.summarize_level(records.Run(header=header, ended={}, requests={}, cut_rows=0), 0)
    part = parts.Part(
        name="a",
        throughput=parts.Rates(requests_per_s=None, output_tokens_per_s=None, total_tokens_per_s=None),
        **{name: getattr(level, name) for name in parts.Part.__struct_fields__ if name not in ("name", "throughput")},
    )
    part = msgspec.structs.replace(part, ttft_ms=quantiles.Distribution(n=9, p50=1.0))
    found = (evidence.Finding("over-saturated", "error", ""),)
    whole = msgspec.structs.replace(level, findings=found, classes=(part,), turns=parts.Turns(first=part, later=part))
    shown = measured._shown(whole)
    assert shown.turns is not None
    for bare in (*shown.classes, shown.turns.first, shown.turns.later):
        assert bare.ttft_ms == quantiles.Distribution(n=9)


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
    assert measured.load(summary.summarize(fakes.write(tmp_path, [fakes.row()], [], head)).levels[0]) == text


def test_sources_of_counts_are_named(tmp_path: Path) -> None:
    rows = [fakes.row(0), fakes.row(1, tokens_from="events")]
    assert summary.summarize(fakes.write(tmp_path, rows)).levels[0].tokens.source == "mixed"


def test_a_verdict_is_as_the_contract_has_it(tmp_path: Path) -> None:
    directory = fakes.write(
        tmp_path, fakes.closed_loop(4, each=100), [], fakes.header(slo=["ttft p95 < 150ms", "ttft p50 < 1ms"])
    )
    level = json.loads(summary.dumps(summary.summarize(directory)))["levels"][0]
    assert level["verdicts"][0] == {
        "term": "ttft p95 < 150ms", "verdict": "PASS", "observed_ms": 100.0, "exceed": 0.0,
        "exceed_ci": [0.0, 0.00746136], "unknown": 0.0, "n": 400, "n_eff": 400,
        "observed_per_s": None, "per_s_ci": [None, None],
    }  # fmt: skip
    assert list(level["goodput"]) == ["requests_per_s", "share"]


def test_a_level_is_summarised_while_the_run_goes_on(tmp_path: Path) -> None:
    fakes.sweep(tmp_path)
    whole = summary.summarize(tmp_path)
    assert measured.summarize_level(records.read(tmp_path, only=2), 2) == whole.levels[2]
