"""A run from its settings to a run directory: reach the server, preflight, one level after another, every row written.

The first interrupt stops the load and keeps what has finished; a second one leaves at once.
"""

import asyncio
import contextlib
import importlib.metadata
import itertools
import os
import platform
import re
import secrets as entropy
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec

from loadgen.cap import places
from loadgen.checks import check_data_sets, check_lengths, check_room, make_room, request_s
from loadgen.clock import ns_of, utc, wall_ns
from loadgen.endpoint import Target, open_client, parse_target, root, secrets_in, under
from loadgen.enough import Enough, judging
from loadgen.load import Job, Load, clear_the_way, levels_of, text_counter
from loadgen.machine import known
from loadgen.open import NoRoom
from loadgen.preflight import Server, preflight
from loadgen.record import Header, LevelPlan, LevelRow, Row, RunWriter, Secrets, names_a_secret
from loadgen.scrape import Scraper, Source, scraping, sources
from loadgen.sending import Client
from loadgen.settings import Settings
from loadgen.sim import child
from loadgen.workers import Workers
from workloads.plan import digest
from workloads.workload import Workload, input_text, output_text

_LIBRARIES = ("httpx", "httptools", "uvloop", "msgspec", "numpy")


class Watcher(msgspec.Struct, frozen=True, kw_only=True):
    """Who is told of the course of a run. `after_level` says whether the run goes on."""

    on_begin: Callable[[Path, Server], None]  # the run directory, before the first level
    on_level: Callable[[LevelPlan], None]
    on_row: Callable[[Row], None]
    after_level: Callable[[Path, LevelRow], bool]
    on_note: Callable[[str], None] = lambda _: None


class Outcome(msgspec.Struct, frozen=True):
    directory: Path
    interrupted: bool


class _Reached(msgspec.Struct, frozen=True, kw_only=True):
    """A server that answers, and what it takes to load it."""

    target: Target
    secrets: Secrets
    client: Client
    server: Server
    interrupts: "_Interrupts"
    pages: list[Source]


@contextlib.asynccontextmanager
async def _reached(settings: Settings) -> AsyncIterator[_Reached]:
    count_text = None if settings.tokenizer is None else text_counter(settings.tokenizer)  # before anything is reached
    async with contextlib.AsyncExitStack() as stack:
        interrupts = stack.enter_context(_interrupts())
        url = settings.target
        if url.startswith("sim:"):
            url = await stack.enter_async_context(child.start(url.removeprefix("sim:")))
        target = parse_target(url)
        pages = sources(settings.metrics, target, settings.access)
        in_pages = [secret for page in pages for secret in page.secrets]
        secrets = Secrets([*target.secrets, *in_pages, *secrets_in(settings.access), *_secrets_in(settings.extra)])
        client = await stack.enter_async_context(open_client(settings.access))
        server = await preflight(
            client,
            target,
            settings.access,
            secrets,
            api=settings.api,
            model=settings.model,
            extra=settings.extra,
            limits=settings.limits,
            tokenizer=count_text,
        )
        yield _Reached(target=target, secrets=secrets, client=client, server=server, interrupts=interrupts, pages=pages)


async def probe(settings: Settings) -> Server:
    """The preflight alone. Raises as `run` does."""
    async with _reached(settings) as reached:
        return reached.server


async def run(settings: Settings, watcher: Watcher, plans: Iterable[LevelPlan] | None = None) -> Outcome:
    """`plans` are levels that are decided one after another, as the run goes on; None: the settings say which.

    Raises ValueError (also as Unusable) where nothing can be measured, OSError where files fail, CancelledError on
    an interrupt before the load or a second one in it."""
    make_room(settings)
    check_data_sets(settings)
    async with _reached(settings) as reached:
        server = reached.server
        check_lengths(settings, server)
        check_room(settings, server)
        start_ns = wall_ns() // 1000 * 1000  # what all times count from; the header has it to the microsecond
        levels = levels_of(settings) if plans is None else []
        header = _header(settings, reached.target, server, levels, entropy.token_hex(8), start_ns)
        with _writer(settings, server, header, start_ns) as writer:
            header = writer.header
            start_ns = ns_of(datetime.fromisoformat(header.started_at))
            job = Job(settings=settings, server=server, secrets=reached.secrets, salt=header.salt, start_ns=start_ns)
            watcher.on_begin(writer.directory, server)
            sweep = _Sweep(settings, watcher, reached, writer)
            if settings.workers > 1:
                load: Load | Workers = await Workers.start(job, settings.workers, sweep.emit, writer.flush)
            else:
                cap = None if settings.max_concurrency is None else places(settings.max_concurrency)
                load = Load(job, reached.client, sweep.emit, writer.flush, cap)
            judged = (
                judging(writer.directory, lambda: load.end("enough"))
                if settings.until.enough
                else contextlib.nullcontext()
            )
            try:
                async with scraping(reached.pages, writer.directory, start_ns) as scraper, judged as sweep.enough:
                    reached.interrupts.load_begins()
                    clear_the_way()
                    await sweep.run(list(header.levels) if plans is None else plans, load, scraper)
            except NoRoom as error:
                raise NoRoom(f"{error}. What was measured before: loadgen report {writer.directory}") from None
            finally:
                await load.aclose()
            return Outcome(writer.directory, reached.interrupts.event.is_set())


class _Sweep:
    """The levels of one run, one after another, whoever sends them."""

    def __init__(self, settings: Settings, watcher: Watcher, reached: _Reached, writer: RunWriter) -> None:
        self._settings = settings
        self._watcher = watcher
        self._server = reached.server
        self._client = reached.client
        self._stop = reached.interrupts.event
        self._writer = writer
        self.enough: Enough | None = None
        self._took_us, self._ended_well = 0, 0  # of the level's requests
        self._can_reset = True

    def emit(self, row: Row) -> None:
        self._writer.add(row)
        if row.status == "ok" and row.end_us is not None:
            self._took_us += row.end_us
            self._ended_well += 1
        if self.enough is not None:
            self.enough.row(row)
        self._watcher.on_row(row)

    async def run(self, plans: Iterable[LevelPlan], load: Load | Workers, scraper: Scraper) -> None:
        took_s = request_s(self._settings, self._server)
        for plan in plans:
            await self._reset_prefix_cache()
            self._took_us = self._ended_well = 0
            self._writer.add_plan(plan)
            self._watcher.on_level(plan)
            if self.enough is not None:
                self.enough.begin(plan)
            await scraper.sample()  # what its counters grow by from here to the next one is the level's
            row = await load.run_level(plan, took_s, self._stop)
            self._writer.add_level(row)
            await scraper.sample()
            if self._ended_well:
                took_s = self._took_us / self._ended_well / 1e6
            goes_on = self._watcher.after_level(self._writer.directory, row)
            if self.enough is not None and row.ended_by == "duration":
                self._watcher.on_note(f"--duration came before its sample was enough: {self.enough.lacks}")
            if not goes_on or self._stop.is_set():
                return

    async def _reset_prefix_cache(self) -> None:
        """Where the server can (vLLM in development mode, SGLang): prompts are fresh anyway, this frees the room."""
        if self._can_reset:
            self._can_reset = False
            with contextlib.suppress(httpx.HTTPError):
                response = await self._client.post(under(root(self._server.base), "/reset_prefix_cache"), timeout=10)
                self._can_reset = response.status_code == 200


class _Interrupts:
    """Before the load an interrupt cancels; in the load the first one sets `event`, the next one cancels."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self._loading = False
        self._task = asyncio.current_task()

    def load_begins(self) -> None:
        self._loading = True

    def hit(self) -> None:
        if self._loading and not self.event.is_set():
            self.event.set()
        elif self._task is not None:
            self._task.cancel()


@contextlib.contextmanager
def _interrupts() -> Iterator[_Interrupts]:
    interrupts = _Interrupts()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupts.hit)
    try:
        yield interrupts
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _secrets_in(value: Any) -> list[str]:
    """Of the user's --body, however deep."""
    if isinstance(value, dict):
        found = [str(inner) for key, inner in value.items() if names_a_secret(key)]
        return found + [secret for inner in value.values() for secret in _secrets_in(inner)]
    return [secret for inner in value for secret in _secrets_in(inner)] if isinstance(value, list) else []


def _default_out(server: Server, workload: Workload, start_ns: int) -> Path:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", server.dialect.model.rsplit("/", 1)[-1])[:60]
    work = re.sub(r"[^A-Za-z0-9._-]+", "-", workload.name)[:60]
    place = Path("runs") / f"{utc(start_ns):%Y%m%d-%H%M%S}-{name}-{work}"
    others = (place.with_name(f"{place.name}-{number}") for number in itertools.count(2))  # within the same second
    return next(path for path in itertools.chain([place], others) if not path.exists())


def _writer(settings: Settings, server: Server, header: Header, start_ns: int) -> RunWriter:
    if settings.out is not None and settings.seeks is not None and settings.out.exists():
        return RunWriter.resumed(settings.out, header)
    return RunWriter(settings.out or _default_out(server, settings.workload, start_ns), header)


def _header(
    settings: Settings, target: Target, server: Server, levels: list[LevelPlan], salt: str, start_ns: int
) -> Header:
    label = settings.target if settings.target.startswith("sim:") else target.label
    arrivals = None if settings.law is None else str(settings.law)
    return Header(
        loadgen=importlib.metadata.version("loadgen"),
        started_at=utc(start_ns).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        target=label,
        model=server.dialect.model,
        api=server.dialect.api,
        hardware=known(settings, server),
        workload=_workload(settings, server, arrivals),
        arrivals=arrivals,
        levels=levels,
        seed=settings.seed,
        salt=salt,
        slo=list(settings.slo),
        seeks=settings.seeks,
        bounds=settings.bounds,
        clock="kernel" if server.facts["stamped"] else "user",
        host=_host(),
        server=server.facts,
        options=settings.options,
    )


def _workload(settings: Settings, server: Server, arrivals: str | None) -> dict[str, Any]:
    workload, trace = settings.workload, settings.trace
    classes = [
        {
            "name": one.name,
            "weight": one.weight,
            "input": input_text(one),
            "output": output_text(one),
            "slo": list(one.slo),
        }
        for one in workload.classes
    ]
    lengths = {key: classes[0][key] for key in ("input", "output")} if len(classes) == 1 else {}
    plan_digest = digest(
        workload,
        seed=settings.seed,
        api=server.dialect.api,
        arrivals=arrivals,
        trace_digest=None if trace is None else trace.digest,
    )
    return {"name": workload.name, **lengths, "digest": plan_digest, "classes": classes}


def _host() -> dict[str, Any]:
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in _LIBRARIES},
    }


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
