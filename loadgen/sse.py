"""Server-sent events out of bytes, by the rules of the WHATWG HTML standard (section 9.2), whatever the chunking.

    a line ends with LF, CR LF or CR; a byte order mark at the start is skipped
    "data: x" and "data:x" are the same; data lines of one event are joined by LF
    a line that begins with ":" is a comment; id, retry and unknown fields are ignored; "event" is kept
    a blank line ends the event; an event without data is none

No I/O. An event is a pair (name, data) of bytes; the name is empty where the stream gives none.
"""

Event = tuple[bytes, bytes]

LINE_LIMIT_BYTES = 16 * 2**20
_LF, _CR = b"\n\r"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SHORT_BYTES = 64  # a line with nothing but a marker and blanks in it


class LineTooLongError(ValueError):
    """A line, or the data of one event, is over the limit."""


class Decoder:
    def __init__(self, line_limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self._limit_bytes = line_limit_bytes
        self._rest: list[bytes] = []  # pieces of a line whose end has not arrived
        self._rest_bytes = 0
        self._name = b""
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._at_start = True
        self._after_cr = False
        self.between_events = True  # all lines fed belong to events that have been given

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes. Raises LineTooLongError."""
        lines = chunk.splitlines()  # of bytes: at LF, CR LF and CR, as the standard has it
        # What nearly every chunk of a real server is: one event of one data line.
        if (
            self.between_events
            and len(lines) == 2
            and not lines[1]
            and chunk[-1] == _LF
            and lines[0][:6] == b"data: "
            and len(chunk) <= self._limit_bytes
        ):
            self._at_start = self._after_cr = False
            return [(b"", lines[0][6:])]
        return self._feed_lines(chunk, lines)

    def ends_with(self, data: bytes) -> bool:
        """Whether all that the event under way would give, if the stream ended here, is the short `data`."""
        if self._rest_bytes > _SHORT_BYTES:  # not to be joined again with each of its pieces
            return False
        line = b"".join(self._rest).removeprefix(b"data:").strip()
        return (self._data == [data] and not line) or (line == data and not self._data)

    def flush(self) -> list[Event]:
        """The event that the end of the stream cut off: the standard drops it, but servers forget the last line."""
        events: list[Event] = []
        if self._rest:
            line = b"".join(self._rest)
            self._rest = []
            self._take(line, events)
        self._take(b"", events)
        return events

    def _feed_lines(self, chunk: bytes, lines: list[bytes]) -> list[Event]:
        if self._after_cr and chunk.startswith(b"\n"):
            del lines[0]  # the second half of a CR LF that was split between two chunks
        if chunk:
            self._after_cr = chunk[-1] == _CR
        rest = lines.pop() if lines and chunk[-1] not in (_LF, _CR) else b""
        events: list[Event] = []
        for line in lines:
            if self._rest:
                self._rest.append(line)
                line = b"".join(self._rest)
                self._rest = []
                self._rest_bytes = 0
            self._take(line, events)
        if rest:
            self._rest.append(rest)
            self._rest_bytes += len(rest)
            self._check(self._rest_bytes)
        self.between_events = not (self._rest or self._data or self._name)
        return events

    def _take(self, line: bytes, events: list[Event]) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        self._check(len(line))
        if not line:
            if self._data:
                events.append((self._name, b"\n".join(self._data)))
                self._data = []
                self._data_bytes = 0
            self._name = b""
            return
        field, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if field == b"data":
            self._data.append(value)
            self._data_bytes += len(value) + 1  # and the LF that joins it
            self._check(self._data_bytes)
        elif field == b"event":
            self._name = value

    def _check(self, size: int) -> None:
        if size > self._limit_bytes:
            raise LineTooLongError(f"an event of over {self._limit_bytes} bytes")
