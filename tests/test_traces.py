import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from workloads.traces import Trace, read, replay_us

GOLDEN = Path(__file__).parent / "golden" / "traces"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"

Read = Callable[[str | bytes], Trace]


@pytest.fixture
def read_text(tmp_path: Path) -> Read:
    def read_text(content: str | bytes) -> Trace:
        file = tmp_path / "file.txt"
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return read(file)

    return read_text


def listed(numbers: NDArray[np.int64] | None) -> list[int] | None:
    return None if numbers is None else numbers.tolist()


def row(at_ms: float = 0, tokens: int = 1000, output: int = 5, ids: object = (1, 2), **more: object) -> str:
    return json.dumps({"timestamp": at_ms, "input_length": tokens, "output_length": output, "hash_ids": ids, **more})


# Forms


@pytest.mark.parametrize(
    ("file", "offsets_us", "input_tokens", "output_tokens"),
    [
        ("azure_2023.csv", [0, 4_314_579, 4_541_877, 4_541_877], [374, 396, 879, 91], [44, 109, 55, 16]),
        ("azure_2024.csv", [0, 9930, 27_265], [2162, 2399, 76], [5, 6, 15]),
        ("azure_2025.csv", [0, 1_500_000], [1482, 310], [82, 14]),
        ("burstgpt_1.csv", [0, 40_000_000, 1_101_000_000], [472, 1087, 417], [18, 230, 276]),
        ("burstgpt_3.csv", [0, 500_000], [906, 36], [446, 29]),
        ("mooncake.jsonl", [0, 0, 3_052_000, 3_052_500], [6758, 1024, 513, 28], [500, 490, 1, 445]),
        ("plain.txt", [0, 0, 500_000, 7_500_001], None, None),
        ("plain_iso.txt", [0, 500_000, 2_500_000], None, None),
    ],
)
def test_each_form(
    file: str, offsets_us: list[int], input_tokens: list[int] | None, output_tokens: list[int] | None
) -> None:
    trace = read(GOLDEN / file)
    assert trace.offsets_us.tolist() == offsets_us
    assert listed(trace.input_tokens) == input_tokens
    assert listed(trace.output_tokens) == output_tokens
    assert trace.name == file.split(".")[0]
    assert trace.digest == hashlib.sha256((GOLDEN / file).read_bytes()).hexdigest()


def test_blocks_of_a_prompt() -> None:
    trace = read(GOLDEN / "mooncake.jsonl")
    assert trace.blocks == (tuple(range(14)), (0, 14), (0, 15), (16,))
    assert trace.block_tokens == 512
    others = [read(GOLDEN / file) for file in ("azure_2023.csv", "plain.txt")]
    assert [(trace.blocks, trace.block_tokens) for trace in others] == [(None, None)] * 2


def test_what_failed_is_left_out_and_counted() -> None:
    assert [read(GOLDEN / file).left_out for file in ("burstgpt_1.csv", "burstgpt_3.csv")] == [2, 0]


def test_offsets_start_at_the_first_request_that_is_kept(read_text: Read) -> None:
    trace = read_text(f"{BURSTGPT}5,GPT-4,0,0,0,API log\n7,GPT-4,1,1,2,API log\n9,GPT-4,1,2,3,API log\n")
    assert trace.offsets_us.tolist() == [0, 2_000_000]
    assert trace.left_out == 1


def test_blocks_stay_with_their_requests_when_one_is_left_out(read_text: Read) -> None:
    trace = read_text("\n".join([row(ids=[1, 2]), row(output=0, ids=[3, 4]), row(tokens=0, ids=[]), row(ids=[5, 6])]))
    assert trace.blocks == ((1, 2), (5, 6))
    assert trace.left_out == 2


@pytest.mark.parametrize(
    "content",
    [
        f"{AZURE}2023-11-16 18:15:46.5,3,4\n2023-11-16 18:15:47,5,6\n",
        f"{AZURE}2023-11-16 18:15:46.5,3,4\n2023-11-16 18:15:47,5,6",
        f"# mine\n\n{AZURE}\n2023-11-16 18:15:46.5,3,4\n  \n2023-11-16 18:15:47,5,6\n\n",
        f"{AZURE}2023-11-16 18:15:46.5,3,4\n2023-11-16 18:15:47,5,6\n".replace("\n", "\r\n"),
        f"\ufeff{AZURE}2023-11-16 18:15:46.5,3,4\n2023-11-16 18:15:47,5,6\n",
        f"{AZURE}1700158546.5,3,4\n1700158547,5,6\n",
        'GeneratedTokens,"ContextTokens","TIMESTAMP"\n"4",3,"2023-11-16 18:15:46.5"\n6,5,2023-11-16 18:15:47\n',
        row(46_500, 3, 4, [1]) + "\n" + row(47_000, 5, 6, [1], session_id="a") + "\n",
        row(1.7e12 + 500, 3, 4, [1]) + "\n" + row(1.7e12 + 1000, 5, 6, [1]),
    ],
)
def test_the_same_trace_written_otherwise(content: str, read_text: Read) -> None:
    trace = read_text(content)
    assert trace.offsets_us.tolist() == [0, 500_000]
    assert [listed(trace.input_tokens), listed(trace.output_tokens)] == [[3, 5], [4, 6]]


def test_seconds_since_1970_keep_their_microseconds(read_text: Read) -> None:
    assert read_text("1763500000.000001\n1763500000.123457\n").offsets_us.tolist() == [0, 123_456]


def test_all_at_once_and_one_alone_are_traces(read_text: Read) -> None:
    assert read_text("3\n3\n3\n").offsets_us.tolist() == [0, 0, 0]
    assert read_text("-3").offsets_us.tolist() == [0]


def test_arrays_cannot_be_changed() -> None:
    trace = read(GOLDEN / "azure_2023.csv")
    assert trace.input_tokens is not None
    for numbers in (trace.offsets_us, trace.input_tokens):
        with pytest.raises(ValueError, match="read-only"):
            numbers[0] = 1


# Bad input


@pytest.mark.parametrize(
    ("content", "line", "expected"),
    [
        ("hello\n", 1, "'hello': expected a time in seconds"),
        ("\n# x\nhello\n", 3, "'hello': expected a time in seconds"),
        ("[1, 2]\n", 1, "expected a time in seconds"),
        ("TIMESTAMP,ContextTokens\n1,2\n", 1, "TIMESTAMP,ContextTokens,GeneratedTokens"),
        (b"\x1f\x8b\x08\x00\xff", 1, "expected a time in seconds"),
        ("1\n\n2 s\n", 3, "time '2 s': expected seconds"),
        ("1\n2,3\n", 2, "time '2,3': expected seconds"),
        ("1\nnan\n", 2, "time 'nan': expected seconds"),
        ("1\n1e400\n", 2, "time '1e400': expected seconds"),
        ("1\n" + "9" * 5000, 2, "expected seconds"),
        ("2023-11-16 18:15:46\n2023-13-16 18:15:46\n", 2, "such as 2024-05-10 00:00:00.009930+00:00"),
        ("1\n3\n2.9999\n", 3, "earlier than the line before: expected lines in order of time"),
        ("2023-11-16 18:15:46+00:00\n2023-11-16 18:15:47+00:01\n", 2, "earlier than the line before"),
        ("1\n2023-11-16 18:15:46\n", 2, "more than 10 years after the first: expected all times in the same unit"),
        (f"{AZURE}2023-11-16 18:15:46,1,2\n2023-11-16 18:15:47,1\n", 3, "expected 3 columns"),
        (f"{AZURE}2023-11-16 18:15:46,1,2,3\n", 2, "expected 3 columns"),
        (f"{AZURE}2023-11-16 18:15:46,-1,2\n", 2, "length '-1': expected a whole number of tokens, from 0"),
        (f"{AZURE}2023-11-16 18:15:46,1,2.5\n", 2, "length '2.5': expected a whole number of tokens"),
        (f"{AZURE}2023-11-16 18:15:46,1,\n", 2, "length '': expected a whole number of tokens"),
        (f"{AZURE}2023-11-16 18:15:46,1,10000001\n", 2, "from 0 to 10000000"),
        (f"{AZURE}2023-11-16 18:15:46,1,{'9' * 5000}\n", 2, "from 0 to 10000000"),
        (f"{AZURE}yesterday,1,2\n", 2, "time 'yesterday': expected seconds, or ISO 8601"),
        (f"{BURSTGPT}5,GPT-4,0,0,0,API log\n4,GPT-4,1,1,2,API log\n", 3, "earlier than the line before"),
        (f"{BURSTGPT}5,GPT-4,1,-1,0,API log\n", 2, "length '-1'"),
        ('{"timestamp": 0', 1, "expected timestamp (ms), input_length, output_length and hash_ids"),
        (row() + "\n1.5\n", 2, "expected timestamp (ms)"),
        (row() + "\n" + row().replace("hash_ids", "blocks"), 2, "hash_ids"),
        (row(tokens=-1), 1, "input_length"),
        (row(output=-5), 1, "output_length"),
        (row(output=2.5), 1, "output_length"),  # type: ignore[arg-type]
        (row(tokens=512, ids=[1, 2]), 1, "2 hash_ids for 512 input tokens: expected 1, one for each 512 tokens"),
        (row(tokens=513, ids=[1]), 1, "1 hash_ids for 513 input tokens: expected 2"),
        (row(tokens=0, ids=[1]), 1, "1 hash_ids for 0 input tokens: expected 0"),
        (row(ids=["a", "b"]), 1, "hash_ids"),
        (row(ids=None), 1, "hash_ids"),
        (row(1e300), 1, "expected milliseconds"),
        (row(5) + "\n" + row(4), 2, "earlier than the line before"),
    ],
)
def test_a_malformed_line_is_named(content: str | bytes, line: int, expected: str, read_text: Read) -> None:
    with pytest.raises(ValueError, match=rf"^trace .*file\.txt, line {line}: ") as caught:
        read_text(content)
    message = str(caught.value)
    assert expected in message
    assert len(message.partition("file.txt")[2]) < 400
    assert "\n" not in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "expected a time in seconds"),
        ("\n\n# nothing\n", "expected a time in seconds"),
        (AZURE, "expected a time in seconds"),
        (f"{BURSTGPT}5,GPT-4,7,0,7,API log\n", "all 1 had no input or no output tokens"),
    ],
)
def test_an_empty_trace_is_refused(content: str, expected: str, read_text: Read) -> None:
    with pytest.raises(ValueError, match=r"^trace .*file\.txt has no request: ") as caught:
        read_text(content)
    assert expected in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^trace .*none\.csv: No such file or directory$"):
        read(tmp_path / "none.csv")
    with pytest.raises(ValueError, match=r"^trace .*: Is a directory$"):
        read(tmp_path)


# Properties

any_file = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
starts = st.sampled_from(["", AZURE, BURSTGPT, "2024-05-10 00:00:00\n", '{"timestamp": 0, ', row() + "\n"])


@any_file
@given(st.binary(max_size=60) | st.builds(lambda a, b: (a + b).encode(), starts, st.text('0123456789-:.,+eTZ"\n\t ')))
def test_any_file_is_a_trace_or_a_value_error(read_text: Read, content: bytes) -> None:
    try:
        trace = read_text(content)
    except ValueError as error:
        assert str(error).startswith("trace ")  # noqa: PT017 (either outcome is right)
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert trace.offsets_us[0] == 0
        assert np.all(np.diff(trace.offsets_us) >= 0)


requests = st.lists(
    st.tuples(st.integers(0, 10**9), st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=20
).map(sorted)


@any_file
@given(requests)
def test_each_form_says_the_same(read_text: Read, requests: list[tuple[int, int, int]]) -> None:
    """Times in ms, which each form can write exactly."""
    written = [
        AZURE
        + "".join(f"{np.datetime64('2024-05-10T00:00') + np.timedelta64(t, 'ms')},{i},{o}\n" for t, i, o in requests),
        BURSTGPT + "".join(f"{t / 1000},GPT-4,{i},{o},{i + o},API log\n" for t, i, o in requests),
        "".join(row(t, i, o, list(range(-(-i // 512)))) + "\n" for t, i, o in requests),
    ]
    for trace in map(read_text, written):
        assert trace.offsets_us.tolist() == [(t - requests[0][0]) * 1000 for t, _, _ in requests]
        assert listed(trace.input_tokens) == [i for _, i, _ in requests]
        assert listed(trace.output_tokens) == [o for _, _, o in requests]
    assert read_text("".join(f"{t / 1000}\n" for t, _, _ in requests)).offsets_us.tolist() == trace.offsets_us.tolist()


# Replay


def test_replay_at_a_speed() -> None:
    trace = read(GOLDEN / "plain.txt")
    assert replay_us(trace, 1).tolist() == trace.offsets_us.tolist()
    assert replay_us(trace, 2).tolist() == [0, 0, 250_000, 3_750_000]
    assert replay_us(trace, 0.5).tolist() == [0, 0, 1_000_000, 15_000_002]


@any_file
@given(requests, st.floats(0.01, 1000))
def test_replay_keeps_order_and_does_not_drift(
    read_text: Read, requests: list[tuple[int, int, int]], speed: float
) -> None:
    trace = read_text("".join(f"{t / 1000}\n" for t, _, _ in requests))
    due = replay_us(trace, speed)
    assert due.dtype == np.int64
    assert np.all(np.diff(due) >= 0)
    assert np.all(np.abs(due * speed - trace.offsets_us) <= speed / 2 + 1e-6 * trace.offsets_us[-1])


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf"), 1e-9])
def test_a_speed_is_more_than_nothing(speed: float) -> None:
    with pytest.raises(ValueError, match=r"^speed .*(more than 0|more than 10 years)"):
        replay_us(read(GOLDEN / "plain.txt"), speed)
