"""SLO terms as users write them, and the objectives that others have published.

    ttft p99 < 500ms       99 % of the requests have a TTFT of at most 500 ms. So too ttft_sent, ttfat, tpot, e2e,
                           and stall: the time a reader of 10 tokens/s waits for words after the first
    itl p95 < 50ms         95 % of the gaps between output events, pooled over requests, are at most 50 ms
    error_rate < 0.1%      share of the requests that failed
    throughput > 2000      output tokens per second

A failed request misses every term of a latency. `<` and `<=` mean the same: a value at the limit keeps it.
"""

import csv
import difflib
import functools
import re
from collections.abc import Sequence
from decimal import Decimal
from importlib import resources
from typing import Literal

import msgspec

Metric = Literal["ttft", "ttft_sent", "ttfat", "itl", "tpot", "e2e", "stall", "error_rate", "throughput"]
LATENCIES: tuple[Metric, ...] = ("ttft", "ttft_sent", "ttfat", "itl", "tpot", "e2e", "stall")
METRICS: tuple[Metric, ...] = (*LATENCIES, "error_rate", "throughput")

_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,6})?"
_TERM = re.compile(rf"([a-z0-9_]+)(?:\s+p({_NUMBER}))?\s*(<=?|>=?|≤|≥)\s*({_NUMBER})\s*(\S*)")
_UNITS_MS = {"us": Decimal("0.001"), "ms": Decimal(1), "s": Decimal(1000), "m": Decimal(60_000)}
_STEP_MS = Decimal("0.001")  # that of the records
_DAY_MS = 86_400_000
_EXAMPLES = "'ttft p99 < 500ms', 'error_rate < 0.1%' or 'throughput > 2000'"


class Term(msgspec.Struct, frozen=True):
    """`limit` is in milliseconds for a latency, a share for error_rate, tokens per second for throughput; `percent`,
    such as 99, is of a latency."""

    metric: Metric
    percent: float | None
    limit: float

    @property
    def allowed(self) -> float:
        """The share that may exceed the limit; of an error rate, the limit itself."""
        return self.limit if self.percent is None else float((100 - Decimal(repr(self.percent))) / 100)

    def __str__(self) -> str:
        """As it is written in results; `parse` reads it back."""
        if self.metric == "throughput":
            return f"throughput > {_plain(self.limit)}"
        if self.percent is None:
            return f"error_rate < {_plain(self.limit, times=100)}%"
        limit = f"{_plain(self.limit)}ms" if self.limit < 1000 else f"{_plain(self.limit, times=Decimal('0.001'))}s"
        return f"{self.metric} p{_plain(self.percent)} < {limit}"


class Preset(msgspec.Struct, frozen=True):
    terms: tuple[Term, ...]
    source: str


def parse(text: str) -> Term:
    """Raises ValueError, one line, with what was expected."""
    match = _TERM.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is no SLO term: write one such as {_EXAMPLES}")
    name, percent, sign, number, unit = match.groups()
    metric = next((known for known in METRICS if known == name), None)
    if metric is None:
        raise ValueError(f"{text!r}: there is no metric {name!r}; {_nearest(name, METRICS)}")
    wanted = ">" if metric == "throughput" else "<"
    if (sign[0] in "<≤") != (wanted == "<"):
        raise ValueError(
            f"{text!r}: {metric} is kept {'above' if wanted == '>' else 'below'} a limit, so write {wanted}"
        )
    if Decimal(number) == 0:
        raise ValueError(f"{text!r}: a limit of 0 can never be kept")
    if metric in LATENCIES:
        return Term(metric, _percent(text, metric, percent), _limit_ms(text, number, unit))
    if percent is not None:
        raise ValueError(f"{text!r}: {metric} has no percentiles, write {metric} {wanted} {number}{unit}")
    return Term(metric, None, _tokens_per_s(text, number, unit) if wanted == ">" else _share(text, number, unit))


def terms(values: Sequence[str]) -> tuple[Term, ...]:
    """What `--slo` values stand for: names of presets, and terms. Of one metric and percentile the last counts, so
    that a preset can be changed. Raises ValueError."""
    found: dict[tuple[str, float | None], Term] = {}
    for value in values:
        for term in _preset_or_term(value):
            found[term.metric, term.percent] = term
    return tuple(found.values())


@functools.cache
def presets() -> dict[str, Preset]:
    text = resources.files("analysis.catalog").joinpath("slo.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {row["preset"]: Preset(tuple(map(parse, row["terms"].split(";"))), row["source"]) for row in rows}


def _preset_or_term(value: str) -> tuple[Term, ...]:
    preset = presets().get(value.strip().lower())
    if preset is not None:
        return preset.terms
    if re.search("[<>≤≥]", value) is None:
        known = _nearest(value.strip().lower(), tuple(presets()))
        raise ValueError(f"{value!r} is neither an SLO preset ({known}) nor a term such as {_EXAMPLES}")
    return (parse(value),)


def _percent(text: str, metric: str, percent: str | None) -> float:
    if percent is None:
        raise ValueError(f"{text!r}: {metric} needs a percentile, as in '{metric} p99 < 500ms'")
    if not 0 < Decimal(percent) < 100:
        raise ValueError(f"{text!r}: a percentile lies between 0 and 100, as p50, p99 or p99.9")
    return float(percent)


def _limit_ms(text: str, number: str, unit: str) -> float:
    if unit not in _UNITS_MS:
        raise ValueError(f"{text!r}: expected a time with its unit, such as {number}ms (units: {', '.join(_UNITS_MS)})")
    limit = (Decimal(number) * _UNITS_MS[unit]).quantize(_STEP_MS)
    if not 0 < limit <= _DAY_MS:
        raise ValueError(f"{text!r}: a limit lies between a microsecond and a day")
    return float(limit)


def _share(text: str, number: str, unit: str) -> float:
    if unit != "%" or Decimal(number) >= 100:
        raise ValueError(f"{text!r}: expected a percentage below 100, such as 0.1%")
    return float(Decimal(number) / 100)


def _tokens_per_s(text: str, number: str, unit: str) -> float:
    if unit not in ("", "/s"):
        raise ValueError(f"{text!r}: expected output tokens per second, such as {number} or {number}/s")
    return float(number)


def _plain(value: float, times: Decimal | int = 1) -> str:
    """The shortest decimal number, without an exponent."""
    return format((Decimal(repr(value)) * times).normalize(), "f")


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"nearest: {', '.join(near)}" if near else f"known: {', '.join(known)}"
