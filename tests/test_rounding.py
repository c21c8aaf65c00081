"""Numbers as results show them."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.rounding import DIGITS, rounded


class Inner(msgspec.Struct, frozen=True):
    values: tuple[float | None, ...]


class Outer(msgspec.Struct, frozen=True):
    name: str
    count: int
    inner: Inner
    by_name: dict[str, float]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.none()))
def test_every_number_has_so_many_digits_and_is_near(values: list[float | None]) -> None:
    made = rounded(Outer("x", 123456789, Inner(tuple(values)), {"y": 0.123456789}))
    assert (made.name, made.count, made.by_name) == ("x", 123456789, {"y": 0.123457})
    for before, after in zip(values, made.inner.values, strict=True):
        if before is None or after is None:
            assert (before, after) == (None, None)
        else:
            assert math.isclose(before, after, rel_tol=0.501 * 10.0 ** (1 - DIGITS), abs_tol=1e-300)
            assert rounded(Inner((after,))).values == (after,)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_no_result(odd: float) -> None:
    with pytest.raises(ValueError, match="is no result"):
        rounded(Inner((odd,)))
