"""Traces: when requests came to a real service, and how long they were.

The form is found from the first line that is neither blank nor a comment (`#`):

    plain      a time on each line: seconds, or ISO 8601
    Azure      CSV with TIMESTAMP, ContextTokens, GeneratedTokens          Azure LLM inference, 2023, 2024 and 2025
    BurstGPT   CSV with Timestamp, Request tokens, Response tokens         v1 and v2
    Mooncake   JSON lines with timestamp (ms), input_length, output_length, hash_ids (one for each 512 tokens begun)

Other columns and keys are not read: the images of Azure 2025, the sessions of BurstGPT v2. A time without a zone is
taken for UTC, and what is finer than a microsecond is dropped (Azure 2023 has tenths).

A request without input or without output tokens is left out, and counted: it failed (2 % of BurstGPT v1, 7 % of its
third file), so that nobody knows how long its answer would have been, and nothing can be sent without a token. What
remains of BurstGPT is what its authors publish as "without fails".
"""

import hashlib
import io
import math
from array import array
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from workloads.lengths import LONGEST

MOONCAKE_BLOCK_TOKENS = 512

_LONGEST_US = 10 * 366 * 86400 * 10**6  # 10 years: longer is a mix of units
_LATEST_S = 1e11
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_WITHOUT_ZONE = _EPOCH.replace(tzinfo=None)
_FORMS = (
    "a time in seconds or ISO 8601, the header of a CSV file of Azure (TIMESTAMP,ContextTokens,GeneratedTokens) or "
    "BurstGPT (Timestamp,...,Request tokens,Response tokens,...), or a JSON object of Mooncake"
)
_CSV_COLUMNS = (
    ("timestamp", "contexttokens", "generatedtokens"),
    ("timestamp", "request tokens", "response tokens"),
)


class Trace(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Arrays have one entry for each request, in order of time."""

    name: str
    offsets_us: NDArray[np.int64]  # since the first request, sorted
    input_tokens: NDArray[np.int64] | None  # at least 1; None: the form does not say
    output_tokens: NDArray[np.int64] | None
    blocks: tuple[tuple[int, ...], ...] | None  # of the prompt: those that start with the same numbers share a prefix
    block_tokens: int | None
    digest: str  # SHA-256 of the file, in hex
    left_out: int = 0  # requests that had no input or no output tokens


_Tokens = Annotated[int, msgspec.Meta(ge=0, le=LONGEST)]
_Row = tuple[int, int | None, int | None, tuple[int, ...] | None]  # time in us, input and output tokens, blocks
_Parse = Callable[[str], _Row]


class _Mooncake(msgspec.Struct):
    timestamp: float
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: tuple[int, ...]


def read(path: Path) -> Trace:
    """Raises ValueError that names the file, the line, and what was expected there."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            lines = io.TextIOWrapper(file, encoding="utf-8-sig", errors="backslashreplace")
            return _gather(path, lines, digest)
    except OSError as error:
        raise ValueError(f"trace {path}: {error.strerror or error}") from None


def _gather(path: Path, lines: Iterable[str], digest: str) -> Trace:
    times_us, inputs, outputs = array("q"), array("q"), array("q")
    blocks: list[tuple[int, ...]] = []
    last_us: float = -math.inf
    left_out = number = 0
    parse: _Parse | None = None
    try:
        for number, line in enumerate(lines, 1):  # noqa: B007 (used where it fails)
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            if parse is None:
                parse, is_header = _form(text)
                if is_header:
                    continue
            at_us, input_tokens, output_tokens, ids = parse(text)
            if at_us < last_us:
                raise ValueError("earlier than the line before: expected lines in order of time, sort them first")
            last_us = at_us
            if input_tokens == 0 or output_tokens == 0:
                left_out += 1
                continue
            times_us.append(at_us)
            if input_tokens is not None and output_tokens is not None:
                inputs.append(input_tokens)
                outputs.append(output_tokens)
            if ids is not None:
                blocks.append(ids)
        if times_us and times_us[-1] - times_us[0] > _LONGEST_US:
            raise ValueError("more than 10 years after the first: expected all times in the same unit")
    except ValueError as error:
        raise ValueError(f"trace {path}, line {number}: {error}") from None
    if not times_us:
        only = f"all {left_out} had no input or no output tokens" if left_out else f"expected {_FORMS}"
        raise ValueError(f"trace {path} has no request: {only}")
    times = _frozen(times_us)
    return Trace(
        name=path.stem,
        offsets_us=_frozen(times - times[0]),
        input_tokens=_frozen(inputs) if inputs else None,
        output_tokens=_frozen(outputs) if outputs else None,
        blocks=tuple(blocks) if blocks else None,
        block_tokens=MOONCAKE_BLOCK_TOKENS if blocks else None,
        digest=digest,
        left_out=left_out,
    )


def _frozen(numbers: "array[int] | NDArray[np.int64]") -> NDArray[np.int64]:
    view = np.frombuffer(numbers, dtype=np.int64)
    view.flags.writeable = False
    return view


def _form(first: str) -> tuple[_Parse, bool]:
    """How to parse each line, and whether this first one is a header. Raises ValueError."""
    if first.startswith("{"):
        return _mooncake, False
    names = [name.strip().lower() for name in _cells(first)]
    for columns in _CSV_COLUMNS:
        if set(columns) <= set(names):
            return _csv(len(names), *(names.index(column) for column in columns)), True
    try:
        _time_us(first)
    except ValueError:
        raise ValueError(f"{_shown(first)}: expected {_FORMS}") from None
    return lambda line: (_time_us(line), None, None, None), False


def _csv(columns: int, time: int, input_tokens: int, output_tokens: int) -> _Parse:
    def parse(line: str) -> _Row:
        cells = _cells(line)
        if len(cells) != columns:
            raise ValueError(f"{_shown(line)}: expected {columns} columns, as in the header")
        return _time_us(cells[time]), _tokens(cells[input_tokens]), _tokens(cells[output_tokens]), None

    return parse


def _cells(line: str) -> list[str]:
    return line.replace('"', "").split(",")  # no form has a comma within a cell


def _mooncake(line: str) -> _Row:
    try:
        row = msgspec.json.decode(line, type=_Mooncake)
    except msgspec.DecodeError as error:
        raise ValueError(
            f"{error}: expected timestamp (ms), input_length, output_length and hash_ids in a JSON object"
        ) from None
    expected = -(-row.input_length // MOONCAKE_BLOCK_TOKENS)
    if len(row.hash_ids) != expected:
        raise ValueError(
            f"{len(row.hash_ids)} hash_ids for {row.input_length} input tokens: expected {expected}, one for each "
            f"{MOONCAKE_BLOCK_TOKENS} tokens begun"
        )
    if not abs(row.timestamp) <= _LATEST_S * 1000:
        raise ValueError(f"timestamp {row.timestamp:g}: expected milliseconds")
    return round(row.timestamp * 1000), row.input_length, row.output_length, row.hash_ids


def _time_us(text: str) -> int:
    """Microseconds since 1970, or since the zero of the seconds."""
    try:
        if ":" in text:
            moment = datetime.fromisoformat(text)
            since = moment - (_EPOCH if moment.tzinfo else _EPOCH_WITHOUT_ZONE)
            return (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds
        seconds = float(text)
        if abs(seconds) <= _LATEST_S:
            return round(seconds * 1e6)
    except ValueError:
        pass
    raise ValueError(f"time {_shown(text)}: expected seconds, or ISO 8601 such as 2024-05-10 00:00:00.009930+00:00")


def _tokens(text: str) -> int:
    try:
        tokens = int(text)
    except ValueError:
        tokens = -1
    if not 0 <= tokens <= LONGEST:
        raise ValueError(f"length {_shown(text)}: expected a whole number of tokens, from 0 to {LONGEST}")
    return tokens


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def replay_us(trace: Trace, speed: float) -> NDArray[np.int64]:
    """Offsets of the trace at `speed` times its own rate: at 2, in half its time. Raises ValueError."""
    if not 0 < speed < math.inf:
        raise ValueError(f"speed {speed:g}: expected more than 0 (1 is the trace's own, 2 is twice its rate)")
    if trace.offsets_us[-1] / speed > _LONGEST_US:
        raise ValueError(f"speed {speed:g}: the trace would take more than 10 years")
    return np.rint(trace.offsets_us / speed).astype(np.int64)
