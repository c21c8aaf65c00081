"""`loadgen run TARGET`: measure one or more load levels."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.cli.options import Options, settings
from loadgen.cli.signals import EXIT_INTERRUPTED, run_loop

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from analysis.measured import Level
    from loadgen.cli.progress import Progress
    from loadgen.preflight import Server
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
        return EXIT_INTERRUPTED

    from loadgen.cli.report import present

    code = present(outcome.directory, json=options.json, quiet=options.quiet)
    return EXIT_INTERRUPTED if outcome.interrupted else code


def _measure(chosen: "Settings", options: Options) -> "Outcome | None":
    from rich.console import Console

    from loadgen.cli.progress import Progress
    from loadgen.load import level_count
    from loadgen.run import run as start

    progress = Progress(Console(stderr=True, quiet=options.quiet), level_count(chosen), chosen.until)
    return played(start(chosen, watcher(chosen, options, progress)), progress)


def played(load: "Coroutine[Any, Any, Outcome]", progress: "Progress") -> "Outcome | None":
    """The run; None when it was interrupted before anything was measured, or twice."""
    try:
        return run_loop(load)
    finally:
        progress.stop()


def watcher(chosen: "Settings", options: Options, progress: "Progress") -> "Watcher":
    """It ends a sweep that nobody has given an end, once the throughput has stopped growing."""
    from analysis import measured, records, summary
    from loadgen.run import Watcher

    done: list[Level] = []

    def after_level(directory: Path, row: "LevelRow") -> bool:
        progress.level_ended(row)
        beyond = chosen.rates[row.level + 1 :]
        if row.ended_by == "over-saturated" and beyond and min(beyond) >= chosen.rates[row.level]:
            progress.say("the higher rates are left out")
            return False
        if options.concurrency is not None or chosen.law is not None:
            return True
        done.append(measured.summarize_level(records.read(directory, only=row.level), row.level))
        if summary.saturated(done):
            progress.say("throughput has stopped growing: the levels beyond are left out (--concurrency asks for them)")
            return False
        return True

    def begin(_: Path, server: "Server") -> None:
        progress.server(server)
        for line in _ahead(chosen, server, may_stop=options.concurrency is None):
            progress.say(line)

    return Watcher(
        on_begin=begin,
        on_level=progress.level,
        on_row=progress.row,
        after_level=after_level,
        on_note=progress.say,
    )


def _ahead(chosen: "Settings", server: "Server", *, may_stop: bool) -> list[str]:
    """How long it may take, and whether the samples will do: for verdicts if there are terms, else for a p99."""
    from analysis import decision, quantiles, slo
    from loadgen import estimate
    from loadgen.checks import request_s
    from loadgen.load import levels_of

    needs = [estimate.Need("a p99", quantiles.min_n(0.99))]
    for term in map(slo.parse, chosen.slo):
        fewest = decision.fewest(term)
        if fewest is not None and term.metric != "itl":  # of gaps there are many in a request
            needs.append(estimate.Need(f"a PASS of {term}", fewest))
    need = max(needs[1:] or needs, key=lambda need: need.requests)
    took_s = request_s(chosen, server)
    levels = [estimate.ahead(chosen, plan, took_s) for plan in levels_of(chosen)]
    return estimate.words(chosen, levels, need, may_stop=may_stop and chosen.law is None)
