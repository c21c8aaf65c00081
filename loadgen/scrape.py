"""The server's /metrics during a run: server.jsonl, sampled and parsed in a process of its own.

A page of 220 KB takes the parser 85 ms, so none of it happens on the loop that stamps. The process has the lowest
priority, and ends with the one that started it, from which it reads line by line:

    to it        an Order, once; then a number: sample all sources now
    from it      the number, when that sample is written, or has failed

    samples      once a second, and where the run asks for one: before and after each level, so that what its counters
                 grew by is the level's. One request at a time to each source, never a second before the first has ended
    server.jsonl {"t_us", "source", "url", "engine"} before the first sample of a source, and where the engine is known;
                 {"t_us", "source", values under the names of loadgen/prometheus.py}; {"t_us", "source", "error"}.
                 t_us is when the sample was asked for, in us since the run's start. An unknown value is left out
    secrets      go to the target's own origin only, and what the user wrote into a URL to that URL; errors are a closed
                 set of words, so nothing that a server or a URL says gets into the file
"""

import asyncio
import contextlib
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec

from loadgen import prometheus
from loadgen.clock import mono_ns, wall_ns
from loadgen.endpoint import Access, Target, open_client, parse_target, root, under

COMMAND = (sys.executable, "-m", "loadgen.scrape")
NICE = 19
PERIOD_NS = 1_000_000_000
TIMEOUT_S = 2.0
LIMIT_BYTES = 4 * 2**20
TRIES = 3  # of a source that has never answered with known names; then it is left alone
_START_S = 10.0  # until the first sample is written; then the run goes on without it
_ASKED_S = 2 * TIMEOUT_S + 1  # a sample may have to wait for the one before it
_STOP_S = 1.0


class Source(msgspec.Struct, frozen=True):
    """A page. `url` may hold secrets, `label` is what may be shown of it."""

    url: str
    label: str
    access: Access
    secrets: tuple[str, ...]


class Order(msgspec.Struct, frozen=True):
    sources: list[Source]
    path: str
    start_ns: int


def sources(metrics: Sequence[str], target: Target, access: Access) -> list[Source]:
    """Of --metrics: nothing, the target's own page; `none`; or URLs, whose path is /metrics where they have none.

    The key and the headers go to the target's own origin, its TLS settings hold for its host. Raises ValueError.
    """
    if list(metrics) == ["none"]:
        return []
    home = target.bases[0]
    return [_source(text, home, access) for text in metrics or [str(under(root(home), "/metrics"))]]


def page(text: str) -> Target:
    """Of one --metrics. Raises ValueError, which does not repeat it."""
    try:
        return parse_target(text)
    except ValueError:
        raise ValueError("--metrics: expected http(s)://host[:port][/path] of a Prometheus page, or none") from None


def _source(text: str, home: httpx.URL, access: Access) -> Source:
    parsed = page(text)
    url = parsed.bases[-1]
    if url.path in ("", "/"):
        parsed = parse_target(str(under(url, "/metrics")))
        url = parsed.bases[-1]
    if (url.scheme, url.host, url.port) == (home.scheme, home.host, home.port):
        own = access
    elif url.host == home.host:
        own = Access(ca_file=access.ca_file, insecure=access.insecure, transport=access.transport)
    else:
        own = Access(transport=access.transport)
    return Source(str(url), parsed.label, own, parsed.secrets)


class Scraper:
    """The process, seen from the run. Whatever happens to it, the run goes on."""

    def __init__(self, process: asyncio.subprocess.Process | None) -> None:
        self._process = process
        self._asked = 0

    async def sample(self, patience_s: float = _ASKED_S) -> None:
        """All sources now. Returns when that is written, or cannot be, or takes too long."""
        if self._process is None or self._process.stdin is None or self._process.stdout is None:
            return
        if self._process.stdin.is_closing():  # it is gone, and uvloop would say so with an exception of its own
            return
        self._asked += 1
        try:
            async with asyncio.timeout(patience_s):
                self._process.stdin.write(b"%d\n" % self._asked)
                await self._process.stdin.drain()
                while int(await self._process.stdout.readline()) < self._asked:
                    pass  # the answer to one that took too long
        except (TimeoutError, OSError, ValueError):  # ValueError: it is gone, and its last line is empty
            return


@contextlib.asynccontextmanager
async def scraping(
    sources: list[Source], directory: Path, start_ns: int, command: Sequence[str] = COMMAND
) -> AsyncIterator[Scraper]:
    """Samples go to server.jsonl in `directory`, the first of them before this returns. Without sources: nothing."""
    if not sources:
        yield Scraper(None)
        return
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,  # its end tells the process that this one is gone
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,  # a traceback could hold a secret
    )
    try:
        assert process.stdin is not None
        order = Order(sources, str(directory / "server.jsonl"), start_ns)
        process.stdin.write(msgspec.json.encode(order, enc_hook=str) + b"\n")
        scraper = Scraper(process)
        await scraper.sample(_START_S)
        yield scraper
    finally:
        await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), _STOP_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


# In the process


class _SampleError(Exception):
    """A sample that is none; its text is one of a closed set."""


class Page:
    """One source, and what has become of it."""

    def __init__(self, number: int, source: Source, client: httpx.AsyncClient) -> None:
        self._number = number
        self._source = source
        self._client = client
        self._said: str | None = ""  # the engine in the row that says where from; "": no such row yet
        self._known = False
        self._failures = 0

    @property
    def left_alone(self) -> bool:
        return not self._known and self._failures >= TRIES

    async def sample(self, t_us: int) -> list[dict[str, Any]]:
        """The rows of one sample."""
        if self.left_alone:
            return []
        at = {"t_us": t_us, "source": self._number}
        values: dict[str, Any]
        try:
            engine, values = prometheus.read(await self._get())
            if engine is None:
                raise _SampleError("no known names")
            self._known = True
        except (_SampleError, ValueError) as error:
            engine, values = None, {"error": str(error) if isinstance(error, _SampleError) else "not Prometheus text"}
            self._failures += 1
        rows = [at | values]
        if self._said == "" or (engine is not None and engine != self._said):
            self._said = engine
            rows.insert(0, at | {"url": self._source.label, "engine": engine})
        return rows

    async def _get(self) -> str:
        body = bytearray()
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                self._client.stream("GET", self._source.url, headers={"Accept": "text/plain"}) as response,
            ):
                if response.status_code != 200:
                    raise _SampleError(f"http {response.status_code}")
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise _SampleError("compressed, and not asked to be")
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > LIMIT_BYTES:
                        raise _SampleError(f"over {LIMIT_BYTES >> 20} MiB")
        except (TimeoutError, httpx.TimeoutException):
            raise _SampleError("timeout") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            tls = isinstance(error.__cause__, ssl.SSLError)
            raise _SampleError(
                "tls" if tls else "connect" if isinstance(error, httpx.ConnectError) else "protocol"
            ) from None
        return body.decode("utf-8", "replace")


class _Asks:
    """For a sample now: the number of the last one."""

    def __init__(self, first: int) -> None:
        self.last = first
        self.new = asyncio.Event()


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    wishes = asyncio.StreamReader(limit=2**20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(wishes), sys.stdin)
    order = msgspec.json.decode(await wishes.readline(), type=Order, dec_hook=lambda kind, value: kind(value))
    asks = _Asks(int(await wishes.readline()))
    async with contextlib.AsyncExitStack() as stack:
        pages = [
            Page(number, source, await stack.enter_async_context(open_client(source.access)))
            for number, source in enumerate(order.sources)
        ]
        file = os.open(order.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        stack.callback(os.close, file)
        os.nice(NICE)  # not before it is ready: the load waits for that
        sampling = asyncio.create_task(_sample(pages, file, order.start_ns, asks))
        hearing = asyncio.create_task(_hear(wishes, asks))
        await asyncio.wait([sampling, hearing], return_when=asyncio.FIRST_COMPLETED)
        sampling.cancel()
        hearing.cancel()


async def _hear(wishes: asyncio.StreamReader, asks: _Asks) -> None:
    while line := await wishes.readline():
        asks.last = int(line)
        asks.new.set()


async def _sample(pages: list[Page], file: int, start_ns: int, asks: _Asks) -> None:
    encode = msgspec.json.Encoder().encode
    due_ns, answered = mono_ns(), 0
    while True:
        asked = asks.last
        asks.new.clear()
        t_us = (wall_ns() - start_ns) // 1000
        sampled = await asyncio.gather(*(page.sample(t_us) for page in pages))
        if rows := b"".join(encode(row) + b"\n" for page_rows in sampled for row in page_rows):
            os.write(file, rows)
        if asked > answered:
            os.write(1, b"%d\n" % asked)
            answered = asked
        due_ns = max(due_ns + PERIOD_NS, mono_ns())
        left_s = None if all(page.left_alone for page in pages) else (due_ns - mono_ns()) / 1e9
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await asks.new.wait()
        if asks.new.is_set():
            due_ns = mono_ns()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the process that started this one says when to stop
    with contextlib.suppress(OSError):  # a full disk, or nobody to answer to
        asyncio.run(_serve())


if __name__ == "__main__":
    main()
