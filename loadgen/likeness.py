"""Events of a stream that differ in their text alone, which need not be decoded one by one. No I/O.

Nearly all events of a stream are like that: id, model, index and the rest stay the same. Where one begins and ends as
another did that has been decoded, and holds text in between that is not escaped, its meaning is the same.
"""

import re

import msgspec

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


def likeness(event: bytes, text: str) -> Likeness | None:
    """None where it is not plain which part of the event is the text."""
    quoted = msgspec.json.encode(text)
    before, _, after = event.partition(quoted)
    if not after or quoted in after:
        return None
    return Likeness(before + b'"', b'"' + after, len(before) + 1, -len(after) - 1)
