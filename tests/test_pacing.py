import pytest

from loadgen.pacing import stagger_s


@pytest.mark.parametrize(
    ("slots", "request_s", "offsets_s"),
    [(1, 8.0, [0]), (2, 8.0, [0, 4]), (4, 8.0, [0, 2, 4, 6]), (3, 0.0, [0, 0, 0])],
)
def test_starts_are_spread_over_one_request(slots: int, request_s: float, offsets_s: list[float]) -> None:
    assert stagger_s(slots, request_s) == offsets_s
