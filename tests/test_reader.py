"""The reader of many sockets: who is called when, and that nobody is forgotten."""

import asyncio
import contextlib
import functools
import random
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loadgen import reader as module
from loadgen.reader import Read, Reader
from tests.fakes_api import both_loops
from tests.fakes_client import nothing_leaks

MANY = 4


@pytest.fixture(autouse=True)
def no_leaks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "MANY", MANY)
    with nothing_leaks():
        yield


class Group:
    """A reader of some sockets, and their other ends."""

    def __init__(self, size: int, stamped: bool) -> None:
        self.reader = Reader(stamped)
        self.near: list[socket.socket] = []
        self.far: list[socket.socket] = []
        self.got = [b""] * size
        self.calls: list[int] = []  # takes, by whose socket
        self.steps: list[str] = []  # reads and takes
        self.faults: list[Any] = []  # exceptions that reach the loop
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.faults.append(context["exception"]))
        self.read_bytes = 1000
        self.on_call: Callable[[int], None] = lambda _: None
        for number in range(size):
            near, far = socket.socketpair()
            near.setblocking(False)
            self.near.append(near)
            self.far.append(far)
            self.join(number)

    def join(self, number: int) -> None:
        read, take = functools.partial(self._read, number), functools.partial(self._take, number)
        self.reader.add(self.near[number].fileno(), read, take)

    def _read(self, number: int) -> Read | None:
        self.steps.append(f"read {number}")
        try:
            return 0, 0, self.near[number].recv(self.read_bytes)
        except BlockingIOError:
            return None

    def _take(self, number: int, read: Read) -> None:
        self.steps.append(f"take {number}")
        self.calls.append(number)
        self.got[number] += read[2]
        self.on_call(number)

    def write(self, number: int, data: bytes = b"x") -> None:
        self.far[number].sendall(data)

    def leave(self, number: int) -> None:
        self.reader.remove(self.near[number].fileno())
        self.near[number].close()

    def pauses(self) -> bool:
        return self.reader._next is not None

    async def turns(self, until: Callable[[], bool] = lambda: False) -> None:
        """Let the loop poll its files a few times."""
        for _ in range(20):
            if until():
                return
            await asyncio.sleep(0)


@contextlib.contextmanager
def group(size: int, stamped: bool = True) -> Iterator[Group]:
    made = Group(size, stamped)
    try:
        yield made
    finally:
        made.reader.close()
        for sock in (*made.near, *made.far):
            sock.close()


@pytest.mark.parametrize(("size", "stamped"), [(1, True), (MANY - 1, True), (MANY, False), (3 * MANY, False)])
@both_loops
async def test_few_sockets_or_unstamped_ones_are_read_at_once(size: int, stamped: bool) -> None:
    with group(size, stamped) as g:
        for number in [*range(size), *range(size)]:
            g.write(number)
            await g.turns(lambda: bool(g.calls))
            assert g.calls == [number]
            g.calls.clear()


@both_loops
async def test_many_are_read_together_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.05)
    with group(MANY) as g:
        g.write(0)
        await g.turns(lambda: bool(g.calls))
        assert g.calls == [0]  # nothing had been read lately: no reason to wait
        turn_of_call: list[int] = []
        turn = 0
        g.on_call = lambda _: turn_of_call.append(turn)
        for number in range(1, MANY):
            g.write(number)
            await g.turns()
            assert g.calls == [0]
        while len(g.calls) < MANY:
            turn += 1
            await asyncio.sleep(0)
        assert sorted(g.calls) == list(range(MANY))
        assert len(set(turn_of_call)) == 1


@both_loops
async def test_after_a_quiet_pause_the_next_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    with group(MANY) as g:
        for number in range(MANY):
            g.write(number)
            await g.turns(lambda: bool(g.calls))
            assert g.calls == [number]
            g.calls.clear()
            await g.turns()
            assert not g.pauses()


@both_loops
async def test_few_that_are_left_of_many_are_read_at_once_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    with group(MANY) as g:
        g.read_bytes = 1
        g.write(0, b"x" * 1000)  # a socket that always has something
        await g.turns(lambda: len(g.calls) > 3)
        assert g.pauses()
        g.leave(MANY - 1)
        await g.turns()
        assert not g.pauses()
        before = len(g.calls)
        await g.turns()
        assert len(g.calls) > before


@pytest.mark.parametrize("size", [MANY - 1, 3 * MANY])
@both_loops
async def test_nothing_is_lost(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    rng = random.Random(size)
    sent = [b""] * size
    with group(size) as g:
        g.read_bytes = 3
        for _ in range(300):
            number, data = rng.randrange(size), rng.randbytes(rng.randrange(1, 12))
            g.write(number, data)
            sent[number] += data
            if rng.random() < 0.5:
                await asyncio.sleep(0)
        async with asyncio.timeout(5):
            while g.got != sent:
                await asyncio.sleep(0)


@pytest.mark.parametrize("size", [MANY - 1, MANY])
@both_loops
async def test_an_endless_flood_keeps_nobody_waiting(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    with group(size) as g:
        g.read_bytes = 1
        g.on_call = lambda number: g.write(0) if number == 0 else None  # as fast as it is read
        g.write(0, b"x" * 10_000)
        await g.turns(lambda: len(g.calls) > 3)
        begun = len(g.calls)
        for number in range(1, size):
            g.write(number)
        await g.turns(lambda: len(set(g.calls)) == size)
        assert set(g.calls) == set(range(size))
        assert g.calls[begun:].count(0) <= 3


@pytest.mark.parametrize("size", [MANY - 1, MANY])
@both_loops
async def test_one_that_another_closes_in_the_same_batch_is_not_called(size: int) -> None:
    with group(size) as g:
        g.on_call = lambda number: g.leave(1 - number)
        g.write(0)
        g.write(1)
        await g.turns()
        assert len(g.calls) == 1
        assert g.faults == []


@pytest.mark.parametrize("size", [MANY - 1, MANY])
@both_loops
async def test_one_that_raises_does_not_stop_the_others(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)

    def fail(number: int) -> None:
        raise KeyError(number)

    with group(size) as g:
        g.on_call = fail
        for number in range(size):
            g.write(number)
        await g.turns()
        assert sorted(g.calls) == list(range(size))
        assert sorted(fault.args[0] for fault in g.faults) == list(range(size))
        g.on_call = lambda _: None
        g.write(0)
        await g.turns(lambda: len(g.calls) > size)
        assert g.calls[-1] == 0


@both_loops
async def test_one_that_hangs_up_is_called() -> None:
    with group(1) as g:
        g.far[0].close()
        await g.turns(lambda: bool(g.calls))
        assert g.calls[0] == 0


@pytest.mark.parametrize("size", [MANY - 1, MANY])
@both_loops
async def test_nobody_is_called_after_the_close(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it waits for its sockets or pauses."""
    monkeypatch.setattr(module, "_PAUSE_S", 0.001)
    with group(size) as g:
        g.write(0)
        await g.turns(lambda: bool(g.calls))
        assert g.pauses() is (size >= MANY)
    g.calls.clear()
    await asyncio.sleep(0.005)
    assert (g.calls, g.faults) == ([], [])


def one_a_turn(monkeypatch: pytest.MonkeyPatch, most_untaken: int = 1000, most_bytes: int = 10**6) -> None:
    """A core so slow that a slice is over with the first thing taken."""
    monkeypatch.setattr(module, "_SLICE_NS", 0)
    monkeypatch.setattr(module, "_A_FEW", 1)
    monkeypatch.setattr(module, "MOST_UNTAKEN", most_untaken)
    monkeypatch.setattr(module, "MOST_UNTAKEN_BYTES", most_bytes)


@pytest.mark.parametrize(("size", "stamped"), [(MANY - 1, True), (MANY, True), (MANY, False)])
@both_loops
async def test_all_that_are_ready_are_read_before_one_is_taken(size: int, stamped: bool) -> None:
    with group(size, stamped) as g:
        for number in range(size):
            g.write(number)
        await g.turns(lambda: len(g.calls) == size)
        assert [step.split()[0] for step in g.steps] == ["read"] * size + ["take"] * size


@pytest.mark.parametrize("size", [MANY - 1, MANY])
@both_loops
async def test_a_core_behind_with_taking_still_reads_in_time(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    one_a_turn(monkeypatch)
    with group(size) as g:
        for number in range(1, size):
            g.write(number)
        g.on_call = lambda number: g.write(0) if number == 1 else None  # comes while all others wait to be taken
        await g.turns(lambda: len(g.calls) == size)
        assert g.steps.index("read 0") < g.steps.index("take 2")
        assert g.calls == [*range(1, size), 0]


@both_loops
async def test_behind_by_too_much_taking_keeps_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    one_a_turn(monkeypatch, most_untaken=2)
    with group(3 * MANY) as g:
        for number in range(3 * MANY):
            g.write(number)
        await g.turns(lambda: bool(g.calls))
        assert len(g.steps) == 3 * MANY + len(g.calls)
        assert len(g.calls) == 3 * MANY - 2
        await g.turns(lambda: len(g.calls) == 3 * MANY)
        assert g.calls == list(range(3 * MANY))


@both_loops
async def test_behind_by_too_many_bytes_of_long_reads_taking_keeps_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    one_a_turn(monkeypatch, most_bytes=250)
    size = 3 * MANY
    with group(size) as g:

        def taken(count: int) -> Callable[[], bool]:
            return lambda: len(g.calls) >= count

        for before in (0, size, 2 * size):  # what was taken since counts no more
            for number in range(size):
                g.write(number, b"x" * 100)
                g.reader.held_long(100)
            await g.turns(taken(before + 1))
            assert len(g.calls) == before + size - 2
            await g.turns(taken(before + size))


@both_loops
async def test_what_a_closed_one_held_is_not_taken_by_the_next_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    one_a_turn(monkeypatch)
    with group(MANY) as g:

        def replace(number: int) -> None:
            if number == 0:
                g.reader.remove(g.near[1].fileno())
                g.join(1)

        g.on_call = replace
        for number in (0, 1, 2):
            g.write(number)
        await g.turns(lambda: 2 in g.calls)
        assert g.steps == ["read 0", "read 1", "read 2", "take 0", "take 2"]


async def read_and_not_taken(g: Group, pieces: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each socket's other end writes all of them."""
    monkeypatch.setattr(Reader, "_take_some", lambda _: None)
    for count, piece in enumerate(pieces, 1):
        for number in range(MANY):
            g.write(number, piece.encode())
        await g.turns(lambda reads=count * MANY: len(g.steps) == reads)  # type: ignore[misc]
    assert g.calls == []


@both_loops
async def test_what_was_read_of_one_is_taken_before_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    with group(MANY) as g:
        with monkeypatch.context() as behind:
            await read_and_not_taken(g, "ab", behind)
        g.write(2, b"c")
        g.reader.take_now(g.near[2].fileno())
        assert g.calls == [2, 2]
        assert g.got[2] == b"ab"
        await g.turns(lambda: len(g.calls) > 2 * MANY)
        assert g.got == [b"ab", b"ab", b"abc", b"ab"]


@both_loops
async def test_an_end_is_read_once_however_long_it_waits_to_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with group(MANY) as g:
        await read_and_not_taken(g, "a", monkeypatch)
        g.far[0].close()
        await g.turns()
        assert g.steps.count("read 0") == 2
        g.leave(0)
        g.write(1)
        await g.turns(lambda: g.steps.count("read 1") == 2)
        assert g.steps.count("read 1") == 2
        assert g.faults == []


@both_loops
async def test_one_that_is_closed_with_what_it_takes_now_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with group(MANY) as g:
        await read_and_not_taken(g, "ab", monkeypatch)
        g.on_call = g.leave
        g.reader.take_now(g.near[2].fileno())
        assert g.calls == [2]


@both_loops
async def test_what_was_read_is_dropped_by_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    one_a_turn(monkeypatch)
    with group(MANY) as g:
        for number in range(MANY):
            g.write(number)
        await g.turns(lambda: bool(g.calls))
    await asyncio.sleep(0.005)
    assert (g.calls, g.faults) == ([0], [])
