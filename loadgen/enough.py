"""`--requests enough`: a level ends once its window and its sample carry the percentiles that are asked of it.

That is seen in what has been written so far, by a process of its own at the lowest priority: to read a level takes up
to seconds, in which the load's process would read no socket. It is asked when the smallest sample that could do is
there, and then each time there is half as much again. Where it is slow, or has ended, levels go on to their --duration.

What a sample is worth is itself uncertain, and to stop as soon as it looks well is to stop at a lucky moment. Over the
simulated engine (8 at once, and 10/s, 40 levels of 4 min each) 8 of 78 levels that ended so did not carry a p99 in the
end; of those that had to look well a little earlier too, 1 of 74.

    to it     the number of the level that is running
    from it   Ready, once; then for each number an Answer
"""

import asyncio
import contextlib
import math
import multiprocessing
import os
from collections.abc import AsyncIterator, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from loadgen.children import start_deaf
from loadgen.course import DEFAULT_UNTIL
from loadgen.record import LevelPlan, Row

if TYPE_CHECKING:
    from analysis.measured import Level
    from analysis.records import Header, Run

MORE = 1.5  # times as many requests, before it is asked again
VIEWS = (1.0, 0.95, 0.9)  # of the time so far: in each of them it is to suffice
WINDOW = 2  # mean requests long, at least
_LOWEST = 19
_READY_S = 10
_DEFAULT = (("", "ttft", 0.99), ("", "itl", 0.99), ("", "e2e", 0.99))


class Ready(msgspec.Struct, frozen=True, tag=True):
    fewest: int  # requests that could do


class Answer(msgspec.Struct, frozen=True, tag=True):
    level: int
    lacks: str | None  # None: it is enough


Asked = tuple[tuple[str, str, float], ...]  # class ("": all), metric and quantile of each percentile

_encode = msgspec.msgpack.encode
_to_judge = msgspec.msgpack.Decoder(int).decode
_from_judge = msgspec.msgpack.Decoder(Ready | Answer).decode


class Enough:
    """Seen from the process of the load, which it never makes wait. `end` ends the level that is running."""

    def __init__(self, pipe: Connection, end: Callable[[], None]) -> None:
        self._pipe: Connection | None = pipe
        self._end = end
        self._fewest: int | None = None
        self._plan: LevelPlan | None = None
        self._measured = 0
        self._next = 0.0  # so many are there when it is asked again
        self._waiting = False  # for an answer
        self.ready = asyncio.Event()
        self.lacks = ""  # what the level did when it was last looked at
        asyncio.get_running_loop().add_reader(pipe.fileno(), self._on_readable, pipe)

    def begin(self, plan: LevelPlan) -> None:
        self._plan = plan
        self._measured = 0
        self._next = DEFAULT_UNTIL.per_slot * (plan.concurrency or 0)
        if self._pipe is not None:
            self.lacks = "there are too few requests"

    def row(self, row: Row) -> None:
        """Of the level that is running; it is written soon after."""
        self._measured += row.phase == "measure" and row.status == "ok"
        if self._plan is None or self._pipe is None or self._fewest is None or self._waiting:
            return
        if self._measured >= max(self._next, self._fewest):
            self._next = MORE * self._measured
            self._waiting = True
            with contextlib.suppress(OSError):  # the process has ended: that is about to be read
                self._pipe.send_bytes(_encode(self._plan.level))

    def close(self) -> None:
        if self._pipe is not None:
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self._pipe.close()
            self._pipe = None

    def _on_readable(self, pipe: Connection) -> None:
        try:
            message = _from_judge(pipe.recv_bytes())
        except (EOFError, OSError):
            self.close()
            self.lacks = "the process that looks at the sample has ended"
            self.ready.set()
            return
        if isinstance(message, Ready):
            self._fewest = message.fewest
            self.ready.set()
            return
        self._waiting = False
        if self._plan is not None and message.level == self._plan.level:
            self.lacks = message.lacks or ""
            if message.lacks is None:
                self._end()


@contextlib.asynccontextmanager
async def judging(directory: Path, end: Callable[[], None]) -> AsyncIterator[Enough]:
    """Of the run in `directory`. Waits a while for the process, so that its start is over before the load begins."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_judge, args=(theirs, directory), daemon=True)
    start_deaf(process)
    theirs.close()
    enough = Enough(ours, end)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READY_S):
                await enough.ready.wait()
        yield enough
    finally:
        enough.close()
        process.kill()  # it may be in the middle of a level that nobody asks for any more
        await asyncio.to_thread(process.join)


# In the process that looks at the sample


def _judge(pipe: Connection, directory: Path) -> None:
    os.nice(_LOWEST)
    from analysis import quantiles, records

    asked = asked_of(records.read_header(directory))
    with contextlib.suppress(EOFError, OSError):
        pipe.send_bytes(_encode(Ready(math.ceil(max(quantiles.min_n(q) for _, _, q in asked) / min(VIEWS)))))
        while True:
            level = _to_judge(pipe.recv_bytes())
            try:
                lacks = lacking(records.read(directory, only=level), level, asked)
            except ValueError as error:
                lacks = str(error)
            pipe.send_bytes(_encode(Answer(level, lacks)))


def asked_of(header: "Header") -> Asked:
    """The percentiles of latencies in the SLOs; where there is none, the usual p99."""
    from analysis import slo

    terms = [("", text) for text in header.slo or ()]
    terms += [(one.name or "", text) for one in header.workload.classes for text in one.slo or ()]
    parsed = [(name, slo.parse(text)) for name, text in terms]
    found = {
        (name, one.metric, one.percent / 100): None for name, one in parsed if one.percent and one.metric != "stall"
    }
    return tuple(found) or _DEFAULT


def lacking(run: "Run", level: int, asked: Asked) -> str | None:
    """What the level, which is not over, needs more of; None: nothing."""
    from analysis import measured, records, window

    requests = run.requests.get(level, records.NO_REQUESTS)
    found = window.find(requests, open_loop=run.header.planned(level).open_loop)
    if found is None:
        return "nothing has been measured"
    for share in VIEWS:
        seen = records.subset(requests, requests.sent_us <= found.start_us + share * (found.end_us - found.start_us))
        seen_run = msgspec.structs.replace(run, requests={level: seen})
        if lacks := _lacks(measured.summarize_level(seen_run, level), asked):
            return lacks
    return None


def _lacks(level: "Level", asked: Asked) -> str | None:
    from analysis import quantiles

    request_ms = level.e2e_ms.mean
    if level.window_s is None or request_ms is None:
        return "nothing has been measured"
    if level.window_s < WINDOW * request_ms / 1e3:
        return f"the window ({level.window_s:.3g} s) is shorter than {WINDOW} requests take"
    for finding in level.findings:
        if finding.code in ("not-steady", "over-saturated"):
            return finding.message
    of: dict[str, Any] = {"": level} | {part.name: part for part in level.classes}
    for name, metric, q in asked:
        one = of.get(name)
        if one is None or not one.e2e_ms.n:
            return f"no request of {name} has ended"
        spread = getattr(one, f"{metric}_ms")
        n_eff = spread.n if spread.n_eff is None else spread.n_eff
        need = quantiles.min_n(q)
        if n_eff < need and spread.n:  # where each answer is one event there are no gaps, and never will be
            what = f"{name} {metric}".strip()
            return f"{what} p{100 * q:g} has {n_eff} of {need} values that do not depend on each other"
    return None
