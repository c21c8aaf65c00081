"""Token lengths: `512`, `uniform:100..200`, `normal:512,64`, `lognormal:512,0.6`, `file:F`; and pairs of them.

Lengths are whole tokens from 1 to LONGEST. The normal and the lognormal law are rounded to whole tokens, and what
falls outside is moved to the nearer end, not drawn again. So a normal law that reaches under 1 has a larger mean than
its text says (`normal:10,20` draws 14.3 on average); `mean` gives the mean of what is drawn.

A file holds one length per line, or a pair of input and output per line (`pairs`); lines are drawn with replacement.
Other whole numbers follow the same laws: turns, and times in ms.
"""

import hashlib
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

LONGEST = 10_000_000
LARGEST_SIGMA = 4.0  # of the log: the 99th percentile is then 11,000 times the median

Law = Literal["fixed", "uniform", "normal", "lognormal", "file"]

_BLOCK = 1024  # drawn at a time
_FORMS = (
    "512, uniform:100..200, normal:512,64 (mean, standard deviation), lognormal:512,0.6 (mean, sigma of the log) "
    "or file:F (one length per line)"
)
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
    file: none, it has the `values` of a `file`.
    """

    law: Law
    parameters: tuple[float, ...] = ()
    values: tuple[int, ...] = ()
    file: str | None = None  # its name, as it was given

    def __str__(self) -> str:
        """The text it is parsed from, in one form: `parse(str(x)) == x`. See `canonical` for digests."""
        if self.law == "file":
            return f"file:{self.file}"
        numbers = [str(int(p)) if p.is_integer() else repr(p) for p in self.parameters]
        if self.law == "fixed":
            return numbers[0]
        return f"{self.law}:{('..' if self.law == 'uniform' else ',').join(numbers)}"


class Pairs(msgspec.Struct, frozen=True):
    """Input and output lengths that belong together, as read from a file of that name."""

    file: str
    input: tuple[int, ...]
    output: tuple[int, ...]


def parse(text: str, folder: Path = Path()) -> Lengths:
    """`folder` is where a relative F of `file:F` is looked for. Raises ValueError, in one line, for anything that is no
    law of lengths; for what a file holds it names file and line."""
    text = text.strip()
    if text.startswith("file:"):
        name = text.removeprefix("file:").strip()
        return Lengths("file", values=_column(folder / name), file=name)
    for law, pattern in _PATTERNS.items():
        if match := pattern.fullmatch(text):
            lengths = Lengths(law, tuple(float(group) for group in match.groups()))
            if reason := _why_not(lengths):
                raise ValueError(f"length {shortened(text)!r}: {reason}")
            return lengths
    raise ValueError(f"length {shortened(text)!r}: expected {_FORMS}")


def shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _column(path: Path) -> tuple[int, ...]:
    expected = f"one whole number from 1 to {LONGEST}"
    return tuple(_length(text, path, line, expected) for line, text in _lines(path, expected))


def pairs(name: str, folder: Path = Path()) -> Pairs:
    """Of a CSV file: `input,output` on each line, and in the first one, if it likes, these words. Raises ValueError."""
    path = folder / name
    expected = f"two whole numbers from 1 to {LONGEST}, input,output"
    rows = []
    for line, text in _lines(path, expected):
        cells = [cell.strip() for cell in text.split(",")]
        if line == 1 and [cell.lower() for cell in cells] == ["input", "output"]:
            continue
        if len(cells) != 2:
            raise ValueError(f"{path}, line {line}: expected {expected} (got {shortened(text)!r})")
        rows.append([_length(cell, path, line, expected) for cell in cells])
    if not rows:
        raise ValueError(f"{path}: no lengths below its first line; expected {expected} on each")
    inputs, outputs = zip(*rows, strict=True)
    return Pairs(name, inputs, outputs)


def _lines(path: Path, expected: str) -> list[tuple[int, str]]:
    """The lines that are not blank, with their numbers. Raises ValueError where there are none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a text file; expected {expected} on each line") from None
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ValueError(f"{path}: the file is empty; expected {expected} on each line")
    return lines


def _length(text: str, path: Path, line: int, expected: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and 1 <= int(text) <= LONGEST):
        raise ValueError(f"{path}, line {line}: expected {expected} (got {shortened(text)!r})")
    return int(text)


def canonical(lengths: Lengths) -> str:
    """The same text wherever the same lengths are drawn: a file by what it holds, not by its name."""
    return str(lengths) if lengths.law != "file" else f"file:sha256:{_sha256(map(str, lengths.values))}"


def canonical_pairs(pairs: Pairs) -> str:
    lines = (f"{i},{o}" for i, o in zip(pairs.input, pairs.output, strict=True))
    return f"sha256:{_sha256(lines)}"


def _sha256(lines: Iterable[str]) -> str:
    """Of the lines as a file has them that is tidy: no blanks, no empty line, one newline at the end of each."""
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def _why_not(lengths: Lengths) -> str | None:
    first, *rest = lengths.parameters
    if not first >= 1:
        return "it must be at least 1"
    if max(first, *rest, 0) > LONGEST:
        return f"it can be at most {LONGEST}"
    if lengths.law == "fixed" and not first.is_integer():
        return "a fixed length must be a whole number"
    if lengths.law == "uniform" and rest[0] < first:
        return f"the lower end comes first: uniform:{rest[0]:.0f}..{first:.0f}"
    if lengths.law == "normal" and rest[0] < 0:
        return "a standard deviation cannot be negative"
    if lengths.law == "lognormal" and not 0 <= rest[0] <= LARGEST_SIGMA:
        return f"the sigma of the log must lie between 0 and {LARGEST_SIGMA:g} (it has no unit: 0.6 is common)"
    return None


def draw(lengths: Lengths, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """`count` lengths, each from 1 to LONGEST. One call of n + m draws the same as two calls of n and m."""
    if lengths.law == "file":
        return np.array(lengths.values, dtype=np.int64)[rng.integers(len(lengths.values), size=count)]
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


def drawn(lengths: Lengths, rng: np.random.Generator) -> Iterator[int]:
    """Lengths without end, the same as `draw` gives."""
    if lengths.law == "fixed":
        yield from itertools.repeat(int(lengths.parameters[0]))
    if lengths.law == "file":
        yield from (lengths.values[line] for line in _lines_drawn(len(lengths.values), rng))
    while True:
        yield from draw(lengths, rng, _BLOCK).tolist()


def drawn_pairs(pairs: Pairs, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Pairs (input, output) without end."""
    return ((pairs.input[line], pairs.output[line]) for line in _lines_drawn(len(pairs.input), rng))


def _lines_drawn(count: int, rng: np.random.Generator) -> Iterator[int]:
    while True:
        yield from rng.integers(count, size=_BLOCK).tolist()


def mean(lengths: Lengths) -> float:
    """Mean of what `draw` gives, in tokens; rounding is left out: it shows only where the spread is under a token."""
    if lengths.law == "file":
        return sum(lengths.values) / len(lengths.values)
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
