"""One plan over several processes, one stream of records.

Worker k of n has each n-th slot and each n-th request of the finished plan, from the k-th on: nothing is drawn in a
worker. The limit on requests in flight is global because the slots are. The starting process writes all rows.

    to a worker      its Job when it starts; then an Order for each level, and Stop
    from a worker    Ready; Rows, and Ended after the last of a level; Fault, after which it ends
"""

import asyncio
import contextlib
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from loadgen.clock import mono_ns
from loadgen.endpoint import open_client
from loadgen.levels import Share
from loadgen.load import Job, Load, clear_the_way
from loadgen.record import LevelPlan, LevelRow, Row

_READY_S = 30
_BEGIN_NS = 50_000_000  # from an order to the first slot's start: time for all to prepare their prompts


class Order(msgspec.Struct, frozen=True, tag=True):
    plan: LevelPlan
    request_s: float
    begin_ns: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    pass


class Rows(msgspec.Struct, frozen=True, tag=True):
    rows: list[Row]


class Ended(msgspec.Struct, frozen=True, tag=True):
    row: LevelRow


class Ready(msgspec.Struct, frozen=True, tag=True):
    pass


class Fault(msgspec.Struct, frozen=True, tag=True):
    message: str


_encode = msgspec.msgpack.encode
_to_worker = msgspec.msgpack.Decoder(Order | Stop).decode
_from_worker = msgspec.msgpack.Decoder(Ready | Rows | Ended | Fault).decode


class Workers:
    """The processes, seen from the one that started them. Raises OSError where one fails."""

    def __init__(self, emit: Callable[[Row], None], flush: Callable[[], None]) -> None:
        self._emit = emit
        self._flush = flush
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._said: asyncio.Queue[Ready | Ended | Fault] = asyncio.Queue()

    @classmethod
    async def start(cls, job: Job, workers: int, emit: Callable[[Row], None], flush: Callable[[], None]) -> "Workers":
        made = cls(emit, flush)
        context = multiprocessing.get_context("spawn")
        try:
            for worker in range(workers):
                ours, theirs = context.Pipe()
                own = msgspec.structs.replace(job, share=Share(worker, workers))
                process = context.Process(target=_work, args=(theirs, own), daemon=True)
                process.start()
                theirs.close()
                made._processes.append(process)
                made._pipes.append(ours)
                asyncio.get_running_loop().add_reader(ours.fileno(), made._on_readable, ours)
            async with asyncio.timeout(_READY_S):
                await made._wait_for(workers)
        except TimeoutError:
            await made.aclose()
            raise OSError(f"the worker processes were not ready within {_READY_S} s") from None
        except BaseException:
            await made.aclose()
            raise
        return made

    async def run_level(self, plan: LevelPlan, request_s: float, stop: asyncio.Event) -> LevelRow:
        busy = self._pipes[: plan.concurrency]  # fewer slots than workers: the others have none
        order = _encode(Order(plan, request_s, mono_ns() + _BEGIN_NS))
        for pipe in busy:
            pipe.send_bytes(order)
        stopping = asyncio.create_task(self._pass_on(stop))
        try:
            ended = await self._wait_for(len(busy))
        finally:
            stopping.cancel()
        return _joined([message.row for message in ended if isinstance(message, Ended)])

    async def aclose(self) -> None:
        loop = asyncio.get_running_loop()
        for pipe in self._pipes:
            loop.remove_reader(pipe.fileno())
            pipe.close()  # its end tells the worker to go
        for process in self._processes:
            await asyncio.to_thread(process.join, 2)
            if process.is_alive():
                process.kill()

    async def _wait_for(self, count: int) -> list[Ready | Ended]:
        messages: list[Ready | Ended] = []
        while len(messages) < count:
            message = await self._said.get()
            if isinstance(message, Fault):
                raise OSError(message.message)
            messages.append(message)
        return messages

    async def _pass_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        for pipe in self._pipes:
            pipe.send_bytes(_encode(Stop()))

    def _on_readable(self, pipe: Connection) -> None:
        try:
            message = _from_worker(pipe.recv_bytes())
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(pipe.fileno())
            self._said.put_nowait(Fault("a worker process has ended unexpectedly; what it had sent is kept"))
            return
        if isinstance(message, Rows):
            for row in message.rows:
                self._emit(row)
            self._flush()
        else:
            self._said.put_nowait(message)


def _joined(rows: list[LevelRow]) -> LevelRow:
    """One row of several: the processor time is that of the busiest process, which limits them all."""
    ends = {row.ended_by for row in rows}
    return msgspec.structs.replace(
        rows[0],
        start_us=min(row.start_us for row in rows),
        end_us=max(row.end_us for row in rows),
        ended_by=next((end for end in ("interrupt", "errors") if end in ends), rows[0].ended_by),
        cpu_us=max(row.cpu_us for row in rows),
        clock_step_us=max((row.clock_step_us for row in rows), key=abs),
    )


# In the worker


def _work(pipe: Connection, job: Job) -> None:
    import uvloop

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one says when to stop
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        try:
            uvloop.run(_serve(pipe, job))
        except (OSError, ValueError) as error:
            pipe.send_bytes(_encode(Fault(f"a worker process failed: {error}")))


async def _serve(pipe: Connection, job: Job) -> None:
    loop = asyncio.get_running_loop()
    orders: asyncio.Queue[Order | None] = asyncio.Queue()
    stop = asyncio.Event()
    rows: list[Row] = []

    def on_readable() -> None:
        try:
            message = _to_worker(pipe.recv_bytes())
        except (EOFError, OSError):
            loop.remove_reader(pipe.fileno())
            stop.set()
            orders.put_nowait(None)
            return
        if isinstance(message, Stop):
            stop.set()
        else:
            orders.put_nowait(message)

    def flush() -> None:
        if rows:
            pipe.send_bytes(_encode(Rows(rows)))
            rows.clear()

    async with open_client(job.settings.access) as client:
        load = Load(job, client, rows.append, flush)
        loop.add_reader(pipe.fileno(), on_readable)
        clear_the_way()
        pipe.send_bytes(_encode(Ready()))
        while (order := await orders.get()) is not None:
            row = await load.run_level(order.plan, order.request_s, stop, order.begin_ns)
            flush()
            pipe.send_bytes(_encode(Ended(row)))
        await load.aclose()
