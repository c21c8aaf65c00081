from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import records
from analysis.streams import Streams, streams
from analysis.window import Window
from tests import fakes_run as fakes
from tests.bench import virtual

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

STEP_US = 10_000
PROMPT_US = 200_000


def of(tmp_path: Path, rows: Sequence[fakes.Row], steady: Window | None = None) -> Streams:
    run = records.read(fakes.write(tmp_path, rows, [fakes.ended()]))
    found = streams(run.requests[0], steady)
    assert found is not None
    return found


def answer(index: int, sent_us: int, at_us: Sequence[int]) -> fakes.Row:
    return fakes.row(index, sent_us, [time_us - sent_us for time_us in at_us])


def steps(count: int, start_us: int = 0, stalls: Sequence[int] = (), stall_us: int = PROMPT_US) -> list[int]:
    """Ends of steps; those at the places in `stalls` take `stall_us` more."""
    lasts = (STEP_US + stall_us * (place in stalls) for place in range(1, count))
    return [int(end_us) for end_us in np.cumsum([start_us, *lasts])]


def test_a_prompt_makes_the_others_stand_still(tmp_path: Path) -> None:
    ends = steps(100, stalls=(50,))
    rows = [answer(0, -STEP_US, ends), answer(1, -STEP_US, ends), answer(2, ends[49], ends[50:80])]
    found = of(tmp_path, rows)
    assert found.step_ms == 10
    assert (found.stalls, found.stall_ms, found.by_prompts, found.firsts) == (1, 210, 1.0, 0.0)
    assert found.stolen_ms == pytest.approx(2 * 200 / 3)
    assert found.prompt_ms == pytest.approx(200)
    assert found.wait_ms == 0
    assert found.prompt_share == pytest.approx(
        (210 - 10 + 10) / (990 + 200 + 10)
    )  # with the first step of the first two
    assert (found.decoding_low, found.decoding_high) == (2, 3)


def test_the_chunks_of_a_prompt_are_one_stall(tmp_path: Path) -> None:
    ends = steps(100, stalls=(50, 51, 52))
    rows = [answer(0, -STEP_US, ends), answer(1, ends[49], ends[53:80])]  # its last chunk takes no time worth a word
    found = of(tmp_path, rows)
    assert (found.stalls, found.stall_ms, found.by_prompts) == (1, 630, 1.0)


def test_a_long_gap_without_a_first_token_is_no_prompt(tmp_path: Path) -> None:
    ends = steps(100, stalls=(20, 50))
    rows = [answer(0, -STEP_US, ends), answer(1, ends[49], ends[50:80])]
    found = of(tmp_path, rows)
    assert (found.stalls, found.by_prompts) == (2, 0.5)
    assert found.stolen_ms == pytest.approx(100)


def test_one_stream_alone_was_set_aside(tmp_path: Path) -> None:
    ends = steps(200)
    aside = [*ends[:50], *ends[150:]]
    found = of(tmp_path, [answer(index, -STEP_US, aside if index == 0 else ends) for index in range(4)])
    assert found.stalls == 0
    assert found.aside_ms == pytest.approx(1000 / 4)
    assert (found.by_prompts, found.stolen_ms) == (None, 0)


def test_a_wait_is_what_others_did_not_stand_still_for(tmp_path: Path) -> None:
    ends = steps(100, stalls=(50,))
    rows = [answer(0, -STEP_US, ends), answer(1, ends[9], ends[50:80])]
    assert of(tmp_path, rows).wait_ms == pytest.approx((ends[49] - ends[9]) / 1e3 / 2)


def test_a_lone_stream_tells_no_wait(tmp_path: Path) -> None:
    found = of(tmp_path, [answer(0, 0, steps(10, 500_000)), answer(1, 1_000_000, steps(10, 1_500_000))])
    assert found.wait_ms == 0
    assert found.prompt_ms is None
    assert found.prompt_share == pytest.approx(1000 / 1180)


def test_only_the_window_counts(tmp_path: Path) -> None:
    ends = steps(100, stalls=(10, 50))
    rows = [answer(0, -STEP_US, ends), answer(1, ends[49], ends[50:80])]
    found = of(tmp_path, rows, Window(start_us=ends[20], end_us=ends[90]))
    assert (found.stalls, found.by_prompts, found.stolen_ms) == (1, 1.0, 200)


def test_without_gaps_there_is_nothing_to_see(tmp_path: Path) -> None:
    run = records.read(fakes.write(tmp_path, [fakes.row(0, 0, [1000]), fakes.failed(1, 10)], [fakes.ended()]))
    assert streams(run.requests[0], None) is None
    assert streams(records.NO_REQUESTS, None) is None


@given(
    seed=st.integers(0, 2**32 - 1),
    slots=st.integers(1, 12),
    max_num_seqs=st.integers(1, 12),
    output=st.integers(2, 60),
    prompt=st.integers(2, 4000),
)
@fakes.few_examples
def test_shares_are_shares_whatever_is_served(
    seed: int, slots: int, max_num_seqs: int, output: int, prompt: int
) -> None:
    spec = virtual.spec(f"llama-3.1-8b@h100,prefix_cache=0,max_num_seqs={max_num_seqs}")
    lengths = virtual.Lengths((prompt, 0.5), (output, 0.5))
    requests = virtual.closed_loop(spec, slots, 0.5, seed, request_s=0.2, lengths=lengths)
    found = streams(requests, None)
    if found is None:
        assert (requests.events < 2).all()
        return
    assert found.step_ms > 0
    assert found.by_prompts is None or 0 <= found.by_prompts <= 1 + 1e-9
    assert 0 <= found.prompt_share <= 1
    assert found.firsts >= 0
    assert min(found.stolen_ms, found.aside_ms, found.wait_ms, found.prompt_ms or 0.0) >= 0
    assert found.decoding_low <= found.decoding_high <= min(slots, max_num_seqs)
