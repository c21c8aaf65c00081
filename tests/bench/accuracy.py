"""How right the stamps are, and what they cost.

    python -m tests.bench.accuracy [STREAMS ...] [--rounds N] [--alone] [--json FILE]

A server in C on the last core knows when it wrote every token. On the first core, one after another, each client keeps
so many streams of it going: loadgen, plain httpx and plain aiohttp clients (peers.py), and floor_client.c, which reads
and does nothing else. Each client has a fresh server.

TTFT    measured: from sending to the first token's stamp; true: from its arrival at the server's socket, by the
        kernel's stamp, to the first token's write
error   of a token's stamp against its write. The way through the kernel is in it; loadgen's rows are in whole us, cut
        off, so that its stamps may come out up to 2 us early
CPU     of the client between the load's start and end, over all tokens it stamped
others  what other processes took of both cores meanwhile: where this is more than a few percent, the tail is theirs

At the end loadgen gets more streams than one core can read, and has to say so itself: INVALID, and which limit was hit.
"""

import argparse
import contextlib
import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np

from loadgen.record import Header, LevelRow, Row
from tests.bench.peers import KEY, PEERS, TOKENS, Load, Sent, prompts

HERE = Path(__file__).parent
TTFT_MS, INTERVAL_MS = 50, 20
REQUEST_S = (TTFT_MS + (TOKENS - 1) * INTERVAL_MS) / 1000
TOO_MANY = 2000  # streams, for one core
OTHER_S = 20.0  # what loadgen may take besides the load: start, preflight, plots


class Written(msgspec.Struct, frozen=True):
    """One request as the server saw it."""

    arrived_ns: int
    times_ns: list[int]


class Spread(msgspec.Struct, frozen=True):
    p50: float
    p99: float
    max: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of the measured requests that ended; processor time and tokens/s of all."""

    streams: int
    client: str
    requests: int
    missing: int  # measured requests that did not end, or that the server knows nothing of
    ttft_ms: Spread | None
    true_ttft_ms: Spread | None
    itl_p99_ms: float | None
    true_itl_p99_ms: float | None
    error_ms: Spread | None
    cpu_us_per_token: float | None
    cpu_over_floor: float | None
    tokens_per_s: float | None
    others_share: float | None = None  # of both cores' time, what other processes had meanwhile
    note: str


def parse_truth(text: str) -> dict[str, Written]:
    """The answer of GET /truth, by the first characters of the prompt."""
    truth = {}
    for line in text.splitlines():
        key, _, times = line.rpartition("\t")
        arrived_ns, *times_ns = map(int, times.split())
        truth[key] = Written(arrived_ns, times_ns)
    return truth


def read_run(directory: Path) -> Load:
    """What loadgen recorded, as a peer would have reported it."""
    header = msgspec.json.decode((directory / "run.json").read_bytes(), type=Header)
    if (counted_by := header.server["prompt_tokens_from"]) != "guess":
        raise ValueError(f"prompts were made for a server that counts tokens ({counted_by}): they cannot be made again")
    since_epoch = datetime.fromisoformat(header.started_at) - datetime(1970, 1, 1, tzinfo=UTC)
    start_us = since_epoch // timedelta(microseconds=1)
    rows = [msgspec.json.decode(line, type=Row) for line in (directory / "requests.jsonl").read_bytes().splitlines()]
    levels = (directory / "levels.jsonl").read_bytes().splitlines()
    level = msgspec.json.decode(levels[0], type=LevelRow) if levels else None
    number = 1 + max((one.index for one in rows), default=-1)
    keys = [prompt[:KEY] for prompt in itertools.islice(prompts(header.salt), number)]
    sent = [
        Sent(
            key=keys[one.index],
            measured=one.phase == "measure",
            sent_ns=(start_us + one.due_us) * 1000,
            stamps_ns=[(start_us + one.sent_us + event_us) * 1000 for event_us in one.events_us],
        )
        for one in rows
        if one.sent_us is not None
    ]
    return Load(cpu_us=level.cpu_us if level else None, cut=not level or level.ended_by == "interrupt", requests=sent)


def figures(
    client: str, streams: int, load: Load, truth: dict[str, Written], floor_us: float | None, note: str = ""
) -> Figures:
    measured = [one for one in load.requests if one.measured]
    pairs = [(one, truth[one.key]) for one in measured if one.key in truth]
    pairs = [(one, written) for one, written in pairs if len(one.stamps_ns) == len(written.times_ns)]
    tokens = sum(len(one.stamps_ns) for one in load.requests)
    cpu_us = load.cpu_us / tokens if load.cpu_us is not None and tokens else None
    stamps, times = [one.stamps_ns for one, _ in pairs], [written.times_ns for _, written in pairs]
    return Figures(
        streams=streams,
        client=client,
        requests=len(pairs),
        missing=len(measured) - len(pairs),
        ttft_ms=spread([one.stamps_ns[0] - one.sent_ns for one, _ in pairs]),
        true_ttft_ms=spread([written.times_ns[0] - written.arrived_ns for _, written in pairs]),
        itl_p99_ms=gaps_p99(stamps),
        true_itl_p99_ms=gaps_p99(times),
        error_ms=spread((np.array(stamps) - np.array(times)).ravel()),
        cpu_us_per_token=cpu_us,
        cpu_over_floor=cpu_us / floor_us if cpu_us is not None and floor_us else None,
        tokens_per_s=tokens_per_s(load),
        note=note,
    )


def spread(values_ns: Any) -> Spread | None:
    """In ms."""
    return Spread(*(np.quantile(values_ns, (0.5, 0.99, 1)) / 1e6).tolist()) if len(values_ns) else None


def gaps_p99(times_ns: list[list[int]]) -> float | None:
    """In ms, over the gaps of all streams."""
    return float(np.quantile(np.diff(times_ns), 0.99) / 1e6) if times_ns else None


def tokens_per_s(load: Load) -> float | None:
    """While all streams were going: from the last first request to the last request of all, or to where it was cut."""
    first = [one.sent_ns for one in load.requests if not one.measured]
    stamps_ns = np.array([stamp for one in load.requests for stamp in one.stamps_ns])
    if not first or not len(stamps_ns):
        return None
    begin_ns = max(first)
    end_ns = int(stamps_ns.max()) if load.cut else max(one.sent_ns for one in load.requests)
    if end_ns <= begin_ns:
        return None
    return float(((stamps_ns >= begin_ns) & (stamps_ns < end_ns)).sum() / (end_ns - begin_ns) * 1e9)


def parse_busy(stat: str, cores: set[int]) -> float:
    """Seconds that these cores were not idle, by the text of /proc/stat."""
    lines = [line.split() for line in stat.splitlines()]
    fields = [map(int, values[:8]) for name, *values in lines if name in {f"cpu{core}" for core in cores}]
    busy = [user + nice + system + sum(rest) for user, nice, system, _idle, _iowait, *rest in fields]
    return sum(busy) / os.sysconf("SC_CLK_TCK")


WIDTHS = (8, 9, *(9, 7, 7) * 2, 9, 7, *(10, 7, 7), 8, 7, 8, 11, 8)
GROUPS = (
    "",
    "",
    "TTFT ms",
    "",
    "",
    "true ms",
    "",
    "",
    "ITL ms",
    "true",
    "error ms",
    "",
    "",
    "CPU us",
    "over",
    "tokens",
)
COLUMNS = (
    *("streams", "client", *("p50", "p99", "max") * 2, "p99", "p99", "p50", "p99", "max"),
    *("/token", "floor", "/s", "requests", "others"),
)


def row(one: Figures) -> str:
    """A line of the table."""
    values = [*of(one.ttft_ms), *of(one.true_ttft_ms), one.itl_p99_ms, one.true_itl_p99_ms, *of(one.error_ms)]
    values += [one.cpu_us_per_token, one.cpu_over_floor, one.tokens_per_s]
    all_requests = one.requests + one.missing
    requests = f"{one.requests}/{all_requests}" if all_requests else "-"
    others = "-" if one.others_share is None else f"{one.others_share:.0%}"
    return aligned([str(one.streams), one.client, *map(short, values), requests, others], one.note)


def head() -> str:
    return f"{aligned(GROUPS)}\n{aligned(COLUMNS)}"


def aligned(cells: Sequence[str], note: str = "") -> str:
    return ("".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=False)) + f"  {note}").rstrip()


def of(value: Spread | None) -> list[float | None]:
    return [None] * 3 if value is None else [value.p50, value.p99, value.max]


def short(value: float | None) -> str:
    """Three figures, down to the us of a value in ms."""
    if value is None:
        return "-"
    size = abs(value)
    return f"{value:.{0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3}f}"


# From here on: processes.


class Bench(msgspec.Struct, frozen=True):
    folder: Path  # for what is compiled and recorded
    client_core: int
    server_core: int
    rounds: int  # measured requests a stream

    @property
    def limit_s(self) -> float:
        """Twice what the load takes with a client that keeps up."""
        return 2 * (2 + self.rounds) * REQUEST_S


def build(name: str, folder: Path) -> None:
    if shutil.which("cc") is None:
        sys.exit("the server and the floor client are in C: install a C compiler (cc)")
    subprocess.run(["cc", "-O2", "-o", folder / name, HERE / f"{name}.c"], check=True)


@contextlib.contextmanager
def server(bench: Bench, ttft_ms: int = TTFT_MS, interval_ms: int = INTERVAL_MS) -> Iterator[int]:
    """The port of a server that runs meanwhile."""
    command: list[str | Path] = [bench.folder / "truth_server", str(ttft_ms), str(interval_ms)]
    pin = partial(os.sched_setaffinity, 0, {bench.server_core})
    with subprocess.Popen(command, preexec_fn=pin, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def run_client(bench: Bench, command: Sequence[str | Path], limit_s: float, *, fine: Sequence[int] = (0,)) -> bytes:
    """Its standard output. At the limit it is interrupted and has as long again to end. Raises CalledProcessError."""
    pin = partial(os.sched_setaffinity, 0, {bench.client_core})
    with subprocess.Popen(command, preexec_fn=pin, stdout=subprocess.PIPE) as process:
        try:
            try:
                out, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                out, _ = process.communicate(timeout=limit_s)
        finally:
            process.kill()
    if process.returncode not in fine:
        raise subprocess.CalledProcessError(process.returncode, command)
    return out


def fetch_truth(port: int) -> dict[str, Written]:
    return parse_truth(httpx.get(f"http://127.0.0.1:{port}/truth", trust_env=False, timeout=60).text)


def measure_floor(bench: Bench, streams: int) -> Figures:
    with server(bench) as port:
        command: list[str | Path] = [bench.folder / "floor_client"]
        command += map(str, (port, streams, TOKENS, round(REQUEST_S * 1000)))
        floor_us = float(run_client(bench, command, bench.limit_s))
    floor = figures("floor", streams, Load(cpu_us=None, cut=False, requests=[]), {}, None, "reads, nothing else")
    return msgspec.structs.replace(floor, cpu_us_per_token=floor_us, cpu_over_floor=1.0)


def measure_loadgen(bench: Bench, streams: int, floor_us: float | None) -> Figures:
    out = bench.folder / f"run-{streams}"
    load = f"--concurrency {streams} --input {TOKENS} --output {TOKENS} --requests {bench.rounds * streams}"
    with server(bench) as port:
        command: list[str | Path] = [
            Path(sys.executable).with_name("loadgen"),
            "run",
            f"127.0.0.1:{port}",
            *load.split(),
        ]
        command += ["--out", out, "--quiet", "--json"]
        summary = run_client(bench, command, bench.limit_s + OTHER_S, fine=(0, 4, 130))
        truth = fetch_truth(port)
    level = msgspec.json.decode(summary)["levels"][0]
    codes = [finding["code"] for finding in level["findings"] if finding["severity"] == "error"]
    return figures("loadgen", streams, read_run(out), truth, floor_us, " ".join([level["validity"], *codes]))


def measure_peer(bench: Bench, peer: str, streams: int, floor_us: float | None) -> Figures:
    with server(bench) as port:
        command: list[str | Path] = [sys.executable, "-m", "tests.bench.peers", peer]
        command += map(str, (port, streams, bench.rounds, REQUEST_S, bench.limit_s))
        load = msgspec.json.decode(run_client(bench, command, bench.limit_s + OTHER_S), type=Load)
        truth = fetch_truth(port)
    note = f"cannot keep up: cut after {bench.limit_s:.0f} s" if load.cut else ""
    return figures(peer, streams, load, truth, floor_us, note)


def others_s(cores: set[int]) -> float:
    """Processor time that processes other than ours have had on these cores, since some fixed time."""
    ours = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return parse_busy(Path("/proc/stat").read_text(), cores) - sum(used.ru_utime + used.ru_stime for used in ours)


def measure_beside(bench: Bench, take: Callable[[], Figures]) -> Figures:
    """With what others took meanwhile. Children count as ours once they have ended: they do within `take`."""
    cores = {bench.client_core, bench.server_core}
    begun_s, before_s = time.monotonic(), others_s(cores)
    taken = take()
    share = (others_s(cores) - before_s) / (time.monotonic() - begun_s) / len(cores)
    return msgspec.structs.replace(taken, others_share=max(share, 0.0))  # under 0: the kernel counts in ticks


def measure(bench: Bench, streams: int, peers: Sequence[str]) -> Iterator[Figures]:
    floor = measure_beside(bench, partial(measure_floor, bench, streams))
    yield floor
    floor_us = floor.cpu_us_per_token
    yield measure_beside(bench, partial(measure_loadgen, bench, streams, floor_us))
    for peer in peers:
        yield measure_beside(bench, partial(measure_peer, bench, peer, streams, floor_us))


def parse_args(args: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.accuracy", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("streams", nargs="*", type=int, default=[100, 500, 1000])
    parser.add_argument("--rounds", type=int, default=3, help="measured requests a stream")
    parser.add_argument("--alone", action="store_true", help="loadgen and the floor only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    return parser.parse_args(args)


def main() -> None:
    asked = parse_args(sys.argv[1:])
    cores = sorted(os.sched_getaffinity(0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # inherited: a stream is a file for each side
    found = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), cores[0], cores[-1], asked.rounds)
        for name in ("truth_server", "floor_client"):
            build(name, bench.folder)
        sys.stdout.write(f"{head()}\n")
        for streams in asked.streams:
            for one in measure(bench, streams, () if asked.alone else tuple(PEERS)):
                sys.stdout.write(f"{row(one)}\n")
                sys.stdout.flush()
                found.append(one)
        overload = measure_beside(bench, partial(measure_loadgen, bench, TOO_MANY, None))
        sys.stdout.write(f"{row(overload)}\n")
        found.append(overload)
    if len(cores) == 1:
        sys.stdout.write("One core for both server and clients: these numbers say little.\n")
    if asked.json:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    if "client-" not in overload.note:
        sys.exit(f"{TOO_MANY} streams on one core, and loadgen does not say that it limits itself")


if __name__ == "__main__":
    main()
