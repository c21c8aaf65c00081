"""Which level comes next, on levels whose latencies follow from their load; no server, no clock."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from analysis.answer import LOOKS, TRIES
from loadgen.cli.options import settings
from loadgen.cli.slo import SloOptions, asked_of
from loadgen.load import MOST_LEVELS
from loadgen.record import LevelPlan, LevelRow
from loadgen.steps import AROUND, LEAST_S, Steps
from tests import fakes_run as fakes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECOND = 1_000_000
ITL_US, EVENTS = 20_000, 10


class World:
    """A server without chance, a clock that moves as levels are played, and a run directory."""

    def __init__(
        self,
        directory: Path,
        ttft_ms: Callable[[float], float],
        budget_s: float,
        limited: Callable[[float], bool],
        **flags: Any,
    ) -> None:
        self.now_s = 1000.0
        self.directory = directory
        self.plans: list[LevelPlan] = []
        self.ttft_ms = ttft_ms
        self.limited = limited
        options = SloOptions(**({"slo": ("ttft p95 < 200ms",)} | flags))
        self.settings = settings("localhost:1", options, asked_of(options))
        self.steps = Steps(self.settings, budget_s, lambda: int(self.now_s * 1e9))
        if not directory.exists():
            bounds = self.settings.bounds
            head = fakes.header(
                levels=[], seeks=self.settings.seeks, bounds=bounds and list(bounds), slo=list(self.settings.slo)
            )
            fakes.write(directory, [], [], head)

    def play(self, most: int = 100) -> None:
        self.steps.begin(self.directory, None)  # type: ignore[arg-type]  # request_s is a fake
        for plan in itertools.islice(self.steps.plans(), most):
            self.plans.append(plan)
            self.steps.level_ended(self.directory, self._level(plan))

    def _level(self, plan: LevelPlan) -> LevelRow:
        load = plan.concurrency or plan.rate_per_s
        assert load is not None
        assert plan.duration_s is not None
        ttft_us = int(self.ttft_ms(load) * 1000)
        took_us = ttft_us + ITL_US * (EVENTS - 1)
        if plan.concurrency:
            each = max(1, int(plan.duration_s * SECOND / took_us))
            each = min(each, -(-plan.requests // plan.concurrency)) if plan.requests else each
            rows = fakes.closed_loop(plan.concurrency, each=each, ttft_us=ttft_us, events=EVENTS)
            lasted_us = (each + 2) * took_us
        else:
            seconds = int(min(plan.duration_s, (plan.requests or 1e9) / load)) + 2
            rows = fakes.open_loop(int(load), seconds, took_us=3 * ttft_us)
            lasted_us = seconds * SECOND + took_us
        start_us = int(self.now_s * SECOND)
        for row in rows:
            row |= {"level": plan.level, "sent_us": row["sent_us"] + start_us, "due_us": row["due_us"] + start_us}
        busy = {"cpu_us": lasted_us} if self.limited(load) else {"cpu_us": 0}
        ended = fakes.ended(plan.level, start_us, start_us + lasted_us) | busy
        self._write(plan, rows, ended)
        self.now_s += lasted_us / SECOND
        return msgspec.convert(ended, LevelRow)

    def _write(self, plan: LevelPlan, rows: list[fakes.Row], ended: fakes.Row) -> None:
        head = json.loads((self.directory / "run.json").read_text())
        head["levels"].append(msgspec.to_builtins(plan))
        (self.directory / "run.json").write_text(json.dumps(head))
        with (self.directory / "requests.jsonl").open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        with (self.directory / "levels.jsonl").open("a") as file:
            file.write(json.dumps(ended) + "\n")

    @property
    def loads(self) -> list[float]:
        return [plan.concurrency or plan.rate_per_s or 0 for plan in self.plans]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    monkeypatch.setattr("loadgen.steps.request_s", lambda *_: 0.3)

    def world(
        ttft_ms: Callable[[float], float] = lambda load: 100.0,
        budget_s: float = 160.0,
        limited: Callable[[float], bool] = lambda load: False,
        **flags: Any,
    ) -> World:
        return World(tmp_path / "run", ttft_ms, budget_s, limited, **flags)

    return world


# One load


def test_a_clear_case_takes_one_look(world: Callable[..., World]) -> None:
    clear = world(concurrency="8")
    clear.play()
    assert clear.loads == [8]
    assert clear.plans[0].duration_s == pytest.approx(160 / 2 ** (LOOKS - 1))
    assert clear.steps.so_far() == "PASS: the SLO holds at 8 at once"


def test_each_look_doubles_the_sample_until_the_budget_ends(world: Callable[..., World]) -> None:
    near = world(concurrency="8", slo=("error_rate < 0.01%",), budget_s=80.0)
    near.play()
    assert near.loads == [8] * len(near.plans)
    assert 2 <= len(near.plans) <= LOOKS
    ends_s = list(itertools.accumulate(plan.duration_s or 0 for plan in near.plans))
    for before, after in itertools.pairwise(ends_s[:-1]):
        assert after == pytest.approx(2 * before, rel=0.15)
    assert near.now_s - 1000 <= 80 + 1
    assert near.steps.so_far() == "UNDECIDED: it is not known yet whether the SLO holds at 8 at once"


def test_a_run_that_was_decided_does_nothing_more(world: Callable[..., World]) -> None:
    world(concurrency="8").play()
    again = world(concurrency="8")
    again.play()
    assert again.plans == []
    assert again.steps.ahead()[0] == "1 level is there already: PASS: the SLO holds at 8 at once"


def test_a_run_goes_on_with_the_next_look(world: Callable[..., World]) -> None:
    flags: dict[str, Any] = {"concurrency": "8", "slo": ("error_rate < 0.01%",)}
    world(**flags).play(most=2)
    later = world(**flags)
    later.play(most=1)
    assert [plan.level for plan in later.plans] == [2]
    assert later.plans[0].duration_s == pytest.approx(160 / 4 - 160 / 8, rel=0.2)  # the third look


def test_a_client_that_is_the_limit_is_tried_again(world: Callable[..., World]) -> None:
    busy = world(concurrency="8", limited=lambda load: True)
    busy.play()
    assert len(busy.plans) == TRIES
    assert busy.steps.so_far().startswith("INVALID")


def test_what_a_term_takes_to_pass_is_said_before(world: Callable[..., World]) -> None:
    short = world(rate="1", slo=("ttft p99 < 1s", "itl p99 < 50ms", "throughput > 10"), budget_s=60.0)
    short.steps.begin(short.directory, None)  # type: ignore[arg-type]
    first, said = short.steps.ahead()
    assert first == "up to 1 min, looked at 5 times at most: it ends as soon as it is decided"
    assert said == (
        "ttft p99 < 1s passes with 459 independent requests at least, and by the probe there is room for about 59: "
        "it can fail, but not pass, within this --budget"
    )


# The largest load


def test_the_largest_concurrency_that_holds_is_found(world: Callable[..., World]) -> None:
    grows = world(lambda load: 10.0 * load, budget_s=1800.0, find="concurrency", concurrency="1..256")
    grows.play()
    assert grows.loads[:6] == [1, 2, 4, 8, 16, 32]
    assert grows.steps.so_far() == "PASS: the SLO holds up to 20 at once, and fails from 21 on"
    assert {load: grows.loads.count(load) for load in (20, 21)} == {20: 4, 21: 4}


def test_the_largest_rate_that_holds_is_found(world: Callable[..., World]) -> None:
    grows = world(lambda load: 5.0 * load, budget_s=1800.0, find="rate", rate="1..256")
    grows.play()
    assert grows.loads[0] == 3.3  # about one in flight
    answer = grows.steps.so_far()
    assert answer.startswith("PASS: the SLO holds up to "), answer


def test_a_search_stops_with_its_budget_and_goes_on_later(world: Callable[..., World]) -> None:
    flags: dict[str, Any] = {"find": "concurrency", "concurrency": "1..64"}
    first = world(lambda load: 10.0 * load, budget_s=60.0, **flags)
    first.play()
    assert first.now_s - 1000 < 61
    assert first.steps.so_far().startswith("UNDECIDED")
    second = world(lambda load: 10.0 * load, budget_s=1800.0, **flags)
    second.play()
    assert second.plans[0].level == len(first.plans)
    assert second.steps.so_far() == "PASS: the SLO holds up to 20 at once, and fails from 21 on"
    for load in {*first.loads} & {*second.loads}:
        assert load in (16, 20, 21, 24), "only ends are measured again"


def test_a_search_ends_below_the_load_at_which_the_client_is_the_limit(world: Callable[..., World]) -> None:
    busy = world(budget_s=1800.0, limited=lambda load: load > 8, find="concurrency", concurrency="1..64")
    busy.play()
    assert busy.loads == [1, 2, 4, 8, *[16] * TRIES, 8, 8, 8]
    assert busy.steps.so_far() == "INVALID: the SLO holds up to 8 at once, and where it ends is not known yet"
    everywhere = World(
        busy.directory.with_name("all"),
        lambda load: 100.0,
        600.0,
        lambda load: True,
        find="concurrency",
        concurrency="1..64",
    )
    everywhere.play()
    assert everywhere.loads == [1] * TRIES


def test_a_first_level_that_the_client_limited_is_played_again(world: Callable[..., World]) -> None:
    once = iter([True])
    busy = world(budget_s=600.0, limited=lambda load: next(once, False), find="rate", rate="1..64")
    busy.play(most=3)
    assert busy.loads[:3] == [3.3, 3.3, 6.6]


def test_levels_are_long_enough_but_within_the_budget(world: Callable[..., World]) -> None:
    slow = world(lambda load: 30.0 * load, budget_s=240.0, find="concurrency", concurrency="1..64")
    slow.play()
    assert all(plan.duration_s is not None and plan.duration_s >= LEAST_S for plan in slow.plans)
    assert all(plan.requests is not None and plan.requests >= 10 * (plan.concurrency or 0) for plan in slow.plans)
    assert slow.now_s - 1000 <= 240 + AROUND * 30.0 * 64 / 1000


def test_a_run_has_so_many_levels_at_most(world: Callable[..., World]) -> None:
    endless = world(concurrency="8")
    endless.steps.begin(endless.directory, None)  # type: ignore[arg-type]
    endless.steps._next = MOST_LEVELS
    assert list(endless.steps.plans()) == []
