"""Whole runs of levels that end when their sample suffices. Who looks at it has the lowest priority."""

import asyncio
import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from analysis import quantiles, summary
from loadgen.cli.options import Options, settings
from loadgen.record import Row
from loadgen.run import Watcher, run
from tests.fakes_api import Api, listening
from tests.fakes_tls import little_trust

__all__ = ["little_trust"]


class Told:
    """What a run tells its watcher; `on_row` is done at each row."""

    def __init__(self, on_row: Callable[[Row], None] = lambda _: None) -> None:
        self.notes: list[str] = []
        self.watcher = Watcher(
            on_begin=lambda _, __: None,
            on_level=lambda _: None,
            on_row=on_row,
            after_level=lambda _, __: True,
            on_note=self.notes.append,
        )


def measured(tmp_path: Path, told: Told, **flags: Any) -> list[dict[str, Any]]:
    """The rows of levels.jsonl."""
    usual: dict[str, Any] = {"input": "20", "output": "3", "requests": "enough", "out": tmp_path / "run"} | {
        "metrics": ("none",)
    }

    async def main() -> None:
        async with listening(Api(delay_s=0.005)) as server, asyncio.timeout(50):
            await run(settings(server.url(), Options(**(usual | flags))), told.watcher)

    uvloop.run(main())
    assert multiprocessing.active_children() == []
    return [json.loads(line) for line in (tmp_path / "run" / "levels.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("load", "levels"),
    [({"concurrency": "1,2"}, 2), ({"rate": "100", "workers": 2}, 1)],
)
def test_a_level_ends_once_its_sample_suffices(tmp_path: Path, load: dict[str, Any], levels: int) -> None:
    told = Told()
    ends = measured(tmp_path, told, slo=("e2e p50 < 30s",), duration="40s", **load)
    assert [end["ended_by"] for end in ends] == ["enough"] * levels
    assert told.notes == []
    assert json.loads((tmp_path / "run" / "run.json").read_text())["options"]["requests"] == "enough"
    for level in summary.summarize(tmp_path / "run").levels:
        assert level.requests.ok >= 10
        assert level.requests.cancelled == 0
        assert (level.e2e_ms.n_eff or 0) >= quantiles.min_n(0.5)
        assert level.window_s is not None
        assert level.window_s < 20


def test_a_level_that_does_not_suffice_ends_by_its_duration_also_where_nobody_looks(tmp_path: Path) -> None:
    def on_row(row: Row) -> None:
        if row.level == 1:
            for process in multiprocessing.active_children():
                process.kill()

    told = Told(on_row)
    ends = measured(tmp_path, told, concurrency="1,2", slo=("e2e p99.9 < 30s",), duration="1s")
    assert [end["ended_by"] for end in ends] == ["duration", "duration"]
    assert told.notes == [
        "--duration came before its sample was enough: there are too few requests",
        "--duration came before its sample was enough: the process that looks at the sample has ended",
    ]
