import json
from typing import Any

import pytest

from analysis import hardware
from loadgen.sim import api, tokens
from loadgen.sim.spec import parse

SPEC = parse("llama-3.1-8b@h100,max_model_len=100")


def read(body: dict[str, Any], *, natural_tokens: int = 30) -> api.Completion:
    return api.read_completion(json.dumps(body).encode(), SPEC, chat="messages" in body, natural_tokens=natural_tokens)


def chat(**options: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "one two"}], **options}


def answer(**options: Any) -> api.Answer:
    return api.Answer(read(chat(**options)), completion_id="c-1", created=5, model="m")


def event(data: bytes) -> dict[str, Any]:
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    decoded = json.loads(data[6:])
    assert isinstance(decoded, dict)
    return decoded


@pytest.mark.parametrize(
    ("body", "length", "reason"),
    [
        (chat(max_tokens=10), 10, "length"),
        (chat(max_completion_tokens=11, max_tokens=50), 11, "length"),
        (chat(max_tokens=50), 30, "stop"),
        (chat(max_tokens=50, ignore_eos=True), 50, "length"),
        (chat(max_tokens=50, min_tokens=40), 40, "length"),
        (chat(max_tokens=50, min_tokens=20), 30, "stop"),
        (chat(), 30, "stop"),
        (chat(ignore_eos=True), 90, "length"),
        ({"prompt": "one", "ignore_eos": True}, 16, "length"),
    ],
)
def test_the_length_of_an_answer(body: dict[str, Any], length: int, reason: str) -> None:
    completion = read(body)
    assert (completion.output_tokens, completion.finish_reason) == (length, reason)


@pytest.mark.parametrize("prompt", ["one two", ["one two"], [0, *tokens.encode("one two")], [list(range(3))]])
def test_a_text_completion_takes_a_text_or_token_ids(prompt: Any) -> None:
    assert len(read({"prompt": prompt}).prompt) == 3


def test_content_may_come_in_parts_or_not_at_all() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": " two"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None, "tool_calls": []}]
    completion = read({"messages": messages})
    assert completion.prompt == tokens.encode_chat([("user", "one two"), ("assistant", "")])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (chat(n=2), "n must be 1"),
        (chat(max_tokens=0), "max_tokens must be at least 1"),
        (chat(max_tokens=91), r"maximum context length is 100 tokens.*you requested 101 tokens \(10 in the messages"),
        (chat(max_tokens=5, min_tokens=6), "min_tokens must be from 0 to max_tokens=5"),
        (chat(stream_options={"include_usage": True}), "only be defined when `stream=True`"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "text only"),
        ({"messages": [{"content": "x"}]}, "missing required field `role`"),
        ({"prompt": list(range(100))}, "your request has 100 input tokens"),
        ({"prompt": []}, "prompt must be a text or a list"),
        ({"prompt": None}, "prompt must be a text or a list"),
        ({"prompt": ["a", "b"]}, "one text or one list of token ids"),
        ({"prompt": [-1]}, "token ids from 0"),
        ({"prompt": [True]}, "token ids from 0"),
        ({"prompt": 5}, "Invalid request body"),
    ],
)
def test_refusals(body: dict[str, Any], message: str) -> None:
    with pytest.raises(api.Refused, match=message) as raised:
        read(body)
    assert raised.value.status == 400
    error = json.loads(raised.value.body)["error"]
    assert (set(error), error["type"], error["code"]) == ({"message", "type", "param", "code"}, "BadRequestError", 400)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"x":' + b"[" * 100_000])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(api.Refused, match="Invalid request body"):
        api.read_completion(body, SPEC, chat=True, natural_tokens=1)


def test_another_model_is_not_found() -> None:
    with pytest.raises(api.Refused, match="The model `gpt` does not exist") as raised:
        read(chat(model="gpt"))
    assert raised.value.status == 404
    assert json.loads(raised.value.body)["error"]["type"] == "NotFoundError"
    assert read(chat(model="llama-3.1-8b")).chat


def test_tokenize_counts_as_the_completion_does() -> None:
    counted = json.loads(api.tokenize(json.dumps(chat()).encode(), SPEC))
    assert (counted["count"], counted["max_model_len"]) == (10, 100)
    assert tuple(counted["tokens"]) == read(chat()).prompt
    assert json.loads(api.tokenize(b'{"prompt": "one two"}', SPEC))["count"] == 3


def test_the_card_of_its_model_says_on_what_it_runs() -> None:
    (card,) = json.loads(api.models(SPEC, 5))["data"]
    assert (card["id"], card["max_model_len"], card["created"]) == ("llama-3.1-8b", 100, 5)
    assert hardware.parse(card["hardware"]) == SPEC.hardware


def test_events_of_a_chat() -> None:
    stream = answer(stream=True, max_tokens=2, ignore_eos=True)
    role = event(stream.role_event(0))["choices"][0]
    assert role["delta"] == {"role": "assistant", "content": ""}
    first = event(stream.text_event(" hi", 1, 0, last=False))
    assert (first["id"], first["object"], first["model"]) == ("c-1", "chat.completion.chunk", "m")
    assert (first["choices"][0]["delta"], first["choices"][0]["finish_reason"]) == ({"content": " hi"}, None)
    assert "usage" not in first
    assert event(stream.text_event(" ho", 2, 0, last=True))["choices"][0]["finish_reason"] == "length"
    assert stream.closing_events(0) == api.DONE


def test_events_of_a_text_completion() -> None:
    completion = read({"prompt": "one", "stream": True, "max_tokens": 2})
    stream = api.Answer(completion, completion_id="c-1", created=5, model="m")
    choice = event(stream.text_event(" hi", 1, 0, last=False))["choices"][0]
    assert choice == {"index": 0, "text": " hi", "logprobs": None, "finish_reason": None}


def test_usage_comes_last_and_with_every_event_where_asked() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = answer(stream=True, stream_options=options, max_tokens=2, ignore_eos=True)
    running = [event(stream.role_event(4)), event(stream.text_event(" a", 1, 4, last=False))]
    assert [one["usage"]["completion_tokens"] for one in running] == [0, 1]
    usage, done = stream.closing_events(4).split(b"\n\n", 1)
    assert done == api.DONE
    last = event(usage + b"\n\n")
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    plain = answer(stream=True, stream_options={"include_usage": True})
    assert "usage" not in event(plain.text_event(" a", 1, 4, last=False))


def test_an_answer_in_one_piece() -> None:
    body = json.loads(answer(max_tokens=2, ignore_eos=True).whole(" hi ho", 0))
    assert body["choices"][0]["message"] == {"role": "assistant", "content": " hi ho"}
    assert (body["object"], body["usage"]["completion_tokens"]) == ("chat.completion", 2)
