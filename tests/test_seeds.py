import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from workloads.seeds import stream

names = st.lists(st.text(max_size=8) | st.integers(), max_size=3)


@given(st.integers(), names)
def test_same_names_give_the_same_stream(seed: int, path: list[str | int]) -> None:
    assert np.array_equal(stream(seed, *path).integers(2**62, size=8), stream(seed, *path).integers(2**62, size=8))


@given(st.tuples(st.integers(), names), st.tuples(st.integers(), names))
def test_other_names_or_seeds_give_another_stream(
    a: tuple[int, list[str | int]], b: tuple[int, list[str | int]]
) -> None:
    if a != b:
        first, second = (stream(seed, *path).integers(2**62, size=4).tolist() for seed, path in (a, b))
        assert first != second


def test_a_name_is_not_a_number_and_not_two_names() -> None:
    firsts = [stream(0, *path).integers(2**62) for path in (("1",), (1,), ("a", "b"), ("a,b",), ("ab",), ())]
    assert len(set(firsts)) == len(firsts)


def test_the_bits_are_these_on_every_machine() -> None:
    assert stream(0, "input", 3).bit_generator.random_raw(2).tolist() == [8976209586286606583, 15595873331432375731]


@pytest.mark.parametrize("other", [(0, "b"), (1, "a"), (0, "a", 0)])
def test_streams_are_uniform_and_independent(other: tuple[int, str | int]) -> None:
    one, two = stream(0, "a").random(5000), stream(*other).random(5000)
    assert stats.kstest(two, "uniform").pvalue > 0.001
    assert abs(stats.pearsonr(one, two).statistic) < 4 / 5000**0.5
