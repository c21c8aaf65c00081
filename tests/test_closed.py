"""Levels of closed loop in virtual time, against a sender that takes as long as it is told."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest

from loadgen import closed, levels
from loadgen.closed import FAILURE_PAUSE_MAX_S, closed_loop
from loadgen.course import HOPELESS_FAILURES, WHOLE, Course, Share, Until
from loadgen.exchange import Sent
from loadgen.levels import DRAIN_S
from loadgen.record import LevelPlan, LevelRow, Phase
from tests.fakes_level import Sender, conversations, played, requests
from tests.fakes_time import in_virtual_time
from workloads.request import Request


class Level:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(
        self,
        slots: int,
        until: Until,
        sender: Sender,
        *,
        request_s: float = 1.0,
        stop_after_s: float | None = None,
        cancel_after_s: float | None = None,
        wait_turn: Callable[[], Awaitable[None]] | None = None,
        plan: Iterator[Request] | None = None,
        share: Share = WHOLE,
    ) -> LevelRow:
        course = Course(until, slots=share.count(slots))

        def run(stop: asyncio.Event) -> Coroutine[Any, Any, LevelRow]:
            return closed_loop(
                LevelPlan(3, slots), plan or requests(), sender, course,
                request_s=request_s, stop=stop, start_ns=10**18, wait_turn=wait_turn, share=share,
            )  # fmt: skip

        return in_virtual_time(self._monkeypatch, played(sender, course, run, stop_after_s, cancel_after_s))


@pytest.fixture
def level(monkeypatch: pytest.MonkeyPatch) -> Level:
    return Level(monkeypatch)


def lasted_s(row: LevelRow) -> float:
    return (row.end_us - row.start_us) / 1e6


def test_requests_are_counted_exactly_and_warm_up_is_extra(level: Level) -> None:
    sender = Sender()
    row = level(4, Until(requests=10), sender)
    assert len(sender.of("measure")) == 10
    assert len(sender.of("warmup")) == 4
    assert sorted(index for _, index, _ in sender.sent) == list(range(14))
    assert row.ended_by == "requests"
    assert row.level == 3


@pytest.mark.parametrize("slots", [1, 7, 64])
def test_concurrency_is_reached_and_never_exceeded(level: Level, slots: int) -> None:
    sender = Sender()
    level(slots, Until(requests=5 * slots), sender)
    assert sender.most_in_flight == slots


def test_slots_start_one_after_another_over_one_request(level: Level) -> None:
    sender = Sender(took_s=8)
    level(4, Until(requests=4), sender, request_s=8)
    assert [at for at, _ in sender.of("warmup")] == [0, 2, 4, 6]
    assert [at for at, _ in sender.of("measure")] == [8, 10, 12, 14]


def test_all_is_warm_up_until_the_last_slot_has_started(level: Level) -> None:
    sender = Sender(took_s=1)
    level(3, Until(requests=3), sender, request_s=6)  # slots start at 0, 2 and 4
    assert [at for at, _ in sender.of("warmup")] == [0, 1, 2, 2, 3, 3, 4]
    assert min(at for at, _ in sender.of("measure")) >= 4


def test_workers_start_their_slots_as_one_process_would(level: Level) -> None:
    """Slots start at 0 to 6, each in its own worker; none measures before the last of all has started."""
    senders = [Sender(took_s=0.7) for _ in range(3)]
    for worker, sender in enumerate(senders):
        level(7, Until(requests=3), sender, request_s=7, share=Share(worker, 3))
    firsts = [[at for at, _ in sender.of("warmup") if at.is_integer()] for sender in senders]
    assert firsts == [[0, 3, 6], [1, 4], [2, 5]]
    assert min(at for sender in senders for at, _ in sender.of("measure")) >= 6


def test_the_duration_counts_from_the_first_measured_request(level: Level) -> None:
    sender = Sender(took_s=1)
    row = level(2, Until(duration_s=10), sender)
    starts = [at for at, _ in sender.of("measure")]
    assert (min(starts), max(starts)) == (1.0, 10.5)  # 20 requests; the next would start 10 s after the first
    assert len(starts) == 20
    assert row.ended_by == "duration"
    assert lasted_s(row) == pytest.approx(11.5)  # what has started is let end


def test_whichever_comes_first_ends_the_level(level: Level) -> None:
    assert level(1, Until(requests=3, duration_s=10), Sender()).ended_by == "requests"
    assert level(1, Until(requests=30, duration_s=10), Sender()).ended_by == "duration"


def test_the_duration_waits_for_so_many_requests_a_slot(level: Level) -> None:
    sender = Sender(took_s=7)
    row = level(2, Until(duration_s=10, per_slot=5), sender)
    assert len(sender.of("measure")) == 10
    assert row.ended_by == "duration"


def test_so_many_errors_end_the_level_though_others_succeed(level: Level) -> None:
    sender = Sender(took_s=0.01, ok=lambda index: index % 2 == 0)
    row = level(4, Until(requests=1000, errors=3), sender)
    assert row.ended_by == "errors"
    assert len(sender.sent) <= 6 + 4


def test_a_level_without_any_success_is_given_up(level: Level) -> None:
    sender = Sender(took_s=0.01, ok=lambda _: False)
    row = level(4, Until(requests=1000), sender)
    assert row.ended_by == "errors"
    assert HOPELESS_FAILURES <= len(sender.sent) < HOPELESS_FAILURES + 4
    many = Sender(took_s=0.01, ok=lambda _: False)
    level(50, Until(requests=1000), many)
    assert 100 <= len(many.sent) < 150


def test_a_single_success_keeps_the_level_going(level: Level) -> None:
    sender = Sender(took_s=0.01, ok=lambda index: index == 0)
    row = level(4, Until(requests=200), sender)
    assert row.ended_by == "requests"
    assert len(sender.of("measure")) == 200


def test_a_slot_pauses_longer_after_each_failure_up_to_a_limit(level: Level) -> None:
    sender = Sender(took_s=0, ok=lambda index: index == 0 or index > 1500)
    level(1, Until(requests=1510), sender, request_s=0)
    starts = [at for at, _, _ in sender.sent]
    gaps = [round(after - before, 6) for before, after in itertools.pairwise(starts)]
    assert gaps[:7] == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    assert set(gaps[7:1500]) == {FAILURE_PAUSE_MAX_S}
    assert set(gaps[1501:]) == {0}


def test_a_stop_lets_what_is_under_way_end_and_starts_no_more(level: Level) -> None:
    sender = Sender(took_s=3)
    row = level(3, Until(requests=1000), sender, stop_after_s=4)
    assert row.ended_by == "interrupt"
    assert max(at for at, _, _ in sender.sent) < 4
    assert sender.cancelled == 0
    assert 4 < lasted_s(row) <= 7


def test_after_a_stop_the_drain_has_a_limit(level: Level) -> None:
    sender = Sender(took_s=100)
    row = level(3, Until(requests=1000), sender, stop_after_s=4)
    assert sender.cancelled == 3
    assert 4 + DRAIN_S <= lasted_s(row) <= 4 + DRAIN_S + 2 * levels.CLOCK_SAMPLE_S


def test_a_stop_does_not_wait_for_slots_that_have_not_started(level: Level) -> None:
    sender = Sender(took_s=1)
    row = level(4, Until(requests=1000), sender, request_s=400, stop_after_s=10)
    assert row.ended_by == "interrupt"
    assert lasted_s(row) <= 10 + 2 * levels.CLOCK_SAMPLE_S
    assert len(sender.of("measure")) == 0


def test_a_stop_does_not_wait_for_a_pause(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed, "FAILURE_PAUSE_S", 60)
    monkeypatch.setattr(closed, "FAILURE_PAUSE_MAX_S", 60)
    row = level(2, Until(requests=1000), Sender(ok=lambda _: False), stop_after_s=10)
    assert lasted_s(row) <= 10 + 2 * levels.CLOCK_SAMPLE_S


def turns(period_s: float) -> Callable[[], Awaitable[None]]:
    line = asyncio.Lock()

    async def wait_turn() -> None:
        async with line:
            await asyncio.sleep(period_s)

    return wait_turn


def test_a_turn_is_waited_for_before_each_request(level: Level) -> None:
    sender = Sender(took_s=0.01)
    level(4, Until(requests=8), sender, wait_turn=turns(2.0))
    starts = [at for at, _, _ in sender.sent]
    assert starts == [2.0 * turn for turn in range(1, 13)]
    assert [phase for _, _, phase in sender.sent] == ["warmup"] * 4 + ["measure"] * 8


@pytest.mark.parametrize("ended_by", ["duration", "interrupt"])
def test_nobody_in_the_line_starts_after_the_end(level: Level, ended_by: str) -> None:
    sender = Sender(took_s=0.01)
    stop_after_s = 120.5 if ended_by == "interrupt" else None
    row = level(100, Until(duration_s=20), sender, wait_turn=turns(1.0), request_s=0, stop_after_s=stop_after_s)
    assert row.ended_by == ended_by
    assert max(at for at, _, _ in sender.sent) == 120
    assert lasted_s(row) <= 121 + 2 * levels.CLOCK_SAMPLE_S


def test_a_cancelled_level_leaves_nothing_behind(level: Level) -> None:
    sender = Sender(took_s=100)
    with pytest.raises(asyncio.CancelledError):
        level(3, Until(requests=1000), sender, cancel_after_s=2)
    assert sender.cancelled == 3


def test_a_fault_of_ours_ends_the_level_at_once(level: Level) -> None:
    class Faulty(Sender):
        async def send(self, request: Request, phase: Phase, due_ns: int | None) -> Sent:
            if request.index == 5:
                raise ZeroDivisionError
            return await super().send(request, phase, due_ns)

    sender = Faulty(took_s=3)
    with pytest.raises(ZeroDivisionError):
        level(3, Until(requests=1000), sender)


def test_a_slot_stays_with_its_conversation_and_thinks_between_turns(level: Level) -> None:
    sender = Sender(took_s=1)
    row = level(1, Until(requests=5), sender, plan=conversations(turns=3, think_s=4))
    assert [one.index for one in sender.asked] == [0, 1, 2, 10, 11, 12]
    assert [one.at_s for one in sender.asked] == [0, 5, 10, 11, 16, 21]
    assert [one.due_s for one in sender.asked] == [None, 5, 10, None, 16, 21]  # the end of the answer, and the thought
    assert [one.phase for one in sender.asked] == ["warmup"] + ["measure"] * 5  # later turns count
    assert row.ended_by == "requests"


def test_a_failure_ends_a_conversation(level: Level) -> None:
    sender = Sender(took_s=1, ok=lambda index: index != 1)
    level(1, Until(requests=3), sender, plan=conversations(turns=3, think_s=4))
    assert [one.index for one in sender.asked] == [0, 1, 10, 11]


def test_a_thinker_does_not_hold_up_the_end(level: Level) -> None:
    sender = Sender(took_s=1)
    row = level(2, Until(duration_s=10), sender, plan=conversations(turns=2, think_s=4000))
    assert row.ended_by == "interrupt" or lasted_s(row) < 5000
    sender = Sender(took_s=1)
    row = level(1, Until(duration_s=10), sender, plan=conversations(turns=3, think_s=6))
    assert row.ended_by == "duration"
    assert lasted_s(row) <= 7 + 10 + 2 * levels.CLOCK_SAMPLE_S  # measuring began at 7, with the second turn


def test_a_wait_for_ones_turn_is_not_the_servers(level: Level) -> None:
    sender = Sender(took_s=0.01)
    level(1, Until(requests=3), sender, wait_turn=turns(2.0), plan=conversations(turns=2, think_s=0))
    assert [one.due_s for one in sender.asked] == [None] * 4


def test_a_data_set_that_is_used_up_ends_the_level_when_all_have_ended(level: Level) -> None:
    sender = Sender(took_s=3)
    row = level(3, Until(duration_s=100), sender, plan=requests(7))
    assert row.ended_by == "schedule"
    assert len(sender.asked) == 7
    assert sender.cancelled == 0


def test_the_row_counts_from_the_runs_start(level: Level) -> None:
    row = level(1, Until(requests=2), Sender(took_s=2))
    assert (row.start_us, row.end_us) == (1_000_000_000, 1_006_000_000)
    assert row.cpu_us > 0
    assert abs(row.clock_step_us) < 1_000_000
