"""The open loop: what the schedule asked for, and how much of it was sent in time.

Later turns of a conversation are not in the schedule: they are due when their user has thought.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from analysis.records import Ended, Requests

# A level so ended leaves the rest of its schedule out, which is no fault of pace.
UNFINISHED = ("interrupt", "errors", "over-saturated")


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """`due`, `dropped` (never sent) and `waited_max` (at once, for --max-concurrency) are the run's own counts.

    rate_per_s       of the schedule as it was drawn, which is not just the mean of its law
    achieved_share   of that rate: how long the sent requests should have taken to send over how long they took; or the
                     share of the due ones that were sent, if that is less (and the level was not broken off)
    """

    due: int | None
    dropped: int | None
    waited_max: int | None
    rate_per_s: float | None
    achieved_share: float | None


def schedule(requests: Requests, ended: Ended | None) -> Schedule:
    """Of all first turns of an open-loop level, warm-up included."""
    sent = (requests.turn == 0) & ~np.isnan(requests.sent_us)
    n, planned_us, took_us = int(sent.sum()), _span(requests.due_us[sent]), _span(requests.sent_us[sent])
    share = min(1.0, planned_us / took_us) if took_us > 0 else None
    due, dropped = (None, None) if ended is None else (ended.due, ended.dropped)
    if due and dropped and ended is not None and ended.ended_by not in UNFINISHED:
        share = min(1.0 if share is None else share, 1 - dropped / due)
    return Schedule(
        due=due,
        dropped=dropped,
        waited_max=None if ended is None else ended.waited_max,
        rate_per_s=(n - 1) / planned_us * 1e6 if planned_us > 0 else None,
        achieved_share=share,
    )


def _span(times_us: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return float(np.ptp(times_us)) if len(times_us) else 0.0
