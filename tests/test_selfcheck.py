"""Is it the client? Each self-check fires when this process is really in the way. A clean run: tests/load.

Real runs of about a second: the command line in this process, the server in a thread of it.
"""

import asyncio
import gc
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis import plots
from loadgen import clock
from loadgen.arrivals import Arrivals
from loadgen.cli.app import execute
from loadgen.exchange import Exchange, Sent
from loadgen.transport import Post, StampedTransport
from tests import fakes_run
from tests.fakes_api import LAST_CHUNK, STREAM_HEAD, Api, chunked, listening_in_a_thread
from tests.fakes_tls import little_trust

__all__ = ["little_trust"]

CLIENT = {"client-lag", "client-cpu", "send-lag", "little", "clock-step", "stamp-bounds", "clock-user"}
SLOTS = 4
LEVEL_S = 0.9
TOKENS, TOKEN_S = 10, 0.007  # what the server streams: over ten requests a slot in a level


class Paced(Api):
    """A token each `TOKEN_S`."""

    async def _complete(self, fields: dict[str, Any], chat: bool, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        due_s = time.monotonic()
        for event in self._stream(fields, chat).split(b"\n\n"):
            if b" word" in event:
                due_s += TOKEN_S
                await asyncio.sleep(due_s - time.monotonic())
            writer.write(chunked(event + b"\n\n"))
        writer.write(LAST_CHUNK)


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, little_trust: None) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(plots, "draw", lambda *_: None)  # takes longer than the level
    yield
    gc.unfreeze()


@pytest.fixture
def measured(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    def measured(level_s: float = LEVEL_S) -> tuple[int, dict[str, Any]]:
        """Exit code and the one level of the summary."""
        flags = ["--concurrency", str(SLOTS), "--duration", f"{level_s}s", "--input", "32", "--output", str(TOKENS)]
        with listening_in_a_thread(Paced()) as server:
            code = execute(["run", server.url(), *flags, "--json", "--quiet", "--metrics", "none"])
        (level,) = json.loads(capsys.readouterr().out)["levels"]
        return code, level

    return measured


Measured = Callable[..., tuple[int, dict[str, Any]]]


def client_findings(level: dict[str, Any]) -> dict[str, str]:
    return {one["code"]: one["severity"] for one in level["findings"] if one["code"] in CLIENT}


def at_the_first_request(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Do `act` in the client's event loop, once it has one."""
    acted = False
    real = Exchange.run

    async def run(exchange: Exchange) -> Sent:
        nonlocal acted
        if not acted:
            acted = True
            act()
        return await real(exchange)

    monkeypatch.setattr(Exchange, "run", run)


def test_a_blocked_event_loop_is_lag_and_bounds_and_exit_4(monkeypatch: pytest.MonkeyPatch, measured: Measured) -> None:
    def block() -> None:
        time.sleep(0.03)
        asyncio.get_running_loop().call_later(0.02, block)

    at_the_first_request(monkeypatch, block)
    code, level = measured(0.4)
    found = client_findings(level)
    assert (found["client-lag"], found["stamp-bounds"]) == ("error", "warning")
    assert (code, level["validity"]) == (4, "INVALID")
    assert level["client"]["read_lag_ms"]["max"] > 1
    assert level["client"]["bound_share"] > 0.01


def test_a_clock_that_is_set_makes_the_level_invalid(monkeypatch: pytest.MonkeyPatch, measured: Measured) -> None:
    asked_s: list[float] = []

    def wall_ns() -> int:
        asked_s.append(time.monotonic())
        late = asked_s[-1] - asked_s[0] > 0.2
        return time.time_ns() + (5_000_000 if late else 0)

    monkeypatch.setattr(clock.Drift.__init__, "__defaults__", (wall_ns, time.monotonic_ns))
    code, level = measured(0.4)
    assert client_findings(level)["clock-step"] == "error"
    assert (code, level["validity"]) == (4, "INVALID")


def test_a_process_without_a_free_core_says_so(monkeypatch: pytest.MonkeyPatch, measured: Measured) -> None:
    stop = threading.Event()
    block = bytes(2**24)

    def burn() -> None:
        while not stop.is_set():
            hashlib.sha256(block).digest()  # without the interpreter's lock: the loop goes on

    threads = [threading.Thread(target=burn) for _ in range(8)]  # whatever else the machine does

    def start() -> None:
        for thread in threads:
            thread.start()

    at_the_first_request(monkeypatch, start)
    try:
        code, level = measured(0.4)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert client_findings(level)["client-cpu"] == "error"
    assert code == 4
    assert level["client"]["cpu_share"] > 0.8


def test_a_capped_pool_shows_in_the_concurrency_that_was_achieved(
    monkeypatch: pytest.MonkeyPatch, measured: Measured
) -> None:
    """A closed-loop request is due when it is sent, so no latency shows the wait: only what was in flight does."""
    gate = asyncio.Semaphore(SLOTS // 2)
    real = StampedTransport.post

    async def post(
        self: StampedTransport, post: Post, body: bytes, arrivals: Arrivals, connect_s: float | None
    ) -> None:
        async with gate:
            await real(self, post, body, arrivals, connect_s)

    monkeypatch.setattr(StampedTransport, "post", post)
    code, level = measured()
    assert client_findings(level)["little"] == "error"
    assert (code, level["validity"]) == (4, "INVALID")
    assert level["achieved"]["concurrency"] == pytest.approx(SLOTS / 2, rel=0.1)
    (message,) = (one["message"] for one in level["findings"] if one["code"] == "little")
    assert "not 4" in message
    assert "--workers" in message


@pytest.mark.parametrize(("late_us", "code", "codes"), [(5_000, 4, {"send-lag"}), (500, 0, set())])
def test_requests_that_go_out_late_make_an_open_loop_invalid(
    late_us: int, code: int, codes: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = fakes_run.closed_loop(SLOTS, each=100)
    for row in rows:
        row["due_us"] -= late_us
    head = fakes_run.header(levels=[{"level": 0, "concurrency": None, "rate_per_s": 14.0}])
    fakes_run.write(Path("here"), rows, [fakes_run.ended()], head)
    assert execute(["report", "here", "--json"]) == code
    (level,) = json.loads(capsys.readouterr().out)["levels"]
    assert set(client_findings(level)) == codes


def test_each_accusation_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    rows = fakes_run.closed_loop(SLOTS, each=100, read_lag_us=9_000, bounds=5)
    for row in rows:
        row["due_us"] -= 5_000
    head = fakes_run.header(levels=[{"level": 0, "concurrency": 9, "rate_per_s": 14.0}])
    fakes_run.write(Path("here"), rows, [fakes_run.ended(cpu_us=29_000_000, clock_step_us=5_000)], head)
    assert execute(["report", "here", "--json"]) == 4
    (level,) = json.loads(capsys.readouterr().out)["levels"]
    remedies = {one["code"]: one["message"].rpartition(": ")[2].rpartition("; ")[2] for one in level["findings"]}
    assert set(remedies) >= CLIENT - {"clock-user"}
    assert all("use --workers" in remedies[code] for code in CLIENT - {"clock-user", "clock-step"})
    assert "measure again" in remedies["clock-step"]
