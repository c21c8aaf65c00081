"""Settings made of a few numbers, and tune directories."""

from __future__ import annotations

import functools
import json
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from analysis import quantiles, summary
from analysis.evidence import Finding
from analysis.tuned import Replicate, Setting
from analysis.verdicts import Goodput
from tests import fakes_run as fakes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.measured import Level
    from analysis.summary import Summary

LATENCIES = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")


@functools.cache
def template() -> Summary:
    with tempfile.TemporaryDirectory() as directory:
        head = fakes.header(levels=[{"level": 0, "concurrency": 4}])
        return summary.summarize(fakes.write(Path(directory), fakes.clean(), [fakes.ended()], head))


def spread(at: float, off: float, *, p99: bool = True) -> quantiles.Distribution:
    """A median at `at` and a p99 twice that, each with an interval from `off` below to `off` above, relatively."""
    ends = at / (1 + off), at * (1 + off)
    top: dict[str, Any] = {"p99": 2 * at, "p99_ci95": (2 * ends[0], 2 * ends[1])} if p99 else {}
    return quantiles.Distribution(n=900, n_eff=800, p50=at, p90=1.5 * at, p95=1.7 * at, p50_ci95=ends, **top)


def level(
    concurrency: int = 8,
    /,
    rate: float = 100.0,
    times: float = 1.0,
    off: float = 0.02,
    *,
    p99: bool = True,
    **changes: Any,
) -> Level:
    """Valid, with all latencies `times` as long as usual."""
    first = template().levels[0]
    throughput = msgspec.structs.replace(
        first.throughput,
        output_tokens_per_s=rate,
        output_tokens_per_s_ci95=(rate / (1 + off), rate * (1 + off)),
        per_user_tokens_per_s=rate / concurrency,
    )
    usual = {"ttft_ms": 100.0, "itl_ms": 10.0, "tpot_ms": 10.0, "e2e_ms": 1000.0}
    latencies = {name: spread(times * at, off, p99=p99) for name, at in usual.items()}
    facts = {"level": 0, "concurrency": concurrency, "throughput": throughput, "goodput": None, "findings": ()}
    return msgspec.structs.replace(first, **(facts | latencies | changes))


def invalid(concurrency: int = 8) -> Level:
    return level(concurrency, validity="INVALID", findings=(Finding("client-lag", "error", ""),))


def goodput(rate: float) -> Goodput:
    return Goodput(requests_per_s=rate, share=1.0)


def run(
    *levels: Level, holds: float | None = None, fails: float | None = None, digest: str = "ab12", **changes: Any
) -> Summary:
    first = template()
    workload = msgspec.structs.replace(first.workload, digest=digest)
    curve = msgspec.structs.replace(first.curve, holds=holds, fails=fails)
    return msgspec.structs.replace(first, levels=levels, workload=workload, curve=curve, **changes)


def alone(name: str, *levels: Level, **changes: Any) -> Setting:
    """A run directory by itself."""
    return Setting(name=name, source=name, replicates=(Replicate(block=0, run=run(*levels, **changes)),))


def tuned(name: str, runs: Sequence[Summary], failures: Sequence[str] = ()) -> Setting:
    """One run a block, each block with a seed of its own."""
    made = [
        Replicate(block=n, run=msgspec.structs.replace(one, workload=_seeded(one, n), seed=n))
        for n, one in enumerate(runs)
    ]
    return Setting(
        name=name, source="tune", values=(("n", name),), tuned=True, replicates=tuple(made), failures=tuple(failures)
    )


def _seeded(one: Summary, seed: int) -> Any:
    return msgspec.structs.replace(one.workload, digest=f"{one.workload.digest}-{seed}")


WOBBLE = (-0.01, 0.004, 0.012, -0.006, 0.0)  # of the logs in five blocks; they add up to 0


def blocks(
    name: str, rate: float, *, times: float = 1.0, count: int = 5, wobble: float = 1.0, holds: float | None = None
) -> Setting:
    """Throughput and latencies go up and down by about a percent from block to block."""
    chances = [math.exp(wobble * chance) for chance in WOBBLE[:count]]
    return tuned(name, [run(level(8, rate * chance, times / chance), holds=holds) for chance in chances])


def tune(directory: Path, names: Sequence[str] = ("n=8", "n=16"), count: int = 2, **changes: Any) -> Path:
    """A tune directory whose settings take 100 ms and 80 ms to the first token; n=99 cannot start."""
    rows = []
    for block in range(count):
        for place, name in enumerate(names):
            where, log = f"block-{block}/{name}", f"block-{block}/{name}.log"
            row = {"setting": place, "block": block, "order": place, "directory": where, "error": None, "log": log}
            if name == "n=99":
                row |= {"directory": None, "error": "the server exited with 1"}
                (directory / f"block-{block}").mkdir(parents=True, exist_ok=True)
                (directory / log).write_text("loading\nCUDA out of memory\n\n")
            else:
                ttft_us = 100_000 - 20_000 * place + 1000 * block * (place + 1)
                requests = fakes.closed_loop(4, each=100, ttft_us=ttft_us)
                workload = {"name": "chat", "input": "512", "output": "256", "digest": f"block {block}"}
                head = fakes.header(levels=[{"level": 0, "concurrency": 4}], workload=workload, seed=block)
                fakes.write(directory / where, requests, [fakes.ended()], head)
            rows.append(row)
    facts = {
        "format": 1, "launch": "serve --n {n}", "blocks": count, "seed": 0, "runs": rows,
        "settings": [{"name": name, "values": {"n": name[2:]}} for name in names],
    }  # fmt: skip
    (directory / "tune.json").write_text(json.dumps(facts | changes))
    return directory
