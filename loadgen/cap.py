"""The cap of the open loop: so many requests may be in flight; who finds no place waits, and is let in as due.

The places are shared by all workers, and so is the order: a worker takes a free one only where nobody of the others
has waited since before its own first. It looks when a request of its own ends and, as those of others end unseen, each
millisecond while it has somebody waiting.
"""

import asyncio
import multiprocessing
import threading
from collections import deque
from collections.abc import MutableSequence
from multiprocessing.synchronize import Semaphore
from typing import Any

import msgspec

LOOK_S = 0.001
_NOBODY = 0


class Places(msgspec.Struct, frozen=True):
    """Can be given to another process only as it starts."""

    free: threading.Semaphore | Semaphore
    first_due_ns: MutableSequence[int]  # of each worker: since when its first has waited

    def take(self, worker: int, due_ns: int) -> bool:
        """One for a request of `worker` due at `due_ns`, if there is one, and nobody goes before."""
        for other, first_ns in enumerate(self.first_due_ns):
            if other != worker and _NOBODY < first_ns < due_ns:
                return False
        return self.free.acquire(False)


def places(most: int, workers: int = 1) -> Places:
    if workers == 1:
        return Places(threading.Semaphore(most), [_NOBODY])
    context: Any = multiprocessing.get_context("spawn")
    return Places(context.Semaphore(most), context.RawArray("q", workers))


class Line:
    """Of one worker, in one level."""

    def __init__(self, places: Places, worker: int = 0) -> None:
        self._places = places
        self._worker = worker
        self._waiting: deque[tuple[int, asyncio.Future[bool]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.most_waiting = 0

    async def enter(self, due_ns: int) -> bool:
        """Return when there is a place, which is to be given back by `leave`; False where the line was closed.

        `due_ns` of the monotonic clock, which all processes share.
        """
        if self._closed:
            return False
        if not self._waiting and self._places.take(self._worker, due_ns):
            return True
        place: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((due_ns, place))
        self.most_waiting = max(self.most_waiting, len(self._waiting))
        self._let_in()
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.result():
                self.leave()
            raise

    def leave(self) -> None:
        self._places.free.release()
        self._let_in()

    def close(self) -> None:
        """Whoever waits is not let in any more."""
        self._closed = True
        while self._waiting:
            _, place = self._waiting.popleft()
            if not place.done():
                place.set_result(False)
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            due_ns, place = self._waiting[0]
            if not place.done():  # else its visitor was sent away
                if not self._places.take(self._worker, due_ns):
                    break
                place.set_result(True)
            self._waiting.popleft()
        self._places.first_due_ns[self._worker] = self._waiting[0][0] if self._waiting else _NOBODY
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and len(self._places.first_due_ns) > 1:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._let_in)
