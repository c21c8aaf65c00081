"""When each token event was due and when it was written, so that a client can be checked against it.

Memory is bounded: past `max_events` the requests that started first are forgotten. Non-streamed answers have one event.
"""

from array import array
from collections.abc import Iterator

import msgspec


class Record:
    """Times of one completion, in ns of CLOCK_REALTIME."""

    __slots__ = ("arrived_ns", "due_ns", "id", "status", "tokens", "written_ns")

    def __init__(self, completion_id: str, arrived_ns: int) -> None:
        self.id = completion_id
        self.status = "running"  # then "finished" or "aborted"
        self.arrived_ns = arrived_ns
        self.due_ns = array("q")
        self.written_ns = array("q")
        self.tokens = array("i")

    def line(self) -> bytes:
        return (
            msgspec.json.encode(
                {
                    "id": self.id,
                    "status": self.status,
                    "arrived_ns": self.arrived_ns,
                    "due_ns": self.due_ns.tolist(),
                    "written_ns": self.written_ns.tolist(),
                    "tokens": self.tokens.tolist(),
                }
            )
            + b"\n"
        )


class Truth:
    def __init__(self, max_events: int = 2_000_000) -> None:
        self.forgotten = 0  # requests
        self._max_events = max_events
        self._events = 0
        self._records: dict[str, Record] = {}  # in the order of their starts

    def begin(self, completion_id: str, arrived_ns: int) -> Record:
        self._records[completion_id] = record = Record(completion_id, arrived_ns)
        return record

    def add(self, record: Record, due_ns: int, written_ns: int, tokens: int) -> None:
        if record.id not in self._records:
            return
        record.due_ns.append(due_ns)
        record.written_ns.append(written_ns)
        record.tokens.append(tokens)
        self._events += 1
        while self._events > self._max_events:
            oldest = self._records.pop(next(iter(self._records)))
            self._events -= len(oldest.due_ns)
            self.forgotten += 1

    def lines(self) -> Iterator[bytes]:
        for record in self._records.values():
            yield record.line()
