from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from analysis import prompts, records
from tests import fakes_run as fakes


def talk(session: int, turns: int = 3, **changes: Any) -> list[dict[str, Any]]:
    """Each turn adds 100 tokens and is answered with ten, half a second after the last."""
    return [
        fakes.row(
            session + turn,
            turn * 1_000_000,
            (400_000, 500_000),
            **({"session": session, "turn": turn, "prompt_tokens": 100 + 110 * turn, "output_tokens": 10} | changes),
        )
        for turn in range(turns)
    ]


def test_previous_turn_and_think_time() -> None:
    requests = fakes.requests(*talk(0), fakes.row(3), *talk(4, 2))
    assert prompts.previous_turn(requests).tolist() == [-1, 0, 1, -1, -1, 4]
    think = prompts.think_us(requests)
    assert think[[1, 2, 5]].tolist() == [500_000] * 3
    assert np.isnan(think[[0, 3, 4]]).all()
    assert prompts.conversations(requests)
    assert not prompts.conversations(fakes.requests(*talk(0, 1)))


def test_a_turn_whose_row_is_missing_has_no_previous_one() -> None:
    first, _, third = talk(0)
    requests = fakes.requests(first, third, talk(4)[1])
    assert prompts.previous_turn(requests).tolist() == [-1, -1, -1]
    assert np.isnan(prompts.cacheable_tokens(requests, 4)[1:]).all()
    assert len(prompts.think_us(records.NO_REQUESTS)) == 0


def test_repeated_and_distinct() -> None:
    items = [None, 0, 1, 0, None, 1, 2]
    rows = [fakes.row(i, item=item) for i, item in enumerate(items)]
    requests = fakes.requests(*rows)
    assert prompts.repeated(requests).tolist() == [False, False, False, True, False, True, False]
    assert prompts.distinct(requests) == 5
    warm = fakes.requests(*(row | {"phase": "warmup"} if row["index"] < 3 else row for row in rows))
    assert prompts.repeated(warm).sum() == 2
    assert prompts.distinct(warm) == 4  # of the measured ones


def test_items_of_two_classes_and_of_two_turns_are_not_the_same() -> None:
    two = [fakes.row(i, item=0) | {"class": name} for i, name in enumerate(("chat", "rag"))]
    requests = fakes.requests(*two, *talk(2, item=0))
    assert not prompts.repeated(requests).any()
    assert prompts.distinct(requests) == 5


@pytest.mark.parametrize(
    ("api", "template", "sent_as", "tokens"),
    [
        ("chat", 7, "text", 8),
        ("chat", None, "text", None),
        ("chat", 0, None, 1),
        ("completions", None, "token ids", 0),
        ("completions", None, "text", 1),
        ("completions", 1, "text", 2),
    ],
)
def test_common_tokens(api: str, template: int | None, sent_as: str | None, tokens: float | None) -> None:
    head = fakes.header(api=api, server={"template_tokens": template, "prompt_as": sent_as})
    assert prompts.common_tokens(msgspec.convert(head, records.Header)) == tokens


def test_cacheable_tokens() -> None:
    rows = [
        fakes.row(0, 30, group=0, shared_tokens=100),  # sent after the next one
        fakes.row(1, 10, group=0, shared_tokens=100),
        fakes.row(2, 20, group=1, shared_tokens=50),
        fakes.row(3, 40),
        fakes.row(4, 50, shared_tokens=48),  # of a trace: with some request before
        fakes.row(5, 60, item=3),
        fakes.row(6, 70, item=3),
        fakes.row(7, 80, group=0, shared_tokens=600),
        *talk(8),
    ]
    requests = fakes.requests(*rows)
    exact = [104, 4, 4, 4, 52, 4, 512, 512, 4, 110, 220]
    assert prompts.cacheable_tokens(requests, 4).tolist() == exact
    assert prompts.cacheable_tokens(requests, 4, 16).tolist() == [tokens // 16 * 16 for tokens in exact]
