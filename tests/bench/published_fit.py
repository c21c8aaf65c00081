"""The sets of tests.bench.published from the rows, by least squares; and each row from a fit to the others.

    python -m tests.bench.published_fit

Residuals are log ratios of throughput, ITL and TTFT, those of TTFT counted half, as its tolerance is wider; a loss that
grows linearly, so that one odd row does not pull the rest (scipy's soft_l1). In a closed loop the steps' work does not
depend on how long they take: each row is played once, and only timed anew.

A group of one row is not fitted. llama.cpp's rows are decode at batch 1: they can tell one number, the overhead.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from tests.bench import published
from tests.bench.published import DEFAULTS, Played, Row, Set

START = {"compute_efficiency": 0.4, "overhead_us": 1000.0, "overhead_per_seq_us": 30.0}
BOUNDS = {"compute_efficiency": (0.05, 1.0), "overhead_us": (1.0, 1e5), "overhead_per_seq_us": (0.01, 1e3)}
FREE = {"llama.cpp": ("overhead_us",)}
TTFT_WEIGHT = 0.5
SOFT = 0.2  # log ratio from which the loss is linear

Group = Sequence[tuple[Row, Played]]


def _result(row: Row, played: Played, given: Set) -> published.Result:
    durations_s = published.timed(played, published.spec(row, given))
    return published.result(played, durations_s, published.lengths(row)[1])


def residuals(group: Group, given: Set) -> list[float]:
    found = []
    for row, played in group:
        ratio = published.ratios(row, _result(row, played, given))
        ttft = None if published.saturated(row) else ratio.ttft_ms
        weighted = ((ratio.output_tokens_per_s, 1.0), (ttft, TTFT_WEIGHT), (ratio.itl_ms, 1.0))
        found += [weight * math.log(one) for one, weight in weighted if one is not None]
    return found


def fit(group: Group) -> Set:
    names = FREE.get(group[0][0].engine, tuple(START))

    def given(logs: NDArray[np.float64]) -> Set:
        return msgspec.structs.replace(DEFAULTS, **dict(zip(names, np.exp(logs).tolist(), strict=True)))

    bounds = np.log([BOUNDS[name] for name in names]).T
    start = np.log([START[name] for name in names])

    def cost(logs: NDArray[np.float64]) -> list[float]:
        return residuals(group, given(logs))

    return given(least_squares(cost, start, bounds=(bounds[0], bounds[1]), loss="soft_l1", f_scale=SOFT).x)


def main() -> None:
    groups: dict[tuple[str, int], list[tuple[Row, Played]]] = {}
    for row in published.rows():
        played = published.play(published.spec(row, DEFAULTS), published.load(row), *published.lengths(row))
        groups.setdefault((row.engine, row.gpus), []).append((row, played))
    fitted = {key: group for key, group in groups.items() if len(group) > 1}
    numbers = parameters = 0
    judged, left_out = [], []
    for key, group in fitted.items():
        found = fit(group)
        print(*key, found)
        numbers += len(residuals(group, found))
        parameters += len(FREE.get(key[0], tuple(START)))
        judged += [published.near(row, _result(row, played, found)) for row, played in group]
        for i, (row, played) in enumerate(group):
            others = fit([*group[:i], *group[i + 1 :]])
            left_out.append(published.near(row, _result(row, played, others)))
    print(f"{parameters} parameters for {numbers} numbers in {len(judged)} rows")
    print("All rows:", published.counts(judged))
    print("Each row by the others:", published.counts(left_out))


if __name__ == "__main__":
    main()
