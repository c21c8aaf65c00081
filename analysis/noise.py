"""A against A: by how much two starts of the same setting differ, on this machine and server.

Where a setting was started more than once in a block, what differs there is noise and nothing else. Otherwise the log
of a value is a sum of what the setting and what the block make of it, and what is left is the noise (a two-way analysis
of variance); a setting that a block suits better than another counts as noise then. Of one setting alone the blocks
cannot be told from it: their seeds are part of the noise.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from scipy import special

from analysis import ratios, tuned
from analysis.rounding import digits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.records import Floats
    from analysis.tuned import Setting

Cell = tuple[str, str]  # setting and block


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """Of one metric at one load.

    sd      standard deviation of the log ratio of two starts of the same setting, from `free` degrees of freedom
    hides   two such starts differ by more in 5 % of all cases (the reproducibility limit of ISO 5725), as a share
    """

    load: str
    metric: ratios.Metric
    starts: int
    free: int
    sd: float
    hides: float


def noises(settings: Sequence[Setting], *, alike: bool = False) -> tuple[Noise, ...]:
    """At each load, of each metric that some setting had from two starts. `alike`: all are one and the same setting."""
    logs: dict[tuple[str, ratios.Metric], list[tuple[Cell, float]]] = {}
    for setting in settings:
        source, same = ("", "") if alike else (setting.source, f"{setting.source} {setting.values}")
        for replicate in setting.replicates:
            for load, levels in tuned.valid(replicate.run).items():
                for metric in ratios.METRICS:
                    one = ratios.logged(levels, metric)
                    if one is not None:
                        logs.setdefault((load, metric), []).append(((same, f"{source} {replicate.block}"), one.at))
    made = (noise(load, metric, found) for (load, metric), found in logs.items())
    return tuple(one for one in made if one is not None)


def dumps(found: Sequence[Noise]) -> str:
    return json.dumps({"noise": digits(msgspec.to_builtins(found))}, indent=2, allow_nan=False) + "\n"


def noise(load: str, metric: ratios.Metric, logs: Sequence[tuple[Cell, float]]) -> Noise | None:
    """Of the logarithms of all starts; None where no setting was started twice."""
    variance, free = _pure(logs)
    if not free:
        variance, free = _left_over(logs)
    if not free:
        return None
    sd = max(math.sqrt(2 * variance), ratios.RESOLUTION)
    most = sd * float(special.stdtrit(free, 1 - ratios.ALPHA / 2))
    return Noise(load=load, metric=metric, starts=len(logs), free=free, sd=sd, hides=math.expm1(min(most, 700.0)))


def _pure(logs: Sequence[tuple[Cell, float]]) -> tuple[float, int]:
    """Variance within cells."""
    cells: dict[Cell, list[float]] = {}
    for cell, log in logs:
        cells.setdefault(cell, []).append(log)
    free = sum(len(values) - 1 for values in cells.values())
    squares = sum(float(np.var(values)) * len(values) for values in cells.values())
    return (squares / free, free) if free else (0.0, 0)


def _left_over(logs: Sequence[tuple[Cell, float]]) -> tuple[float, int]:
    """Variance around the sum of setting and block; of one setting, around its mean."""
    settings, blocks = ([cell[place] for cell, _ in logs] for place in (0, 1))
    columns = [_indicators(settings)] + ([_indicators(blocks)] if len(set(settings)) > 1 else [])
    design = np.concatenate(columns, axis=1)
    values = np.array([log for _, log in logs])
    fitted, _, rank, _ = np.linalg.lstsq(design, values)
    free = len(values) - int(rank)
    return (float(np.sum((values - design @ fitted) ** 2)) / free, free) if free else (0.0, 0)


def _indicators(names: Sequence[str]) -> Floats:
    return np.array([[float(name == other) for other in sorted(set(names))] for name in names])
