"""The numbers of a set of requests: of a whole level, of one class of a mix, of the later turns of its conversations.

One function makes them all. TTFT is of all who saw a first token (`metrics.answered`), the rest of the ok requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from analysis import decision, metrics, prompts, records, window
from analysis.quantiles import Distribution, distribution
from analysis.verdicts import NOTHING, Goodput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from analysis.records import Bools, Floats, Header, Requests
    from analysis.verdicts import Statement
    from analysis.window import Window


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Measured requests: sent = ok + failed + cancelled + left. Who left is no failure, and no success."""

    sent: int
    ok: int
    failed: int
    cancelled: int
    left: int
    errors: dict[str, int]


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    requests_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """Means and shares over the ok requests. `source` is "usage", "tokenizer", "events", or "mixed".

    cacheable_share    of the prompt tokens, what the server may have cached by the plan, at most, in blocks of 16
    distinct_prompts   of all measured requests: a generated prompt is never sent twice, an item of a data set can be
    """

    prompt_mean: float | None
    output_mean: float | None
    want_output_mean: float | None
    source: str | None = msgspec.field(name="from")
    per_event: float | None
    cached_share: float | None
    cacheable_share: float | None
    distinct_prompts: int


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time goes: mean of `ttft_sent_ms` over mean E2E from sent.

    A wait in the server's queue is in TTFT too: only at a light load is this the share of the prefill.
    """

    prefill_share: float
    heavy: Literal["prefill", "decode"]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """`goodput` and `verdicts` are filled for the classes of a mix, where an SLO is given."""

    name: str
    requests: Counts
    throughput: Rates
    ttft_ms: Distribution
    ttft_sent_ms: Distribution
    ttfat_ms: Distribution
    itl_ms: Distribution
    tpot_ms: Distribution
    e2e_ms: Distribution
    tokens: Tokens
    phases: Phases | None
    goodput: Goodput | None = None
    verdicts: tuple[decision.Verdict, ...] = ()


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    first: Part
    later: Part


def whole(requests: Requests, tokens: Floats, steady: Window | None, flow: window.Flow | None, header: Header) -> Part:
    return _part("", requests, tokens, steady, flow, _cacheable(requests, header))


def classes(
    requests: Requests,
    tokens: Floats,
    steady: Window | None,
    header: Header,
    stated: Mapping[str, Statement] | None = None,
) -> tuple[Part, ...]:
    """Of each class of a mix, in the order of the workload; none where there is but one. `stated` is by class."""
    planned = [kind.name for kind in header.workload.classes if kind.name is not None]
    others = sorted({str(name) for name in np.unique(requests.class_name)} - {""} - set(planned))
    names = [*planned, *others]
    if len(names) < 2:
        return ()
    chosen = [(name, np.strings.equal(requests.class_name, name)) for name in names]
    found = _parts(requests, tokens, steady, header, chosen)
    return tuple(_with(part, (stated or {}).get(part.name, NOTHING)) for part in found)


def turns(requests: Requests, tokens: Floats, steady: Window | None, header: Header) -> Turns | None:
    """First and later turns apart; None where there are no conversations.

    A later turn's history is long, and mostly cached: one distribution over both would describe neither.
    """
    if not prompts.conversations(requests):
        return None
    chosen = [("first turns", requests.turn == 0), ("later turns", requests.turn > 0)]
    first, later = _parts(requests, tokens, steady, header, chosen)
    return Turns(first=first, later=later)


def _parts(
    requests: Requests, tokens: Floats, steady: Window | None, header: Header, chosen: list[tuple[str, Bools]]
) -> Iterator[Part]:
    cacheable = _cacheable(requests, header)  # of the whole: what went before may be in another part
    for name, mask in chosen:
        some = records.subset(requests, mask)
        some_tokens = tokens[np.repeat(mask, requests.events)]
        flow = None if steady is None else window.flow(some, some_tokens, steady)
        yield _part(name, some, some_tokens, steady, flow, cacheable[mask])


def _with(part: Part, statement: Statement) -> Part:
    return msgspec.structs.replace(part, goodput=statement.goodput, verdicts=statement.verdicts)


def _part(
    name: str, requests: Requests, tokens: Floats, steady: Window | None, flow: window.Flow | None, cacheable: Floats
) -> Part:
    sampled, answered = requests.measured & requests.ok, metrics.answered(requests)

    def spread(values: Floats, chosen: Bools) -> Distribution:
        return distribution(values[chosen], requests.due_us[chosen], steady)

    return Part(
        name=name,
        requests=_counts(requests),
        throughput=Rates(
            requests_per_s=None if flow is None else flow.requests_per_s,
            output_tokens_per_s=None if flow is None else flow.output_tokens_per_s,
            total_tokens_per_s=None if flow is None else flow.total_tokens_per_s,
        ),
        ttft_ms=spread(metrics.ttft_ms(requests), answered),
        ttft_sent_ms=spread(metrics.ttft_sent_ms(requests), answered),
        ttfat_ms=spread(metrics.ttfat_ms(requests), answered),
        itl_ms=distribution(metrics.itl_ms(requests, sampled), metrics.itl_at_us(requests, sampled), steady),
        tpot_ms=spread(metrics.tpot_ms(requests, tokens), sampled),
        e2e_ms=spread(metrics.e2e_ms(requests), sampled),
        tokens=_tokens(requests, cacheable),
        phases=_phases(requests),
    )


def _cacheable(requests: Requests, header: Header) -> Floats:
    return prompts.cacheable_tokens(requests, prompts.common_tokens(header) or 0.0, prompts.BLOCK_TOKENS)


def _counts(requests: Requests) -> Counts:
    measured = requests.measured
    failed = measured & requests.failed
    kinds, counts = np.unique(requests.error[failed], return_counts=True)
    return Counts(
        sent=int(measured.sum()),
        ok=int((measured & requests.ok).sum()),
        failed=int(failed.sum()),
        cancelled=int((measured & requests.cancelled).sum()),
        left=int((measured & requests.left).sum()),
        errors={str(kind) or "unknown": int(count) for kind, count in zip(kinds, counts, strict=True)},
    )


def _tokens(requests: Requests, cacheable: Floats) -> Tokens:
    sampled = requests.measured & requests.ok
    sources = sorted({str(source) for source in np.unique(requests.tokens_from[sampled])} - {""})
    return Tokens(
        prompt_mean=metrics.known_mean(requests.prompt_tokens[sampled]),
        output_mean=metrics.known_mean(requests.output_tokens[sampled]),
        want_output_mean=metrics.known_mean(requests.want_output_tokens[sampled]),
        source=None if not sources else sources[0] if len(sources) == 1 else "mixed",
        per_event=metrics.per_event(requests, sampled),
        cached_share=metrics.share_of_prompts(requests, requests.cached_tokens, sampled),
        cacheable_share=metrics.share_of_prompts(requests, cacheable, sampled),
        distinct_prompts=prompts.distinct(requests),
    )


def _phases(requests: Requests) -> Phases | None:
    sampled = requests.measured & requests.ok
    prefill = metrics.known_mean(metrics.ttft_sent_ms(requests)[sampled])
    both = metrics.known_mean(metrics.e2e_sent_ms(requests)[sampled])
    if prefill is None or not both:
        return None
    share = prefill / both
    return Phases(prefill_share=share, heavy="prefill" if share > 0.5 else "decode")
