"""The metrics of a request, each with its formula. Latencies are in milliseconds.

Rules
- One value per request, in the order of the rows; NaN where the request has none. ITL is pooled, one value per gap.
- TTFT and E2E count from due, E2E ends at the last output event (not where the stream was closed).
- A user who left after the first token has a TTFT and no E2E: `answered` chooses the rows of the first, ok of the rest.
  One who left before it has none, though it would have been a long one: the finding `left` says what that may hide.
- Tokens are those that arrived. Reasoning that the server counted but did not stream is in the usage, not in a rate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from analysis.records import Bools, Floats, Requests

READING_TOKENS_PER_S = 10.0

_COUNTED = ("usage", "tokenizer")  # sources that know how many tokens an event can hold


def ttft_ms(requests: Requests) -> Floats:
    """First output event - due."""
    return (requests.sent_us + _event_us(requests, _first(requests)) - requests.due_us) / 1e3


def ttft_sent_ms(requests: Requests) -> Floats:
    """First output event - sent: what the server is answerable for."""
    return _event_us(requests, _first(requests)) / 1e3


def ttfat_ms(requests: Requests) -> Floats:
    """First event with answer text, not reasoning - due."""
    return (requests.sent_us + _event_us(requests, requests.answer_event) - requests.due_us) / 1e3


def e2e_ms(requests: Requests) -> Floats:
    """Last output event - due."""
    return (requests.sent_us + _event_us(requests, _last(requests)) - requests.due_us) / 1e3


def e2e_sent_ms(requests: Requests) -> Floats:
    """Last output event - sent."""
    return _event_us(requests, _last(requests)) / 1e3


def answered(requests: Requests) -> Bools:
    """Measured requests whose TTFT counts: the ok ones, and those whose users left after the first token."""
    return requests.measured & (requests.ok | (requests.left & (requests.events > 0)))


def itl_ms(requests: Requests, chosen: Bools) -> Floats:
    """Gaps between one output event and the next, pooled over the chosen requests. Per event, not per token."""
    gaps_ms: Floats = np.diff(requests.events_us)[_within(requests, chosen)].astype(np.float64)
    gaps_ms /= 1e3
    return gaps_ms


def itl_at_us(requests: Requests, chosen: Bools) -> Floats:
    """When each gap of `itl_ms` ended."""
    times_us = np.repeat(requests.sent_us, requests.events)
    times_us += requests.events_us
    at_us: Floats = times_us[1:][_within(requests, chosen)]
    return at_us


def _within(requests: Requests, chosen: Bools) -> Bools:
    """Of each two neighbours among the events, whether they are of one request, a chosen one."""
    inside = np.repeat(chosen, requests.events)[1:]
    between = requests.starts[1:-1]
    between = between[(between > 0) & (between < len(requests.events_us))]
    inside[between - 1] = False  # from the last event of one request to the first of the next
    return inside


def tpot_ms(requests: Requests, tokens: Floats) -> Floats:
    """(last output event - first) / (output tokens - tokens of the first event); none where that is 0 tokens.

    `tokens` are those of each event, from `event_tokens`.
    """
    first = _first(requests)
    later = tokens_per_request(requests, tokens) - _at(requests, tokens, first)
    span = _event_us(requests, _last(requests)) - _event_us(requests, first)
    tpot: Floats = np.divide(span / 1e3, later, out=np.full(len(span), np.nan), where=later > 0)
    return tpot


def stall_ms(requests: Requests, tokens: Floats, tokens_per_s: float = READING_TOKENS_PER_S) -> Floats:
    """How long a reader waits for words after the first: the answer is played back at a reading speed, and stands still
    where the next token has not arrived.

    The stall up to an event is the largest lead, over it and those before, of arrival over reading:
    time since the first event - tokens before / speed.
    """
    some = requests.events > 0
    stalls = np.full(len(some), np.nan)
    if not some.any():
        return stalls
    starts = requests.starts[:-1][some]
    before = np.cumsum(tokens) - tokens
    lead_ms = requests.events_us / 1e3 - before * (1e3 / tokens_per_s)
    first = np.repeat(lead_ms[starts], requests.events[some])
    stalls[some] = np.maximum.reduceat(lead_ms - first, starts)
    return stalls


def send_lag_ms(requests: Requests) -> Floats:
    """Sent - due; without what connecting took, for a request that found no open connection."""
    begun_us: Floats = np.where(np.isnan(requests.connect_us), requests.sent_us, requests.connect_us)
    return (begun_us - requests.due_us) / 1e3


def hidden_tokens(requests: Requests) -> Floats:
    """Reasoning tokens that the usage counts and no event carried: the first event is already answer text.

    A server whose reasoning is not a part of its output count (reasoning >= output) hides nothing of that count.
    """
    reasoning = np.nan_to_num(requests.reasoning_tokens)
    hidden = (requests.answer_event == 0) & (reasoning > 0) & (reasoning < requests.output_tokens)
    return np.where(hidden, reasoning, 0.0)


def visible_tokens(requests: Requests) -> Floats:
    """Output tokens that were streamed: output tokens - hidden reasoning."""
    return requests.output_tokens - hidden_tokens(requests)


def event_tokens(requests: Requests) -> Floats:
    """Tokens that each event carried, one value per event of the level.

    The shares of the row where it has them, else its visible tokens spread evenly. A request that was cut has no
    usage: its events count as many tokens as those of the complete requests of the level.
    """
    events, starts = requests.events, requests.starts
    visible = visible_tokens(requests)
    each = visible / np.maximum(events, 1)
    counted = np.isin(requests.tokens_from, _COUNTED)
    usual = per_event(requests, requests.ok & counted)
    guessed = np.isnan(each) | (~requests.ok & ~counted)
    each[guessed] = 1.0 if usual is None else usual
    tokens = np.repeat(each, events)
    shares = requests.events_tokens
    np.copyto(tokens, shares, where=~np.isnan(shares))
    # A running usage puts the hidden reasoning on the first event.
    hidden = np.flatnonzero((hidden_tokens(requests) > 0) & ~np.isnan(_at(requests, shares, _first(requests))))
    excess = np.maximum(tokens_per_request(requests, tokens)[hidden] - visible[hidden], 0)
    tokens[starts[hidden]] = np.maximum(tokens[starts[hidden]] - excess, 0)
    return tokens


def tokens_per_request(requests: Requests, tokens: Floats) -> Floats:
    """Sums over each request's events; 0 for a request without one."""
    some = requests.events > 0
    sums = np.zeros(len(some))
    if some.any():
        sums[some] = np.add.reduceat(tokens, requests.starts[:-1][some])
    return sums


def per_event(requests: Requests, chosen: Bools) -> float | None:
    """Mean tokens per output event of the chosen requests that have events and a count."""
    visible = visible_tokens(requests)
    chosen = chosen & (requests.events > 0) & ~np.isnan(visible)
    return float(visible[chosen].sum() / requests.events[chosen].sum()) if chosen.any() else None


def share_of_prompts(requests: Requests, tokens: Floats, chosen: Bools) -> float | None:
    """`tokens`, such as those from the prefix cache, of the prompt tokens of the chosen requests that know both."""
    chosen = chosen & ~np.isnan(tokens) & (requests.prompt_tokens > 0)
    return float(tokens[chosen].sum() / requests.prompt_tokens[chosen].sum()) if chosen.any() else None


def bound_share(requests: Requests, chosen: Bools) -> float | None:
    """Events whose stamp is only an upper bound, of all events of the chosen requests."""
    known = chosen & ~np.isnan(requests.bounds) & (requests.events > 0)
    return float(requests.bounds[known].sum() / requests.events[known].sum()) if known.any() else None


def known_mean(values: Floats) -> float | None:
    """Mean of what is known of `values`; None where nothing is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _first(requests: Requests) -> Floats:
    return np.where(requests.events > 0, 0.0, np.nan)


def _last(requests: Requests) -> Floats:
    return np.where(requests.events > 0, requests.events - 1.0, np.nan)


def _event_us(requests: Requests, position: Floats) -> Floats:
    return _at(requests, requests.events_us, position)


def _at(requests: Requests, values: npt.NDArray[Any], position: Floats) -> Floats:
    """The value of each request's event at `position`; NaN where the position is."""
    chosen = ~np.isnan(position)
    out = np.full(len(position), np.nan)
    out[chosen] = values[requests.starts[:-1][chosen] + position[chosen].astype(np.int64)]
    return out
