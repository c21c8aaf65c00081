"""When requests start. Pure functions of counts and times."""

from array import array
from collections.abc import Iterable

import msgspec

from loadgen.course import Until
from loadgen.record import EndedBy, Phase

WARMUP_SHARE = 0.25  # of the level, at most


def stagger_s(slots: int, request_s: float) -> list[float]:
    """Offsets at which the slots of a closed loop start, spread over one request.

    Started at once they stay in step: every prefill competes with every other, and TTFT p99 comes out nine times too
    high.
    """
    return [slot * request_s / slots for slot in range(slots)]


class Timetable(msgspec.Struct, frozen=True):
    """The open loop of one level, drawn before its clock starts. Times in us from its start."""

    due_us: "array[int]"  # of each request
    warmup_us: int  # requests due before this are warm-up
    end_us: int | None  # nothing is due from then on; None: the last request is the end
    ended_by: EndedBy  # what cuts it off

    def phase(self, due_us: int) -> Phase:
        return "warmup" if due_us < self.warmup_us else "measure"


def warmup_us(request_s: float, until: Until, rate_per_s: float) -> int:
    """A server fills up over the time of one request."""
    lasts_s = [until.duration_s] if until.duration_s is not None else []
    if until.requests is not None:
        lasts_s.append(until.requests / rate_per_s)
    return round(min([request_s, *(WARMUP_SHARE * one for one in lasts_s)]) * 1e6)


def timetable(offsets_us: Iterable[int], until: Until, warmup_us: int) -> Timetable:
    """Of the arrivals at these offsets, those up to the level's end."""
    end_us = None if until.duration_s is None else warmup_us + round(until.duration_s * 1e6)
    due_us = array("q")
    measured = 0
    ended_by: EndedBy = "schedule"
    for at_us in offsets_us:
        if end_us is not None and at_us >= end_us:
            ended_by = "duration"
            break
        if measured == until.requests:
            ended_by = "requests"
            break
        measured += at_us >= warmup_us
        due_us.append(at_us)
    return Timetable(due_us, warmup_us, end_us, ended_by)
