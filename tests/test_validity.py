"""Every check: what trips it, with what severity, and that a clean level trips none. Here of the level as a whole."""

from __future__ import annotations

from typing import Any

import msgspec

from analysis import measured, records, validity
from analysis.evidence import SEVERITIES
from tests import fakes_run as fakes
from tests.fakes_run import findings

FAILED: dict[str, Any] = {"status": "failed", "error": {"kind": "rate_limited", "message": "slow down"}}


def test_a_clean_level_has_no_finding() -> None:
    assert findings(fakes.clean()) == {}


def test_failures_are_a_warning_with_kind_and_sample() -> None:
    found = findings(fakes.with_some(1, **FAILED))
    assert found["failures"].severity == "warning"
    assert found["failures"].message == "1 of 400 requests failed: 1 rate_limited (slow down)"
    assert "survivors" not in found


def test_a_minority_of_survivors_is_an_error() -> None:
    assert "survivors" not in findings(fakes.with_some(200, **FAILED))
    found = findings(fakes.with_some(260, **FAILED))["survivors"]
    assert found.severity == "error"
    assert "35 %" in found.message
    assert "correlate" not in found.message


def test_b31_failures_that_go_with_length_are_named() -> None:
    found = findings(fakes.with_some(260, want_output_tokens=512, **FAILED))["survivors"]
    assert "failures correlate with output length (512 tokens wanted where failed, 10 where ok)" in found.message


def test_cancelled_requests_are_no_failures() -> None:
    assert findings(fakes.with_some(300, status="cancelled")).keys() == {"few-samples"}


def test_no_success_says_what_happened() -> None:
    found = findings([fakes.failed(i, i) for i in range(9)])["survivors"]
    assert (found.severity, found.message) == (
        "error",
        "none of 9 requests succeeded: 9 http_status (http_status happened)",
    )
    found = findings([fakes.failed(0, 0, phase="warmup")])["survivors"]
    assert "no measured request finished (1 failed in the warm-up: 1 http_status" in found.message
    assert findings([])["survivors"].severity == "error"


def test_errors_come_first_and_make_a_level_invalid() -> None:
    found = findings(fakes.with_some(1, **FAILED), fakes.ended(clock_step_us=5000), clock="user")
    severities = [finding.severity for finding in found.values()]
    assert severities == sorted(severities, key=SEVERITIES.index)
    assert validity.validity(tuple(found.values())) == "INVALID"
    assert validity.validity(tuple(findings(fakes.with_some(1, **FAILED)).values())) == "VALID"


def test_nothing_is_claimed_of_nothing() -> None:
    header = msgspec.convert(fakes.header(), records.Header)
    level = measured.summarize_level(records.Run(header=header, ended={}, requests={}, cut_rows=0), 0)
    assert [finding.code for finding in level.findings] == ["survivors"]


def test_users_who_left_are_no_failures() -> None:
    found = findings(fakes.with_some(300, status="cancelled", left=True))
    assert found.keys() == {"few-samples", "left"}
    found = findings(fakes.clean(status="cancelled", left=True))
    assert found["survivors"].message == "no measured request finished: 400 users left before: let them wait longer"
