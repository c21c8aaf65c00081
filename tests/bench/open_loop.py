"""Whether a schedule is kept on one core: python -m tests.bench.open_loop [RATE ...] [--seconds N] [--arrivals LAW]

loadgen on the first core sends short answers' requests at each rate to a server in C on the last core, which knows when
each of them arrived.

achieved   the mean rate over the scheduled one, of the requests as they were sent, and as they arrived
lag        of sending, and of the arrival at the server's socket, behind when a request was due; ms
CPU        share of its core that loadgen had in the level
others     what other processes took of both cores meanwhile, loadgen's start and plots left out of neither

It ends with an error where RATE_PER_S requests/s do not hold within HOLDS.
"""

import argparse
import os
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np

from loadgen.record import Header, LevelRow, Row
from tests.bench.accuracy import OTHER_S, Bench, Spread, build, fetch_truth, of, others_s, run_client, server, short
from tests.bench.accuracy import spread as spread_ms

RATE_PER_S, HOLDS = 2000, 0.01
PROMPT_TOKENS, TOKENS = 100, 4
TTFT_MS, INTERVAL_MS = 2, 1


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Of all requests of a level, warm-up included."""

    rate_per_s: float
    requests: int
    failed: int
    sent_share: float  # achieved rate over scheduled rate
    arrived_share: float
    send_lag_ms: Spread | None
    arrival_lag_ms: Spread | None
    cpu_share: float
    note: str = ""


def pace(rate_per_s: float, start_ns: int, rows: list[Row], level: LevelRow, arrivals_ns: list[int]) -> Pace:
    """`arrivals_ns`: when each request arrived at the server, those of the preflight included."""
    due_ns = np.sort([start_ns + row.due_us * 1000 for row in rows])
    sent_ns = np.sort([start_ns + row.sent_us * 1000 for row in rows if row.sent_us is not None])
    lags_ns = [(row.sent_us - row.due_us) * 1000 for row in rows if row.sent_us is not None]
    arrived_ns = np.sort(arrivals_ns)[-len(sent_ns) :]
    return Pace(
        rate_per_s=rate_per_s,
        requests=len(rows),
        failed=sum(row.status != "ok" for row in rows),
        sent_share=rate(sent_ns) / rate(due_ns),
        arrived_share=rate(arrived_ns) / rate(due_ns),
        send_lag_ms=spread_ms(lags_ns),
        arrival_lag_ms=spread_ms(arrived_ns - due_ns) if arrived_ns.size == due_ns.size else None,
        cpu_share=level.cpu_us / (level.end_us - level.start_us),
    )


def rate(times_ns: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> float:
    return (times_ns.size - 1) / float(np.ptp(times_ns))


def measure(bench: Bench, rate_per_s: float, seconds: float, arrivals: str) -> Pace:
    out = bench.folder / f"open-{rate_per_s:g}"
    load = f"--rate {rate_per_s:g} --arrivals {arrivals} --duration {seconds:g}s"
    with server(bench, TTFT_MS, INTERVAL_MS) as port:
        command: list[str | Path] = [sys.executable, "-m", "loadgen.cli.app", "run", f"127.0.0.1:{port}", *load.split()]
        command += ["--input", str(PROMPT_TOKENS), "--output", str(TOKENS), "--out", out, "--quiet", "--json"]
        summary = run_client(bench, command, 2 * seconds + OTHER_S, fine=(0, 4, 130))
        arrivals_ns = [one.arrived_ns for one in fetch_truth(port).values()]
    header = msgspec.json.decode((out / "run.json").read_bytes(), type=Header)
    since_epoch = datetime.fromisoformat(header.started_at) - datetime(1970, 1, 1, tzinfo=UTC)
    rows = [msgspec.json.decode(line, type=Row) for line in (out / "requests.jsonl").read_bytes().splitlines()]
    level = msgspec.json.decode((out / "levels.jsonl").read_bytes(), type=LevelRow)
    found = msgspec.json.decode(summary)["levels"][0]
    codes = [finding["code"] for finding in found["findings"] if finding["severity"] == "error"]
    start_ns = since_epoch // timedelta(microseconds=1) * 1000
    kept = pace(rate_per_s, start_ns, rows, level, arrivals_ns)
    return msgspec.structs.replace(kept, note=" ".join([found["validity"], *codes]))


WIDTHS = (7, 10, 8, 11, *(9, 7, 7) * 2, 6, 8)
GROUPS = ("", "", "achieved", "", "", "send lag", "", "", "arrival", "", "", "")
COLUMNS = ("rate/s", "requests", "sent", "arrived", *("p50", "p99", "max") * 2, "CPU", "others")


def row(one: Pace, others_share: float) -> str:
    cells = [f"{one.rate_per_s:g}", str(one.requests), f"{one.sent_share:.4f}", f"{one.arrived_share:.4f}"]
    cells += [*map(short, [*of(one.send_lag_ms), *of(one.arrival_lag_ms)])]
    failed = f"{one.failed} failed " if one.failed else ""
    return f"{aligned((*cells, f'{one.cpu_share:.0%}', f'{others_share:.0%}'))}  {failed}{one.note}"


def aligned(cells: tuple[str, ...]) -> str:
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.open_loop", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("rates", nargs="*", type=float, default=[500, 1000, RATE_PER_S])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--arrivals", default="poisson")
    asked = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    used = {cores[0], cores[-1]}
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), cores[0], cores[-1], rounds=0)
        build("truth_server", bench.folder)
        print(f"{aligned(GROUPS)}\n{aligned(COLUMNS)}")
        for rate_per_s in asked.rates:
            begun_s, before_s = time.monotonic(), others_s(used)
            one = measure(bench, rate_per_s, asked.seconds, asked.arrivals)
            others_share = max(0.0, others_s(used) - before_s) / (time.monotonic() - begun_s) / len(used)
            print(row(one, others_share), flush=True)
            if rate_per_s <= RATE_PER_S and abs(one.arrived_share - 1) > HOLDS:
                missed.append(f"{rate_per_s:g}")
    if len(cores) == 1:
        print("One core for both server and client: these numbers say little.")
    if missed:
        sys.exit(f"{', '.join(missed)} requests/s did not hold within {HOLDS:.0%}")


if __name__ == "__main__":
    main()
