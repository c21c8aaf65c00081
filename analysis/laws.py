"""Laws of throughput X over concurrency N, and their least squares. A table of many draws is fitted at once.

Every law is the time of an engine's step, in which each of N requests gets a token: X(N) = N / step(N).

    asymptotic   step = c0 + c1 N            a fixed cost a step, and a cost a request
    usl          step = c0 + c1 N + c2 N^2   requests also get in each other's way: the Universal Scalability Law of
                                             lambda = 1 / (c0 + c1 + c2), kappa = c2 lambda, sigma = (c1 + c2) lambda
    capped       X(N) = X(cap) from a cap on, of a server that takes no more requests into its batch

No cost is below 0.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from analysis.records import Floats

    Table = npt.NDArray[np.float64]  # a row a draw

Law = Literal["asymptotic", "usl", "capped"]
PARAMETERS: dict[Law, int] = {"asymptotic": 2, "usl": 3, "capped": 3}
FEWEST = min(PARAMETERS.values()) + 2  # points: AICc is not defined for fewer
PLACES = 200  # of N that are looked at


class Fits(msgspec.Struct, frozen=True, kw_only=True):
    """One law fitted to each draw. `costs_s` has the columns c0, c1, c2; `cap` is infinite where there is none."""

    law: Law
    costs_s: Table
    cap: Floats
    chi2: Floats

    def throughput(self, n: Floats) -> Table:
        """Tokens/s at each of `n`, a column each."""
        batch = np.minimum(n, self.cap[:, None])
        c0, c1, c2 = (self.costs_s[:, [power]] for power in range(3))
        return np.asarray(batch / (c0 + c1 * batch + c2 * batch**2))


def allowed(points: int) -> list[Law]:
    """The laws that so many points of different N can choose between."""
    return [law for law, parameters in PARAMETERS.items() if points >= parameters + 2]


def places(first: float, last: float) -> Floats:
    """Whole numbers of requests from first to last: all of them, or so many spread evenly over the logarithm."""
    if last - first < PLACES:
        return np.arange(first, last + 1)
    return np.unique(np.round(np.geomspace(first, last, PLACES)))


def fit(law: Law, n: Floats, step_s: Table, weights: Floats) -> Fits:
    """The law to each row of `step_s`, N/X, at rising `n`; weights are one over the standard error of a step.

    A cap is tried at each place between the second point and the last.
    """
    draws, powers = len(step_s), 3 if law == "usl" else 2
    caps = [np.inf]
    if law == "capped":
        caps = [float(cap) for cap in places(n[0], n[-1]) if n[1] <= cap < n[-1]]
    costs_s, best_cap, best = np.zeros((draws, 3)), np.full(draws, np.inf), np.full(draws, np.inf)
    for cap in caps:
        batch = np.minimum(n, cap)
        design = np.stack([n * batch ** (power - 1) for power in range(powers)], axis=1)
        found, chi2 = _nonnegative(design * weights[:, None], step_s * weights)
        better = chi2 < best
        costs_s[better, :powers], best_cap[better], best[better] = found[better], cap, chi2[better]
    return Fits(law=law, costs_s=costs_s, cap=best_cap, chi2=best)


def aic(fits: Fits, scatter: float = 1.0) -> float:
    """Of the first draw. The errors of the points are known, up to a factor `scatter` of their variance."""
    return float(fits.chi2[0]) / scatter + 2 * PARAMETERS[fits.law]


def aicc(fits: Fits, points: int) -> float:
    """Of the first draw, with the correction for few points, which prefers the law of fewer parameters."""
    k = PARAMETERS[fits.law]
    return aic(fits) + 2 * k * (k + 1) / (points - k - 1)


def _nonnegative(design: Table, wanted: Table) -> tuple[Table, Floats]:
    """Least squares without negative coefficients, and its sum of squares: the best of all sets of columns."""
    best_found, best = np.zeros((len(wanted), design.shape[1])), np.full(len(wanted), np.inf)
    columns = range(design.shape[1])
    for chosen in itertools.chain.from_iterable(itertools.combinations(columns, size + 1) for size in columns):
        some = design[:, chosen]
        found = wanted @ np.linalg.pinv(some).T
        chi2 = np.sum((wanted - found @ some.T) ** 2, axis=1)
        better = (found >= 0).all(axis=1) & (chi2 < best)
        best_found[better] = 0
        best_found[np.ix_(better, chosen)] = found[better]
        best[better] = chi2[better]
    return best_found, best
