"""How well the simulated engine keeps its own timetable: python -m tests.bench.sim_emission

The server alone on one core, this client on another; each row is one load, about 10,000 token events a second. What is
printed is the server's own record, written minus due; the client only reads. On a shared machine the tail is the
machine's: the processor time per event, the server's start included, says what it needs itself.
"""

import asyncio
import os
import resource
import sys
from functools import partial
from typing import cast
from urllib.parse import urlsplit

import httpx
import msgspec
import numpy as np
import uvloop

from loadgen.sim import child

# Streams, and the overhead that makes a step of so many take their share of a second.
_LOADS = ((10, 0), (50, 3_800), (100, 8_600), (250, 20_500))
_SPEC = "qwen2.5-7b@b300,dtype=int4,max_num_seqs=1024,max_num_batched_tokens=65536"
_PROMPT = list(range(1000, 1032))
_EVENTS = 100_000


class _Reader(asyncio.Protocol):
    def __init__(self, request: bytes, ended: asyncio.Event) -> None:
        self._request = request
        self._ended = ended
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        if (self._tail + data).endswith(b"0\r\n\r\n"):
            self._ended.set()
        self._tail = data[-5:]

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()


async def _measure(streams: int, overhead_us: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    before_s = _children_s()
    os.sched_setaffinity(0, {cores[-1]})
    async with child.start(f"{_SPEC},overhead_us={overhead_us}") as url:
        os.sched_setaffinity(0, {cores[0]})
        await _read_streams(url, streams)
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            rows = [msgspec.json.decode(line) for line in (await client.get(f"{url}/truth")).content.splitlines()]
    due = np.concatenate([np.array(row["due_ns"]) for row in rows])
    written = np.concatenate([np.array(row["written_ns"]) for row in rows])
    late_ms = np.sort(written - due) / 1e6
    events_per_s = len(due) / (due.max() - due.min()) * 1e9
    p50, p99 = late_ms[len(late_ms) // 2], late_ms[len(late_ms) * 99 // 100]
    os.sched_setaffinity(0, cores)
    us_per_event = (_children_s() - before_s) / len(due) * 1e6
    over = (late_ms > 2).mean()
    columns = (
        f"{streams:7} {events_per_s:9,.0f} {p50:9.3f} {p99:9.3f} {late_ms[-1]:9.3f} {over:9.3%} {us_per_event:9.1f}"
    )
    sys.stdout.write(f"{columns}\n")
    sys.stdout.flush()


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def _read_streams(url: str, streams: int) -> None:
    address = urlsplit(url)
    asked = {"prompt": _PROMPT, "max_tokens": _EVENTS // streams, "ignore_eos": True, "stream": True}
    body = msgspec.json.encode(asked)
    request = b"POST /v1/completions HTTP/1.1\r\nhost: sim\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    ended = [asyncio.Event() for _ in range(streams)]
    for event in ended:
        await asyncio.get_running_loop().create_connection(
            partial(_Reader, request, event), str(address.hostname), address.port or 0
        )
    for event in ended:
        await event.wait()


def main() -> None:
    sys.stdout.write("streams  events/s    p50 ms    p99 ms    max ms  over 2 ms  us/event\n")
    for streams, overhead_us in _LOADS:
        uvloop.run(_measure(streams, overhead_us))


if __name__ == "__main__":
    main()
