"""Levels of open loop in virtual time: requests start when they are due, whatever has become of those before."""

import asyncio
import itertools
from array import array
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import pytest

from loadgen import levels
from loadgen.cap import Line, places
from loadgen.course import Course, Share, Until
from loadgen.exchange import Sent
from loadgen.levels import DRAIN_S, Moment
from loadgen.open import AHEAD, NoRoom, open_loop
from loadgen.pacing import Timetable, timetable
from loadgen.record import LevelPlan, LevelRow, Phase
from tests.fakes_level import Sender, conversations, played, requests
from tests.fakes_time import in_virtual_time
from workloads.request import Request


def every(gap_s: float, count: int | None = None) -> Iterator[int]:
    return (round(n * gap_s * 1e6) for n in (itertools.count() if count is None else range(count)))


class Level:
    """Runs a level that begins at once; times are those since its start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(
        self,
        table: Timetable,
        sender: Sender,
        *,
        plan: Iterator[Request] | None = None,
        until: Until | None = None,
        cap: int | None = None,
        room: int = 1000,
        share: Share | None = None,
        dispersion: float | None = None,
        stop_after_s: float | None = None,
        cancel_after_s: float | None = None,
    ) -> LevelRow:
        course = Course(until or Until(), rate_per_s=1)

        def run(stop: asyncio.Event) -> Coroutine[Any, Any, LevelRow]:
            begin_ns = round(asyncio.get_running_loop().time() * 1e9)
            return open_loop(
                LevelPlan(3, None, 1.0), table, plan or requests(), sender, course, stop=stop,
                start_ns=10**18 + begin_ns, room=room, line=None if cap is None else Line(places(cap)),
                share=share or Share(), dispersion=dispersion, begin=Moment(begin_ns, 10**18 + begin_ns),
            )  # fmt: skip

        return in_virtual_time(self._monkeypatch, played(sender, course, run, stop_after_s, cancel_after_s))


@pytest.fixture
def level(monkeypatch: pytest.MonkeyPatch) -> Level:
    return Level(monkeypatch)


def at(sender: Sender) -> list[float]:
    return [one.at_s for one in sender.asked]


def test_requests_start_when_due_though_none_has_ended(level: Level) -> None:
    sender = Sender(took_s=100)
    row = level(timetable(every(0.1), Until(duration_s=2), 0), sender)
    assert at(sender) == [one.due_s for one in sender.asked] == [n / 10 for n in range(20)]
    assert sender.most_in_flight == 20
    assert (row.ended_by, row.due, row.dropped, row.waited_max) == ("duration", 20, 0, None)
    assert (row.start_us, row.level) == (0, 3)
    assert row.end_us == pytest.approx(101.9e6, abs=1e6)  # the last one is let end


def test_warm_up_is_what_is_due_at_first_and_is_extra(level: Level) -> None:
    sender = Sender(took_s=0.01)
    level(timetable(every(0.5), Until(duration_s=3), 1_000_000), sender)
    assert [one.due_s for one in sender.asked if one.phase == "warmup"] == [0, 0.5]
    assert [one.due_s for one in sender.asked if one.phase == "measure"] == [1, 1.5, 2, 2.5, 3, 3.5]
    sender = Sender(took_s=0.01)
    row = level(timetable(every(0.5), Until(requests=3), 1_000_000), sender, until=Until(requests=3))
    assert [one.phase for one in sender.asked] == ["warmup"] * 2 + ["measure"] * 3
    assert row.ended_by == "requests"


def test_a_level_that_time_ends_lasts_its_time(level: Level) -> None:
    row = level(timetable(iter([0, 10**9]), Until(duration_s=30), 0), Sender(took_s=1))
    assert (row.ended_by, row.due) == ("duration", 1)
    assert row.end_us >= 30_000_000


def test_a_trace_that_is_used_up_is_the_end_of_its_schedule(level: Level) -> None:
    sender = Sender(took_s=1)
    row = level(timetable([0, 0, 0, 5_000_000], Until(), 0), sender)
    assert at(sender) == [0, 0, 0, 5]
    assert (row.ended_by, row.due, row.dropped) == ("schedule", 4, 0)


def test_so_is_a_data_set(level: Level) -> None:
    sender = Sender(took_s=1)
    row = level(timetable(every(0.1), Until(duration_s=5), 0), sender, plan=requests(7))
    assert (row.ended_by, row.due, row.dropped, len(sender.asked)) == ("schedule", 7, 0, 7)


def test_requests_are_made_ready_before_they_are_due_but_not_all(level: Level) -> None:
    sender = Sender(took_s=1)
    level(timetable(every(1.0), Until(requests=5 * AHEAD), 0), sender, until=Until(requests=5 * AHEAD))
    made = {index: at_s for at_s, index in sender.prepared}
    assert all(made[one.index] < one.at_s for one in sender.asked if one.index > 0)
    assert sum(made_s == 0 for made_s in made.values()) <= AHEAD + 1  # the first is gone by then
    assert max(one.at_s - made[one.index] for one in sender.asked) <= AHEAD


def test_a_late_request_is_sent_at_once_and_keeps_its_due_time(level: Level) -> None:
    class Slow(Sender):
        """Blocks for 3 s as it makes the fifth request ready."""

        def __call__(self, request: Request, *rest: Any) -> Any:
            if request.index == 4:
                loop = asyncio.get_running_loop()
                loop.now_s += 3  # type: ignore[attr-defined]
            return super().__call__(request, *rest)

    sender = Slow(took_s=0.1)
    level(timetable(every(0.5), Until(duration_s=6), 0), sender)
    assert [one.due_s for one in sender.asked] == [n / 2 for n in range(12)]
    assert at(sender)[:7] == [3.0] * 7
    assert at(sender)[7:] == [3.5, 4.0, 4.5, 5.0, 5.5]


# The cap


def test_coordinated_omission_shows(level: Level) -> None:
    """Rate 10/s, cap 1, 500 ms a request: each waits 0.4 s more than the one before."""
    sender = Sender(took_s=0.5)
    row = level(timetable(every(0.1), Until(requests=50), 0), sender, until=Until(requests=50), cap=1)
    waits_s = [one.at_s - one.due_s for one in sender.asked if one.due_s is not None]
    assert waits_s == pytest.approx([0.4 * k for k in range(50)])
    assert [one.index for one in sender.asked] == list(range(50))
    assert sender.most_in_flight == 1
    assert (row.due, row.dropped, row.ended_by) == (50, 0, "requests")
    assert row.waited_max == 40  # when the last one was due, at 4.9 s, 10 had been let in


def test_after_the_end_the_line_is_served_for_as_long_as_the_level_took(level: Level) -> None:
    sender = Sender(took_s=0.5)
    row = level(timetable(every(0.1), Until(duration_s=10), 0), sender, cap=1)
    assert row.due == 100
    assert row.dropped is not None
    assert row.due - row.dropped == len(sender.asked)
    assert 40 <= len(sender.asked) <= 40 + 2 * levels.CLOCK_SAMPLE_S / sender.took_s
    assert row.ended_by == "duration"
    assert sender.cancelled == 0


def test_a_cap_that_is_not_reached_changes_nothing(level: Level) -> None:
    sender = Sender(took_s=0.35)
    row = level(timetable(every(0.1), Until(duration_s=2), 0), sender, cap=4)
    assert at(sender) == [n / 10 for n in range(20)]
    assert row.waited_max == 0


# The end


def test_a_stop_starts_no_more_and_counts_what_had_been_due(level: Level) -> None:
    sender = Sender(took_s=3)
    row = level(timetable(every(0.5), Until(duration_s=100), 0), sender, stop_after_s=4.1)
    assert row.ended_by == "interrupt"
    assert max(at(sender)) == 4.0
    assert sender.cancelled == 0
    assert (row.due, row.dropped, len(sender.asked)) == (9, 0, 9)
    assert 7 <= row.end_us / 1e6 <= 7 + 2 * levels.CLOCK_SAMPLE_S


def test_after_a_stop_nobody_waits_in_line_and_the_drain_has_a_limit(level: Level) -> None:
    sender = Sender(took_s=100)
    row = level(timetable(every(0.5), Until(duration_s=100), 0), sender, cap=2, stop_after_s=4.1)
    assert (len(sender.asked), sender.cancelled) == (2, 2)
    assert row.due is not None
    assert row.dropped == row.due - 2 >= 7
    assert row.end_us / 1e6 <= 4.1 + DRAIN_S + 2 * levels.CLOCK_SAMPLE_S


def test_a_level_without_any_success_is_given_up(level: Level) -> None:
    sender = Sender(took_s=0.01, ok=lambda _: False)
    row = level(timetable(every(0.1), Until(duration_s=100), 0), sender, cap=1)
    assert row.ended_by == "errors"
    assert 20 <= len(sender.asked) <= 21
    assert row.due is not None
    assert row.due <= 20 + 1 + 10 * levels.CLOCK_SAMPLE_S


def test_so_many_errors_end_the_level(level: Level) -> None:
    sender = Sender(took_s=0.01, ok=lambda index: index % 2 == 0)
    row = level(timetable(every(0.1), Until(duration_s=100), 0), sender, until=Until(errors=3))
    assert (row.ended_by, len(sender.asked)) == ("errors", 6)


def test_more_in_flight_than_there_is_room_for_ends_the_run(level: Level) -> None:
    sender = Sender(took_s=1000)
    with pytest.raises(NoRoom, match=r"^5 requests are in flight and more are due.* with --max-concurrency they wait"):
        level(timetable(every(0.1), Until(duration_s=100), 0), sender, room=5)
    assert len(sender.asked) == 5


def test_a_cancelled_level_leaves_nothing_behind(level: Level) -> None:
    sender = Sender(took_s=100)
    with pytest.raises(asyncio.CancelledError):
        level(timetable(every(0.5), Until(duration_s=100), 0), sender, cap=3, cancel_after_s=4)
    assert sender.cancelled == 3


def test_a_fault_of_ours_ends_the_level_at_once(level: Level) -> None:
    class Faulty(Sender):
        def __call__(self, request: Request, *rest: Any) -> Any:
            if request.index == 5:
                raise ZeroDivisionError
            return super().__call__(request, *rest)

    with pytest.raises(ZeroDivisionError):
        level(timetable(every(0.5), Until(duration_s=100), 0), Faulty(took_s=3))


# Growth without end


class Slots(Sender):
    """A server of so many slots."""

    def __init__(self, slots: int, took_s: float) -> None:
        super().__init__(took_s)
        self._free = asyncio.Semaphore(slots)

    async def send(self, request: Request, phase: Phase, due_ns: int | None) -> Sent:
        async with self._free:
            return await super().send(request, phase, due_ns)


def test_a_level_that_the_server_does_not_keep_up_with_ends_early(level: Level) -> None:
    sender = Slots(8, took_s=0.5)
    row = level(timetable(every(1 / 32), Until(duration_s=300), 0), sender, dispersion=1.0)
    assert row.ended_by == "over-saturated"
    assert row.due is not None
    stopped_s = row.due / 32
    assert 7 <= stopped_s <= 20
    assert row.dropped == 0
    assert stopped_s + DRAIN_S <= row.end_us / 1e6 <= stopped_s + DRAIN_S + 3 * levels.CLOCK_SAMPLE_S
    assert len(sender.asked) <= 16 * (stopped_s + DRAIN_S + 3)  # the others waited when it was cut


def test_who_waits_for_the_cap_counts_and_is_sent_no_more(level: Level) -> None:
    sender = Sender(took_s=0.5)
    row = level(timetable(every(1 / 32), Until(duration_s=300), 0), sender, cap=8, dispersion=1.0)
    assert row.ended_by == "over-saturated"
    assert row.due is not None
    assert row.dropped == row.due - len(sender.asked) >= 50
    assert max(at(sender)) <= row.due / 32 + levels.CLOCK_SAMPLE_S
    assert sender.cancelled == 0  # half a second is less than the drain


@pytest.mark.parametrize(
    ("dispersion", "sender"),
    [
        (1.0, Sender(took_s=20)),  # only fills up
        (1.0, Sender(took_s=1000)),
        (None, Slots(8, took_s=0.5)),  # a ramp
    ],
)
def test_a_level_goes_on_where_growth_means_nothing(level: Level, dispersion: float | None, sender: Sender) -> None:
    row = level(timetable(every(1 / 32), Until(duration_s=60), 0), sender, dispersion=dispersion, room=10_000)
    assert (row.ended_by, row.due) == ("duration", 60 * 32)


def test_what_is_in_flight_after_the_last_request_is_let_end(level: Level) -> None:
    sender = Slots(8, took_s=0.5)
    row = level(timetable(every(1 / 32, 32 * 6), Until(), 0), sender, dispersion=1.0)
    assert (row.ended_by, len(sender.asked), sender.cancelled) == ("schedule", 32 * 6, 0)


# Conversations


def test_a_later_turn_is_due_after_the_answer_and_a_thought(level: Level) -> None:
    sender = Sender(took_s=1)
    table = timetable([0, 1_500_000], Until(), 2_500_000)
    row = level(table, sender, plan=conversations(turns=3, think_s=2))
    assert [(one.index, one.at_s, one.due_s, one.phase) for one in sender.asked] == [
        (0, 0, 0, "warmup"), (10, 1.5, 1.5, "warmup"), (1, 3, 3, "measure"), (11, 4.5, 4.5, "measure"),
        (2, 6, 6, "measure"), (12, 7.5, 7.5, "measure"),
    ]  # fmt: skip
    assert (row.due, row.dropped, row.ended_by) == (2, 0, "schedule")


def test_later_turns_count_for_the_requests_and_wait_in_line(level: Level) -> None:
    sender = Sender(took_s=1)
    table = timetable(every(0.1), Until(requests=4), 0)
    row = level(table, sender, plan=conversations(turns=2, think_s=0), until=Until(requests=4), cap=1)
    assert row.ended_by == "requests"
    assert [one.index for one in sender.asked] == [0, 10, 20, 30]
    sender = Sender(took_s=0.1)
    table = timetable(every(1.0), Until(requests=4), 0)
    row = level(table, sender, plan=conversations(turns=2, think_s=0.3), until=Until(requests=4))
    assert [one.index for one in sender.asked] == [0, 1, 10, 11]
    assert (row.ended_by, row.due, row.dropped) == ("requests", 2, 0)


def test_a_failure_ends_a_conversation_and_no_turn_is_sent_after_the_end(level: Level) -> None:
    sender = Sender(took_s=1, ok=lambda index: index != 0)
    row = level(timetable(every(2.0, 3), Until(duration_s=6), 0), sender, plan=conversations(turns=9, think_s=0))
    assert 1 not in [one.index for one in sender.asked]
    assert max(at(sender)) < 6
    assert row.ended_by == "schedule"  # there were three


# Workers


@pytest.mark.parametrize("workers", [2, 3, 7])
def test_the_strides_of_all_workers_are_the_one_schedule(level: Level, workers: int) -> None:
    offsets_us = [int(n * n * 1234.5) for n in range(40)]

    def sent_by(share: Share) -> Sequence[tuple[int, float | None, str]]:
        sender = Sender(took_s=0.5)
        plan = itertools.islice(requests(), share.worker, None, share.workers)
        row = level(timetable(offsets_us, Until(), 100_000), sender, plan=plan, share=share)
        assert (row.due, row.dropped) == (share.count(40), 0)
        return [(one.index, one.due_s, one.phase) for one in sender.asked]

    alone = sent_by(Share())
    assert alone == sorted(itertools.chain(*(sent_by(Share(worker, workers)) for worker in range(workers))))
    assert len(alone) == 40


def test_a_timetable_is_cut_where_the_level_ends() -> None:
    assert timetable(every(1.0), Until(duration_s=3), 0) == Timetable(
        array("q", [0, 1_000_000, 2_000_000]), 0, 3_000_000, "duration"
    )
