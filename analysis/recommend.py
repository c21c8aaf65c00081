"""Which setting to choose: the one that delivers the most at the largest load under its SLO, if the data say so.

Each setting stands at its own largest load under the SLO (`curve.holds` of each run, so of each block), and output
tokens/s there are compared, every pair of settings, Holm over the pairs: the winner was not picked beforehand. It is
one question of its own: it pays nothing for the many ratios of a comparison, and may be answered where none is called.

Without an SLO there is no best load: all stand at the largest load that all have, and the sentence says that it weighs
throughput alone. A setting that does not hold the SLO in each of its blocks is no candidate; where one of its runs was
INVALID, or did not decide, nobody knows, and nothing is recommended.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import msgspec

from analysis import measured, ratios, tuned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.measured import Level
    from analysis.ratios import Difference
    from analysis.tuned import Blocks, Setting


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A setting at its load; means over its blocks, None where nobody knows.

    load                   the largest under the SLO, in each block: the lowest of them; None where a block has none
    loads                  those of all blocks
    output_tokens_per_s    geometric mean, each block at its own load
    kv_use                 time-average of the share of the KV cache in use
    preemptions            in a level
    waiting                time-average of the requests in the server's queue
    """

    setting: str
    starts: int
    failures: tuple[str, ...]
    load: str | None
    loads: tuple[str, ...]
    output_tokens_per_s: float | None
    kv_use: float | None
    preemptions: float | None
    waiting: float | None


class Recommended(msgspec.Struct, frozen=True, kw_only=True):
    """`setting` is None where the data do not decide."""

    setting: str | None
    sentence: str
    under_slo: bool


def recommend(settings: Sequence[Setting], margin: float) -> tuple[tuple[Row, ...], Recommended]:
    slo = any(
        one.run.curve.holds is not None or any(level.verdicts for level in one.run.levels)
        for setting in settings
        for one in setting.replicates
    )
    stand = {one.name: _under_slo(one) if slo else _at_shared(one, settings) for one in settings}
    rows = tuple(_row(one, stand[one.name]) for one in settings)
    candidates = {row.setting: stand[row.setting] for row in rows if row.load is not None}
    best, sentence = _choice(candidates, {row.setting: row for row in rows}, margin, slo=slo)
    unknown = [one.name for one in settings if candidates and _unknown(one, stand[one.name], slo=slo)]
    if unknown:
        others = f" Of the others: {sentence}" if len(candidates) > 1 else ""
        best = None
        sentence = f"Too little is known of {', '.join(unknown)}: not every run gave a VALID answer.{others}"
    return rows, Recommended(setting=best, sentence=sentence, under_slo=slo)


def _under_slo(setting: Setting) -> Blocks:
    """The levels at the largest load that holds, by block; a block without one is not there."""
    found: Blocks = {}
    for one in setting.replicates:
        holds = one.run.curve.holds
        at = [level for level in one.run.levels if level.validity == "VALID" and measured.asked(level) == holds]
        if holds is not None and at:
            found.setdefault(one.block, []).extend(at)
    return found


def _at_shared(setting: Setting, settings: Sequence[Setting]) -> Blocks:
    """At the largest load that all have."""
    ours = tuned.levels(setting)
    others = [tuned.levels(one) for one in settings if one.replicates]
    shared = [load for load in ours if all(load in other for other in others)]
    return ours[shared[-1]] if shared else {}


def _unknown(setting: Setting, stand: Blocks, *, slo: bool) -> bool:
    """Whether some run of it neither has its level nor says that the SLO fails."""
    silent = [one.run for one in setting.replicates if one.block not in stand]
    return any(not slo or run.curve.fails is None for run in silent)


def _row(setting: Setting, stand: Blocks) -> Row:
    each = {block: min(levels, key=_load) for block, levels in stand.items()}
    in_all = bool(each) and set(each) == {one.block for one in setting.replicates}
    lowest = min(each.values(), key=_load) if in_all else None
    rates = [one.at for levels in stand.values() if (one := ratios.logged(levels, "throughput")) is not None]
    every = [level for levels in stand.values() for level in levels]
    return Row(
        setting=setting.name,
        starts=len(setting.replicates),
        failures=setting.failures,
        load=None if lowest is None else measured.load(lowest),
        loads=tuple(measured.load(each[block]) for block in sorted(each)),
        output_tokens_per_s=math.exp(sum(rates) / len(rates)) if rates and lowest is not None else None,
        kv_use=_mean(every, "kv_use"),
        preemptions=_mean(every, "preemptions"),
        waiting=_mean(every, "waiting"),
    )


def _load(level: Level) -> float:
    return measured.asked(level) or 0.0


def _mean(levels: Sequence[Level], name: str) -> float | None:
    """Of what the server said of itself, its mean where that is a spread; None where it was silent in one level."""
    said = [(msgspec.to_builtins(level.server) or {}).get(name) for level in levels]
    known = [one["mean"] if isinstance(one, dict) else one for one in said if one is not None]
    return sum(known) / len(known) if known and len(known) == len(levels) else None


def _choice(candidates: dict[str, Blocks], rows: dict[str, Row], margin: float, *, slo: bool) -> tuple[str | None, str]:
    """The best setting, if there is one, and the sentence."""
    if not candidates:
        if slo:
            return None, "No setting is known to hold the SLO in all its runs at a load that was measured."
        return None, "No load was measured with all settings, so none can be recommended."
    best = max(candidates, key=lambda name: rows[name].output_tokens_per_s or 0.0)
    rest = [name for name in candidates if name != best]
    stands = _stands(rows[best], slo=slo)
    if not rest:
        only = "the SLO is known to hold in all runs" if slo else "there is a result"
        return best, f"Choose {best}, the only setting for which {only}: {stands}."
    found = _against(candidates)
    reach = _reach(min((one.blocks for one in found.values()), default=1))
    differs = _adjusted({pair: ratios.p_differs(one) for pair, one in found.items()})
    alike = _adjusted({pair: ratios.p_alike(one, margin) for pair, one in found.items()})
    rivals = [name for name in rest if differs.get(_pair(best, name), 1.0) > ratios.ALPHA]
    if rivals:
        same = all(alike.get(_pair(best, name), 1.0) <= ratios.ALPHA for name in rivals)
        names = f"{', '.join(rivals)} and {best}"
        if same:
            return (
                None,
                f"Between {names} there is no difference above {100 * margin:g} %: either will do; {stands}{reach}.",
            )
        return (
            None,
            f"The data do not decide between {names}: {stands}, {_gap(found, best, rivals[0])} {rivals[0]}{reach}.",
        )
    second = max(rest, key=lambda name: rows[name].output_tokens_per_s or 0.0)
    return best, f"Choose {best}: {stands}, {_gap(found, best, second)} {second}{reach}."


def _against(candidates: dict[str, Blocks]) -> dict[frozenset[str], Difference]:
    """Of every pair, in the blocks of both; the later name in the alphabet to the earlier."""
    found = {}
    for a, b in itertools.combinations(sorted(candidates), 2):
        blocks = sorted(candidates[a].keys() & candidates[b].keys())
        both = [tuple(ratios.logged(candidates[one][n], "throughput") for one in (a, b)) for n in blocks]
        one = ratios.difference([(x, y) for x, y in both if x is not None and y is not None], len(blocks))
        if one is not None:
            found[_pair(a, b)] = one
    return found


def _pair(a: str, b: str) -> frozenset[str]:
    return frozenset((a, b))


def _adjusted(tested: dict[frozenset[str], float | None]) -> dict[frozenset[str], float]:
    known = {pair: p for pair, p in tested.items() if p is not None}
    return dict(zip(known, ratios.holm([*known.values()]), strict=True))


def _reach(blocks: int) -> str:
    return {
        "claim": f" ({blocks} blocks)",
        "indication": f" ({blocks} blocks, an indication: {ratios.CLAIM_BLOCKS} make a claim)",
        "these runs": " (one start of each: this is about these runs only)",
    }[ratios.reach(blocks)]


def _stands(row: Row, *, slo: bool) -> str:
    of = (
        "the largest load under the SLO"
        if slo
        else "the largest load that all have (throughput alone: no SLO was given)"
    )
    return f"{row.output_tokens_per_s or 0:,.0f} tok/s at {row.load}, {of}"


def _gap(found: dict[frozenset[str], Difference], best: str, other: str) -> str:
    """Such as `12 % (8 to 15) more than`."""
    one = found.get(_pair(best, other))
    if one is None:
        return "more than"
    sign = 1 if best > other else -1
    ends = [None if end is None else end**sign for end in ratios.interval(one)]
    low, high = (_percent(end) for end in ends[::sign])
    return f"{_percent(math.exp(sign * one.at))} % ({low} to {high}) more than"


def _percent(ratio: float | None) -> str:
    return "?" if ratio is None else f"{100 * (ratio - 1):.3g}" if abs(ratio - 1) < 1 else f"{100 * (ratio - 1):.0f}"
