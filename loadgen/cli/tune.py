"""`loadgen tune [TARGET]`: measure a server under one setting after another, and compare them."""

import contextlib
import shutil
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from loadgen.cli.load import flag
from loadgen.cli.options import RESULT, Options, checked_hardware, settings
from loadgen.cli.signals import EXIT_INTERRUPTED, run_loop

if TYPE_CHECKING:
    from rich.console import Console

    from loadgen.cli.progress import Progress
    from loadgen.grid import Setting
    from loadgen.settings import Settings
    from loadgen.tune import Plan, TuneRun

_SETTINGS = Group.create_ordered("Settings")
_LOG_LINES = 8  # of a server that failed, in the terminal


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TuneOptions(Options):
    launch: Annotated[
        str | None,
        flag(
            _SETTINGS,
            "The command that serves, in the foreground, with {NAME} where a setting's value belongs. It is split into "
            "words and no shell reads it; bash -c '...' is one.",
        ),
    ] = None
    set: Annotated[
        tuple[str, ...],
        flag(
            _SETTINGS,
            "NAME=V1,V2: the values of {NAME} in --launch or TARGET; env:NAME=V1,V2: of an environment variable. "
            "Several make every combination. A comma in a value is \\, and the same value twice is A against A.",
        ),
    ] = ()
    paired: Annotated[
        bool, flag(_SETTINGS, "Several --set: the first values together, then the second ones, and so on.")
    ] = False
    repeats: Annotated[
        int, flag(_SETTINGS, "Blocks: in each, every setting once, in a new order, with a new seed. Default: 3.")
    ] = 3
    ready_timeout: Annotated[str, flag(_SETTINGS, "How long a server may take to start. Default: 10m.")] = "10m"
    out: Annotated[
        Path | None,
        flag(RESULT, "The directory; one of an earlier call is gone on with. Default: runs/<time>-tune."),
    ] = None
    json: Annotated[bool, flag(RESULT, "Print the comparison as JSON on standard output.")] = False


_DEFAULT = TuneOptions()


def tune(target: str | None = None, /, options: TuneOptions = _DEFAULT) -> int:
    """Start a server once per setting, measure it, stop it with all it has started; then compare the settings.

    A server that does not start is a result, with the end of its log. The first interrupt lets the load end and stops
    the server. With --out of an earlier such call it goes on with what is missing.

    Parameters
    ----------
    target
        Where the server of --launch will answer, as for run. Default: http://localhost:PORT, with the --port of
        --launch, or 8000. Or sim:MODEL@GPU[,key=value...] with {NAME} in it, which needs no --launch.
    """
    chosen, plan = _asked(target, options)
    directory = options.out or _default_out()
    finished = _measure(plan, chosen, options, directory)
    if not finished:
        _show(directory, options)
        return EXIT_INTERRUPTED
    return _show(directory, options)


def _asked(target: str | None, options: TuneOptions) -> "tuple[Settings, Plan]":
    """What the flags stand for. Raises ValueError, before anything is started."""
    import msgspec

    from loadgen import grid
    from loadgen.cli import values
    from loadgen.tune import Plan

    if not options.set:
        raise ValueError("which settings? Say --set NAME=V1,V2, with {NAME} in --launch or TARGET")
    if options.repeats < 1:
        raise ValueError(f"--repeats {options.repeats}: expected at least 1")
    chosen = grid.settings(options.set, paired=options.paired)
    grid.check([text for text in (options.launch, target, options.hardware) if text is not None], chosen)
    target = _simulated(target, chosen) if options.launch is None else _served(options.launch, target, chosen)
    if options.launch is not None:
        chosen = tuple(grid.renamed(one, options.launch) for one in chosen)
    plain = Options(**{one.name: getattr(options, one.name) for one in fields(Options)})  # --launch can have secrets
    ready_s = values.named("--ready-timeout", values.duration_s, options.ready_timeout)
    plan = Plan(launch=options.launch, target=target, settings=chosen, blocks=options.repeats, ready_s=ready_s)
    if options.hardware is not None:
        for one in chosen:
            checked_hardware(grid.filled(options.hardware, one))
    load = settings(grid.filled(target, chosen[0]), replace(plain, hardware=None))
    recorded = load.options | {"hardware": options.hardware}
    return msgspec.structs.replace(load, hardware=options.hardware, options=recorded), plan


def _simulated(target: str | None, chosen: "tuple[Setting, ...]") -> str:
    if target is None or not target.startswith("sim:"):
        raise ValueError(
            "tune starts the server itself: say --launch 'vllm serve MODEL ...', or a target sim:MODEL@GPU"
        )
    if any(one.environment for one in chosen):
        raise ValueError("--set env:NAME is for the server of --launch, and the simulated engine reads none")
    return target


def _served(launch: str, target: str | None, chosen: "tuple[Setting, ...]") -> str:
    """The target of a server that is launched."""
    from loadgen import grid
    from loadgen.endpoint import parse_target

    commands = [grid.words(launch, one) for one in chosen]
    for program in {command[0] for command in commands}:
        if shutil.which(program) is None:
            raise ValueError(
                f"--launch: there is no program {program} here (no shell reads it: --set env:NAME=V sets a variable, "
                "and bash -c '...' does all else)"
            )
    if target is None:
        ports = {grid.port_of(command) for command in commands}
        if len(ports) > 1:
            raise ValueError("--launch has several ports: say the target too, such as http://localhost:{NAME}")
        return f"http://localhost:{ports.pop() or 8000}"
    if target.startswith("sim:"):
        raise ValueError("--launch starts a server, and sim: is one by itself: leave one of them out")
    for one in chosen:
        parse_target(grid.filled(target, one))
    return target


def _default_out() -> Path:
    from loadgen.clock import utc, wall_ns

    return Path("runs") / f"{utc(wall_ns()):%Y%m%d-%H%M%S}-tune"


def _measure(plan: "Plan", chosen: "Settings", options: TuneOptions, directory: Path) -> bool:
    """Whether it went to its end."""
    from rich.console import Console

    from loadgen.cli.run import watcher
    from loadgen.tune import Watch, tune

    talk = _Talk(plan, chosen, directory, Console(stderr=True, quiet=options.quiet))
    watch = Watch(on_run=talk.begins, on_end=talk.ended, watcher=lambda one: watcher(one, options, talk.progress()))
    try:
        return run_loop(tune(plan, chosen, directory, watch)) or False
    finally:
        talk.stop()


class _Talk:
    """What is said while it goes on; and the summary of each run, once its server is stopped."""

    def __init__(self, plan: "Plan", chosen: "Settings", directory: Path, console: "Console") -> None:
        self._plan = plan
        self._chosen = chosen
        self._directory = directory
        self._console = console
        self._progress: Progress | None = None
        self._took_s: list[float] = []
        self._begun_ns = 0

    def begins(self, run: "TuneRun", left: int) -> None:
        from loadgen.clock import mono_ns

        self._begun_ns = mono_ns()
        settings = self._plan.settings
        place = f"block {run.block + 1}/{self._plan.blocks}, {run.order + 1} of {len(settings)}"
        self._say(f"{place}: {settings[run.setting].name}{self._left(left)}", "bold")

    def progress(self) -> "Progress":
        from loadgen.cli.progress import Progress
        from loadgen.load import level_count

        self.stop()
        self._progress = Progress(self._console, level_count(self._chosen), self._chosen.until)
        return self._progress

    def ended(self, run: "TuneRun", log_end: str) -> None:
        from loadgen.cli.report import finish
        from loadgen.clock import mono_ns

        self.stop()
        if run.error is not None:
            self._say(f"{self._plan.settings[run.setting].name}: {run.error}", "red")
            for line in log_end.splitlines()[-_LOG_LINES:]:
                self._say(f"    {line}", "dim")
            if run.log is not None:
                self._say(f"    {self._directory / run.log}", "dim")
        if run.directory is not None:
            # A server that died may have left nothing to sum up.
            with contextlib.suppress(ValueError) if run.error else contextlib.nullcontext():
                finish(self._directory / run.directory)
        if run.error is None:
            self._took_s.append((mono_ns() - self._begun_ns) / 1e9)

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def _left(self, runs: int) -> str:
        from loadgen.load import level_count

        if self._took_s:
            return f" · about {_minutes(runs * sum(self._took_s) / len(self._took_s))} left"
        level_s = self._chosen.until.duration_s
        if level_s is None:
            return f" · {runs} runs left"
        return f" · up to {_minutes(runs * level_count(self._chosen) * level_s)} of load left, and the server's starts"

    def _say(self, text: str, style: str) -> None:
        from rich.text import Text

        shown = "".join(char for char in text if char.isprintable())
        self._console.print(Text(shown, style=style), soft_wrap=True)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _show(directory: Path, options: TuneOptions) -> int:
    """The comparison of what was measured. The exit code: 3 where one setting alone was, and there is none."""
    from loadgen.cli.compare import compare

    if not options.quiet:
        sys.stderr.write(f"{directory}/: tune.json, and a run directory and a log for each start\n")
    try:
        return compare(directory, out=directory, json=options.json)
    except ValueError as error:
        sys.stderr.write(f"nothing to compare: {error}\n")
        return 3
