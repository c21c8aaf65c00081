"""The run directory, read back: run.json, requests.jsonl and levels.jsonl.

Rows are streamed and kept as columns per level, not as objects: 40 million events fit in memory that way.
"""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from analysis.hardware import Hardware  # noqa: TC001 - a field's type is read when the struct is made

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# History of the run format. 1: the first. What came later without a break is absent in older runs, and read as none:
#   rows      class, item, group, shared_tokens, turn, session, left    mixes, data sets, conversations, leaving users
#   levels    due, dropped, waited_max, ended_by "schedule"             the open loop
#             ended_by "enough"                                     levels that end when their sample suffices
#   header    arrivals, workload.classes, levels[].speed                laws of arrival, mixes, traces
#             seeks, bounds                                             runs that decide on their levels
#             hardware                                                  floors
FORMAT = 1

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Strings = npt.NDArray[np.str_]
RowType = TypeVar("RowType")


class WorkloadClass(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = None
    weight: float | None = None
    input: str | None = None
    output: str | None = None
    slo: tuple[str, ...] | None = None


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    input: str | None = None
    output: str | None = None
    digest: str | None = None
    classes: tuple[WorkloadClass, ...] = ()


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A level that the run meant to measure: `concurrency` in the closed loop, `rate_per_s` in the open one (mean of
    the schedule), at `speed` times a trace's own."""

    level: int
    concurrency: int | None = None
    rate_per_s: float | None = None
    speed: float | None = None

    @property
    def open_loop(self) -> bool:
        return self.rate_per_s is not None or self.speed is not None


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """run.json."""

    format: int
    loadgen: str
    started_at: str
    target: str
    model: str | None = None
    api: str
    hardware: Hardware | None = None
    workload: Workload
    arrivals: str | None = None  # law of the open loop
    seed: int
    slo: tuple[str, ...] | None = None
    clock: Literal["kernel", "user"]
    host: dict[str, Any] = {}
    server: dict[str, Any] = {}
    options: dict[str, Any] = {}
    levels: tuple[Planned, ...] = ()
    seeks: Literal["verdict", "concurrency", "rate"] | None = None  # levels were decided as the run went on
    bounds: tuple[float, float] | None = None  # of the loads that a search may come to
    salt: str | None = None

    def planned(self, level: int) -> Planned:
        return next((planned for planned in self.levels if planned.level == level), Planned(level=level))


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A row of levels.jsonl; times in microseconds since the run's start.

    Of the open loop: `due` requests were scheduled in the level, of those `dropped` never sent; at most `waited_max`
    of them waited at once for --max-concurrency (None: no such cap).
    """

    level: int
    start_us: int
    end_us: int
    ended_by: str
    cpu_us: int | None = None
    clock_step_us: int | None = None
    due: int | None = None
    dropped: int | None = None
    waited_max: int | None = None


class Failure(msgspec.Struct, frozen=True):
    kind: str
    message: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of requests.jsonl. `due_us`, `sent_us`, `connect_us` count from the run's start, others from `sent_us`."""

    level: int
    index: int
    phase: Literal["warmup", "measure"]
    status: Literal["ok", "failed", "cancelled"]
    error: Failure | None = None
    due_us: int | None = None
    sent_us: int | None = None
    connect_us: int | None = None
    end_us: int | None = None
    events_us: list[int] = []
    events_tokens: list[float] | None = None
    answer_event: int | None = None
    bounds: int | None = None
    read_lag_us: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    tokens_from: str | None = None
    want_input_tokens: int | None = None
    want_output_tokens: int | None = None
    class_name: str | None = msgspec.field(name="class", default=None)
    item: int | None = None  # place in the data set
    group: int | None = None  # of those that share a prefix
    shared_tokens: int = 0
    turn: int = 0
    session: int | None = None  # index of the conversation's first turn; the next turn has the next index
    left: bool = False  # cancelled by its user, not by the end of the level

    def __post_init__(self) -> None:
        if self.events_tokens is not None and len(self.events_tokens) != len(self.events_us):
            raise ValueError(f"{len(self.events_tokens)} events_tokens for {len(self.events_us)} events_us")
        if self.answer_event is not None and not 0 <= self.answer_event < len(self.events_us):
            raise ValueError(f"answer_event {self.answer_event} of {len(self.events_us)} events")


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one level as columns, in the order of `index`; what a row does not know is NaN here ("" in a string).

    The events of request i are `events_us[starts[i]:starts[i + 1]]`, in microseconds since it was sent;
    `events_tokens` has the same places, NaN where the share of an event is unknown.
    A request without a due time was due when it was sent.
    """

    index: Ints
    phase: Strings
    status: Strings
    error: Strings
    due_us: Floats
    sent_us: Floats
    connect_us: Floats
    end_us: Floats
    starts: Ints
    events_us: Ints
    events_tokens: npt.NDArray[np.float32]
    answer_event: Floats
    bounds: Floats
    read_lag_us: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    reasoning_tokens: Floats
    cached_tokens: Floats
    tokens_from: Strings
    want_input_tokens: Floats
    want_output_tokens: Floats
    class_name: Strings
    item: Floats
    group: Floats
    shared_tokens: Floats
    turn: Floats
    session: Floats
    left: Bools
    messages: dict[str, str]  # of each kind of error, the message of the first request that had it

    @property
    def events(self) -> Ints:
        """How many events each request has."""
        return np.diff(self.starts)

    @property
    def measured(self) -> Bools:
        return np.strings.equal(self.phase, "measure")

    @property
    def ok(self) -> Bools:
        return np.strings.equal(self.status, "ok")

    @property
    def failed(self) -> Bools:
        return np.strings.equal(self.status, "failed")

    @property
    def cancelled(self) -> Bools:
        """Cut by the end of the level; users who left are apart."""
        return np.strings.equal(self.status, "cancelled") & ~self.left


class Run(msgspec.Struct, frozen=True, kw_only=True):
    header: Header
    ended: dict[int, Ended]
    requests: dict[int, Requests]  # by level; a level without a row is not in it
    cut_rows: int  # last rows of requests.jsonl that a crash cut in the middle: 0 or 1


_NUMBERS = (
    "due_us", "sent_us", "connect_us", "end_us", "answer_event", "bounds", "read_lag_us", "prompt_tokens",
    "output_tokens", "reasoning_tokens", "cached_tokens", "want_input_tokens", "want_output_tokens", "item", "group",
    "shared_tokens", "turn", "session", "left",
)  # fmt: skip
_WORDS = ("phase", "status", "tokens_from", "error", "class_name")


class _Columns:
    """Collects the rows of one level: each leaves numbers in arrays and no objects of its own but two small arrays."""

    def __init__(self) -> None:
        self.index = array("q")
        self.numbers = array("d")
        self.words: list[str] = []
        self.messages: dict[str, tuple[int, str]] = {}
        self.events_us: list[Ints] = []
        self.events_tokens: list[npt.NDArray[np.float32]] = []

    def add(self, row: Row) -> None:
        self.index.append(row.index)
        values = (getattr(row, name) for name in _NUMBERS)
        self.numbers.extend(np.nan if value is None else value for value in values)
        kind = "" if row.error is None else row.error.kind
        self.words += map(sys.intern, (row.phase, row.status, row.tokens_from or "", kind, row.class_name or ""))
        shares = row.events_tokens
        self.events_us.append(np.array(row.events_us, np.int64))
        self.events_tokens.append(
            np.full(len(row.events_us), np.nan, np.float32) if shares is None else np.array(shares, np.float32)
        )
        if row.error is not None:
            self.messages[kind] = min(
                self.messages.get(kind, (row.index, row.error.message)), (row.index, row.error.message)
            )

    def requests(self) -> Requests:
        index = np.array(self.index, np.int64)
        order = np.argsort(index, kind="stable")
        numbers = np.array(self.numbers, np.float64).reshape(-1, len(_NUMBERS))[order].T
        words = np.array(self.words, np.str_).reshape(-1, len(_WORDS))[order].T
        columns: dict[str, Any] = dict(zip((*_NUMBERS, *_WORDS), (*numbers, *words), strict=True))
        columns["left"] = (columns["left"] == 1) & (columns["status"] == "cancelled")
        columns["due_us"] = np.where(np.isnan(columns["due_us"]), columns["sent_us"], columns["due_us"])
        events_us = [self.events_us[i] for i in order]
        return Requests(
            index=index[order],
            starts=np.cumsum([0, *map(len, events_us)], dtype=np.int64),
            events_us=np.concatenate([np.empty(0, np.int64), *events_us]),
            events_tokens=np.concatenate([np.empty(0, np.float32), *(self.events_tokens[i] for i in order)]),
            messages={kind: message for kind, (_, message) in sorted(self.messages.items())},
            **columns,
        )


NO_REQUESTS = _Columns().requests()
_NOT_BY_ROW = ("starts", "events_us", "events_tokens", "messages")


def subset(requests: Requests, chosen: Bools) -> Requests:
    """The chosen rows, with their events."""
    whole = {name: getattr(requests, name) for name in Requests.__struct_fields__}
    inside = np.repeat(chosen, requests.events)
    columns = {name: values[chosen] for name, values in whole.items() if name not in _NOT_BY_ROW}
    return Requests(
        starts=np.concatenate(([0], np.cumsum(requests.events[chosen], dtype=np.int64))),
        events_us=requests.events_us[inside],
        events_tokens=requests.events_tokens[inside],
        messages=requests.messages,
        **columns,
    )


def read(directory: Path, only: int | None = None) -> Run:
    """The run in `directory`; of `only` one level where that is given (enough while a run is going on).

    Raises ValueError with the file, the line and what to do.
    """
    header = read_header(directory)
    ended = {row.level: row for row in rows(directory / "levels.jsonl", Ended) if row is not None}
    path = directory / "requests.jsonl"
    if not path.is_file():
        raise ValueError(f"{path} is missing: the run sent nothing, or this is not the whole run directory")
    columns: dict[int, _Columns] = {}
    cut_rows = 0
    for row in rows(path, Row):
        if row is None:
            cut_rows += 1
        elif only is None or row.level == only:
            columns.setdefault(row.level, _Columns()).add(row)
    requests = {level: columns.pop(level).requests() for level in sorted(columns)}
    return Run(header=header, ended=ended, requests=requests, cut_rows=cut_rows)


def read_header(directory: Path) -> Header:
    """run.json alone. Raises ValueError where it is missing, broken or of a newer format."""
    path = directory / "run.json"
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a directory: give the directory that `loadgen run` wrote")
    if not path.is_file():
        raise ValueError(f"{directory} has no run.json: give the directory that `loadgen run` wrote")
    text = path.read_bytes()
    try:
        found = msgspec.json.decode(text, type=dict[str, Any]).get("format")
        if isinstance(found, int) and found > FORMAT:
            raise ValueError(f"{path} has format {found}, this loadgen reads up to {FORMAT}: use a newer loadgen")
        return msgspec.json.decode(text, type=Header)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def rows(path: Path, kind: type[RowType]) -> Iterator[RowType | None]:
    """Each line's row; None for a last line that a crash cut (no line end, and no whole JSON). Missing file: no row."""
    if not path.is_file():
        return
    decode = msgspec.json.Decoder(kind).decode
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield decode(line)
            except msgspec.DecodeError as error:
                whole = isinstance(error, msgspec.ValidationError)
                if line.endswith(b"\n") or whole:
                    raise ValueError(f"{path}, line {number}: {error}; mend or remove that line") from None
                yield None
