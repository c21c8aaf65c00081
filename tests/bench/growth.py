"""How often is an open-loop level stopped as over-saturated, and when? `loadgen.growth` on simulated queues.

    python -m tests.bench.growth [--levels 300]

Three servers: slots with a line, first come first served; no limit at all, which only fills up; and an engine that
shares itself, each step longer for more requests. Load is given as a share of what the server can do. Virtual time.

Measured: see the docstring of `loadgen.growth`, and --help.
"""

import argparse
import heapq
import math
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.growth import Growth

Floats = NDArray[np.float64]
LAWS: dict[str, Callable[[np.random.Generator, int], Floats]] = {  # of mean 1
    "exponential": lambda rng, n: rng.exponential(1.0, n),
    "equal": lambda _, n: np.ones(n),
    "lognormal": lambda rng, n: rng.lognormal(-0.5, 1.0, n),
    "a fifth long": lambda rng, n: np.where(rng.random(n) < 0.2, 20.0, 1.0) / 4.8,
}
_STEP_S = 0.05  # of the engine that shares itself


class Server(msgspec.Struct, frozen=True):
    """`slots` None: no limit. `slower`: how many times as long a request takes when the server is full."""

    name: str
    slots: int | None
    takes_s: float  # one request, alone
    sharing: bool = False
    in_flight: int = 0  # of the engine that shares itself: about, at the load that is asked
    lengths: str = "exponential"


def stopped_s(come_s: Floats, gone_s: Floats, lasts_s: int, dispersion: float) -> int | None:
    """When `Growth` stops the level; None: it does not."""
    growth = Growth(dispersion)
    tickets: list[int] = []
    left = [(gone, index) for index, gone in enumerate(gone_s)]
    heapq.heapify(left)
    come = 0
    for second in range(1, lasts_s + 1):
        while come < len(come_s) and come_s[come] < second:
            tickets.append(growth.came())
            come += 1
        while left and left[0][0] < second:
            growth.gone(tickets[heapq.heappop(left)[1]])
        if growth.look():
            return second
    return None


def arrivals(rng: np.random.Generator, rate_per_s: float, lasts_s: int, cv: float) -> Floats:
    count = int(rate_per_s * lasts_s * 1.5 + 60 * (1 + cv * cv))
    gaps = np.full(count, 1 / rate_per_s) if not cv else rng.gamma(1 / cv**2, cv**2 / rate_per_s, count)
    times = np.cumsum(gaps)
    return times[times < lasts_s]


def in_line(come_s: Floats, takes_s: Floats, slots: int | None) -> Floats:
    if slots is None:
        return come_s + takes_s
    free = [0.0] * slots
    gone = np.empty(len(come_s))
    for index, (come, takes) in enumerate(zip(come_s, takes_s, strict=True)):
        gone[index] = max(come, heapq.heappop(free)) + takes
        heapq.heappush(free, gone[index])
    return gone


def shared(come_s: Floats, takes_s: Floats, slowing: float, lasts_s: int) -> Floats:
    """Each of n in flight goes on at 1 / (1 + slowing * n)."""
    gone, left = np.full(len(come_s), np.inf), takes_s.copy()
    running, at_s = np.empty(0, np.int64), 0.0
    come = 0
    while at_s < lasts_s:
        at_s += _STEP_S
        now = int(np.searchsorted(come_s, at_s))
        running, come = np.concatenate((running, np.arange(come, now))), now
        left[running] -= _STEP_S / (1 + slowing * len(running))
        done = left[running] <= 0
        gone[running[done]] = at_s
        running = running[~done]
    return gone


def level(rng: np.random.Generator, server: Server, load: float, lasts_s: int, cv: float) -> int | None:
    if server.sharing:
        # n = rate * takes / (1 - load) settle where the load is under 1; else the rate is that of 0.8.
        rate_per_s = server.in_flight * (1 - load if load < 1 else 0.2) / server.takes_s
        slowing = load / (rate_per_s * server.takes_s)
    else:
        rate_per_s = load * (server.slots or server.in_flight) / server.takes_s
        slowing = 0.0
    come_s = arrivals(rng, rate_per_s, lasts_s, cv)
    takes_s = server.takes_s * LAWS[server.lengths](rng, len(come_s))
    gone_s = shared(come_s, takes_s, slowing, lasts_s) if server.sharing else in_line(come_s, takes_s, server.slots)
    return stopped_s(come_s, gone_s, lasts_s, cv * cv)


def report(server: Server, load: float, lasts_s: int, levels: int, cv: float = 1.0) -> str:
    rng = np.random.default_rng(1)
    found = [level(rng, server, load, lasts_s, cv) for _ in range(levels)]
    stopped = [at_s for at_s in found if at_s is not None]
    when = f", after {np.median(stopped):.0f} s (median)" if stopped else ""
    bursts = "" if cv == 1 else f", arrivals of CV {cv:g}"
    share = f"{len(stopped) / levels:.1%} of {levels} stopped{when}"
    return f"{server.name}, {server.lengths} lengths{bursts}, load {load:g}, {lasts_s} s: {share}"


def slots(count: int, takes_s: float, lengths: str = "exponential") -> Server:
    return Server(f"{count} slots, {takes_s:g} s a request", count, takes_s, lengths=lengths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", type=int, default=300, help="of each kind where none should be stopped")
    levels = parser.parse_args().levels
    few = math.ceil(levels / 10)
    queues = [slots(1, 0.2), slots(4, 0.5), slots(4, 2.0), slots(32, 4.0)]
    for server in queues:
        for load in (0.8, 0.95):
            for lasts_s in (30, 60, 300):
                print(report(server, load, lasts_s, levels), flush=True)
    for cv in (0.0, 3.0):
        print(report(slots(4, 0.5), 0.95, 300, levels, cv), flush=True)
    for lengths in LAWS:
        for in_flight in (80, 800):
            for takes_s in (5.0, 20.0):
                name = f"no limit, {in_flight} in flight, {takes_s:g} s a request"
                server = Server(name, None, takes_s, in_flight=in_flight, lengths=lengths)
                print(report(server, 1.0, 60, few), flush=True)
    for lengths in ("equal", "exponential"):
        for in_flight, takes_s in ((40, 2.0), (80, 0.4), (400, 2.0)):
            name = f"sharing, {in_flight} in flight, {takes_s:g} s a request alone"
            server = Server(name, None, takes_s, sharing=True, in_flight=in_flight, lengths=lengths)
            for load in (0.5, 0.8, 0.95, 1.3, 2.0):
                print(report(server, load, 60, few), flush=True)
    for lengths in ("exponential", "equal"):
        for count, takes_s in ((1, 0.2), (4, 0.5), (4, 2.0), (32, 4.0), (128, 4.0)):
            for load in (1.3, 2.0, 4.0):
                print(report(slots(count, takes_s, lengths), load, 300 if count < 128 else 60, few), flush=True)


if __name__ == "__main__":
    main()
