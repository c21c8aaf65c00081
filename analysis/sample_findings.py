"""Findings about the sample: has the level settled, and does it carry the percentiles that are asked of it?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from analysis import metrics, quantiles
from analysis.client_findings import over_saturated
from analysis.evidence import Finding

if TYPE_CHECKING:
    from analysis.evidence import Evidence
    from analysis.quantiles import Distribution

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def not_steady(evidence: Evidence) -> Finding | None:
    flow, requests = evidence.flow, evidence.requests
    request_s = metrics.known_mean(requests.end_us[evidence.sampled])
    if flow is None or request_s is None:
        return None
    if flow.length_s * 1e6 < request_s:
        message = f"the window ({flow.length_s:.3g} s) is shorter than a request takes ({request_s / 1e6:.3g} s)"
        how = "throughput and concurrency are those of a moment; measure longer, or read the whole-run throughput"
        return Finding("not-steady", "warning", f"{message}: {how}")
    trend = None if evidence.settled is None else evidence.settled.trend
    if trend is None or over_saturated(evidence) is not None:
        return None
    unit = " ms" if trend.name == "TTFT" else ""
    message = f"{trend.name} went from {trend.first:.3g} to {trend.last:.3g}{unit} in the window"
    how = "the numbers are means over a change, and would be others in a longer run; measure longer"
    return Finding("not-steady", "warning", f"{message}: {how}")


def settling(evidence: Evidence) -> Finding | None:
    settled = evidence.settled
    if settled is None or not settled.cut_requests:
        return None
    message = f"the first {settled.cut_s:.3g} s after the warm-up were not steady yet"
    return Finding("settling", "info", f"{message}: {settled.cut_requests} requests more count as warm-up")


def few_samples(evidence: Evidence) -> Finding | None:
    """How many requests would do if values go on to depend on each other so; not where waits just grow."""
    n, whole = int(evidence.sampled.sum()), evidence.whole
    spreads = {"TTFT": whole.ttft_ms, "ITL": whole.itl_ms, "TPOT": whole.tpot_ms, "E2E": whole.e2e_ms}
    needed: dict[str, tuple[int, str]] = {}
    for metric, spread in spreads.items():
        for name, q in _QUANTILES.items():
            if spread.n and getattr(spread, name) is None:
                needed[name] = max(needed.get(name, (0, "")), (_requests(q, n, spread), metric))
    if not n or not needed or over_saturated(evidence) is not None:
        return None
    most, metric = max(needed.values())
    spread = spreads[metric]
    alike = (
        "" if spread.n_eff in (None, spread.n) else f" ({spread.n} values of {metric} say as much as {spread.n_eff} "
    )
    alike += "that do not depend on each other)" if alike else ""
    each = ", ".join(f"{name} {count}" for name, (count, _) in sorted(needed.items()))
    message = f"a sample of {n} is too small for some percentiles, which are null{alike}; requests needed: {each}"
    return Finding("few-samples", "info", f"{message}; use --requests {most} or more time")


def _requests(q: float, requests: int, spread: Distribution) -> int:
    """So many that the quantile has its `min_n` independent values; in two digits where that is a guess."""
    n_eff = spread.n if spread.n_eff is None else spread.n_eff
    many = max(requests + 1, math.ceil(quantiles.min_n(q) * requests / n_eff))
    digit = int(10 ** max(len(str(many)) - 2, 0)) if n_eff < spread.n else 1
    return -(-many // digit) * digit
