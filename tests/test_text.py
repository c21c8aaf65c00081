import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.text import (
    HEAD_DIGITS,
    NUMBER_LIMIT,
    Prompts,
    id_prompts,
    passage,
    prompt,
    prompt_of_blocks,
    prompt_of_group,
    text_prompts,
)
from workloads.tokens import FEWEST_WORDS, Vocabulary, guess
from workloads.words import WORDS

Ids = tuple[int, ...]

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


def counted(prompts: Prompts[str], text: str) -> int:
    opening, *words = text.split(" ")
    assert opening == prompts.opening
    assert {f" {word}" for word in words} <= set(prompts.tokens)
    return prompts.base_tokens + len(words)


@given(prepared_text, lengths, numbers)
def test_text_has_exactly_the_tokens(prompts: Prompts[str], tokens: int, number: int) -> None:
    text = prompt(prompts, tokens, number)
    assert counted(prompts, text) == max(tokens, prompts.base_tokens)
    assert text == prompt(prompts, tokens, number)


@given(prepared_ids, lengths, numbers)
def test_ids_are_exactly_as_many(prompts: Prompts[Ids], tokens: int, number: int) -> None:
    ids = prompt(prompts, tokens, number)
    assert len(ids) == max(tokens, 1)
    assert {(one,) for one in ids} <= set(prompts.tokens)


@given(prepared_text, st.integers(25, 200), st.integers(25, 200), two_numbers)
def test_first_words_differ_within_a_run(prompts: Prompts[str], a: int, b: int, both: tuple[int, int]) -> None:
    # The opening is one of the 16; what a chat template puts before it is the same for all and not ours.
    first, second = (prompt(prompts, n, number).split(" ")[:16] for n, number in zip((a, b), both, strict=True))
    assert first != second


@given(prepared_ids, st.integers(16, 200), st.integers(16, 200), two_numbers)
def test_first_ids_differ_within_a_run(prompts: Prompts[Ids], a: int, b: int, both: tuple[int, int]) -> None:
    assert prompt(prompts, a, both[0])[:16] != prompt(prompts, b, both[1])[:16]


@given(st.sampled_from(SIZES), numbers, numbers)
def test_first_tokens_differ_between_runs(size: int, a: int, b: int) -> None:
    one, two = ((size, "one"), (size, "two"))
    assert prompt(TEXTS[one], 50, a).split(" ")[:16] != prompt(TEXTS[two], 50, b).split(" ")[:16]
    assert prompt(IDS[one], 50, a)[:16] != prompt(IDS[two], 50, b)[:16]


@pytest.mark.parametrize("size", SIZES)
def test_consecutive_prompts_differ_right_after_the_opening(size: int) -> None:
    prompts = TEXTS[size, "one"]
    seconds = {prompt(prompts, prompts.base_tokens + 1, number).split(" ")[1] for number in range(size)}
    assert len(seconds) == size


def test_each_salt_makes_another_head() -> None:
    salts = ["", "a", "b", "ab", "a b", "0", "é"]
    heads = {prompt(text_prompts(vocabulary(256), seed=0, salt=salt), 14, number=5) for salt in salts}
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


@given(prepared_ids, st.integers(0, 300), st.integers(0, 300), numbers)
def test_a_shorter_passage_is_the_beginning_of_a_longer_one(prompts: Prompts[Ids], a: int, b: int, number: int) -> None:
    short, long = sorted((a, b))
    assert passage(prompts, long, number)[:short] == passage(prompts, short, number)


@given(prepared_text, prepared_ids, st.integers(1, 300), st.integers(16, 400), two_numbers)
def test_a_prompt_of_a_group_has_its_own_tokens_and_what_is_shared(
    texts: Prompts[str], ids: Prompts[Ids], tokens: int, shared: int, both: tuple[int, int]
) -> None:
    number, group = both
    text = prompt_of_group(texts, tokens, number, shared, group)
    assert counted(texts, text) == max(tokens, texts.base_tokens) + shared
    assert text.startswith(texts.opening + passage(texts, shared, group))
    as_ids = prompt_of_group(ids, tokens, number, shared, group)
    assert as_ids == passage(ids, shared, group) + passage(ids, tokens, number)


def found_in_cache(sent: list[tuple[object, ...]], block: int = 16) -> list[int]:
    """Tokens of each prompt that a server with such blocks has kept from those before."""
    kept: set[tuple[object, ...]] = set()
    found = []
    for tokens in sent:
        ends = range(block, len(tokens) + 1, block)
        found.append(next((end - block for end in ends if tokens[:end] not in kept), len(tokens) // block * block))
        kept.update(tokens[:end] for end in ends)
    return found


@pytest.mark.parametrize("head", [0, 4, 11, 20])
@pytest.mark.parametrize("shared", [16, 100, 123, 256])
def test_a_cache_finds_what_is_shared_in_whole_blocks(head: int, shared: int) -> None:
    """As the module says it, with a chat template of `head` tokens before the text."""
    prompts = TEXTS[256, "one"]
    template = tuple(f"template {n}" for n in range(head))
    group = 1 << 27
    plans = [prompt_of_group(prompts, 60, n, shared, group + n % 3).split(" ") for n in range(900)]
    found = found_in_cache([template + tuple(words) for words in plans])
    before = head + 1
    assert [found[0], *found[1:3]] == [0, before // 16 * 16, before // 16 * 16]
    whole = (before + shared) // 16 * 16
    left = 16 - (before + shared) % 16
    allowed = {whole} if left >= prompts.number_digits else {whole, whole + 16}
    assert set(found[3:]) <= allowed
    assert whole in found[3:]


def test_a_cache_finds_what_ids_share_in_whole_blocks() -> None:
    plans: list[tuple[object, ...]] = [prompt_of_group(IDS[256, "one"], 60, n, 160, 1 << 27) for n in range(600)]
    assert set(found_in_cache(plans)[1:]) == {160}


@given(st.sampled_from(SIZES), two_numbers)
def test_groups_and_runs_share_nothing(size: int, groups: tuple[int, int]) -> None:
    one, other = (prompt_of_group(IDS[size, "one"], 50, 7, 64, group) for group in groups)
    assert one[:HEAD_DIGITS] != other[:HEAD_DIGITS]
    elsewhere = prompt_of_group(IDS[size, "two"], 50, 7, 64, groups[0])
    assert one[:HEAD_DIGITS] != elsewhere[:HEAD_DIGITS]


blocks = st.lists(st.integers(0, 5000), min_size=1, max_size=6, unique=True)


@given(prepared_text, prepared_ids, blocks, st.integers(1, 3200))
def test_blocks_make_a_prompt_of_the_tokens(texts: Prompts[str], ids: Prompts[Ids], of: list[int], tokens: int) -> None:
    assert counted(texts, prompt_of_blocks(texts, tokens, of, 512)) == max(tokens, texts.base_tokens)
    assert len(prompt_of_blocks(ids, tokens, of, 512)) == tokens


@given(prepared_text, prepared_ids, blocks, blocks, blocks, st.integers(1, 512), st.integers(1, 512))
def test_the_same_leading_blocks_are_the_same_beginning(
    texts: Prompts[str],
    ids: Prompts[Ids],
    leading: list[int],
    one: list[int],
    other: list[int],
    a: int,
    b: int,
) -> None:
    same = 512 * len(leading)
    first, second = (
        prompt_of_blocks(ids, same + 512 * (len(rest) - 1) + last, [*leading, *rest], 512)
        for rest, last in ((one, a), (other, b))
    )
    assert first[:same] == second[:same]
    if one[0] != other[0] and min(len(first), len(second)) >= same + HEAD_DIGITS:
        assert first[: same + HEAD_DIGITS] != second[: same + HEAD_DIGITS]
    text, longer = (prompt_of_blocks(texts, n, leading, 512) for n in (same, same + 100))
    assert longer.startswith(text)
