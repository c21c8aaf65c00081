"""One server setting after another, in randomised blocks: start it, measure it, stop it.

    tune.json               what was asked, and every run that has ended; written whole after each
    block-B/SETTING/        the run: the same seed for all settings of a block, another one in the next
    block-B/SETTING.log     what its server said

The order is drawn anew in each block, so that a drift of the machine meets all settings alike. A setting that cannot be
measured is a result with its error. The same call again goes on with what is missing or has an error; what it replaces
is kept beside.
"""

import asyncio
import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from loadgen import launch
from loadgen.endpoint import open_client, parse_target, secrets_in
from loadgen.grid import Setting, filled, secrets_of_command, words
from loadgen.launch import Occupied
from loadgen.record import Secrets
from loadgen.run import Outcome, Watcher, run
from loadgen.settings import Settings
from workloads.seeds import stream

FORMAT = 1
FILE = "tune.json"
_DIED_S = 10.0  # from the last answer of a server to its end


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`launch` and `target` have placeholders, as the hardware may; no `launch`: the run starts the target itself."""

    launch: str | None
    target: str
    settings: tuple[Setting, ...]
    blocks: int
    ready_s: float


class TuneRun(msgspec.Struct, frozen=True, kw_only=True):
    """One start of the server. Paths are relative to the directory of the tune. `directory` with an `error`: the server
    died under the load, and what was measured before is there."""

    setting: int
    block: int
    order: int
    directory: str | None
    error: str | None
    log: str | None


class Tune(msgspec.Struct, frozen=True, kw_only=True):
    """tune.json, without secrets. `seed` is that of the first block; `options` are the flags of the load."""

    format: int = FORMAT
    launch: str | None
    target: str
    settings: list[Setting]
    blocks: int
    seed: int
    options: dict[str, Any]
    runs: list[TuneRun] = []


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """Who is told. `on_run` has what is about to be started and how many there are from it on, `on_end` what became of
    it and the end of its log."""

    on_run: Callable[[TuneRun, int], None]
    on_end: Callable[[TuneRun, str], None]
    watcher: Callable[[Settings], Watcher]


async def tune(plan: Plan, settings: Settings, directory: Path, watch: Watch) -> bool:
    """Whether it went to its end: no interrupt. `settings` are those of a run, whose target is replaced.

    Raises ValueError where the directory is another tune's, nothing can be measured in the first block, or (Occupied)
    something else answers at the target; CancelledError on an interrupt outside a load or a second one in it.
    """
    if plan.launch is not None:  # before a directory is made
        for target in {filled(plan.target, one) for one in plan.settings}:
            await launch.check_free(parse_target(target))
    kept = _begin(plan, settings, directory)
    missing = list(remaining(plan, settings.seed, kept.runs))
    for place, planned in enumerate(missing):
        _aside(directory, planned)
        watch.on_run(planned, len(missing) - place)
        (directory / f"block-{planned.block}").mkdir(exist_ok=True)
        ended, log_end, interrupted = await _measured(plan, settings, directory, planned, watch)
        if interrupted:
            return False
        kept.runs.append(ended)
        _write(directory, kept)
        watch.on_end(ended, log_end)
        first = [one for one in kept.runs if one.block == 0]
        if len(first) == len(plan.settings) and all(one.directory is None for one in first):
            logs = "" if ended.log is None else f" ({directory}/block-0/*.log)"
            raise ValueError(f"no setting could be measured; the last one: {ended.error}{logs}")
    return True


def remaining(plan: Plan, seed: int, runs: list[TuneRun]) -> Iterator[TuneRun]:
    """What is to be measured, in its order, as if it had been."""
    names = _file_names(plan.settings)
    done = {(one.block, one.setting) for one in runs}
    for block in range(plan.blocks):
        drawn = stream(seed, "tune", block).permutation(len(plan.settings)).tolist()
        for order, setting in enumerate(drawn):
            if (block, setting) not in done:
                path = f"block-{block}/{names[setting]}"
                log = None if plan.launch is None else f"{path}.log"
                yield TuneRun(setting=setting, block=block, order=order, directory=path, error=None, log=log)


def _file_names(settings: tuple[Setting, ...]) -> list[str]:
    """A setting given twice (A against A) has a number."""
    names: list[str] = []
    for setting in settings:
        name = re.sub(r"[^A-Za-z0-9._=,+-]+", "-", setting.name)[:100]
        others = (f"{name}-{number}" for number in itertools.count(2))
        names.append(next(one for one in itertools.chain([name], others) if one not in names))
    return names


async def _measured(
    plan: Plan, settings: Settings, directory: Path, planned: TuneRun, watch: Watch
) -> tuple[TuneRun, str, bool]:
    """How it ended, the end of its log, and whether it was interrupted in the load."""
    assert planned.directory is not None
    setting = plan.settings[planned.setting]
    secrets, end, error, interrupted = _secrets(plan, settings), "", None, False
    out, seed = directory / planned.directory, settings.seed + planned.block
    hardware = None if settings.hardware is None else filled(settings.hardware, setting)
    options = settings.options | {"out": str(out), "seed": seed, "hardware": hardware}
    chosen = msgspec.structs.replace(
        settings, target=filled(plan.target, setting), hardware=hardware, out=out, seed=seed, options=options
    )
    log = None if planned.log is None else directory / planned.log
    try:
        if plan.launch is None or log is None:
            outcome = await run(chosen, watch.watcher(chosen))
        else:
            outcome = await _launched(plan, setting, chosen, log, watch.watcher(chosen))
        interrupted = outcome.interrupted
    except Occupied:
        raise
    except ValueError as failure:
        error = secrets.hide(str(failure))
    finally:
        if log is not None and log.exists():
            launch.hide_in(log, secrets)
            end = launch.end_of(log)
    measured = planned.directory if (out / "run.json").exists() else None
    return msgspec.structs.replace(planned, directory=measured, error=error), end, interrupted


async def _launched(plan: Plan, setting: Setting, settings: Settings, log: Path, watcher: Watcher) -> Outcome:
    assert plan.launch is not None
    target = parse_target(settings.target)
    async with open_client(settings.access) as client:
        server = launch.serving(
            words(plan.launch, setting),
            setting.environment,
            log,
            target=target,
            client=client,
            ready_s=plan.ready_s,
        )
        async with server as ended:
            load = asyncio.create_task(run(settings, watcher))
            await asyncio.wait({load, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not load.done():
                load.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await load
            elif load.result().interrupted or await launch.answers(client, target):
                return load.result()
            await asyncio.wait({ended}, timeout=_DIED_S)  # what it has started may outlive it for a moment
            what = launch.how(ended.result()) if ended.done() else "the server stopped answering"
            raise ValueError(f"{what} during the load")


def _begin(plan: Plan, settings: Settings, directory: Path) -> Tune:
    """tune.json, with the runs that stand. Raises ValueError where it is another's."""
    secrets = _secrets(plan, settings)
    shown = [
        Setting(name=secrets.hide(one.name), values={name: secrets.hide(one.shown(name)) for name in one.values})
        for one in plan.settings
    ]
    options = {key: value for key, value in settings.options.items() if key not in ("out", "json", "quiet", "config")}
    new = Tune(
        launch=None if plan.launch is None else secrets.hide(plan.launch),
        target=secrets.hide(plan.target),
        settings=shown,
        blocks=plan.blocks,
        seed=settings.seed,
        options=msgspec.json.decode(msgspec.json.encode(options)),  # as they come back
    )
    if not directory.exists():
        directory.mkdir(parents=True)
    else:
        old = _read(directory)
        for name in ("launch", "target", "settings", "seed", "options"):
            if getattr(old, name) != getattr(new, name):
                raise ValueError(
                    f"{directory} holds a tune with another {name}: choose another --out, or the same flags to go on"
                )
        stands = [one for one in old.runs if one.error is None and _is_run(directory, one)]
        new = msgspec.structs.replace(new, blocks=max(old.blocks, new.blocks), runs=stands)
    _write(directory, new)
    return new


def _secrets(plan: Plan, settings: Settings) -> Secrets:
    texts = [text for one in plan.settings for text in one.secrets]
    for one in plan.settings:
        texts += [] if plan.launch is None else secrets_of_command(filled(plan.launch, one))
        target = filled(plan.target, one)
        texts += [] if target.startswith("sim:") else parse_target(target).secrets
    return Secrets([*texts, *secrets_in(settings.access)])


def _is_run(directory: Path, one: TuneRun) -> bool:
    return one.directory is not None and (directory / one.directory / "run.json").is_file()


def _aside(directory: Path, planned: TuneRun) -> None:
    """Move what an earlier call has left of it out of the way."""
    for name in filter(None, (planned.directory, planned.log)):
        path = directory / name
        if path.exists():
            others = (path.with_name(f"{path.name}.old-{number}") for number in itertools.count(1))
            path.rename(next(other for other in others if not other.exists()))


def _read(directory: Path) -> Tune:
    path = directory / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Tune)
    except FileNotFoundError:
        raise ValueError(f"{directory} exists already and holds no tune: choose another --out") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} cannot be read ({error}): choose another --out") from None


def _write(directory: Path, tune: Tune) -> None:
    """Whole or not at all: a crash leaves the old one."""
    new = directory / f"{FILE}.new"
    new.write_bytes(msgspec.json.format(msgspec.json.encode(tune)) + b"\n")
    new.replace(directory / FILE)
