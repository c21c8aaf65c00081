"""When a level ends, and which of its requests are warm-up."""

from loadgen.course import HOPELESS_FAILURES, Course, Until, until_of
from loadgen.record import LevelPlan


def course(slots: int, until: Until) -> Course:
    made = Course(until, slots=slots)
    for _ in range(slots):
        made.begin_slot()
    return made


def test_the_course_is_over_for_all_slots_at_once() -> None:
    made = course(2, Until(requests=1))
    assert [made.next_phase(now_ns) for now_ns in (0, 1, 2)] == ["measure", None, None]
    assert made.begin_slot() is None
    assert made.ended_by == "requests"


def test_errors_after_the_end_do_not_change_why_it_ended() -> None:
    made = course(1, Until(requests=1))
    made.next_phase(0)
    made.next_phase(1)
    for _ in range(HOPELESS_FAILURES):
        made.finished(ok=False)
    assert made.ended_by == "requests"


def test_a_look_ends_a_level_whose_time_is_over_though_nobody_starts() -> None:
    made = course(1, Until(duration_s=2))
    made.look(10**12)
    assert made.ended_by is None  # nothing is measured yet
    assert made.next_phase(5) == "measure"
    made.look(5 + 2 * 10**9 - 1)
    assert made.ended_by is None
    made.look(5 + 2 * 10**9)
    assert made.ended_by == "duration"


def test_a_level_without_measured_requests_of_its_own_still_warms_up() -> None:
    made = Course(Until(requests=0), slots=1)
    made.look(10**12)
    assert made.begin_slot() == "warmup"
    assert made.next_phase(1) is None


def test_an_open_loop_is_hopeless_after_two_seconds_of_failures() -> None:
    made = Course(Until(), rate_per_s=50)
    for failures in range(100):
        assert made.ended_by is None, failures
        made.finished(ok=False)
    assert made.ended_by == "errors"


def test_the_end_is_told_once() -> None:
    told: list[str] = []
    made = Course(Until(requests=1), slots=1, on_end=told.append)
    made.begin_slot()
    made.next_phase(0)
    made.next_phase(1)
    made.end("over-saturated")
    assert told == ["requests"]


def test_numbers_of_a_level_take_the_place_of_the_runs() -> None:
    run = Until(requests=5, duration_s=30, per_slot=10, errors=3)
    assert until_of(LevelPlan(0, 8), run) == run
    assert until_of(LevelPlan(0, 8, requests=7), run) == Until(requests=7, errors=3)
    assert until_of(LevelPlan(0, 8, requests=7, duration_s=9), run) == Until(requests=7, duration_s=9, errors=3)
