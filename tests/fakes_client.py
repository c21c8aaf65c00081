"""A client over our transport, and the check that it gives everything back."""

import asyncio
import contextlib
import functools
import gc
import os
import ssl
import warnings
from collections.abc import AsyncIterator, Iterator

import httpx

from loadgen.transport import StampedTransport, prepare
from tests.fakes_api import answer, receive, run_on
from tests.fakes_pair import Kept


@contextlib.asynccontextmanager
async def client(context: ssl.SSLContext | None = None) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=StampedTransport(context), trust_env=False, timeout=5) as made:
        yield made


async def post(http: httpx.AsyncClient, url: str, content: bytes = b"{}") -> tuple[Kept, bytes]:
    """One request as an exchange sends it."""
    arrivals = Kept()
    await transport_of(http).post(prepare(http.build_request("POST", url)), content, arrivals, 5)
    return arrivals, arrivals.body


def transport_of(http: httpx.AsyncClient) -> StampedTransport:
    assert isinstance(http._transport, StampedTransport)
    return http._transport


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        request = await receive(reader)
        writer.write(answer(request.body))
        await writer.drain()


@functools.cache
def _use_uvloop_once() -> None:
    run_on("uvloop", asyncio.sleep(0))  # the first one opens what the process keeps


@contextlib.contextmanager
def nothing_leaks() -> Iterator[None]:
    """Every test gives its file descriptors back, and lets no socket go unclosed."""
    _use_uvloop_once()
    before = len(os.listdir("/proc/self/fd"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        gc.freeze()  # only what the test makes is looked through
        yield
        gc.collect()
        gc.unfreeze()
    assert len(os.listdir("/proc/self/fd")) <= before
