from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from analysis import hardware, parts, server, summary, tables
from tests import fakes_run as fakes

GOLDEN = Path(__file__).parent / "golden" / "table.txt"


def shown(made: summary.Summary, width: int = 80, **settings: Any) -> str:
    text = io.StringIO()
    tables.show(made, Console(file=text, width=width, **settings))
    return text.getvalue()


def test_golden(tmp_path: Path) -> None:
    """Look at the difference; where it is right, write it: the message holds the new text."""
    text = shown(summary.summarize(fakes.sweep(tmp_path)))
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    assert text == GOLDEN.read_text(encoding="utf-8"), text


def test_null_is_a_dash_with_one_footnote(tmp_path: Path) -> None:
    text = shown(summary.summarize(fakes.write(tmp_path, fakes.closed_loop(1, each=9))))
    assert text.count("not known:") == 1
    assert "a p99 368" in text
    full = shown(summary.summarize(fakes.write(tmp_path, fakes.closed_loop(1, each=400))))
    assert tables.UNKNOWN not in full


def test_a_p99_shows_its_interval_where_it_is_wide(tmp_path: Path) -> None:
    made = summary.summarize(fakes.sweep(tmp_path))
    sure = msgspec.structs.replace(made.levels[2].ttft_ms, p99=200.0, p99_ci95=(195.0, 210.0))
    wide = msgspec.structs.replace(sure, p99_ci95=(150.0, 210.0))
    text = shown(msgspec.structs.replace(made, levels=(msgspec.structs.replace(made.levels[2], ttft_ms=wide),)))
    assert "178 200 ±25%" in " ".join(text.split())
    assert text.count("± farther end of the 95 % interval, where beyond 5 %") == 1
    text = shown(msgspec.structs.replace(made, levels=(msgspec.structs.replace(made.levels[2], ttft_ms=sure),)))
    assert "±" not in text
    one_sided = msgspec.structs.replace(wide, p99=None, p99_ci95=(150.0, None))
    text = shown(msgspec.structs.replace(made, levels=(msgspec.structs.replace(made.levels[2], ttft_ms=one_sided),)))
    assert "±" not in text


def test_floors_stand_beside_what_was_measured(tmp_path: Path) -> None:
    directory = fakes.sweep(tmp_path)
    assert "floors of" not in shown(summary.summarize(directory))
    text = shown(summary.summarize(directory, hardware.parse("llama-3.1-8b@h100,dtype=bf16")))
    lines = [
        line.split() for line in text[text.index("floors of llama-3.1-8b in bf16 on h100: a decode") :].splitlines()
    ]
    # 64 at once, 29 of them in decode: 16.06 GB of weights and 517 tokens of KV each, at 3.35 TB/s.
    assert ["64", "29.0", "517", "16.1", "1.97", "5.38", "16.4", "33", "8.38", "178", "4.7"] in lines
    assert max(len(line) for line in text.splitlines()) <= 80


def test_no_window_is_in_the_footnote(tmp_path: Path) -> None:
    text = shown(summary.summarize(fakes.write(tmp_path, [fakes.row()])), width=200)
    assert "throughput needs two requests that start after the warm-up" in text


def test_findings_are_merged_over_levels_severest_first(tmp_path: Path) -> None:
    text = shown(summary.summarize(fakes.sweep(tmp_path)), width=300)
    lines = text[text.index("error") :].splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["error", "survivors"],
        ["warning", "failures"],
        ["info", "few-samples"],
    ]
    assert "failures at 128, 256; at 256:" in text
    assert "few-samples at 1, 2, 256; at 256:" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_words_of_a_server_cannot_steer_the_terminal(tmp_path: Path, terminal: bool) -> None:
    evil = "a\x1b]0;x\x07b\x9b31m\u202e[bold]c[/bold] :smile:\n\r"
    text = shown(summary.summarize(fakes.sweep(tmp_path, model=evil)), width=400, force_terminal=terminal)
    assert r"a\u001b]0;x\u0007b\u009b31m\u202e[bold]c[/bold] :smile:\u000a\u000d" in text
    assert r"out of memory \u001b[31m[red]at step 7[/red]" in text
    assert not {"\x07", "\x9b", "\u202e", "\r"} & set(text)
    assert terminal or "\x1b" not in text


def test_a_run_without_a_request(tmp_path: Path) -> None:
    assert "no request was recorded" in shown(summary.summarize(fakes.write(tmp_path, [])))


def test_large_numbers_fit_80_columns_or_fold_but_are_never_cut(tmp_path: Path) -> None:
    made = summary.summarize(fakes.sweep(tmp_path))
    big = msgspec.structs.replace(
        made.levels[-1],
        concurrency=4096,
        ttft_ms=msgspec.structs.replace(made.levels[-1].ttft_ms, p50=123456.0, p99=234567.0),
        e2e_ms=msgspec.structs.replace(made.levels[-1].e2e_ms, p50=345678.0),
    )
    text = shown(msgspec.structs.replace(made, levels=(big,)))
    assert "…" not in text
    for number in ("4096", "123456", "234567", "345678", "INVALID"):
        assert number in text


@pytest.mark.parametrize(
    ("prefill", "said"),
    [
        (0.1, "decode-heavy, 90 % of the time in decode"),
        (0.3, "70 % of the time in decode, 30 % in prefill"),  # no name that a diagnosis would contradict
        (0.7, "prefill-heavy, 70 % of the time in prefill"),
    ],
)
def test_what_the_workload_is_heavy_in(prefill: float, said: str) -> None:
    phases = parts.Phases(prefill_share=prefill, heavy="prefill" if prefill > 0.5 else "decode")
    assert tables._where("chat", phases) == f"chat: {said}"


def test_a_mix_has_a_line_for_each_class(tmp_path: Path) -> None:
    head = fakes.header(workload={"name": "both"}, levels=[{"level": 0, "concurrency": 6}])
    text = shown(summary.summarize(fakes.write(tmp_path, fakes.mix(), [], head)), width=300)
    assert "both: prefill-heavy, 70 % of the time in prefill; " in text
    assert "; chat: 64 % of the time in decode, 36 % in prefill;" in text
    assert "(at concurrency 6, the lightest valid load; TTFT taken as prefill)" in text
    lines = [line.split() for line in text.splitlines()]
    assert [line[:2] for line in lines if line and line[0] in ("6", "chat", "rag")] == [
        ["6", "360/0"],
        ["chat", "300/0"],
        ["rag", "60/0"],
    ]


def test_conversations_have_a_line_for_later_turns(tmp_path: Path) -> None:
    text = shown(summary.summarize(fakes.write(tmp_path, fakes.conversations())))
    assert "first turns" in text
    assert "later turns" in text


@pytest.mark.parametrize(
    ("plan", "head"), [({"rate_per_s": 4.0}, "rate"), ({"rate_per_s": 4.0, "speed": 2.0}, "speed")]
)
def test_what_the_first_column_is(tmp_path: Path, plan: dict[str, Any], head: str) -> None:
    made = summary.summarize(fakes.write(tmp_path, fakes.clean(), [], fakes.header(levels=[{"level": 0} | plan])))
    assert f"\n {head} " in shown(made)


def test_verdicts_have_a_line_for_each_term_and_class(tmp_path: Path) -> None:
    classes = [{"name": "chat", "slo": ["ttft p90 < 1s"]}, {"name": "rag\x1b", "slo": ["ttft p90 < 1s"]}]
    slo = ["tpot p99 < 50ms", "throughput > 10", "error_rate < 50%", "tpot p50 < 10ms"]
    rows = [row | {"class": row["class"] + ("" if row["class"] == "chat" else "\x1b")} for row in fakes.mix()]
    head = fakes.header(workload={"name": "mix", "classes": classes}, levels=[{"level": 0, "concurrency": 5}], slo=slo)
    lines = shown(summary.summarize(fakes.write(tmp_path, rows, [], head))).splitlines()
    start = next(i for i, line in enumerate(lines) if "% over (interval)" in line) + 2
    assert [" ".join(line.split()) for line in lines[start : start + 9]] == [
        "5 tpot p99 < 50ms PASS 20.0 ms 0 (0 to 0.83) 360",
        f"throughput > 10 PASS 80.7 tok/s 50.8 to 129 tok/s {tables.UNKNOWN}",
        f"error_rate < 50% PASS {tables.UNKNOWN} 0 (0 to 0.83) 360",
        "tpot p50 < 10ms FAIL 20.0 ms 100 (99 to 100) 360",
        "goodput 0.00 req/s 100",
        "chat: ttft p90 < 1s PASS 100 ms 0 (0 to 0.99) 300",
        "chat: goodput 0.00 req/s 100",
        r"rag\u001b: ttft p90 < 1s FAIL 2000 ms 100 (92 to 100) 60",
        r"rag\u001b: goodput 0.00 req/s 100",
    ]


def test_verdicts_of_an_invalid_level_are_not_shown(tmp_path: Path) -> None:
    head = fakes.header(slo=["ttft p50 < 1s"])
    text = shown(summary.summarize(fakes.write(tmp_path, fakes.clean(), [fakes.ended(clock_step_us=9999)], head)))
    assert "ttft p50 < 1s  INVALID" in text
    assert "PASS" not in text


def test_no_slo_no_verdicts(tmp_path: Path) -> None:
    assert "% over" not in shown(summary.summarize(fakes.write(tmp_path, fakes.clean())))


def test_what_the_server_said_has_a_line_for_each_level_that_has_it(tmp_path: Path) -> None:
    said = server.Server(
        engine="vllm", sources=1, samples=30, gaps=0, restarts=0, running=server.Spread(7.5, 8),
        waiting=server.Spread(123.4, 256), kv_use=server.Spread(0.123, 0.999), preemptions=3, prefix_hit_share=0.5,
        accepted_share=None, queue_ms=None, prefill_ms=None, decode_ms=None, ttft_ms=1234.5, client_ttft_ms=None,
        output_tokens=1, received_tokens=1, cut_tokens=0,
    )  # fmt: skip
    made = summary.summarize(fakes.sweep(tmp_path))
    assert "KV use" not in shown(made)
    one = msgspec.structs.replace(made.levels[1], server=said)
    text = shown(msgspec.structs.replace(made, levels=(made.levels[0], one)))
    lines = text[text.index("KV use") :].splitlines()
    assert lines[1].split() == [
        "conc.",
        "mean",
        "max",
        "mean",
        "max",
        "mean",
        "max",
        "empted",
        "hits",
        "%",
        "server",
        "client",
    ]
    assert lines[3].split() == ["2", "7.50", "8", "123", "256", "12", "100", "3", "50", "1234", tables.UNKNOWN]
    assert lines[4].strip() == ""


def test_users_who_left_have_a_place_of_their_own(tmp_path: Path) -> None:
    rows = fakes.with_some(9, status="cancelled", left=True)
    text = shown(summary.summarize(fakes.write(tmp_path, rows)))
    assert "391/0/9" in text
    assert "ok/failed" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\N{EN DASH}"),
        (0.0, "0.00"),
        (1.234, "1.23"),
        (9.996, "10.0"),
        (99.96, "100"),
        (12345.6, "12346"),
        (-3.0, "-3.00"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert tables.number(value) == text


def test_the_curve_is_said_of_a_sweep_alone(tmp_path: Path) -> None:
    made = summary.summarize(fakes.sweep(tmp_path))
    assert "knee at N = " in shown(made)
    few = msgspec.structs.replace(made.curve, fit=None, why_no_fit="it takes 4")
    assert "it takes 4" in shown(msgspec.structs.replace(made, curve=few))
    assert "it takes 4" not in shown(msgspec.structs.replace(made, curve=few, levels=made.levels[:2]))


def test_an_open_loop_says_its_last_rate_that_holds(tmp_path: Path) -> None:
    head = fakes.header(
        levels=[{"level": 0, "rate_per_s": 10.0}, {"level": 1, "rate_per_s": 20.0}], arrivals="constant"
    )
    rows = [*fakes.open_loop(10, 60), *(row | {"level": 1} for row in fakes.open_loop(20, 60, grows_us=50_000))]
    text = shown(summary.summarize(fakes.write(tmp_path, rows, [], head)), width=300)
    assert "the server keeps the rate up to 10/s; it is over-saturated at 20/s" in text
    assert "where a server is over-saturated, latencies are functions of the length of the level" in text
