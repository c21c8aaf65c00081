"""One plan over several processes, one stream of records.

Worker k of n has each n-th slot, or each n-th due time, and each n-th request of the finished plan, from the k-th on:
all draw the same, and none draws for itself. The limit on requests in flight is global because the slots are, or the
places of the cap. The starting process writes all rows.

    to a worker      its Job when it starts; then for each level an Order to make it ready, and Begin; End, where it is
                     ended for all; and Stop
    from a worker    Ready, when it has started and for each Order; Rows, and Ended after the last of a level; End,
                     where it ends the level for all; Fault, after which it ends
"""

import asyncio
import contextlib
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from loadgen.cap import Places, places
from loadgen.children import start_deaf
from loadgen.course import Share
from loadgen.endpoint import open_client
from loadgen.levels import Moment, now
from loadgen.load import Job, Load, RunLevel, clear_the_way
from loadgen.record import EndedBy, LevelPlan, LevelRow, Row

_READY_S = 30
_FOR_ALL: tuple[EndedBy, ...] = ("over-saturated",)  # if it is the end for one
# What is said of the level if it was the end for one: the last two, that a worker had no more to send before the others
_SAID_FIRST: tuple[EndedBy, ...] = ("interrupt", "over-saturated", "errors", "schedule", "requests")
_BEGIN_NS = 20_000_000  # from Begin to the beginning: time for it to reach all


class Order(msgspec.Struct, frozen=True, tag=True):
    plan: LevelPlan
    request_s: float


class Begin(msgspec.Struct, frozen=True, tag=True):
    at: Moment


class End(msgspec.Struct, frozen=True, tag=True):
    by: EndedBy


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
_to_worker = msgspec.msgpack.Decoder(Order | Begin | End | Stop).decode
_from_worker = msgspec.msgpack.Decoder(Ready | Rows | Ended | End | Fault).decode


class Workers:
    """The processes, seen from the one that started them. Raises OSError where one fails, and what `emit` or `flush`
    raised."""

    def __init__(self, emit: Callable[[Row], None], flush: Callable[[], None]) -> None:
        self._emit = emit
        self._flush = flush
        self._most_errors: int | None = None  # of a level; those of all processes count
        self._errors = 0
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._said: asyncio.Queue[Ready | Ended | Fault | Exception] = asyncio.Queue()

    @classmethod
    async def start(cls, job: Job, workers: int, emit: Callable[[Row], None], flush: Callable[[], None]) -> "Workers":
        made = cls(emit, flush)
        made._most_errors = job.settings.until.errors
        context = multiprocessing.get_context("spawn")
        try:
            shared = job.settings.max_concurrency
            cap = None if shared is None else places(shared, workers)
            for worker in range(workers):
                ours, theirs = context.Pipe()
                own = msgspec.structs.replace(job, share=Share(worker, workers))
                process = context.Process(target=_work, args=(theirs, own, cap), daemon=True)
                start_deaf(process)
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
        self._errors = 0
        busy = self._pipes[: plan.concurrency]  # fewer slots than workers: the others have none
        self._tell(busy, Order(plan, request_s))
        await self._wait_for(len(busy))
        self._tell(busy, Begin(now().later(_BEGIN_NS)))
        stopping = asyncio.create_task(self._pass_on(stop))
        try:
            ended = await self._wait_for(len(busy))
        finally:
            stopping.cancel()
        return _joined([message.row for message in ended if isinstance(message, Ended)])

    def end(self, by: EndedBy) -> None:
        """End the level that is running, in all."""
        self._tell(self._pipes, End(by))

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
            if isinstance(message, Exception):
                raise message
            if isinstance(message, Fault):
                raise OSError(message.message)
            messages.append(message)
        return messages

    async def _pass_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._tell(self._pipes, Stop())

    def _tell(self, pipes: list[Connection], message: Order | Begin | End | Stop) -> None:
        encoded = _encode(message)
        for pipe in pipes:
            pipe.send_bytes(encoded)

    def _on_readable(self, pipe: Connection) -> None:
        try:
            message = _from_worker(pipe.recv_bytes())
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(pipe.fileno())
            self._said.put_nowait(Fault("a worker process has ended unexpectedly; what it had sent is kept"))
            return
        if isinstance(message, Rows):
            try:
                for row in message.rows:
                    self._emit(row)
                self._flush()
                self._count_errors(message.rows)
            except Exception as fault:  # noqa: BLE001 - a full disk, or a fault of ours: whoever waits raises it
                self._said.put_nowait(fault)
        elif isinstance(message, End):
            self._tell(self._pipes, message)
        else:
            self._said.put_nowait(message)

    def _count_errors(self, rows: list[Row]) -> None:
        before = self._errors
        self._errors += sum(row.status == "failed" for row in rows)
        if self._most_errors is not None and before < self._most_errors <= self._errors:
            self.end("errors")


def _joined(rows: list[LevelRow]) -> LevelRow:
    """One row of several: the processor time is that of the busiest process, which limits them all; no more waited at
    once than in all of them at their worst."""
    ends = [row.ended_by for row in rows]
    return msgspec.structs.replace(
        rows[0],
        start_us=min(row.start_us for row in rows),
        end_us=max(row.end_us for row in rows),
        ended_by=next((end for end in _SAID_FIRST if end in ends), ends[0]),
        cpu_us=max(row.cpu_us for row in rows),
        clock_step_us=max((row.clock_step_us for row in rows), key=abs),
        due=_sum([row.due for row in rows]),
        dropped=_sum([row.dropped for row in rows]),
        waited_max=_sum([row.waited_max for row in rows]),
    )


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


# In the worker


def _work(pipe: Connection, job: Job, cap: Places | None) -> None:
    import uvloop

    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        try:
            uvloop.run(_serve(pipe, job, cap))
        except (OSError, ValueError) as error:
            pipe.send_bytes(_encode(Fault(f"a worker process failed: {error}")))


async def _serve(pipe: Connection, job: Job, cap: Places | None) -> None:
    loop = asyncio.get_running_loop()
    told: asyncio.Queue[Order | Begin | None] = asyncio.Queue()
    stop = asyncio.Event()
    rows: list[Row] = []

    def on_readable() -> None:
        try:
            message = _to_worker(pipe.recv_bytes())
        except (EOFError, OSError):
            loop.remove_reader(pipe.fileno())
            stop.set()
            told.put_nowait(None)
            return
        if isinstance(message, Stop):
            stop.set()
        elif isinstance(message, End):
            load.end(message.by)
        else:
            told.put_nowait(message)

    def on_end(by: EndedBy) -> None:
        if by in _FOR_ALL:
            pipe.send_bytes(_encode(End(by)))

    def flush() -> None:
        if rows:
            pipe.send_bytes(_encode(Rows(rows)))
            rows.clear()

    async with open_client(job.settings.access) as client:
        load = Load(job, client, rows.append, flush, cap, on_end)
        level: RunLevel | None = None
        loop.add_reader(pipe.fileno(), on_readable)
        clear_the_way()
        pipe.send_bytes(_encode(Ready()))
        while (message := await told.get()) is not None:
            if isinstance(message, Order):
                level = load.prepare(message.plan, message.request_s)
                pipe.send_bytes(_encode(Ready()))
            elif level is not None:
                row = await level(stop, message.at)
                flush()
                pipe.send_bytes(_encode(Ended(row)))
        await load.aclose()
