"""The embedded engine against measurements that others published: every row of tests/golden/published.csv.

    python -m tests.bench.published              the table, and how many rows are near (half a minute)
    python -m tests.bench.published --write      the same into docs/published.md
    python -m tests.bench.published_fit          the sets again from the rows, and each row from the others

A row is played on the pure engine in virtual time, with its lengths fixed, as its source played it (`load`). The only
things that are fitted are SETS: one for an engine and a number of GPUs, whatever the model, the precision and the GPU.

near        throughput and ITL within 25 % (a ratio from 0.8 to 1.25), TTFT within a factor of 2
saturated   more is asked at once than the engine has room for: fewer of the longest sequences fit into the KV cache, or
            max_num_seqs is smaller, than the concurrency. TTFT is then a function of how long the benchmark ran: no
            claim is made of it, and it takes no part in the fit
"""

import argparse
import csv
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from analysis import floors
from analysis.catalog import facts
from loadgen.sim.engine import Engine
from loadgen.sim.spec import Spec

ROWS = Path(__file__).parents[1] / "golden" / "published.csv"
DOCUMENT = Path(__file__).parents[2] / "docs" / "published.md"
BEGIN, END = "<!-- tests.bench.published --write: begin -->\n", "<!-- end -->\n"
NEAR, NEAR_TTFT = 1.25, 2.0
_TOKENS = tuple(range(20_000))


class Row(msgspec.Struct, frozen=True):
    source: str
    model: str
    weights: str
    gpu: str
    gpus: int
    input_tokens: int | None
    output_tokens: int | None
    concurrency: int | None
    output_tokens_per_s: float | None
    ttft_ms: float | None
    itl_ms: float | None
    note: str | None

    @property
    def engine(self) -> str:
        return ENGINES[self.source]

    @property
    def name(self) -> str:
        at = "open loop" if self.concurrency is None else self.concurrency
        return f"{self.source} {self.model} {self.weights} {self.input_tokens or 0}/{self.output_tokens or 0} x {at}"


class Set(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of `Spec`. The bandwidth efficiency is its default: see docs/published.md."""

    compute_efficiency: float
    overhead_us: float
    overhead_per_seq_us: float = 0.0


ENGINES = {"nim": "nim", "nim-docs": "nim", "vllm-0.11": "vllm", "vultr": "vllm", "llama.cpp": "llama.cpp"}
DEFAULTS = Set(compute_efficiency=0.45, overhead_us=600.0)
# By engine and number of GPUs, as published_fit gives them.
SETS = {
    ("nim", 1): Set(compute_efficiency=0.427, overhead_us=2727.0, overhead_per_seq_us=80.5),
    ("nim", 2): Set(compute_efficiency=0.545, overhead_us=3713.0, overhead_per_seq_us=68.3),
    ("nim", 8): Set(compute_efficiency=0.229, overhead_us=11_852.0, overhead_per_seq_us=31.3),
    ("vllm", 1): DEFAULTS,  # one row decides nothing: what the defaults say of it is a prediction
    ("vllm", 2): Set(compute_efficiency=0.086, overhead_us=2826.0),
    ("llama.cpp", 1): Set(compute_efficiency=0.45, overhead_us=4679.0),
}
# What explains a row that is not near.
WHY = {
    "nim llama-3.1-8b fp8 7000/1000 x 50": "its ITL is what KV in fp8 takes at a third of the bandwidth; the weights "
    "are read faster, and the engine has one efficiency for both",
    "nim llama-3.1-8b fp8 7000/1000 x 250": "the same; and 111 sequences ran where the engine runs 130: TensorRT-LLM "
    "keeps room for the whole answer, and memory for activations",
    "vultr nemotron-nano-30b fp8 2048/512 x 1": "TTFT is longer than at 64 users: not a prompt's work, perhaps kernels "
    "compiled in the first of 50 requests",
}
# Not from the vendor (76 cores * 128 lanes * 2 * 1.4 GHz). The engine wants a rate; these rows have no prompt.
M2_ULTRA_TFLOPS = 27.2


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """`slots` users who all begin at once, or arrivals at `rate_per_s`; the first `warm_up` requests are not measured.

    Tokens/s: while all slots are busy, up to the first request of the last round; `drained`: up to the last token.
    """

    slots: int = 0
    rate_per_s: float = 0.0
    requests: int
    warm_up: int = 0
    drained: bool = False


def rows() -> list[Row]:
    with ROWS.open() as file:
        return [
            msgspec.convert({k: v or None for k, v in row.items()}, Row, strict=False) for row in csv.DictReader(file)
        ]


class Result(msgspec.Struct, frozen=True):
    output_tokens_per_s: float
    ttft_ms: float
    itl_ms: float


class Ratios(msgspec.Struct, frozen=True):
    output_tokens_per_s: float | None
    ttft_ms: float | None
    itl_ms: float | None


def near(row: Row, found: Result) -> tuple[bool, bool | None]:
    """Of throughput and ITL; of TTFT, None where there is none, or no claim."""
    ratio = ratios(row, found)
    speed = all(1 / NEAR <= one <= NEAR for one in (ratio.output_tokens_per_s, ratio.itl_ms) if one is not None)
    if ratio.ttft_ms is None or saturated(row):
        return speed, None
    return speed, 1 / NEAR_TTFT <= ratio.ttft_ms <= NEAR_TTFT


def ratios(row: Row, found: Result) -> Ratios:
    """Simulated over published."""
    return Ratios(*(
        getattr(found, name) / getattr(row, name) if getattr(row, name) else None for name in Result.__struct_fields__
    ))  # fmt: skip


def load(row: Row) -> Load:
    """How the source played it, as far as it says so, or its numbers show it."""
    slots = row.concurrency or 0
    if row.source == "vultr":  # `vllm bench serve`: so many prompts, all of them measured, in the throughput too
        return Load(slots=slots, requests=50 if slots == 1 else 400, drained=True)
    if row.source == "vllm-0.11":
        return Load(rate_per_s=92.2, requests=2000, warm_up=500)
    if row.source == "llama.cpp":
        return Load(slots=1, requests=1, drained=True)
    if slots == 1:  # each like the others
        return Load(slots=1, requests=2, drained=True)
    if row.source == "nim-docs":  # obeys Little's law to 0.5 % with 165 waiting: long, and its beginning is not in it
        return Load(slots=slots, requests=6 * slots, warm_up=2 * slots)
    # TTFT at 200 tokens in is what the burst of the beginning gives, shared among a few requests a slot.
    return Load(slots=slots, requests=3 * slots)


def spec(row: Row, given: Set) -> Spec:
    gpu = facts.gpu(row.gpu)
    if gpu.bf16_dense_tflops is None:
        gpu = msgspec.structs.replace(gpu, bf16_dense_tflops=M2_ULTRA_TFLOPS)
    # TensorRT-LLM's fp8 engines keep the KV cache in fp8: only so do 85 and 111 sequences fit where the notes say so.
    kv_dtype = "fp8" if row.engine == "nim" and row.weights == "fp8" else "bf16"
    return Spec(
        model=facts.model(row.model), gpu=gpu, gpus=row.gpus, dtype=row.weights, kv_cache_dtype=kv_dtype,
        max_num_seqs=1024 if row.engine == "vllm" else 256, prefix_cache=False, **msgspec.structs.asdict(given),
    )  # fmt: skip


def saturated(row: Row) -> bool:
    if row.concurrency is None:
        return False
    served = spec(row, DEFAULTS)
    fit = floors.sequences(served.hardware, lengths(row)[0] + lengths(row)[1])
    return row.concurrency > min(fit or 0, served.max_num_seqs)


def lengths(row: Row) -> tuple[int, int]:
    """llama.cpp's `tg` generates from an empty context, 128 tokens."""
    return row.input_tokens or 1, row.output_tokens or 128


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """Arrays of the steps; then of the measured requests, the steps before which it was."""

    durations_s: NDArray[np.float64]
    sequences: NDArray[np.float64]
    read_bytes: NDArray[np.float64]
    flops: NDArray[np.float64]
    tokens: NDArray[np.float64]
    due: NDArray[np.int64]
    due_s: NDArray[np.float64]  # open loop: so much earlier, within the step before
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    begin: int  # steps between which tokens/s are counted
    end: int


def play(served: Spec, asked: Load, prompt_tokens: int, output_tokens: int) -> Played:
    """With a closed loop what a step computes does not depend on how long steps take: `timed` can time it anew."""
    engine, now_s = Engine(served), 0.0
    arrivals_s = None
    if asked.rate_per_s:
        arrivals_s = np.cumsum(np.random.default_rng(0).exponential(1 / asked.rate_per_s, asked.requests))
    work: list[tuple[float, int, float, float, int]] = []
    due, due_s = np.zeros(asked.requests, np.int64), np.zeros(asked.requests)
    first, last = np.zeros_like(due), np.zeros_like(due)
    sent = finished = 0
    while finished < asked.requests:
        while sent < asked.requests and (
            sent - finished < asked.slots if arrivals_s is None else arrivals_s[sent] <= now_s
        ):
            engine.add(sent, _TOKENS[:prompt_tokens], _TOKENS[:output_tokens])
            due[sent] = len(work)
            due_s[sent] = 0.0 if arrivals_s is None else now_s - arrivals_s[sent]
            sent += 1
        step = engine.step()
        if step is None:
            assert arrivals_s is not None, "a closed loop is never idle"
            work.append((float(arrivals_s[sent]) - now_s, 0, 0.0, 0.0, 0))
            now_s = float(arrivals_s[sent])
            continue
        work.append((step.duration_s, step.sequences, step.read_bytes, step.flops, len(step.tokens)))
        now_s += step.duration_s
        for number, _ in step.tokens:
            first[number] = first[number] or len(work)
        last[step.finished] = len(work)
        finished += len(step.finished)
    durations_s, sequences, read_bytes, flops, tokens = np.array(work, np.float64).T
    measured = slice(asked.warm_up, None)
    return Played(
        durations_s=durations_s, sequences=sequences, read_bytes=read_bytes, flops=flops, tokens=tokens,
        due=due[measured], due_s=due_s[measured], first=first[measured], last=last[measured],
        begin=int(due[asked.warm_up]), end=len(work) if asked.drained else int(due[-max(asked.slots, 1)]),
    )  # fmt: skip


def timed(played: Played, served: Spec) -> NDArray[np.float64]:
    """Durations of the steps under another spec, as the engine computes them."""
    compute = floors.flops_per_s(served.hardware)
    assert compute is not None
    read_s = played.read_bytes / (floors.bytes_per_s(served.hardware) * served.bandwidth_efficiency)
    overhead_us = served.overhead_us + served.overhead_per_seq_us * played.sequences
    return np.maximum(read_s, played.flops / (compute * served.compute_efficiency)) + overhead_us / 1e6


def result(played: Played, durations_s: NDArray[np.float64], output_tokens: int) -> Result:
    """Means over the measured requests; ITL is one value a request, as these sources have it."""
    now_s = np.concatenate(([0.0], np.cumsum(durations_s)))
    first_s, begin, end = now_s[played.first], played.begin, played.end
    return Result(
        output_tokens_per_s=float(played.tokens[begin:end].sum() / (now_s[end] - now_s[begin])),
        ttft_ms=1e3 * float(np.mean(first_s - now_s[played.due] + played.due_s)),
        itl_ms=1e3 * float(np.mean(now_s[played.last] - first_s)) / max(1, output_tokens - 1),
    )


def simulated(row: Row) -> Result:
    served = spec(row, SETS[row.engine, row.gpus])
    played = play(served, load(row), *lengths(row))
    return result(played, played.durations_s, lengths(row)[1])


class Counts(msgspec.Struct, frozen=True):
    """Rows that are near, of those of which a claim is made."""

    speed: int
    speed_of: int
    ttft: int
    ttft_of: int

    def __str__(self) -> str:
        return (
            f"Throughput and ITL are near in {self.speed} of {self.speed_of} rows ({self.speed / self.speed_of:.0%}), "
            f"TTFT in {self.ttft} of the {self.ttft_of} that are not saturated ({self.ttft / self.ttft_of:.0%})."
        )


def counts(judged: Iterable[tuple[bool, bool | None]]) -> Counts:
    speed, ttft = zip(*judged, strict=True)
    claimed = [one for one in ttft if one is not None]
    return Counts(sum(speed), len(speed), sum(claimed), len(claimed))


def line(row: Row, found: Result) -> str:
    """A row of the table, in markdown: published, simulated, and the ratio, in bold where it is not near."""
    ratio, (_, ttft_near) = ratios(row, found), near(row, found)

    def cell(name: str, limit: float | None) -> str:
        published, one = getattr(row, name), getattr(ratio, name)
        if one is None:
            return ""
        shown = f"{one:.2f}" if limit is None or 1 / limit <= one <= limit else f"**{one:.2f}**"
        value = getattr(found, name)
        return (
            f"{published:,g} to {value:,.0f} ({shown})" if value >= 1000 else f"{published:,g} to {value:.3g} ({shown})"
        )

    at = "open loop" if row.concurrency is None else str(row.concurrency)
    cells = [
        row.source, row.model, row.weights, f"{row.gpus} x {row.gpu}", f"{row.input_tokens or 0}/{lengths(row)[1]}",
        f"{at}, saturated" if saturated(row) else at, cell("output_tokens_per_s", NEAR),
        cell("ttft_ms", None if ttft_near is None else NEAR_TTFT), cell("itl_ms", NEAR), WHY.get(row.name, ""),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| source | model | weights | GPUs | in/out | at once | tokens/s | TTFT ms | ITL ms | what explains it |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def table() -> str:
    found = [(row, simulated(row)) for row in rows()]
    lines = [line(row, one) for row, one in found]
    return "\n".join([str(counts(near(row, one) for row, one in found)), "", HEAD, *lines, "", sets(), ""])


def sets() -> str:
    bandwidth = spec(rows()[0], DEFAULTS).bandwidth_efficiency
    lines = [
        "| engine, GPUs | bandwidth_efficiency | compute_efficiency | overhead_us | overhead_per_seq_us |",
        "|---|---|---|---|---|",
        *(
            f"| {engine}, {gpus} | {bandwidth:g} | {one.compute_efficiency:g} | {one.overhead_us:g} | "
            f"{one.overhead_per_seq_us:g} |"
            for (engine, gpus), one in SETS.items()
        ),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    made = table()
    print(made)
    if parser.parse_args().write:
        before, rest = DOCUMENT.read_text().split(BEGIN)
        DOCUMENT.write_text(before + BEGIN + made + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
