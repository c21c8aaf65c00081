"""Coordinated omission: a client that waits for its turn to send, and counts only from there, hides the wait."""

from pathlib import Path

import numpy as np
import pytest

from tests.load.command import run
from tests.load.server import seen_ns, serving

RATE_PER_S, SERVICE_MS, REQUESTS = 10, 500, 12
GAP_MS = 1000 / RATE_PER_S
LATE_MS = 100  # of each request, at most; on a busy machine


def test_who_waits_for_the_cap_is_measured_from_when_it_was_due(tmp_path: Path) -> None:
    flags = f"--rate {RATE_PER_S} --arrivals constant --max-concurrency 1 --requests {REQUESTS} --input 16 --output 1"
    with serving(SERVICE_MS) as url:
        ran = run(tmp_path / "out", url, *flags.split())
        served_ms = np.diff(seen_ns(url)[-len(ran.rows) :]) / 1e6
    assert {row.status for row in ran.rows} == {"ok"}
    assert served_ms.min() > SERVICE_MS  # one at a time, as the server saw them
    k = np.arange(len(ran.rows))
    sent_us = np.array([row.sent_us for row in ran.rows], dtype=np.float64)
    due_us = np.array([row.due_us for row in ran.rows])
    first_us = np.array([row.events_us[0] for row in ran.rows])
    ttft_sent_ms = first_us / 1000
    ttft_ms = (sent_us - due_us + first_us) / 1000
    assert np.all(np.abs(np.diff(due_us) / 1000 - GAP_MS) < 0.01)
    assert np.all((ttft_sent_ms >= SERVICE_MS) & (ttft_sent_ms < SERVICE_MS + LATE_MS))
    assert np.all(ttft_ms >= SERVICE_MS + k * (SERVICE_MS - GAP_MS))
    assert np.polyfit(k, ttft_ms, 1)[0] == pytest.approx(SERVICE_MS - GAP_MS, rel=0.1)  # more, with each request

    measured = np.array([row.phase == "measure" for row in ran.rows])
    assert measured.sum() == REQUESTS
    summary = ran.summary
    assert summary["ttft_ms"]["max"] == pytest.approx(ttft_ms[measured].max(), abs=0.01)
    assert summary["ttft_sent_ms"]["max"] < SERVICE_MS + LATE_MS
    findings = {finding["code"]: finding for finding in summary["findings"]}
    assert findings["rate-missed"]["severity"] == "error"
    assert "waited behind --max-concurrency 1" in findings["rate-missed"]["message"]
    assert findings["send-lag"]["severity"] == "warning"  # the cap's doing, and not this client's
    assert ran.level.waited_max is not None
    assert ran.level.waited_max >= (REQUESTS - 1) * (1 - GAP_MS / SERVICE_MS) - 2
