"""Token lengths: `512`, `uniform:100..200`, `normal:512,64`, `lognormal:512,0.6`.

Lengths are whole tokens from 1 to LONGEST. The normal and the lognormal law are rounded to whole tokens, and what
falls outside is moved to the nearer end, not drawn again. So a normal law that reaches under 1 has a larger mean than
its text says (`normal:10,20` draws 14.3 on average); `mean` gives the mean of what is drawn.
"""

import math
import re
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

LONGEST = 10_000_000
LARGEST_SIGMA = 4.0  # of the log: the 99th percentile is then 11,000 times the median

Law = Literal["fixed", "uniform", "normal", "lognormal"]

_FORMS = "512, uniform:100..200, normal:512,64 (mean, standard deviation) or lognormal:512,0.6 (mean, sigma of the log)"
_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_PATTERNS: dict[Law, re.Pattern[str]] = {
    "fixed": re.compile(_NUMBER, re.ASCII),
    "uniform": re.compile(r"uniform:([-+]?\d+)\.\.([-+]?\d+)", re.ASCII),
    "normal": re.compile(f"normal:{_NUMBER},{_NUMBER}", re.ASCII),
    "lognormal": re.compile(f"lognormal:{_NUMBER},{_NUMBER}", re.ASCII),
}


class Lengths(msgspec.Struct, frozen=True):
    """A law and its parameters, in tokens but for sigma.

    fixed: the length. uniform: lowest, highest. normal: mean, standard deviation. lognormal: mean, sigma of the log.
    """

    law: Law
    parameters: tuple[float, ...]

    def __str__(self) -> str:
        """The canonical text: `parse(str(x)) == x`."""
        numbers = [str(int(p)) if p.is_integer() else repr(p) for p in self.parameters]
        if self.law == "fixed":
            return numbers[0]
        return f"{self.law}:{('..' if self.law == 'uniform' else ',').join(numbers)}"


def parse(text: str) -> Lengths:
    """Raises ValueError, in one line, for anything that is no law of lengths."""
    text = text.strip()
    for law, pattern in _PATTERNS.items():
        if match := pattern.fullmatch(text):
            lengths = Lengths(law, tuple(float(group) for group in match.groups()))
            if reason := _why_not(lengths):
                raise ValueError(f"length {_shortened(text)!r}: {reason}")
            return lengths
    raise ValueError(f"length {_shortened(text)!r}: expected {_FORMS}")


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _why_not(lengths: Lengths) -> str | None:
    first, *rest = lengths.parameters
    if not first >= 1:
        return "a length must be at least 1 token"
    if max(first, *rest, 0) > LONGEST:
        return f"a length can be at most {LONGEST} tokens"
    if lengths.law == "fixed" and not first.is_integer():
        return "a fixed length must be a whole number of tokens"
    if lengths.law == "uniform" and rest[0] < first:
        return f"the lower end comes first: uniform:{rest[0]:.0f}..{first:.0f}"
    if lengths.law == "normal" and rest[0] < 0:
        return "a standard deviation cannot be negative"
    if lengths.law == "lognormal" and not 0 <= rest[0] <= LARGEST_SIGMA:
        return f"the sigma of the log must lie between 0 and {LARGEST_SIGMA:g} (it has no unit: 0.6 is common)"
    return None


def draw(lengths: Lengths, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """`count` lengths, each from 1 to LONGEST. One call of n + m draws the same as two calls of n and m."""
    first, second = (*lengths.parameters, 0.0)[:2]
    if lengths.law == "fixed":
        return np.full(count, int(first), dtype=np.int64)
    if lengths.law == "uniform":
        return rng.integers(int(first), int(second), count, dtype=np.int64, endpoint=True)
    if lengths.law == "normal":
        values = rng.normal(first, second, count)
    else:
        values = rng.lognormal(
            math.log(first) - second**2 / 2, second, count
        )  # so that the mean, not the median, is first
    return np.clip(np.rint(values), 1, LONGEST).astype(np.int64)


def mean(lengths: Lengths) -> float:
    """Mean of what `draw` gives, in tokens; rounding is left out: it shows only where the spread is under a token."""
    first, second = (*lengths.parameters, 0.0)[:2]
    if lengths.law == "uniform":
        return (first + second) / 2
    if lengths.law == "fixed" or second == 0:
        return float(round(first))
    # E[clip(X, 1, LONGEST)] = 1 * P(X < 1) + E[X; 1 < X < LONGEST] + LONGEST * P(X > LONGEST)
    if lengths.law == "normal":
        low, high = (1 - first) / second, (LONGEST - first) / second
        inside = first * (_phi(high) - _phi(low)) + second * (_density(low) - _density(high))
    else:
        centre = math.log(first) - second**2 / 2
        low, high = -centre / second, (math.log(LONGEST) - centre) / second
        inside = first * (_phi(high - second) - _phi(low - second))
    return _phi(low) + inside + LONGEST * _phi(-high)


def _phi(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2


def _density(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
