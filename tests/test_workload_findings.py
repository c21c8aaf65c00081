from __future__ import annotations

from typing import Any

import pytest

from tests import fakes_run as fakes
from tests.fakes_run import findings


def server(**changes: Any) -> dict[str, Any]:
    return {**fakes.header()["server"], **changes}


@pytest.mark.parametrize(("prompt", "trips"), [(512, False), (517, False), (525, True), (500, True), (None, False)])
def test_input_length(prompt: int | None, trips: bool) -> None:
    found = findings(fakes.clean(prompt_tokens=prompt))
    assert ("input-length" in found) == trips
    if trips:
        assert found["input-length"].severity == "warning"
        assert "100 % of 400" in found["input-length"].message


def test_output_length_says_share_and_residual() -> None:
    found = findings(fakes.with_some(100, want_output_tokens=128), server=server(dropped=["ignore_eos"]))
    message = found["output-length"].message
    assert "25 % of 400 are off by more than 1 % (from -118 to +0, mean -29.5 tokens)" in message
    assert "ignore_eos" in message
    assert found["output-length"].severity == "warning"
    assert "output-length" not in findings(fakes.with_some(4, want_output_tokens=128))


@pytest.mark.parametrize(
    ("cached", "template", "api", "trips"),
    [
        (0, 4, "chat", False),
        (32, 4, "chat", True),
        (32, 32, "chat", False),
        (32, None, "chat", False),
        (32, None, "completions", True),
        (500, None, "chat", True),
        (None, 0, "chat", False),
    ],
)
def test_cached_prompts_beyond_the_template(cached: int | None, template: int | None, api: str, trips: bool) -> None:
    found = findings(fakes.clean(cached_tokens=cached), server=server(template_tokens=template), api=api)
    assert ("cached-prompts" in found) == trips


def test_a_length_nobody_can_know_is_not_off() -> None:
    assert "input-length" not in findings(fakes.clean(want_input_tokens=None, prompt_tokens=40))


def test_what_the_server_refuses() -> None:
    assert findings(fakes.clean(), server=server(dropped=["stream_options"]))["option-dropped"].severity == "warning"


def grouped(cached: int, shared: int = 100, groups: int = 2, first: int = 0) -> list[dict[str, Any]]:
    """Of each group the first request finds `first` tokens cached, the others `cached`."""
    changes = [{"group": i % groups, "shared_tokens": shared, "cached_tokens": cached} for i in range(404)]
    for one in changes[:groups]:
        one["cached_tokens"] = first
    return [row | one for row, one in zip(fakes.clean(), changes, strict=True)]


@pytest.mark.parametrize(("cached", "trips"), [(0, False), (96, False), (112, False), (128, True)])
def test_a_shared_prefix_is_cached_rightly(cached: int, trips: bool) -> None:
    found = findings(grouped(cached))
    assert ("cached-prompts" in found) == trips
    assert not trips or "beyond what the plan shares" in found["cached-prompts"].message


def test_nobody_shares_with_the_first_of_a_group() -> None:
    assert "cached-prompts" not in findings(grouped(96, groups=404, first=0))
    assert "cached-prompts" in findings(grouped(96, groups=404, first=96))


def test_the_history_of_a_conversation_is_cached_rightly() -> None:
    assert findings(fakes.conversations()) == {}
    again = [row | {"cached_tokens": 512} if row["turn"] == 0 else row for row in fakes.conversations()]
    assert "cached-prompts" in findings(again)


def test_repeated_prompts_may_be_cached_and_are_named() -> None:
    rows = [row | {"item": i % 100, "cached_tokens": 496 * (i >= 100)} for i, row in enumerate(fakes.clean())]
    found = findings(rows)
    assert found.keys() == {"repeated-prompts"}
    assert found["repeated-prompts"].severity == "warning"
    assert "304 of 400 prompts had been sent before in this level" in found["repeated-prompts"].message
    assert findings([row | {"item": i} for i, row in enumerate(fakes.clean())]) == {}


def test_few_leaving_users_are_not_worth_a_word() -> None:
    assert "left" not in findings(fakes.with_some(4, status="cancelled", left=True))


def test_leaving_users_are_named_with_what_they_hide() -> None:
    found = findings(fakes.with_some(8, status="cancelled", left=True))["left"]
    assert found.severity == "info"
    assert found.message == ("8 of 400 users left before their answer ended: E2E, TPOT and ITL are of those who stayed")


@pytest.mark.parametrize(("unseen", "most"), [(3, "at most 100 ms"), (5, "without a bound")])
def test_who_left_without_a_token_cannot_improve_a_p99(unseen: int, most: str) -> None:
    nothing: dict[str, Any] = {"events_us": [], "answer_event": None, "output_tokens": None, "tokens_from": None}
    rows = fakes.with_some(5, status="cancelled", left=True)
    rows = rows[:-unseen] + [row | nothing for row in rows[-unseen:]]
    message = findings(rows)["left"].message
    assert f"{unseen} saw no token and have no TTFT: had they stayed, its p99 would be {most}" in message
