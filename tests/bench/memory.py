"""Does the client's memory grow with the number of requests, or with the length of a stream?

    python -m tests.bench.memory        2,000 and 200,000 requests; streams of 1,000 and 100,000 tokens

One client process runs after the other, the real command line over real HTTP, each row written; after each the largest
resident size so far is read. The summary is left out: it is made after the load, and holds all rows as columns.
"""

import argparse
import asyncio
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import msgspec

from tests.fakes import DONE, FIN, ROLE, content, usage
from tests.fakes_api import LAST_CHUNK, STREAM_HEAD, answer, chunked, listening_in_a_thread

# What runs in the client's process: a run for each list of arguments, and after it the peak so far, in KiB.
_CLIENT = """
import json, resource, sys
from loadgen.cli import app, report
report.present = lambda *_, **__: 0
for arguments in json.loads(sys.argv[1]):
    assert app.execute(arguments) == 0
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)
"""


class Load(msgspec.Struct, frozen=True):
    requests: int
    tokens: int
    concurrency: int = 8


class _Answer(msgspec.Struct):
    max_tokens: int


@functools.cache
def _stream(tokens: int) -> bytes:
    events = [ROLE, *[content(" word")] * tokens, FIN, usage(32, tokens), DONE]
    return STREAM_HEAD + b"".join(map(chunked, events)) + LAST_CHUNK


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers at once, out of memory; what it is asked before the load, as little as the preflight can do with."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        place = head.lower().find(b"content-length: ")
        body = await reader.readexactly(int(head[place + 16 : head.find(b"\r", place)])) if place >= 0 else b""
        if head.startswith(b"GET "):
            writer.write(answer('{"data":[{"id":"tiny"}]}'))
        elif b"completions" in head[: head.find(b"\r")]:
            writer.write(_stream(msgspec.json.decode(body, type=_Answer).max_tokens))
        else:
            writer.write(answer("{}", "404 Not Found"))
        await writer.drain()


def peaks_kib(loads: Sequence[Load]) -> list[int]:
    """The largest resident size of one client process after each load."""
    with listening_in_a_thread(_serve) as server, tempfile.TemporaryDirectory() as place:
        runs = [
            [
                *("run", server.url(), "--concurrency", str(load.concurrency), "--requests", str(load.requests)),
                *("--output", str(load.tokens), "--input", "32", "--quiet", "--out", f"{place}/{number}"),
            ]
            for number, load in enumerate(loads)
        ]
        done = subprocess.run(
            [sys.executable, "-c", _CLIENT, json.dumps(runs)], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [int(line) for line in done.stdout.split()]


def main() -> int:
    parser = argparse.ArgumentParser(description="The client's memory against requests and tokens.")
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--tokens", type=int, default=100_000)
    asked = parser.parse_args()
    for loads in (
        [Load(asked.requests // 100, 4), Load(asked.requests, 4)],
        [Load(2, asked.tokens // 100, 1), Load(2, asked.tokens, 1)],
    ):
        begun_s = time.monotonic()
        peaks = peaks_kib(loads)
        for load, peak_kib in zip(loads, peaks, strict=True):
            print(f"{load.requests:8} requests of {load.tokens:7} tokens: peak {peak_kib / 1024:7.1f} MiB")
        print(f"{(peaks[1] - peaks[0]) / 1024:+.1f} MiB, {time.monotonic() - begun_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
