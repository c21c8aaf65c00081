"""What is refused before any load."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from loadgen import room
from loadgen.checks import check_data_sets, check_lengths, check_room, request_s
from loadgen.cli.options import Options, settings
from loadgen.preflight import Server, Unusable
from loadgen.settings import Settings
from workloads.tokens import guess


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def chosen(**flags: Any) -> Settings:
    return settings("localhost:1", Options(**flags))


def a_server(max_model_len: int | None = None, first_s: float = 0.0, token_s: float = 0.0) -> Server:
    found = SimpleNamespace(
        facts={"max_model_len": max_model_len}, vocabulary=guess(), as_ids=False, request_tokens_s=(first_s, token_s),
        url=httpx.URL("http://h"),
    )  # fmt: skip
    return cast("Server", found)


def test_a_request_takes_its_first_token_and_its_others() -> None:
    assert request_s(chosen(input="10", output="50"), a_server(first_s=0.5, token_s=0.01)) == pytest.approx(1.0)


def test_what_is_longer_than_the_server_takes_is_refused() -> None:
    check_lengths(chosen(input="30", output="70"), a_server(100))
    check_lengths(chosen(input="3000", output="70"), a_server(None))
    with pytest.raises(Unusable, match=r"^a request of 30 input and 71 output tokens is over"):
        check_lengths(chosen(input="30", output="71"), a_server(100))


def test_a_trace_is_looked_through_to_its_end() -> None:
    lines = [f"{second},10,10" for second in range(3000)] + ["3000,40,61"]
    Path("a.csv").write_text("\n".join(["Timestamp,Request tokens,Response tokens", *lines]))
    asked = chosen(arrivals="trace:a.csv")
    check_lengths(asked, a_server(101))
    with pytest.raises(Unusable, match=r"^a request of 40 input and 61 output tokens is over"):
        check_lengths(asked, a_server(100))


def test_a_conversation_grows_with_each_turn() -> None:
    Path("w.toml").write_text("input = 30\noutput = 10\nturns = 3\n")
    asked = chosen(workload="w.toml")
    check_lengths(asked, a_server(60))  # what the turns after the first add to their prompts is not known before
    with pytest.raises(Unusable, match=r"^a request of 50 input and 10 output tokens"):
        check_lengths(asked, a_server(59))


def test_the_lengths_of_a_data_set_are_not_known() -> None:
    Path("p.txt").write_text("One two three\n")
    check_lengths(chosen(dataset=Path("p.txt"), output="5", concurrency="1"), a_server(10))


@pytest.mark.parametrize(
    ("content", "says"),
    [("", "p.jsonl"), ('{"prompt": "Hi"}\n{"prompt": 5}\n', "p.jsonl, line 2")],
)
def test_a_data_set_is_read_to_its_end_before_any_load(content: str, says: str) -> None:
    Path("p.jsonl").write_text(content)
    with pytest.raises(ValueError, match=says) as caught:
        check_data_sets(chosen(dataset=Path("p.jsonl")))
    assert "\n" not in str(caught.value)


def test_a_data_set_that_can_be_read_is_fine() -> None:
    Path("p.jsonl").write_text('{"prompt": "Hi"}\n' * 3)
    check_data_sets(chosen(dataset=Path("p.jsonl")))
    check_data_sets(chosen())


def test_a_rate_that_needs_more_files_than_there_are_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "room", lambda: 500)
    slow = a_server(first_s=9.0, token_s=0.1)
    check_room(chosen(rate="10,50", output="10"), slow)
    check_room(chosen(rate="10,51", output="10", workers=2), slow)
    check_room(chosen(rate="10,51", output="10", max_concurrency=600), slow)
    check_room(chosen(concurrency="1000", output="10"), slow)
    with pytest.raises(ValueError, match=r"^51 requests/s would have about 510 in flight.* files for 500.*--max-conc"):
        check_room(chosen(rate="10,51", output="10"), slow)
