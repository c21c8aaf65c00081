from __future__ import annotations

import pytest

from analysis.diagnosis import Times, ms, share
from analysis.streams import Streams


def seen(step_ms: float = 10, stolen_ms: float = 0, prompt_ms: float | None = None, prompt_share: float = 0) -> Streams:
    return Streams(
        step_ms=step_ms, stolen_ms=stolen_ms, aside_ms=0, stalls=0, stall_ms=None, by_prompts=None, firsts=0,
        prompt_ms=prompt_ms, prompt_share=prompt_share, wait_ms=0, decoding=1, decoding_low=1, decoding_high=1,
    )  # fmt: skip


def times(e2e: float, ttft: float, streams: Streams | None, *, lone: bool, way: float | None = None) -> Times:
    return Times(e2e=e2e, ttft=ttft, way=way, queue=None, lone=lone, in_flight=None, load=None, streams=streams)


def test_a_lone_prompt_is_ttft_without_a_step_and_the_way() -> None:
    assert times(1000, 310, seen(), lone=True).own_share == pytest.approx(0.3)
    assert times(1000, 310, seen(), lone=True, way=200).own_share == pytest.approx(0.1)
    assert times(1000, 5, seen(), lone=True).own_share == 0
    assert times(1000, 400, None, lone=True).own_share == pytest.approx(0.4)


def test_among_others_a_prompt_is_what_it_costs_them() -> None:
    one = times(1000, 100, seen(stolen_ms=600, prompt_ms=100), lone=False)
    assert one.own_share == pytest.approx(0.25)
    assert times(1000, 100, seen(), lone=False).own_share is None


def test_prompts_are_heavy_by_the_workload_or_by_the_load() -> None:
    assert times(1000, 310, seen(), lone=True).prompt_heavy
    assert not times(1000, 110, seen(), lone=True).prompt_heavy
    assert times(1000, 100, seen(stolen_ms=600, prompt_ms=100), lone=False).prompt_heavy
    assert times(1000, 100, seen(prompt_ms=20, prompt_share=0.6), lone=False).prompt_heavy
    assert not times(1000, 100, seen(prompt_ms=20, prompt_share=0.4), lone=False).prompt_heavy


def test_numbers_as_they_are_read() -> None:
    assert [ms(value) for value in (0.1234, 12.34, 999.7, 17770.4)] == ["0.123 ms", "12.3 ms", "1000 ms", "17770 ms"]
    assert share(0.556) == "56 %"
