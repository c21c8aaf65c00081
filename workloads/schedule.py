"""When requests start: `poisson`, `constant`, `gamma:CV`, `ramp:LOW..HIGH`, `trace:FILE`.

A level has one schedule, drawn from one stream. Workers take strides of it and draw nothing: what several draw from one
seed adds up to bursts. Gaps are drawn in blocks of one size, so that an arrival does not depend on how many are taken;
each due time is rounded by itself, so that no rounding adds up.

Random laws are stationary: a level begins at some moment of a service that runs already, and rate * t requests are
expected by any time t. So the first offset is not a gap, but what is left of the gap which that moment falls into.
For a Poisson process the two are the same. Most moments lie in the long pauses between bursts: with gamma:3 the first
request is due after 5 mean gaps, on average, and a level that began with a whole gap would have 4 requests too many.
The constant law begins at 0.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from workloads.seeds import stream

LOWEST_RATE_PER_S = 1e-6
HIGHEST_RATE_PER_S = 1e6  # due times are whole microseconds
LOWEST_CV, HIGHEST_CV = 0.01, 100.0
LONGEST_S = 1e9

Name = Literal["constant", "poisson", "gamma", "ramp", "trace"]

_FORMS = "poisson, constant, gamma:CV (coefficient of variation), ramp:LOW..HIGH (requests/s) or trace:FILE"
_BLOCK = 4096  # arrivals drawn at a time
_US_PER_S = 1_000_000


class Law(msgspec.Struct, frozen=True):
    """gamma: coefficient of variation of the gaps. ramp: requests/s at the start and at the end of a level."""

    name: Name
    parameters: tuple[float, ...] = ()
    file: Path | None = None  # of a trace

    def __str__(self) -> str:
        """The canonical text: `parse(str(x)) == x`."""
        numbers = [str(int(p)) if p.is_integer() else repr(p) for p in self.parameters]
        parts = [self.name, *(["..".join(numbers)] if numbers else []), *([str(self.file)] if self.file else [])]
        return ":".join(parts)


def parse(text: str) -> Law:
    """Raises ValueError, in one line, for anything that is no law of arrivals."""
    text = text.strip()
    shown = text if len(text) <= 60 else text[:57] + "..."
    law = _law(text)
    if law is None:
        raise ValueError(f"arrivals {shown!r}: expected {_FORMS}")
    if reason := _why_not(law):
        raise ValueError(f"arrivals {shown!r}: {reason}")
    return law


def _law(text: str) -> Law | None:
    name, _, rest = text.partition(":")
    try:
        if text == "constant":
            return Law("constant")
        if text == "poisson":
            return Law("poisson")
        if name == "gamma":
            return Law("gamma", (float(rest),))
        if name == "ramp":
            low, high = map(float, rest.split(".."))
            return Law("ramp", (low, high))
    except ValueError:  # not a number, or not two
        return None
    return Law("trace", file=Path(rest)) if name == "trace" and rest else None


def _why_not(law: Law) -> str | None:
    if law.name == "gamma":
        (cv,) = law.parameters
        if cv == 0:
            return "gaps that do not vary are the constant law: say constant"
        if not LOWEST_CV <= cv <= HIGHEST_CV:
            return f"a coefficient of variation lies between {LOWEST_CV:g} and {HIGHEST_CV:g} (1 is Poisson)"
    if law.name == "ramp":
        if not all(0 <= rate <= HIGHEST_RATE_PER_S for rate in law.parameters):
            return f"a rate lies between 0 and {HIGHEST_RATE_PER_S:.0f} requests/s"
        if not any(law.parameters):
            return "a ramp from 0 to 0 sends nothing"
    return None


def due_us(law: Law, *, seed: int, level: int, rate_per_s: float | None, duration_s: float | None) -> Iterator[int]:
    """Offsets in us from the start of a level, never decreasing; without end, but for a ramp.

    A ramp has its own rates, and needs the duration it is spread over; the others need `rate_per_s`. A trace is not
    drawn: see `traces.replay_us`. Raises ValueError at once.
    """
    rng = stream(seed, "arrivals", level)
    if law.name == "ramp":
        if duration_s is None or not 0 < duration_s <= LONGEST_S:
            raise ValueError(f"arrivals {law}: a ramp needs the duration of a level, more than 0 seconds")
        low, high = law.parameters
        return _ramp(rng, low, high, duration_s)
    if law.name == "trace":
        raise ValueError(f"arrivals {law}: a trace is replayed, not drawn")
    if rate_per_s is None or not LOWEST_RATE_PER_S <= rate_per_s <= HIGHEST_RATE_PER_S:
        given = "no rate" if rate_per_s is None else f"rate {rate_per_s:g}"
        between = f"{LOWEST_RATE_PER_S:g} to {HIGHEST_RATE_PER_S:.0f}"
        raise ValueError(f"arrivals {law}: {given}: expected {between} requests/s")
    if law.name == "constant":
        return _constant(rate_per_s)
    if law.name == "poisson":
        return _at_rate(_poisson(rng), rate_per_s)
    return _at_rate(_gamma(rng, law.parameters[0]), rate_per_s)


def _constant(rate_per_s: float) -> Iterator[int]:
    for first in itertools.count(0, _BLOCK):
        # Each from the start of the level: gaps that are rounded and added up would drift.
        yield from _whole_us(np.arange(first, first + _BLOCK) * _US_PER_S / rate_per_s)


def _at_rate(unit: Iterator[NDArray[np.float64]], rate_per_s: float) -> Iterator[int]:
    for block in unit:
        yield from _whole_us(block * _US_PER_S / rate_per_s)


def _poisson(rng: np.random.Generator) -> Iterator[NDArray[np.float64]]:
    """Arrivals of rate 1. What is left of an exponential gap is exponential too."""
    return _sums(rng.standard_exponential(), rng.standard_exponential)


def _gamma(rng: np.random.Generator, cv: float) -> Iterator[NDArray[np.float64]]:
    """Arrivals of rate 1, with gaps of shape k = 1 / CV^2, from a random moment on.

    That moment falls into a gap in proportion to its length, which makes it a gap of shape k + 1, and anywhere in it
    alike (the forward recurrence time of a renewal process: Cox, Renewal Theory, 1962).
    """
    shape = 1 / cv**2
    left = rng.random() * rng.standard_gamma(shape + 1) / shape
    return _sums(left, lambda count: rng.standard_gamma(shape, count) / shape)


def _sums(first: float, gaps: Callable[[int], NDArray[np.float64]]) -> Iterator[NDArray[np.float64]]:
    """`first`, and what follows it after each gap, in blocks."""
    yield np.array([first])
    while True:
        block = first + np.cumsum(gaps(_BLOCK))
        first = block[-1]
        yield block


def _ramp(rng: np.random.Generator, low: float, high: float, duration_s: float) -> Iterator[int]:
    """A Poisson process whose rate goes from low to high in a straight line, by time rescaling.

    The expected count by t is L(t) = low * t + (high - low) * t^2 / (2 * duration). Where unit Poisson arrivals s are
    due, L(t) = s, solved in the form that stands low = 0 and low = high.
    """
    slope = (high - low) / duration_s
    expected = (low + high) / 2 * duration_s
    for block in _poisson(rng):
        inside = block[block < expected]
        root = np.sqrt(np.maximum(low**2 + 2 * slope * inside, 0))
        yield from _whole_us(np.minimum(2 * inside / (low + root), duration_s) * _US_PER_S)
        if inside.size < block.size:
            return


def _whole_us(due: NDArray[np.float64]) -> list[int]:
    return np.rint(due).astype(np.int64).tolist()  # type: ignore[no-any-return]
