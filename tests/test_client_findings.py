from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from analysis.client_findings import cpu_share
from analysis.records import Ended
from tests import fakes_run as fakes
from tests.fakes_run import findings

if TYPE_CHECKING:
    from analysis.evidence import Finding

FAILED: dict[str, Any] = {"status": "failed", "error": {"kind": "rate_limited", "message": "slow down"}}


def options(**changes: Any) -> dict[str, Any]:
    return {**fakes.header()["options"], **changes}


@pytest.mark.parametrize(
    ("clock", "bounds", "lag_us", "codes"),
    [
        ("kernel", 0, 50_000, set()),  # stamps are the kernel's, and exact: late reads do no harm
        ("kernel", 1, 900, {"stamp-bounds"}),
        ("kernel", 1, 1_100, {"stamp-bounds", "client-lag"}),
        ("user", 0, 900, {"clock-user"}),
        ("user", 0, 1_100, {"clock-user", "client-lag"}),
        ("user", 0, None, {"clock-user"}),
    ],
)
def test_client_lag(clock: str, bounds: int, lag_us: int | None, codes: set[str]) -> None:
    found = findings(fakes.clean(bounds=bounds, read_lag_us=lag_us), clock=clock)
    assert found.keys() == codes
    assert "client-lag" not in found or found["client-lag"].severity == "error"


def test_client_lag_is_measured_by_the_gaps() -> None:
    assert "client-lag" not in findings(fakes.clean(itl_us=40_000, read_lag_us=1_900), clock="user")


@pytest.mark.parametrize(("cpu_us", "trips"), [(24e6, False), (24.1e6, True)])
def test_client_cpu(cpu_us: float, trips: bool) -> None:
    found = findings(fakes.clean(), fakes.ended(cpu_us=int(cpu_us)))
    assert ("client-cpu" in found) == trips
    assert not trips or found["client-cpu"].severity == "error"


def test_little_nominal_concurrency() -> None:
    five = [{"level": 0, "concurrency": fakes.SLOTS + 1}]
    assert findings(fakes.clean(), levels=five)["little"].severity == "error"
    used_up = fakes.ended(ended_by="requests")
    assert findings(fakes.clean(), used_up, levels=five)["little"].severity == "error"
    assert findings(fakes.clean(), used_up, levels=five, options=options(workers=2))["little"].severity == "warning"
    assert findings(fakes.clean(), fakes.ended(ended_by="enough"), levels=five)["little"].severity == "error"
    assert findings(fakes.clean(), fakes.ended(ended_by="schedule"), levels=five)["little"].severity == "warning"
    short = fakes.closed_loop(fakes.SLOTS, each=8)
    assert findings(short, levels=five)["little"].severity == "warning"
    assert findings(fakes.with_some(1, **FAILED), levels=five)["little"].severity == "warning"
    assert "little" not in findings(fakes.clean(), levels=five, options=options(max_rps="2/s"))
    assert "little" not in findings(fakes.closed_loop(fakes.SLOTS, each=8))


def test_little_throughput_times_latency() -> None:
    """One of four streams hangs through the window: in flight, but never through."""
    rows = fakes.closed_loop(3, each=100)
    hanging = fakes.row(len(rows), 0, (60_000_000,), phase="warmup")
    found = findings([*rows, hanging])["little"]
    assert found.severity == "error"
    assert "4 in flight, but throughput times latency is 3:" in found.message


@pytest.mark.parametrize(("step_us", "trips"), [(0, False), (1000, False), (1001, True), (-1001, True), (None, False)])
def test_clock_step(step_us: int | None, trips: bool) -> None:
    found = findings(fakes.clean(), fakes.ended(clock_step_us=step_us))
    assert ("clock-step" in found) == trips
    assert not trips or found["clock-step"].severity == "error"


def test_cpu_share_is_unknown_without_the_level_row() -> None:
    assert cpu_share(None) is None
    assert cpu_share(msgspec.convert(fakes.ended(end_us=0), Ended)) is None


def test_what_the_header_says() -> None:
    assert findings(fakes.clean(), clock="user")["clock-user"].severity == "warning"
    assert findings(fakes.clean(), options=options(insecure=True))["insecure-tls"].severity == "warning"


# The open loop


def paced(rows: list[dict[str, Any]], per_s: float = 10, *, cap: int | None = None, **end: Any) -> dict[str, Finding]:
    """What is found where `rows` were to come at `per_s`. They take all of the time that they have."""
    facts: dict[str, Any] = {
        "ended_by": "schedule",
        "due": len(rows),
        "dropped": 0,
        "waited_max": None if cap is None else 1,
    } | end
    plan = [{"level": 0, "rate_per_s": per_s}]
    return findings(rows, fakes.ended(**facts), levels=plan, arrivals="constant", options=options(max_concurrency=cap))


def test_a_kept_schedule_has_no_finding() -> None:
    assert paced(fakes.open_loop()) == {}
    assert paced(fakes.open_loop(lag_us=900), cap=100, waited_max=0) == {}


@pytest.mark.parametrize(("lag_us", "took_us", "trips"), [(1_100, 280_000, True), (1_100, 600_000, False)])
def test_send_lag_is_measured_by_the_ttft(lag_us: int, took_us: int, trips: bool) -> None:
    """A third of each request is its TTFT."""
    found = paced(fakes.open_loop(lag_us=lag_us, took_us=took_us))
    assert ("send-lag" in found) == trips
    assert not trips or found["send-lag"].severity == "error"


def test_a_connection_that_takes_long_is_no_send_lag() -> None:
    late = [row | {"connect_us": row["due_us"] + 100} for row in fakes.open_loop(lag_us=5_000)]
    assert "send-lag" not in paced(late)


def test_waiting_behind_the_cap_is_no_lag_of_the_client() -> None:
    late = fakes.open_loop(lag_us=5_000)  # two are in flight when one is due
    found = paced(late, cap=2, waited_max=3)["send-lag"]
    assert found.severity == "warning"
    assert "waited behind --max-concurrency 2 (up to 3 at a time), and TTFT holds the wait" in found.message
    assert paced(late, cap=2, waited_max=None)["send-lag"].severity == "warning"
    assert paced(late, cap=2, waited_max=0)["send-lag"].severity == "error"
    assert paced(late)["send-lag"].severity == "error"


def test_a_cap_that_was_reached_excuses_only_who_found_no_place() -> None:
    late = fakes.open_loop(lag_us=5_000)
    found = paced(late, cap=3)["send-lag"]
    assert found.severity == "error"
    assert "requests that found a place free were sent 5 ms after they were due" in found.message
    held = [
        row | {"events_us": [300_000, 3_000_000], "end_us": 3_000_000} if row["index"] == 300 else row for row in late
    ]
    in_time = [row | ({} if 301 <= row["index"] < 330 else {"sent_us": row["due_us"]}) for row in held]
    assert paced(in_time, cap=3)["send-lag"].severity == "warning"
    never = [fakes.row(900 + i, None, (), due_us=1, status="cancelled", end_us=None) for i in range(9)]
    assert paced([*late, *never], cap=3)["send-lag"].severity == "error"


def stretched(share: float) -> list[dict[str, Any]]:
    """Sent evenly, at this share of the rate they were due at."""
    return [row | {"sent_us": round(row["due_us"] / share)} for row in fakes.open_loop()]


@pytest.mark.parametrize(("share", "trips"), [(0.991, False), (0.989, True), (0.5, True)])
def test_rate_missed(share: float, trips: bool) -> None:
    found = paced(stretched(share))
    assert ("rate-missed" in found) == trips
    assert not trips or found["rate-missed"].severity == "error"


def test_rate_missed_says_whose_fault_it_is() -> None:
    message = paced(stretched(0.5))["rate-missed"].message
    assert message == (
        "requests were sent at 50 % of the schedule's rate: "
        "the client did not keep up; use --workers, or lower the rate"
    )
    message = paced(stretched(0.5), cap=1, waited_max=290)["rate-missed"].message
    assert "they waited behind --max-concurrency 1 (up to 290 at a time); TTFT holds the wait" in message


def test_dropped_requests_miss_the_rate_but_not_after_an_interrupt() -> None:
    found = paced(fakes.open_loop(), due=618, dropped=18)["rate-missed"]
    assert "97.1 % of the schedule's rate (18 of 618 were never sent)" in found.message
    assert paced(fakes.open_loop(), due=618, dropped=18, ended_by="interrupt") == {}


def test_over_saturated() -> None:
    """Each request takes 50 ms longer than the one before: half a second more every second."""
    found = paced(fakes.open_loop(grows_us=50_000))
    assert found.keys() == {"over-saturated"}
    assert found["over-saturated"].severity == "error"
    assert "over-saturated" not in paced(fakes.open_loop(grows_us=500))


def test_a_level_that_was_stopped_is_over_saturated_whatever_its_window() -> None:
    """Ten come each second, none ends: at 6 s 61 are in flight."""
    cut = {"end_us": 60_000_000, "events_us": [], "events_tokens": [], "answer_event": None, "status": "cancelled"}
    rows = [row | cut for row in fakes.open_loop()[:61]]
    found = paced(rows, ended_by="over-saturated")["over-saturated"]
    assert found.severity == "error"
    assert found.message == (
        "the level was stopped after 6 s: 61 requests were in flight, 31 at half that time, and growing: "
        "the server cannot keep this rate; lower it"
    )
    capped = paced(rows, ended_by="over-saturated", due=70, dropped=9)
    assert "rate-missed" not in capped
    assert "70 requests were in flight or waiting" in capped["over-saturated"].message
    assert paced([], ended_by="over-saturated")["over-saturated"].severity == "error"


def test_filling_up_is_not_over_saturated() -> None:
    """From an empty server: the second half of the window is steady."""
    assert paced(fakes.open_loop(took_us=10_000_000)).keys() == {"settling"}


@pytest.mark.parametrize("arrivals", ["ramp:2..20", "trace:day.csv"])
def test_a_changing_rate_is_not_over_saturated(arrivals: str) -> None:
    rows = fakes.open_loop(grows_us=50_000)
    found = findings(rows, fakes.ended(ended_by="schedule"), levels=[{"level": 0, "rate_per_s": 10}], arrivals=arrivals)
    assert "over-saturated" not in found
    assert "little" not in found or found["little"].severity == "warning"


def test_little_in_the_open_loop_finds_lost_rows() -> None:
    """A stream hangs through the window: in flight, but never through."""
    hanging = [fakes.row(1000 + i, 1_000 + i, (90_000_000,), phase="warmup") for i in range(3)]
    assert paced([*fakes.open_loop(), *hanging], ended_by="interrupt")["little"].severity == "warning"
    found = paced([*fakes.open_loop(), *hanging])
    assert found["little"].severity == "error"
    assert "5.8 in flight, but throughput times latency is 2.8" in found["little"].message


# Conversations in the closed loop


def late_turns(lag_us: int, **changes: Any) -> list[dict[str, Any]]:
    """Sent so long after their users had thought. TTFT is 100 ms."""
    rows = fakes.conversations(**changes)
    return [row | {"due_us": row["sent_us"] - (lag_us if row["turn"] else 0)} for row in rows]


@pytest.mark.parametrize(("lag_us", "trips"), [(4_900, False), (5_100, True)])
def test_a_turn_that_is_sent_late_is_a_lag_of_the_client(lag_us: int, trips: bool) -> None:
    """It counts from when it was due, and other findings are blind to it: reads in time, and slots hardly idle."""
    found = findings(late_turns(lag_us), levels=[{"level": 0, "concurrency": 4}])
    assert found.keys() - {"few-samples"} == ({"send-lag"} if trips else set())
    if trips:
        assert found["send-lag"].severity == "error"
        assert (
            "turns of conversations were sent 5.1 ms after they were due (p99; limit 5 ms)" in found["send-lag"].message
        )


def test_a_closed_loop_without_conversations_has_no_schedule_to_miss() -> None:
    late = [row | {"due_us": row["sent_us"] - 50_000} for row in fakes.clean()]
    assert "send-lag" not in findings(late)


@pytest.mark.parametrize(
    ("each", "think_us", "end_us", "severity"),
    [(10, 3_000_000, 21_080_000, None), (4, 10_000_000, 31_400_000, "warning")],
)
def test_thoughts_across_the_ends_of_the_window_are_no_idle_slots(
    each: int, think_us: int, end_us: int, severity: str | None
) -> None:
    """Users are thinking where it ends, or it sees few requests of each."""
    rows = fakes.conversations(each=each, turns=2, think_us=think_us)
    found = findings([row for row in rows if row["sent_us"] <= end_us], levels=[{"level": 0, "concurrency": 4}])
    assert (found["little"].severity if "little" in found else None) == severity


def test_who_hardly_thinks_excuses_no_idle_slot() -> None:
    """A tenth stands idle in a window of ten requests a slot."""
    rows = fakes.conversations(slots=9, each=3, think_us=1)
    found = findings(rows, levels=[{"level": 0, "concurrency": 10}])["little"]
    assert found.severity == "error"
    assert " requests were in flight, not 10: slots stood idle" in found.message


def test_a_thinking_user_keeps_the_slot() -> None:
    assert findings(fakes.conversations(), levels=[{"level": 0, "concurrency": 4}]) == {}
    found = findings(fakes.conversations(), levels=[{"level": 0, "concurrency": 5}])["little"]
    assert (found.severity, found.message[:60]) == (
        "error",
        "1.31 requests were in flight and 2.69 users thought, not 5: ",
    )
