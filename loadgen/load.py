"""The load of one process: its share of each level, request by request to rows."""

import asyncio
import functools
import gc
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
from asyncio_throttle.throttler import Throttler

from loadgen.exchange import Exchange, Wire
from loadgen.levels import WHOLE, Course, Share, Until, closed_loop
from loadgen.preflight import Server
from loadgen.record import LevelPlan, LevelRow, Phase, Row, Secrets
from loadgen.sending import Client, sender
from loadgen.settings import Settings
from loadgen.slices import Slices
from workloads.plan import requests
from workloads.request import Request

_UNCOLLECTED = 1_000_000  # containers made and not freed; a thousand streams of long answers hold a tenth of that


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a process needs to take part in a run."""

    settings: Settings
    server: Server
    secrets: Secrets
    salt: str
    start_ns: int  # what all times count from
    share: Share = WHOLE


class Load:
    """`emit` gets each row, `flush` is called when some have been given."""

    def __init__(self, job: Job, client: Client, emit: Callable[[Row], None], flush: Callable[[], None]) -> None:
        settings, server = job.settings, job.server
        self._job = job
        self._emit_row = emit
        self._slices = Slices(flush)
        self._course: Course | None = None
        self._wire = Wire(
            send=sender(client, server.url, settings.limits.connect_s),
            dialect=server.dialect,
            limits=settings.limits,
            slices=self._slices,
            secrets=job.secrets,
            emit=self._emit,
            start_ns=job.start_ns,
            line_limit_bytes=settings.line_limit_bytes,
            count_text=None if settings.tokenizer is None else text_counter(settings.tokenizer),
        )

    async def run_level(
        self, plan: LevelPlan, request_s: float, stop: asyncio.Event, begin_ns: int | None = None
    ) -> LevelRow:
        """Returns when each of its requests is a row. Arguments as of `closed_loop`."""
        job = self._job
        # With fewer slots than workers, only so many workers have a share.
        share = Share(job.share.worker, min(job.share.workers, plan.concurrency))
        rate_per_s = job.settings.max_rps
        # Made before the level starts: preparing its text takes tens of milliseconds.
        own = itertools.islice(
            planned(job.settings, job.server, job.salt, plan.level), share.worker, None, share.workers
        )
        self._course = Course(share.count(plan.concurrency), _share_of(job.settings.until, share))
        row = await closed_loop(
            plan,
            own,
            self._send,
            self._course,
            request_s=request_s,
            stop=stop,
            start_ns=job.start_ns,
            wait_turn=None if rate_per_s is None else _throttle(rate_per_s / share.workers),
            share=share,
            begin_ns=begin_ns,
        )
        await self._slices.drain()
        return row

    async def aclose(self) -> None:
        """What has ended becomes a row first, also when a second interrupt ends the run."""
        try:
            await self._slices.drain()
        finally:
            await self._slices.aclose()

    async def _send(self, request: Request, phase: Phase) -> bool:
        return await Exchange(self._wire, request, phase).run()

    def _emit(self, row: Row) -> None:
        self._emit_row(row)
        if self._course is not None and row.status != "cancelled":
            self._course.finished(row.status == "ok")


def clear_the_way() -> None:
    """Keep the garbage collector out of the load: a full collection walks every object there is, for tens of
    milliseconds in which no socket is read.

    What the start of the process has left behind is taken out of its sight. A request leaves no cycle, so reference
    counts free it; should that fail somewhere, a collection still comes with every so many objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_UNCOLLECTED)


def planned(settings: Settings, server: Server, salt: str, level: int) -> Iterator[Request]:
    return requests(
        settings.workload, server.vocabulary, seed=settings.seed, salt=salt, level=level, as_ids=server.as_ids
    )


def _share_of(until: Until, share: Share) -> Until:
    return msgspec.structs.replace(
        until,
        requests=None if until.requests is None else share.count(until.requests),
        errors=None if until.errors is None else max(1, share.count(until.errors)),
    )


def _throttle(rate_per_s: float) -> Callable[[], Awaitable[None]]:
    """A wait for one's turn: one request in each 1/R seconds, since a limit of R in a second lets R go at once."""
    period_s = 1 / rate_per_s
    throttler = Throttler(1, period_s, min(0.01, period_s / 50))
    line = asyncio.Lock()  # the throttler polls: one waiter at a time does

    async def wait_turn() -> None:
        async with line, throttler:
            pass

    return wait_turn


@functools.cache  # the preflight and the load use the same one, and reading it takes long
def text_counter(path: Path) -> Callable[[str], int]:
    """Counts the tokens of a text by a tokenizer.json, without special tokens. Raises ValueError."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ValueError("--tokenizer needs the optional extra: pip install 'loadgen[tokenizers]'") from None
    if not path.is_file():
        raise ValueError(f"--tokenizer {path}: no such file; expected a tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises a bare Exception
        raise ValueError(f"--tokenizer {path}: not a tokenizer.json ({error})") from None
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
