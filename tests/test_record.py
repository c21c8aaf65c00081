"""What is written, that it stays, and what must not be in it."""

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.record import (
    FORMAT,
    Failure,
    Header,
    LevelPlan,
    LevelRow,
    Row,
    RunWriter,
    Secrets,
    names_a_secret,
)

# As the contract has it: a change here is a change of the format.
ROW = (
    '{"level":0,"index":17,"phase":"measure","status":"ok","error":null,"http_status":200,"retries":0,'
    '"due_us":1234567,"sent_us":1234571,"connect_us":null,"headers_us":48120,"end_us":2031044,'
    '"events_us":[50112,70120],"events_tokens":[1,1],"answer_event":0,"bounds":0,"read_lag_us":41,'
    '"prompt_tokens":512,"output_tokens":2,"reasoning_tokens":null,"cached_tokens":0,"tokens_from":"usage",'
    '"want_input_tokens":512,"want_output_tokens":2,"finish_reason":"length"}'
)
LEVEL = '{"level":0,"start_us":0,"end_us":31000000,"ended_by":"requests","cpu_us":1234567,"clock_step_us":0}'
HEADER_FIELDS = {
    *("format", "loadgen", "started_at", "target", "model", "api", "workload", "levels", "seed", "salt", "slo"),
    *("arrivals", "clock", "host", "server", "options", "seeks", "bounds", "hardware"),
}
ERROR_KINDS = {
    *("connect", "tls", "timeout_connect", "timeout_first", "timeout_idle", "timeout_total", "http_status"),
    *("rate_limited", "stream_error", "truncated", "protocol", "empty", "client"),
}


def row(**changes: Any) -> Row:
    return msgspec.convert(json.loads(ROW) | changes, Row)


def header(**changes: Any) -> Header:
    facts: dict[str, Any] = {
        "loadgen": "0.1.0", "started_at": "2026-11-29T12:00:00Z", "target": "http://localhost", "model": "tiny",
        "api": "chat", "workload": {"name": "chat"}, "levels": [LevelPlan(0, 8)], "seed": 0, "salt": "s", "slo": [],
        "clock": "kernel", "host": {}, "server": {}, "options": {},
    }  # fmt: skip
    return Header(**(facts | changes))


def lines(path: Path) -> list[Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = path.read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


# The format


def test_a_row_is_the_contracts_row() -> None:
    assert msgspec.json.encode(msgspec.json.decode(ROW, type=Row)).decode() == ROW


def test_a_level_row_is_the_contracts() -> None:
    assert msgspec.json.encode(msgspec.json.decode(LEVEL, type=LevelRow)).decode() == LEVEL


def test_a_level_row_of_an_open_loop_has_more() -> None:
    more = LEVEL.replace("}", ',"due":100,"dropped":3,"waited_max":0}')
    assert msgspec.json.encode(msgspec.json.decode(more, type=LevelRow)).decode() == more


def test_the_header_has_the_contracts_fields() -> None:
    written = json.loads(msgspec.json.encode(header()))
    assert set(written) == HEADER_FIELDS
    assert written["format"] == FORMAT == 1
    assert written["levels"] == [
        {"level": 0, "concurrency": 8, "rate_per_s": None, "speed": None, "requests": None, "duration_s": None}
    ]


def test_the_kinds_of_error_are_the_contracts() -> None:
    for kind in ERROR_KINDS:
        assert row(error={"kind": kind, "message": "m"}).error == Failure(kind, "m")  # type: ignore[arg-type]
    with pytest.raises(msgspec.ValidationError):
        row(error={"kind": "other", "message": "m"})


# Writing


def test_a_run_is_never_written_over_another(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", header()) as writer:
        writer.add(row())
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(ValueError, match="exists already"):
        RunWriter(tmp_path / "run", header(model="other"))
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


@pytest.mark.parametrize("there", ["empty directory", "file"])
def test_nor_over_anything_else(tmp_path: Path, there: str) -> None:
    path = tmp_path / "run"
    path.mkdir() if there == "empty directory" else path.write_text("mine")
    with pytest.raises(ValueError, match="choose another --out"):
        RunWriter(path, header())


def test_a_directory_that_cannot_be_made_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot make the run directory") as caught:
        RunWriter(tmp_path / "file" / "run", header())
    assert "\n" not in str(caught.value)


def test_the_header_is_there_before_the_first_row_and_parents_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "run"
    with RunWriter(path, header()) as writer:
        assert writer.directory == path
        assert json.loads((path / "run.json").read_text())["model"] == "tiny"
        assert lines(path / "requests.jsonl") == lines(path / "levels.jsonl") == []


def test_flushed_rows_are_in_the_file_though_nothing_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunWriter(path, header()) as writer:
        writer.add(row(index=0))
        writer.add(row(index=1))
        assert lines(path / "requests.jsonl") == []
        writer.flush()
        assert [line["index"] for line in lines(path / "requests.jsonl")] == [0, 1]
        writer.flush()
        writer.add(row(index=2))
        writer.add_level(msgspec.json.decode(LEVEL, type=LevelRow))
        assert [line["index"] for line in lines(path / "requests.jsonl")] == [0, 1, 2]
        assert lines(path / "levels.jsonl") == [json.loads(LEVEL)]


def test_leaving_writes_what_is_left_also_after_an_error(tmp_path: Path) -> None:
    with contextlib.suppress(KeyError), RunWriter(tmp_path / "run", header()) as writer:
        writer.add(row())
        raise KeyError
    assert lines(tmp_path / "run" / "requests.jsonl") == [json.loads(ROW)]


def test_what_is_not_a_number_is_null(tmp_path: Path) -> None:
    odd = {"nan": math.nan, "infinity": math.inf, "half": 0.5}
    with RunWriter(tmp_path / "run", header(host=odd)):
        pass
    (written,) = [json.loads((tmp_path / "run" / "run.json").read_text(), parse_constant=pytest.fail)]
    assert written["host"] == {"nan": None, "infinity": None, "half": 0.5}


def test_a_message_with_line_ends_stays_one_line(tmp_path: Path) -> None:
    message = 'a\nb\r\n\u2028"quoted" groß \x00\x1b[2J'
    with RunWriter(tmp_path / "run", header()) as writer:
        writer.add(row(status="failed", error={"kind": "client", "message": message}))
    data = (tmp_path / "run" / "requests.jsonl").read_bytes()
    assert data.count(b"\n") == 1
    assert json.loads(data)["error"]["message"] == message


# Secrets


@pytest.mark.parametrize(
    "name",
    [
        "Authorization", "authorization", "Proxy-Authorization", "X-Auth-Token", "X-Api-Key", "api_key", "apikey",
        "api-key", "key", "Ocp-Apim-Subscription-Key", "x-goog-api-key", "Cookie", "Set-Cookie", "token",
        "access_token", "X-Amz-Security-Token", "X-Amz-Signature", "X-Amz-Credential", "sig", "client_secret",
        "password", "passwd", "db_pwd", "ssl_passphrase", "X-JWT-Assertion", "bearer",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert names_a_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "max_tokens", "min_tokens", "max_completion_tokens", "model", "temperature", "Content-Type", "Accept",
        "User-Agent", "api-version", "stream", "stop_token_ids", "skip_special_tokens", "X-Request-Id", "keys",
        "signal", "design", "ignore_eos", "",
    ],
)  # fmt: skip
def test_names_of_no_secrets(name: str) -> None:
    assert not names_a_secret(name)


@pytest.mark.parametrize(
    ("texts", "message", "hidden"),
    [
        ([], "sk-1234 stays", "sk-1234 stays"),
        (["sk-1234"], "key sk-1234 and sk-1234.", "key *** and ***."),
        (["sk-1234", "Bearer sk-1234"], "sent Bearer sk-1234", "sent ***"),
        (["sk-1", "sk-1234"], "sk-1234", "***"),
        (["a.c+(x)"], "abc+(x) a.c+(x)", "abc+(x) ***"),
        (["", "abc"], "abc", "abc"),  # too short to be one, and to be taken out of every word
        (["sk-1234567890"], "cut off: sk-1234...", "cut off: ***..."),
        (["sk-1234567890"], "(says sk-1234...)", "(says ***...)"),
        (["sk-1234567890"], "cut off: sk-1234", "cut off: ***"),
        (["sk-1234567890"], "all of it: sk-1234567890...", "all of it: ***..."),
        (["sk-1234567890"], "not it: sk-12 and so on", "not it: sk-12 and so on"),
    ],
)
def test_secrets_are_hidden_whole_or_cut(texts: list[str], message: str, hidden: str) -> None:
    assert Secrets(texts).hide(message) == hidden


words = st.text("xyz (", max_size=20)


@given(words, st.text("abc123-+", min_size=4, max_size=30), words, st.integers(0, 60))
def test_no_secret_is_left_wherever_a_message_is_cut(before: str, secret: str, after: str, length: int) -> None:
    secrets = Secrets([secret])
    assert secrets.hide(before + secret + after) == before + "***" + after
    cut = (before + secret)[:length]
    kept = len(cut) - len(before)  # so much of the secret
    assert secrets.hide(cut + "...") == (cut if kept < 4 else before + "***") + "..."


# A run that is gone on with


def test_a_run_goes_on_with_its_own_salt_and_levels(tmp_path: Path) -> None:
    first = header(levels=[], salt="first", seeks="verdict")
    with RunWriter(tmp_path / "run", first) as writer:
        writer.add_plan(LevelPlan(0, 8))
        writer.add(row())
        writer.add_level(msgspec.json.decode(LEVEL, type=LevelRow))
    with RunWriter.resumed(tmp_path / "run", header(levels=[], salt="second", seeks="verdict")) as writer:
        assert (writer.header.salt, writer.header.levels) == ("first", [LevelPlan(0, 8)])
        writer.add_plan(LevelPlan(1, 8))
        writer.add(row(level=1))
    (written,) = lines(tmp_path / "run" / "requests.jsonl")[1:]
    assert written["level"] == 1
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [one["level"] for one in told["levels"]] == [0, 1]
    assert not (tmp_path / "run" / "run.json.new").exists()


def test_what_a_crash_has_cut_is_taken_off_before_a_run_goes_on(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", header(levels=[], seeks="rate")) as writer:
        writer.add(row())
        writer.flush()
        with (tmp_path / "run" / "requests.jsonl").open("ab") as file:
            file.write(b'{"level":0,"ind')
    with RunWriter.resumed(tmp_path / "run", header(levels=[], seeks="rate")) as writer:
        writer.add(row(index=18))
    assert [one["index"] for one in lines(tmp_path / "run" / "requests.jsonl")] == [17, 18]


@pytest.mark.parametrize("changes", [{"model": "other"}, {"slo": ["ttft p99 < 1s"]}, {"seed": 1}, {"seeks": None}])
def test_another_question_is_another_run(tmp_path: Path, changes: dict[str, Any]) -> None:
    with RunWriter(tmp_path / "run", header(levels=[], seeks="verdict")):
        pass
    before = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(ValueError, match=f"another {next(iter(changes))}: choose another --out"):
        RunWriter.resumed(tmp_path / "run", header(**({"levels": [], "seeks": "verdict"} | changes)))
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_two_processes_do_not_write_one_run(tmp_path: Path) -> None:
    with (
        RunWriter(tmp_path / "run", header(seeks="verdict")),
        pytest.raises(ValueError, match="being written by another process"),
    ):
        RunWriter.resumed(tmp_path / "run", header(seeks="verdict"))


def test_what_is_no_run_is_not_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(ValueError, match="choose another --out"):
        RunWriter.resumed(tmp_path / "run", header(seeks="verdict"))
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        RunWriter.resumed(tmp_path / "run", header(seeks="verdict"))
