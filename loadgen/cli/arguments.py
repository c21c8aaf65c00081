"""The command line in the process list, which all users of a machine can read.

What a key may stand in is hidden there: user and password of a URL, its query, the values of --header and --body.
"""

import re
import sys
from collections.abc import Sequence

from setproctitle import setproctitle

HIDDEN = "***"
_FLAGS = ("--header", "--body")
_IN_A_URL = re.compile(r"(?<=://)[^/?#]+(?=@)|(?<=\?)\S+")
_USER_ALONE = re.compile(r"^(?!sim:)[^/?#:@]+:[^/?#]+(?=@)")  # user:password@host, and not sim:MODEL@GPU


def hide_keys() -> None:
    setproctitle(" ".join(["loadgen", *shown(sys.argv[1:])]))


def shown(words: Sequence[str]) -> list[str]:
    return [
        HIDDEN if before in _FLAGS else without_keys(_USER_ALONE.sub(HIDDEN, word))
        for before, word in zip(["", *words], words, strict=False)
    ]


def without_keys(text: str) -> str:
    """One word of a command line, or a message that repeats one."""
    flag, equals, _ = text.partition("=")
    return flag + equals + HIDDEN if equals and flag in _FLAGS else _IN_A_URL.sub(HIDDEN, text)
