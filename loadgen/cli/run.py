"""`loadgen run TARGET`: measure one or more load levels."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.cli.options import Options, settings

if TYPE_CHECKING:
    from analysis.summary import Level
    from loadgen.cli.progress import Progress
    from loadgen.record import LevelRow
    from loadgen.run import Outcome, Watcher
    from loadgen.settings import Settings

_DEFAULT = Options()


def run(target: str, /, options: Options = _DEFAULT) -> int:
    """Measure TTFT, ITL and throughput at one or more levels of load; write a run directory, print the table.

    Parameters
    ----------
    target
        http(s)://host[:port][/base], host:port, the full address of a chat or text completions API, or
        sim:MODEL@GPU[,key=value...] for the embedded engine.
    """
    chosen = settings(target, options)
    outcome = _measure(chosen, options)
    if outcome is None:
        return 130

    from loadgen.cli.report import present

    code = present(outcome.directory, json=options.json, quiet=options.quiet)
    return 130 if outcome.interrupted else code


def _measure(chosen: "Settings", options: Options) -> "Outcome | None":
    """The run; None when it was interrupted before anything was measured, or twice."""
    import uvloop
    from rich.console import Console

    from loadgen.cli.progress import Progress
    from loadgen.load import level_count
    from loadgen.run import run as start

    progress = Progress(Console(stderr=True, quiet=options.quiet), level_count(chosen), chosen.until)
    try:
        return uvloop.run(start(chosen, watcher(chosen, options, progress)))
    except asyncio.CancelledError:
        return None
    finally:
        progress.stop()


def watcher(chosen: "Settings", options: Options, progress: "Progress") -> "Watcher":
    """It ends a sweep that nobody has given an end, once the throughput has stopped growing."""
    from analysis import records, summary
    from loadgen.run import Watcher

    done: list[Level] = []

    def after_level(directory: Path, row: "LevelRow") -> bool:
        progress.level_ended(row)
        if options.concurrency is not None or chosen.law is not None:
            return True
        done.append(summary.summarize_level(records.read(directory, only=row.level), row.level))
        if summary.saturated(done):
            progress.say("throughput has stopped growing: the levels beyond are left out (--concurrency asks for them)")
            return False
        return True

    return Watcher(on_server=progress.server, on_level=progress.level, on_row=progress.row, after_level=after_level)
