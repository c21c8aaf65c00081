"""Prompts of an exact number of tokens, never twice alike.

    opening | number, least digit first | salt | a slice of the filler

Number and salt are written in words (or ids) as digits. Any two prompts of a run have different numbers, so they differ
in the first few words; the same number in two runs differs in the salt. A server's prefix cache therefore finds no more
than the chat template. Where a prompt is too short for both, the salt is left out first, then the high digits of the
number. The filler is one seeded sequence made once: a prompt is a slice of it, because prompts are made while streams
are being timed.
"""

import hashlib

import msgspec

from workloads.seeds import stream
from workloads.tokens import FEWEST_WORDS, Vocabulary

NUMBER_LIMIT = 2**40  # numbers lie under it
HEAD_DIGITS = 15  # number and salt, so that 16 tokens hold both and the opening
_SALT_BITS = 40
_FILLER_TOKENS = 1 << 16
_STRIDE = 40_503  # odd, near 2**16 over the golden ratio: slices of consecutive numbers begin far apart


class TextPrompts(msgspec.Struct, frozen=True, kw_only=True):
    vocabulary: Vocabulary
    number_digits: int
    salt_words: tuple[str, ...]
    filler: str  # of words with a space before each
    offsets: list[int]  # in `filler`, where each word begins, and its length


class IdPrompts(msgspec.Struct, frozen=True, kw_only=True):
    ids: tuple[int, ...]
    number_digits: int
    salt_ids: tuple[int, ...]
    filler: tuple[int, ...]


def text_prompts(vocabulary: Vocabulary, *, seed: int, salt: str) -> TextPrompts:
    """Prepare `prompt_text` (some 20 ms)."""
    words = vocabulary.words
    number_digits, salt_digits = _layout(len(words), salt)
    filler = [" " + words[i] for i in stream(seed, "filler").integers(len(words), size=_FILLER_TOKENS).tolist()]
    offsets = [0]
    for word in filler:
        offsets.append(offsets[-1] + len(word))
    return TextPrompts(
        vocabulary=vocabulary,
        number_digits=number_digits,
        salt_words=tuple(words[i] for i in salt_digits),
        filler="".join(filler),
        offsets=offsets,
    )


def id_prompts(vocabulary: Vocabulary, *, seed: int, salt: str) -> IdPrompts:
    """Prepare `prompt_ids`. Raises ValueError where the vocabulary has no ids."""
    if vocabulary.ids is None:
        raise ValueError("prompts as token ids need a vocabulary with ids, and this server did not give any")
    ids = vocabulary.ids
    number_digits, salt_digits = _layout(len(ids), salt)
    picks = stream(seed, "filler").integers(len(ids), size=_FILLER_TOKENS).tolist()
    return IdPrompts(
        ids=ids,
        number_digits=number_digits,
        salt_ids=tuple(ids[i] for i in salt_digits),
        filler=tuple(ids[i] for i in picks),
    )


def prompt_text(prompts: TextPrompts, tokens: int, number: int) -> str:
    """A prompt that counts as `tokens`; only the opening, which counts as base_tokens, where that is more."""
    vocabulary = prompts.vocabulary
    wanted = tokens - vocabulary.base_tokens
    if wanted <= 0:
        return vocabulary.opening
    words = vocabulary.words
    head = [words[i] for i in _digits(number, len(words), prompts.number_digits)]
    head += prompts.salt_words
    text = " ".join([vocabulary.opening, *head[:wanted]])
    rest = wanted - len(head)
    if rest <= 0:
        return text
    filler, offsets = prompts.filler, prompts.offsets
    start = number * _STRIDE % _FILLER_TOKENS
    if start + rest <= _FILLER_TOKENS:
        return text + filler[offsets[start] : offsets[start + rest]]
    rounds, end = divmod(start + rest, _FILLER_TOKENS)
    return text + filler[offsets[start] :] + filler * (rounds - 1) + filler[: offsets[end]]


def prompt_ids(prompts: IdPrompts, tokens: int, number: int) -> tuple[int, ...]:
    """A prompt of `tokens` ids, at least one."""
    wanted = max(tokens, 1)
    ids = prompts.ids
    head = tuple([ids[i] for i in _digits(number, len(ids), prompts.number_digits)]) + prompts.salt_ids
    rest = wanted - len(head)
    if rest <= 0:
        return head[:wanted]
    start = number * _STRIDE % _FILLER_TOKENS
    rounds, end = divmod(start + rest, _FILLER_TOKENS)
    if rounds == 0:
        return head + prompts.filler[start:end]
    return head + prompts.filler[start:] + prompts.filler * (rounds - 1) + prompts.filler[:end]


def _layout(base: int, salt: str) -> tuple[int, list[int]]:
    """How many digits any number has, and the digits of the salt, in this base."""
    if base < FEWEST_WORDS:
        raise ValueError(
            f"a vocabulary of {base} words is too small for prompts that differ: {FEWEST_WORDS} are needed"
        )
    number_digits = _digits_for(NUMBER_LIMIT, base)
    salt_digits = min(_digits_for(1 << _SALT_BITS, base), HEAD_DIGITS - number_digits)
    value = int.from_bytes(hashlib.sha256(salt.encode()).digest())
    return number_digits, _digits(value, base, salt_digits)


def _digits_for(limit: int, base: int) -> int:
    digits = 1
    while base**digits < limit:
        digits += 1
    return digits


def _digits(value: int, base: int, count: int) -> list[int]:
    """The `count` lowest digits, the lowest first."""
    digits = []
    for _ in range(count):
        value, digit = divmod(value, base)
        digits.append(digit)
    return digits
