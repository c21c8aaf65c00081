"""TLS over memory buffers, so that the ciphertext can be read with its stamps."""

import asyncio
import socket
import ssl

_READ_BYTES = 65536


class Tls:
    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self.incoming, self.outgoing, server_hostname=host)

    async def handshake(self, sock: socket.socket) -> None:
        """Raises ssl.SSLError, OSError; EOFError when the peer hangs up."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                await loop.sock_sendall(sock, self.outgoing.read())
                data = await loop.sock_recv(sock, _READ_BYTES)
                if not data:
                    raise EOFError("the server closed the connection during the TLS handshake") from None
                self.incoming.write(data)
            else:
                await loop.sock_sendall(sock, self.outgoing.read())
                return

    def encrypt(self, data: bytes) -> bytes:
        self._ssl.write(data)
        return self.outgoing.read()

    def decrypt(self, data: bytes) -> tuple[bytes, bool]:
        """The plain bytes, and whether the peer has ended the stream. Raises ssl.SSLError."""
        self.incoming.write(data)
        parts = []
        try:
            while part := self._ssl.read(_READ_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            return b"".join(parts), False
        return b"".join(parts), True  # close notify
