"""From a workload and a seed to the requests of a level.

The lengths depend on the seed and the level, the prompts on the salt and the vocabulary too: two runs with one seed ask
two servers for the same lengths, with prompts that neither has seen.
"""

import hashlib
import importlib.resources
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from workloads import lengths
from workloads.lengths import Lengths
from workloads.request import Request
from workloads.seeds import stream
from workloads.text import NUMBER_LIMIT, id_prompts, prompt_ids, prompt_text, text_prompts
from workloads.tokens import Vocabulary

LEVEL_REQUESTS = 2**28  # numbers a level has for its prompts
_BLOCK = 1024  # lengths drawn at a time
_PLAN_FORMAT = 1  # part of the digest: raise it when the same arguments make other requests


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    input: Lengths
    output: Lengths
    description: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    input: str | int
    output: str | int
    description: str = ""


def presets() -> list[str]:
    folder = importlib.resources.files("workloads") / "presets"
    return sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(name_or_file: str) -> Workload:
    """A preset by its name, or a TOML file of the same form. Raises ValueError that names the file and the key."""
    if name_or_file in presets():
        preset = importlib.resources.files("workloads") / "presets" / f"{name_or_file}.toml"
        return _decode(preset.read_bytes(), name_or_file, name_or_file)
    path = Path(name_or_file)
    if path.suffix != ".toml":
        raise ValueError(f"no workload {name_or_file!r}: expected {', '.join(presets())} or a file that ends in .toml")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"workload {name_or_file}: {error.strerror or error}") from error
    return _decode(content, path.stem, name_or_file)


def _decode(content: bytes, name: str, source: str) -> Workload:
    try:
        file = msgspec.toml.decode(content, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"workload {source}: {error}") from error
    return Workload(
        name=name,
        input=_parse(f"workload {source}: input", file.input),
        output=_parse(f"workload {source}: output", file.output),
        description=file.description,
    )


def _parse(where: str, text: str | int) -> Lengths:
    try:
        return lengths.parse(str(text))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def override(workload: Workload, input: str | None = None, output: str | None = None) -> Workload:  # noqa: A002
    """The workload with other laws of length, each as its text. Raises ValueError."""
    changes = {}
    if input is not None:
        changes["input"] = _parse("input", input)
    if output is not None:
        changes["output"] = _parse("output", output)
    return msgspec.structs.replace(workload, **changes)


def requests(
    workload: Workload,
    vocabulary: Vocabulary,
    *,
    seed: int,
    salt: str,
    level: int,
    as_ids: bool = False,
    first_number: int = 0,
) -> Iterator[Request]:
    """The requests of a level, without end, made as they are taken. Raises ValueError at once.

    `first_number` is the number of the first prompt within its level: a level that is run again takes up where it
    stopped, and sends the same lengths with prompts not sent before.
    """
    if not 0 <= level < NUMBER_LIMIT // LEVEL_REQUESTS:
        raise ValueError(f"level {level}: a run can have {NUMBER_LIMIT // LEVEL_REQUESTS} levels")
    if not 0 <= first_number < LEVEL_REQUESTS:
        raise ValueError(f"first_number {first_number}: a level has {LEVEL_REQUESTS} prompts")
    make: Callable[[int, int], str | tuple[int, ...]]
    if as_ids:
        make = partial(prompt_ids, id_prompts(vocabulary, seed=seed, salt=salt))
    else:
        make = partial(prompt_text, text_prompts(vocabulary, seed=seed, salt=salt))
    return _requests(workload, make, seed, level, first_number)


def _requests(
    workload: Workload, make: Callable[[int, int], str | tuple[int, ...]], seed: int, level: int, first_number: int
) -> Iterator[Request]:
    inputs = _endless(workload.input, stream(seed, "input", level))
    outputs = _endless(workload.output, stream(seed, "output", level))
    for index in range(LEVEL_REQUESTS - first_number):
        tokens = next(inputs)
        yield Request(
            index=index,
            level=level,
            prompt=make(tokens, level * LEVEL_REQUESTS + first_number + index),
            want_input_tokens=tokens,
            want_output_tokens=next(outputs),
        )
    raise ValueError(f"level {level} has used all its {LEVEL_REQUESTS} prompts")


def _endless(law: Lengths, rng: np.random.Generator) -> Iterator[int]:
    while True:
        yield from lengths.draw(law, rng, _BLOCK).tolist()


def digest(workload: Workload, *, seed: int, api: str) -> str:
    """SHA-256, in hex, of what determines the lengths of the plan and how prompts are sent; not of its name."""
    facts = {
        "format": _PLAN_FORMAT,
        "input": str(workload.input),
        "output": str(workload.output),
        "seed": seed,
        "api": api,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
