"""Does a comparison call what is not there, and see what is? On the simulated engine, in virtual time.

    python -m tests.bench.compare [--seeds 40] [--seconds 30]

Each start of the server is faster or slower by a chance of its own (2 %, lognormal), and all its times with it; a true
difference is a factor on all times of B, so the truth is known exactly. Two levels, 8 and 32 users, nine metrics.

blocks   A and B in five blocks, the same seed within a block: t intervals of the log ratio
single   one run of each, with different seeds, so that nothing is common; restarts are all alike here
restart  the same, and each start has its chance: what two single runs cannot know

any      comparisons that call a difference, of whichever metric; of A against A at most 5 % may
called   of each metric at 32 users, how often the difference is called; seen: its median smallest visible difference
gates    at the limit itself FAIL and PASS are both errors, each in at most 5 %

"""

import argparse
import math
from collections.abc import Iterator

import msgspec
import numpy as np

from analysis import compare, gates, measured, ratios, records
from analysis.curve import Curve
from analysis.measured import Level
from analysis.summary import Summary
from analysis.tuned import Replicate, Setting
from loadgen.sim.spec import Spec
from tests.bench import virtual
from tests.bench.verdicts import SHORT

USERS = (8, 32)
START_NOISE = 0.02
BLOCKS = 5
GATES = ("throughput -4.762%", "itl p50 +5%", "e2e p50 +5%", "ttft p99 +5%")
CASES = (
    ("blocks", 1.0), ("single", 1.0), ("restart", 1.0), ("blocks", 1.1), ("single", 1.1), ("blocks", 1.05),
    ("single", 1.05),
)  # fmt: skip


def start(factor: float, seconds: float, seed: int) -> Summary:
    """One start of the server, all of whose times are `factor` times as long."""
    served = slower(virtual.spec("llama-3.1-8b@h100,max_num_seqs=64,prefix_cache=0"), factor)
    levels = tuple(level(served, users, seconds, 100 * seed + users) for users in USERS)
    return Summary(
        format=1, loadgen="0.1.0", started_at="", target="sim:", model="llama-3.1-8b", api="chat", hardware=None,
        workload=records.Workload(name="chat", digest=f"seed {seed}"), arrivals=None, seed=seed, slo=None,
        clock="kernel", host={}, server={}, options={}, phases=None, seeks=None, answer=None, diagnoses=(),
        levels=levels,
        curve=Curve(holds=None, fails=None, left_out=()),
    )  # fmt: skip


def slower(served: Spec, factor: float) -> Spec:
    return msgspec.structs.replace(
        served,
        bandwidth_efficiency=served.bandwidth_efficiency / factor,
        compute_efficiency=served.compute_efficiency / factor,
        overhead_us=served.overhead_us * factor,
    )


def level(served: Spec, users: int, seconds: float, seed: int) -> Level:
    requests = virtual.closed_loop(served, users, seconds, seed, request_s=0.3, lengths=SHORT)
    planned = records.Planned(level=0, concurrency=users)
    header = records.Header(
        format=1, loadgen="0.1.0", started_at="", target="sim:", api="chat", workload=records.Workload(name="chat"),
        seed=seed, clock="kernel", levels=(planned,),
    )  # fmt: skip
    found = measured.summarize_level(records.Run(header=header, ended={}, requests={0: requests}, cut_rows=0), 0)
    return msgspec.structs.replace(found, validity="VALID")  # of the client nothing is known here


def in_blocks(truth: float, seconds: float, seed: int) -> list[Setting]:
    random = np.random.default_rng(seed)
    made: dict[str, list[Replicate]] = {"a": [], "b": []}
    for block in range(BLOCKS):
        for name, factor in (("a", 1.0), ("b", truth)):
            chance = math.exp(random.normal(0, START_NOISE))
            run = start(factor * chance, seconds, seed * BLOCKS + block)
            made[name].append(Replicate(block=block, run=run))
    return [Setting(name=name, source="bench", tuned=True, replicates=tuple(runs)) for name, runs in made.items()]


def single(truth: float, seconds: float, seed: int, noise: float) -> list[Setting]:
    random = np.random.default_rng(seed)
    found = []
    for place, (name, factor) in enumerate((("a", 1.0), ("b", truth))):
        run = start(factor * math.exp(random.normal(0, noise)), seconds, 2 * seed + place)
        run = msgspec.structs.replace(run, workload=records.Workload(name="chat", digest="one"))
        found.append(Setting(name=name, source=name, replicates=(Replicate(block=0, run=run),)))
    return found


def comparisons(kind: str, truth: float, seconds: float, seeds: int) -> Iterator[compare.Compared]:
    held = [gates.parse(text) for text in GATES]
    for seed in range(seeds):
        if kind == "blocks":
            settings = in_blocks(truth, seconds, seed)
        else:
            settings = single(truth, seconds, seed, START_NOISE if kind == "restart" else 0.0)
        yield compare.compare(settings, held=held)


def report(kind: str, truth: float, made: list[compare.Compared]) -> list[str]:
    calls = sum(any(one.called for one in found.ratios) for found in made)
    one_each = [any((one.ci95[0] or 0) > 1 or (one.ci95[1] or 2) < 1 for one in found.ratios) for found in made]
    chosen = sum(found.recommended.setting is not None for found in made)
    lines = [
        f"{kind}, true ratio of times {truth:g}: {100 * calls / len(made):.1f} % of {len(made)} call any difference, "
        f"{100 * chosen / len(made):.1f} % recommend a setting, "
        f"{100 * some_alike(made):.0f} % of the ratios are shown to be within 5 %; some interval alone excludes 1 in "
        f"{100 * sum(one_each) / len(made):.0f} %"
    ]
    for metric in ratios.METRICS:
        found = [one for each in made for one in each.ratios if (one.load, one.metric) == ("32", metric)]
        if found:
            true = 1 / truth if metric in ratios.MORE_IS_BETTER else truth
            cover = sum((one.ci95[0] or 0) <= true <= (one.ci95[1] or math.inf) for one in found) / len(found)
            called = sum(one.called is not None for one in found) / len(found)
            seen = np.median([one.seen or math.inf for one in found])
            figures = f"called {100 * called:5.1f} %, seen from {100 * seen:5.1f} %, covers {100 * cover:5.1f} %"
            lines.append(f"  {metric:11} {figures}")
    for gate in GATES:
        judged = [one.verdict for each in made for one in each.gates if one.gate == str(gates.parse(gate))]
        shares = ", ".join(f"{word} {100 * judged.count(word) / len(judged):.1f} %" for word in ("PASS", "FAIL"))
        lines.append(f"  gate {gate:15} {shares} of {len(judged)}")
    return lines


def some_alike(made: list[compare.Compared]) -> float:
    return float(np.mean([one.alike for found in made for one in found.ratios]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40, help="comparisons of each kind")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of a level")
    parser.add_argument("--case", type=int, help="only this one of the seven")
    options = parser.parse_args()
    for kind, truth in CASES if options.case is None else [CASES[options.case]]:
        made = list(comparisons(kind, truth, options.seconds, options.seeds))
        print("\n".join(report(kind, truth, made)), flush=True)


if __name__ == "__main__":
    main()
