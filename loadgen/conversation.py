"""Conversations: the next turn asks with all that was said before it, by the user and by this server."""

from typing import Any

import msgspec

from loadgen.dialects import Api, messages
from workloads.request import Request


def next_turn(request: Request, said: str, api: Api) -> Request:
    """The turn that follows `request`, whose own prompt holds all before it, and which was answered by `said`.

    Raises ValueError where the two cannot be joined: prompts of token ids, messages for the completions API.
    """
    then = request.then
    assert then is not None
    prompt: Any
    if api == "chat":
        prompt = (*messages(request.prompt), {"role": "assistant", "content": said}, *messages(then.prompt))
    elif isinstance(request.prompt, str) and isinstance(then.prompt, str):
        prompt = f"{request.prompt}{said}\n{then.prompt}"
    else:
        raise ValueError("a conversation over the completions API needs prompts of text")
    return msgspec.structs.replace(then, prompt=prompt)
