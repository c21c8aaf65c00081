from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from analysis import floor_sheet, floor_tables, tables
from analysis.floor_sheet import Question, Sheet, Speculate
from analysis.hardware import parse

GOLDEN = Path(__file__).parent / "golden"


def sheet(text: str = "llama-3.1-8b@h100,dtype=bf16", **changes: Any) -> Sheet:
    usual = {"input_tokens": 2000, "output_tokens": 500, "batch": 32, "context_tokens": 2250.0}
    return floor_sheet.sheet(parse(text), Question(**(usual | changes)))


def shown(made: Sheet, width: int = 80) -> str:
    text = io.StringIO()
    floor_tables.show(made, Console(file=text, width=width))
    return text.getvalue()


def said(made: Sheet) -> str:
    return " ".join(shown(made, width=400).split())


def whole() -> Sheet:
    drafts = Speculate(drafts=3, acceptance=0.7, draft_cost=0.1)
    return sheet(speculate=drafts, plan=True, slo=("chat",))


def test_golden() -> None:
    """Look at the difference; where it is right, write it: the message holds the new text."""
    text = "".join(f"{line.rstrip()}\n" for line in shown(whole()).splitlines())
    assert text == (GOLDEN / "floors.txt").read_text(encoding="utf-8"), text


def test_golden_json() -> None:
    text = floor_sheet.dumps(whole())
    assert text == (GOLDEN / "floors.json").read_text(encoding="ascii"), text


def test_what_does_not_fit_is_said_in_words() -> None:
    text = said(sheet("llama-3.1-70b@h100,dtype=bf16", plan=True))
    assert "it does not fit: 141 GB of weights and the KV cache of one request of 2,500 tokens need more than" in text
    assert "1 x h100 may use; it takes 2" in text
    assert "decode, one stream 42.1 ms" in text
    assert "loadgen tune" not in text


def test_dashes_are_explained() -> None:
    text = said(sheet("7b@m2-ultra,dtype=bf16", plan=True))
    assert "the KV cache of 7b is not known" in text
    assert "the compute rate of m2-ultra is not known" in text
    assert "its rate is not known" in text
    assert "no ITL limit was given" in text
    assert "nothing that is known binds" in text
    known = said(sheet())
    assert "not known, and counts" not in known
    assert f"{tables.UNKNOWN} the" not in known


def test_what_a_step_need_not_read_or_keep_is_said() -> None:
    assert "a step reads 6.70 GB of weights (some experts)" in said(sheet("qwen3-30b-a3b@h100,dtype=bf16"))
    windowed = said(sheet("gemma-3-27b@h100,dtype=bf16", input_tokens=8000))
    assert "(more where sliding windows cut)" in windowed
    assert "(some experts)" not in windowed
    assert "sliding" not in said(sheet())


@pytest.mark.parametrize(
    ("drafts", "words"),
    [
        (Speculate(drafts=3, acceptance=1.0, draft_cost=0.2), "4.00 tokens a step, 2.50 times as fast"),
        (Speculate(drafts=3, acceptance=0.1, draft_cost=0.5), "slower, 0.44 times as fast"),
        (Speculate(drafts=3, acceptance=0.9, draft_cost=2.0), "such drafts cost more than they can save"),
        (Speculate(drafts=1, acceptance=0.9, draft_cost=0.2), "it pays where more than 20 % of the drafts are right"),
    ],
)
def test_speculation_in_words(drafts: Speculate, words: str) -> None:
    assert words in said(sheet(speculate=drafts))


@pytest.mark.parametrize(
    ("slo", "lengths", "words"),
    [
        ((), (2000, 500), "memory binds first"),
        (("itl p99 < 10ms",), (2000, 500), "the ITL limit binds first"),
        (("itl p99 < 25ms",), (20_000, 2000), "memory binds first"),
        (("itl p99 < 4ms",), (2000, 500), "not even one stream meets the ITL limit"),
        (("chat",), (1155, 211), "neither memory nor ITL binds first: compute is busy before"),
        (("ttft p99 < 20ms",), (2000, 500), "the limit of 20.0 ms cannot be met"),
        (("ttft p99 < 40ms",), (2000, 500), "the limit of 40.0 ms is met at the floor only"),
        (("ttft p99 < 400ms",), (2000, 500), "of the limit of 400 ms the rest is for waiting"),
    ],
)
def test_a_plan_in_words(slo: tuple[str, ...], lengths: tuple[int, int], words: str) -> None:
    text = said(sheet(input_tokens=lengths[0], output_tokens=lengths[1], plan=True, slo=slo))
    assert words in text
    assert "promises nothing" in text


def test_a_name_cannot_steer_the_terminal() -> None:
    made = msgspec.structs.replace(sheet("7b@h100,dtype=bf16"), hardware="a\x1b]0;x\x07", model="b\x9b[bold]")
    text = shown(made)
    assert not {"\x1b", "\x9b", "\x07"} & set(text)
    assert "[bold]" in text
