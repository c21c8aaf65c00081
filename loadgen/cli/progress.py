"""What a run says while it goes on, on standard error: one line that changes, and one line per level that stays.

It is drawn from the event loop twice a second, not from a thread: a thread would take the interpreter from the reads.
"""

import asyncio
import statistics
import unicodedata
from collections import deque
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from loadgen.clock import mono_ns
from loadgen.course import Until, until_of
from loadgen.record import LevelPlan, LevelRow, Row

if TYPE_CHECKING:
    from loadgen.preflight import Server

REFRESH_S = 0.5
_RECENT = 200  # requests that the TTFT shown goes over
_WHY = {
    "errors": ": given up, every request fails",
    "interrupt": ": interrupted",
    "over-saturated": ": stopped, the server does not keep up with this rate",
}


class Progress:
    def __init__(self, console: Console, levels: int | None, until: Until) -> None:  # None: not known before
        self._console = console
        self._levels = levels
        self._until = until
        self._live: Live | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._plan: LevelPlan | None = None
        self._reset()

    def _reset(self) -> None:
        self._begun_ns = mono_ns()
        self._measuring_ns: int | None = None
        self._ok = self._failed = self._tokens = self._measured = 0
        self._ttft_ms: deque[float] = deque(maxlen=_RECENT)

    def server(self, server: "Server") -> None:
        facts = server.facts
        self._say(f"{server.dialect.model} at {facts['url']}, prompts as {facts['prompt_as']}")
        if facts["dropped"]:
            self._say(f"the server refuses {', '.join(facts['dropped'])}: left out for the whole run", "yellow")
        if facts["prompt_tokens_from"] == "guess":
            self._say("the server does not count prompt tokens: lengths are guessed, a word for a token", "yellow")
        if not facts["stamped"]:
            self._say("no kernel time stamps here: times are taken when this process reads", "yellow")

    def level(self, plan: LevelPlan) -> None:
        self._plan = plan
        self._reset()
        if self._console.is_terminal and not self._console.quiet:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
            self._tick()

    def row(self, row: Row) -> None:
        if row.status == "cancelled":
            return
        self._ok += row.status == "ok"
        self._failed += row.status == "failed"
        self._tokens += row.output_tokens or 0
        if row.phase == "measure":
            self._measured += 1
            self._measuring_ns = self._measuring_ns or mono_ns()
        if row.events_us and row.sent_us is not None:
            self._ttft_ms.append((row.sent_us + row.events_us[0] - row.due_us) / 1000)

    def level_ended(self, row: LevelRow) -> None:
        self.stop()
        self._say(f"{self._line()}{_WHY.get(row.ended_by, '')}")

    def say(self, text: str) -> None:
        self._say(text)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _tick(self) -> None:
        if self._live is not None:
            self._live.update(Text(self._line(), overflow="ellipsis", no_wrap=True), refresh=True)
            self._timer = asyncio.get_running_loop().call_later(REFRESH_S, self._tick)

    def _line(self) -> str:
        assert self._plan is not None
        elapsed_s = (mono_ns() - self._begun_ns) / 1e9
        of = "" if self._levels is None else f"/{self._levels}"
        parts = [f"level {self._plan.level + 1}{of}", _load(self._plan)]
        if self._live is not None and (left_s := self._left_s()) is not None:
            parts.append(f"{'at most ' if self._until.enough else ''}{left_s:.0f} s left")
        parts += [f"{self._ok} ok/{self._failed} failed", f"{self._tokens / max(elapsed_s, 1e-9):.0f} tok/s"]
        if self._ttft_ms:
            parts.append(f"TTFT {statistics.median(self._ttft_ms):.1f} ms")
        return " · ".join(parts)

    def _left_s(self) -> float | None:
        assert self._plan is not None
        until = until_of(self._plan, self._until)
        if self._measuring_ns is None:
            return until.duration_s
        measured_s = (mono_ns() - self._measuring_ns) / 1e9
        left = []
        if until.requests is not None and self._measured:
            left.append(max(0.0, until.requests - self._measured) * measured_s / self._measured)
        if until.duration_s is not None:
            left.append(max(0.0, until.duration_s - measured_s))
        return min(left, default=None)

    def _say(self, text: str, style: str = "dim") -> None:
        shown = "".join(char for char in text if unicodedata.category(char)[0] != "C")
        self._console.print(Text(shown, style=style), soft_wrap=True)


def _load(plan: LevelPlan) -> str:
    if plan.concurrency is not None:
        return f"concurrency {plan.concurrency}"
    rate = None if plan.rate_per_s is None else f"{plan.rate_per_s:.4g}/s"
    if plan.speed is None:
        return "rate unknown" if rate is None else rate
    return f"speed {plan.speed:g}" + ("" if rate is None else f" ({rate})")
