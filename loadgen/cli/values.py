"""Values as users write them, with their units. Each function raises ValueError with what was expected."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

Number = TypeVar("Number", int, float)
Text = TypeVar("Text")
Value = TypeVar("Value")

_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNITS_BYTES = {None: 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SMALLEST_EVENT_BYTES = 1024
_MOST = 100_000


def duration_s(text: str) -> float:
    """`30s`, `500ms`, `2m`, `1h`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s|m|h)", text.strip())
    if match is None or float(match[1]) == 0:
        raise ValueError(f"{text!r} is no duration: write a number above 0 with its unit, such as 30s, 500ms or 2m")
    return float(match[1]) * _UNITS_S[match[2]]


def rate_per_s(text: str) -> float:
    """`2`, `2/s` or `0.5`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(?:/s)?", text.strip())
    if match is None or float(match[1]) == 0:
        raise ValueError(f"{text!r} is no rate: write requests per second above 0, such as 2 or 2/s")
    return float(match[1])


def size_bytes(text: str) -> int:
    """`64KiB`, `16MiB`, or bytes."""
    match = re.fullmatch(r"([0-9]{1,9})(KiB|MiB|GiB)?", text.strip())
    size = 0 if match is None else int(match[1]) * _UNITS_BYTES[match[2]]
    if size < _SMALLEST_EVENT_BYTES:
        raise ValueError(f"{text!r} is no size: write a number of at least 1KiB with its unit, such as 64KiB or 16MiB")
    return size


def levels(text: str) -> tuple[int, ...]:
    """`1,2,4`, or `1..64` for 1, 2, 4 ... 64 (doubling; the end is always a level), or both mixed."""

    def level(part: str) -> int:
        if not part.isascii() or not part.isdecimal() or not 0 < int(part) <= _MOST:
            raise ValueError(f"{text!r}: a level is a number from 1 to {_MOST}, as in 1,2,4 or 1..64 (got {part!r})")
        return int(part)

    return _doubling(text, level)


def rates(text: str) -> tuple[float, ...]:
    """`2,4,8`, `0.5..4` or `1/s,10/s`: requests per second, in the same forms."""
    return _doubling(text, rate_per_s)


def factors(text: str) -> tuple[float, ...]:
    """`1,2` or `0.5..4`: how many times as fast, in the same forms."""

    def factor(part: str) -> float:
        if not re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", part) or float(part) == 0:
            raise ValueError(f"{part!r} is no speed: write a factor above 0, such as 1 or 0.5")
        return float(part)

    return _doubling(text, factor)


def _doubling(text: str, parse: Callable[[str], Number]) -> tuple[Number, ...]:
    found: list[Number] = []
    for part in text.split(","):
        first, dots, last = (piece.strip() for piece in part.partition(".."))
        low = parse(first)
        high = parse(last) if dots else low
        if high < low:
            raise ValueError(f"{text!r}: the range {part.strip()} runs backwards, write {last}..{first}")
        while low < high:
            found.append(low)
            low *= 2
        found.append(high)
    if len(set(found)) < len(found):
        raise ValueError(f"{text!r}: a level is named twice")
    return tuple(found)


def header(text: str) -> tuple[str, str]:
    """`Name: value`."""
    name, colon, value = text.partition(":")
    name, value = name.strip(), value.strip()
    if (
        not colon
        or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name)
        or not (value.isascii() and value.isprintable())
    ):
        raise ValueError("--header expects 'Name: value', in ASCII")  # the value may be a secret: do not repeat it
    if name.lower() in ("content-length", "transfer-encoding", "accept-encoding"):
        raise ValueError(f"--header {name}: it follows from the request, and is not to be set")
    return name, value


def body(text: str) -> dict[str, Any]:
    """A JSON object to merge into each request."""
    try:
        fields = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"--body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError("--body expects a JSON object, such as '{\"temperature\": 0}'")
    if fields.get("n") not in (None, 1) or fields.get("best_of") not in (None, 1):
        raise ValueError("--body: n and best_of above 1 are refused, the times of several answers cannot be told apart")
    if fields.get("stream", True) is not True:
        raise ValueError("--body: stream must stay true, without a stream there is no token to time")
    return fields


def timeouts(text: str) -> dict[str, float]:
    """`first=60s,idle=30s,total=600s,connect=10s`, any of them."""
    limits = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in ("first", "idle", "total", "connect"):
            raise ValueError(f"--timeout {text!r}: expected first=, idle=, total= or connect= (got {part.strip()!r})")
        try:
            limits[f"{name}_s"] = duration_s(value)
        except ValueError as error:
            raise ValueError(f"--timeout {name}={error}") from None
    return limits


def named(flag: str, parse: Callable[[Text], Value], text: Text) -> Value:
    """Raises ValueError that begins with the flag."""
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{flag} {error}") from None
