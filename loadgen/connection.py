"""One HTTP/1.1 connection whose received bytes carry the kernel's time of arrival.

Rules:
- A read takes what the socket has, stamps it and returns. Nothing in it waits. What cannot end an answer (whole chunks
  of whole events) is not even parsed there: that is done for many reads at once, when the answer ends or someone asks.
- The stamp is that of the last segment in the read (SO_TIMESTAMPNS). Without one, the time of the read stands in, and
  is counted.
- One request at a time. When its message is complete the connection is offered for reuse before anyone is woken.
- Whatever goes wrong ends the request's `Arrivals` with an httpx error, and the connection with it.
"""

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Callable

import httptools
import httpx

from loadgen.arrivals import GATHER_BYTES, Arrivals
from loadgen.clock import wall_ns
from loadgen.tls import Tls

SO_TIMESTAMPNS = 35  # Linux; Python has no name for it
READ_BYTES = 65536
HEAD_LIMIT_BYTES = 262_144
END_MARKER_GRACE_S = 0.1  # how long a stream may stay open after its end marker before it is taken as ended

_CONTROL_BYTES = socket.CMSG_SPACE(16)
_unpack = struct.Struct("qq").unpack
_EVENT_END = b"}\n\n\r\n"  # of a chunk whose last event is whole and is not the end marker


class Connection:
    """A connected socket on the running loop. `on_idle(connection)` offers it for reuse; `closed` says it is gone."""

    def __init__(
        self,
        sock: socket.socket,
        tls: Tls | None,
        on_idle: Callable[["Connection"], None],
        on_closed: Callable[["Connection"], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._fd = sock.fileno()
        self._recvmsg = sock.recvmsg
        self._tls = tls
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._parser = httptools.HttpResponseParser(self)
        self._arrivals: Arrivals | None = None
        self._unsent = memoryview(b"")
        self._parts: list[bytes] = []
        self._framed: list[tuple[int, bytes]] = []  # stamped reads that wait to be parsed
        self._framed_bytes = 0
        self._head_bytes = 0
        self._in_chunks = False
        self._after_chunk = False  # the last thing parsed was a chunk's end
        self._between_chunks = False
        self._until_close = False
        self._headers_complete = False
        self._complete = False
        self._reusable = False
        self._served = False  # an answer before this one
        self._stamp_ns = 0
        self.closed = False
        self._loop.add_reader(self._fd, self._on_readable)

    def send(self, message: bytes, arrivals: Arrivals) -> None:
        """Begin one request: `message` is its head and body. The response goes to `arrivals`."""
        self._arrivals = arrivals
        self._headers_complete = self._complete = self._reusable = self._until_close = self._in_chunks = False
        self._after_chunk = self._between_chunks = False
        self._head_bytes = 0
        arrivals.headers = []
        arrivals.unframe = self._unframe
        arrivals.hold = self._hold
        if self._tls is not None:
            message = self._tls.encrypt(message)
        arrivals.sent_ns = arrivals.last_ns = wall_ns()
        self._write(message)

    def still_idle(self) -> bool:
        """Whether nothing has come since the last answer; an end, or bytes that nobody asked for, close it."""
        self._on_readable()
        return not self.closed

    def close(self) -> None:
        """Close at once, whatever is under way."""
        if not self.closed:
            self._unframe()  # what came before is still the answer's, and may end it
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()
        self._on_closed(self)
        del self._parser  # it holds this connection, which holds it

    def _hold(self, on: bool) -> None:
        if on:
            self._loop.remove_reader(self._fd)
        elif not self.closed:
            self._loop.add_reader(self._fd, self._on_readable)

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
        if not self.closed:
            self._on_readable()
        if not self.closed and self._arrivals is not None and not self._headers_complete:
            self._lost(error)

    def _on_readable(self) -> None:
        # Once for every token: what is not done here is what makes a thousand streams possible.
        try:
            data, control, _, _ = self._recvmsg(READ_BYTES, _CONTROL_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)
            return
        read_ns = wall_ns()
        arrivals = self._arrivals
        if not data or arrivals is None:
            self._on_silent_side(read_ns, data)
            return
        arrivals.last_ns = read_ns
        if control:  # the one option asked for
            seconds, nanoseconds = _unpack(control[0][2])
            stamp_ns = seconds * 1_000_000_000 + nanoseconds
            if read_ns - stamp_ns > arrivals.read_lag_ns:
                arrivals.read_lag_ns = read_ns - stamp_ns
        else:
            stamp_ns = read_ns
            arrivals.unstamped_reads += 1
        if self._tls is not None and not (data := self._decrypted(data)):
            return
        if self._in_chunks and data.endswith(_EVENT_END) and data.rfind(b"[DONE]") < 0:
            self._framed.append((stamp_ns, data))
            self._framed_bytes += len(data)
            if self._framed_bytes >= GATHER_BYTES:
                self._unframe()
        else:
            self._feed(stamp_ns, data)

    def _on_silent_side(self, read_ns: int, data: bytes) -> None:
        """The end of the connection, or bytes while no answer is awaited: TLS's own, or such as nobody asked for."""
        self._stamp_ns = read_ns
        if not data or self._tls is None or self._decrypted(data):
            self._lost(None)

    def _decrypted(self, data: bytes) -> bytes:
        assert self._tls is not None
        try:
            data, ended = self._tls.decrypt(data)
        except ssl.SSLError as error:
            self._lost(error)
            return b""
        self._flush_tls()
        if ended:  # what came with the end is parsed first
            if data and self._arrivals is not None:
                self._feed(self._arrivals.last_ns, data)
            self._lost(None)
            return b""
        return data

    def _unframe(self) -> None:
        """Parse the reads that wait for it."""
        framed, self._framed, self._framed_bytes = self._framed, [], 0
        for stamp_ns, data in framed:
            end = data.find(b"\r\n")
            if self._arrivals is None:
                return
            if self._between_chunks and data[:end].lower() == b"%x" % (len(data) - end - 4):
                # One whole chunk: the parser would come to the same, at several times the cost.
                self._arrivals.add_events(stamp_ns, data[end + 2 : -2])
            else:
                self._parse(stamp_ns, data, self._arrivals)

    def _feed(self, stamp_ns: int, data: bytes) -> None:
        """Parse a read, after those that wait: body bytes go to the arrivals, and the answer may turn out to have
        ended."""
        self._unframe()
        if self._arrivals is not None:
            self._parse(stamp_ns, data, self._arrivals)

    def _parse(self, stamp_ns: int, data: bytes, arrivals: Arrivals) -> None:
        self._stamp_ns = stamp_ns
        if not self._headers_complete:
            if self._served and stamp_ns < arrivals.sent_ns:  # came after the last answer, and is none to this one
                self._lost(None)
                return
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
        marked = self._take_parts(arrivals)
        if self._complete or failure is not None:
            self._end(arrivals, failure)
        elif marked:
            # Some servers keep the connection open after [DONE]: do not wait for them, but do let a terminating chunk
            # that is on its way keep the connection usable.
            self._loop.call_later(END_MARKER_GRACE_S, self._end_unless_complete, arrivals)
        elif not self._headers_complete and self._head_bytes > HEAD_LIMIT_BYTES:
            self._end(arrivals, httpx.RemoteProtocolError(f"response headers over {HEAD_LIMIT_BYTES} bytes"))

    def _take_parts(self, arrivals: Arrivals) -> bool:
        parts = self._parts
        if not parts:
            return False
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        return arrivals.add(self._stamp_ns, body)

    def _end_unless_complete(self, arrivals: Arrivals) -> None:
        self._unframe()
        if not arrivals.ended and self._arrivals is arrivals:
            self._arrivals = None
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

    def _lost(self, error: OSError | None) -> None:
        self._unframe()
        arrivals = self._arrivals
        self._arrivals = None
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
        if self._arrivals is not None and not self._complete:
            self._arrivals.headers.append((name, value))

    def on_headers_complete(self) -> None:
        arrivals = self._arrivals
        status = self._parser.get_status_code()
        if arrivals is None or self._complete or status < 200:  # 100 Continue, 103 Early Hints: the answer is to come
            return
        names = {name.lower() for name, _ in arrivals.headers}
        self._until_close = b"content-length" not in names and b"transfer-encoding" not in names
        self._headers_complete = True
        self._in_chunks = b"transfer-encoding" in names
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
