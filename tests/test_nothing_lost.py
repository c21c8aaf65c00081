"""What was measured is on the disk whatever becomes of the process, and the process does not grow with it."""

import asyncio
import gc
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis import plots, records
from loadgen.cli.app import execute
from tests import fakes_run
from tests.bench.memory import Load, peaks_kib
from tests.fakes_api import Api, listening
from tests.fakes_tls import little_trust

__all__ = ["little_trust"]

LOADGEN = (sys.executable, "-m", "loadgen.cli.app")
SLOTS = 4
LOAD = [
    "--concurrency",
    f"2,{SLOTS}",
    "--requests",
    "100000",
    "--duration",
    "60s",
    "--input",
    "32",
    "--output",
    "4",
    "--metrics",
    "none",
]
MIB = 1024  # KiB
GROWTH_KIB = 4 * MIB  # 4,500 requests would need but 1 KB each, 19,800 tokens 200 bytes each, to be noticed


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, little_trust: None) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(plots, "draw", lambda *_: None)
    yield
    gc.unfreeze()


def whole_rows(path: Path) -> list[dict[str, Any]]:
    """All rows; only the last line may be cut."""
    *lines, _ = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines]


async def killed_in_a_level(requests: int) -> int:
    """SIGKILL to a run that has asked for so many; how many it had asked for by then."""
    api = Api()

    def asked() -> int:
        return sum(fields.get("max_tokens") == 4 for fields in api.asked())  # the preflight asks for 8 and 1

    async with listening(api) as server, asyncio.timeout(50):
        process = await asyncio.create_subprocess_exec(
            *LOADGEN, "run", server.url(), *LOAD, "--quiet", "--out", "here", stdout=asyncio.subprocess.DEVNULL
        )
        while asked() < requests:
            await asyncio.sleep(0.005)
        process.kill()
        assert await process.wait() == -9
        return asked()


async def test_a_run_killed_in_the_middle_can_be_reported(capsys: pytest.CaptureFixture[str]) -> None:
    asked = await killed_in_a_level(200)
    rows = whole_rows(Path("here/requests.jsonl"))
    in_a_slice = 10 * SLOTS  # ended, and not a row yet
    assert asked - SLOTS - in_a_slice <= len(rows) <= asked
    assert {row["status"] for row in rows} == {"ok"}
    assert sorted(os.listdir("here")) == ["levels.jsonl", "requests.jsonl", "run.json"]
    assert Path("here/levels.jsonl").read_bytes() == b""
    code = execute(["report", "here"])
    out, err = capsys.readouterr()
    measured = sum(row["phase"] == "measure" for row in rows)
    assert code == (4 if "INVALID" in out else 0)  # a busy machine makes this client late, and it says so
    assert f"{measured}/0" in out
    assert "here/: summary.json" in err
    first = Path("here/summary.json").read_bytes()
    assert execute(["report", "here", "--json"]) == code
    assert Path("here/summary.json").read_bytes() == first


@pytest.mark.parametrize("kept", [1, 50, -1])
def test_a_row_cut_by_a_crash_costs_that_row_only(kept: int, capsys: pytest.CaptureFixture[str]) -> None:
    rows = fakes_run.closed_loop(SLOTS, each=20)
    head = fakes_run.header(levels=[{"level": 0, "concurrency": SLOTS}])
    fakes_run.write(Path("here"), rows, [fakes_run.ended()], head)
    path = Path("here/requests.jsonl")
    *whole, last = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*whole, last[:kept]]))
    assert execute(["report", "here", "--json"]) == 0
    (level,) = json.loads(capsys.readouterr().out)["levels"]
    assert level["requests"]["ok"] == SLOTS * 20 - 1
    run = records.read(Path("here"))
    assert (run.cut_rows, len(run.requests[0].index)) == (1, len(rows) - 1)


def test_a_run_killed_before_its_first_row_is_said_to_be_empty(capsys: pytest.CaptureFixture[str]) -> None:
    fakes_run.write(Path("here"), [])
    assert execute(["report", "here"]) == 4
    out, err = capsys.readouterr()
    assert "no request was recorded" in out
    assert "Traceback" not in err


def test_memory_grows_neither_with_requests_nor_with_the_length_of_a_stream() -> None:
    """Both are a hundredth of `python -m tests.bench.memory`."""
    few, many, short, long = peaks_kib([Load(300, 4), Load(3000, 4), Load(2, 200, 1), Load(2, 20_000, 1)])
    assert few > 20 * MIB  # it is a Python process that was looked at
    assert many - few < GROWTH_KIB
    assert long - short < GROWTH_KIB
