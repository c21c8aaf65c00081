"""The command line in the process list, which all users of a machine can read.

What a key may stand in is painted over there: user and password of a URL, its query, the values of --header and --body.
"""

import contextlib
import re
from pathlib import Path

_FLAGS = (b"--header", b"--body")
_IN_A_URL = re.compile(rb"(?<=://)[^/?#]+(?=@)|(?<=\?).+")
_USER_ALONE = re.compile(rb"^(?!sim:)[^/?#:@]+:[^/?#]+(?=@)")  # user:password@host, and not sim:MODEL@GPU
_FIRST, _LAST = 45, 46  # of /proc/self/stat, counted from what follows the name: where the arguments lie in memory


def paint_over() -> None:
    """Where the system lets a process do that."""
    with contextlib.suppress(OSError):
        numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        first, last = int(numbers[_FIRST]), int(numbers[_LAST])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(first)
            shown = painted(memory.read(last - first))
            memory.seek(first)
            memory.write(shown)


def painted(arguments: bytes) -> bytes:
    """Each ends with a zero byte; nothing changes its place."""
    words = arguments.split(b"\0")
    for place, word in enumerate(words):
        flag, equals, value = word.partition(b"=")
        if place and words[place - 1] in _FLAGS:
            words[place] = _stars(word)
        elif equals and flag in _FLAGS:
            words[place] = flag + equals + _stars(value)
        else:
            words[place] = _IN_A_URL.sub(_over, _USER_ALONE.sub(_over, word))
    return b"\0".join(words)


def _over(found: re.Match[bytes]) -> bytes:
    return _stars(found[0])


def _stars(text: bytes) -> bytes:
    return b"*" * len(text)
