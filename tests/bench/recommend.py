"""Is the setting that a comparison recommends the one that long runs confirm? On the simulated engine, in virtual time.

    python -m tests.bench.recommend [--seeds 5] [--seconds 15]

Three settings of max_num_seqs, five blocks, each start of the server faster or slower by a chance of its own (2 %); at
each number of users a level, and an SLO. What is true is known from one long level each: the largest number of users at
which the SLO holds, with the output tokens/s there. A right answer names the best setting; no answer is no error.

Too few places make users wait, too many let so many prompts come between two tokens that the ITL term fails.
"""

import argparse
import math

import msgspec
import numpy as np

from analysis import curve, measured, metrics, recommend, records, slo
from analysis.measured import Level
from analysis.summary import Summary
from analysis.tuned import Replicate, Setting
from loadgen.sim.spec import Spec
from tests.bench import virtual
from tests.bench.compare import BLOCKS, START_NOISE, slower

SETTINGS = (8, 32, 128)
USERS = (8, 32, 64, 128)
SLO = ("ttft p95 < 400ms", "itl p95 < 25ms")
LONG_S = 300.0
LENGTHS = virtual.Lengths(prompt=(128.0, 0.6), output=(64.0, 0.6))


def spec(setting: int) -> Spec:
    return virtual.spec(f"llama-3.1-8b@h100,max_num_seqs={setting},prefix_cache=0")


def level(served: Spec, number: int, seconds: float, seed: int) -> Level:
    users = USERS[number]
    requests = virtual.closed_loop(served, users, seconds, seed, request_s=0.5, lengths=LENGTHS)
    header = records.Header(
        format=1, loadgen="0.1.0", started_at="", target="sim:", api="chat", workload=records.Workload(name="chat"),
        seed=seed, slo=SLO, clock="kernel", levels=(records.Planned(level=number, concurrency=users),),
    )  # fmt: skip
    found = measured.summarize_level(
        records.Run(header=header, ended={}, requests={number: requests}, cut_rows=0), number
    )
    return msgspec.structs.replace(found, validity="VALID")  # of the client nothing is known here


def start(served: Spec, seconds: float, seed: int) -> Summary:
    levels = tuple(level(served, number, seconds, 100 * seed + number) for number in range(len(USERS)))
    measured = [
        curve.Measured(
            level=one.level, concurrency=one.concurrency, load=measured.asked(one), valid=True, over_saturated=False,
            one_rate=False, tokens_per_s=one.throughput.output_tokens_per_s,
            tokens_per_s_ci95=one.throughput.output_tokens_per_s_ci95,
            verdicts=frozenset(verdict.verdict for verdict in one.verdicts),
        )
        for one in levels
    ]  # fmt: skip
    return Summary(
        format=1, loadgen="0.1.0", started_at="", target="sim:", model="llama-3.1-8b", api="chat", hardware=None,
        workload=records.Workload(name="chat", digest=f"seed {seed}"), arrivals=None, seed=seed, slo=SLO,
        clock="kernel", host={}, server={}, options={}, phases=None, seeks=None, answer=None, diagnoses=(), levels=levels,
        curve=curve.curve(measured),
    )  # fmt: skip


def truth() -> dict[int, tuple[int, float]]:
    """Of each setting the most users at which the SLO holds, and output tokens/s there."""
    found = {}
    for setting in SETTINGS:
        found[setting] = (0, 0.0)
        for users in USERS:
            requests = virtual.closed_loop(spec(setting), users, LONG_S, 7, request_s=0.5, lengths=LENGTHS)
            chosen = requests.measured
            values = {"ttft": metrics.ttft_ms(requests)[chosen], "itl": metrics.itl_ms(requests, chosen)}
            terms = [slo.parse(text) for text in SLO]
            shares = {str(term): float(np.mean(values[term.metric] > term.limit)) for term in terms}
            tokens_per_s = float(requests.events[chosen].sum()) / LONG_S
            holds = all(shares[str(term)] <= term.allowed for term in terms)
            over = ", ".join(f"{text}: {100 * share:.2g} % over" for text, share in shares.items())
            print(f"max_num_seqs={setting}, {users} users: {tokens_per_s:.0f} tok/s, {over}", flush=True)
            if holds:
                found[setting] = (users, tokens_per_s)
    return found


def settings(seconds: float, seed: int) -> list[Setting]:
    random = np.random.default_rng(seed)
    made: dict[int, list[Replicate]] = {setting: [] for setting in SETTINGS}
    for block in range(BLOCKS):
        for setting, replicates in made.items():
            served = slower(spec(setting), math.exp(random.normal(0, START_NOISE)))
            replicates.append(Replicate(block=block, run=start(served, seconds, seed * BLOCKS + block)))
    return [
        Setting(name=f"max_num_seqs={setting}", source="bench", tuned=True, replicates=tuple(replicates))
        for setting, replicates in made.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0, help="length of a level")
    options = parser.parse_args()
    known = truth()
    best = max(known, key=lambda setting: known[setting][1])
    print(f"long runs: {known}; the best is max_num_seqs={best}", flush=True)
    answers = []
    for seed in range(options.seeds):
        _, found = recommend.recommend(settings(options.seconds, seed), 0.05)
        answers.append(found.setting)
        if not seed:
            print(found.sentence, flush=True)
    right = answers.count(f"max_num_seqs={best}")
    print(f"of {len(answers)} comparisons {right} are right, {answers.count(None)} do not decide", flush=True)


if __name__ == "__main__":
    main()
