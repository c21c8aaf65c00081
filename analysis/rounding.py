"""Numbers as results show them: with 6 significant digits, and only such as JSON has."""

import math
from typing import Any, TypeVar

import msgspec

DIGITS = 6
Result = TypeVar("Result", bound=msgspec.Struct)


def rounded(result: Result) -> Result:
    """The struct, with all its numbers rounded. Raises ValueError for NaN and infinity, which are no results."""
    return msgspec.convert(digits(msgspec.to_builtins(result)), type(result))


def digits(value: Any) -> Any:
    """Of numbers, dicts and lists, as `rounded`."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is no result")
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: digits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [digits(item) for item in value]
    return value
