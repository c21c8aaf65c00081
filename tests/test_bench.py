"""The pure parts of the benchmarks: tests/bench/accuracy.py, peers.py and open_loop.py."""

import asyncio
import itertools
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.record import Header, LevelPlan, LevelRow, Row, RunWriter
from tests.bench import accuracy, open_loop, peers
from tests.bench.accuracy import Figures, Spread, Written
from tests.bench.peers import KEY, Load, Sent

MS = 1_000_000
START_US = 1_700_000_000_123_456  # 2023-11-14T22:13:20.123456Z
SALT = "5a17"


def header(counted_by: str = "guess") -> Header:
    return Header(
        loadgen="0",
        started_at="2023-11-14T22:13:20.123456Z",
        target="t",
        model="truth",
        api="chat",
        workload={},
        levels=[LevelPlan(0, 1)],
        seed=0,
        salt=SALT,
        slo=[],
        clock="kernel",
        host={},
        server={"prompt_tokens_from": counted_by},
        options={},
    )


def a_row(index: int, **changes: object) -> Row:
    row = Row(
        level=0,
        index=index,
        phase="measure",
        status="ok",
        error=None,
        http_status=200,
        retries=0,
        due_us=1000,
        sent_us=1010,
        connect_us=None,
        headers_us=1,
        end_us=90,
        events_us=[50, 70],
        events_tokens=None,
        answer_event=0,
        bounds=0,
        read_lag_us=0,
        prompt_tokens=100,
        output_tokens=2,
        reasoning_tokens=None,
        cached_tokens=None,
        tokens_from="usage",
        want_input_tokens=100,
        want_output_tokens=2,
        finish_reason="length",
    )
    return msgspec.structs.replace(row, **changes)


def a_level(ended_by: str = "requests") -> LevelRow:
    level = LevelRow(level=0, start_us=0, end_us=9, ended_by="requests", cpu_us=77, clock_step_us=0)
    return msgspec.structs.replace(level, ended_by=ended_by)


def write_run(directory: Path, rows: list[Row], level: LevelRow | None, head: Header | None = None) -> Path:
    with RunWriter(directory / "run", head or header()) as writer:
        for row in rows:
            writer.add(row)
        if level is not None:
            writer.add_level(level)
    return directory / "run"


def a_request(key: str, sent_ns: int, *stamps_ns: int, measured: bool = True) -> Sent:
    return Sent(key=key, measured=measured, sent_ns=sent_ns, stamps_ns=list(stamps_ns))


def test_truth_is_read_by_the_prompt() -> None:
    truth = accuracy.parse_truth("some words\t5 7 9\n\t1\n")
    assert truth == {"some words": Written(5, [7, 9]), "": Written(1, [])}


def test_a_run_tells_prompts_and_times(tmp_path: Path) -> None:
    planned = list(itertools.islice(peers.prompts(SALT), 3))
    rows = [a_row(2), a_row(0, phase="warmup", due_us=5, sent_us=5, events_us=[]), a_row(1, sent_us=None)]
    load = accuracy.read_run(write_run(tmp_path, rows, a_level()))
    measured_ns, warm_up_ns = (START_US + 1000) * 1000, (START_US + 5) * 1000
    stamps_ns = [(START_US + 1060) * 1000, (START_US + 1080) * 1000]
    assert load.requests == [
        a_request(planned[2][:KEY], measured_ns, *stamps_ns),
        a_request(planned[0][:KEY], warm_up_ns, measured=False),
    ]
    assert (load.cpu_us, load.cut) == (77, False)


def test_a_run_that_was_cut_says_so(tmp_path: Path) -> None:
    interrupted = accuracy.read_run(write_run(tmp_path / "a", [a_row(0)], a_level("interrupt")))
    killed = accuracy.read_run(write_run(tmp_path / "b", [], None))
    assert (interrupted.cut, interrupted.cpu_us) == (True, 77)
    assert (killed.cut, killed.cpu_us, killed.requests) == (True, None, [])


def test_prompts_of_a_server_that_counts_are_not_guessed_at(tmp_path: Path) -> None:
    run = write_run(tmp_path, [a_row(0)], a_level(), header("usage"))
    with pytest.raises(ValueError, match=r"counts tokens \(usage\)"):
        accuracy.read_run(run)


def test_figures_set_stamps_against_writes() -> None:
    load = Load(
        cpu_us=60,
        cut=False,
        requests=[
            a_request("warm", 0, 9 * MS, measured=False),
            a_request("a", 0, 52 * MS, 74 * MS),
            a_request("b", 10 * MS, 61 * MS, 81 * MS),
            a_request("unknown to the server", 0, MS),
            a_request("b, cut", 0),
        ],
    )
    truth = {
        "warm": Written(0, [0]),
        "a": Written(MS, [51 * MS, 71 * MS]),
        "b": Written(10 * MS, [60 * MS, 80 * MS]),
        "b, cut": Written(0, [50 * MS, 70 * MS]),
    }
    found = accuracy.figures("x", 2, load, truth, floor_us=5.0, note="n")
    assert (found.requests, found.missing, found.note) == (2, 2, "n")
    assert accuracy.of(found.ttft_ms) == pytest.approx([51.5, 51.99, 52.0])
    assert found.true_ttft_ms == Spread(50.0, 50.0, 50.0)
    assert found.itl_p99_ms == pytest.approx(21.98)
    assert found.true_itl_p99_ms == 20.0
    assert accuracy.of(found.error_ms) == pytest.approx([1.0, 2.94, 3.0])
    assert (found.cpu_us_per_token, found.cpu_over_floor) == (10.0, 2.0)


def test_nothing_measured_is_unknown_and_not_zero() -> None:
    found = accuracy.figures("x", 1, Load(cpu_us=5, cut=True, requests=[]), {}, floor_us=5.0)
    unknown = [value for name, value in msgspec.structs.asdict(found).items() if name not in ("streams", "client")]
    assert unknown == [0, 0, *[None] * 9, ""]


def test_throughput_counts_while_all_streams_are_going() -> None:
    s = 10**9
    requests = [
        a_request("a", 0, s // 2, measured=False),
        a_request("b", s, 2 * s, measured=False),
        a_request("c", 5 * s, 3 * s, 4 * s, 5 * s, 9 * s),
    ]
    assert accuracy.tokens_per_s(Load(cpu_us=0, cut=False, requests=requests)) == pytest.approx(3 / 4)
    assert accuracy.tokens_per_s(Load(cpu_us=0, cut=True, requests=requests)) == pytest.approx(4 / 8)
    assert accuracy.tokens_per_s(Load(cpu_us=0, cut=False, requests=requests[:2])) is None


@given(st.floats(min_value=0.001, max_value=1e6))
def test_a_number_keeps_three_figures_and_the_us(value: float) -> None:
    assert float(accuracy.short(value)) == pytest.approx(value, rel=0.0051, abs=0.00051)


def test_the_table_lines_up() -> None:
    spread = Spread(50.123, 51.0, 1234.5)
    full = Figures(
        streams=1000,
        client="loadgen",
        requests=3000,
        missing=0,
        ttft_ms=spread,
        true_ttft_ms=spread,
        itl_p99_ms=20.5,
        true_itl_p99_ms=20.25,
        error_ms=Spread(0.0031, 0.012, 1.5),
        cpu_us_per_token=12.34,
        cpu_over_floor=2.0,
        tokens_per_s=49123.4,
        others_share=0.034,
        note="VALID",
    )
    empty = accuracy.figures("httpx", 500, Load(cpu_us=None, cut=True, requests=[]), {}, None, "cut")
    lines = [accuracy.row(full), accuracy.row(empty)]
    assert " ".join(lines[0].split()) == (
        "1000 loadgen 50.1 51.0 1234 50.1 51.0 1234 20.5 20.2 0.003 0.012 1.50 12.3 2.00 49123 3000/3000 3% VALID"
    )
    assert lines[1].split() == ["500", "httpx", *["-"] * 16, "cut"]
    names = accuracy.head().splitlines()[1]
    ends = [names.index(name) + len(name) for name in ("floor", "requests", "others")]
    assert [line[end - 1 : end + 1] for line in lines for end in ends] == ["0 ", "0 ", "% ", *["- "] * 3]


def test_busy_is_all_but_idle_and_waiting_for_disks() -> None:
    ticks = "1 2 4 1000 2000 8 16 32 64 128"  # the last two, of guests, are in the first two already
    stat = f"cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 {ticks}\ncpu1 {ticks}\ncpu10 {ticks}\nintr 5\n"
    a_second = os.sysconf("SC_CLK_TCK")
    assert accuracy.parse_busy(stat, {0}) == 63 / a_second
    assert accuracy.parse_busy(stat, {1, 10}) == 126 / a_second


def test_three_minutes_are_enough_when_clients_keep_up() -> None:
    asked = accuracy.parse_args([])
    bench = accuracy.Bench(Path(), 0, 1, asked.rounds)
    assert asked.streams == [100, 500, 1000]
    clients = len(asked.streams) * (1 + len(peers.PEERS))
    assert clients * bench.limit_s / 2 < 150
    assert accuracy.parse_args(["7", "--rounds", "1"]).streams == [7]


def test_prompts_differ_in_what_the_server_keeps() -> None:
    some = [prompt[:KEY] for salt in ("httpx", "aiohttp") for prompt in itertools.islice(peers.prompts(salt), 500)]
    assert len(set(some)) == 1000
    assert {len(key) for key in some} == {KEY}
    assert not any('"' in key or "\\" in key for key in some)


def test_the_body_is_written_as_the_server_reads_it() -> None:
    content = peers.body("some words")
    assert b'"content":"some words"' in content
    assert b'"max_tokens":100' in content


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"choices": [{"delta": {"content": " token"}}]}, True),
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, False),
        ({"choices": [{"delta": {}}]}, False),
        ({"choices": []}, False),
    ],
)
def test_only_content_is_a_token(event: dict[str, list[dict[str, dict[str, str]]]], expected: bool) -> None:
    assert peers.carries_token(event) is expected


async def test_every_stream_sends_one_for_warm_up_and_its_rounds() -> None:
    bodies: list[bytes] = []

    async def stream(content: bytes, stamps_ns: list[int]) -> None:
        bodies.append(content)
        stamps_ns.append(len(bodies))

    planned = iter([(f"key {number}", b"%d" % number) for number in range(6)])
    load = await peers.closed_loop(stream, planned, streams=2, rounds=2, request_s=0, limit_s=10)
    assert sorted(bodies) == [b"%d" % number for number in range(6)]
    assert [one.measured for one in load.requests].count(False) == 2
    assert all(one.stamps_ns and one.sent_ns > 0 for one in load.requests)
    assert not load.cut


async def test_a_client_that_cannot_keep_up_is_cut() -> None:
    ended: list[int] = []

    async def stream(_: bytes, stamps_ns: list[int]) -> None:
        stamps_ns.append(1)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    load = await peers.closed_loop(stream, iter([("key", b"")]), streams=1, rounds=1, request_s=0, limit_s=0.001)
    assert load.cut
    assert [one.stamps_ns for one in load.requests] == [[1]]
    assert ended == [1]


async def test_a_failed_request_ends_the_load() -> None:
    async def stream(_: bytes, stamps_ns: list[int]) -> None:
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError, match="gone"):
        await peers.closed_loop(stream, iter([("key", b"")]), streams=1, rounds=1, request_s=0, limit_s=10)


def test_a_schedule_is_kept_or_missed_as_sent_and_as_arrived() -> None:
    rows = [a_row(i, due_us=i * 1000, sent_us=i * 1250 + 20, status="ok" if i else "failed") for i in range(5)]
    arrivals_ns = [
        START_US * 1000 - MS,
        *((START_US + i * 2000 + 30) * 1000 for i in range(5)),
    ]  # the first: a preflight
    level = LevelRow(level=0, start_us=0, end_us=8000, ended_by="duration", cpu_us=2000, clock_step_us=0)
    found = open_loop.pace(1000, START_US * 1000, rows, level, arrivals_ns)
    assert (found.requests, found.failed) == (5, 1)
    assert [found.sent_share, found.arrived_share] == pytest.approx([0.8, 0.5])
    assert accuracy.of(found.send_lag_ms) == pytest.approx([0.52, 1.01, 1.02])
    assert accuracy.of(found.arrival_lag_ms) == pytest.approx([2.03, 3.99, 4.03])
    assert found.cpu_share == 0.25
    assert len(open_loop.row(found, 0.1)) > sum(open_loop.WIDTHS) - 1
