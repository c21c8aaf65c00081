"""Findings about the answers: what the server streamed, and what it counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis import metrics
from analysis.evidence import Finding, percent

if TYPE_CHECKING:
    from analysis.evidence import Evidence

PER_EVENT = 1.05  # tokens an event, above which ITL is not a gap between tokens
BURST_GAP_MS = 0.1  # B37: no server decodes that fast; such gaps were made on the way
BURST_SHARE = 0.1
BURST_TTFT_SHARE = 0.9  # B37: nearly all of E2E is TTFT, with more than BURST_EVENTS events ...
BURST_EVENTS = 8
BURST_MEAN_GAP_MS = 1.0  # ... and under a millisecond between them: a long queue alone does not look like that


def multi_token_events(evidence: Evidence) -> Finding | None:
    each = metrics.per_event(evidence.requests, evidence.sampled)
    if each is None or each <= PER_EVENT:
        return None
    message = f"events carry {each:.2f} tokens: ITL is the gap between events; TPOT is the time a token"
    return Finding("multi-token-events", "info", message)


def bursty_stream(evidence: Evidence) -> Finding | None:
    requests = evidence.requests
    gaps = metrics.itl_ms(requests, evidence.sampled)
    if not len(gaps):
        return None
    share = float(np.mean(gaps < BURST_GAP_MS))
    many = evidence.sampled & (requests.events > BURST_EVENTS)
    ttft, e2e = metrics.ttft_ms(requests)[many], metrics.e2e_ms(requests)[many]
    late = (ttft > BURST_TTFT_SHARE * e2e) & (e2e - ttft < BURST_MEAN_GAP_MS * (requests.events[many] - 1))
    if share > BURST_SHARE:
        what = f"{percent(share)} of the gaps are under {BURST_GAP_MS} ms"
    elif len(late) and late.mean() > BURST_SHARE:
        what = f"in {percent(late.mean())} of the requests nearly all output comes at the end"
    else:
        return None
    message = f"the stream arrives in bursts ({what}): ITL says little; look for a buffering proxy in between"
    return Finding("bursty-stream", "warning", message)


def hidden_reasoning(evidence: Evidence) -> Finding | None:
    hidden = metrics.hidden_tokens(evidence.requests)[evidence.sampled]
    if not hidden.any():
        return None
    total = evidence.requests.output_tokens[evidence.sampled]
    message = (
        f"{hidden.sum():.0f} of {np.nansum(total):.0f} output tokens are reasoning that the server counts and does not "
        "stream: rates and TPOT are of the visible tokens, TTFT holds the reasoning"
    )
    return Finding("hidden-reasoning", "warning", message)


def no_answer(evidence: Evidence) -> Finding | None:
    silent = np.isnan(evidence.requests.answer_event[evidence.sampled])
    if not silent.any():
        return None
    message = (
        f"{silent.sum()} of {len(silent)} requests ended without answer text (in their reasoning, or in tool calls)"
    )
    return Finding("no-answer", "info", f"{message}: TTFAT leaves them out; allow more output tokens")


def no_usage(evidence: Evidence) -> Finding | None:
    sources = evidence.requests.tokens_from[evidence.sampled]
    without = sources[sources != "usage"]
    if not len(without):
        return None
    by_events = np.mean(without != "tokenizer") > 0.5
    how = (
        "counted as one token an event: an estimate; give --tokenizer FILE" if by_events else "counted by the tokenizer"
    )
    return Finding(
        "no-usage", "warning", f"{len(without)} of {len(sources)} answers came without usage: tokens are {how}"
    )
