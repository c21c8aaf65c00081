"""Findings from physics: faster than the hardware allows, or too near to it.

An impossible number is a warning and no error. The hardware is what somebody said it is: the mistake may lie there, and
an INVALID level would then throw away a good measurement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis import metrics
from analysis.answer_findings import PER_EVENT, bursty_stream
from analysis.efficiency import NEAR
from analysis.evidence import Finding, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from analysis.evidence import Evidence

SLACK = 0.001  # stamps and rounding
TWICE = (1.8, 2.2)  # about two


def below_floor(evidence: Evidence) -> Finding | None:
    """Of decode and of prefill. Where the server counts accepted drafts, and a step with all its tokens is above its
    floor, nothing is wrong."""
    floors = evidence.floors
    if floors is None:
        return None
    said, explained = [], True
    faster = floors.itl_efficiency
    if faster is not None and faster > 1 + SLACK:
        each = _per_event(evidence)
        explained = _speculates(evidence) and faster <= each * (1 + SLACK)
        why = f"speculative decoding makes {each:.2g} a step" if explained else "; or ".join(_why(evidence, faster))
        said.append(
            f"a token takes {floors.itl_ms:.3g} ms, and a decode step of {floors.batch:.3g} sequences at least "
            f"{floors.itl_floor_ms:.3g}, {faster:.3g} times as long: {why}"
        )
    faster = floors.ttft_efficiency
    if faster is not None and faster > 1 + SLACK:
        explained = False
        said.append(
            f"TTFT is {floors.ttft_ms:.3g} ms, and to compute the prompt takes at least {floors.ttft_floor_ms:.3g}, "
            f"{faster:.3g} times as long: {_why_prefill(evidence)}"
        )
    if not said:
        return None
    message = f"faster than {floors.hardware} can be: {'. '.join(said)}"
    return Finding("below-floor", "info" if explained else "warning", message)


def near_floor(evidence: Evidence) -> Finding | None:
    """Servers reach 0.4 to 0.85 of the bandwidth."""
    floors = evidence.floors
    if floors is None or floors.itl_efficiency is None or not NEAR < floors.itl_efficiency <= 1 + SLACK:
        return None
    message = (
        f"{percent(floors.itl_efficiency)} of the {floors.itl_ms:.3g} ms a token takes is the floor of "
        f"{floors.hardware}: hardly a server comes so near. Is that what it runs on, and is each token counted once?"
    )
    return Finding("near-floor", "info", message)


def _why(evidence: Evidence, faster: float) -> Iterator[str]:
    """What the evidence of this level leaves as an explanation, the likeliest first."""
    each, hardware = _per_event(evidence), evidence.header.hardware
    if bursty_stream(evidence) is not None:
        yield "the stream comes in bursts, whose gaps are not those of the tokens"
    if each > PER_EVENT:
        drafts = " (the server drafts tokens)" if _speculates(evidence) else ""
        yield f"{each:.2g} tokens came with each event, by speculative decoding{drafts}"
        if TWICE[0] < each < TWICE[1]:
            yield "its usage counts each token twice"
    elif not (evidence.requests.tokens_from[evidence.sampled] == "usage").any():
        yield "tokens are counted as events, of which one token makes several"
    elif faster < TWICE[1]:
        yield "each token is counted, and sent, twice"
    if hardware is not None:
        yield f"the weights have fewer bits than {hardware.dtype}"
        yield f"there are more or faster devices than {hardware.gpus} x {hardware.gpu.name}, or several servers"
        if hardware.model.experts is not None:
            yield "its routing prefers some experts"


def _why_prefill(evidence: Evidence) -> str:
    counts = not np.isnan(evidence.requests.cached_tokens[evidence.sampled]).all()
    how = "more of it was cached than the server says" if counts else "it was in a prefix cache that nobody counts"
    return f"{how}; or the precision or the GPU is another"


def _per_event(evidence: Evidence) -> float:
    """A step's tokens leave together."""
    return metrics.per_event(evidence.requests, evidence.sampled) or 1.0


def _speculates(evidence: Evidence) -> bool:
    """By the server's own counters."""
    return evidence.server is not None and bool(evidence.server.accepted_share)
