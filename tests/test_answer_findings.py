from __future__ import annotations

import pytest

from tests import fakes_run as fakes
from tests.fakes_run import findings


def test_multi_token_events() -> None:
    found = findings(fakes.clean(output_tokens=32, want_output_tokens=32))
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
    found = findings(fakes.clean(ttft_us=ttft_us, itl_us=itl_us))
    assert ("bursty-stream" in found) == trips


def test_hidden_reasoning_shows_both_totals() -> None:
    found = findings(fakes.clean(output_tokens=400, want_output_tokens=400, reasoning_tokens=390))
    assert found["hidden-reasoning"].severity == "warning"
    assert "156000 of 160000 output tokens" in found["hidden-reasoning"].message


def test_b17_no_answer_is_noted() -> None:
    assert findings(fakes.clean(answer_event=None))["no-answer"].severity == "info"


@pytest.mark.parametrize(("source", "how"), [("events", "an estimate"), ("tokenizer", "counted by the tokenizer")])
def test_no_usage(source: str, how: str) -> None:
    found = findings(fakes.clean(tokens_from=source))["no-usage"]
    assert found.severity == "warning"
    assert how in found.message
