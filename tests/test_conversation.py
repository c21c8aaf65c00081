"""Conversations, and other prompts that are messages: what the next turn is asked with."""

import json
from typing import Any

import pytest

from loadgen.conversation import next_turn
from loadgen.dialects import Dialect, body
from workloads.request import Request

MESSAGES = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]})


def request(prompt: Any, then: Request | None = None, **changes: Any) -> Request:
    return Request(index=0, level=0, prompt=prompt, want_input_tokens=None, want_output_tokens=2, then=then, **changes)


def test_the_next_turn_asks_with_all_that_was_said() -> None:
    third = request("And how?", turn=2)
    first = request("Who?", then=request("Why?", turn=1, think_us=5, then=third))
    second = next_turn(first, "Me.", "chat")
    assert (second.turn, second.think_us) == (1, 5)
    assert second.prompt == (
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "Me."},
        {"role": "user", "content": "Why?"},
    )
    last = next_turn(second, "Because.", "chat")
    assert last.then is None
    assert [message["content"] for message in last.prompt] == ["Who?", "Me.", "Why?", "Because.", "And how?"]  # type: ignore[index]


def test_messages_go_on_with_messages_or_text() -> None:
    later = ({"role": "tool", "content": "42"}, {"role": "user", "content": "So?"})
    turn = next_turn(request(MESSAGES, request(later)), "Hm.", "chat")
    assert turn.prompt == (*MESSAGES, {"role": "assistant", "content": "Hm."}, *later)
    turn = next_turn(request(MESSAGES, request("So?")), "", "chat")
    assert turn.prompt == (*MESSAGES, {"role": "assistant", "content": ""}, {"role": "user", "content": "So?"})


def test_completions_are_asked_with_all_of_the_text() -> None:
    turn = next_turn(request("One two", request("four")), " three", "completions")
    assert turn.prompt == "One two three\nfour"


@pytest.mark.parametrize("prompt", [(1, 2), MESSAGES])
def test_completions_need_text_to_go_on_with(prompt: Any) -> None:
    with pytest.raises(ValueError, match="a conversation over the completions API needs prompts of text"):
        next_turn(request(prompt, request("x")), "y", "completions")


def test_messages_are_sent_as_they_are_with_what_else_the_request_asks_for() -> None:
    dialect = Dialect(api="chat", model="tiny", extra={"temperature": 0})
    sent = json.loads(body(dialect, MESSAGES, 16, {"tools": [{"type": "function"}], "temperature": 1}))
    assert sent["messages"] == list(MESSAGES)
    assert sent["tools"] == [{"type": "function"}]
    assert sent["temperature"] == 0  # the user's own flag goes before the data set


def test_messages_need_the_chat_api() -> None:
    with pytest.raises(ValueError, match="a prompt of messages needs the chat API: use --api chat"):
        body(Dialect(api="completions", model="tiny"), MESSAGES, 16)
