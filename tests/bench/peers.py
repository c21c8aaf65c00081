"""Clients as one would write them with httpx and with aiohttp: what accuracy.py sets loadgen against.

    python -m tests.bench.peers httpx PORT STREAMS ROUNDS REQUEST_S LIMIT_S     (prints a Load as JSON)

The same closed loop, requests and staggered starts as loadgen's. A token is stamped when its line is in hand, before
its JSON is parsed. Request bodies are made before the load, so that what is measured is the receiving.
"""

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import aiohttp
import httpx
import msgspec

from loadgen.pacing import stagger_s
from workloads.plan import requests
from workloads.tokens import guess
from workloads.workload import Workload, load, override

TOKENS = 100  # of each prompt, and of each answer
KEY = 95  # characters of a prompt that the truth server keeps

Stream = Callable[[bytes, list[int]], Awaitable[None]]  # sends a body, appends the stamp of each token


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """One request as its client saw it; times of the wall clock."""

    key: str  # the first characters of the prompt
    measured: bool  # or warm-up
    sent_ns: int
    stamps_ns: list[int]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    cpu_us: int | None  # processor time of the client between the load's start and end
    cut: bool  # at the time limit; the last requests are then incomplete
    requests: list[Sent]


def workload() -> Workload:
    return override(load("chat"), input=str(TOKENS), output=str(TOKENS))


def prompts(salt: str) -> Iterator[str]:
    """Of loadgen's level 0 in a run with this salt, on a server that counts nothing."""
    for request in requests(workload(), guess(), seed=0, salt=salt, level=0):
        assert isinstance(request.prompt, str)
        yield request.prompt


def body(prompt: str) -> bytes:
    return msgspec.json.encode(
        {
            "model": "truth",
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": TOKENS,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


def carries_token(event: dict[str, list[dict[str, dict[str, str]]]]) -> bool:
    return any(choice["delta"].get("content") for choice in event["choices"])


@contextlib.asynccontextmanager
async def httpx_stream(url: str) -> AsyncIterator[Stream]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(trust_env=False, timeout=None, limits=limits) as client:

        async def stream(content: bytes, stamps_ns: list[int]) -> None:
            headers = {"content-type": "application/json"}
            async with client.stream("POST", url, content=content, headers=headers) as response:
                async for line in response.aiter_lines():
                    now_ns = time.time_ns()
                    if line.startswith("data: {") and carries_token(msgspec.json.decode(line[6:])):
                        stamps_ns.append(now_ns)

        yield stream


@contextlib.asynccontextmanager
async def aiohttp_stream(url: str) -> AsyncIterator[Stream]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout()) as session:

        async def stream(content: bytes, stamps_ns: list[int]) -> None:
            headers = {"content-type": "application/json"}
            async with session.post(url, data=content, headers=headers) as response:
                async for line in response.content:
                    now_ns = time.time_ns()
                    if line.startswith(b"data: {") and carries_token(msgspec.json.decode(line[6:])):
                        stamps_ns.append(now_ns)

        yield stream


PEERS = {"httpx": httpx_stream, "aiohttp": aiohttp_stream}


async def closed_loop(
    stream: Stream, planned: Iterator[tuple[str, bytes]], *, streams: int, rounds: int, request_s: float, limit_s: float
) -> Load:
    """`rounds` measured requests a stream, after one for warm-up. `planned` gives the key and body of each request."""
    sent: list[Sent] = []

    async def slot(offset_s: float) -> None:
        await asyncio.sleep(offset_s)
        for turn in range(1 + rounds):
            key, content = next(planned)
            one = Sent(key=key, measured=turn > 0, sent_ns=time.time_ns(), stamps_ns=[])
            sent.append(one)
            await stream(content, one.stamps_ns)

    cpu_ns = time.process_time_ns()
    slots = [asyncio.create_task(slot(offset_s)) for offset_s in stagger_s(streams, request_s)]
    ended, late = await asyncio.wait(slots, timeout=limit_s)
    cpu_us = (time.process_time_ns() - cpu_ns) // 1000
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    for task in ended:
        task.result()
    return Load(cpu_us=cpu_us, cut=bool(late), requests=sent)


async def measure(peer: str, port: int, streams: int, rounds: int, request_s: float, limit_s: float) -> Load:
    number = streams * (1 + rounds)
    planned = iter([(prompt[:KEY], body(prompt)) for prompt in itertools.islice(prompts(peer), number)])
    async with PEERS[peer](f"http://127.0.0.1:{port}/v1/chat/completions") as stream:
        return await closed_loop(stream, planned, streams=streams, rounds=rounds, request_s=request_s, limit_s=limit_s)


def main(peer: str, port: str, streams: str, rounds: str, request_s: str, limit_s: str) -> None:
    outcome = asyncio.run(measure(peer, int(port), int(streams), int(rounds), float(request_s), float(limit_s)))
    sys.stdout.buffer.write(msgspec.json.encode(outcome))


if __name__ == "__main__":
    main(*sys.argv[1:])
