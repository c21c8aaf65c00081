import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.text import NUMBER_LIMIT, IdPrompts, TextPrompts, id_prompts, prompt_ids, prompt_text, text_prompts
from workloads.tokens import FEWEST_WORDS, Vocabulary, guess
from workloads.words import WORDS

SIZES = (FEWEST_WORDS, 100, 256, len(WORDS))


def vocabulary(size: int, base_tokens: int = 1) -> Vocabulary:
    return msgspec.structs.replace(
        guess(), words=WORDS[:size], base_tokens=base_tokens, ids=tuple(range(1000, 1000 + size))
    )


# Prepared once: a salt and a vocabulary serve a whole run.
TEXTS = {(n, salt): text_prompts(vocabulary(n, 9), seed=0, salt=salt) for n in SIZES for salt in ("one", "two")}
IDS = {(n, salt): id_prompts(vocabulary(n), seed=0, salt=salt) for n in SIZES for salt in ("one", "two")}

prepared_text = st.sampled_from(sorted(TEXTS)).map(TEXTS.__getitem__)
prepared_ids = st.sampled_from(sorted(IDS)).map(IDS.__getitem__)
lengths = st.integers(0, 300) | st.sampled_from([1023, 65_536, 65_545, 200_000])
numbers = st.integers(0, NUMBER_LIMIT - 1) | st.integers(0, 3000)
two_numbers = st.tuples(numbers, numbers).filter(lambda both: both[0] != both[1])


def counted(prompts: TextPrompts, text: str) -> int:
    opening, *words = text.split(" ")
    assert opening == prompts.vocabulary.opening
    assert set(words) <= set(prompts.vocabulary.words)
    return prompts.vocabulary.base_tokens + len(words)


@given(prepared_text, lengths, numbers)
def test_text_has_exactly_the_tokens(prompts: TextPrompts, tokens: int, number: int) -> None:
    text = prompt_text(prompts, tokens, number)
    assert counted(prompts, text) == max(tokens, prompts.vocabulary.base_tokens)
    assert text == prompt_text(prompts, tokens, number)


@given(prepared_ids, lengths, numbers)
def test_ids_are_exactly_as_many(prompts: IdPrompts, tokens: int, number: int) -> None:
    ids = prompt_ids(prompts, tokens, number)
    assert len(ids) == max(tokens, 1)
    assert set(ids) <= set(prompts.ids)


@given(prepared_text, st.integers(25, 200), st.integers(25, 200), two_numbers)
def test_first_words_differ_within_a_run(prompts: TextPrompts, a: int, b: int, both: tuple[int, int]) -> None:
    # The opening is one of the 16; what a chat template puts before it is the same for all and not ours.
    first, second = (prompt_text(prompts, n, number).split(" ")[:16] for n, number in zip((a, b), both, strict=True))
    assert first != second


@given(prepared_ids, st.integers(16, 200), st.integers(16, 200), two_numbers)
def test_first_ids_differ_within_a_run(prompts: IdPrompts, a: int, b: int, both: tuple[int, int]) -> None:
    assert prompt_ids(prompts, a, both[0])[:16] != prompt_ids(prompts, b, both[1])[:16]


@given(st.sampled_from(SIZES), numbers, numbers)
def test_first_tokens_differ_between_runs(size: int, a: int, b: int) -> None:
    one, two = ((size, "one"), (size, "two"))
    assert prompt_text(TEXTS[one], 50, a).split(" ")[:16] != prompt_text(TEXTS[two], 50, b).split(" ")[:16]
    assert prompt_ids(IDS[one], 50, a)[:16] != prompt_ids(IDS[two], 50, b)[:16]


@pytest.mark.parametrize("size", SIZES)
def test_consecutive_prompts_differ_right_after_the_opening(size: int) -> None:
    prompts = TEXTS[size, "one"]
    seconds = {prompt_text(prompts, prompts.vocabulary.base_tokens + 1, number).split(" ")[1] for number in range(size)}
    assert len(seconds) == size


def test_each_salt_makes_another_head() -> None:
    salts = ["", "a", "b", "ab", "a b", "0", "é"]
    heads = {prompt_text(text_prompts(vocabulary(256), seed=0, salt=salt), 14, number=5) for salt in salts}
    assert len(heads) == len(salts)


def test_the_filler_depends_on_the_seed_not_on_the_salt() -> None:
    assert TEXTS[256, "one"].filler == TEXTS[256, "two"].filler
    assert TEXTS[256, "one"].filler != text_prompts(vocabulary(256), seed=1, salt="one").filler


def test_too_few_words_are_refused() -> None:
    with pytest.raises(ValueError, match="15 words"):
        text_prompts(vocabulary(15), seed=0, salt="")


def test_ids_are_refused_where_there_are_none() -> None:
    with pytest.raises(ValueError, match="ids"):
        id_prompts(guess(), seed=0, salt="")
