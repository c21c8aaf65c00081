"""The cap: how many are let in, in which order, and what becomes of those who wait; also between processes."""

import asyncio
import multiprocessing
from typing import Any

import pytest

from loadgen.cap import LOOK_S, Line, Places, places


class Visitors:
    """Tasks that wait in lines; `inside` has the names of those that were let in, in order."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.refused: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, line: Line, name: str, due_ns: int) -> None:
        async def wait() -> None:
            (self.inside if await line.enter(due_ns) else self.refused).append(name)

        self.tasks[name] = asyncio.create_task(wait())
        await asyncio.sleep(0)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_first_come_first_served() -> None:
    line, visitors = Line(places(2)), Visitors()
    for due_ns, name in enumerate("abcde", 1):
        await visitors.come(line, name, due_ns)
    assert visitors.inside == ["a", "b"]
    assert line.most_waiting == 3
    for inside in (["c"], ["c", "d"], ["c", "d", "e"]):
        line.leave()
        await turns()
        assert visitors.inside == ["a", "b", *inside]
    for _ in range(2):
        line.leave()
    await visitors.come(line, "f", 6)
    assert visitors.inside[-1] == "f"
    assert line.most_waiting == 3


async def test_nobody_comes_in_once_the_line_is_closed() -> None:
    line, visitors = Line(places(1)), Visitors()
    for due_ns, name in enumerate("abc", 1):
        await visitors.come(line, name, due_ns)
    line.close()
    await visitors.come(line, "d", 4)
    line.leave()
    await turns()
    assert (visitors.inside, visitors.refused) == (["a"], ["b", "c", "d"])


async def test_who_is_sent_away_takes_no_place() -> None:
    line, visitors = Line(places(1)), Visitors()
    for due_ns, name in enumerate("abc", 1):
        await visitors.come(line, name, due_ns)
    visitors.tasks["b"].cancel()
    line.leave()
    await turns()
    assert visitors.inside == ["a", "c"]


async def test_a_place_given_to_one_who_is_sent_away_in_the_same_turn_goes_to_the_next() -> None:
    line, visitors = Line(places(1)), Visitors()
    for due_ns, name in enumerate("abc", 1):
        await visitors.come(line, name, due_ns)
    line.leave()  # b has the place, and has not woken
    visitors.tasks["b"].cancel()
    await turns()
    assert visitors.inside == ["a", "c"]


def shared(most: int) -> Places:
    """Between two workers, which are lines of one process here."""
    return Places(places(most).free, [0, 0])


async def until(visitors: Visitors, inside: list[str]) -> None:
    async with asyncio.timeout(5):
        while visitors.inside != inside:
            await asyncio.sleep(LOOK_S)


async def test_a_place_that_another_worker_gives_back_is_found() -> None:
    cap, visitors = shared(1), Visitors()
    one, other = Line(cap, 0), Line(cap, 1)
    await visitors.come(one, "a", 1)
    await visitors.come(other, "b", 2)
    assert visitors.inside == ["a"]
    one.leave()
    await until(visitors, ["a", "b"])


async def test_who_was_due_first_goes_first_whichever_worker_is_asked() -> None:
    cap, visitors = shared(1), Visitors()
    one, other = Line(cap, 0), Line(cap, 1)
    await visitors.come(one, "a", 1)
    await visitors.come(other, "b", 2)
    await visitors.come(one, "c", 3)
    one.leave()  # c stands in this line, but b is before it
    await until(visitors, ["a", "b"])
    await visitors.come(one, "d", 4)
    other.leave()
    await until(visitors, ["a", "b", "c"])
    one.leave()
    await until(visitors, ["a", "b", "c", "d"])


async def test_a_line_that_is_gone_holds_nobody_up() -> None:
    cap, visitors = shared(1), Visitors()
    one, other = Line(cap, 0), Line(cap, 1)
    await visitors.come(one, "a", 1)
    await visitors.come(other, "b", 2)
    await visitors.come(one, "c", 3)
    other.close()
    one.leave()
    await until(visitors, ["a", "c"])


def take(cap: Places, pipe: Any) -> None:
    cap.first_due_ns[1] = 7
    pipe.send([cap.take(1, 7), cap.take(1, 7)])


def test_places_are_shared_with_a_process_that_is_started() -> None:
    cap = places(2, workers=2)
    assert cap.take(0, 5)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=take, args=(cap, theirs))
    process.start()
    assert ours.recv() == [True, False]
    process.join()
    cap.free.release()
    assert list(cap.first_due_ns) == [0, 7]
    assert not cap.take(0, 8)  # the other has waited for longer
    assert cap.take(0, 6)


@pytest.mark.parametrize("most", [1, 3])
def test_there_are_as_many_places_as_said(most: int) -> None:
    cap = places(most)
    assert [cap.take(0, 1) for _ in range(most + 1)] == [True] * most + [False]
