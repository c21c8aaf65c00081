"""Public bug reports about benchmarks and servers, each with its stimulus on a real socket: one request, one row.

A test has the name of its case. Times of the cases are a quarter or less here, and are compared with the times at
which the server wrote. The cases that need more than one request are tested where their subject is:

    the load       B39 test_schedule, test_open, load/test_arrivals; B41 test_closed, test_open, test_client_findings;
                   B42, B43 test_transport; B44 test_client_findings, test_selfcheck
    the prompts    B45 test_text, test_run, test_workload_findings; B47 test_text, test_tokens, load/test_lengths;
                   B48 test_preflight
    the server     B49, B50, B61 test_preflight; B58 test_endpoint, test_transport_connect; B62 test_tls, test_endpoint
    the machine    B34 test_clock, test_client_findings; B52 test_room, test_run;
                   B56 test_run, test_app, test_nothing_lost; B57 test_nothing_lost
    the numbers    B24, B35 test_window; B30, B31 test_validity; B36 test_closed, test_preflight;
                   B37 test_answer_findings
"""

import asyncio
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from analysis import metrics, records
from loadgen.exchange import Limits
from loadgen.record import Header, LevelPlan, Row, RunWriter
from tests.fakes import (
    CLOSE,
    DONE,
    FIN,
    RESET,
    ROLE,
    SILENCE,
    At,
    Script,
    Server,
    Step,
    content,
    delta,
    event,
    in_turn,
    one_row,
    response,
    serve,
    stream,
    usage,
)

A, B, C = content("a"), content("b"), content("c")
CASES = (
    *(1, 3, 4, 5, 7, 8, 9, 10, 11, 13, 15, 17, 19, 20, 21, 23, 24, 25, 27, 28, 30, 31, 33, 34, 35, 36, 37, 39, 41),
    *(42, 43, 44, 45, 47, 48, 49, 50, 52, 54, 56, 57, 58, 61, 62, 63),
)


async def exchange(script: Script, **changes: Any) -> tuple[Row, Server]:
    async with serve(script) as server:
        return await one_row(server.url, **changes), server


async def row_of(*steps: Step, end: bool = True, **changes: Any) -> Row:
    return (await exchange(stream(*steps, end=end), **changes))[0]


def outcome(row: Row) -> str:
    return row.status if row.error is None else row.error.kind


def told(row: Row) -> dict[str, Any]:
    """All that the row says of the answer, but for times."""
    names = ("status", "error", "events_tokens", "answer_event", "finish_reason")
    counts = ("prompt_tokens", "output_tokens", "reasoning_tokens", "cached_tokens", "tokens_from")
    return {"events": len(row.events_us)} | {name: getattr(row, name) for name in (*names, *counts)}


def measured(row: Row, directory: Path) -> records.Requests:
    """The row as the analysis reads it back."""
    header = Header(
        loadgen="0", started_at="", target="", model="", api="chat", workload={"name": "x"}, levels=[LevelPlan(0, 1)],
        seed=0, salt="", slo=[], clock="kernel", host={}, server={}, options={},
    )  # fmt: skip
    with RunWriter(directory / "run", header) as writer:
        writer.add(row)
    return records.read(directory / "run").requests[0]


def tpot_ms(row: Row, directory: Path) -> float:
    requests = measured(row, directory)
    return float(metrics.tpot_ms(requests, metrics.event_tokens(requests))[0])


def test_every_case_is_tested_here_or_in_a_file_that_is_named() -> None:
    index = __doc__ or ""
    here = {name[5:8].upper() for name in globals() if re.match(r"test_b\d\d_", name)}
    assert here | set(re.findall(r"\bB\d\d\b", index)) == {f"B{case:02}" for case in CASES}
    named = re.findall(r"[\w/]*test_\w+", index)
    assert [name for name in named if not (Path(__file__).parent / f"{name}.py").exists()] == []


# 1. Stream parsing


async def test_b01_no_space_after_the_colon() -> None:
    tight = b'data:{"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n', b"data:[DONE]\n\n"
    row = await row_of(*tight)
    assert outcome(row) == "ok"
    assert told(row) == told(await row_of(*(piece.replace(b"data:", b"data: ", 1) for piece in tight)))


async def test_b03_comments_are_no_events() -> None:
    a = content("a")
    pings: list[Step] = [At(20), b":\n\n", At(40), b": OPENROUTER PROCESSING\n\n", At(60), ROLE]
    row, server = await exchange(stream(*pings, At(80), a, FIN, usage(5, 1), b": x-latency=3\n\n", DONE))
    assert (outcome(row), row.output_tokens, row.bounds) == ("ok", 1, 0)
    server.assert_stamps(row, row.events_us, a)


async def test_b04_several_events_in_one_read() -> None:
    row = await row_of(A + B + C, FIN, usage(5, 3), DONE)
    assert (outcome(row), len(row.events_us), row.events_tokens) == ("ok", 3, [1, 1, 1])
    assert len(set(row.events_us)) == 1
    assert row.bounds == 2


async def test_b05_one_event_across_reads() -> None:
    pieces = [b"da", b'ta: {"choi', b'ces":[{"index":0,"delta":{"content":"a"}}]}', b"\n", b"\n"]
    steps: list[Step] = []
    for turn, piece in enumerate(pieces):
        steps += [At(5 * turn), piece]
    row, server = await exchange([*stream(*steps, end=False), *stream(FIN, DONE)[1:]])
    assert (outcome(row), len(row.events_us)) == ("ok", 1)
    assert row.sent_us is not None
    last = server.written[len(pieces)]
    assert row.events_us[0] >= last.begun_ns // 1000 - row.sent_us - 1


async def test_b05_one_byte_a_write() -> None:
    whole = ROLE + A + b": ping\r\n\r\n" + B.replace(b"\n", b"\r\n") + FIN + usage(5, 2) + DONE
    row = await row_of(*(whole[place : place + 1] for place in range(len(whole))))
    assert told(row) == told(await row_of(whole))
    assert outcome(row) == "ok"


async def test_b07_data_over_several_lines_beside_other_fields() -> None:
    lines = b'event: message\nid: 7\nretry: 1000\ndata: {"choices":\ndata: [{"index":0,"delta":{"content":"a"}}]}\n\n'
    assert told(await row_of(lines, FIN, DONE)) == told(await row_of(A, FIN, DONE))


async def test_b07_the_last_event_lacks_its_blank_line() -> None:
    assert outcome(await row_of(A, FIN, b"data: [DONE]")) == "ok"
    assert outcome(await row_of(A, FIN.rstrip())) == "ok"


async def test_b07_two_objects_under_one_blank_line() -> None:
    row = await row_of(A.rstrip() + b"\n" + usage(5, 1), DONE)
    assert (outcome(row), len(row.events_us), row.output_tokens) == ("ok", 1, 1)


async def test_b08_a_line_of_a_megabyte() -> None:
    big = event({"choices": [{"delta": {"content": "a"}, "logprobs": "x" * 2**20}]})
    row = await row_of(ROLE, big, FIN, usage(5, 1), DONE)
    assert (outcome(row), len(row.events_us)) == ("ok", 1)


async def test_b08_a_line_over_the_limit_fails_its_request_only() -> None:
    limit = 2**20
    big = event({"choices": [{"delta": {"content": "a"}, "logprobs": "x" * (limit + 1)}]})
    async with serve(in_turn(stream(ROLE, big, FIN, DONE), stream(A, FIN, DONE))) as server:
        rows = await asyncio.gather(*(one_row(server.url, line_limit_bytes=limit) for _ in range(2)))
    assert sorted(map(outcome, rows)) == ["ok", "protocol"]
    (error,) = [row.error for row in rows if row.error]
    assert f"an event of over {limit} bytes" in error.message


@pytest.mark.parametrize(
    ("early", "late"),
    [
        (event({"id": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]}), b""),
        (b"", usage(7, 1)),
        (event({"id": "x"}), b""),
        (event({"choices": None}), b""),
    ],
)
async def test_b09_no_choices(early: bytes, late: bytes) -> None:
    row, server = await exchange(stream(early + b": \n\n", At(30), A, FIN, late + DONE))
    assert (outcome(row), row.prompt_tokens) == ("ok", 7 if late else None)
    server.assert_stamps(row, row.events_us, A)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ([FIN], "ok"),
        ([delta(finish_reason=None), DONE], "ok"),
        ([usage(5, 1)], "ok"),
        ([], "truncated"),
    ],
)
async def test_b10_terminal_markers(end: list[bytes], expected: str) -> None:
    row = await row_of(ROLE, A, *end)
    assert (outcome(row), len(row.events_us)) == (expected, 1)
    unframed: Script = [b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n", ROLE, A, *end, CLOSE]
    assert outcome((await exchange(unframed))[0]) == expected


async def test_b10_data_after_the_end_marker_is_ignored_and_not_waited_for() -> None:
    begun_s = asyncio.get_running_loop().time()
    row = await row_of(A, FIN, usage(5, 1), DONE, content("late"), usage(5, 99), SILENCE, limits=Limits())
    assert asyncio.get_running_loop().time() - begun_s < 5  # less than any time limit
    assert (outcome(row), len(row.events_us), row.output_tokens) == ("ok", 1, 1)


ENGINE_DIED = {"error": {"message": "engine died", "type": "InternalServerError", "code": 500}}


@pytest.mark.parametrize(
    ("script", "message", "tokens"),
    [
        (stream(ROLE, A, event(ENGINE_DIED), DONE), "engine died", 1),
        (stream(ROLE, A, event({"error": "engine died"}), DONE), "engine died", 1),
        (stream(event(ENGINE_DIED), DONE), "engine died", None),
        (stream(ROLE, A, delta(finish_reason="error"), DONE), "finish_reason error", 1),
        (response(200, ENGINE_DIED), "engine died", None),
    ],
)
async def test_b11_an_error_inside_a_200(script: Script, message: str, tokens: int | None) -> None:
    row, _ = await exchange(script)
    assert row.error is not None
    assert (row.http_status, row.error.kind, row.output_tokens) == (200, "stream_error", tokens)
    assert message in row.error.message


@pytest.mark.parametrize(("end", "last_chunk"), [([At(20), RESET], False), ([At(20), CLOSE], False), ([], True)])
async def test_b13_connection_lost_in_the_middle(end: Sequence[Step], last_chunk: bool) -> None:
    row, server = await exchange(stream(ROLE, At(5), A, At(10), B, *end, end=last_chunk))
    assert (outcome(row), row.events_tokens, row.output_tokens) == ("truncated", None, 2)
    assert row.end_us is not None
    server.assert_stamps(row, row.events_us, A, B)


# 2. Metrics


async def test_b15_ttft_is_not_taken_at_the_role(tmp_path: Path) -> None:
    for role in (ROLE, delta(role="assistant", content=None), delta(role="assistant")):
        row, server = await exchange(stream(At(5), role, At(40), A, At(45), B, FIN, usage(5, 2), DONE))
        server.assert_stamps(row, row.events_us, A, B)
    requests = measured(row, tmp_path)
    assert metrics.ttft_ms(requests)[0] == row.events_us[0] / 1000
    (itl_ms,) = metrics.itl_ms(requests, requests.ok)
    assert itl_ms == pytest.approx(tpot_ms(row, tmp_path / "again"))


async def test_b17_reasoning_is_output(tmp_path: Path) -> None:
    first, second = delta(reasoning_content="t1"), delta(reasoning_content="t2")
    row, server = await exchange(stream(At(20), first, At(25), second, At(30), A, FIN, usage(5, 3), DONE))
    server.assert_stamps(row, row.events_us, first, second, A)
    assert (row.output_tokens, row.events_tokens, row.answer_event) == (3, [1, 1, 1], 2)
    assert metrics.ttfat_ms(measured(row, tmp_path))[0] == row.events_us[2] / 1000


async def test_b17_a_run_cut_inside_reasoning_is_a_success_without_an_answer() -> None:
    row = await row_of(ROLE, delta(reasoning="t1"), delta(reasoning="t2"), delta(finish_reason="length"), usage(5, 2))
    assert (outcome(row), row.answer_event, row.output_tokens) == ("ok", None, 2)
    assert row.finish_reason == "length"


@pytest.mark.parametrize("running", [False, True])
async def test_b19_hidden_reasoning(running: bool, tmp_path: Path) -> None:
    first, second = content("answer", 399 if running else None), content("!", 400 if running else None)
    counted = usage(10, 400, completion_tokens_details={"reasoning_tokens": 398})
    row = await row_of(At(50), first, At(60), second, FIN, counted, DONE)
    assert (row.output_tokens, row.reasoning_tokens) == (400, 398)
    assert tpot_ms(row, tmp_path) == (row.events_us[1] - row.events_us[0]) / 1000


async def test_b20_reasoning_is_not_counted_twice() -> None:
    row = await row_of(A, FIN, usage(5, 100, completion_tokens_details={"reasoning_tokens": 60}), DONE)
    assert (row.output_tokens, row.reasoning_tokens) == (100, 60)


async def test_b21_an_event_is_not_a_token(tmp_path: Path) -> None:
    events = [content("a b c", 3), content(" d e f", 6), content(" g", 7)]
    row, server = await exchange(
        stream(At(25), events[0], At(33), events[1], At(36), events[2], FIN, usage(5, 7), DONE)
    )
    server.assert_stamps(row, row.events_us, *events)
    assert (row.events_tokens, row.output_tokens) == ([3, 3, 1], 7)
    assert tpot_ms(row, tmp_path) == (row.events_us[2] - row.events_us[0]) / 1000 / (7 - 3)
    unknown = await row_of(content("a b c"), content(" d e f"), content(" g"), FIN, usage(5, 7), DONE)
    assert (unknown.events_tokens, unknown.output_tokens) == (None, 7)


async def test_b23_tool_calls_are_output() -> None:
    said = content("I", 1)
    named = delta(17, tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "{"}}])
    rest = delta(31, tool_calls=[{"index": 0, "function": {"arguments": "}"}}])
    end = delta(finish_reason="tool_calls"), usage(9, 31), DONE
    row, server = await exchange(stream(ROLE, At(25), said, At(75), named, At(120), rest, *end))
    server.assert_stamps(row, row.events_us, said, named, rest)
    assert (row.output_tokens, row.events_tokens, row.finish_reason) == (31, [1, 16, 14], "tool_calls")
    first = await row_of(named, rest, *end)
    assert (outcome(first), first.answer_event, len(first.events_us)) == ("ok", 0, 2)


async def test_b25_what_was_asked_for_is_never_what_came() -> None:
    last = event({"choices": [{"text": "", "delta": {}}], "usage": {"prompt_tokens": 5, "completion_tokens": 3}})
    row = await row_of(A, B, C, last, DONE)
    assert (row.output_tokens, row.tokens_from, row.want_output_tokens) == (3, "usage", 2)
    none = await row_of(A, B, C, FIN, DONE)
    assert (none.output_tokens, none.tokens_from, none.events_tokens, none.prompt_tokens) == (3, "events", None, None)
    tokenized = await row_of(A, B, C, FIN, DONE, count_text=len)
    assert (tokenized.output_tokens, tokenized.tokens_from) == (3, "tokenizer")


@pytest.mark.parametrize(
    ("counts", "prompt_tokens", "output"),
    [
        ({"prompt_tokens": 12, "total_tokens": 12}, 12, (2, "events")),
        (None, None, (2, "events")),
        ({"prompt_tokens": "12", "completion_tokens": "2"}, 12, (2, "usage")),
        ({"completion_tokens": 2}, None, (2, "usage")),
    ],
)
async def test_b27_usage_partly_missing(counts: Any, prompt_tokens: int | None, output: tuple[int, str]) -> None:
    row = await row_of(A, B, FIN, event({"choices": [], "usage": counts}), DONE)
    assert (outcome(row), row.prompt_tokens, (row.output_tokens, row.tokens_from)) == ("ok", prompt_tokens, output)


async def test_b28_the_joined_text_is_tokenized_once() -> None:
    asked: list[str] = []

    def count(text: str) -> int:
        asked.append(text)
        return 2

    row = await row_of(content("Hel"), content("lo"), content(" world"), FIN, DONE, count_text=count)
    assert (row.output_tokens, row.tokens_from, row.events_tokens) == (2, "tokenizer", None)
    assert asked == ["Hello world"]


async def test_b30_a_failed_request_is_one_row_of_its_kind() -> None:
    bad, good = response(500, {"error": "boom"}), stream(A, FIN, usage(5, 1), DONE)
    async with serve(in_turn(*[bad] * 4, good)) as server:
        rows = [await one_row(server.url) for _ in range(10)]
    assert [outcome(row) for row in rows] == ["http_status"] * 4 + ["ok"] * 6
    assert [row.output_tokens for row in rows] == [None] * 4 + [1] * 6


async def test_b33_the_last_output_ends_the_request_not_the_stream(tmp_path: Path) -> None:
    row, server = await exchange(stream(At(20), A, FIN, At(60), usage(5, 1), At(90), DONE))
    server.assert_stamps(row, [*row.events_us, row.end_us], A, DONE)
    requests = measured(row, tmp_path)
    assert metrics.e2e_ms(requests)[0] == row.events_us[-1] / 1000
    gaps_ms = metrics.itl_ms(requests, requests.ok).sum()
    assert metrics.ttft_ms(requests)[0] + gaps_ms == metrics.e2e_ms(requests)[0]


async def test_b37_a_buffered_stream_has_gaps_of_nothing() -> None:
    events = [content(str(place)) for place in range(50)]
    row = await row_of(At(50), b"".join(events) + FIN + usage(5, 50) + DONE)
    assert (outcome(row), len(row.events_us), row.bounds) == ("ok", 50, 49)
    assert sum(after - before < 100 for before, after in pairwise(row.events_us)) == 49


# 5. Robustness


async def test_b54_a_server_that_never_answers_costs_one_request() -> None:
    row, _ = await exchange([SILENCE], limits=Limits(first_s=0.1))
    assert (outcome(row), row.http_status, row.events_us) == ("timeout_first", None, [])


async def test_b54_one_token_now_and_then() -> None:
    row = await row_of(A, SILENCE, limits=Limits(idle_s=0.15))
    assert (outcome(row), len(row.events_us)) == ("timeout_idle", 1)
    drip: list[Step] = [step for turn in range(20) for step in (At(20 * turn), A)]
    row = await row_of(*drip, limits=Limits(total_s=0.15))
    assert outcome(row) == "timeout_total"
    assert len(row.events_us) > 1


# 6. Several choices


async def test_b63_several_choices_end_when_all_have() -> None:
    turns = [delta(index=turn % 2, content="x") for turn in range(4)]
    finished = [delta(index=choice, finish_reason="stop") for choice in (0, 1)]
    row = await row_of(*turns[:3], finished[0], turns[3], finished[1], usage(5, 4), DONE)
    assert (outcome(row), row.output_tokens) == ("ok", 4)
    assert outcome(await row_of(*turns[:3], finished[0], turns[3])) == "truncated"
