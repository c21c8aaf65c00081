import asyncio
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from workloads.text import prompt, text_prompts
from workloads.tokens import FEWEST_WORDS, CalibrationFailed, Vocabulary, calibrate, guess
from workloads.words import WORDS

TEMPLATE_TOKENS = 7


class Counter:
    """A server that counts: the template, and each word by its cost (the opening by 2)."""

    def __init__(self, cost: Callable[[str], int]) -> None:
        self.cost, self.calls, self.longest = cost, 0, 0

    async def __call__(self, text: str) -> int:
        self.calls += 1
        _, *words = text.split(" ")
        self.longest = max(self.longest, len(words))
        return TEMPLATE_TOKENS + 2 + sum(map(self.cost, words))


def calibrated(counter: Counter, max_calls: int = 64, want_words: int = 256, probe_words: int = 128) -> Vocabulary:
    return asyncio.run(
        calibrate(counter, counted_by="usage", max_calls=max_calls, want_words=want_words, probe_words=probe_words)
    )


def test_the_words_are_ordinary_and_distinct() -> None:
    assert len(WORDS) == len(set(WORDS)) >= 600
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)


def test_four_calls_where_every_word_is_one_token() -> None:
    counter = Counter(lambda word: 1)
    vocabulary = calibrated(counter)
    assert counter.calls == 4
    assert vocabulary.words == WORDS[:256]
    assert vocabulary.base_tokens == TEMPLATE_TOKENS + 2
    assert vocabulary.counted_by == "usage"


costly_words = st.sets(st.sampled_from(WORDS), max_size=len(WORDS)) | st.integers(1, 40).map(lambda n: set(WORDS[::n]))


@settings(deadline=None, max_examples=60)
@given(costly_words, st.integers(3, 80), st.integers(16, 300), st.integers(16, 200))
def test_no_word_of_two_tokens_gets_in(costly: set[str], max_calls: int, want: int, probe: int) -> None:
    counter = Counter(lambda word: 2 if word in costly else 1)
    try:
        words = calibrated(counter, max_calls, want, probe).words
    except CalibrationFailed as error:
        assert "only" in str(error)  # noqa: PT017 (either outcome is right)
    else:
        assert not costly & set(words)
        assert FEWEST_WORDS <= len(words) <= want
        assert len(set(words)) == len(words)
    assert counter.calls <= max_calls
    assert counter.longest <= probe


@pytest.mark.parametrize("every", [2, 3, 10, 100])
def test_enough_words_are_found_where_many_cost_more(every: int) -> None:
    costly = set(WORDS[::every])
    counter = Counter(lambda word: 3 if word in costly else 1)
    assert len(calibrated(counter).words) >= (256 if every == 100 else 40 if every > 2 else FEWEST_WORDS)


def test_it_fails_where_few_words_are_one_token() -> None:
    good = set(WORDS[:10])
    with pytest.raises(CalibrationFailed, match="only 10 words"):
        calibrated(Counter(lambda word: 1 if word in good else 2), max_calls=2000)


def test_it_fails_where_counts_do_not_add_up() -> None:
    async def changes(text: str) -> int:  # as a server that begins to add a preamble
        asked.append(text)
        return len(text.split(" ")) + (3 if len(asked) > 3 else 0)

    asked: list[str] = []
    with pytest.raises(CalibrationFailed, match=r"129 tokens was counted as \+3"):
        asyncio.run(calibrate(changes, counted_by="usage"))


def test_a_server_that_always_counts_the_same_is_not_asked_again_and_again() -> None:
    async def constant(text: str) -> int:
        asked.append(text)
        return 100

    asked: list[str] = []
    with pytest.raises(CalibrationFailed, match="too few for 128 words"):
        asyncio.run(calibrate(constant, counted_by="usage"))
    assert len(asked) == 2


def test_it_fails_where_nothing_is_counted() -> None:
    async def zero(text: str) -> int:
        return 0

    with pytest.raises(CalibrationFailed, match="0 tokens"):
        asyncio.run(calibrate(zero, counted_by="usage"))


def test_a_guess_has_words() -> None:
    vocabulary = guess()
    assert len(vocabulary.words) >= FEWEST_WORDS
    assert (vocabulary.base_tokens, vocabulary.ids, vocabulary.counted_by) == (1, None, "guess")


def trained(vocab_size: int, *, sentencepiece: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if sentencepiece:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        alphabet = []
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[::4]
    tokenizer.train([str(path) for path in files], trainer)
    return tokenizer


@pytest.mark.parametrize(("vocab_size", "sentencepiece"), [(2000, False), (8000, False), (6000, True)])
async def test_prompts_are_exact_by_a_real_tokenizer(vocab_size: int, sentencepiece: bool) -> None:
    tokenizer = trained(vocab_size, sentencepiece=sentencepiece)
    calls = 0

    async def count(text: str) -> int:
        nonlocal calls
        calls += 1
        return len(tokenizer.encode(text).ids) + TEMPLATE_TOKENS

    vocabulary = await calibrate(count, counted_by="tokenizer")
    assert calls <= 64
    assert len(vocabulary.words) >= 32
    prompts = text_prompts(vocabulary, seed=0, salt="run")
    for tokens in [*range(vocabulary.base_tokens, 60), 128, 1024, 4000]:
        assert await count(prompt(prompts, tokens, number=tokens)) == tokens
