import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.sim import tokens

WORDS = st.lists(st.from_regex(r"[a-z]{1,12}", fullmatch=True), min_size=1, max_size=30)


@given(WORDS)
def test_short_words_with_single_spaces_are_one_token_each(words: list[str]) -> None:
    assert len(tokens.encode(" ".join(words))) == len(words)


@given(st.text(max_size=80), st.text(max_size=80))
def test_text_after_a_space_does_not_change_what_is_before(before: str, after: str) -> None:
    assert tokens.encode(f"{before} {after}") == tokens.encode(before) + tokens.encode(f" {after}")


@given(st.text(max_size=200))
def test_every_text_has_valid_tokens(text: str) -> None:
    ids = tokens.encode(text)
    assert all(0 <= token < tokens.VOCABULARY for token in ids)
    assert bool(ids) == bool(text)
    assert len(ids) <= len(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("", 0), ("a", 1), (" a", 1), ("a b", 2), ("abcdefghijklm", 2), ("a, b.", 4), ("a\nb", 3), ("a  b", 3)],
)
def test_counts(text: str, count: int) -> None:
    assert len(tokens.encode(text)) == count


def test_a_word_longer_than_is_remembered_reads_the_same() -> None:
    long = "x" * 1000
    assert tokens.encode(f"a {long} b") == tokens.encode("a") + tokens.encode(f" {long}") + tokens.encode(" b")


def test_the_chat_template_adds_a_constant() -> None:
    def count(*contents: str) -> int:
        return len(tokens.encode_chat([("user", content) for content in contents]))

    assert count("one two three") == 3 + 8
    assert count("one two three", "four") == 4 + 12
    assert len(tokens.encode_chat([("user", "one")], add_generation_prompt=False)) == 6
    assert len(tokens.encode_prompt("one two")) == 3


@given(st.integers(0, 1 << 40), st.integers(1, 9000))
def test_the_answer_reads_back_as_the_tokens_it_was_made_of(start: int, count: int) -> None:
    text = tokens.output_text(start, count)
    assert tuple(tokens.encode(text)) == tokens.output_ids(start, count)
    assert len(text.split()) == count


def test_an_answer_is_the_sum_of_its_tokens_and_varied() -> None:
    pieces = [tokens.output_text(17 + i, 1) for i in range(500)]
    assert "".join(pieces) == tokens.output_text(17, 500)
    assert len(set(pieces)) > 200


def test_the_next_turn_begins_with_the_tokens_of_the_last() -> None:
    first = tokens.encode_chat([("user", "hello there")])
    answer = tokens.output_text(5, 20)
    second = tokens.encode_chat([("user", "hello there"), ("assistant", answer), ("user", "go on")])
    assert second[: len(first) + 20] == first + tokens.output_ids(5, 20)
