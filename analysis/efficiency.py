"""How near a level comes to what its hardware allows: its decode steps and prefills against their floors.

Rules
- A floor must hold against any run. Batch and live lengths change all the time, and the floor of a mean step can lie
  above the mean floor (the weights that an MoE reads are concave in the batch, a sliding window is in the length), and
  time spent is no weight for tokens. So every token has the floor of the step that made it, at the batch and the live
  lengths of its moment, and their mean is held against the mean time a token took. A step takes at least its floor and
  gives each sequence one token: then the mean cannot be below either.
- A sequence is in decode from its first output event to its last, however it ended. One that the server has set aside
  meanwhile counts too: it adds to the floor, and at least as much to the time a token takes (unless it is far longer
  than those that go on).
- The time a token is that of all sequences in decode over the tokens they got: mean ITL where each event is one token,
  and TPOT where events carry several. Counted twice, they take half of it. Hidden reasoning is before the first event;
  its KV is read.
- All live KV is read at each step, cached or not. What several requests share by plan may be read once for all of them
  (cascade attention), so that the shared part is left out.
- Each request has its own prefill floor, less what the server says was cached, or else what the plan lets it cache;
  the median of the floors is held against the median TTFT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from analysis import floors, metrics, prompts, quantiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from analysis.catalog.facts import Model
    from analysis.hardware import Hardware
    from analysis.records import Floats, Header, Requests
    from analysis.window import Window

NEAR = 0.92  # an efficiency above which a measurement is suspicious
PARTS = 1 << 15  # of the window: a millisecond in half a minute, shorter than any step
_ROWS = 1000  # at a time, as in `window`
_FAR = 1e9  # tokens, beyond any length


class Floors(msgspec.Struct, frozen=True, kw_only=True):
    """Floors in ms and what was measured; None where one of both is not known. An efficiency is floor / measured.

    batch               sequences in decode at once, by the client: time average of those between first and last event
    context             tokens that one of them holds: prompt and what it has generated, time average
    step_weight_bytes   read by a decode step, and step_kv_bytes, without what is shared; means over the tokens
    itl_floor_ms        of a decode step, mean over the tokens
    itl_ms              measured: mean time a token
    ttft_floor_ms       of a prefill without what was cached, median over the requests; ttft_ms: measured, from sent
    tokens_per_s_limit  output tokens/s if these sequences decoded at their floor: batch / itl_floor, and first tokens
    kv_tokens           that fit into the memory beside the weights
    """

    hardware: str
    batch: float | None = None
    context: float | None = None
    step_weight_bytes: float | None = None
    step_kv_bytes: float | None = None
    itl_floor_ms: float | None = None
    itl_ms: float | None = None
    itl_efficiency: float | None = None
    ttft_floor_ms: float | None = None
    ttft_ms: float | None = None
    ttft_efficiency: float | None = None
    tokens_per_s_limit: float | None = None
    kv_tokens: int | None = None


def claim(hardware: Hardware, ms_per_token: float, batch: float = 1.0, context: float = 0.0) -> float:
    """The efficiency of a time per output token that somebody states: above 1 impossible, above `NEAR` suspicious."""
    return floors.decode_s(hardware, batch, context) * 1e3 / ms_per_token


def of_level(header: Header, requests: Requests, tokens: Floats, held: Window | None) -> Floors | None:
    """None where the hardware is not known. `tokens` are those of each event, from `metrics.event_tokens`."""
    hardware = header.hardware
    if hardware is None:
        return None
    decode = {} if held is None else _decode(hardware, requests, tokens, held)
    prefill = _prefill(hardware, requests, header)
    return Floors(hardware=str(hardware), kv_tokens=floors.kv_tokens(hardware), **decode, **prefill)


def _decode(hardware: Hardware, requests: Requests, tokens: Floats, held: Window) -> dict[str, Any]:
    model, live = hardware.model, _Live(hardware)
    known = metrics.known_mean(requests.prompt_tokens)
    base = np.where(np.isnan(requests.prompt_tokens), known or 0.0, requests.prompt_tokens)
    live.add_all(requests, tokens, base + metrics.hidden_tokens(requests), held)
    weights = live.decoded
    if not weights.any() or not live.spent_us:
        return {}
    batch, length, kv, attention = np.maximum(np.cumsum(live.changes, axis=1)[:, :PARTS], 0)
    batch = np.rint(batch)
    sizes, place = np.unique(np.maximum(batch, 1), return_inverse=True)  # who starts and ends in one part is there too
    read = np.array([floors.weight_bytes_read(model, size, hardware.dtype) for size in sizes.tolist()])[place]
    step_s = (read + kv) / floors.bytes_per_s(hardware)
    compute = floors.flops_per_s(hardware)
    if compute is not None:
        step_s = np.maximum(step_s, (floors.decode_flops(model, 1) * batch + attention) / compute)
    floor_ms = float(np.average(step_s, weights=weights)) * 1e3
    itl_ms = live.spent_us / float(weights.sum()) / 1e3
    return {
        "batch": live.spent_us / 1e6 / held.length_s,
        "context": None if known is None or not batch.any() else float(length.sum() / batch.sum()),
        "step_weight_bytes": float(np.average(read, weights=weights)),
        "step_kv_bytes": None if known is None or not live.has_kv else float(np.average(kv, weights=weights)),
        "itl_floor_ms": floor_ms,
        "itl_ms": itl_ms,
        "itl_efficiency": floor_ms / itl_ms,
        "tokens_per_s_limit": live.arrived / held.length_s * itl_ms / floor_ms,
    }


class _Live:
    """What is in decode as time goes on, in `PARTS` equal parts of the window, one before it and one after it.

    changes   sums in each part of what came and went: sequences, and what these hold of tokens, bytes of KV, and FLOPs
              of attention for their next token; what a step finds has come in the parts before its own
    decoded   tokens in each part of the window but those of first events; `arrived`: all in the window
    spent_us  time that sequences were in decode in the window, in sum
    """

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self.has_kv = floors.kv_bytes(hardware.model, 1) is not None
        self.changes = np.zeros((4, PARTS + 2))
        self.decoded = np.zeros(PARTS)
        self.spent_us = self.arrived = 0.0

    def add_all(self, requests: Requests, tokens: Floats, base: Floats, held: Window) -> None:
        """`base` tokens are there before the first event of each request."""
        starts = requests.starts
        for first in range(0, len(base), _ROWS):
            rows = slice(first, first + _ROWS)
            own = slice(starts[first], starts[min(first + _ROWS, len(base))])
            counts = requests.events[rows]
            if not counts.any():
                continue
            times_us = np.repeat(requests.sent_us[rows], counts) + requests.events_us[own]
            shared = np.minimum(requests.shared_tokens[rows], base[rows])
            self._add(times_us, tokens[own], counts, np.repeat(base[rows], counts), np.repeat(shared, counts), held)

    def _add(self, times_us: Floats, tokens: Floats, counts: Any, base: Floats, shared: Floats, held: Window) -> None:
        """Events of some requests: `counts` of each."""
        ends = np.cumsum(counts[counts > 0])
        firsts, lasts = ends - counts[counts > 0], ends - 1
        place = np.ceil((times_us - held.start_us) * (PARTS / (held.end_us - held.start_us)))
        place = np.clip(place, 0, PARTS + 1).astype(np.int64)
        total = np.cumsum(tokens)
        length = base + total - np.repeat((total - tokens)[firsts], counts[counts > 0])
        for row, state in enumerate((np.ones_like(length), length, self._kv(length, shared), self._attention(length))):
            change = np.diff(state, prepend=0.0)
            change[firsts] = state[firsts]
            change[lasts] -= state[lasts]
            self.changes[row] += np.bincount(place, change, minlength=PARTS + 2)
        later = (place > 0) & (place <= PARTS)
        self.arrived += float(tokens[later].sum())
        later[firsts] = False
        self.decoded += np.bincount(place[later] - 1, tokens[later], minlength=PARTS)
        spent_us = np.minimum(times_us, held.end_us) - np.maximum(np.roll(times_us, 1), held.start_us)
        spent_us[firsts] = 0
        self.spent_us += float(np.maximum(spent_us, 0).sum())

    def _kv(self, length: Floats, shared: Floats) -> Floats:
        if not self.has_kv:
            return np.zeros_like(length)
        model, dtype = self._hardware.model, self._hardware.kv_cache_dtype

        def of(tokens: float) -> float:
            return floors.kv_bytes(model, tokens, dtype) or 0.0

        held = _straight(length, of, model)
        return held - _straight(shared, of, model) if shared.any() else held

    def _attention(self, length: Floats) -> Floats:
        model = self._hardware.model
        return _straight(length, lambda at: floors.attention_flops(model, at + 1, at), model)


def _straight(lengths: Floats, of: Callable[[float], float], model: Model) -> Floats:
    """`of` at many lengths: a straight line but for where a sliding window is full."""
    full = float(max(model.window_tokens or 0, 2))
    knots = [0.0, full - 1, full, _FAR]
    return np.interp(lengths, knots, [of(knot) for knot in knots])


def _prefill(hardware: Hardware, requests: Requests, header: Header) -> dict[str, float | None]:
    ttft = metrics.ttft_sent_ms(requests)
    chosen = metrics.answered(requests) & (requests.prompt_tokens > 0) & ~np.isnan(ttft)
    if not chosen.any():
        return {}
    prompt, cached = requests.prompt_tokens[chosen], _cached(requests, header)[chosen]
    pairs, place = np.unique(np.column_stack((prompt, cached)), axis=0, return_inverse=True)
    floor_ms = np.array([floors.prefill_s(hardware, *pair) * 1e3 for pair in pairs.tolist()])[place.ravel()]
    floor, measured = (quantiles.quantile(np.sort(values), 0.5) for values in (floor_ms, ttft[chosen]))
    if floor is None or not measured:
        return {}
    return {"ttft_floor_ms": floor, "ttft_ms": measured, "ttft_efficiency": floor / measured}


def _cached(requests: Requests, header: Header) -> Floats:
    """Prompt tokens that were not computed, at most: the last one always is."""
    common = prompts.common_tokens(header)
    plan = prompts.cacheable_tokens(requests, prompts.COMMON_TOKENS if common is None else common)
    plan = np.where(np.isnan(plan), np.inf, plan)
    cached = np.where(np.isnan(requests.cached_tokens), plan, requests.cached_tokens)
    return np.clip(cached, 0, requests.prompt_tokens - 1)
