"""Findings about the client: did it keep its load, its clocks and its own costs apart from what it measured?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from analysis import metrics, quantiles, window
from analysis.evidence import Finding, percent

if TYPE_CHECKING:
    from analysis.evidence import Evidence, Severity
    from analysis.records import Bools, Ended
    from analysis.window import Flow

BOUND_SHARE = 0.01
READ_LAG_MS = 1.0  # read lag p99 at most this ...
READ_LAG_SHARE = 0.05  # ... or this share of the median ITL, whichever is more
CPU_SHARE = 0.8  # of a core, a process
SEND_LAG_MS = 1.0  # send lag p99 at most this ...
SEND_LAG_SHARE = 0.01  # ... or this share of the median TTFT, whichever is more
TURN_LAG_SHARE = 0.05  # ... in the closed loop, where a turn can be due the moment that the answer before has ended
RATE_SHARE = 0.99  # of the schedule's rate
GROWTH_SHARE = 0.1  # of the requests that start, over half a window ...
GROWTH_SIGMAS = 3.0  # ... and so many standard deviations of the difference of two Poisson numbers in flight
LITTLE = 0.05
LITTLE_PER_SLOT = 10  # requests a slot that a window must see end before Little's law can accuse
CLOCK_STEP_US = 1000


def cpu_share(ended: Ended | None) -> float | None:
    """Of one core, what the client's process took, the busiest where there are several."""
    if ended is None or ended.cpu_us is None or ended.end_us <= ended.start_us:
        return None
    return ended.cpu_us / (ended.end_us - ended.start_us)


def clock_user(evidence: Evidence) -> Finding | None:
    if evidence.header.clock != "user":
        return None
    message = "no kernel time stamps: times are when this client read, its own delay included; see read lag"
    return Finding("clock-user", "warning", message)


def insecure_tls(evidence: Evidence) -> Finding | None:
    if evidence.header.options.get("insecure") is not True:
        return None
    return Finding("insecure-tls", "warning", "TLS certificates were not checked (--insecure): prefer --ca-file")


def stamp_bounds(evidence: Evidence) -> Finding | None:
    share = metrics.bound_share(evidence.requests, evidence.requests.measured)
    if share is None or share <= BOUND_SHARE:
        return None
    message = (
        f"{percent(share)} of the stamps are only upper bounds: the client read late; use --workers or a free core"
    )
    return Finding("stamp-bounds", "warning", message)


def client_lag(evidence: Evidence) -> Finding | None:
    """Over requests, of the largest lag of each: stricter than over reads, which the rows do not keep."""
    requests = evidence.requests
    bounds = metrics.bound_share(requests, requests.measured)
    if evidence.header.clock == "kernel" and (bounds is None or bounds < BOUND_SHARE):
        return None
    lag = requests.read_lag_us[requests.measured & ~np.isnan(requests.read_lag_us)] / 1e3
    p99 = quantiles.point(lag, 0.99)
    itl = evidence.whole.itl_ms.p50
    limit = READ_LAG_MS if itl is None else max(READ_LAG_MS, READ_LAG_SHARE * itl)
    if p99 is None or p99 <= limit:
        return None
    message = f"the client read its sockets {p99:.3g} ms late (p99; limit {limit:.3g} ms), so it measured itself"
    return Finding("client-lag", "error", f"{message}: use --workers, a free core, or fewer streams")


def client_cpu(evidence: Evidence) -> Finding | None:
    share = cpu_share(evidence.ended)
    if share is None or share <= CPU_SHARE:
        return None
    message = f"the client used {percent(share)} of a core (limit {percent(CPU_SHARE)}): use --workers"
    return Finding("client-cpu", "error", message)


def rate_missed(evidence: Evidence) -> Finding | None:
    """The server was not asked at the rate that the level is called after, so its numbers belong to another load."""
    schedule = evidence.schedule
    if schedule is None or schedule.achieved_share is None or schedule.achieved_share >= RATE_SHARE:
        return None
    message = f"requests were sent at {percent(schedule.achieved_share)} of the schedule's rate"
    if schedule.dropped:
        message += f" ({schedule.dropped} of {schedule.due} were never sent)"
    if _held_back(evidence):
        how = f"{_cap(evidence)}; TTFT holds the wait, and grows with the run: raise the cap or lower the rate"
    else:
        how = "the client did not keep up; use --workers, or lower the rate"
    return Finding("rate-missed", "error", f"{message}: {how}")


def send_lag(evidence: Evidence) -> Finding | None:
    """Of what has a schedule to miss: the open loop; in the closed one later turns, whose TTFT holds the lag, which the
    stamps of what was read in time do not show. Who waits behind a cap does so by the user's wish, and that is part of
    what is measured; who found a place free does not.
    """
    requests, open_loop = evidence.requests, evidence.planned.open_loop
    lag = metrics.send_lag_ms(requests)
    counted = requests.measured & (open_loop | (requests.turn > 0)) & ~np.isnan(lag)
    ttft = metrics.ttft_sent_ms(requests)[evidence.sampled]
    share = SEND_LAG_SHARE if open_loop else TURN_LAG_SHARE
    limit = max(SEND_LAG_MS, share * (quantiles.point(ttft, 0.5) or 0.0))
    waited = _held_back(evidence)
    own, all_ms = (quantiles.point(lag[chosen], 0.99) for chosen in (counted & ~_behind_the_cap(evidence), counted))

    def late(what: str, p99_ms: float) -> str:
        return f"{what} were sent {p99_ms:.3g} ms after they were due (p99; limit {limit:.3g} ms)"

    if own is not None and own > limit:
        if not open_loop:
            message = f"{late('turns of conversations', own)}, and TTFT holds that: the client fell behind"
        else:
            which = "requests that found a place free" if waited else "requests"
            message = f"{late(which, own)}: the client did not keep the schedule"
        return Finding("send-lag", "error", f"{message}; use --workers")
    if waited and all_ms is not None and all_ms > limit:
        message = f"{late('requests', all_ms)}: {_cap(evidence)}, and TTFT holds the wait"
        return Finding("send-lag", "warning", message)
    return None


def _behind_the_cap(evidence: Evidence) -> Bools:
    """Which requests were due when as many as the cap allows were in flight, or before them in the line."""
    requests, cap = evidence.requests, evidence.cap
    if not _held_back(evidence) or not isinstance(cap, int):
        return np.zeros(len(requests.due_us), np.bool_)
    gone_us = window.ended_us(requests)
    sent = ~np.isnan(gone_us)
    came = np.searchsorted(np.sort(requests.due_us[sent]), requests.due_us, "right") - sent
    went = np.searchsorted(np.sort(gone_us[sent]), requests.due_us, "right")
    return came - went >= cap


def _held_back(evidence: Evidence) -> bool:
    """Whether requests waited for --max-concurrency; assumed where there is a cap and no count."""
    waited = None if evidence.schedule is None else evidence.schedule.waited_max
    return evidence.cap is not None and waited != 0


def _cap(evidence: Evidence) -> str:
    waited = None if evidence.schedule is None else evidence.schedule.waited_max
    most = "" if waited is None else f" (up to {waited} at a time)"
    return f"they waited behind --max-concurrency {evidence.cap}{most}"


def over_saturated(evidence: Evidence) -> Finding | None:
    """The run stopped the level for it; or in flight still growing, in the second half of its window, beyond chance.

    Simulated (exponential service on 1 to 128 slots, 30 and 60 s): at 0.8 of the capacity it accuses in 0 to 3 % of the
    levels, at 0.95 in up to 15 % (1 slot), at 1.2 in 66 % and more where a request takes under a tenth of the level.
    """
    ended, flow = evidence.ended, evidence.flow
    if ended is not None and ended.ended_by == "over-saturated":
        message = f"{_stopped(evidence, ended)}: the server cannot keep this rate; lower it"
        return Finding("over-saturated", "error", message)
    if flow is None or not evidence.steady_schedule:
        return None
    growth = flow.late_starts - flow.late_ended
    if growth <= max(GROWTH_SHARE * flow.late_starts, GROWTH_SIGMAS * math.sqrt(2 * flow.concurrency + 1)):
        return None
    message = (
        f"in the second half of the window {flow.late_starts} requests started and {flow.late_ended} ended: the server "
        "cannot keep this rate, or has not settled yet, so latencies grow with the length of the run"
    )
    return Finding("over-saturated", "error", f"{message}; lower the rate, or measure longer")


def _stopped(evidence: Evidence, ended: Ended) -> str:
    """When, and how far it had grown. Who waited for a cap and was never sent has no row."""
    requests = evidence.requests
    starts_us = requests.sent_us[~np.isnan(requests.sent_us)]
    if not len(starts_us):
        return "the level was stopped, since what was in flight grew without end"
    took_us = float(starts_us.max()) - ended.start_us
    half, last = (
        int(((requests.due_us <= at_us) & (window.ended_us(requests) > at_us)).sum())
        for at_us in (ended.start_us + took_us / 2, ended.start_us + took_us)
    )
    waiting = " or waiting" if ended.dropped else ""
    return (
        f"the level was stopped after {took_us / 1e6:.3g} s: {last + (ended.dropped or 0)} requests were in flight"
        f"{waiting}, {half} at half that time, and growing"
    )


def little(evidence: Evidence) -> Finding | None:
    """In flight N against its nominal value, and against throughput * residence (X*R).

    Between the first and the last measured start every slot is busy, so N has no end effect in the closed loop; a user
    who thinks between two turns keeps the slot, N = X*(R+Z). X*R has end effects: requests in flight at one end of the
    window and not at the other, up to one residence a slot; X*Z has them too, up to one thought a slot. That share is
    allowed on top: of thoughts twice their time over all requests, since not every request follows one.
    An error only where the window is long, where slots had requests until its end, and where the schedule is steady;
    and not where slots wait on purpose, after a failure or for --max-rps.
    """
    flow = evidence.flow
    if flow is None or not flow.concurrency or flow.residence_s is None:
        return None
    return _idle_slots(evidence, flow) or _through(evidence, flow, flow.residence_s)


def _idle_slots(evidence: Evidence, flow: Flow) -> Finding | None:
    nominal = evidence.planned.concurrency
    if nominal is None or evidence.header.options.get("max_rps") is not None:
        return None
    allowed = LITTLE + min(nominal, 2 * flow.thinking) / flow.ended
    if abs(flow.concurrency + flow.thinking - nominal) <= allowed * nominal:
        return None
    thinking = f" and {flow.thinking:.3g} users thought" if round(flow.thinking, 2) else ""
    message = f"{flow.concurrency:.3g} requests were in flight{thinking}, not {nominal}: slots stood idle"
    severity = _severity(evidence, flow, users=flow.concurrency + flow.thinking)
    return Finding("little", severity, f"{message}, or rows are lost; use --workers or longer outputs")


def _through(evidence: Evidence, flow: Flow, residence_s: float) -> Finding | None:
    n, product = flow.concurrency, flow.ended / flow.length_s * residence_s
    if abs(n - product) <= (LITTLE + n / flow.ended) * n or over_saturated(evidence) is not None:
        return None
    message = f"{n:.3g} in flight, but throughput times latency is {product:.3g}: the level is not steady"
    severity = _severity(evidence, flow, users=n)
    return Finding("little", severity, f"{message}, or rows are lost; measure longer")


def _severity(evidence: Evidence, flow: Flow, users: float) -> Severity:
    """An error only where the law must hold."""
    ends = ["duration", "enough"]
    if evidence.planned.open_loop:
        ends += ["schedule", "requests"]
    elif evidence.header.options.get("workers", 1) == 1:  # of several, one can have used up its share before the others
        ends.append("requests")
    whole = evidence.ended is not None and evidence.ended.ended_by in ends
    long = flow.ended >= LITTLE_PER_SLOT * users
    failing = bool(evidence.requests.failed.any())
    unsteady = evidence.planned.open_loop and not evidence.steady_schedule
    return "error" if whole and long and not failing and not unsteady else "warning"


def clock_step(evidence: Evidence) -> Finding | None:
    step_us = None if evidence.ended is None else evidence.ended.clock_step_us
    if step_us is None or abs(step_us) <= CLOCK_STEP_US:
        return None
    message = f"the wall clock stepped by {step_us / 1e3:.3g} ms in the level, and the kernel's stamps with it"
    return Finding("clock-step", "error", f"{message}: hold time synchronisation still and measure again")
