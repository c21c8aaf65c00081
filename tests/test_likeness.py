"""When an event says the same as another but for its text. What an answer makes of it: test_answer.py."""

import pytest

from loadgen.likeness import likeness


@pytest.mark.parametrize(
    ("event", "covered"),
    [
        (b'{"content":"bc"}', True),
        (b'{"content":"a"}', True),
        (b'{"content":""}', False),
        (b'{"content":"}', False),
        (b'{"content":"b","c":"d"}', False),
        (b'{"content":"b\\"}', False),
        (b'{"content":"b\nc"}', False),
    ],
)
def test_likeness(event: bytes, covered: bool) -> None:
    found = likeness(b'{"content":"a"}', "a")
    assert found is not None
    assert found.covers(event) == covered


@pytest.mark.parametrize(("event", "text"), [(b'{"a":"x","content":"x"}', "x"), (b'{"content":"\\u0061"}', "a")])
def test_no_likeness_where_the_text_is_in_no_single_place(event: bytes, text: str) -> None:
    assert likeness(event, text) is None
