"""Findings about the workload: was asked what was meant, and who answered?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from analysis import metrics, prompts
from analysis.evidence import Finding, percent

if TYPE_CHECKING:
    from analysis.evidence import Evidence
    from analysis.records import Bools, Floats, Header

LENGTH_TOLERANCE = 0.01  # a length is as wanted within this share of it
LENGTH_SHARE = 0.01  # a warning when more requests than this miss their length
CACHED_SHARE = 0.01  # of prompt tokens, beyond what the plan lets the server cache
REPEATED_SHARE = 0.01  # of requests
LEFT_SHARE = 0.01  # of requests: from there on a p99 can hide them


def input_length(evidence: Evidence) -> Finding | None:
    requests = evidence.requests
    off = _off(requests.prompt_tokens, requests.want_input_tokens, evidence.sampled)
    if off is None:
        return None
    how = "give --tokenizer FILE for exact lengths, or read the results at the server's count"
    return Finding("input-length", "warning", f"prompts are not as long as wanted: {off}; {how}")


def output_length(evidence: Evidence) -> Finding | None:
    requests = evidence.requests
    off = _off(requests.output_tokens, requests.want_output_tokens, evidence.sampled)
    if off is None:
        return None
    dropped = "ignore_eos" in _dropped(evidence.header)
    why = "the server refused ignore_eos" if dropped else "it stops early, or caps the output"
    return Finding(
        "output-length", "warning", f"outputs are not as long as wanted: {off}; {why}: compare at equal length"
    )


def cached_prompts(evidence: Evidence) -> Finding | None:
    """Beyond what the plan lets the server cache. Later turns are left out: their history is cached rightly."""
    requests = evidence.requests
    common = prompts.common_tokens(evidence.header)
    most = prompts.cacheable_tokens(requests, prompts.COMMON_TOKENS if common is None else common)
    # What follows a shared prefix begins with the digits of a number, and two numbers can begin alike.
    most += np.where(requests.shared_tokens > 0, prompts.BLOCK_TOKENS, 0)
    chosen = evidence.sampled & (requests.prompt_tokens > 0) & (requests.turn == 0)
    total = requests.prompt_tokens[chosen].sum()
    beyond = np.maximum(np.nan_to_num(requests.cached_tokens[chosen]) - most[chosen], 0).sum()
    if beyond <= CACHED_SHARE * total:
        return None
    planned = " beyond what the plan shares" if requests.shared_tokens.any() else ""
    message = f"{percent(beyond / total)} of the prompt tokens came from the server's prefix cache{planned}"
    how = "TTFT is better than for fresh prompts; use fresh prompts, or switch the cache off"
    return Finding("cached-prompts", "warning", f"{message}: {how}")


def repeated_prompts(evidence: Evidence) -> Finding | None:
    measured = evidence.requests.measured
    sent = int(measured.sum())
    again = int((measured & prompts.repeated(evidence.requests)).sum())
    if again <= REPEATED_SHARE * sent:
        return None
    message = f"{again} of {sent} prompts had been sent before in this level: the server may know them by heart"
    return Finding("repeated-prompts", "warning", f"{message}; use a larger data set or fewer requests")


def left(evidence: Evidence) -> Finding | None:
    """What leaving hides: the long answers, and first tokens that would have come late.

    Who left since it was slow must not make it look faster: with those who saw no token counted as waiting for ever,
    the p99 of TTFT is the most it can have been.
    """
    requests = evidence.requests
    gone = requests.measured & requests.left
    sent = int(requests.measured.sum())
    if gone.sum() <= LEFT_SHARE * sent:
        return None
    message = f"{gone.sum()} of {sent} users left before their answer ended: E2E, TPOT and ITL are of those who stayed"
    unseen = int((gone & (requests.events == 0)).sum())
    if unseen:
        ttft = metrics.ttft_ms(requests)[metrics.answered(requests)]
        waiting = np.concatenate((ttft[~np.isnan(ttft)], np.full(unseen, np.inf)))
        p99 = float(np.quantile(waiting, 0.99, method="higher"))
        most = f"at most {p99:.0f} ms" if math.isfinite(p99) else "without a bound"
        message += f"; {unseen} saw no token and have no TTFT: had they stayed, its p99 would be {most}"
    return Finding("left", "info", message)


def option_dropped(evidence: Evidence) -> Finding | None:
    dropped = _dropped(evidence.header)
    if not dropped:
        return None
    message = f"the server refuses {', '.join(dropped)}: the requests went without, so lengths or counts may differ"
    return Finding("option-dropped", "warning", message)


def _off(got: Floats, wanted: Floats, chosen: Bools) -> str | None:
    """How far the lengths are from what was wanted, in words; None where they are as wanted or unknown."""
    chosen = chosen & ~np.isnan(got) & ~np.isnan(wanted)
    residual = (got - wanted)[chosen]
    misses = np.abs(residual) > LENGTH_TOLERANCE * wanted[chosen]
    if not len(residual) or misses.mean() <= LENGTH_SHARE:
        return None
    spread = f"from {residual.min():+.0f} to {residual.max():+.0f}, mean {residual.mean():+.1f} tokens"
    return f"{percent(misses.mean())} of {len(residual)} are off by more than {percent(LENGTH_TOLERANCE)} ({spread})"


def _dropped(header: Header) -> tuple[str, ...]:
    return tuple(map(str, header.server.get("dropped") or ()))
