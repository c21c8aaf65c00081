"""The run format: what is written, and when. `analysis/records.py` reads it.

    run.json        the header, written before the first request of the load
    requests.jsonl  one row per request, appended as it ends
    levels.jsonl    one row per level, appended as it ends: what neither the header nor a request's row can hold

Where levels are decided as the run goes on, the header is written again, whole, before each of them; such a run can be
gone on with later.

History. 1: the first format.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec

FORMAT = 1

Phase = Literal["warmup", "measure"]
Status = Literal["ok", "failed", "cancelled"]
EndedBy = Literal[
    "requests",
    "duration",
    "schedule",  # the trace or the data set was used up
    "interrupt",
    "errors",
    "enough",  # --requests enough: its sample suffices
    "over-saturated",  # the open loop alone: what was in flight grew without end
]
Seeks = Literal["verdict", "concurrency", "rate"]  # of a load, or the largest one that holds
Kind = Literal[
    "connect",  # refused, unreachable, or lost before any byte of an answer
    "tls",
    "timeout_connect",
    "timeout_first",
    "timeout_idle",
    "timeout_total",
    "http_status",
    "rate_limited",  # 429, or 503 with Retry-After
    "stream_error",  # the server reported an error inside the stream
    "truncated",  # the stream ended without a terminal marker
    "protocol",  # not HTTP, not SSE, not JSON
    "empty",  # an answer without output
    "client",  # files, memory, our bug
]


class Failure(msgspec.Struct, frozen=True):
    kind: Kind
    message: str


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. due, sent and connect in us since the run's start; headers, end and events in us since sent.

    What has a default is left out where it has that value: most requests are in no mix, conversation or data set.
    """

    level: int
    index: int
    phase: Phase
    status: Status
    error: Failure | None
    http_status: int | None
    retries: int
    due_us: int
    sent_us: int | None
    connect_us: int | None
    headers_us: int | None
    end_us: int | None
    events_us: list[int]
    events_tokens: list[int] | None
    answer_event: int | None
    bounds: int
    read_lag_us: int | None
    prompt_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    cached_tokens: int | None
    tokens_from: Literal["usage", "tokenizer", "events"] | None
    want_input_tokens: int | None
    want_output_tokens: int
    finish_reason: str | None
    class_name: str | None = msgspec.field(name="class", default=None)
    item: int | None = None  # place in the data set
    group: int | None = None  # of those that share a prefix
    shared_tokens: int = 0
    turn: int = 0
    session: int | None = None  # index of the conversation's first turn; None: no conversation
    left: bool = False  # cancelled by its user, as planned, and not by the end of the level


class LevelPlan(msgspec.Struct, frozen=True):
    """Closed loop: `concurrency`. Open loop: `rate_per_s` (mean of the schedule), at `speed` times a trace's own.

    `requests` and `duration_s`, where there are any, say when this level ends, and not what the run's options say.
    """

    level: int
    concurrency: int | None
    rate_per_s: float | None = None
    speed: float | None = None
    requests: int | None = None
    duration_s: float | None = None


class LevelRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One level that ended. Times in us since the run's start; `cpu_us` is the processor time
    in it of the client's process, of the busiest where there are several.

    Open loop: of the `due` requests that the schedule had due before the level ended, `dropped` were never sent; at
    most `waited_max` waited at once for the cap. Later turns of conversations are in no schedule, and not counted.
    """

    level: int
    start_us: int
    end_us: int
    ended_by: EndedBy
    cpu_us: int
    clock_step_us: int
    due: int | None = None
    dropped: int | None = None
    waited_max: int | None = None


class Header(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    loadgen: str
    started_at: str
    target: str
    model: str
    api: str
    hardware: dict[str, Any] | None = None  # `analysis.hardware.Hardware`, whole
    workload: dict[str, Any]
    arrivals: str | None = None  # the law of the open loop
    levels: list[LevelPlan]
    seed: int
    salt: str
    slo: list[str]
    seeks: Seeks | None = None  # levels are decided as the run goes on
    bounds: tuple[float, float] | None = None  # of the loads that it may come to
    clock: Literal["kernel", "user"]
    host: dict[str, Any]
    server: dict[str, Any]
    options: dict[str, Any]


class RunWriter:
    """The files of one run directory, which is made here and was not there before. Raises ValueError, OSError."""

    def __init__(self, directory: Path, header: Header) -> None:
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            raise ValueError(f"{directory} exists already: a run is never overwritten, choose another --out") from None
        except OSError as error:
            raise ValueError(f"cannot make the run directory {directory}: {error.strerror}") from None
        self._open(directory, header)
        self._write_header()

    @classmethod
    def resumed(cls, directory: Path, header: Header) -> "RunWriter":
        """Of a run that is there and asked for the same as `header`, with the salt and the levels that it has. Raises
        ValueError where it did not, or is being written."""
        old = _header_of(directory)
        _check_same(directory, old, header)
        writer = cls.__new__(cls)
        writer._open(directory, old)
        return writer

    def _open(self, directory: Path, header: Header) -> None:
        self.directory = directory
        self.header = header
        self._requests = _append_to(directory / "requests.jsonl")
        self._levels = _append_to(directory / "levels.jsonl")
        self._pending: list[bytes] = []
        self._encode = msgspec.json.Encoder().encode

    def _write_header(self) -> None:
        """Whole or not at all: a crash leaves the old one."""
        new = self.directory / "run.json.new"
        with _named(new):
            new.write_bytes(msgspec.json.format(msgspec.json.encode(self.header)) + b"\n")
        new.replace(self.directory / "run.json")

    def add_plan(self, plan: LevelPlan) -> None:
        """Of a level that is about to begin."""
        if plan not in self.header.levels:
            self.header.levels.append(plan)
            self._write_header()

    def add(self, row: Row) -> None:
        self._pending.append(self._encode(row))

    def add_level(self, row: LevelRow) -> None:
        self.flush()
        with _named(self.directory / "levels.jsonl"):
            _write(self._levels, self._encode(row) + b"\n")

    def flush(self) -> None:
        """Hand the rows added since the last call to the kernel: what it has survives this process."""
        if self._pending:
            rows = b"\n".join((*self._pending, b""))
            self._pending.clear()
            with _named(self.directory / "requests.jsonl"):
                _write(self._requests, rows)

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with contextlib.suppress(OSError) if error else contextlib.nullcontext():
                self.flush()
        finally:
            os.close(self._requests)
            os.close(self._levels)


_ASKED = ("target", "model", "api", "hardware", "workload", "arrivals", "seed", "slo", "clock", "seeks", "bounds")


def _check_same(directory: Path, old: Header, new: Header) -> None:
    for name in _ASKED:
        if getattr(old, name) != getattr(new, name):
            raise ValueError(
                f"{directory} holds a run with another {name}: choose another --out, or the same flags to go on with it"
            )


def _header_of(directory: Path) -> Header:
    path = directory / "run.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Header)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; choose another --out") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} cannot be read ({error}): choose another --out") from None


def _append_to(path: Path) -> int:
    """The file, locked; what a crash has cut is taken off its end. Raises ValueError where another process writes."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise ValueError(f"{path.parent} is being written by another process: choose another --out") from None
    whole = os.fstat(file).st_size
    while whole and os.pread(file, 1, whole - 1) != b"\n":
        whole -= 1
    os.truncate(file, whole)
    return file


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """The system does not say which file a write was to."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


_SHORTEST_SECRET = 4
_SECRET_NAME = re.compile(
    r"auth|bearer|cookie|credential|jwt|passw|passphrase|pwd|secret|signature|^sig$|key$|token$", re.IGNORECASE
)


def names_a_secret(name: str) -> bool:
    """Whether the value of a header, query parameter or body field of this name is kept out of everything written."""
    return _SECRET_NAME.search(name) is not None


class Secrets:
    """Texts that must appear nowhere: `hide` takes them out of a message."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = sorted({text for text in texts if len(text) >= _SHORTEST_SECRET}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._texts))) if self._texts else None

    def hide(self, message: str) -> str:
        if self._pattern is None:
            return message
        return "...".join(map(self._hide_cut, self._pattern.sub("***", message).split("...")))

    def _hide_cut(self, part: str) -> str:
        """`part` may have been shortened in the middle of a secret."""
        for text in self._texts:
            for length in range(len(text) - 1, _SHORTEST_SECRET - 1, -1):
                if part.endswith(text[:length]):
                    return part[:-length] + "***"
        return part
