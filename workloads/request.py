"""One request to send. A plan is an iterator of them."""

from __future__ import annotations

from typing import Any

import msgspec

Messages = tuple[dict[str, Any], ...]  # OpenAI's, as a data set has them


class Request(msgspec.Struct, frozen=True, kw_only=True):
    index: int  # place in the level's plan, from 0
    level: int
    prompt: str | tuple[int, ...] | Messages  # text, token ids (completions API only), or messages; of this turn only
    want_input_tokens: int | None  # as the server should count them, chat template included; None: nobody can know
    want_output_tokens: int
    due_us: int | None = None  # open loop: offset from the level's start; closed loop: None
    class_name: str | None = None  # of a mix
    extra: dict[str, Any] = {}  # fields of the body besides prompt and length: tools, response_format
    item: int | None = None  # place in the data set
    group: int | None = None  # of those that share a prefix
    shared_tokens: int = 0  # at its start, with the others of its group
    leave_us: int | None = None  # the user leaves so long after due, if the answer has not ended
    turn: int = 0  # of a conversation
    think_us: int = 0  # between the end of the turn before and this one
    then: Request | None = None  # the next turn: its prompt is added to what was said so far
