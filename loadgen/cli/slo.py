"""`loadgen slo TARGET`: does an SLO hold at a load, or which is the largest load at which it does?"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from cyclopts import Group, Parameter

from loadgen.cli.load import flag
from loadgen.cli.options import Options, settings
from loadgen.cli.signals import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from loadgen.record import LevelRow
    from loadgen.run import Outcome
    from loadgen.settings import Settings

BUDGET, SEARCH_BUDGET = "10m", "30m"
HIGHEST = 4096  # requests at once, in a search
_QUESTION = Group.create_ordered("Question")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SloOptions(Options):
    find: Annotated[
        str | None,
        flag(
            _QUESTION,
            "concurrency or rate: the largest one at which the SLO holds. --concurrency 4..256 or --rate 1..50 says "
            "where to look. Default: 1..4096 at once, any rate.",
        ),
    ] = None
    budget: Annotated[
        str | None,
        flag(_QUESTION, f"How long it may take to decide. Default: {BUDGET}, for --find {SEARCH_BUDGET}."),
    ] = None


_DEFAULT = SloOptions()


def slo(target: str, /, options: SloOptions = _DEFAULT) -> int:
    """Say whether an SLO holds at a load: PASS, FAIL or UNDECIDED at 95 % confidence, by as many samples as it takes.

    Goes on with twice the sample until it is decided or the budget ends. With --find it looks for the largest load that
    holds. With --out of an earlier such run it goes on with that.

    Parameters
    ----------
    target
        As for run.
    """
    from loadgen.cli import values

    chosen = settings(target, options, asked_of(options))
    terms = [*chosen.slo, *(term for one in chosen.workload.classes for term in one.slo)]
    if not terms:
        _refuse("what is to hold? Say --slo 'ttft p99 < 500ms', or a preset such as --slo chat")
    if options.find is not None and any(term.startswith("throughput") for term in terms):
        _refuse("--find looks for the load at which an SLO stops holding, and throughput grows with the load")
    budget = options.budget or (BUDGET if options.find is None else SEARCH_BUDGET)
    outcome = _measure(chosen, options, values.named("--budget", values.duration_s, budget))
    if outcome is None:
        return EXIT_INTERRUPTED

    from loadgen.cli.report import present

    code = present(outcome.directory, json=options.json, quiet=options.quiet, answer_only=True)
    return EXIT_INTERRUPTED if outcome.interrupted else code


def asked_of(options: SloOptions) -> dict[str, Any]:
    """The fields of the settings that are about the load. Raises ValueError."""
    from loadgen.cli.load import load

    if options.requests is not None or options.duration is not None:
        _refuse("--requests and --duration are those of run: slo measures until it is decided, or until --budget ends")
    law = (options.arrivals or "").partition(":")[0]
    if law in ("ramp", "trace"):
        _refuse(f"--arrivals {options.arrivals}: an SLO is held to one load; loadgen run --slo judges a {law}")
    if options.find is not None:
        return _searched(options)
    asked = load(options)
    loads = asked["rates"] if options.rate is not None else asked["concurrency"]
    if options.rate is None and options.concurrency is None:
        _refuse("at which load? Say --concurrency N or --rate R, or --find concurrency for the largest one that holds")
    if len(loads) != 1:
        _refuse(f"{len(loads)} loads, and the question is about one: say one, or --find for the largest one that holds")
    return asked | {"seeks": "verdict"}


def _searched(options: SloOptions) -> dict[str, Any]:
    from loadgen import room
    from loadgen.cli.load import load
    from workloads import schedule

    if options.find == "concurrency":
        if options.rate is not None or options.arrivals is not None:
            _refuse("--find concurrency is a closed loop: leave out --rate and --arrivals, or say --find rate")
        room.make_most_room()
        asked = load(replace(options, concurrency=options.concurrency or f"1..{min(HIGHEST, room.room())}"))
        loads = asked.pop("concurrency")
    elif options.find == "rate":
        if options.concurrency is not None:
            _refuse("--find rate is an open loop: leave out --concurrency, or say --find concurrency")
        whole = f"{schedule.LOWEST_RATE_PER_S:f}..{schedule.HIGHEST_RATE_PER_S:f}"
        asked = load(replace(options, rate=options.rate or whole))
        loads = asked.pop("rates")
    else:
        _refuse(f"--find {options.find}: expected concurrency or rate")
    if len(loads) < 2:
        _refuse(f"--find {options.find} needs room to look: say a range, such as --{options.find} 1..64, or nothing")
    return asked | {"seeks": options.find, "bounds": (float(min(loads)), float(max(loads)))}


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


def _measure(chosen: "Settings", options: SloOptions, budget_s: float) -> "Outcome | None":
    from rich.console import Console

    from loadgen.cli.progress import Progress
    from loadgen.cli.run import played
    from loadgen.preflight import Server
    from loadgen.run import Watcher, run
    from loadgen.steps import Steps

    progress = Progress(Console(stderr=True, quiet=options.quiet), None, chosen.until)
    steps = Steps(chosen, budget_s)

    def begin(directory: Path, server: Server) -> None:
        progress.server(server)
        steps.begin(directory, server)
        for line in steps.ahead():
            progress.say(line)

    def after_level(directory: Path, row: "LevelRow") -> bool:
        progress.level_ended(row)
        steps.level_ended(directory, row)
        progress.say(steps.so_far())
        return True

    watcher = Watcher(on_begin=begin, on_level=progress.level, on_row=progress.row, after_level=after_level)
    return played(run(chosen, watcher, steps.plans()), progress)
