"""The load of one process: its share of each level, request by request to rows."""

import asyncio
import bisect
import functools
import gc
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
from asyncio_throttle.throttler import Throttler

from loadgen.cap import Line, Places
from loadgen.closed import closed_loop
from loadgen.course import WHOLE, Course, Share, Until, until_of
from loadgen.exchange import Exchange, Sent, Wire
from loadgen.levels import Moment
from loadgen.open import open_loop
from loadgen.pacing import Timetable, timetable, warmup_us
from loadgen.preflight import Server
from loadgen.record import EndedBy, LevelPlan, LevelRow, Phase, Row, Secrets
from loadgen.room import room
from loadgen.sending import Client, sender
from loadgen.settings import Settings
from loadgen.slices import Slices
from workloads.plan import requests
from workloads.request import Request
from workloads.schedule import Law, due_us
from workloads.traces import replay_us

RunLevel = Callable[[asyncio.Event, Moment | None], Awaitable[LevelRow]]

MOST_LEVELS = 64  # of a run that decides on them as it goes on; a data set is dealt out among so many
_MADE = 64  # requests whose prompts are made before a level's clock starts

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
    """`emit` gets each row, `flush` is called when some have been given; `places` are those of the cap; `on_end` is
    told why a level ends where its Course ends it."""

    def __init__(
        self,
        job: Job,
        client: Client,
        emit: Callable[[Row], None],
        flush: Callable[[], None],
        places: Places | None = None,
        on_end: Callable[[EndedBy], None] = lambda _: None,
    ) -> None:
        settings, server = job.settings, job.server
        self._job = job
        self._places = places
        self._on_end = on_end
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

    def prepare(self, plan: LevelPlan, request_s: float) -> "RunLevel":
        """The level, to be run at once: its text and timetable are made here, which takes tens of milliseconds.

        `request_s` is about how long one request takes.
        """
        level = self._closed(plan, request_s) if plan.concurrency is not None else self._open(plan, request_s)

        async def run(stop: asyncio.Event, begin: Moment | None = None) -> LevelRow:
            row = await level(stop=stop, begin=begin, start_ns=self._job.start_ns)
            await self._slices.drain()
            return row

        return run

    def _closed(self, plan: LevelPlan, request_s: float) -> Callable[..., Awaitable[LevelRow]]:
        job, slots = self._job, plan.concurrency
        assert slots is not None
        # With fewer slots than workers, only so many workers have a share.
        share = Share(job.share.worker, min(job.share.workers, slots))
        rate_per_s = job.settings.max_rps
        self._course = Course(
            _share_of(until_of(plan, job.settings.until), share), slots=share.count(slots), on_end=self._on_end
        )
        return functools.partial(
            closed_loop,
            plan,
            self._own(plan, share),
            self._exchange,
            self._course,
            request_s=request_s,
            wait_turn=None if rate_per_s is None else _throttle(rate_per_s / share.workers),
            share=share,
        )

    def _open(self, plan: LevelPlan, request_s: float) -> Callable[..., Awaitable[LevelRow]]:
        job, until = self._job, until_of(plan, self._job.settings.until)
        table = timetable_of(job.settings, plan, request_s)
        own = table.due_us[job.share.worker :: job.share.workers]
        measured = len(own) - bisect.bisect_left(own, table.warmup_us)
        # Time ends the timetable; what is counted here are the turns of conversations, which are not in it.
        counted = Until(
            requests=None if until.requests is None else measured, errors=_share_of(until, job.share).errors
        )
        rate_per_s = 0.0 if plan.rate_per_s is None else plan.rate_per_s
        self._course = Course(counted, rate_per_s=rate_per_s / job.share.workers, on_end=self._on_end)
        return functools.partial(
            open_loop,
            plan,
            table,
            self._own(plan, job.share),
            self._exchange,
            self._course,
            room=room(),
            line=None if self._places is None else Line(self._places, job.share.worker),
            dispersion=dispersion(job.settings.law),
            share=job.share,
        )

    def _own(self, plan: LevelPlan, share: Share) -> Iterator[Request]:
        """This process' part of the level's requests, the first of them made."""
        job = self._job
        own = itertools.islice(
            planned(job.settings, job.server, job.salt, plan.level), share.worker, None, share.workers
        )
        return itertools.chain(list(itertools.islice(own, _MADE)), own)

    async def run_level(self, plan: LevelPlan, request_s: float, stop: asyncio.Event) -> LevelRow:
        return await self.prepare(plan, request_s)(stop, None)

    def end(self, by: EndedBy) -> None:
        """End the level that is running."""
        if self._course is not None:
            self._course.end(by)

    async def aclose(self) -> None:
        """What has ended becomes a row first, also when a second interrupt ends the run."""
        try:
            await self._slices.drain()
        finally:
            await self._slices.aclose()

    def _exchange(self, request: Request, phase: Phase, due_ns: int | None) -> Callable[[], Awaitable[Sent]]:
        return Exchange(self._wire, request, phase, due_ns).run

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
    """The requests of a level, for all processes. Raises ValueError."""
    conversations = any(one.turns is not None for one in settings.workload.classes)
    return requests(
        settings.workload,
        server.vocabulary,
        seed=settings.seed,
        salt=salt,
        level=level,
        levels=level_count(settings),
        as_ids=server.as_ids and not conversations,  # what the server says is text
        trace=settings.trace,
    )


def level_count(settings: Settings) -> int:
    if settings.seeks is not None:
        return MOST_LEVELS
    return len(settings.concurrency or settings.speeds or settings.rates) or 1  # a ramp is one


def levels_of(settings: Settings) -> list[LevelPlan]:
    """Raises ValueError."""
    if settings.trace is not None:
        return [_replayed(settings, level, speed) for level, speed in enumerate(settings.speeds)]
    if settings.law is None:
        return [LevelPlan(level, slots) for level, slots in enumerate(settings.concurrency)]
    if settings.law.name == "ramp":
        return [LevelPlan(0, None, sum(settings.law.parameters) / 2)]
    return [LevelPlan(level, None, rate_per_s) for level, rate_per_s in enumerate(settings.rates)]


def _replayed(settings: Settings, level: int, speed: float) -> LevelPlan:
    plan = LevelPlan(level, None, None, speed)
    table = timetable_of(settings, plan, request_s=0)
    lasts_us = table.end_us if table.ended_by == "duration" else table.due_us[-1]
    return msgspec.structs.replace(plan, rate_per_s=len(table.due_us) / lasts_us * 1e6 if lasts_us else None)


def timetable_of(settings: Settings, plan: LevelPlan, request_s: float) -> Timetable:
    """The open loop of one level, the same in every process. Raises ValueError."""
    until, law = until_of(plan, settings.until), settings.law
    assert law is not None
    if settings.trace is not None:
        assert plan.speed is not None
        return timetable(replay_us(settings.trace, plan.speed).tolist(), until, warmup_us=0)
    offsets_us = due_us(
        law, seed=settings.seed, level=plan.level, rate_per_s=plan.rate_per_s, duration_s=until.duration_s
    )
    if law.name == "ramp":
        assert until.duration_s is not None
        end_us = round(until.duration_s * 1e6)  # the ramp ends before it, and the level with it
        return timetable(itertools.chain(offsets_us, [end_us]), until, warmup_us=0)
    assert plan.rate_per_s is not None
    return timetable(offsets_us, until, warmup_us(request_s, until, plan.rate_per_s))


def dispersion(law: Law | None) -> float | None:
    """Variance over mean of the number of arrivals in a long time; None: their rate changes as planned."""
    if law is None:
        return None
    if law.name == "gamma":
        return law.parameters[0] ** 2
    return {"poisson": 1.0, "constant": 0.0}.get(law.name)


def _share_of(until: Until, share: Share) -> Until:
    return msgspec.structs.replace(
        until,
        requests=None if until.requests is None else share.count(until.requests),
        errors=until.errors if share.workers == 1 else None,  # counted where the rows of all come together
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
