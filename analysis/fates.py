"""What became of each request under an SLO term: it exceeds the limit, keeps it, or nobody knows.

- A failed request exceeds every limit. Of gaps between events it owes those that an ok request has on average and it
  had not yet streamed.
- A request that ended without the value, because its user left, the level ended, or no answer text came, exceeds the
  limit if it had waited that long, and else nobody knows. What was seen of an answer cut short has its TTFT, TPOT, ITL
  and stall; its E2E is unknown.
- Gaps count in the window only: in the drain fewer streams share a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from analysis import metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from analysis.records import Bools, Floats, Requests
    from analysis.slo import Term
    from analysis.window import Window


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What became of each of a sample under a term: it exceeds the limit, keeps it, or nobody knows. `values` are NaN
    where there is none; what is not `counted` has nothing that the term speaks of, as a single token has no TPOT."""

    values: Floats
    exceeds: Bools
    unknown: Bools
    counted: Bools


_VALUES: dict[str, Callable[[Requests, Floats], Floats]] = {
    "ttft": lambda requests, _: metrics.ttft_ms(requests),
    "ttft_sent": lambda requests, _: metrics.ttft_sent_ms(requests),
    "ttfat": lambda requests, _: metrics.ttfat_ms(requests),
    "tpot": metrics.tpot_ms,
    "e2e": lambda requests, _: np.where(requests.ok, metrics.e2e_ms(requests), np.nan),
    "stall": metrics.stall_ms,
}
_WAITED_FOR = ("ttft", "ttft_sent", "ttfat", "e2e")  # who has no value was waiting for it


def fate(term: Term, requests: Requests, tokens: Floats) -> Fate:
    """Of each request. Under an ITL term it is judged by its own gaps."""
    failed, nobody = requests.failed, np.zeros(len(requests.index), np.bool_)
    nothing = np.full(len(nobody), np.nan)
    if term.metric == "itl":
        return Fate(values=nothing, exceeds=failed | _choppy(term, requests), unknown=nobody, counted=~nobody)
    if term.metric not in _VALUES:  # the level as a whole is held to it, and not this or that request
        return Fate(values=nothing, exceeds=failed, unknown=nobody, counted=~requests.cancelled)
    values = np.where(failed, np.nan, _VALUES[term.metric](requests, tokens))
    exceeds, silent = failed | (values > term.limit), ~failed & np.isnan(values)
    if term.metric not in _WAITED_FOR:
        return Fate(values=values, exceeds=exceeds, unknown=nobody, counted=~silent)
    since_us = requests.sent_us if term.metric == "ttft_sent" else requests.due_us
    late = silent & (requests.sent_us + requests.end_us - since_us > term.limit * 1e3)
    return Fate(values=values, exceeds=exceeds | late, unknown=silent & ~late, counted=~nobody)


def only(chosen: Bools, one: Fate) -> Fate:
    return Fate(
        values=one.values, exceeds=one.exceeds & chosen, unknown=one.unknown & chosen, counted=one.counted & chosen
    )


def _choppy(term: Term, requests: Requests) -> Bools:
    """Whether more of a request's gaps exceed the limit than the term allows."""
    firsts = requests.starts[:-1][requests.events > 0]
    over = np.diff(requests.events_us, prepend=0) > term.limit * 1e3
    over[firsts] = False
    before = np.concatenate(([0], np.cumsum(over)))
    exceeding = before[requests.starts[1:]] - before[requests.starts[:-1]]
    return exceeding > term.allowed * np.maximum(requests.events - 1, 0)


def gaps(term: Term, requests: Requests, sampled: Bools, steady: Window | None) -> tuple[Fate, Floats]:
    """The gaps that ended in the window, each with its time; and those that failed requests owe, when they failed."""
    values, times_us = metrics.itl_ms(requests, sampled), metrics.itl_at_us(requests, sampled)
    if steady is not None:
        inside = steady.holds(times_us)
        values, times_us = values[inside], times_us[inside]
    count, broken = np.maximum(requests.events - 1, 0), sampled & requests.failed
    usual = count[sampled & requests.ok].mean() if (sampled & requests.ok).any() else 1.0
    owed = np.maximum(np.rint(usual - count[broken]), 1).astype(np.int64)
    failed_us = (requests.sent_us + np.nan_to_num(requests.end_us))[broken]
    exceeds = np.concatenate((values > term.limit, np.ones(owed.sum(), np.bool_)))
    found = Fate(
        values=np.concatenate((values, np.full(owed.sum(), np.nan))),
        exceeds=exceeds,
        unknown=np.zeros(len(exceeds), np.bool_),
        counted=np.ones(len(exceeds), np.bool_),
    )
    return found, np.concatenate((times_us, np.repeat(failed_us, owed)))
