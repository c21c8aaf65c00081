"""Two settings or more, at the same loads: by how much each differs from the first, the baseline, and how sure that is.

One family: every metric at every load of every setting. A difference is called where it survives Holm in that family,
so that of comparisons of like with like at most one in twenty calls any. The 95 % interval is that of one ratio alone.

How far a call reaches depends on how often the server was started (`ratios.reach`).

INVALID levels are left out with their reasons, and a p99 that the sample cannot carry is not compared.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Literal

import msgspec

from analysis import comparable, gates, measured, noise, ratios, recommend, tuned
from analysis.rounding import digits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from analysis.ratios import Difference, Logged, Metric
    from analysis.summary import Summary
    from analysis.tuned import Blocks, Setting

FORMAT = 1
MARGIN = 0.05


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Of a setting to the baseline, at one load. `a` and `b` are geometric means, in ms or per second.

    blocks       that have both; 1: no restart was replicated
    p, p_alike   after Holm: for a difference, and for none beyond the margin
    seen         the smallest difference, as a share, that had a chance of 80 % to be called here; None above tenfold
    called       the difference that survives Holm
    alike        no difference beyond the margin, after Holm; a small one may be called all the same
    noise        what two starts of one setting differ by (`noise.Noise.hides`)
    """

    setting: str
    load: str
    metric: Metric
    a: float
    b: float
    ratio: float
    ci95: ratios.Interval
    blocks: int
    p: float | None
    p_alike: float | None
    seen: float | None
    called: Literal["lower", "higher"] | None
    alike: bool
    noise: float | None


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """`blocks` in which a setting and the baseline were started, the fewest of any; a ratio may rest on fewer.

    `forced` is what forbade the comparison, `invalid` are the levels left out.
    """

    format: int
    baseline: str
    margin: float
    reach: ratios.Reach
    blocks: int
    forced: tuple[str, ...]
    notes: tuple[str, ...]
    invalid: tuple[str, ...]
    ratios: tuple[Ratio, ...]
    noise: tuple[noise.Noise, ...]
    settings: tuple[recommend.Row, ...]
    recommended: recommend.Recommended
    gates: tuple[gates.Judged, ...]


_Key = tuple[str, str, "Metric"]  # setting, load
_Pairs = list[tuple["Logged", "Logged"]]  # one a block


def compare(
    settings: Sequence[Setting], *, margin: float = MARGIN, held: Sequence[gates.Gate] = (), force: bool = False
) -> Compared:
    """The first setting that was measured is the baseline.

    Raises ValueError where there are not two, where they may not be compared (without `force`), or share no load.
    """
    baseline, *others = [one for one in settings if one.replicates]
    if not others:
        raise ValueError(f"{baseline.name} alone was measured: a comparison takes two runs, or two settings")
    forced = _of_pairs(baseline, others, comparable.obstacles)
    if forced and not force:
        raise ValueError(f"not comparable: {forced[0]}; --force compares them anyway")
    pairs = _pairs(baseline, others)
    invalid = tuple(text for one in (baseline, *others) for text in _invalid(one))
    if not pairs and not invalid:
        raise ValueError(f"{baseline.name} shares no load with the others: use the same --concurrency or --rate")
    noisy = noise.noises(settings)
    started = {one.name: len({*baseline.blocks} & {*one.blocks}) for one in others}
    made = {key: ratios.difference(some, started[key[0]]) for key, some in pairs.items()}
    differences = {key: one for key, one in made.items() if one is not None}
    blocks = min(started.values())
    rows, recommended = recommend.recommend(settings, margin)
    return Compared(
        format=FORMAT,
        baseline=baseline.name,
        margin=margin,
        reach=ratios.reach(blocks),
        blocks=blocks,
        forced=tuple(forced),
        notes=(
            *_of_pairs(baseline, others, comparable.notes),
            *_alone(baseline, others),
            *_apart(baseline, others),
            *_missing(pairs),
        ),
        invalid=invalid,
        ratios=tuple(_ratios(pairs, differences, margin, {(one.load, one.metric): one.hides for one in noisy})),
        noise=noisy,
        settings=rows,
        recommended=recommended,
        gates=tuple(gates.judge(list(_cases(held, pairs, differences)))),
    )


def against_itself(settings: Sequence[Setting], *, force: bool = False) -> tuple[noise.Noise, ...]:
    """The noise of the settings of one that tune measured; runs by themselves all count as one setting.

    Raises ValueError where there is nothing to tell it from.
    """
    those = [one for one in settings if one.replicates]
    runs = all(not one.tuned for one in those)
    forbidden = _of_pairs(those[0], those[1:], comparable.obstacles) if runs else []
    if forbidden and not force:
        raise ValueError(f"not the same setting: {forbidden[0]}; --force takes them for one")
    found = noise.noises(those, alike=runs)
    if not found:
        raise ValueError(
            f"nothing was started twice in {', '.join(dict.fromkeys(one.source for one in those))}: "
            "--aa takes two runs of the same setting, or a tune directory with --repeats 2 or more"
        )
    return found


def exit_code(compared: Compared) -> int:
    """1 where a gate FAILED; 4 where nothing could be compared, or a level that a gate is for is INVALID; 3 where a
    gate is UNDECIDED; else 0. What valid levels have shown stands, so 1 goes before 4."""
    verdicts = {one.verdict for one in compared.gates}
    if "FAIL" in verdicts:
        return 1
    if not compared.ratios or (compared.gates and compared.invalid):
        return 4
    return 3 if "UNDECIDED" in verdicts else 0


def dumps(compared: Compared) -> str:
    """Strict JSON in ASCII, the same bytes for the same comparison."""
    return json.dumps(digits(msgspec.to_builtins(compared)), indent=2, allow_nan=False) + "\n"


def _pairs(baseline: Setting, others: Sequence[Setting]) -> dict[_Key, _Pairs]:
    """Of all that both have."""
    ours, found = tuned.levels(baseline), {}
    for other in others:
        theirs = tuned.levels(other)
        goodput = comparable.same_slo(baseline.replicates[0].run, other.replicates[0].run)
        for load in (load for load in ours if load in theirs):
            for metric in ratios.METRICS:
                compared = goodput or metric != "goodput"
                found[other.name, load, metric] = _pairs_of(ours[load], theirs[load], metric) if compared else []
    return found


def _pairs_of(a: Blocks, b: Blocks, metric: Metric) -> _Pairs:
    """A value of 0 has no logarithm, and to leave out its block alone would favour the setting that has it."""
    shared = sorted(a.keys() & b.keys())
    if any(ratios.value(level, metric)[0] == 0 for n in shared for level in (*a[n], *b[n])):
        return []
    both = [(ratios.logged(a[n], metric), ratios.logged(b[n], metric)) for n in shared]
    return [(one, two) for one, two in both if one is not None and two is not None]


def _ratios(
    pairs: dict[_Key, _Pairs],
    differences: dict[_Key, Difference],
    margin: float,
    noisy: dict[tuple[str, Metric], float],
) -> Iterator[Ratio]:
    differs = _adjusted(differences, ratios.p_differs)
    alike = _adjusted(differences, lambda one: ratios.p_alike(one, margin))
    for key, one in differences.items():
        name, load, metric = key
        a, b = (math.exp(sum(pair[side].at for pair in pairs[key]) / len(pairs[key])) for side in (0, 1))
        p, p_alike = differs.get(key), alike.get(key)
        called = p is not None and p <= ratios.ALPHA
        yield Ratio(
            setting=name,
            load=load,
            metric=metric,
            a=a,
            b=b,
            ratio=math.exp(one.at),
            ci95=ratios.interval(one),
            blocks=one.blocks,
            p=p,
            p_alike=p_alike,
            seen=ratios.detectable(one, len(differs)),
            called=None if not called else "higher" if one.at > 0 else "lower",
            alike=p_alike is not None and p_alike <= ratios.ALPHA,
            noise=noisy.get((load, metric)),
        )


def _adjusted(differences: dict[_Key, Difference], test: Callable[[Difference], float | None]) -> dict[_Key, float]:
    """p after Holm, of those that can be tested."""
    tested = {key: p for key, one in differences.items() if (p := test(one)) is not None}
    return dict(zip(tested, ratios.holm([*tested.values()]), strict=True))


def _cases(
    held: Sequence[gates.Gate], pairs: dict[_Key, _Pairs], differences: dict[_Key, Difference]
) -> Iterator[gates.Case]:
    """Every gate at every load that both have."""
    for gate in held:
        for name, load in dict.fromkeys((name, load) for name, load, _ in pairs):
            yield gates.Case(gate, name, load, differences.get((name, load, gate.metric)))


def _of_pairs(baseline: Setting, others: Sequence[Setting], what: Callable[[Summary, Summary], list[str]]) -> list[str]:
    """What each has with the baseline, in the blocks of both; once."""
    return list(dict.fromkeys(
        f"{baseline.name} and {other.name}: {text}"
        for other in others
        for a in baseline.replicates
        for b in other.replicates
        if a.block == b.block
        for text in what(a.run, b.run)
    ))  # fmt: skip


def _invalid(setting: Setting) -> Iterator[str]:
    """Such as `b at 64 in 2 of 5 runs (client-lag)`."""
    codes: dict[str, set[str]] = {}
    runs: dict[str, int] = {}
    for one in setting.replicates:
        found = {measured.load(level): level for level in one.run.levels if level.validity == "INVALID"}
        for load, level in found.items():
            runs[load] = runs.get(load, 0) + 1
            codes.setdefault(load, set()).update(one.code for one in level.findings if one.severity == "error")
    for load, count in runs.items():
        often = f" in {count} of {len(setting.replicates)} runs" if len(setting.replicates) > 1 else ""
        yield f"{setting.name} at {load}{often} ({', '.join(sorted(codes[load]))})"


def _alone(baseline: Setting, others: Sequence[Setting]) -> Iterator[str]:
    """Loads that only one of the two has."""
    ours = _asked(baseline)
    for other in others:
        theirs = _asked(other)
        for name, loads, besides in ((baseline.name, ours, theirs), (other.name, theirs, ours)):
            only = [load for load in loads if load not in besides]
            if only:
                yield f"{name} alone was measured at {', '.join(only)}"


def _asked(setting: Setting) -> list[str]:
    """The loads that were measured, valid or not."""
    every = [level for one in setting.replicates for level in one.run.levels]
    return list(dict.fromkeys(map(measured.load, sorted(every, key=lambda level: measured.asked(level) or 0.0))))


def _apart(baseline: Setting, others: Sequence[Setting]) -> Iterator[str]:
    """Blocks make a comparison fair only where both were started in them."""
    apart = [other.name for other in others if other.source != baseline.source and baseline.tuned and other.tuned]
    if apart:
        names = f"{', '.join(apart)} and {baseline.name}"
        yield f"{names} were measured apart: what drifted in between counts as a difference"


def _missing(pairs: dict[_Key, _Pairs]) -> Iterator[str]:
    """Metrics that some load lacks; a goodput that no SLO asks for is not missed."""
    lacking: dict[str, dict[str, None]] = {}
    for (_, load, metric), found in pairs.items():
        if not found and metric != "goodput":
            lacking.setdefault(load, {})[metric] = None
    loads: dict[str, list[str]] = {}
    for load, metrics in lacking.items():
        loads.setdefault(", ".join(metrics), []).append(load)
    for names, where in loads.items():
        yield f"not compared at {', '.join(where)}, for want of requests: {names}"
