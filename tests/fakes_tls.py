"""Throw-away certificates, and a server whose TLS records the test cuts as it likes."""

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import trustme


@dataclass(frozen=True)
class Certificates:
    server: ssl.SSLContext  # for localhost, 127.0.0.1 and ::1
    client: ssl.SSLContext  # trusts the CA
    authority: bytes  # the CA's certificate, PEM
    issuer: trustme.CA


@cache
def certificates(*names: str) -> Certificates:
    issuer = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    issuer.issue_cert(*(names or ("localhost", "127.0.0.1", "::1"))).configure_cert(server)
    client = ssl.create_default_context()
    issuer.configure_trust(client)
    return Certificates(server, client, issuer.cert_pem.bytes(), issuer)


def authority_file(folder: Path, *names: str) -> Path:
    path = folder / f"{'-'.join(('ca', *names))}.pem"
    path.write_bytes(certificates(*names).authority)
    return path


@pytest.fixture
def little_trust(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One CA, of none of our servers, instead of the usual ones, which take 70 ms to load."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority_file(tmp_path_factory.mktemp("trust"), "other.test")))


class TlsPeer:
    """The server's end of a socket, blocking free: ciphertext is sent only when the test says so."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext | None = None) -> None:
        self._sock = sock
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._ssl = (context or certificates().server).wrap_bio(self._in, self._out, server_side=True)

    async def handshake(self) -> None:
        """Raises ssl.SSLError, with the alert that says so left for `encrypted`."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                await loop.sock_sendall(self._sock, self._out.read())
                self._in.write(await loop.sock_recv(self._sock, 65536))
            else:
                return

    def encrypted(self, data: bytes) -> bytes:
        """What lies unsent (session tickets, at first), and `data` as records."""
        if data:
            self._ssl.write(data)
        return self._out.read()

    def close_notify(self) -> bytes:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._ssl.unwrap()
        return self._out.read()
