"""What users ask: a workload of one class of conversations, or a mix of several, as a TOML file describes it.

    input = "lognormal:1155,0.66"        # one class: its keys stand at the top
    output = "lognormal:211,0.59"

    [[class]]                            # a mix: a table for each class
    name = "chat"
    weight = 7                           # conversations of this class are in proportion to it
    workload = "chat"                    # a preset or a file to start from; what follows overrides it
    slo = ["ttft p99 < 500ms"]

    input, output    laws of length in tokens, as `lengths` reads them; `input` is without the shared prefix
    pairs            a CSV file of input,output that belong together
    dataset          a file of prompts, in place of `input`; with `repeat = true` from the start again when used up
    shared_prefix    tokens that all prompts of one of `groups` groups have in front; `zipf` is the exponent of the
                     groups' weights: group k has weight k**-zipf, and with 0 all have the same
    turns            law of the number of turns of a conversation; `think_ms` of the time between an answer and the next
    leave_share      share of requests whose user does not wait for the end, and `leave_after_ms`, the law of when
    slo              what this class is held to; kept as it is
    description      for people

Names of files are relative to the file they stand in.
"""

import importlib.resources
import math
from pathlib import Path
from typing import Any

import msgspec

from workloads import lengths
from workloads.lengths import Lengths, Pairs
from workloads.traces import Trace

DEFAULT_OUTPUT_TOKENS = 256  # for a prompt of a data set that says nothing of its answer
SHORTEST_PREFIX = 16  # under it groups would not differ, and no cache of usual blocks would keep it
MOST_GROUPS = 1_000_000
LARGEST_ZIPF = 10.0


class Class(msgspec.Struct, frozen=True, kw_only=True):
    """Conversations that are alike. A length that is None is what the pairs, the data set or the trace says."""

    name: str | None = None  # None: the only class
    weight: float = 1.0
    input: Lengths | None = None
    output: Lengths | None = None
    pairs: Pairs | None = None
    dataset: Path | None = None
    repeat: bool = False
    shared_prefix: int = 0
    groups: int = 1
    zipf: float = 0.0
    turns: Lengths | None = None  # None: one
    think_ms: Lengths | None = None
    leave_share: float = 0.0
    leave_after_ms: Lengths | None = None
    slo: tuple[str, ...] = ()

    @property
    def needs_trace(self) -> bool:
        return self.pairs is None and self.dataset is None and (self.input is None or self.output is None)


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    classes: tuple[Class, ...]
    description: str = ""


class _Keys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    input: str | int | None = None
    output: str | int | None = None
    pairs: str | None = None
    dataset: str | None = None
    repeat: bool | None = None
    shared_prefix: int | None = None
    groups: int | None = None
    zipf: float | None = None
    turns: str | int | None = None
    think_ms: str | int | None = None
    leave_share: float | None = None
    leave_after_ms: str | int | None = None
    slo: tuple[str, ...] | None = None
    description: str = ""


class _ClassKeys(_Keys, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    weight: float = 1.0
    workload: str | None = None


class _File(_Keys, frozen=True, kw_only=True, forbid_unknown_fields=True):
    classes: list[_ClassKeys] = msgspec.field(name="class", default_factory=list)


_LAWS = ("input", "output", "turns", "think_ms", "leave_after_ms")
_PLAIN = ("repeat", "shared_prefix", "groups", "zipf", "leave_share", "slo")


def presets() -> list[str]:
    folder = importlib.resources.files("workloads") / "presets"
    return sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(name_or_file: str) -> Workload:
    """A preset by its name, or a TOML file of the same form. Raises ValueError that names the file and the key."""
    name, file, folder = _read(name_or_file, Path())
    where = f"workload {name_or_file}"
    if not file.classes:
        classes = [_filled(Class(), file, folder, where)]
    else:
        beside = next((key for key in (*_LAWS, *_PLAIN, "pairs", "dataset") if getattr(file, key) is not None), None)
        if beside:
            raise ValueError(f"{where}: {beside} stands beside [[class]], where it is in no class: put it into each")
        classes = [_of_table(keys, folder, f"{where}: class {keys.name!r}") for keys in file.classes]
        _check_mix(classes, where)
    return Workload(name=name, classes=tuple(classes), description=file.description)


def _read(name_or_file: str, folder: Path) -> tuple[str, _File, Path]:
    """Its name, what it says, and where names of files in it are looked for."""
    if name_or_file in presets():
        preset = importlib.resources.files("workloads") / "presets" / f"{name_or_file}.toml"
        return name_or_file, msgspec.toml.decode(preset.read_bytes(), type=_File), Path()
    path = folder / name_or_file
    if path.suffix != ".toml":
        raise ValueError(f"no workload {name_or_file!r}: expected {', '.join(presets())} or a file that ends in .toml")
    try:
        return path.stem, msgspec.toml.decode(path.read_bytes(), type=_File), path.parent
    except OSError as error:
        raise ValueError(f"workload {path}: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"workload {path}: {error}") from error


def _of_table(keys: _ClassKeys, folder: Path, where: str) -> Class:
    if not (0 < keys.weight < math.inf):
        raise ValueError(f"{where}: weight {keys.weight:g}: expected more than 0 (leave the class out to not have it)")
    if not keys.name.strip() or not keys.name.isprintable() or len(keys.name) > 60:
        raise ValueError(f"{where}: name: expected 1 to 60 printable characters")
    start = Class() if keys.workload is None else _base(keys.workload, folder, f"{where}: workload")
    return _filled(msgspec.structs.replace(start, name=keys.name, weight=keys.weight), keys, folder, where)


def _base(name_or_file: str, folder: Path, where: str) -> Class:
    """What a class starts from: a workload of one."""
    try:
        _, file, its_folder = _read(name_or_file, folder)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    if file.classes:
        raise ValueError(f"{where}: {name_or_file} is a mix itself: expected one of a single class")
    return _filled(Class(), file, its_folder, f"{where} {name_or_file}")


def _check_mix(classes: list[Class], where: str) -> None:
    names = [one.name for one in classes]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{where}: two classes are called {twice!r}: results are told apart by name")
    sets = [one.dataset for one in classes if one.dataset is not None and not one.repeat]
    if again := next((path for path in sets if sets.count(path) > 1), None):
        raise ValueError(f"{where}: dataset {again} is in two classes, so its prompts would come twice: say repeat")
    if sum(one.groups for one in classes) > MOST_GROUPS:
        raise ValueError(f"{where}: groups: at most {MOST_GROUPS} in all")


def _filled(start: Class, keys: _Keys, folder: Path, where: str) -> Class:
    changes: dict[str, Any] = {key: value for key in _PLAIN if (value := getattr(keys, key)) is not None}
    try:
        if keys.pairs is not None:
            pairs = lengths.pairs(keys.pairs, folder)
            start = msgspec.structs.replace(start, pairs=pairs, dataset=None, input=None, output=None)
        if keys.dataset is not None:
            start = _of_dataset(start, folder / keys.dataset)
    except ValueError as error:
        raise ValueError(f"{where}: pairs: {error}") from error
    for key in _LAWS:
        if (text := getattr(keys, key)) is not None:
            changes[key] = _law(f"{where}: {key}", text, folder)
    filled = msgspec.structs.replace(start, **changes)
    if reason := _why_not(filled, keys):
        raise ValueError(f"{where}: {reason}")
    return filled


def _of_dataset(start: Class, path: Path) -> Class:
    """What its file says takes the place of lengths and prefixes."""
    return msgspec.structs.replace(
        start, dataset=path, input=None, output=None, pairs=None, shared_prefix=0, groups=1, zipf=0.0
    )


def _law(where: str, text: str | int, folder: Path = Path()) -> Lengths:
    try:
        return lengths.parse(str(text), folder)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _why_not(one: Class, keys: _Keys) -> str | None:
    if keys.pairs is not None and keys.dataset is not None:
        return "pairs and dataset: both say what prompts are sent; expected one of them"
    if one.needs_trace:
        return "input is missing (or pairs, or dataset)" if one.input is None else "output is missing"
    if one.dataset is not None and one.input is not None:
        return "input: the prompts are those of the data set, as long as they are; expected only one of the two"
    return _prefix_why_not(one) or _user_why_not(one)


def _prefix_why_not(one: Class) -> str | None:
    if one.repeat and one.dataset is None:
        return "repeat: only a data set can be repeated"
    if one.shared_prefix and one.dataset is not None:
        return "shared_prefix: the prompts of a data set are sent as they are"
    if not (one.shared_prefix == 0 or SHORTEST_PREFIX <= one.shared_prefix <= lengths.LONGEST):
        return f"shared_prefix {one.shared_prefix}: expected 0, or {SHORTEST_PREFIX} to {lengths.LONGEST} tokens"
    if not 1 <= one.groups <= MOST_GROUPS:
        return f"groups {one.groups}: expected 1 to {MOST_GROUPS}"
    if not 0 <= one.zipf <= LARGEST_ZIPF:
        return f"zipf {one.zipf:g}: expected an exponent from 0 (all groups alike) to {LARGEST_ZIPF:g}"
    if one.shared_prefix == 0 and (one.groups > 1 or one.zipf > 0):
        return "groups and zipf are of a shared_prefix, and there is none"
    return None


def _user_why_not(one: Class) -> str | None:
    if one.think_ms is not None and one.turns is None:
        return "think_ms is the time between turns: say how many, such as turns = 4"
    if not 0 <= one.leave_share <= 1:
        return f"leave_share {one.leave_share:g}: expected a share from 0 to 1"
    if (one.leave_share > 0) != (one.leave_after_ms is not None):
        return "leave_share and leave_after_ms need each other: how many leave, and when"
    return None


def override(
    workload: Workload,
    input: str | None = None,  # noqa: A002
    output: str | None = None,
    dataset: str | None = None,
    trace: Trace | None = None,
) -> Workload:
    """The workload with other laws of length, each as its text, with the prompts of a data set, or with the lengths of
    a trace, where that has some; a law goes before what a data set or a trace says.

    A mix keeps its own lengths: with `trace` only the times are the trace's, and anything else is refused. Raises
    ValueError.
    """
    flags = {"input": input, "output": output, "dataset": dataset}
    given = [name for name, value in flags.items() if value is not None]
    if len(workload.classes) > 1:
        if given:
            names = ", ".join(str(one.name) for one in workload.classes)
            raise ValueError(f"{given[0]}: {workload.name} is a mix ({names}): change it in the file, class by class")
        return workload
    one = workload.classes[0]
    if trace is not None and trace.input_tokens is not None:
        one = Class(slo=one.slo, leave_share=one.leave_share, leave_after_ms=one.leave_after_ms)
    if dataset is not None:
        one = _of_dataset(one, Path(dataset))
    if input is not None and one.dataset is not None:
        raise ValueError("input: the prompts are those of the data set, as long as they are")
    laws = {key: _law(key, value) for key, value in (("input", input), ("output", output)) if value is not None}
    return msgspec.structs.replace(workload, classes=(msgspec.structs.replace(one, **laws),))


def mean_output(workload: Workload, trace: Trace | None = None) -> float:
    """Of all requests, in tokens. Of a data set only its `output` or the default counts: its file is not read."""

    def of(one: Class) -> float:
        if one.output is None and one.pairs is not None:
            return sum(one.pairs.output) / len(one.pairs.output)
        if one.output is None and one.dataset is None and trace is not None and trace.output_tokens is not None:
            return float(trace.output_tokens.mean())
        return float(DEFAULT_OUTPUT_TOKENS) if one.output is None else lengths.mean(one.output)

    shares = [one.weight * (lengths.mean(one.turns) if one.turns else 1) for one in workload.classes]
    return sum(share * of(one) for share, one in zip(shares, workload.classes, strict=True)) / sum(shares)


def input_text(one: Class) -> str:
    """Where its input lengths come from, for people."""
    own = str(one.input) if one.input else _source(one)
    return f"{one.shared_prefix} shared + {own}" if one.shared_prefix else own


def output_text(one: Class) -> str:
    return str(one.output) if one.output else _source(one)


def _source(one: Class) -> str:
    if one.pairs is not None:
        return f"pairs:{one.pairs.file}"
    return "trace" if one.dataset is None else f"dataset:{one.dataset.name}"
