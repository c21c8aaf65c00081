"""Before the load: about how long a run will take, and whether its samples will do, by the probe alone.

The probe is one request on an idle server. At higher loads answers take longer: a level that ends by a number of
requests then takes longer too, and a closed-loop level that ends by time has fewer of them. What only the load itself
will show is unknown here, and said to be.
"""

import itertools
import math
from collections.abc import Sequence

import msgspec

from loadgen.course import until_of
from loadgen.load import timetable_of
from loadgen.pacing import warmup_us
from loadgen.record import LevelPlan
from loadgen.settings import Settings
from workloads import lengths


class Ahead(msgspec.Struct, frozen=True):
    """Of one level: with its warm-up and drain it `lasts_s`; so many `requests` are measured, `per_s` of them."""

    lasts_s: float
    requests: float
    per_s: float


class Need(msgspec.Struct, frozen=True):
    """`what` needs so many requests that do not depend on each other."""

    what: str
    requests: int


def ahead(settings: Settings, plan: LevelPlan, request_s: float) -> Ahead:
    """`request_s` is about how long one request takes."""
    if plan.concurrency is not None:
        return _closed(settings, plan, plan.concurrency, request_s)
    return _open(settings, plan, request_s)


def _closed(settings: Settings, plan: LevelPlan, slots: int, request_s: float) -> Ahead:
    """Starts are spread over one request, and each slot's first is warm-up; the last ones end a request later."""
    until = until_of(plan, settings.until)
    turn_s = request_s + _thought_s(settings)
    per_s = slots / turn_s if turn_s else math.inf
    per_s = per_s if settings.max_rps is None else min(per_s, settings.max_rps)
    ends_s = [] if until.requests is None else [until.requests / per_s]
    if until.duration_s is not None:
        ends_s.append(until.duration_s)
    measured_s = max(min(ends_s, default=0.0), until.per_slot * slots / per_s)
    requests = measured_s * per_s if until.requests is None else min(until.requests, measured_s * per_s)
    return Ahead(measured_s + 2 * request_s, requests, per_s)


def _open(settings: Settings, plan: LevelPlan, request_s: float) -> Ahead:
    """By the schedule; later turns of conversations come on top."""
    if settings.trace is not None:
        return _replayed(settings, plan, request_s)
    assert settings.law is not None
    assert plan.rate_per_s is not None
    until = until_of(plan, settings.until)
    ends_s = [] if until.requests is None else [until.requests / plan.rate_per_s]
    if until.duration_s is not None:
        ends_s.append(until.duration_s)
    measured_s = min(ends_s)
    warm_up_s = 0.0 if settings.law.name == "ramp" else warmup_us(request_s, until, plan.rate_per_s) / 1e6
    return Ahead(warm_up_s + measured_s + request_s, measured_s * plan.rate_per_s, plan.rate_per_s)


def _replayed(settings: Settings, plan: LevelPlan, request_s: float) -> Ahead:
    table = timetable_of(settings, plan, request_s)
    last_us = max(table.due_us, default=0) if table.ended_by != "duration" else table.end_us or 0
    return Ahead(last_us / 1e6 + request_s, len(table.due_us), len(table.due_us) / max(last_us / 1e6, 1e-6))


def _thought_s(settings: Settings) -> float:
    """Mean time that a user thinks before a request."""
    thought = sent = 0.0
    for one in settings.workload.classes:
        turns = lengths.mean(one.turns) if one.turns else 1.0
        sent += one.weight * turns
        thought += one.weight * (turns - 1) * (lengths.mean(one.think_ms) if one.think_ms else 0.0)
    return thought / sent / 1e3 if sent else 0.0


def words(settings: Settings, levels: Sequence[Ahead], need: Need, *, may_stop: bool = False) -> list[str]:
    """For people. `may_stop`: the run leaves out levels past saturation."""
    count = f"{len(levels)} level{'s' if len(levels) > 1 else ''}"
    known = settings.trace is not None or (settings.law is not None and settings.until.requests is None)
    why = "" if known else " (by the probe; at higher loads answers take longer)"
    limit = ", fewer once throughput has stopped growing" if may_stop and len(levels) > 1 else ""
    longest_s = sum(level.lasts_s for level in levels)
    lasts = f"about {duration(longest_s)}{why}"
    early = levels if settings.until.enough else ()
    if spared_s := sum(max(0.0, level.requests - need.requests) / level.per_s for level in early):
        lasts = f"about {duration(longest_s - spared_s)} at least{why}, at most {duration(longest_s)}"
    lines = [f"{count}, {lasts}{limit}"]
    if any(one.dataset is not None and not one.repeat for one in settings.workload.classes):
        lines.append("a level ends before that where its share of the data set is used up")
    short = [number for number, level in enumerate(levels) if round(level.requests) < need.requests]
    if short:
        lines.append(_short(settings, levels, short, need))
    return lines


def _short(settings: Settings, levels: Sequence[Ahead], short: list[int], need: Need) -> str:
    counts = [_about(levels[number].requests) for number in short]
    if len(counts) > 3:
        counts = [f"{min(counts, key=int)} to {max(counts, key=int)}"]
    named = _named(short)
    will = f"levels {named}" if len(short) > 1 else f"level {named}"
    will = will if len(levels) > 1 else "the level"
    more = ""
    if settings.trace is None and not (settings.law is not None and settings.law.name == "ramp"):
        rest_s = sum((need.requests - levels[n].requests) / levels[n].per_s for n in short if levels[n].per_s)
        flag = "a longer --duration" if settings.until.enough else f"--requests {need.requests}"
        more = f"; {flag} would take about {duration(rest_s)} more"
    independent = "that do not depend on each other"
    return f"{need.what} needs {need.requests} requests {independent}: {will} will have about {_and(counts)}{more}"


def _about(requests: float) -> str:
    return str(int(float(f"{requests:.2g}"))) if requests < 100 else str(int(float(f"{requests:.3g}")))


def _named(numbers: list[int]) -> str:
    """From 1, as progress counts them; in a row: the first to the last."""
    if len(numbers) > 2 and all(b == a + 1 for a, b in itertools.pairwise(numbers)):
        return f"{numbers[0] + 1} to {numbers[-1] + 1}"
    return _and([str(number + 1) for number in numbers])


def _and(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def duration(seconds: float) -> str:
    """About."""
    if seconds < 1:
        return f"{seconds:.1g} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    whole = 10 * round(seconds / 10)
    if whole < 600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")
