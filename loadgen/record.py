"""The run format: what is written, and when. `analysis/records.py` reads it.

    run.json        the header, written before the first request of the load
    requests.jsonl  one row per request, appended as it ends
    levels.jsonl    one row per level, appended as it ends: what neither the header nor a request's row can hold

History. 1: the first format.
"""

import contextlib
import os
import re
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
]
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
    """Closed loop: `concurrency`. Open loop: `rate_per_s` (mean of the schedule), at `speed` times a trace's own."""

    level: int
    concurrency: int | None
    rate_per_s: float | None = None
    speed: float | None = None


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
    workload: dict[str, Any]
    arrivals: str | None = None  # the law of the open loop
    levels: list[LevelPlan]
    seed: int
    salt: str
    slo: list[str]
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
        self.directory = directory
        (directory / "run.json").write_bytes(msgspec.json.format(msgspec.json.encode(header)) + b"\n")
        self._requests = _append_to(directory / "requests.jsonl")
        self._levels = _append_to(directory / "levels.jsonl")
        self._pending: list[bytes] = []
        self._encode = msgspec.json.Encoder().encode

    def add(self, row: Row) -> None:
        self._pending.append(self._encode(row))

    def add_level(self, row: LevelRow) -> None:
        self.flush()
        _write(self._levels, self._encode(row) + b"\n")

    def flush(self) -> None:
        """Hand the rows added since the last call to the kernel: what it has survives this process."""
        if self._pending:
            rows = b"\n".join((*self._pending, b""))
            self._pending.clear()
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


def _append_to(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)


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
