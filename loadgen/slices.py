"""Work that must not stand between a socket and its read: done in slices of about a millisecond, in order.

A job is an iterator: each step is a small piece of work. Between slices the event loop serves its sockets.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from loadgen.clock import mono_ns

SLICE_NS = 1_000_000

Result = TypeVar("Result")


class Slices:
    def __init__(self, after_slice: Callable[[], None] | None = None) -> None:
        self._after_slice = after_slice
        self._jobs: deque[Iterator[None]] = deque()
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    def submit(self, job: Iterator[None]) -> None:
        """Raises what an earlier job or `after_slice` raised: nothing is done any more then, a full disk for one."""
        if self._task.done():
            self._task.result()
        self._jobs.append(job)
        self._wake.set()

    async def drain(self) -> None:
        """Return when every submitted job is done. Raises what a job raised."""
        while self._jobs and not self._task.done():  # noqa: ASYNC110 - it waits for the loop's own next turn
            await asyncio.sleep(0)
        if self._task.done():
            self._task.result()

    async def result(self, future: asyncio.Future[Result]) -> Result:
        """What a submitted job will set. Raises what a job raised, since nothing is done after that."""
        await asyncio.wait((future, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            self._task.result()
        return await future

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._jobs:
                self._slice()
                if self._after_slice is not None:
                    self._after_slice()
                await asyncio.sleep(0)

    def _slice(self) -> None:
        until_ns = mono_ns() + SLICE_NS
        while self._jobs and mono_ns() < until_ns:
            for _ in self._jobs[0]:
                if mono_ns() >= until_ns:
                    return
            self._jobs.popleft()
