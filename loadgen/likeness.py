"""Events of a stream that differ in their text alone, which need not be decoded one by one. No I/O.

Nearly all events of a stream are like that: id, model, index and the rest stay the same. Where one begins and ends as
another did that has been decoded, and holds text in between that is not escaped, its meaning is the same.
"""

import re

import msgspec

from loadgen.dialects import NotJsonError, read

_PLAIN_TEXT = re.compile(rb'[^"\\\x00-\x1f]+')  # within a JSON string, and none of it escaped


class Likeness(msgspec.Struct, frozen=True, gc=False):
    """What stands before and after the text in one event of a stream, which most of its other events share."""

    before: bytes
    after: bytes
    text_from: int
    text_to: int  # from the end

    def covers(self, event: bytes) -> bool:
        """Whether an event differs from this one in its text alone."""
        return (
            event.startswith(self.before)
            and event.endswith(self.after)
            and _PLAIN_TEXT.fullmatch(event, self.text_from, len(event) + self.text_to) is not None
        )

    def surrounds(self, event: bytes) -> bool:
        """Whether an event begins and ends as this one, whatever is in between."""
        return event.startswith(self.before) and event.endswith(self.after)


def likeness(event: bytes, name: bytes, data: bytes, text: str) -> Likeness | None:
    """Of an event in its bytes, and decoded; None where it is not plain which part of them is the text."""
    quoted = msgspec.json.encode(text)
    before, _, after = event.partition(quoted)
    if not after or quoted in after or not _is_read_there(name, data, text, quoted):
        return None
    return Likeness(before + b'"', b'"' + after, len(before) + 1, -len(after) - 1)


def _is_read_there(name: bytes, data: bytes, text: str, quoted: bytes) -> bool:
    """Whether the text changes with this place: else it stands elsewhere, escaped or in parts, and this is another."""
    try:
        return read(name, data.replace(quoted, quoted[:-1] + b'+"')).text == text + "+"
    except NotJsonError:  # nor even a string
        return False
