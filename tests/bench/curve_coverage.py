"""How often does the true knee, or the true saturation, lie in its interval? Laws of known truth, with noise.

    python -m tests.bench.curve_coverage [--repeats 200]

`noise` is that of a level as its blocks tell it (estimated from ten of them); `scatter` is what levels differ by beyond
that. A saturation counts where one is stated.
"""

import argparse
from collections import Counter

import numpy as np
from scipy import stats

from analysis import blocks, curve, laws

DOUBLING = (1, 2, 4, 8, 16, 32, 64)
LEAST = 0.92
TRUTHS: dict[str, tuple[laws.Law, tuple[float, float, float], float]] = {
    "knee 20": ("asymptotic", (7e-3, 3.5e-4, 0), np.inf),
    "knee 40": ("asymptotic", (7e-3, 1.75e-4, 0), np.inf),
    "knee 3": ("asymptotic", (7e-3, 2.3e-3, 0), np.inf),
    "usl": ("usl", (7e-3, 1e-4, 4e-6), np.inf),
    "weak usl": ("usl", (7e-3, 1.5e-4, 1e-6), np.inf),
    "cap 24": ("capped", (7e-3, 9e-5, 0), 24),
    "cap 32": ("capped", (7e-3, 9e-5, 0), 32),
    "cap 48": ("capped", (7e-3, 9e-5, 0), 48),
}
NOISES = ((0.01, 0.0), (0.03, 0.0), (0.01, 0.03))  # (noise, scatter), relative


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200)
    repeats = parser.parse_args().repeats
    print(f"{'law':10}{'noise':>7}{'scatter':>9}   share covered of knee, saturated, saturation; laws chosen")
    for name, (law, costs_s, cap) in TRUTHS.items():
        truth = laws.Fits(law=law, costs_s=np.array([costs_s]), cap=np.array([cap]), chi2=np.zeros(1))
        for noise, scatter in NOISES:
            shares, chosen = coverage(truth, noise, scatter, repeats)
            low = "  LOW" if min(shares) < LEAST else ""
            text = "  ".join(f"{share:.3f}" for share in shares)
            print(f"{name:10}{noise:7.2f}{scatter:9.2f}   {text}   {dict(chosen)}{low}", flush=True)


def coverage(truth: laws.Fits, noise: float, scatter: float, repeats: int) -> tuple[list[float], Counter[str]]:
    free = blocks.LONG - 1
    random, n = np.random.default_rng(1), np.array(DOUBLING, float)
    true = [float(values[0]) for values in curve.bends(truth, n[0], n[-1])]
    covered, counted, chosen = np.zeros(3), np.zeros(3), Counter[str]()
    for _ in range(repeats):
        rates = truth.throughput(n)[0] * np.exp(random.normal(0, np.hypot(noise, scatter), len(n)))
        seen = noise * np.sqrt(random.chisquare(free, len(n)) / free)
        found = curve.fitted(n, rates, seen * stats.t.ppf(0.975, free) / curve.Z95)  # as from the interval of a level
        chosen[found.fit.law if found.fit is not None else "none"] += 1
        if found.fit is None:
            continue
        for i, estimate in enumerate((found.knee, found.saturated, found.saturation_tokens_per_s)):
            (low, high), value = estimate.ci95, true[i]
            if i == 2 and estimate.value is None:
                continue
            counted[i] += 1
            covered[i] += (low is None or low <= value) and (high is None or value <= high)
    return list(covered / np.maximum(counted, 1) + (counted == 0)), chosen


if __name__ == "__main__":
    main()
