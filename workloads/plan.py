"""From a workload and a seed to the requests of a level.

Lengths, classes, groups, turns and leaving depend on the seed and the level, the prompts on the salt and the vocabulary
too: two runs with one seed ask two servers for the same lengths, with prompts that neither has seen. Each thing drawn
has a stream of its own in each class: to add a class, or to change one law, moves nothing that another draws.

A level has NUMBERS for what its prompts begin with: the lower half for its requests, the upper half for what is shared
on purpose (groups, blocks of a trace). No level shares anything with another.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any

import msgspec
import numpy as np

from workloads import datasets, lengths
from workloads.request import Messages, Request
from workloads.seeds import stream
from workloads.text import NUMBER_LIMIT, Prompts, id_prompts, prompt, prompt_of_blocks, prompt_of_group, text_prompts
from workloads.tokens import Vocabulary
from workloads.traces import Trace
from workloads.workload import DEFAULT_OUTPUT_TOKENS, Class, Workload

NUMBERS = 2**28  # of a level
LEVEL_REQUESTS = NUMBERS // 2
MOST_TURNS = 1000  # of a conversation; more are cut
_BLOCK = 1024  # drawn at a time
_PLAN_FORMAT = 2  # part of the digest: raise it when the same arguments make other requests

_Rng = Callable[[str], np.random.Generator]  # of this name, for one class of a level


class _Level(msgspec.Struct, frozen=True, kw_only=True):
    """What the classes of a level have in common."""

    level: int
    levels: int
    as_ids: bool
    prompts: Prompts[Any]
    first_prompt: int  # number of the prompt with index 0
    first_shared: int
    indices: Iterator[int]  # a class takes the next one when it is its turn
    trace: Trace | None


def requests(
    workload: Workload,
    vocabulary: Vocabulary,
    *,
    seed: int,
    salt: str,
    level: int,
    levels: int = 1,
    as_ids: bool = False,
    first_number: int = 0,
    trace: Trace | None = None,
) -> Iterator[Request]:
    """The requests of a level, made as they are taken: the first turn of each conversation, the others hang on it
    (`then`). Without end, but for a data set, which is used up, and the lengths of a trace. Raises ValueError at once.

    `levels` is how many the run has: item i of a data set goes to level i % levels, so that none is sent twice in a
    run. `first_number` is the number of the first prompt within its level: a level that is run again takes up where it
    stopped, and sends the same lengths with prompts not sent before (a data set has none).
    """
    if not 0 <= level < NUMBER_LIMIT // NUMBERS:
        raise ValueError(f"level {level}: a run can have {NUMBER_LIMIT // NUMBERS} levels")
    if not 0 <= first_number < LEVEL_REQUESTS:
        raise ValueError(f"first_number {first_number}: a level has {LEVEL_REQUESTS} prompts")
    for one in workload.classes:
        _check(one, workload, level, levels, as_ids, trace)
    here = _Level(
        level=level,
        levels=levels,
        as_ids=as_ids,
        prompts=(id_prompts if as_ids else text_prompts)(vocabulary, seed=seed, salt=salt),
        first_prompt=level * NUMBERS + first_number,
        first_shared=level * NUMBERS + LEVEL_REQUESTS,
        indices=_indices(level, LEVEL_REQUESTS - first_number),
        trace=trace,
    )
    classes, first_group = [], here.first_shared
    for one in workload.classes:
        classes.append(_conversations(here, one, seed, first_group))
        first_group += one.groups
    if len(classes) == 1:
        return classes[0]
    weights = [one.weight for one in workload.classes]
    return _mixed(classes, _picks(weights, stream(seed, "class", level)))


def _check(one: Class, workload: Workload, level: int, levels: int, as_ids: bool, trace: Trace | None) -> None:
    if one.turns is not None and as_ids:
        raise ValueError(
            f"workload {workload.name} has conversations of several turns, whose prompts are made of the server's "
            "answers: that needs the chat API, and prompts that are token ids cannot do it"
        )
    if one.dataset is not None:
        if level >= levels:
            raise ValueError(f"level {level} of a run of {levels}: a data set has no prompts for it")
        found = sum(1 for _ in islice(datasets.read(one.dataset), levels))
        if found < levels:
            raise ValueError(f"data set {one.dataset} has {found} prompts, and the run {levels} levels: each needs one")
    if one.needs_trace and (trace is None or trace.input_tokens is None or trace.output_tokens is None):
        raise ValueError(f"workload {workload.name} takes its lengths from a trace, and there is none that has some")
    if one.needs_trace and one.turns is not None:
        raise ValueError(f"workload {workload.name}: the requests of a trace are single turns")


def _indices(level: int, count: int) -> Iterator[int]:
    yield from range(count)
    raise ValueError(f"level {level} has used all its {count} prompts")


def _mixed(classes: list[Iterator[Request]], picks: Iterator[int]) -> Iterator[Request]:
    """Ends with the first class that does: without it, it would be another mix."""
    for pick in picks:
        first = next(classes[pick], None)
        if first is None:
            return
        yield first


def _conversations(here: _Level, one: Class, seed: int, first_group: int) -> Iterator[Request]:
    def rng(name: str) -> np.random.Generator:
        return stream(seed, name, here.level, *([] if one.name is None else [one.name]))

    if one.dataset is not None:
        return _dealt(here, one, rng)
    if one.needs_trace and one.input is None and here.trace is not None and here.trace.blocks is not None:
        return _of_blocks(here, one, rng, here.trace.blocks, here.trace.block_tokens or 1)
    return _drawn(here, one, rng, first_group)


def _drawn(here: _Level, one: Class, rng: _Rng, first_group: int) -> Iterator[Request]:
    """Of lengths."""
    sizes, leaves, thinks = _sizes(one, rng, here.trace), _leaves(one, rng), _thinks(one, rng)
    if one.shared_prefix:
        firsts = _sharing(here, one, sizes, _groups(one, rng), leaves, first_group)
    else:
        firsts = _alone(here, one, sizes, leaves)
    if one.turns is None:
        return firsts
    later = _alone(here, one, sizes, leaves)  # about as long as drawn, in what they add
    return (
        _chained([first, *islice(later, count - 1)], thinks)
        for first, count in zip(firsts, _turns(one, rng), strict=False)
    )


def _alone(
    here: _Level, one: Class, sizes: Iterator[tuple[int, int]], leaves: Iterator[int | None]
) -> Iterator[Request]:
    level, prompts, first_prompt, name = here.level, here.prompts, here.first_prompt, one.name
    for (tokens, output), leave, index in zip(sizes, leaves, here.indices, strict=False):
        yield Request(
            index=index,
            level=level,
            prompt=prompt(prompts, tokens, first_prompt + index),
            want_input_tokens=tokens,
            want_output_tokens=output,
            class_name=name,
            leave_us=leave,
        )


def _sharing(
    here: _Level,
    one: Class,
    sizes: Iterator[tuple[int, int]],
    groups: Iterator[int],
    leaves: Iterator[int | None],
    first_group: int,
) -> Iterator[Request]:
    """Each as `_alone` has it, with what its group shares in front."""
    shared = one.shared_prefix
    for (tokens, output), group, leave, index in zip(sizes, groups, leaves, here.indices, strict=False):
        yield Request(
            index=index,
            level=here.level,
            prompt=prompt_of_group(here.prompts, tokens, here.first_prompt + index, shared, first_group + group),
            want_input_tokens=tokens + shared,
            want_output_tokens=output,
            class_name=one.name,
            group=group,
            shared_tokens=shared,
            leave_us=leave,
        )


def _of_blocks(
    here: _Level, one: Class, rng: _Rng, blocks: Sequence[Sequence[int]], block_tokens: int
) -> Iterator[Request]:
    """Of a trace that says what its prompts share: `shared_tokens` is what a cache that forgets nothing would find."""
    numbers: dict[int, int] = {}  # of the blocks so far
    for (tokens, output), ids, leave in zip(_sizes(one, rng, here.trace), blocks, _leaves(one, rng), strict=False):
        known = next((place for place, one_id in enumerate(ids) if one_id not in numbers), len(ids))
        own = [numbers.setdefault(one_id, here.first_shared + len(numbers)) for one_id in ids]
        yield Request(
            index=next(here.indices),
            level=here.level,
            prompt=prompt_of_blocks(here.prompts, tokens, own, block_tokens),
            want_input_tokens=tokens,
            want_output_tokens=output,
            class_name=one.name,
            shared_tokens=min(known * block_tokens, max(tokens - here.prompts.base_tokens, 0)),
            leave_us=leave,
        )


def _dealt(here: _Level, one: Class, rng: _Rng) -> Iterator[Request]:
    """Of a data set. Only where the class has turns do those of an item after the first follow."""
    leaves, turns, thinks = _leaves(one, rng), _turns(one, rng), _thinks(one, rng)
    outputs = None if one.output is None else lengths.drawn(one.output, rng("output"))

    def turn(place: int, item: datasets.Item, prompt: str | Messages, said: int | None) -> Request:
        return Request(
            index=next(here.indices),
            level=here.level,
            prompt=prompt,
            want_input_tokens=None,
            want_output_tokens=next(outputs) if outputs else said or DEFAULT_OUTPUT_TOKENS,
            class_name=one.name,
            extra=item.extra,
            item=place,
            leave_us=next(leaves),
        )

    for (place, item), count in zip(_items(here, one), turns, strict=False):
        if here.as_ids and not isinstance(item.prompt, str):
            raise ValueError(f"data set {one.dataset}: item {place} is a chat message, which needs the chat API")
        later = zip(item.later, item.later_output_tokens, strict=True)
        asked = [(item.prompt, item.output_tokens), *islice(later, count - 1)]
        yield _chained([turn(place, item, *each) for each in asked], thinks)


def _items(here: _Level, one: Class) -> Iterator[tuple[int, datasets.Item]]:
    """This level's, with their places in the file."""
    assert one.dataset is not None
    while True:
        yield from islice(enumerate(datasets.read(one.dataset)), here.level, None, here.levels)
        if not one.repeat:
            return


def _chained(turns: list[Request], thinks: Iterator[int]) -> Request:
    """The first of the turns, with the others after it. How long a later prompt is depends on the answers before."""
    waits = list(islice(thinks, len(turns) - 1))
    then: Request | None = None
    for place in range(len(turns) - 1, 0, -1):
        then = msgspec.structs.replace(
            turns[place], turn=place, think_us=waits[place - 1], want_input_tokens=None, then=then
        )
    return turns[0] if then is None else msgspec.structs.replace(turns[0], then=then)


# What is drawn, each without end but for the lengths of a trace


def _sizes(one: Class, rng: _Rng, trace: Trace | None) -> Iterator[tuple[int, int]]:
    """Input and output tokens. Pairs are drawn twice, alike, since a law may take the place of either side."""

    def side(law: lengths.Lengths | None, name: str, place: int) -> Iterator[int]:
        if law is not None:
            return lengths.drawn(law, rng(name))
        if one.pairs is not None:
            return (pair[place] for pair in lengths.drawn_pairs(one.pairs, rng("pairs")))
        assert trace is not None
        assert trace.input_tokens is not None
        assert trace.output_tokens is not None
        return iter((trace.input_tokens if place == 0 else trace.output_tokens).tolist())

    return zip(side(one.input, "input", 0), side(one.output, "output", 1), strict=False)


def _leaves(one: Class, rng: _Rng) -> Iterator[int | None]:
    if one.leave_after_ms is None:
        return repeat(None)
    leaving = _picks([one.leave_share, 1 - one.leave_share], rng("leave"))
    after_ms = lengths.drawn(one.leave_after_ms, rng("leave_after"))
    return (None if stays else ms * 1000 for stays, ms in zip(leaving, after_ms, strict=False))


def _turns(one: Class, rng: _Rng) -> Iterator[int]:
    if one.turns is None:
        return repeat(1)
    return (min(count, MOST_TURNS) for count in lengths.drawn(one.turns, rng("turns")))


def _thinks(one: Class, rng: _Rng) -> Iterator[int]:
    if one.think_ms is None:
        return repeat(0)
    return (ms * 1000 for ms in lengths.drawn(one.think_ms, rng("think")))


def _groups(one: Class, rng: _Rng) -> Iterator[int]:
    return _picks([k**-one.zipf for k in range(1, one.groups + 1)], rng("group"))


def _picks(weights: Sequence[float], rng: np.random.Generator) -> Iterator[int]:
    """Places in `weights`, each in proportion to its weight."""
    ends = np.cumsum(weights)
    while True:
        yield from np.searchsorted(ends / ends[-1], rng.random(_BLOCK), side="right").tolist()


def digest(
    workload: Workload, *, seed: int, api: str, arrivals: str | None = None, trace_digest: str | None = None
) -> str:
    """SHA-256, in hex, of what determines the plan but for the server's vocabulary and the salt; not of names of files,
    nor of what classes are held to.

    `arrivals` is the law of arrivals; with `trace_digest`, that of a trace's content, it is not looked at.
    """
    facts = {
        "format": _PLAN_FORMAT,
        "classes": [_facts(one) for one in workload.classes],
        "seed": seed,
        "api": api,
        "arrivals": arrivals if trace_digest is None else "trace",
        "trace": trace_digest,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _facts(one: Class) -> dict[str, Any]:
    facts = {name: value for name, value in msgspec.structs.asdict(one).items() if name != "slo"}
    for name, value in facts.items():
        if isinstance(value, lengths.Lengths):
            facts[name] = lengths.canonical(value)
    return facts | {
        "pairs": None if one.pairs is None else lengths.canonical_pairs(one.pairs),
        "dataset": None if one.dataset is None else datasets.digest(one.dataset),
    }
