"""What the server said of itself during a level: samples of its /metrics, and what they mean.

Rules
- A counter grew by the sum of its steps between two samples of a source; where it fell, the server began again from
  zero, and its new value is the step. A counter that a page does not have yet, and has later, was zero.
- From the last sample before the level to the first one after it, not beyond the levels next to it: what of it lies
  outside the level is idle. Gauges are those of the samples inside.
- Several sources are one server: counts are summed, sample by sample; shares of them are weighted by what they are
  shares of, and the KV caches by nothing, since their sizes are not known.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from analysis import metrics, records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from analysis.records import Ended, Floats, Requests

PERIOD_US = 1_000_000


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A row of server.jsonl: where from (`url`, and the `engine` where it was recognised), why there are no values
    (`error`), or values. Counters and sums (`_s`, in seconds, of `_n` requests) since the server started."""

    t_us: int
    source: int
    url: str | None = None
    engine: str | None = None
    error: str | None = None
    running: float | None = None
    waiting: float | None = None
    kv_use: float | None = None
    accepted_share: float | None = None
    preemptions: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    ttft_s: float | None = None
    ttft_n: float | None = None
    queue_s: float | None = None
    queue_n: float | None = None
    prefill_s: float | None = None
    prefill_n: float | None = None
    decode_s: float | None = None
    decode_n: float | None = None


_COUNTERS = Sample.__struct_fields__[Sample.__struct_fields__.index("preemptions") :]


class Spread(msgspec.Struct, frozen=True):
    mean: float
    max: float


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A level by the server's own count.

    gaps               seconds of the level without a sample, though one was due
    restarts           how often a counter fell
    prefix_hit_share   prompt tokens found in the prefix cache, of those looked up
    accepted_share     of the tokens drafted by speculative decoding
    queue, prefill, decode   means over the requests that finished
    ttft_ms            its mean, over all requests with a first token; client_ttft_ms: from sent, over the same
    output_tokens      served; received_tokens: by the client; cut_tokens: of those, of requests that did not end well
    """

    engine: str | None
    sources: int
    samples: int
    gaps: int
    restarts: int
    running: Spread | None
    waiting: Spread | None
    kv_use: Spread | None
    preemptions: int | None
    prefix_hit_share: float | None
    accepted_share: float | None
    queue_ms: float | None
    prefill_ms: float | None
    decode_ms: float | None
    ttft_ms: float | None
    client_ttft_ms: float | None
    output_tokens: int | None
    received_tokens: int | None
    cut_tokens: int | None


def read(directory: Path) -> tuple[Sample, ...]:
    """The rows of server.jsonl without one that a crash cut; none where there is no such file. Raises ValueError."""
    return tuple(row for row in records.rows(directory / "server.jsonl", Sample) if row is not None)


def of_level(
    samples: Sequence[Sample], ended: Mapping[int, Ended], level: int, requests: Requests, tokens: Floats
) -> Server | None:
    """None where the level has no sample. `tokens` are those of each event, from `metrics.event_tokens`."""
    if level not in ended:
        return None
    start_us, end_us = ended[level].start_us, ended[level].end_us
    sources = [found for found in _sources(samples, ended, level) if found and found[-1].t_us >= start_us]
    if not sources:
        return None
    inside = [[sample for sample in found if start_us <= sample.t_us <= end_us] for found in sources]
    grew = _growth(sources)
    spans = all(found[0].t_us <= start_us and found[-1].t_us >= end_us for found in sources)
    each = _received(requests, tokens)
    return Server(
        engine=", ".join(sorted({row.engine for row in samples if row.engine})) or None,
        sources=len(sources),
        samples=sum(map(len, inside)),
        gaps=sum(_gaps(found) for found in sources),
        restarts=sum(_falls(found) for found in sources),
        running=_gauge(inside, "running"),
        waiting=_gauge(inside, "waiting"),
        kv_use=_gauge(inside, "kv_use", share=True),
        preemptions=_whole(grew["preemptions"]),
        prefix_hit_share=_over(grew["prefix_hits"], grew["prefix_queries"]),
        accepted_share=_accepted(grew, inside),
        queue_ms=_over(grew["queue_s"], grew["queue_n"], 1e3),
        prefill_ms=_over(grew["prefill_s"], grew["prefill_n"], 1e3),
        decode_ms=_over(grew["decode_s"], grew["decode_n"], 1e3),
        ttft_ms=_over(grew["ttft_s"], grew["ttft_n"], 1e3),
        client_ttft_ms=metrics.known_mean(metrics.ttft_sent_ms(requests)) if spans else None,
        output_tokens=_whole(grew["output_tokens"]),
        received_tokens=round(each.sum()) if spans else None,
        cut_tokens=round(each[~requests.ok].sum()) if spans else None,
    )


def _received(requests: Requests, tokens: Floats) -> Floats:
    """Tokens of each request: its count where it ended well and has one, because a token without text, such as the one
    that ends an answer, comes with no event; else what its events carried."""
    carried = metrics.tokens_per_request(requests, tokens) + metrics.hidden_tokens(requests)
    return np.where(requests.ok & ~np.isnan(requests.output_tokens), requests.output_tokens, carried)


def growth(values: Sequence[float]) -> float:
    """Of a counter, also over falls to zero."""
    return sum(after - before if after >= before else after for before, after in pairwise(values))


def _sources(samples: Sequence[Sample], ended: Mapping[int, Ended], level: int) -> list[list[Sample]]:
    """Of each source, the samples with values from the last one before the level to the first one after it."""
    start_us, end_us = ended[level].start_us, ended[level].end_us
    earliest = max((other.end_us for other in ended.values() if other.end_us <= start_us), default=-math.inf)
    latest = min((other.start_us for other in ended.values() if other.start_us >= end_us), default=math.inf)
    found: dict[int, list[Sample]] = {sample.source: [] for sample in samples}
    for sample in samples:
        mine = found[sample.source]
        if sample.url is not None or sample.error is not None or not earliest <= sample.t_us <= latest:
            continue
        if sample.t_us <= start_us:
            mine[:] = [sample]
        elif not mine or mine[-1].t_us < end_us:
            mine.append(sample)
    return list(found.values())


def _growth(sources: Sequence[Sequence[Sample]]) -> dict[str, float | None]:
    """By how much each counter grew, summed over the sources; None where one of them does not have it."""
    grew: dict[str, float | None] = {}
    for name in _COUNTERS:
        by_source = [_values(found, name) for found in sources]
        known = all(len(values) > 1 for values in by_source)
        grew[name] = sum(growth(values) for values in by_source) if known else None
    return grew


def _values(found: Sequence[Sample], name: str) -> list[float]:
    """Of a counter; where it shows late, it was zero before. None of it: the page does not have it."""
    values: list[float | None] = [getattr(sample, name) for sample in found]
    first = next((place for place, value in enumerate(values) if value is not None), len(values))
    if first == len(values):
        return []
    return [0.0] * first + [value for value in values if value is not None]


def _falls(found: Sequence[Sample]) -> int:
    """A server that starts again starts all its counters again."""
    return sum(
        any(
            (was := getattr(before, name)) is not None and (now := getattr(after, name)) is not None and now < was
            for name in _COUNTERS
        )
        for before, after in pairwise(found)
    )


def _gaps(found: Sequence[Sample]) -> int:
    return sum(max(0, round((after.t_us - before.t_us) / PERIOD_US) - 1) for before, after in pairwise(found))


def _gauge(inside: Sequence[Sequence[Sample]], name: str, *, share: bool = False) -> Spread | None:
    """Summed over the sources (a share: averaged) at each time at which all of them have it."""
    at: dict[int, list[float]] = {}
    for found in inside:
        for sample in found:
            if (value := getattr(sample, name)) is not None:
                at.setdefault(sample.t_us, []).append(value)
    sums = [sum(values) / (len(values) if share else 1) for values in at.values() if len(values) == len(inside)]
    mean = _finite(sum(sums) / len(sums)) if sums else None
    return None if mean is None else Spread(mean=mean, max=max(sums))


def _accepted(grew: Mapping[str, float | None], inside: Sequence[Sequence[Sample]]) -> float | None:
    """By its counters; a server that has none, but says a share itself: the mean of that."""
    said = _gauge(inside, "accepted_share", share=True)
    counted = _over(grew["accepted_tokens"], grew["draft_tokens"])
    return said.mean if counted is None and said is not None else counted


def _over(part: float | None, whole: float | None, scale: float = 1.0) -> float | None:
    return None if part is None or not whole else _finite(scale * part / whole)


def _whole(value: float | None) -> int | None:
    return None if value is None or _finite(value) is None else round(value)


def _finite(value: float) -> float | None:
    """Whatever a server counts, a summary stays strict JSON."""
    return value if math.isfinite(value) else None
