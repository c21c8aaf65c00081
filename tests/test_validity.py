"""Every check: what trips it, with what severity, and that a clean level trips none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from analysis import metrics, quantiles, records, validity, window
from analysis.records import Ended, Header, Planned
from tests import fakes_run as fakes

if TYPE_CHECKING:
    from analysis.validity import Finding
SLOTS = 4


def check(rows: list[dict[str, Any]], end: dict[str, Any] | None = None, **head: Any) -> dict[str, Finding]:
    requests = fakes.requests(*rows)
    facts = {"levels": [{"level": 0, "concurrency": SLOTS}]} | head
    header = msgspec.convert(fakes.header(**facts), Header)
    found = window.find(requests)
    itl = metrics.itl_ms(requests, requests.measured & requests.ok)
    evidence = validity.Evidence(
        header=header,
        planned=header.planned(0),
        ended=msgspec.convert(fakes.ended() if end is None else end, Ended),
        requests=requests,
        flow=None if found is None else window.flow(requests, metrics.event_tokens(requests), found),
        itl_ms=itl,
        itl=quantiles.distribution(itl),
    )
    return {finding.code: finding for finding in validity.findings(evidence)}


def level(**changes: Any) -> list[dict[str, Any]]:
    return fakes.closed_loop(SLOTS, each=100, **changes)


def with_some(count: int, **changes: Any) -> list[dict[str, Any]]:
    """A clean level of 400 with the last `count` requests changed."""
    rows = level()
    return rows[:-count] + [row | changes for row in rows[-count:]]


def server(**changes: Any) -> dict[str, Any]:
    return {**fakes.header()["server"], **changes}


def options(**changes: Any) -> dict[str, Any]:
    return {**fakes.header()["options"], **changes}


FAILED: dict[str, Any] = {"status": "failed", "error": {"kind": "rate_limited", "message": "slow down"}}


def test_a_clean_level_has_no_finding() -> None:
    assert check(level()) == {}


def test_failures_are_a_warning_with_kind_and_sample() -> None:
    found = check(with_some(1, **FAILED))
    assert found["failures"].severity == "warning"
    assert found["failures"].message == "1 of 400 requests failed: 1 rate_limited (slow down)"
    assert "survivors" not in found


def test_a_minority_of_survivors_is_an_error() -> None:
    assert "survivors" not in check(with_some(200, **FAILED))
    found = check(with_some(260, **FAILED))["survivors"]
    assert found.severity == "error"
    assert "35 %" in found.message
    assert "correlate" not in found.message


def test_b31_failures_that_go_with_length_are_named() -> None:
    found = check(with_some(260, want_output_tokens=512, **FAILED))["survivors"]
    assert "failures correlate with output length (512 tokens wanted where failed, 10 where ok)" in found.message


def test_cancelled_requests_are_no_failures() -> None:
    assert check(with_some(300, status="cancelled")).keys() == {"few-samples"}


def test_no_success_says_what_happened() -> None:
    found = check([fakes.failed(i, i) for i in range(9)])["survivors"]
    assert (found.severity, found.message) == (
        "error",
        "none of 9 requests succeeded: 9 http_status (http_status happened)",
    )
    found = check([fakes.failed(0, 0, phase="warmup")])["survivors"]
    assert "no measured request finished (1 failed in the warm-up: 1 http_status" in found.message
    assert check([])["survivors"].severity == "error"


@pytest.mark.parametrize(("prompt", "trips"), [(512, False), (517, False), (525, True), (500, True), (None, False)])
def test_input_length(prompt: int | None, trips: bool) -> None:
    found = check(level(prompt_tokens=prompt))
    assert ("input-length" in found) == trips
    if trips:
        assert found["input-length"].severity == "warning"
        assert "100 % of 400" in found["input-length"].message


def test_output_length_says_share_and_residual() -> None:
    found = check(with_some(100, want_output_tokens=128), server=server(dropped=["ignore_eos"]))
    message = found["output-length"].message
    assert "25 % of 400 are off by more than 1 % (from -118 to +0, mean -29.5 tokens)" in message
    assert "ignore_eos" in message
    assert found["output-length"].severity == "warning"
    assert "output-length" not in check(with_some(4, want_output_tokens=128))


@pytest.mark.parametrize(
    ("cached", "template", "api", "trips"),
    [
        (0, 4, "chat", False),
        (32, 4, "chat", True),
        (32, 32, "chat", False),
        (32, None, "chat", False),
        (32, None, "completions", True),
        (500, None, "chat", True),
        (None, 0, "chat", False),
    ],
)
def test_cached_prompts_beyond_the_template(cached: int | None, template: int | None, api: str, trips: bool) -> None:
    found = check(level(cached_tokens=cached), server=server(template_tokens=template), api=api)
    assert ("cached-prompts" in found) == trips


def test_multi_token_events() -> None:
    found = check(level(output_tokens=32, want_output_tokens=32))
    assert found["multi-token-events"].severity == "info"
    assert "3.20 tokens" in found["multi-token-events"].message


@pytest.mark.parametrize(
    ("ttft_us", "itl_us", "trips"),
    [
        (100_000, 20_000, False),
        (500_000, 50, True),  # B37: flushed at the end
        (500_000, 300, True),  # nearly all of E2E is TTFT, and the rest comes at once
        (5_000_000, 20_000, False),  # a long queue before a short answer is no burst
        (500, 300, False),  # a fast server
    ],
)
def test_bursty_stream(ttft_us: int, itl_us: int, trips: bool) -> None:
    found = check(level(ttft_us=ttft_us, itl_us=itl_us))
    assert ("bursty-stream" in found) == trips


def test_hidden_reasoning_shows_both_totals() -> None:
    found = check(level(output_tokens=400, want_output_tokens=400, reasoning_tokens=390))
    assert found["hidden-reasoning"].severity == "warning"
    assert "156000 of 160000 output tokens" in found["hidden-reasoning"].message


def test_b17_no_answer_is_noted() -> None:
    assert check(level(answer_event=None))["no-answer"].severity == "info"


@pytest.mark.parametrize(("source", "how"), [("events", "an estimate"), ("tokenizer", "counted by the tokenizer")])
def test_no_usage(source: str, how: str) -> None:
    found = check(level(tokens_from=source))["no-usage"]
    assert found.severity == "warning"
    assert how in found.message


def test_what_the_header_says() -> None:
    assert check(level(), server=server(dropped=["stream_options"]))["option-dropped"].severity == "warning"
    assert check(level(), clock="user")["clock-user"].severity == "warning"
    assert check(level(), options=options(insecure=True))["insecure-tls"].severity == "warning"


@pytest.mark.parametrize(
    ("clock", "bounds", "lag_us", "codes"),
    [
        ("kernel", 0, 50_000, set()),  # stamps are the kernel's, and exact: late reads do no harm
        ("kernel", 1, 900, {"stamp-bounds"}),
        ("kernel", 1, 1_100, {"stamp-bounds", "client-lag"}),
        ("user", 0, 900, {"clock-user"}),
        ("user", 0, 1_100, {"clock-user", "client-lag"}),
        ("user", 0, None, {"clock-user"}),
    ],
)
def test_client_lag(clock: str, bounds: int, lag_us: int | None, codes: set[str]) -> None:
    found = check(level(bounds=bounds, read_lag_us=lag_us), clock=clock)
    assert found.keys() == codes
    assert "client-lag" not in found or found["client-lag"].severity == "error"


def test_client_lag_is_measured_by_the_gaps() -> None:
    assert "client-lag" not in check(level(itl_us=40_000, read_lag_us=1_900), clock="user")


@pytest.mark.parametrize(("cpu_us", "trips"), [(24e6, False), (24.1e6, True)])
def test_client_cpu(cpu_us: float, trips: bool) -> None:
    found = check(level(), fakes.ended(cpu_us=int(cpu_us)))
    assert ("client-cpu" in found) == trips
    assert not trips or found["client-cpu"].severity == "error"


def test_send_lag_is_for_the_open_loop() -> None:
    late = [row | {"due_us": row["sent_us"] - 1500} for row in level()]
    rate = [{"level": 0, "rate_per_s": 14.0}]
    assert "send-lag" not in check(late)
    assert check(late, levels=rate)["send-lag"].severity == "error"
    assert check(late, levels=rate, options=options(max_concurrency=4))["send-lag"].severity == "warning"
    assert check(level(), levels=rate) == {}


def test_little_nominal_concurrency() -> None:
    five = [{"level": 0, "concurrency": SLOTS + 1}]
    assert check(level(), levels=five)["little"].severity == "error"
    assert check(level(), fakes.ended(ended_by="requests"), levels=five)["little"].severity == "warning"
    short = fakes.closed_loop(SLOTS, each=8)
    assert check(short, levels=five)["little"].severity == "warning"
    assert check(with_some(1, **FAILED), levels=five)["little"].severity == "warning"
    assert "little" not in check(level(), levels=five, options=options(max_rps="2/s"))
    assert "little" not in check(fakes.closed_loop(SLOTS, each=8))


def test_little_throughput_times_latency() -> None:
    """One of four streams hangs through the window: in flight, but never through."""
    rows = fakes.closed_loop(3, each=100)
    hanging = fakes.row(len(rows), 0, (60_000_000,), phase="warmup")
    found = check([*rows, hanging])["little"]
    assert found.severity == "error"
    assert "4 in flight, but throughput times latency is 3:" in found.message


@pytest.mark.parametrize(("step_us", "trips"), [(0, False), (1000, False), (1001, True), (-1001, True), (None, False)])
def test_clock_step(step_us: int | None, trips: bool) -> None:
    found = check(level(), fakes.ended(clock_step_us=step_us))
    assert ("clock-step" in found) == trips
    assert not trips or found["clock-step"].severity == "error"


def test_few_samples_says_how_many() -> None:
    found = check(fakes.closed_loop(SLOTS, each=10))["few-samples"]
    assert found.severity == "info"
    assert "sample of 40" in found.message
    assert "p95 72, p99 368" in found.message
    assert "p90" not in found.message


def test_errors_come_first_and_make_a_level_invalid() -> None:
    found = check(with_some(1, **FAILED), fakes.ended(clock_step_us=5000), clock="user")
    severities = [finding.severity for finding in found.values()]
    assert severities == sorted(severities, key=validity.SEVERITIES.index)
    assert validity.validity(tuple(found.values())) == "INVALID"
    assert validity.validity(tuple(check(with_some(1, **FAILED)).values())) == "VALID"


def test_cpu_share_is_unknown_without_the_level_row() -> None:
    assert validity.cpu_share(None) is None
    assert validity.cpu_share(msgspec.convert(fakes.ended(end_us=0), Ended)) is None


def test_nothing_is_claimed_of_nothing() -> None:
    evidence = validity.Evidence(
        header=msgspec.convert(fakes.header(), Header),
        planned=Planned(level=0),
        ended=None,
        requests=records.NO_REQUESTS,
        flow=None,
        itl_ms=metrics.itl_ms(records.NO_REQUESTS, records.NO_REQUESTS.ok),
        itl=quantiles.Distribution(n=0),
    )
    assert [finding.code for finding in validity.findings(evidence)] == ["survivors"]
