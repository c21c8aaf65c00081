"""A server that notes when the kernel received each request: python -m tests.load.server [DELAY_MS]

It prints its URL. Asked for a completion, it answers after the delay with as many words as the request may have tokens;
GET /seen gives the times of all completions asked for so far, in ns of CLOCK_REALTIME, in no order.
"""

import asyncio
import contextlib
import json
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

import httpx

from loadgen.connection import SO_TIMESTAMPNS
from tests.fakes import DONE, FIN, ROLE, content, usage
from tests.fakes_api import LAST_CHUNK, STREAM_HEAD, answer, chunked

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_TOKENS = re.compile(rb'"max_tokens": *(\d+)')
_unpack = struct.Struct("qq").unpack


class _Peer:
    """One connection. The stamp is that of the last segment of a request."""

    def __init__(self, sock: socket.socket, seen_ns: list[int], delay_s: float) -> None:
        self._sock = sock
        self._seen_ns = seen_ns
        self._delay_s = delay_s
        self._input = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._on_readable)

    def _on_readable(self) -> None:
        try:
            data, control, _, _ = self._sock.recvmsg(65536, socket.CMSG_SPACE(16))
        except BlockingIOError:
            return
        except ConnectionError:
            data, control = b"", []
        if not data:
            self._loop.remove_reader(self._sock)
            self._sock.close()
            return
        self._input += data
        head, found, rest = self._input.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        size = int(length[1]) if length else 0
        if found and len(rest) >= size:
            self._input = b""  # one request at a time: the client has no pipelining
            seconds, nanoseconds = _unpack(control[0][2])
            self._serve(head, rest, seconds * 1_000_000_000 + nanoseconds)

    def _serve(self, head: bytes, body: bytes, stamp_ns: int) -> None:
        path = head.split(b" ", 2)[1]
        if path == b"/v1/chat/completions":
            self._seen_ns.append(stamp_ns)
            limit = _TOKENS.search(body)
            assert limit is not None
            self._loop.call_later(self._delay_s, self._write, stream(int(limit[1])))
        elif path == b"/v1/models":
            self._write(answer('{"data":[{"id":"tiny"}]}'))
        elif path == b"/seen":
            self._write(answer(json.dumps(self._seen_ns)))
        else:
            self._write(answer("{}", "404 Not Found"))

    def _write(self, response: bytes) -> None:
        with contextlib.suppress(OSError):  # it went away meanwhile
            self._sock.send(response)  # little enough for the socket's buffer


def stream(tokens: int) -> bytes:
    events = [ROLE, *[content(" word")] * tokens, FIN, usage(32, tokens), DONE]
    return STREAM_HEAD + b"".join(map(chunked, events)) + LAST_CHUNK


async def serve(delay_s: float) -> None:
    seen_ns: list[int] = []
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)  # what it accepts has it too, from the first segment
        listener.setblocking(False)
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        while True:
            sock, _ = await asyncio.get_running_loop().sock_accept(listener)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _Peer(sock, seen_ns, delay_s)


@contextlib.contextmanager
def serving(delay_ms: float = 0) -> Iterator[str]:
    """The URL of one that runs meanwhile, in a process of its own."""
    command = [sys.executable, "-m", "tests.load.server", str(delay_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def seen_ns(url: str) -> list[int]:
    """In order."""
    times_ns: list[int] = httpx.get(f"{url}/seen", trust_env=False).raise_for_status().json()
    return sorted(times_ns)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(float(sys.argv[1]) / 1000 if len(sys.argv) > 1 else 0))
