"""An httpx transport whose response bytes carry kernel time stamps: a pool without a cap over `Connection`.

    sent      the first byte of a request is handed to the kernel on a connection that is ready
    post      the load's way: the head is made once, and the body is fed to `Arrivals` with its stamps
    errors    httpx.ConnectTimeout, ConnectError (its cause is an ssl.SSLError where TLS failed), ReadError,
              RemoteProtocolError, ReadTimeout (control requests only: an exchange keeps its own time limits)

One retry, and only one: a reused connection that died before any byte of the answer was idle for too long, and says
nothing of the server. It is counted in `Arrivals.retries`.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import httpx
import msgspec

from loadgen.arrivals import Arrivals, Said
from loadgen.clock import wall_ns
from loadgen.connection import SO_TIMESTAMPNS, Connection, reason
from loadgen.reader import Reader
from loadgen.tls import Tls

CONTROL_LIMIT_BYTES = 16 * 2**20  # of the answer to a control request, which is kept whole
_PIECE_BYTES = 8192  # unpacked at once, to a thousand times as much

_Place = tuple[str, str, int]  # scheme, host, port
_Address = tuple[int, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]


class Post(msgspec.Struct, frozen=True):
    """A POST to be sent many times with bodies of its own."""

    place: _Place
    head: bytes  # up to the length of the body, which comes last


def prepare(request: httpx.Request) -> Post:
    """What all requests like this one share."""
    if request.url.username or request.url.password:  # as httpx's client does when it sends
        next(httpx.BasicAuth(request.url.username, request.url.password).auth_flow(request))
    headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
    return Post(_place(request.url), _head(request, headers))


class StampedTransport(httpx.AsyncBaseTransport):
    def __init__(self, ssl_context: ssl.SSLContext | None = None) -> None:
        self._ssl_context = ssl_context
        self._idle: dict[_Place, list[Connection]] = {}
        self._open: set[Connection] = set()
        self._addresses: dict[tuple[str, int], list[_Address]] = {}
        self._resolving = asyncio.Lock()  # many first requests at once ask for a name once
        # The kernel starts stamping lazily, for the whole host, with the first socket that asks: keep one that asks.
        self._keeper = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._stamped = _ask_for_stamps(self._keeper)
        self._reader: Reader | None = None  # of the loop on which the first connection is made
        self.connections_opened = 0

    async def post(self, post: Post, body: bytes, arrivals: Arrivals, connect_s: float | None) -> None:
        """Send, and wait for the end of the answer. Raises what kept the answer's head from coming."""
        message = b"%scontent-length: %d\r\n\r\n%s" % (post.head, len(body), body)
        await self._send(post.place, message, arrivals, connect_s, arrivals.wait_end)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        answer = bytearray()

        def keep(_: int, chunk: bytes) -> Said:
            answer.extend(chunk)
            return "broken" if len(answer) > CONTROL_LIMIT_BYTES else None

        arrivals = Arrivals(keep)
        limits = request.extensions.get("timeout", {})
        message = b"%s\r\n%s" % (_head(request, request.headers.raw), body)
        async with _read_limit(limits.get("read")):
            connect_s = limits.get("connect")
            connection = await self._send(_place(request.url), message, arrivals, connect_s, arrivals.wait_headers)
        stream = _Body(connection, arrivals, answer, limits.get("read"))
        return httpx.Response(arrivals.status, headers=arrivals.headers, stream=stream)

    async def aclose(self) -> None:
        for connection in list(self._open):
            connection.close()
        if self._reader is not None:
            self._reader.close()
        self._keeper.close()

    async def _send(
        self,
        place: _Place,
        message: bytes,
        arrivals: Arrivals,
        connect_s: float | None,
        wait: Callable[[], Awaitable[None]],
    ) -> Connection:
        while True:
            kept = self._take_idle(place) if arrivals.retries == 0 else None  # the retry trusts no idle connection
            connection = kept or await self._connect(place, arrivals, connect_s)
            try:
                connection.send(message, arrivals)
                await wait()
            except asyncio.CancelledError:
                if not arrivals.ended:  # else it may serve another request already
                    connection.close()
                raise
            if arrivals.headers_ns is not None:
                return connection
            assert arrivals.error is not None
            if not (isinstance(arrivals.error, httpx.ReadError) and kept):
                raise arrivals.error
            arrivals.retries += 1
            arrivals.ended = False
            arrivals.sent_ns = arrivals.end_ns = 0  # time limits count from the second send
            arrivals.error = None

    def _take_idle(self, place: _Place) -> Connection | None:
        idle = self._idle.get(place, [])
        while idle:
            if (connection := idle.pop()).still_idle():
                return connection
        return None

    async def _connect(self, place: _Place, arrivals: Arrivals, connect_s: float | None) -> Connection:
        scheme, host, port = place
        arrivals.connect_ns = wall_ns()
        try:
            async with asyncio.timeout(connect_s):
                sock = await self._connected_socket(host, port, connect_s)
                try:
                    tls = await self._handshaken(sock, host) if scheme == "https" else None
                except BaseException:
                    sock.close()
                    raise
        except TimeoutError:
            raise httpx.ConnectTimeout(f"no connection to {host}:{port} within {connect_s:g} s") from None
        self.connections_opened += 1

        def offer(connection: Connection) -> None:
            self._idle.setdefault(place, []).append(connection)

        def forget(connection: Connection) -> None:
            self._open.discard(connection)
            with contextlib.suppress(KeyError, ValueError):
                self._idle[place].remove(connection)

        self._reader = self._reader or Reader(self._stamped)
        connection = Connection(sock, self._reader, tls, offer, forget)
        self._open.add(connection)
        return connection

    async def _resolved(self, host: str, port: int) -> list[_Address]:
        async with self._resolving:
            if (host, port) not in self._addresses:
                try:
                    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
                except (OSError, UnicodeError) as error:
                    raise httpx.ConnectError(f"cannot resolve {host}: {getattr(error, 'strerror', error)}") from error
                self._addresses[host, port] = [(family, address) for family, _, _, _, address in found]
        return self._addresses[host, port]

    async def _connected_socket(self, host: str, port: int, limit_s: float | None) -> socket.socket:
        """`limit_s` is kept by the caller; an address that does not answer uses up its share of it, and no more."""
        loop = asyncio.get_running_loop()
        addresses = self._addresses.get((host, port)) or await self._resolved(host, port)
        failure: OSError | None = None
        for place, (family, address) in enumerate(addresses, start=1):
            share_s = None if limit_s is None or place == len(addresses) else limit_s / len(addresses)
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _ask_for_stamps(sock)
                async with asyncio.timeout(share_s):
                    await loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
            else:
                # The address that answers comes first next time. A new list: others may be going through the old one.
                others = [other for other in addresses if other != (family, address)]
                self._addresses[host, port] = [(family, address), *others]
                return sock
        assert failure is not None
        try:
            if failure.errno in (errno.EMFILE, errno.ENFILE):
                raise failure
            raise httpx.ConnectError(f"cannot connect to {host}:{port}: {reason(failure)}") from failure
        finally:
            del failure  # its traceback holds this frame

    async def _handshaken(self, sock: socket.socket, host: str) -> Tls:
        if self._ssl_context is None:
            self._ssl_context = httpx.create_ssl_context()
        tls = Tls(self._ssl_context, host)
        try:
            await tls.handshake(sock)
        except ssl.SSLCertVerificationError as error:
            raise httpx.ConnectError(f"TLS certificate of {host} refused: {error.verify_message}") from error
        except (ssl.SSLError, EOFError, OSError) as error:
            cause = error if isinstance(error, ssl.SSLError) else ssl.SSLError(str(error))
            said = reason(error) if isinstance(error, OSError) else error
            raise httpx.ConnectError(f"TLS handshake with {host} failed: {said}") from cause
        return tls


class _Body(httpx.AsyncByteStream):
    def __init__(self, connection: Connection, arrivals: Arrivals, answer: bytearray, read_s: float | None) -> None:
        self._connection = connection
        self._arrivals = arrivals
        self._answer = answer
        self._read_s = read_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with _read_limit(self._read_s):
            await self._arrivals.wait_end()
        if len(self._answer) > CONTROL_LIMIT_BYTES:
            raise httpx.RemoteProtocolError(f"an answer of over {CONTROL_LIMIT_BYTES} bytes")
        for begin in range(0, len(self._answer), _PIECE_BYTES):
            yield bytes(self._answer[begin : begin + _PIECE_BYTES])
        if self._arrivals.error is not None:
            raise self._arrivals.error

    async def aclose(self) -> None:
        if not self._arrivals.ended:
            self._connection.close()


@contextlib.asynccontextmanager
async def _read_limit(seconds: float | None) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise httpx.ReadTimeout(f"no answer within {seconds:g} s") from None


def _ask_for_stamps(sock: socket.socket) -> bool:
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:  # another system: the user clock stands in, and the result says so
        return False
    return True


def _port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _place(url: httpx.URL) -> _Place:
    return url.scheme, url.raw_host.decode("ascii"), _port(url)


def _head(request: httpx.Request, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The request line and header lines."""
    first = b"%s %s HTTP/1.1\r\n" % (request.method.encode(), request.url.raw_path)
    return first + b"".join([b"%s: %s\r\n" % header for header in headers])
