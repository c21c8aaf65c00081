"""What is wrong with a level, or must be known to read its numbers: coded findings, each with what to do.

An error makes the level INVALID: its numbers are not the server's. The limits are those of method.md, "Validity".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from analysis import answer_findings as answers
from analysis import client_findings as client
from analysis import floor_findings as floor
from analysis import sample_findings as sample
from analysis import server_findings as server
from analysis import workload_findings as workload
from analysis.evidence import SEVERITIES, Finding, percent

if TYPE_CHECKING:
    from collections.abc import Callable

    from analysis.evidence import Evidence
    from analysis.records import Bools

FAILURES_SHARE = 0.001  # failures are the server's answer: a warning above this
SURVIVORS_SHARE = 0.5  # an error when the statistics cover less than this of what was sent
CORRELATION = 0.3  # of failing with the wanted output length: worth a word above this
MESSAGE_CHARS = 200  # of a server's own words


def findings(evidence: Evidence) -> tuple[Finding, ...]:
    """All findings of a level, the severest first."""
    found = [finding for check in CHECKS if (finding := check(evidence)) is not None]
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))


def validity(found: tuple[Finding, ...]) -> Literal["VALID", "INVALID"]:
    return "INVALID" if any(finding.severity == "error" for finding in found) else "VALID"


def _failures(evidence: Evidence) -> Finding | None:
    failed = evidence.requests.measured & evidence.requests.failed
    sent = int(evidence.requests.measured.sum())
    if not sent or failed.sum() / sent <= FAILURES_SHARE:
        return None
    return Finding("failures", "warning", f"{failed.sum()} of {sent} requests failed: {_errors(evidence, failed)}")


def _survivors(evidence: Evidence) -> Finding | None:
    requests = evidence.requests
    finished = requests.measured & ~requests.cancelled & ~requests.left
    ok, sent = int(evidence.sampled.sum()), int(finished.sum())
    if not sent:
        warmup = ~requests.measured & requests.failed
        left = int((requests.measured & requests.left).sum())
        why = f" ({warmup.sum()} failed in the warm-up: {_errors(evidence, warmup)})" if warmup.any() else ""
        how = f"{left} users left before: let them wait longer" if left else "give the level more time (--duration)"
        return Finding("survivors", "error", f"no measured request finished{why}: {how}")
    if ok >= SURVIVORS_SHARE * sent:
        return None
    failed = finished & requests.failed
    if not ok:
        return Finding("survivors", "error", f"none of {sent} requests succeeded: {_errors(evidence, failed)}")
    longer = ""
    wanted = requests.want_output_tokens
    known = finished & ~np.isnan(wanted)
    varied = known.any() and np.ptp(wanted[known]) > 0 and np.ptp(failed[known].astype(np.int64)) > 0
    if varied and abs(np.corrcoef(failed[known], wanted[known])[0, 1]) > CORRELATION:
        long, short = wanted[known & failed].mean(), wanted[known & requests.ok].mean()
        longer = (
            f"; failures correlate with output length ({long:.0f} tokens wanted where failed, {short:.0f} where ok)"
        )
    message = f"the statistics cover {percent(ok / sent)} of the requests{longer}: lower the load or mend the server"
    return Finding("survivors", "error", message)


def _errors(evidence: Evidence, failed: Bools) -> str:
    kinds, counts = np.unique(evidence.requests.error[failed], return_counts=True)
    most = np.argsort(-counts, kind="stable")
    shown = ", ".join(f"{counts[i]} {kinds[i] or 'unknown'}" for i in most)
    message = evidence.requests.messages.get(str(kinds[most[0]]), "")
    return f"{shown} ({message[:MESSAGE_CHARS]})" if message else shown


CHECKS: tuple[Callable[[Evidence], Finding | None], ...] = (
    _survivors,
    client.client_lag,
    client.client_cpu,
    client.rate_missed,
    client.over_saturated,
    client.send_lag,
    client.little,
    client.clock_step,
    _failures,
    sample.not_steady,
    workload.input_length,
    workload.output_length,
    workload.cached_prompts,
    workload.repeated_prompts,
    answers.bursty_stream,
    answers.hidden_reasoning,
    answers.no_usage,
    workload.option_dropped,
    server.server_restarted,
    server.server_tokens,
    floor.below_floor,
    client.stamp_bounds,
    client.clock_user,
    client.insecure_tls,
    answers.multi_token_events,
    answers.no_answer,
    workload.left,
    sample.settling,
    sample.few_samples,
    floor.near_floor,
    server.no_metrics,
)
