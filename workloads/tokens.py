"""What prompts are made of, so that the server counts exactly the wanted tokens.

A prompt is an opening word and further words, each of which adds exactly one token after a space. Which words do, and
what the opening costs with the chat template around it, is asked of the server: `calibrate`. It rests on one
assumption, that the cost of words adds up (tokenizers split before a space), and checks it on a random prompt before it
returns.
"""

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from workloads.seeds import stream
from workloads.words import WORDS

OPENING = "The"
FEWEST_WORDS = 16  # fewer make prompts too alike: see the head in workloads.text

CountedBy = Literal["tokenize", "usage", "tokenizer", "guess"]


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    words: tuple[str, ...]  # each adds exactly one token after a space
    opening: str = OPENING  # the first word of every text prompt
    base_tokens: int  # of a prompt that is only the opening, chat template included
    ids: tuple[int, ...] | None = None  # of ordinary tokens, for prompts as token ids
    counted_by: CountedBy


class CalibrationFailed(ValueError):  # noqa: N818 (what happened, not a mistake of the program)
    """The server's counts do not add up, or too few words are one token. What is left is `guess`."""


def guess() -> Vocabulary:
    """For a server that cannot count: a word is taken for a token, and the chat template for nothing."""
    return Vocabulary(words=WORDS[:256], base_tokens=1, counted_by="guess")


async def calibrate(
    count: Callable[[str], Awaitable[int]],
    *,
    counted_by: CountedBy,
    want_words: int = 256,
    max_calls: int = 64,
    probe_words: int = 128,
) -> Vocabulary:
    """Ask `count`, what the server counts for a prompt of this text, at most `max_calls` times (4 where all words fit).

    No probe is longer than `probe_words` words after the opening. Where calls run out, the words found so far are used;
    raises CalibrationFailed where they are fewer than FEWEST_WORDS, or where a random prompt of them counts otherwise
    than they say. What `count` raises comes through.
    """
    base = await count(OPENING)
    if base < 1:
        raise CalibrationFailed(f"the server counts {base} tokens for the prompt {OPENING!r}")

    async def excess(words: tuple[str, ...]) -> int:
        extra = await count(" ".join((OPENING, *words))) - base - len(words)
        if extra < 0:
            raise CalibrationFailed(f"the server counts {-extra} tokens too few for {len(words)} words")
        return extra

    found = await _one_token_words(excess, want_words, max_calls - 2, probe_words)
    if len(found) < FEWEST_WORDS:
        raise CalibrationFailed(
            f"only {len(found)} words were found that are one token by the server's count ({FEWEST_WORDS} are needed)"
        )
    picks = stream(0, "calibration").integers(len(found), size=probe_words)
    if wrong := await excess(tuple(found[i] for i in picks)):
        raise CalibrationFailed(
            f"the server's count does not add up: a prompt of {base + probe_words} tokens was counted as {wrong:+d}"
        )
    return Vocabulary(words=found, base_tokens=base, counted_by=counted_by)


async def _one_token_words(
    excess: Callable[[tuple[str, ...]], Awaitable[int]], want: int, max_calls: int, group_words: int
) -> tuple[str, ...]:
    """Count words in groups. A group without excess tokens is good as a whole; of the others, the one with the smallest
    share of excess (of equals, the smallest) is halved next: one half is counted, the other has the rest."""
    untried = [WORDS[i : i + group_words] for i in range(0, len(WORDS), group_words)]
    mixed: list[tuple[tuple[str, ...], int]] = []
    good: set[str] = set()
    calls = 0
    while len(good) < want and calls < max_calls and (untried or mixed):
        calls += 1
        if untried:
            group = untried.pop(0)
            halves = [(group, await excess(group))]
        else:
            mixed.sort(key=lambda pair: (abs(pair[1]) / len(pair[0]), len(pair[0])))
            group, extra = mixed.pop(0)
            left, right = group[: len(group) // 2], group[len(group) // 2 :]
            left_extra = await excess(left)
            halves = [(left, left_extra), (right, extra - left_extra)]
        good.update(word for words, extra in halves if extra == 0 for word in words)
        mixed += [(words, extra) for words, extra in halves if extra != 0 and len(words) > 1]
    return tuple([word for word in WORDS if word in good][:want])
