"""One HTTP/1.1 connection whose received bytes carry the kernel's time of arrival.

Rules:
- A read takes what the socket has, stamps it, hands it on and returns. Nothing in it waits, and what nearly every read
  is, one chunk that holds one event, costs little more than the read: that is what makes a thousand streams possible.
- The stamp is that of the last segment in the read (SO_TIMESTAMPNS). Without one, the time of the read stands in, and
  is counted.
- One request at a time. When its message is complete the connection is offered for reuse before anyone is woken.
- Whatever goes wrong ends the request's `Arrivals` with an httpx error, and the connection with it. A fault of ours is
  raised where the answer is awaited: nobody would see it here, and the request would hang until its time limit.
"""

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Callable

import httptools
import httpx

from loadgen.arrivals import Arrivals, Said
from loadgen.clock import wall_ns
from loadgen.reader import Read, Reader
from loadgen.tls import Tls

SO_TIMESTAMPNS = 35  # Linux; Python has no name for it
READ_BYTES = 65536
SMALL_READ_BYTES = 464  # tried first: so small an object comes from Python's own allocator, which shrinks it for less
HEAD_LIMIT_BYTES = 262_144
END_MARKER_GRACE_S = 0.1  # how long a stream may stay open after its end marker before it is taken as ended

_CONTROL_BYTES = socket.CMSG_SPACE(16)
_unpack = struct.Struct("qq").unpack
_TABLE_BYTES = 4096

_Control = list[tuple[int, int, bytes]]


def _chunk_begins() -> list[tuple[bytes, ...]]:
    """How a read of so many bytes begins if it is one whole chunk: with its line of length, in either case."""
    begins: list[tuple[bytes, ...]] = [()] * _TABLE_BYTES
    for length in range(1, _TABLE_BYTES - 8):
        line = b"%x\r\n" % length
        begins[len(line) + length + 2] = (line, line.upper())
    return begins


_BEGIN = _chunk_begins()


class Connection:
    """A connected socket. `on_idle(connection)` offers it for reuse; `closed` says it is gone."""

    def __init__(
        self,
        sock: socket.socket,
        reader: Reader,
        tls: Tls | None,
        on_idle: Callable[["Connection"], None],
        on_closed: Callable[["Connection"], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._fd = sock.fileno()
        self._reader = reader
        self._recvmsg = sock.recvmsg
        self._tls = tls
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._parser = httptools.HttpResponseParser(self)
        self._arrivals: Arrivals | None = None
        self._unsent = memoryview(b"")
        self._parts: list[bytes] = []
        self._head_bytes = 0  # read since the answer began, or since its last body byte: headers or trailers
        self._after_chunk = False  # the last thing parsed was a chunk's end
        self._between_chunks = False
        self._until_close = False
        self._headers_complete = False
        self._complete = False
        self._reusable = False
        self._served = False  # an answer before this one
        self._stamp_ns = 0
        self._lost_by: OSError | None = None  # what the system said when it was last read
        self.closed = False
        self._reader.add(self._fd, self._read, self._take)

    def send(self, message: bytes, arrivals: Arrivals) -> None:
        """Begin one request: `message` is its head and body. The response goes to `arrivals`."""
        self._arrivals = arrivals
        self._headers_complete = self._complete = self._reusable = self._until_close = False
        self._after_chunk = self._between_chunks = False
        self._head_bytes = 0
        arrivals.headers = []
        arrivals.catch_up = self._catch_up
        if self._tls is not None:
            message = self._tls.encrypt(message)
        arrivals.sent_ns = arrivals.last_ns = wall_ns()
        self._write(message)

    def still_idle(self) -> bool:
        """Whether nothing has come since the last answer; an end, or bytes that nobody asked for, close it."""
        self._read_now()
        return not self.closed

    def close(self) -> None:
        """Close at once, whatever is under way."""
        if self.closed:
            return
        self.closed = True
        self._arrivals = None
        self._reader.remove(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()
        self._on_closed(self)
        del self._parser  # it holds this connection, which holds it

    def _write(self, message: bytes) -> None:
        if self._unsent:  # earlier bytes still wait: keep the order
            self._unsent = memoryview(bytes(self._unsent) + message)
            return
        try:
            sent = self._sock.send(message)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            # The server may have answered before it hung up: let the read side find out.
            self._unsent = memoryview(b"")
            self._loop.call_soon(self._fail_unless_answered, error)
            return
        if sent < len(message):
            self._unsent = memoryview(message)[sent:]
            self._loop.add_writer(self._fd, self._on_writable)

    def _on_writable(self) -> None:
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._unsent = memoryview(b"")
            self._loop.remove_writer(self._fd)
            self._fail_unless_answered(error)
            return
        if not self._unsent:
            self._loop.remove_writer(self._fd)

    def _fail_unless_answered(self, error: OSError) -> None:
        self._catch_up()
        if not self.closed and self._arrivals is not None and not self._headers_complete:
            self._lost(error)

    def _catch_up(self) -> None:
        """Take what has come, in its order, though others wait for longer."""
        if not self.closed:
            self._reader.take_now(self._fd)
        self._read_now()

    def _read_now(self) -> None:
        if not self.closed and (read := self._read()) is not None:
            self._take(read)

    def _read(self) -> Read | None:
        try:
            data, control, _, _ = self._recvmsg(SMALL_READ_BYTES, _CONTROL_BYTES)
            if len(data) == SMALL_READ_BYTES:
                data, control = self._with_the_rest(data, control)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            self._lost_by = error.with_traceback(None)  # which holds this frame, which holds this connection
            return wall_ns(), None, b""
        read_ns = wall_ns()
        if not control:
            return read_ns, None, data
        seconds, nanoseconds = _unpack(control[0][2])  # the one option asked for
        return read_ns, seconds * 1_000_000_000 + nanoseconds, data

    def _with_the_rest(self, data: bytes, control: _Control) -> tuple[bytes, _Control]:
        """As one read: cut short, it would have the stamp of a segment whose events it does not hold."""
        try:
            more, its_control, _, _ = self._recvmsg(READ_BYTES, _CONTROL_BYTES)
        except (BlockingIOError, InterruptedError):
            return data, control
        except OSError as error:  # the system says it only once, and gives an empty read after it
            self._lost_by = error.with_traceback(None)
            return data, control
        self._reader.held_long(len(more))
        return (data + more, its_control) if more else (data, control)

    def _take(self, read: Read) -> None:
        read_ns, stamp_ns, data = read
        arrivals = self._arrivals
        if not data or arrivals is None:
            self._on_silent_side(read_ns, data)
            return
        arrivals.last_ns = read_ns
        if stamp_ns is None:
            stamp_ns = read_ns
            arrivals.unstamped_reads += 1
        elif read_ns - stamp_ns > arrivals.read_lag_ns:
            arrivals.read_lag_ns = read_ns - stamp_ns
        try:
            if self._tls is not None and not (data := self._decrypted(stamp_ns, data)):
                return
            size = len(data)
            if (
                self._between_chunks
                and size < _TABLE_BYTES
                and data.startswith(_BEGIN[size])
                and data.endswith(b"\r\n")
            ):
                # One whole chunk, which is not the last: the parser would come to the same, at several times the cost.
                if said := arrivals.feed(stamp_ns, data[data.index(b"\n") + 1 : -2]):
                    self._stamp_ns = stamp_ns
                    self._heed(said, arrivals)
            else:
                self._parse(stamp_ns, data, arrivals)
        except Exception as fault:  # noqa: BLE001 - whoever waits for the answer raises it
            self.close()
            arrivals.fault = fault
            arrivals.finish(read_ns)

    def _on_silent_side(self, read_ns: int, data: bytes) -> None:
        """The end of the connection, or bytes while no answer is awaited: TLS's own, or such as nobody asked for."""
        self._stamp_ns = read_ns
        if not data or self._tls is None or self._decrypted(read_ns, data):
            self._lost()

    def _decrypted(self, stamp_ns: int, data: bytes) -> bytes:
        assert self._tls is not None
        try:
            data, ended = self._tls.decrypt(data)
        except ssl.SSLError as error:
            self._lost(error)
            return b""
        self._flush_tls()
        if ended:  # what came with the end is parsed first
            if data and self._arrivals is not None:
                self._parse(stamp_ns, data, self._arrivals)
            self._lost_by = None  # what follows the end, and may have been read already, takes nothing back
            self._lost()
            return b""
        return data

    def _parse(self, stamp_ns: int, data: bytes, arrivals: Arrivals) -> None:
        """Body bytes are fed to the arrivals, and the answer may turn out to have ended."""
        self._stamp_ns = stamp_ns
        if not self._headers_complete and stamp_ns < arrivals.sent_ns:
            if self._served:  # it came after the last answer, and is none to this one
                self._lost()
                return
            stamp_ns = self._stamp_ns = arrivals.sent_ns  # a server that does not wait to be asked
        self._head_bytes += len(data)
        failure: httpx.RemoteProtocolError | None = None
        try:
            self._parser.feed_data(data)
            self._between_chunks = self._after_chunk and data.endswith(b"\r\n")  # and not within a line of length
        except httptools.HttpParserUpgrade:
            failure = httpx.RemoteProtocolError("the server switches to another protocol")
        except httptools.HttpParserError as error:
            failure = httpx.RemoteProtocolError(f"not a valid HTTP response: {error}")
        if failure is not None and self._complete:  # rubbish after the answer spoils the connection only
            self._reusable = False
            failure = None
        said: Said = None
        if self._parts:
            body = b"".join(self._parts)
            self._parts.clear()
            self._head_bytes = 0
            said = arrivals.feed(stamp_ns, body)
        if self._complete or failure is not None:
            self._end(arrivals, failure)
        elif said is not None:
            self._heed(said, arrivals)
        elif self._head_bytes > HEAD_LIMIT_BYTES:
            self._end(arrivals, httpx.RemoteProtocolError(f"response headers over {HEAD_LIMIT_BYTES} bytes"))

    def _heed(self, said: Said, arrivals: Arrivals) -> None:
        if said == "broken":
            self._reusable = False
            self._end(arrivals, httpx.RemoteProtocolError("the answer cannot be read"))
        else:
            # Some servers keep the connection open after [DONE]: do not wait for them, but do let a terminating chunk
            # that is on its way keep the connection usable.
            self._loop.call_later(END_MARKER_GRACE_S, self._end_unless_complete, arrivals)

    def _end_unless_complete(self, arrivals: Arrivals) -> None:
        if self._arrivals is arrivals:
            self.close()
            arrivals.finish(arrivals.last_ns)

    def _end(self, arrivals: Arrivals, error: httpx.TransportError | None) -> None:
        self._arrivals = None
        if error is None and self._reusable and not self._unsent and not self.closed:
            self._served = True
            self._on_idle(self)
        else:
            self.close()
        arrivals.finish(self._stamp_ns, error)

    def _lost(self, error: OSError | None = None) -> None:
        error = error or self._lost_by
        arrivals = self._arrivals
        self.close()
        if arrivals is None:
            return
        end_ns = self._stamp_ns = max(self._stamp_ns, arrivals.last_ns)
        if error is None and self._headers_complete and self._until_close:
            arrivals.finish(end_ns)
        elif self._headers_complete:
            arrivals.finish(end_ns, httpx.ReadError(f"connection lost in the middle of the answer ({_why(error)})"))
        elif self._head_bytes:
            text = f"connection lost in the middle of the response headers ({_why(error)})"
            arrivals.finish(end_ns, httpx.RemoteProtocolError(text))
        elif isinstance(error, ssl.SSLError):  # such as a client certificate that the server asks for
            refused = httpx.ConnectError(f"TLS connection ended by the server: {_why(error)}")
            refused.__cause__ = error
            arrivals.finish(end_ns, refused)
        else:
            arrivals.finish(end_ns, httpx.ReadError(f"connection lost before any answer ({_why(error)})"))

    def _flush_tls(self) -> None:
        assert self._tls is not None
        if pending := self._tls.outgoing.read():  # a key update asks for an answer
            self._write(pending)

    # What httptools calls while it parses. A second answer in the same read is none of ours.

    def on_message_begin(self) -> None:
        if self._complete:
            self._reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._arrivals is not None and not self._headers_complete:  # else a trailer
            self._arrivals.headers.append((name, value))

    def on_headers_complete(self) -> None:
        arrivals = self._arrivals
        status = self._parser.get_status_code()
        if arrivals is None or self._complete or status < 200:  # 100 Continue, 103 Early Hints: the answer is to come
            return
        names = {name.lower() for name, _ in arrivals.headers}
        self._until_close = b"content-length" not in names and b"transfer-encoding" not in names
        self._headers_complete = True
        arrivals.status = status
        arrivals.headers_ns = self._stamp_ns
        arrivals.wake()

    def on_chunk_header(self) -> None:
        self._after_chunk = False

    def on_chunk_complete(self) -> None:
        self._after_chunk = True

    def on_body(self, body: bytes) -> None:
        if not self._complete:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._complete:
            return
        if self._headers_complete:
            self._complete = True
            self._reusable = self._parser.should_keep_alive()  # right only here: afterwards the parser has forgotten
        elif self._arrivals is not None:
            self._arrivals.headers = []


def _why(error: OSError | None) -> str:
    return "closed by the server" if error is None else reason(error)


def reason(error: OSError) -> str:
    """What the system says of it; asyncio puts a text of its own in the place of the system's."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return (os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)).lower()
