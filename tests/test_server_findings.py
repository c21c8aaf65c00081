import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from analysis import measured, records, server, summary
from analysis.evidence import Finding
from tests.fakes_run import clean, ended, header, with_some, write

END_US = 30_000_000
TOKENS = 404 * 10  # of a clean level, with its warm-up
SAID = {"t_us": -100, "source": 0, "url": "http://h/metrics", "engine": "vllm"}


def test_the_summary_holds_what_the_server_said(tmp_path: Path) -> None:
    directory = write(tmp_path, clean(), [ended()], header(levels=[{"level": 0, "concurrency": 4}]))
    rows = [SAID, *({"t_us": t_us, "source": 0, "running": 2.123456789} for t_us in (-5, 1_000_000, 31_000_000))]
    (directory / "server.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    level = json.loads(summary.dumps(summary.summarize(directory)))["levels"][0]
    assert level["server"]["running"] == {"mean": 2.12346, "max": 2.12346}
    assert level["server"]["received_tokens"] == TOKENS


def found(*samples: dict[str, Any], rows: list[Any] | None = None) -> dict[str, Finding]:
    """Of a clean level, sampled as given."""
    with tempfile.TemporaryDirectory() as name:
        levels = [{"level": 0, "concurrency": 4}]
        directory = write(Path(name), clean() if rows is None else rows, [ended()], header(levels=levels))
        (directory / "server.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
        level = measured.summarize_level(records.read(directory), 0, server.read(directory))
        assert summary.summarize(directory).levels[0] == level
    return {
        finding.code: finding for finding in level.findings if "server" in finding.code or "metrics" in finding.code
    }


def counted(*tokens: float, source: int = 0) -> list[dict[str, Any]]:
    """From before the level to after it."""
    last = len(tokens) - 1
    return [SAID | {"source": source}] + [
        {"t_us": -100 + place * (END_US + 200) // last, "source": source, "output_tokens": value}
        for place, value in enumerate(tokens)
    ]


def test_a_level_without_samples_has_no_finding_of_them() -> None:
    assert found() == {}


def test_counts_that_agree_are_no_finding() -> None:
    assert found(*counted(1000, 1000 + TOKENS)) == {}
    assert found(*counted(1000, 1000 + TOKENS * 1.009)) == {}
    assert found(*counted(1000, 1000 + TOKENS * 0.991)) == {}


@pytest.mark.parametrize(
    ("served", "said"),
    [(5000, "counted 5000 output tokens, the client 4040 (19.2 % apart): others use it too"), (2020, "another server")],
)
def test_counts_that_differ_are_a_warning_with_what_it_may_be(served: int, said: str) -> None:
    finding = found(*counted(7, 7 + served))["server-tokens"]
    assert finding.severity == "warning"
    assert said in finding.message


def test_a_client_that_counts_events_may_have_miscounted() -> None:
    rows = [row | {"tokens_from": "events"} for row in clean()]
    assert "the client had to count events" in found(*counted(0, 2000), rows=rows)["server-tokens"].message


@pytest.mark.parametrize("served", [TOKENS - 400, TOKENS, TOKENS + 40 * 8])
def test_requests_that_were_cut_explain_a_difference(served: int) -> None:
    """A server may not count them at all, or may have gone on for some tokens."""
    rows = with_some(40, status="cancelled")
    assert found(*counted(0, served), rows=rows) == {}
    assert ("server-tokens" in found(*counted(0, served))) == (served != TOKENS)


def test_a_restart_is_a_warning_and_no_difference() -> None:
    findings = found(*counted(1000, 2000, 17, TOKENS))
    assert {*findings} == {"server-restarted"}
    assert findings["server-restarted"].severity == "warning"


def test_a_page_that_never_was_one_is_said_once_with_why() -> None:
    errors = [{"t_us": t_us, "source": 0, "error": "http 404"} for t_us in (-100, 900_000)]
    findings = found(SAID | {"engine": None}, *errors)
    assert {*findings} == {"no-metrics"}
    assert findings["no-metrics"].severity == "info"
    assert "(http://h/metrics: http 404)" in findings["no-metrics"].message


def test_a_second_server_without_a_page_is_said_too() -> None:
    dead = [SAID | {"source": 1, "url": "http://two/metrics"}, {"t_us": 0, "source": 1, "error": "timeout"}]
    assert "(http://two/metrics: timeout)" in found(*counted(0, TOKENS), *dead)["no-metrics"].message


def test_a_page_that_was_late_or_had_holes_is_none_that_never_was() -> None:
    assert found({"t_us": 0, "source": 0, "error": "timeout"}, *counted(0, TOKENS)) == {}
