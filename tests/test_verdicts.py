from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import decision, metrics, records, slo, verdicts, window
from tests import fakes_run as fakes
from tests.bench import virtual

MINUTE = window.Window(start_us=0, end_us=60e6)


def header(**changes: Any) -> records.Header:
    return msgspec.convert(fakes.header(**changes), records.Header)


def spread(count: int = 1000, ttfts_us: dict[int, int] | None = None, **changes: Any) -> list[fakes.Row]:
    """Requests over a minute, each of ten events, 20 ms apart; the first after 100 ms, or as `ttfts_us` says."""
    rows = []
    for i in range(count):
        ttft_us = (ttfts_us or {}).get(i, 100_000)
        rows.append(fakes.row(i, i * 60_000_000 // count + 1, [ttft_us + 20_000 * e for e in range(10)], **changes))
    return rows


def judged(
    term: str, rows: list[fakes.Row], steady: window.Window | None = MINUTE, **settings: Any
) -> decision.Verdict:
    requests = fakes.requests(*rows)
    return verdicts.judge(slo.parse(term), requests, metrics.event_tokens(requests), steady, **settings)


def held(requests: records.Requests, steady: window.Window | None = MINUTE) -> verdicts.Held:
    return verdicts.Held(requests=requests, tokens=metrics.event_tokens(requests), steady=steady)


def change(rows: list[fakes.Row], places: Any, **changes: Any) -> list[fakes.Row]:
    return [row | changes if i in set(places) else row for i, row in enumerate(rows)]


def break_down(rows: list[fakes.Row], places: Any) -> list[fakes.Row]:
    return change(
        rows, places, status="failed", events_us=[], answer_event=None, error={"kind": "empty", "message": ""}
    )


@pytest.mark.parametrize(
    ("slow", "verdict"),
    [(0, "PASS"), (2, "PASS"), (10, "UNDECIDED"), (30, "FAIL"), (1000, "FAIL")],
)
def test_the_rule(slow: int, verdict: str) -> None:
    """Independent samples: of 1000, at most 4 may exceed for PASS at p99, and 16 must for FAIL."""
    places = range(0, 1000, 1000 // slow) if slow else ()
    found = judged("ttft p99 < 300ms", spread(ttfts_us=dict.fromkeys(places, 400_000)))
    assert found.verdict == verdict
    assert found.exceed == len(list(places)) / 1000
    assert found.n_eff == pytest.approx(1000, rel=0.1)
    low, high = found.exceed_ci
    assert low is not None
    assert high is not None
    assert low <= found.exceed <= high


@pytest.mark.parametrize(("n", "k", "passes"), [(298, 0, False), (299, 0, True), (472, 1, False), (520, 1, True)])
def test_how_many_are_enough(n: int, k: int, passes: bool) -> None:
    found = judged("ttft p99 < 300ms", spread(n, ttfts_us=dict.fromkeys(range(k), 400_000)))
    assert (found.verdict == "PASS") == passes
    assert found.verdict != "FAIL"


def test_a_value_at_the_limit_keeps_it() -> None:
    assert judged("ttft p99 < 100ms", spread()).exceed == 0
    assert judged("ttft p99 < 99.999ms", spread()).exceed == 1


@pytest.mark.parametrize(
    ("term", "observed"),
    [
        ("ttft p99 < 1s", 100),
        ("ttft_sent p50 < 1s", 100),
        ("ttfat p99 < 1s", 100),
        ("itl p99 < 1s", 20),
        ("tpot p99 < 1s", 20),
        ("e2e p99 < 1s", 280),
        ("stall p99 < 1s", 0),
    ],
)
def test_each_latency_is_observed(term: str, observed: float) -> None:
    found = judged(term, spread())
    assert (found.verdict, found.exceed) == ("PASS", 0)
    assert found.observed_ms == pytest.approx(observed)
    assert judged(term.replace("1s", "0.001ms"), spread()).verdict == ("FAIL" if observed else "PASS")


def test_clustered_misses_count_as_few() -> None:
    """60 misses in one second of sixty are one event, and not sixty."""
    scattered = judged("ttft p95 < 300ms", spread(ttfts_us=dict.fromkeys(range(0, 1000, 12), 400_000)))
    clustered = judged("ttft p95 < 300ms", spread(ttfts_us=dict.fromkeys(range(500, 584), 400_000)))
    assert (scattered.verdict, scattered.exceed) == ("FAIL", 0.084)
    assert (clustered.verdict, clustered.exceed) == ("UNDECIDED", 0.084)
    assert scattered.n_eff is not None
    assert clustered.n_eff is not None
    assert clustered.n_eff < scattered.n_eff / 10


@pytest.mark.parametrize("term", ["ttft p99 < 9s", "ttfat p99 < 9s", "tpot p99 < 9s", "e2e p99 < 9s", "stall p99 < 9s"])
def test_failures_exceed_every_limit(term: str) -> None:
    found = judged(term, break_down(spread(), range(0, 1000, 20)))
    assert (found.verdict, found.exceed, found.observed_ms) == ("FAIL", 0.05, None)
    few = judged(term, break_down(spread(), [500]))
    assert (few.verdict, few.exceed) == ("PASS", 0.001)
    assert few.observed_ms is not None


def test_a_failed_request_owes_its_gaps() -> None:
    found = judged("itl p99 < 9s", break_down(spread(), range(0, 1000, 20)))
    assert found.verdict == "FAIL"
    assert found.exceed == pytest.approx(0.05, rel=0.01)
    broken = change(spread(), range(0, 1000, 20), status="failed", events_us=[100_000, 120_000, 140_000])
    assert judged("itl p99 < 9s", broken).exceed == pytest.approx(0.05 * 7 / 9, rel=0.01)
    nothing_else = judged("itl p99 < 9s", break_down(spread(), range(1000)))
    assert (nothing_else.verdict, nothing_else.exceed, nothing_else.observed_ms) == ("FAIL", 1, None)


def test_gaps_count_in_the_window() -> None:
    rows = spread(ttfts_us={})
    rows[-1]["events_us"] = [100_000, 120_000, 60_000_000]
    assert judged("itl p99 < 1s", rows).exceed == 0
    rows[-1]["sent_us"] = 0
    assert judged("itl p99 < 1s", rows).exceed > 0  # type: ignore[operator]


def test_who_left_before_the_limit_leaves_it_unknown() -> None:
    """400 ms: who left after 100 ms may or may not have seen a token by then, who left after 500 ms has not."""
    gone: dict[str, Any] = {"status": "cancelled", "left": True, "events_us": [], "answer_event": None}
    early = judged("ttft p99 < 400ms", change(spread(), range(0, 1000, 40), end_us=100_000, **gone))
    assert (early.verdict, early.exceed) == ("UNDECIDED", 0)
    assert early.exceed_ci[0] == 0
    late = judged("ttft p99 < 400ms", change(spread(), range(0, 1000, 40), end_us=500_000, **gone))
    assert (late.verdict, late.exceed) == ("FAIL", 0.025)
    assert judged("tpot p99 < 400ms", change(spread(), range(0, 1000, 40), end_us=500_000, **gone)).verdict == "PASS"
    assert judged("ttft p99 < 400ms", change(spread(), range(1000), end_us=100_000, **gone)).verdict == "UNDECIDED"


def test_what_was_seen_of_a_cut_answer_counts() -> None:
    seen: dict[str, Any] = {"events_us": [600_000, 700_000], "end_us": 710_000, "output_tokens": 2}
    cut = change(spread(), range(0, 1000, 40), status="cancelled", **seen)
    assert judged("ttft p99 < 400ms", cut).verdict == "FAIL"
    assert judged("tpot p99 < 50ms", cut).verdict == "FAIL"
    assert judged("e2e p99 < 400ms", cut).verdict == "FAIL"
    assert judged("e2e p99 < 800ms", cut).verdict == "UNDECIDED"


def test_no_answer_text_is_unknown_unless_it_took_too_long() -> None:
    silent = change(spread(), range(0, 1000, 40), answer_event=None)
    assert judged("ttfat p99 < 1s", silent).verdict == "UNDECIDED"
    assert judged("ttfat p99 < 200ms", silent).verdict == "FAIL"


def test_later_turns_after_the_window_are_left_out() -> None:
    rows = spread(ttfts_us=dict.fromkeys(range(900, 1000), 400_000))
    half = window.Window(start_us=0, end_us=30e6)
    assert judged("ttft p99 < 300ms", rows, half).exceed == 0


def test_nothing_is_decided_without_a_window_or_a_request() -> None:
    for term in ("ttft p99 < 1s", "itl p99 < 1s", "error_rate < 50%", "throughput > 1"):
        assert judged(term, spread(), None).verdict == "UNDECIDED"
        none = judged(term, [], None)
        assert (none.verdict, none.observed_ms, none.exceed, none.n_eff) == ("UNDECIDED", None, None, None)
        assert none.exceed_ci == (None, None)


def test_error_rate() -> None:
    assert judged("error_rate < 1%", spread()).verdict == "PASS"
    assert judged("error_rate < 0.1%", spread()).verdict == "UNDECIDED"
    found = judged("error_rate < 1%", break_down(spread(), range(0, 1000, 20)))
    assert (found.verdict, found.exceed, found.observed_ms) == ("FAIL", 0.05, None)
    cut = change(spread(), range(0, 1000, 20), status="cancelled")
    assert judged("error_rate < 1%", cut).exceed == 0


@pytest.mark.parametrize(("limit", "verdict"), [(165, "PASS"), (167, "UNDECIDED"), (169, "FAIL")])
def test_throughput(limit: int, verdict: str) -> None:
    """1000 requests of 10 tokens in a minute; of the blocks some have 33 requests, some 34."""
    found = judged(f"throughput > {limit}", spread())
    assert found.observed_per_s == pytest.approx(10_000 / 60, rel=0.01)
    assert found.exceed is None
    assert found.verdict == verdict


def test_more_terms_and_looks_ask_for_more_evidence() -> None:
    rows = spread(ttfts_us=dict.fromkeys(range(0, 1000, 59), 400_000))  # 17 of 1000
    assert judged("ttft p99 < 300ms", rows).verdict == "FAIL"
    assert judged("ttft p99 < 300ms", rows, of=5).verdict == "UNDECIDED"
    rows = spread(ttfts_us=dict.fromkeys(range(0, 1000, 300), 400_000))  # 4 of 1000
    assert judged("ttft p99 < 300ms", rows, of=5).verdict == "PASS"
    assert judged("ttft p99 < 300ms", rows, alpha=0.01).verdict == "UNDECIDED"


def stated(rows: list[fakes.Row], steady: window.Window | None = MINUTE, **head: Any) -> dict[str, verdicts.Statement]:
    requests = fakes.requests(*rows)
    return verdicts.of_levels(header(**head), [held(requests, steady)])


def test_no_slo_no_statement() -> None:
    assert stated(spread()) == {}
    assert stated(spread(), slo=None) == {}


def test_terms_of_a_level() -> None:
    one = {"name": "w", "classes": [{"slo": ["ttft p99 < 1s", "e2e p90 < 9s"]}]}
    found = verdicts.terms(header(workload=one, slo=["ttft p99 < 2s"]))
    assert list(map(str, found)) == ["ttft p99 < 2s", "e2e p90 < 9s"]
    two = {"name": "w", "classes": [{"name": "a", "slo": ["chat"]}, {"name": "b"}]}
    assert verdicts.terms(header(workload=two)) == ()
    assert {name: len(found) for name, found in verdicts.class_terms(header(workload=two)).items()} == {"a": 2, "b": 0}
    assert verdicts.class_terms(header(workload=one)) == {}


def test_goodput_needs_every_term() -> None:
    rows = spread(ttfts_us=dict.fromkeys(range(100), 400_000))
    rows = change(rows, range(50, 150), events_us=[100_000, 900_000])
    rows = break_down(rows, range(150, 200))
    rows = change(rows, range(200, 210), status="cancelled")
    rows = change(rows, range(210, 220), status="cancelled", left=True)
    rows = change(rows, range(220, 230), status="cancelled", left=True, events_us=[], answer_event=None, end_us=10**6)
    found = stated(rows, slo=["ttft p99 < 300ms", "e2e p90 < 500ms"])[""]
    assert found.goodput is not None
    assert found.goodput.share == pytest.approx(770 / 990)  # who left is no miss, unless by a wait that was too long
    assert found.goodput.requests_per_s == pytest.approx(770 / 60, rel=0.01)
    assert [one.term for one in found.verdicts] == ["ttft p99 < 300ms", "e2e p90 < 500ms"]


def test_a_request_is_held_to_its_own_gaps() -> None:
    rows = change(spread(), range(100), events_us=[0, *range(10, 2000, 10), 500_000])  # 1 long gap of 200
    rows = change(rows, range(100, 150), events_us=[0, 500_000, 500_010])
    goodput = stated(rows, slo=["itl p99 < 100ms"])[""].goodput
    assert goodput is not None
    assert goodput.share == 0.95


def test_goodput_of_terms_of_the_whole_counts_what_went_well() -> None:
    goodput = stated(break_down(spread(), range(100)), slo=["throughput > 10", "error_rate < 1%"])[""].goodput
    assert goodput is not None
    assert goodput.share == 0.9


def test_classes_are_held_to_their_own_terms() -> None:
    rows = spread()
    for i, row in enumerate(rows):
        row["class"] = "chat" if i % 2 else "rag"
        row["events_us"] = [time + (0 if i % 2 else 1_000_000) for time in row["events_us"]]
    classes = [{"name": "chat", "slo": ["ttft p99 < 300ms"]}, {"name": "rag", "slo": ["ttft p99 < 300ms"]}]
    workload = {"name": "mix", "classes": classes}
    found = stated(rows, workload=workload, slo=["tpot p99 < 50ms"])
    assert {name: [one.verdict for one in statement.verdicts] for name, statement in found.items()} == {
        "": ["PASS"],
        "chat": ["PASS"],
        "rag": ["FAIL"],
    }
    assert {name: one.goodput.share for name, one in found.items() if one.goodput} == {"": 0.5, "chat": 1, "rag": 0}
    assert stated(rows, workload=workload)[""].verdicts == ()


def test_an_invalid_level_decides_nothing() -> None:
    found = verdicts.withheld(stated(spread(), slo=["ttft p99 < 1s"])[""])
    assert [(one.verdict, one.observed_ms) for one in found.verdicts] == [("UNDECIDED", 100)]


@fakes.few_examples
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ok", "failed", "cancelled"]),
            st.booleans(),
            st.lists(st.integers(0, 2_000_000), max_size=4).map(sorted),
            st.integers(0, 60_000_000),
        ),
        max_size=15,
    ),
    st.sampled_from([*(f"{name} p90 < 500ms" for name in slo.LATENCIES), "error_rate < 10%", "throughput > 1"]),
)
def test_any_rows_give_a_verdict_in_order(rows: list[Any], term: str) -> None:
    made = [
        fakes.row(i, sent, events, status=status, left=left, class_name="a")
        for i, (status, left, events, sent) in enumerate(rows)
    ]
    requests = fakes.requests(*made)
    steady = window.find(requests)
    found = stated(made, steady, slo=[term])
    (one,) = found[""].verdicts
    low, high = one.exceed_ci if one.observed_per_s is None else one.per_s_ci
    if low is not None and high is not None:
        assert low <= high
    assert one.exceed is None or 0 <= one.exceed <= 1
    goodput = found[""].goodput
    assert goodput is not None
    assert goodput.share is None or 0 <= goodput.share <= 1


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 20), st.integers(300, 1000), st.integers(0, 9))
def test_two_halves_say_what_the_whole_says(slow: int, count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = spread(count, ttfts_us=dict.fromkeys(random.choice(count, slow, replace=False).tolist(), 400_000))
    whole = judged("ttft p99 < 300ms", rows)
    ends = ((0, 30), (30, 60))
    parts = [[row for row in rows if a * 1e6 < row["sent_us"] <= b * 1e6] for a, b in ends]
    windows = [window.Window(start_us=a * 1e6, end_us=b * 1e6) for a, b in ends]
    levels = [held(fakes.requests(*part), one) for part, one in zip(parts, windows, strict=True)]
    term = slo.parse("ttft p99 < 300ms")
    halves = decision.decide(term, [verdicts.sample(term, one) for one in levels])
    assert (halves.n, halves.exceed, halves.observed_ms) == (whole.n, whole.exceed, whole.observed_ms)
    assert {whole.verdict, halves.verdict} != {"PASS", "FAIL"}


def test_several_levels_make_one_statement() -> None:
    rows = spread(250, ttfts_us=dict.fromkeys(range(0, 250, 25), 400_000))
    for i, row in enumerate(rows):
        row["class"] = "a" if i % 2 else "b"
    workload = {"name": "mix", "classes": [{"name": "a", "slo": ["ttft p90 < 1s"]}, {"name": "b"}]}
    head = header(slo=["ttft p99 < 1s", "e2e p90 < 500ms"], workload=workload)
    one, two = held(fakes.requests(*rows)), held(fakes.requests(*spread(150)), window.Window(start_us=0, end_us=30e6))
    alone, both = verdicts.of_levels(head, [one]), verdicts.of_levels(head, [one, two])
    assert [found.verdict for found in alone[""].verdicts] == ["UNDECIDED", "PASS"]
    assert [found.verdict for found in both[""].verdicts] == ["PASS", "PASS"]
    assert [found.n for found in both["a"].verdicts] == [125]
    assert both[""].goodput is not None
    assert both[""].goodput.share == pytest.approx(390 / 400)
    assert both[""].goodput.requests_per_s == pytest.approx((240 + 75) / 90, rel=0.02)
    assert [found.verdict for found in verdicts.of_levels(head, [one, two], looks=5)[""].verdicts] == [
        "UNDECIDED",
        "PASS",
    ]


def queue(random: np.random.Generator, count: int) -> records.Requests:
    """Waits of a queue of one server at 60 % load, as TTFT: neighbours wait together."""
    due_s, service_s = np.cumsum(random.exponential(1 / 0.6, count)), random.exponential(1.0, count)
    free_s, served = 0.0, []
    for due, service in zip(due_s, service_s, strict=True):
        free_s = max(free_s, due) + service
        served.append(virtual.Served(due, 1, 1, measured=True, slot=0, events_s=[free_s]))
    return virtual.columns(served)


def test_at_the_limit_it_errs_as_seldom_as_it_promises() -> None:
    """A time in the system over x has the probability exp(-0.4 x): the limit at which just 10 % exceed is known."""
    random, levels = np.random.default_rng(5), 150
    limits_s = {exceed: -np.log(exceed) / 0.4 for exceed in (0.03, 0.1, 0.3)}
    found: dict[float, Counter[str]] = {exceed: Counter() for exceed in limits_s}
    plain = 0
    for _ in range(levels):
        requests = queue(random, 2000)
        steady, tokens = window.find(requests), metrics.event_tokens(requests)
        for exceed, limit_s in limits_s.items():
            one = verdicts.judge(slo.Term("ttft", 90.0, float(limit_s) * 1e3), requests, tokens, steady)
            found[exceed][one.verdict] += 1
            plain += exceed == 0.1 and one.exceed is not None and one.exceed <= 0.1
    most = levels * 0.06 + 3 * np.sqrt(levels * 0.06 * 0.94)
    assert found[0.1]["PASS"] <= most
    assert found[0.1]["FAIL"] <= most
    assert plain > 0.3 * levels  # what the plain quantile would have passed
    assert found[0.03]["PASS"] > 0.8 * levels
    assert found[0.3]["FAIL"] > 0.95 * levels
