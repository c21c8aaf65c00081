"""At what a run is slow: what limits it at the heaviest load, and where the time goes at the lightest.

The levels say more together than each alone. Of `throughput * (E2E - TTFT)`, which are the requests that decode at once
(Little's law), a server with a limit shows the same number at every load above it, while TTFT grows with the load: the
limit, without the server's own metrics.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from analysis.diagnosis import PLACES_UNLESS, Diagnosis, ms, places
from analysis.measured import asked, load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.measured import Level

LOADS = 1.5  # times the load, at which ...
SAME = 1.1  # ... no more than so many times as many decode at once ...
TTFT_GROWS = 1.5  # ... and TTFT is so many times as long
EXPLAINED = ("kv-limited", "prefill-bound", "network")  # what else holds the number that decodes at once
HEAVY = "prefill-bound"  # a workload that is so at one load is so at any higher one


def whole_run(levels: Sequence[Level]) -> tuple[Diagnosis, ...]:
    """What limits the heaviest load that the client kept up with, what takes the time at the lightest one if that is
    something else, and the client, where it could not keep up. One load says what it says; of a load that was measured
    several times the last level speaks that the client kept up with."""
    every = sorted((level for level in levels if level.diagnoses), key=_kept_up)
    told = sorted({asked(level): level for level in every}.values(), key=lambda level: asked(level) or math.inf)
    kept = [level for level in told if _kept_up(level)]
    if len(told) < 2:
        return told[0].diagnoses if told else ()
    found: list[Diagnosis] = []
    if kept:
        heavy, light = kept[-1], kept[0]
        kept_up = "" if heavy is told[-1] else " that the client kept up with"
        found += [_at(f"At {load(heavy)}, the heaviest load{kept_up}", one) for one in _limit(kept)]
        if light is not heavy:
            seen = {one.code for one in found}
            new = [one for one in light.diagnoses if one.code not in seen]
            found += [_at(f"At {load(light)}, the lightest load", one) for one in new]
    beaten = [level for level in told if not _kept_up(level)]
    if beaten:
        found.append(_at(f"At {', '.join(load(level) for level in beaten)}", beaten[-1].diagnoses[0]))
    return tuple(found)


def _kept_up(level: Level) -> bool:
    return level.diagnoses[0].code != "client"


def decoding(level: Level) -> float | None:
    """Requests that decode at once: `throughput * (E2E - TTFT)`."""
    rate, e2e, ttft = level.throughput.requests_per_s, level.e2e_ms.mean, level.ttft_ms.mean
    return None if rate is None or e2e is None or ttft is None else rate * (e2e - ttft) / 1e3


def _limit(levels: Sequence[Level]) -> tuple[Diagnosis, ...]:
    """Of the heaviest level. What that cannot tell, lighter ones can; a limit on the number that runs at once is seen
    over several."""
    own = levels[-1].diagnoses
    same = _plateau(levels)
    if any(one.code in EXPLAINED for one in own) or not (same or own[0].code == "unknown"):
        return own
    known = next((one for one in own if one.code == "queueing"), None)
    heavy = ((level, one) for level in reversed(levels) for one in level.diagnoses if one.code == HEAVY)
    level, prompts = next(heavy, (None, None))
    if known is None and level is not None and prompts is not None:
        return (msgspec.structs.replace(prompts, evidence=f"at {load(level)}: {prompts.evidence}"),)
    if not same:
        return own
    numbers = ", ".join(f"{decoding(level):.3g} at {load(level)}" for level in same)
    grows = f"TTFT grows from {ms(same[0].ttft_ms.mean or 0.0)} to {ms(same[-1].ttft_ms.mean or 0.0)}"
    said = f"as many decode at once at each load ({numbers}) while {grows}"
    if known is not None:
        known = msgspec.structs.replace(known, evidence=f"{known.evidence}; {said}")
    else:
        most = max(decoding(level) or 0.0 for level in same)
        known = Diagnosis(
            code="queueing",
            words=places(most, ", unless its KV cache is full"),
            evidence=said,
            lever=PLACES_UNLESS,
        )
    return known, *(one for one in own if one.code not in ("queueing", "unknown"))


def _plateau(levels: Sequence[Level]) -> list[Level]:
    """The levels up to the heaviest in which as many decode at once as in it; none where load or TTFT do not grow."""
    last = levels[-1]
    most = decoding(last)
    if not most:
        return []
    same = [level for level in levels if (now := decoding(level)) is not None and most / SAME <= now <= most * SAME]
    first, loads = same[0], (asked(same[0]), asked(last))
    before, after = first.ttft_ms.mean, last.ttft_ms.mean
    if loads[0] is None or loads[1] is None or not before or not after:
        return []
    return same if loads[1] >= LOADS * loads[0] and after >= TTFT_GROWS * before else []


def _at(where: str, one: Diagnosis) -> Diagnosis:
    return msgspec.structs.replace(one, words=f"{where}: {one.words[0].lower()}{one.words[1:]}")
