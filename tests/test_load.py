"""What one process does of a run: its share of requests, errors and rate; and the user's tokenizer."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.levels import Share, Until
from loadgen.load import _share_of, text_counter
from tests.fakes_api import tokenizer_file


@given(st.integers(1, 8), st.integers(0, 1000))
def test_the_shares_of_all_workers_are_the_whole(workers: int, total: int) -> None:
    shares = [Share(worker, workers) for worker in range(workers)]
    counts = [share.count(total) for share in shares]
    assert sum(counts) == total
    assert max(counts) - min(counts) <= 1
    own = [_share_of(Until(requests=total, duration_s=3, per_slot=2), share) for share in shares]
    assert [until.requests for until in own] == counts
    assert {(until.duration_s, until.per_slot, until.errors) for until in own} == {(3, 2, None)}


def test_every_worker_may_see_an_error_before_it_gives_up() -> None:
    assert [_share_of(Until(errors=2), Share(worker, 4)).errors for worker in range(4)] == [1, 1, 1, 1]
    assert [_share_of(Until(errors=9), Share(worker, 4)).errors for worker in range(4)] == [3, 2, 2, 2]


def test_a_tokenizer_counts_a_text(tmp_path: Path) -> None:
    count = text_counter(tokenizer_file(tmp_path))
    assert [count(text) for text in ("", "The", "The weather today")] == [0, 1, 3]


@pytest.mark.parametrize("content", [None, "", "{}", "no JSON"])
def test_a_file_that_is_no_tokenizer_is_a_mistake_of_the_user(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=r"^--tokenizer .*tokenizer\.json: (no such file|not a tokenizer\.json)"):
        text_counter(path)
