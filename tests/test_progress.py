"""What a run says while it goes on."""

import asyncio
import io
import threading
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from rich.console import Console

from loadgen.cli import progress as progress_module
from loadgen.cli.progress import Progress
from loadgen.course import Until
from loadgen.preflight import Server
from loadgen.record import Failure, LevelPlan, LevelRow, Row


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(progress_module, "mono_ns", lambda: int(self.now_s * 1e9))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Screen(Console):
    def __init__(self, *, terminal: bool = False, quiet: bool = False) -> None:
        super().__init__(file=io.StringIO(), force_terminal=terminal, width=100, quiet=quiet, color_system=None)

    def text(self) -> str:
        return cast("io.StringIO", self.file).getvalue()


def a_row(index: int = 0, *, status: str = "ok", phase: str = "measure", ttft_us: int = 50_000, **changes: Any) -> Row:
    ok = status == "ok"
    values: dict[str, Any] = {
        "level": 0, "index": index, "phase": phase, "status": status,
        "error": None if ok else Failure("http_status", "HTTP 500"), "http_status": 200 if ok else 500, "retries": 0,
        "due_us": 1000, "sent_us": 2000, "connect_us": None, "headers_us": 10, "end_us": 70_000,
        "events_us": [ttft_us, 70_000] if ok else [], "events_tokens": None, "answer_event": None, "bounds": 0,
        "read_lag_us": 10, "prompt_tokens": 5, "output_tokens": 30 if ok else None, "reasoning_tokens": None,
        "cached_tokens": None, "tokens_from": "usage", "want_input_tokens": 5, "want_output_tokens": 30,
        "finish_reason": None,
    }  # fmt: skip
    return Row(**(values | changes))


def ended(by: Any = "requests") -> LevelRow:
    return LevelRow(level=1, start_us=0, end_us=1, ended_by=by, cpu_us=1, clock_step_us=0)


def a_server(model: str = "tiny", **facts: Any) -> Server:
    usual = {
        "url": "http://h/v1/chat/completions", "prompt_as": "text", "dropped": [], "prompt_tokens_from": "usage",
        "stamped": True,
    }  # fmt: skip
    found = SimpleNamespace(dialect=SimpleNamespace(model=model), facts=usual | facts, url=httpx.URL("http://h"))
    return cast("Server", found)


def test_a_level_leaves_one_line(clock: Clock) -> None:
    screen = Screen()
    progress = Progress(screen, 3, Until(requests=10))
    progress.level(LevelPlan(1, 8))
    progress.row(a_row(0, phase="warmup", ttft_us=9_000))
    progress.row(a_row(1, ttft_us=49_000))
    progress.row(a_row(2, ttft_us=59_000))
    progress.row(a_row(3, status="failed"))
    progress.row(a_row(4, status="cancelled"))
    clock.now_s += 3
    progress.level_ended(ended())
    assert screen.text() == (
        "level 2/3 · concurrency 8 · 3 ok/1 failed · 30 tok/s · TTFT 50.0 ms\n"  # due 1 ms before sent
    )


@pytest.mark.parametrize(
    ("plan", "load"),
    [
        (LevelPlan(1, None, 4.0), "4/s"),
        (LevelPlan(1, None, 0.125), "0.125/s"),
        (LevelPlan(1, None, 12.345678, 2.0), "speed 2 (12.35/s)"),
        (LevelPlan(1, None, None, 0.5), "speed 0.5"),
    ],
)
def test_a_level_of_open_loop_is_named_by_its_rate(plan: LevelPlan, load: str, clock: Clock) -> None:
    screen = Screen()
    progress = Progress(screen, 3, Until())
    progress.level(plan)
    progress.level_ended(ended("schedule"))
    assert screen.text() == f"level 2/3 \u00b7 {load} \u00b7 0 ok/0 failed \u00b7 0 tok/s\n"


@pytest.mark.parametrize(
    ("by", "says"),
    [
        ("errors", ": given up, every request fails"),
        ("interrupt", ": interrupted"),
        ("over-saturated", ": stopped, the server does not keep up with this rate"),
    ],
)
def test_an_unusual_end_is_said(by: str, says: str, clock: Clock) -> None:
    screen = Screen()
    progress = Progress(screen, 1, Until(requests=10))
    progress.level(LevelPlan(0, 1))
    progress.level_ended(ended(by))
    assert screen.text() == f"level 1/1 · concurrency 1 · 0 ok/0 failed · 0 tok/s{says}\n"


def test_each_level_counts_from_nothing(clock: Clock) -> None:
    screen = Screen()
    progress = Progress(screen, 2, Until(requests=10))
    for level in (0, 1):
        progress.level(LevelPlan(level, 1))
        progress.row(a_row())
        clock.now_s += 1
        progress.level_ended(ended())
    assert screen.text().count("1 ok") == 2


def test_quiet_says_nothing(clock: Clock) -> None:
    screen = Screen(quiet=True, terminal=True)
    progress = Progress(screen, 1, Until(requests=10))
    progress.server(a_server())
    progress.level(LevelPlan(0, 1))
    progress.row(a_row())
    progress.level_ended(ended())
    assert screen.text() == ""


def test_the_server_is_named_with_what_is_unusual_about_it() -> None:
    screen = Screen()
    Progress(screen, 1, Until()).server(a_server())
    assert screen.text() == "tiny at http://h/v1/chat/completions, prompts as text\n"
    screen = Screen()
    unusual = a_server(dropped=["min_tokens", "ignore_eos"], prompt_tokens_from="guess", stamped=False)
    Progress(screen, 1, Until()).server(unusual)
    said = screen.text().splitlines()
    assert said[1] == "the server refuses min_tokens, ignore_eos: left out for the whole run"
    assert "lengths are guessed" in said[2]
    assert "no kernel time stamps" in said[3]


def test_what_the_server_says_cannot_draw_on_the_terminal() -> None:
    screen = Screen()
    Progress(screen, 1, Until()).server(a_server("\x1b[31m[red]evil[/red]\x07\u202e\n"))
    assert screen.text() == "[31m[red]evil[/red] at http://h/v1/chat/completions, prompts as text\n"


async def test_on_a_terminal_one_line_is_redrawn_by_the_loop_and_by_no_thread(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "REFRESH_S", 0.001)
    threads = threading.active_count()
    screen = Screen(terminal=True)
    progress = Progress(screen, 1, Until(requests=10))
    progress.level(LevelPlan(0, 4))
    assert threading.active_count() == threads
    progress.row(a_row())
    async with asyncio.timeout(5):
        while "1 ok" not in screen.text():
            await asyncio.sleep(0.001)
    progress.level_ended(ended())
    drawn = screen.text()
    await asyncio.sleep(0.005)
    assert screen.text() == drawn  # nothing goes on after the end
    assert "level 1/1 · concurrency 4 · 1 ok/0 failed" in drawn.splitlines()[-1]
    progress.stop()


@pytest.mark.parametrize(
    ("until", "own", "left"),
    [
        (Until(requests=10), {}, "16 s left"),  # 2 of 10 in 4 s
        (Until(duration_s=30), {}, "26 s left"),
        (Until(requests=10, duration_s=30), {}, "16 s left"),
        (Until(duration_s=30, enough=True), {}, "at most 26 s left"),
        (Until(requests=100, duration_s=30), {}, "26 s left"),
        (Until(requests=1, duration_s=2), {}, "0 s left"),
        (Until(requests=1, duration_s=2), {"requests": 10}, "16 s left"),
    ],
)
async def test_how_long_it_may_take_is_guessed(until: Until, own: dict[str, Any], left: str, clock: Clock) -> None:
    screen = Screen(terminal=True)
    progress = Progress(screen, 1, until)
    progress.level(LevelPlan(0, 1, **own))
    progress.row(a_row(0))
    clock.now_s += 4
    progress.row(a_row(1))
    progress._tick()
    progress.stop()
    assert left in screen.text()
