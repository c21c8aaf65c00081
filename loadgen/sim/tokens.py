"""A deterministic tokenizer, and the text that the engine answers with.

A text is cut before every space, and each part into pieces: up to 12 letters or digits, up to 3 other signs, up to 8
blanks, each with the space before it. So short words with single spaces between them are one token each, and
`encode(a + " b") == encode(a) + encode(" b")`: a conversation's next prompt starts with the tokens of the last one.
"""

import re
import zlib
from collections.abc import Iterable
from functools import lru_cache
from importlib import resources
from itertools import chain
from random import Random

VOCABULARY = 128_000
_BEGIN, _ROLE, _ROLE_END, _MESSAGE_END = range(4)
_FIRST_PIECE = 256

_PIECE = re.compile(r" ?\w{1,12}| ?[^\w\s]{1,3}|\s{1,8}")


def encode(text: str) -> list[int]:
    first, *rest = text.split(" ")
    pieces = _spaced_pieces if max(map(len, rest), default=0) <= _REMEMBERED_CHARS else _cut_spaced
    return [*_cut(first), *chain.from_iterable(map(pieces, rest))]


def encode_prompt(text: str) -> tuple[int, ...]:
    """As a text completion reads it: one token to begin with, then the text."""
    return (_BEGIN, *encode(text))


def encode_chat(messages: Iterable[tuple[str, str]], *, add_generation_prompt: bool = True) -> tuple[int, ...]:
    """(role, content) pairs in a chat template: 4 tokens around each content, and 1 or 4 around the whole."""
    ids = [_BEGIN]
    for role, content in messages:
        ids += (_ROLE, _piece_id(role), _ROLE_END, *encode(content), _MESSAGE_END)
    if add_generation_prompt:
        ids += (_ROLE, _piece_id("assistant"), _ROLE_END)
    return tuple(ids)


def output_text(start: int, count: int) -> str:
    """`count` tokens of the endless answer from its token `start` on: words, each with the space before it."""
    start %= len(_ANSWER)
    if count == 1:
        return _ANSWER[start]
    return "".join(_ANSWER[(start + i) % len(_ANSWER)] for i in range(count))


def output_ids(start: int, count: int) -> tuple[int, ...]:
    """What `encode` makes of `output_text(start, count)`."""
    start %= len(_ANSWER)
    rounds = -(-(start + count) // len(_ANSWER))
    return (_ANSWER_IDS * rounds)[start : start + count]


def _piece_id(piece: str) -> int:
    return _FIRST_PIECE + zlib.crc32(piece.encode("utf-8", "surrogatepass")) % (VOCABULARY - _FIRST_PIECE)


def _cut(part: str) -> tuple[int, ...]:
    return tuple(map(_piece_id, _PIECE.findall(part)))


def _cut_spaced(part: str) -> tuple[int, ...]:
    return _cut(" " + part)


# Words come again and again; what is longer than any word would only fill the memory.
_REMEMBERED_CHARS = 64
_spaced_pieces = lru_cache(maxsize=1 << 16)(_cut_spaced)


_WORDS = resources.files("loadgen.sim").joinpath("words.txt").read_text(encoding="ascii").split()
_ANSWER = tuple(" " + word for word in Random(0).choices(_WORDS, k=4096))
_ANSWER_IDS = tuple(encode("".join(_ANSWER)))
