"""Levels of the simulated engine in virtual time, as a run would have measured them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from analysis import measured, records, server
from analysis.hardware import parse
from tests import fakes_run as fakes
from tests.bench import virtual

if TYPE_CHECKING:
    from collections.abc import Callable

    from analysis.measured import Level
    from analysis.records import Requests


Spread = tuple[float, float]  # mean, sigma of the logarithm


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """`requests_each` a slot, of about `request_s` each; `change` is what happens between server and client."""

    spec: str
    slots: int = 1
    rate_per_s: float | None = None  # open loop, for as long as the requests of one slot take
    request_s: float
    requests_each: int = 10
    prompt: Spread = (512.0, 0.6)
    output: Spread = (64.0, 0.6)
    long_share: float = 0.0
    change: Callable[[Requests], Requests] | None = None


def level(
    scenario: Scenario, *, seed: int = 0, metrics: bool = True, hardware: bool | str = True, number: int = 0
) -> Level:
    """Without `metrics` nothing of the server's own is known, without `hardware` no floor; or it is as a user says."""
    spec, pages = virtual.spec(scenario.spec), virtual.Pages()
    lengths = virtual.Lengths(scenario.prompt, scenario.output, scenario.long_share)
    duration_s, rate = scenario.request_s * scenario.requests_each, scenario.rate_per_s
    if rate is None:
        requests = virtual.closed_loop(
            spec, scenario.slots, duration_s, seed, request_s=scenario.request_s, lengths=lengths, pages=pages
        )
    else:
        requests = virtual.open_loop(spec, rate, duration_s, seed, lengths=lengths, pages=pages)
    load = {"level": number, "concurrency": scenario.slots if rate is None else None, "rate_per_s": rate}
    header = msgspec.convert(fakes.header(levels=[load]), records.Header)
    known = parse(hardware) if isinstance(hardware, str) else spec.hardware if hardware else None
    header = msgspec.structs.replace(header, hardware=known)
    end_us = int((requests.sent_us + requests.end_us).max())
    if scenario.change is not None:
        requests = scenario.change(requests)
    ended = records.Ended(level=number, start_us=0, end_us=end_us, ended_by="duration", cpu_us=1, clock_step_us=0)
    run = records.Run(header=header, ended={number: ended}, requests={number: requests}, cut_rows=0)
    return measured.summarize_level(run, number, _from_the_start(pages.samples) if metrics else ())


def codes(scenario: Scenario, *, seed: int = 0, metrics: bool = True, hardware: bool = True) -> list[str]:
    return [one.code for one in level(scenario, seed=seed, metrics=metrics, hardware=hardware).diagnoses]


def _from_the_start(samples: list[server.Sample]) -> list[server.Sample]:
    zero: dict[str, Any] = dict.fromkeys(server._COUNTERS, 0.0)
    return [server.Sample(t_us=-1, source=0, **zero), *samples]


def held_back(by_ms: float) -> Callable[[Requests], Requests]:
    """All events of each request, by the same time."""
    return lambda requests: msgspec.structs.replace(
        requests, events_us=requests.events_us + round(1e3 * by_ms), end_us=requests.end_us + round(1e3 * by_ms)
    )


def buffered(period_ms: float) -> Callable[[Requests], Requests]:
    """Passed on once in a period."""

    def late(requests: Requests) -> Requests:
        period_us = round(1e3 * period_ms)
        return msgspec.structs.replace(requests, events_us=-(-requests.events_us // period_us) * period_us)

    return late


def read_late(by_ms: float) -> Callable[[Requests], Requests]:
    """By a client without kernel stamps."""

    def late(requests: Requests) -> Requests:
        return msgspec.structs.replace(
            requests,
            events_us=requests.events_us + round(1e3 * by_ms),
            read_lag_us=np.full(len(requests.index), 1e3 * by_ms),
            bounds=requests.events.astype(np.float64),
        )

    return late


def failed(requests: Requests) -> Requests:
    return msgspec.structs.replace(requests, status=np.full(len(requests.index), "failed"))


def an_event_a_step(requests: Requests) -> Requests:
    """Tokens of one step, which speculative decoding makes several of, in one event."""
    spans = itertools.pairwise(requests.starts.tolist())
    each = [np.unique(requests.events_us[low:high], return_counts=True) for low, high in spans]
    return msgspec.structs.replace(
        requests,
        starts=np.cumsum([0, *(len(times) for times, _ in each)], dtype=np.int64),
        events_us=np.concatenate([times for times, _ in each]),
        events_tokens=np.concatenate([counts for _, counts in each]).astype(np.float32),
    )


def one_token(requests: Requests) -> Requests:
    """The first of each answer, as if no more had been wanted."""
    first_us = requests.events_us[requests.starts[:-1]]
    ones = np.ones(len(first_us))
    return msgspec.structs.replace(
        requests, starts=np.arange(len(first_us) + 1), events_us=first_us, end_us=first_us.astype(np.float64),
        events_tokens=ones.astype(np.float32), output_tokens=ones, want_output_tokens=ones,
    )  # fmt: skip
