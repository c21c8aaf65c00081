"""Prompts of an exact number of tokens, alike where they are meant to be and nowhere else.

    opening | what its group shares | number, least digit first | salt | a slice of the filler

Number and salt are written in words (or ids) as digits. Any two prompts of a run have different numbers, so they differ
in the first few words; the same number in two runs differs in the salt. A server's prefix cache therefore finds no more
than the chat template. Where a prompt is too short for both, the salt is left out first, then the high digits of the
number. The filler is one seeded sequence made once: a prompt is a slice of it, because prompts are made while streams
are being timed.

What a group shares is made in the same way, from a number of its own that no prompt has; so is each block of a trace.
The server's cache then finds, of any prompt of the group after the first, in blocks of B tokens:

    floor((h + shared) / B) * B     h: tokens before what is shared: the head of the chat template and the opening;
                                    0 where prompts are ids (or what the server puts before them)

and one block more only where what is shared ends less than `number_digits` tokens before the end of a block: prompts
whose numbers end in the same digits have that many more words in common.
"""

import hashlib
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Generic, TypeVar

import msgspec

from workloads.seeds import stream
from workloads.tokens import FEWEST_WORDS, Vocabulary

NUMBER_LIMIT = 2**40  # numbers lie under it
HEAD_DIGITS = 15  # number and salt, so that 16 tokens hold both and the opening
_SALT_BITS = 40
_FILLER_TOKENS = 1 << 16
_MOST_TAILS = 4096
_STRIDE = 40_503  # odd, near 2**16 over the golden ratio: slices of consecutive numbers begin far apart

Piece = TypeVar("Piece", str, tuple[int, ...])  # any number of tokens of a prompt, as text or as ids


class Prompts(msgspec.Struct, Generic[Piece], frozen=True, kw_only=True):
    """What prompts are made of. In text, each word has a space before it, but for the opening."""

    tokens: tuple[Piece, ...]  # that a prompt is made of, each by itself
    opening: Piece
    base_tokens: int  # of a prompt that is only the opening
    number_digits: int
    salt: tuple[Piece, ...]  # its digits, as tokens
    filler: Piece
    offsets: Sequence[int]  # in the filler, where each of its tokens begins, and its end
    join: Callable[[list[Piece]], Piece]
    tails: dict[int, Piece]  # of heads made lately: all digits of a number but the lowest, and the salt


def text_prompts(vocabulary: Vocabulary, *, seed: int, salt: str) -> Prompts[str]:
    """Prepare prompts that are text (some 20 ms)."""
    words = tuple(f" {word}" for word in vocabulary.words)
    number_digits, salt_digits = _layout(len(words), salt)
    filler = [words[i] for i in _filler(seed, len(words))]
    offsets = [0]
    for word in filler:
        offsets.append(offsets[-1] + len(word))
    return Prompts(
        tokens=words,
        opening=vocabulary.opening,
        base_tokens=vocabulary.base_tokens,
        number_digits=number_digits,
        salt=tuple(words[i] for i in salt_digits),
        filler="".join(filler),
        offsets=offsets,
        join="".join,
        tails={},
    )


def id_prompts(vocabulary: Vocabulary, *, seed: int, salt: str) -> Prompts[tuple[int, ...]]:
    """Prepare prompts that are token ids. Raises ValueError where the vocabulary has no ids."""
    if vocabulary.ids is None:
        raise ValueError("prompts as token ids need a vocabulary with ids, and this server did not give any")
    ids = vocabulary.ids
    number_digits, salt_digits = _layout(len(ids), salt)
    return Prompts(
        tokens=tuple((one,) for one in ids),
        opening=(),
        base_tokens=0,
        number_digits=number_digits,
        salt=tuple((ids[i],) for i in salt_digits),
        filler=tuple(ids[i] for i in _filler(seed, len(ids))),
        offsets=range(_FILLER_TOKENS + 1),
        join=lambda pieces: tuple(chain.from_iterable(pieces)),
        tails={},
    )


def _filler(seed: int, base: int) -> list[int]:
    picks: list[int] = stream(seed, "filler").integers(base, size=_FILLER_TOKENS).tolist()
    return picks


def prompt(prompts: Prompts[Piece], tokens: int, number: int) -> Piece:
    """A prompt that counts as `tokens`. Where the opening alone counts as more it is only that; it is never empty."""
    wanted = tokens - prompts.base_tokens
    if wanted <= 0 and prompts.opening:
        return prompts.opening
    return prompts.opening + passage(prompts, max(wanted, 1), number)


def prompt_of_group(prompts: Prompts[Piece], tokens: int, number: int, shared: int, group_number: int) -> Piece:
    """`prompt` with `shared` tokens more, which every prompt of the group has in front."""
    own = passage(prompts, max(tokens - prompts.base_tokens, 0), number)
    return prompts.opening + passage(prompts, shared, group_number) + own


def prompt_of_blocks(prompts: Prompts[Piece], tokens: int, numbers: Sequence[int], block_tokens: int) -> Piece:
    """A prompt that counts as `tokens`, of one block for each number; the last one is as long as is left for it."""
    wanted = max(tokens - prompts.base_tokens, 0)
    whole = max(min(len(numbers), -(-wanted // block_tokens)) - 1, 0)
    blocks = [passage(prompts, block_tokens, number) for number in numbers[:whole]]
    blocks.append(passage(prompts, wanted - whole * block_tokens, numbers[whole]))
    return prompts.opening + prompts.join(blocks)


def passage(prompts: Prompts[Piece], count: int, number: int) -> Piece:
    """`count` tokens, the number first. A shorter passage of the same number is its beginning."""
    rest = count - prompts.number_digits - len(prompts.salt)
    if rest < 0:
        return prompts.join(_written(prompts, number, prompts.number_digits)[:count])
    start = number * _STRIDE % _FILLER_TOKENS
    filler, offsets = prompts.filler, prompts.offsets
    rounds, end = divmod(start + rest, _FILLER_TOKENS)
    if rounds == 0:
        return _head(prompts, number) + filler[offsets[start] : offsets[end]]
    return _head(prompts, number) + filler[offsets[start] :] + filler * (rounds - 1) + filler[: offsets[end]]


def _head(prompts: Prompts[Piece], number: int) -> Piece:
    """Number and salt. Consecutive numbers differ in the lowest digit, mostly."""
    high, low = divmod(number, len(prompts.tokens))
    tail = prompts.tails.get(high)
    if tail is None:
        if len(prompts.tails) >= _MOST_TAILS:
            prompts.tails.clear()
        tail = prompts.tails[high] = prompts.join(_written(prompts, high, prompts.number_digits - 1))
    return prompts.tokens[low] + tail


def _written(prompts: Prompts[Piece], number: int, digits: int) -> list[Piece]:
    written = [prompts.tokens[digit] for digit in _digits(number, len(prompts.tokens), digits)]
    written.extend(prompts.salt)
    return written


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
