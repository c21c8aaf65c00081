"""The real command line, run in a process, and what it has recorded."""

import contextlib
import io
import json
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from loadgen.cli.app import execute
from loadgen.record import LevelRow, Row

LOADGEN = (sys.executable, "-m", "loadgen.cli.app")
EPOCH = datetime.fromisoformat("1970-01-01T00:00:00Z")


class Ran(msgspec.Struct, frozen=True):
    """A run of one level."""

    start_ns: int  # of the run, CLOCK_REALTIME; all times in rows count from it
    level: LevelRow
    rows: list[Row]  # in plan order
    summary: dict[str, Any]  # of the level

    @property
    def due_us(self) -> list[int]:
        """From the level's start."""
        return [row.due_us - self.level.start_us for row in self.rows]


def run(out: Path, target: str, *flags: str) -> Ran:
    """INVALID is a result too: how late this client is depends on what else the machine does."""
    command = [*LOADGEN, "run", target, *flags, "--quiet", "--json", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode in (0, 4), done.stderr
    header = json.loads((out / "run.json").read_bytes())
    since_epoch = datetime.fromisoformat(header["started_at"]) - EPOCH
    rows = [msgspec.json.decode(line, type=Row) for line in (out / "requests.jsonl").read_bytes().splitlines()]
    (level,) = (out / "levels.jsonl").read_bytes().splitlines()
    return Ran(
        start_ns=since_epoch // timedelta(microseconds=1) * 1000,
        level=msgspec.json.decode(level, type=LevelRow),
        rows=sorted(rows, key=lambda row: row.index),
        summary=json.loads(done.stdout)["levels"][0],
    )


def planned(*flags: str) -> list[dict[str, Any]]:
    """What `loadgen plan` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert execute(["plan", *flags]) == 0
    return [json.loads(line) for line in printed.getvalue().splitlines()]
