"""Whether arrivals follow a law, and whether they are those of a schedule: each check returns what is wrong.

Time is counted in mean gaps (for a ramp: in expected arrivals), so that one check serves all rates. Chance alone fails
a check about once in 10,000 times; the seeds are fixed, so that it fails always or never.

Arrivals are seen through a client that shares its cores with others. What is allowed for was measured on two cores with
seven other processes at work, where Linux lets a process wait for about 4 ms, and then for several such turns:

JITTER_S    that a gap may be off its law; of the constant law, half a gap. More than one in ten may not be off further
LAG_S       of the median request behind its schedule, and of the last quarter of them behind the first
STALL_S     of one request in twenty
"""

import functools

import numpy as np
from numpy.typing import NDArray
from scipy import stats

JITTER_S = 0.002
LAG_S = 0.005
STALL_S = 0.1
LEVELS = 10_000  # drawn to know what chance does
P = 1e-4
WINDOW = 5.0  # mean gaps in which arrivals are counted
_BEFORE = 50  # mean gaps drawn before a level begins, at what is then no special moment

Times = NDArray[np.float64]


def off_law(at: Times, length: float, cv: float, jitter: float) -> list[str]:
    """Arrivals from 0 to `length`, against gaps of the gamma law with this coefficient of variation (0: all alike, 1:
    Poisson). All in mean gaps."""
    at = np.sort(at[(at >= 0) & (at < length)])
    low, high = _limits(cv, length)
    found = np.array([at.size, dispersion(at, length)])
    names = ("arrivals", "dispersion")
    faults = [
        f"{name}: {value:.4g}, expected {least:.4g} to {most:.4g}"
        for name, value, least, most in zip(names, found, low, high, strict=True)
        if not least <= value <= most
    ]
    p = gaps_p(np.diff(at), cv, jitter)
    return faults + ([f"gaps: Kolmogorov-Smirnov p = {p:.2g}"] if p < P else [])


def dispersion(at: Times, length: float) -> float:
    """Index of dispersion of counts: variance over mean, in windows of a few mean gaps."""
    counts = np.histogram(at, np.arange(0, length + 1e-9, WINDOW))[0]
    return float(counts.var(ddof=1) / counts.mean())


@functools.cache
def _limits(cv: float, length: float) -> tuple[list[float], list[float]]:
    """The lowest and the highest count and dispersion in many levels."""
    if cv == 0:
        return [length - 1, 0.0], [length + 1, 0.1]
    rng, found = np.random.default_rng(0), []
    gaps = round(length + _BEFORE + 6 * cv * (length + _BEFORE) ** 0.5)
    for _ in range(LEVELS):
        at = np.cumsum(rng.standard_gamma(cv**-2, gaps)) * cv**2 - _BEFORE
        at = at[(at >= 0) & (at < length)]
        found.append((at.size, dispersion(at, length)))
    return np.min(found, axis=0).tolist(), np.max(found, axis=0).tolist()


def gaps_p(gaps: Times, cv: float, jitter: float) -> float:
    """p-value of the Kolmogorov-Smirnov distance that is left where each gap is moved by up to `jitter` towards its
    law: at least that of the undisturbed gaps."""
    gaps = np.sort(gaps)
    jitter = jitter if cv else 0.5  # nearer to another number of gaps than to one
    ranks = np.arange(gaps.size + 1) / gaps.size
    above = ranks[1:] - _cdf(gaps + jitter, cv)
    below = _cdf(gaps - jitter, cv) - ranks[:-1]
    return float(stats.kstwo.sf(max(above.max(), below.max(), 0.0), gaps.size))


def _cdf(gaps: Times, cv: float) -> Times:
    if cv == 0:
        return (gaps >= 1).astype(np.float64)
    return np.asarray(stats.gamma.cdf(gaps, cv**-2, scale=cv**2))


def off_schedule(seen_s: Times, due_s: Times) -> list[str]:
    """Both from the same moment on. The first to be seen is held against the first that is due, and so on: if none is
    later than some lag, none of these is."""
    if seen_s.size != due_s.size:
        return [f"{seen_s.size} arrivals of {due_s.size} due"]
    lag_s = np.sort(seen_s) - np.sort(due_s)
    quarter = lag_s.size // 4
    found = {
        "early": (-lag_s.min(), 1e-4),  # the two clocks are compared to some us
        "median lag": (np.median(lag_s), LAG_S),
        "p95 of lag": (np.quantile(lag_s, 0.95), STALL_S),
        "drift": (np.median(lag_s[-quarter:]) - np.median(lag_s[:quarter]), LAG_S),
    }
    return [f"{name}: {value * 1000:.3g} ms" for name, (value, most) in found.items() if value > most]
