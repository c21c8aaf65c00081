"""The simulated engine in virtual time: one level as columns, in seconds of computing for minutes of load."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np

from analysis.records import Requests
from analysis.server import Sample
from loadgen.sim.engine import Engine, Step
from loadgen.sim.spec import Spec, parse

WARM_UP_S = 2.0  # of the open loop
COLD = 4.0
_TOKENS = tuple(range(100_000))


class Served(msgspec.Struct):
    """One request; `events_s` are the times of its tokens."""

    due_s: float
    prompt_tokens: int
    output_tokens: int
    measured: bool
    slot: int
    events_s: list[float] = []


class Lengths(msgspec.Struct, frozen=True):
    """Lognormal prompts and outputs: mean, and sigma of the logarithm."""

    prompt: tuple[float, float] = (512.0, 0.6)
    output: tuple[float, float] = (64.0, 0.6)
    long_share: float = 0.0  # of the prompts, that are of `long_tokens`
    long_tokens: int = 8000

    def draw(self, random: np.random.Generator) -> tuple[int, int]:
        drawn = (random.lognormal(np.log(mean) - sigma**2 / 2, sigma) for mean, sigma in (self.prompt, self.output))
        prompt, output = (int(min(max(value, 2), 16_000)) for value in drawn)
        return self.long_tokens if self.long_share and random.random() < self.long_share else prompt, output


CHAT = Lengths()


class Pages:
    """What the engine's /metrics say, once a second, as the timetable of the real one counts it."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._sums = dict.fromkeys(("ttft", "queue", "prefill", "decode"), 0.0)
        self._counts = dict.fromkeys(self._sums, 0)
        self._admitted_s: dict[int, float] = {}

    def stepped(self, engine: Engine, step: Step, requests: list[Served], start_s: float, end_s: float) -> None:
        for number in step.admitted:
            self._admitted_s[number] = max(start_s, requests[number].due_s)
        for number, count in step.tokens:
            if len(requests[number].events_s) == count:
                self._add("ttft", end_s - requests[number].due_s)
        for number in step.finished:
            admitted_s, one = self._admitted_s.pop(number), requests[number]
            self._add("queue", admitted_s - one.due_s)
            self._add("prefill", one.events_s[0] - admitted_s)
            self._add("decode", end_s - one.events_s[0])
        if end_s >= len(self.samples):
            self.look(engine, end_s)

    def look(self, engine: Engine, now_s: float) -> None:
        self.samples.append(self._page(engine, now_s))

    def _add(self, name: str, value_s: float) -> None:
        self._sums[name] += value_s
        self._counts[name] += 1

    def _page(self, engine: Engine, now_s: float) -> Sample:
        known: dict[str, Any] = {f"{name}_s": value for name, value in self._sums.items()}
        known |= {f"{name}_n": float(count) for name, count in self._counts.items()}
        return Sample(
            t_us=round(1e6 * now_s),
            source=0,
            running=engine.running,
            waiting=engine.waiting,
            kv_use=engine.kv_usage,
            preemptions=engine.counters.preemptions,
            prompt_tokens=engine.counters.prompt_tokens,
            output_tokens=engine.counters.generation_tokens,
            **known,
        )


def spec(text: str = "llama-3.1-8b@h100,max_num_seqs=64,prefix_cache=0") -> Spec:
    return parse(text)


def closed_loop(
    served: Spec,
    slots: int,
    duration_s: float,
    seed: int,
    *,
    request_s: float,
    lengths: Lengths = CHAT,
    cold_s: float = 0.0,
    pages: Pages | None = None,
) -> Requests:
    """`slots` users, staggered over `request_s`; the first request of each is warm-up; none starts after the end.

    For `cold_s` every step takes COLD times as long.
    """
    random = np.random.default_rng(seed)
    starts = [slot * request_s / slots for slot in range(slots)]

    def begin(due_s: float, slot: int, *, first: bool) -> Served:
        measured = not first and due_s >= starts[-1]
        return Served(due_s, *lengths.draw(random), measured, slot)

    def follow(done: Served, now_s: float) -> Served | None:
        return begin(now_s, done.slot, first=False) if now_s < starts[-1] + duration_s else None

    firsts = [begin(due_s, slot, first=True) for slot, due_s in enumerate(starts)]
    return _serve(served, iter(firsts), follow, cold_s, pages)


def open_loop(
    served: Spec,
    rate_per_s: float,
    duration_s: float,
    seed: int,
    *,
    lengths: Lengths = CHAT,
    warm_up_s: float = WARM_UP_S,
    cold_s: float = 0.0,
    pages: Pages | None = None,
) -> Requests:
    """Poisson arrivals; the first `warm_up_s` are warm-up. For `cold_s` every step takes COLD times as long."""
    random = np.random.default_rng(seed)

    def arrivals() -> Iterator[Served]:
        now_s = random.exponential(1 / rate_per_s)
        while now_s < warm_up_s + duration_s:
            yield Served(now_s, *lengths.draw(random), now_s >= warm_up_s, 0)
            now_s += random.exponential(1 / rate_per_s)

    return _serve(served, arrivals(), lambda done, now_s: None, cold_s, pages)


def _serve(
    served: Spec,
    arrivals: Iterator[Served],
    follow: Callable[[Served, float], Served | None],
    cold_s: float,
    pages: Pages | None,
) -> Requests:
    engine, now_s = Engine(served), 0.0
    requests: list[Served] = []

    def add(request: Served) -> None:
        request.events_s = []
        engine.add(len(requests), _TOKENS[: request.prompt_tokens], _TOKENS[: request.output_tokens])
        requests.append(request)

    ahead = next(arrivals, None)
    while True:
        while ahead is not None and ahead.due_s <= now_s:
            add(ahead)
            ahead = next(arrivals, None)
        step = engine.step()
        if step is None:
            if ahead is None:
                if pages is not None:
                    pages.look(engine, now_s)
                return columns(requests)
            now_s = ahead.due_s
            continue
        start_s = now_s
        now_s += step.duration_s * (COLD if now_s < cold_s else 1.0)
        for number, count in step.tokens:
            requests[number].events_s += [now_s] * count
        if pages is not None:
            pages.stepped(engine, step, requests, start_s, now_s)
        for number in step.finished:
            after = follow(requests[number], now_s)
            if after is not None:
                add(after)


def columns(served: list[Served]) -> Requests:
    """As `records.read` makes them; what the engine does not know is unknown."""
    count = len(served)
    sent_us = np.rint([1e6 * one.due_s for one in served])
    events = np.array([len(one.events_s) for one in served], np.int64)
    times_us = np.rint(1e6 * np.concatenate([np.empty(0), *(one.events_s for one in served)]))
    starts = np.concatenate(([0], np.cumsum(events)))
    events_us = (times_us - np.repeat(sent_us, events)).astype(np.int64)
    outputs = events.astype(np.float64)
    known: dict[str, Any] = {
        "index": np.arange(count),
        "phase": np.where([one.measured for one in served], "measure", "warmup"),
        "status": np.full(count, "ok"),
        "error": np.full(count, ""),
        "class_name": np.full(count, ""),
        "tokens_from": np.full(count, "usage"),
        "due_us": sent_us,
        "sent_us": sent_us,
        "end_us": events_us[starts[1:] - 1].astype(np.float64),
        "starts": starts,
        "events_us": events_us,
        "events_tokens": np.full(len(events_us), np.nan, np.float32),
        "answer_event": np.zeros(count),
        "prompt_tokens": np.array([one.prompt_tokens for one in served], np.float64),
        "output_tokens": outputs,
        "want_output_tokens": outputs,
        "turn": np.zeros(count),
        "shared_tokens": np.zeros(count),
        "left": np.zeros(count, np.bool_),
        "messages": {},
    }
    unknown: dict[str, Any] = {name: np.full(count, np.nan) for name in Requests.__struct_fields__ if name not in known}
    return Requests(**known, **unknown)
