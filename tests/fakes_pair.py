"""A connection over a real TCP pair: the test is the server, and decides what each read of the client holds."""

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from collections.abc import AsyncIterator

from loadgen.arrivals import Arrivals, Feed, Said
from loadgen.connection import SO_TIMESTAMPNS, Connection
from loadgen.reader import Reader

REQUEST = b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n"


class Kept(Arrivals):
    """Keeps the body: (stamp, bytes) of each read. `say` hears it too, and says whether to go on."""

    def __init__(self, say: Feed = lambda *_: None) -> None:
        chunks: list[tuple[int, bytes]] = []

        def keep(stamp_ns: int, body: bytes) -> Said:
            chunks.append((stamp_ns, body))
            return say(stamp_ns, body)

        super().__init__(keep)
        self.chunks = chunks

    @property
    def body(self) -> bytes:
        return b"".join(body for _, body in self.chunks)


class Pair:
    """A `Connection`, and the server's end of it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.sock = client
        self.server = server
        self.idle: list[Connection] = []
        self.closed: list[Connection] = []
        self.reader = Reader(stamped=True)
        self.connection = Connection(client, self.reader, None, self.idle.append, self.closed.append)

    def send(self, message: bytes = REQUEST, say: Feed = lambda *_: None) -> Kept:
        arrivals = Kept(say)
        self.connection.send(message, arrivals)
        return arrivals

    async def deliver(self, *pieces: bytes) -> None:
        """Each piece is a read of its own, and a long one is several."""
        for piece in pieces:
            self.sock.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1
            )  # what has arrived leaves the server's queue
            self.server.sendall(piece)
            while not self.connection.closed and (
                _queued(self.server, termios.TIOCOUTQ) or _queued(self.sock, termios.FIONREAD)
            ):
                await asyncio.sleep(0)

    async def hang_up(self, *, reset: bool = False) -> None:
        self.server.recv(1000)  # closing on an unread request would be a reset
        if reset:
            self.server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.server.close()
        async with asyncio.timeout(5):
            while not self.connection.closed:
                await asyncio.sleep(0)


def _queued(sock: socket.socket, direction: int) -> int:
    size: int = struct.unpack("i", fcntl.ioctl(sock, direction, b"\0" * 4))[0]
    return size


@contextlib.asynccontextmanager
async def pair(*, stamps: bool = True) -> AsyncIterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.setblocking(False)
    if stamps:
        client.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    made = Pair(client, server)
    try:
        yield made
    finally:
        made.connection.close()
        made.reader.close()
        server.close()
