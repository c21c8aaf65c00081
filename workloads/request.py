"""One request to send. A plan is an iterator of them."""

import msgspec


class Request(msgspec.Struct, frozen=True, kw_only=True):
    index: int  # place in the level's plan, from 0
    level: int
    prompt: str | tuple[int, ...]  # text, or token ids (completions API only)
    want_input_tokens: int  # as the server should count them, chat template included
    want_output_tokens: int
    due_us: int | None = None  # open loop: offset from the level's start; closed loop: None
