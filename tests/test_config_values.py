import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.config_values import flag, indices, optional, shown, whole


def test_the_first_key_with_a_value_counts() -> None:
    assert whole({"n_layer": 3, "layers": None}, "layers", "n_layer") == 3
    assert whole({"layers": 2, "n_layer": 3}, "layers", "n_layer") == 2
    assert whole({}, "layers", default=0) == 0
    assert optional({"rank": None}, "rank") is None
    assert optional({"rank": 8}, "rank") == 8


def test_null_is_as_good_as_absent() -> None:
    assert flag({"tied": None}, "tied") is False
    assert flag({"tied": None}, "tied", default=True) is True
    assert flag({"tied": False}, "tied", default=True) is False
    assert indices({"dense": None}, "dense") is None


@pytest.mark.parametrize("value", [0, -1, 2**31, 10**5000, 1.0, float("nan"), True, "8", [8], {}], ids=shown)
def test_what_is_no_whole_number_in_range_is_named(value: object) -> None:
    with pytest.raises(ValueError, match=r"^layers = .*: expected a whole number from 1 to 1073741824$"):
        whole({"layers": value}, "layers")


def test_a_missing_key_is_named_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"^no layers: describe the model by hand \(--params 7b\)$"):
        whole({}, "layers", "n_layer")


@pytest.mark.parametrize("value", [1, 0, "true", []])
def test_a_flag_is_true_or_false(value: object) -> None:
    with pytest.raises(ValueError, match=r"^tied = .*: expected true or false$"):
        flag({"tied": value}, "tied")


@pytest.mark.parametrize("value", ["0", 3, [-1], [4097], [True], [1.0], [None]])
def test_a_list_of_layers_has_whole_numbers(value: object) -> None:
    with pytest.raises(ValueError, match=r"^dense = .*: expected a list of whole numbers"):
        indices({"dense": value}, "dense")
    assert indices({"dense": [0, 4096]}, "dense") == [0, 4096]


@given(st.text() | st.integers() | st.floats() | st.lists(st.text()) | st.dictionaries(st.text(), st.text()))
def test_any_value_is_shown_as_one_short_printable_line(value: object) -> None:
    text = shown(value)
    assert text.isascii()
    assert text.isprintable()
    assert len(text) <= 60
