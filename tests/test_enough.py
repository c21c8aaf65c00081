"""A level that ends when its sample suffices: when it is looked at, and what it lacks. Whole runs: tests/load."""

import asyncio
import multiprocessing
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from analysis import records
from loadgen.enough import MORE, Answer, Asked, Enough, Ready, asked_of, lacking
from loadgen.record import LevelPlan, Row
from tests import fakes_run as fakes
from tests.fakes_tls import little_trust

__all__ = ["little_trust"]

# What a level lacks


def lacks(tmp_path: Path, rows: list[fakes.Row], asked: Asked | None = None, **head: Any) -> str | None:
    facts = {"levels": [{"level": 0, "concurrency": fakes.SLOTS}]} | head
    found = records.read(fakes.write(tmp_path, rows, (), fakes.header(**facts)), only=0)
    return lacking(found, 0, asked_of(found.header) if asked is None else asked)


def asked(**head: Any) -> Asked:
    return asked_of(msgspec.convert(fakes.header(**head), records.Header))


def test_without_terms_it_is_a_p99_of_the_usual_three(tmp_path: Path) -> None:
    assert asked() == (("", "ttft", 0.99), ("", "itl", 0.99), ("", "e2e", 0.99))
    assert asked(slo=["throughput > 5", "stall p99 < 1s"]) == asked()
    few = fakes.closed_loop(fakes.SLOTS, each=90)
    assert lacks(tmp_path, few) == "ttft p99 has 360 of 368 values that do not depend on each other"
    enough = fakes.closed_loop(fakes.SLOTS, each=104)
    assert lacks(tmp_path, enough) is None


def test_it_would_have_sufficed_a_little_earlier_too(tmp_path: Path) -> None:
    said = lacks(tmp_path, fakes.closed_loop(fakes.SLOTS, each=100))
    assert said == "ttft p99 has 360 of 368 values that do not depend on each other"


def test_terms_say_which_percentiles_also_those_of_classes(tmp_path: Path) -> None:
    classes = [{"name": "chat", "slo": ["itl p90 < 50ms"]}, {"name": "rag", "slo": ["ttft p95 < 9s"]}]
    head: dict[str, Any] = {"workload": {"name": "mix", "classes": classes}, "slo": ["e2e p50 < 9s", "error_rate < 1%"]}
    assert asked(**head) == (("", "e2e", 0.5), ("chat", "itl", 0.9), ("rag", "ttft", 0.95))
    said = lacks(tmp_path, fakes.mix(), **head)
    assert said == "rag ttft p95 has 60 of 72 values that do not depend on each other"
    assert lacks(tmp_path, fakes.mix(), (("batch", "itl", 0.9),), **head) == "no request of batch has ended"
    assert lacks(tmp_path, fakes.mix(), (("", "e2e", 0.5), ("chat", "itl", 0.9)), **head) is None


def test_the_window_is_two_requests_long(tmp_path: Path) -> None:
    many = [fakes.row(i, i * 1000, [2_000_000, 2_100_000]) for i in range(500)]
    assert lacks(tmp_path, many) == "the window (0.499 s) is shorter than 2 requests take"
    assert lacks(tmp_path, []) == "nothing has been measured"


def test_a_level_that_still_changes_is_not_enough(tmp_path: Path) -> None:
    rows = fakes.open_loop(seconds=120, grows_us=1000)
    said = lacks(tmp_path, rows, levels=[{"level": 0, "rate_per_s": 10}], arrivals="constant")
    assert said is not None
    assert said.startswith("TTFT went from ")


def test_answers_of_one_event_have_no_gaps_to_wait_for(tmp_path: Path) -> None:
    assert lacks(tmp_path, fakes.closed_loop(fakes.SLOTS, each=110, events=1)) is None


# When it is looked at


class Judge:
    """Holds the other end of the pipe, in the place of the process."""

    def __init__(self) -> None:
        ours, self.pipe = multiprocessing.Pipe()
        self.ended = 0
        self.enough = Enough(ours, self._end)

    def _end(self) -> None:
        self.ended += 1

    def asked(self) -> list[int]:
        """For which levels, since this was last called."""
        found = []
        while self.pipe.poll():
            found.append(msgspec.msgpack.decode(self.pipe.recv_bytes()))
        return found

    async def says(self, message: Ready | Answer) -> None:
        self.pipe.send_bytes(msgspec.msgpack.encode(message))
        await turns()

    def rows(self, count: int, **changes: Any) -> None:
        for _ in range(count):
            self.enough.row(msgspec.convert(fakes.row(**changes), Row))

    def close(self) -> None:
        self.enough.close()
        self.pipe.close()


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.fixture
async def judge() -> AsyncIterator[Judge]:
    made = Judge()
    yield made
    made.close()


async def test_it_is_looked_at_when_it_could_do_and_then_at_half_as_much_again(judge: Judge) -> None:
    await judge.says(Ready(60))
    judge.enough.begin(LevelPlan(3, 2))
    judge.rows(100, phase="warmup")
    judge.rows(100, status="failed")
    judge.rows(59)
    assert judge.asked() == []
    judge.rows(1)
    assert judge.asked() == [3]
    judge.rows(100)
    assert judge.asked() == []  # it has not answered yet
    await judge.says(Answer(3, "more"))
    judge.rows(1)
    assert judge.asked() == [3]
    await judge.says(Answer(3, "even more"))
    judge.rows(int(161 * MORE) - 161)
    assert (judge.asked(), judge.enough.lacks, judge.ended) == ([], "even more", 0)
    judge.rows(1)
    assert judge.asked() == [3]
    await judge.says(Answer(3, None))
    assert judge.ended == 1


async def test_each_slot_has_ten_requests_first(judge: Judge) -> None:
    judge.enough.begin(LevelPlan(0, 64))
    judge.rows(1000)
    assert judge.asked() == []  # it is not ready itself
    await judge.says(Ready(60))
    judge.enough.begin(LevelPlan(0, 64))
    judge.rows(639)
    assert judge.asked() == []
    judge.rows(1)
    assert judge.asked() == [0]
    judge.enough.begin(LevelPlan(1, None, 5.0))
    await judge.says(Answer(0, None))  # too late: that level is over
    assert judge.ended == 0
    assert judge.enough.lacks == "there are too few requests"
    judge.rows(60)
    assert judge.asked() == [1]


async def test_where_it_has_ended_nobody_minds(judge: Judge) -> None:
    await judge.says(Ready(1))
    judge.enough.begin(LevelPlan(0, None, 5.0))
    judge.pipe.close()
    judge.rows(5)
    await turns()
    judge.rows(5)
    judge.enough.begin(LevelPlan(1, None, 5.0))
    judge.rows(5)
    assert judge.enough.lacks == "the process that looks at the sample has ended"
    assert judge.ended == 0
