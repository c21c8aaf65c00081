"""What is compared: settings, each measured by one run or more. A run directory is a setting measured once.

tune.json, in the directory that `loadgen tune` writes, names its settings and the runs of each in every block; a row of
`runs` is appended as it ends. A setting that could not be measured is a result, with the last line of its log.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from analysis import measured, summary
from analysis.measured import Level

if TYPE_CHECKING:
    from pathlib import Path

    from analysis.summary import Summary

FORMAT = 1
FILE = "tune.json"
_LOG_BYTES = 8192  # from the end of a log

Blocks = dict[int, list[Level]]  # of one setting at one load, by block


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """A setting: `values` are those of the placeholders of the launch command, and of environment variables."""

    name: str
    values: dict[str, str] = {}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One start of the server. `setting` is a place in `settings`, `order` the place in the block; `directory` and
    `log` are relative to the tune directory. No directory: it was not measured, and `error` says why."""

    setting: int
    block: int
    order: int
    directory: str | None = None
    error: str | None = None
    log: str | None = None


class Tune(msgspec.Struct, frozen=True, kw_only=True):
    """tune.json. `seed` is that of the first block."""

    format: int
    launch: str | None
    settings: tuple[Named, ...]
    blocks: int
    seed: int
    runs: tuple[Row, ...] = ()


class Replicate(msgspec.Struct, frozen=True, kw_only=True):
    """One start of the server. Those of one block were asked the same, one after another."""

    block: int
    run: Summary


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """`source` is the directory it was read from; settings of one source with the same `values` are the same."""

    name: str
    source: str
    values: tuple[tuple[str, str], ...] = ()
    tuned: bool = False
    replicates: tuple[Replicate, ...] = ()
    failures: tuple[str, ...] = ()

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(sorted({one.block for one in self.replicates}))


def read(directories: list[Path]) -> list[Setting]:
    """Of run and tune directories, in their order. Raises ValueError where one cannot be read, or is given twice."""
    found: list[Setting] = []
    for place, directory in enumerate(directories):
        if directory.resolve() in {other.resolve() for other in directories[:place]}:
            raise ValueError(f"{directory} is given twice: a run cannot be compared with itself")
        found += _tuned(directory) if (directory / FILE).is_file() else [_run(directory)]
    if not any(one.replicates for one in found):
        why = next((failure for one in found for failure in one.failures), "no run has ended yet")
        raise ValueError(f"{directories[0]} has no setting that could be measured: {why}")
    return _with_names(found)


def valid(run: Summary) -> dict[str, list[Level]]:
    """The levels that count, by load, from the lightest; `slo` measures a load again."""
    found: dict[str, list[Level]] = {}
    for level in sorted(run.levels, key=lambda level: measured.asked(level) or 0.0):
        if level.validity == "VALID":
            found.setdefault(measured.load(level), []).append(level)
    return found


def levels(setting: Setting) -> dict[str, Blocks]:
    """The levels that count, by load, from the lightest, and by block."""
    every = [(load, one.block, found) for one in setting.replicates for load, found in valid(one.run).items()]
    by_load: dict[str, Blocks] = {}
    for load, block, found in sorted(every, key=lambda one: measured.asked(one[2][0]) or 0.0):
        by_load.setdefault(load, {}).setdefault(block, []).extend(found)
    return by_load


def read_tune(directory: Path) -> Tune:
    """tune.json alone. Raises ValueError where it is broken or of a newer format."""
    path = directory / FILE
    try:
        facts = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        if isinstance(facts.get("format"), int) and facts["format"] > FORMAT:
            raise ValueError(f"{path} has format {facts['format']}, this loadgen reads up to {FORMAT}: use a newer one")
        found = msgspec.convert(facts, Tune)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    for number, row in enumerate(found.runs):
        if not 0 <= row.setting < len(found.settings):
            raise ValueError(f"{path}, runs[{number}]: setting {row.setting}, and there are {len(found.settings)}")
    return found


def _run(directory: Path) -> Setting:
    run = summary.summarize(directory)
    name = directory.name or directory.resolve().name
    return Setting(name=name, source=str(directory), replicates=(Replicate(block=0, run=run),))


def _tuned(directory: Path) -> list[Setting]:
    tune = read_tune(directory)
    return [_setting(directory, tune, place) for place in range(len(tune.settings))]


def _setting(directory: Path, tune: Tune, place: int) -> Setting:
    replicates, failures = [], []
    for row in sorted((row for row in tune.runs if row.setting == place), key=lambda row: (row.block, row.order)):
        try:
            if row.directory is None:
                raise ValueError(" ".join(filter(None, (row.error, _last_line(directory, row.log)))) or "not measured")
            replicates.append(Replicate(block=row.block, run=summary.summarize(directory / row.directory)))
        except ValueError as error:
            failures.append(f"block {row.block}: {error}")
    return Setting(
        name=tune.settings[place].name,
        source=str(directory),
        values=tuple(sorted(tune.settings[place].values.items())),
        tuned=True,
        replicates=tuple(replicates),
        failures=tuple(failures),
    )


def _last_line(directory: Path, log: str | None) -> str | None:
    """In parentheses; None where there is no log, or nothing in it."""
    path = None if log is None else directory / log
    if path is None or not path.is_file():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_BYTES))
        lines = file.read().decode("utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), None)
    return None if last is None else f"(last line of its log: {last})"


def _with_names(settings: list[Setting]) -> list[Setting]:
    """Names that tell them apart: with the directory where two are alike, and a number where that is no help."""
    counts = Counter(one.name for one in settings)
    named, seen = [], Counter[str]()
    for one in settings:
        name = one.name
        if counts[name] > 1 and any(other.name == name and other.source != one.source for other in settings):
            name = f"{one.source}: {name}" if one.tuned else one.source
        seen[name] += 1
        named.append(msgspec.structs.replace(one, name=name if seen[name] == 1 else f"{name} #{seen[name]}"))
    return named
