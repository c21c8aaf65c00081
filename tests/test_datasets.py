"""Every form of data set: what is read from it, what is refused and where, and how little of it is held."""

import hashlib
import json
import os
import re
import tracemalloc
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workloads.datasets import Item, digest, read
from workloads.lengths import LONGEST

Write = Callable[..., Path]
Talk = tuple[list[tuple[str, str | None]], str | None]  # questions, each with its answer; what the system said

HUMAN, GPT, SYSTEM = "human", "gpt", "system"
USER = {"role": "user", "content": "hi"}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(content: str | bytes, name: str = "data") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return to_file


def talk(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"id": "x", "conversations": [{"from": sender, "value": text} for sender, text in turns]}


def json_lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


# What is read: the round trip of each form.

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(lambda text: text.strip())
plain = texts.filter(lambda text: "\n" not in text and text[0] not in "[{\ufeff" and not text.endswith("\r"))
lengths = st.none() | st.integers(1, LONGEST)
parts = st.one_of(
    texts.map(lambda text: {"type": "text", "text": text}),
    texts.map(lambda url: {"type": "image_url", "image_url": {"url": url}}),
)
messages = st.lists(
    st.one_of(
        st.builds(lambda text: {"role": "system", "content": text}, texts),
        st.builds(
            lambda content: {"role": "user", "content": content}, texts | st.lists(parts, min_size=1, max_size=3)
        ),
        st.builds(lambda text: {"role": "assistant", "content": text}, texts),
        st.just({"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]}),
        st.just({"role": "tool", "tool_call_id": "1", "content": "21"}),
    ),
    max_size=4,
).map(lambda before: (*before, USER))
bodies = st.fixed_dictionaries(
    {}, optional={"tools": st.just([{"type": "function"}]), "tool_choice": st.just("auto"), "temperature": st.just(0.5)}
)
layouts = st.tuples(st.sampled_from([b"", b"\xef\xbb\xbf"]), st.sampled_from(["\n", "\r\n", "\n\n"]), st.booleans())
round_trip = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


def laid_out(lines: list[str], layout: tuple[bytes, str, bool]) -> bytes:
    bom, end, end_at_last = layout
    return bom + (end.join(lines) + end * end_at_last).encode()


@round_trip
@given(st.lists(plain, min_size=1, max_size=4), layouts)
def test_plain_text(write: Write, prompts: list[str], layout: tuple[bytes, str, bool]) -> None:
    path = write(laid_out(prompts, layout))
    assert list(read(path)) == [Item(prompt=prompt, output_tokens=None) for prompt in prompts]


@round_trip
@given(st.lists(st.tuples(texts, lengths), min_size=1, max_size=4), layouts, st.sampled_from(["prompt", "text"]))
def test_prompts(write: Write, pairs: list[tuple[str, int | None]], layout: tuple[bytes, str, bool], name: str) -> None:
    lines = [json.dumps({name: text, "output_tokens": tokens, "id": 7, "stream": True}) for text, tokens in pairs]
    assert list(read(write(laid_out(lines, layout)))) == [
        Item(prompt=text, output_tokens=tokens) for text, tokens in pairs
    ]


@round_trip
@given(st.lists(st.tuples(messages, bodies, lengths), min_size=1, max_size=3), layouts, st.booleans())
def test_chats(
    write: Write,
    chats: list[tuple[tuple[dict[str, Any], ...], dict[str, Any], int | None]],
    layout: tuple[bytes, str, bool],
    as_array: bool,
) -> None:
    values = [{"messages": m, "max_tokens": tokens, "user": None, **body} for m, body, tokens in chats]
    lines = [json.dumps(values, indent=1)] if as_array else [json.dumps(value) for value in values]
    items = list(read(write(laid_out(lines, layout))))
    assert items == [Item(prompt=m, output_tokens=tokens, extra=body) for m, body, tokens in chats]


@round_trip
@given(
    st.lists(st.tuples(st.lists(st.tuples(texts, st.none() | texts), min_size=1, max_size=3), st.none() | texts)),
    st.booleans(),
)
def test_conversations(write: Write, talks: list[Talk], as_array: bool) -> None:
    last: Talk = ([("last", None)], None)
    wanted, values = [], []
    for pairs, system in [*talks, last]:
        turns = [(SYSTEM, system)] if system else []
        for asked, answer in pairs:
            turns += [(HUMAN, asked)] + ([(GPT, answer)] if answer else [])
        values.append(talk(*turns))
        first, *later = [asked for asked, _ in pairs]
        tokens, *later_tokens = [(len(answer) + 3) // 4 if answer else None for _, answer in pairs]
        wanted.append(
            Item(
                prompt=({"role": "system", "content": system}, {"role": "user", "content": first}) if system else first,
                output_tokens=tokens,
                later=tuple(later),
                later_output_tokens=tuple(later_tokens),
            )
        )
    assert list(read(write(json.dumps(values) if as_array else json_lines(*values)))) == wanted


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | texts, lambda v: st.lists(v) | st.dictionaries(texts, v))
)
@round_trip
def test_any_json_is_items_or_a_value_error(write: Write, value: Any) -> None:
    for content in ([value], {"messages": value}, {"messages": [value]}, {"conversations": [value]}, {"prompt": value}):
        path = write(json.dumps(content))
        try:
            items = list(read(path))
        except ValueError as error:
            assert re.fullmatch(rf"{path}[:,] .+", str(error))  # noqa: PT017 (either outcome is right)
        else:
            assert items


# What is read: the rules.


@pytest.mark.parametrize(
    ("turns", "item"),
    [
        ([(GPT, "late"), (HUMAN, "a"), (GPT, "12345")], Item(prompt="a", output_tokens=2)),
        ([("user", "a"), ("chatgpt", "1234"), (GPT, "1" * 99)], Item(prompt="a", output_tokens=1)),
        ([(HUMAN, " "), (GPT, "x"), (HUMAN, "a"), (GPT, "\n")], Item(prompt="a", output_tokens=None)),
        ([(HUMAN, "a"), (SYSTEM, "late"), ("observation", "x"), (GPT, "1")], Item(prompt="a", output_tokens=1)),
        (
            [(HUMAN, "a"), (HUMAN, "b"), (GPT, "x")],
            Item(prompt="a", output_tokens=None, later=("b",), later_output_tokens=(1,)),
        ),
    ],
)
def test_a_conversation_as_people_leave_it(write: Write, turns: list[tuple[str, str]], item: Item) -> None:
    path = write(json.dumps([talk(), talk((GPT, "only")), talk(*turns), talk((HUMAN, ""))]))
    assert list(read(path)) == [item]


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ({"role": "assistant", "content": "123456789"}, 3),
        ({"role": "assistant", "content": [{"type": "text", "text": "12"}, {"type": "refusal"}]}, 1),
        ({"role": "assistant", "content": None, "tool_calls": [{}]}, None),
        ({"role": "assistant"}, None),
    ],
)
def test_a_recorded_answer_is_not_sent_but_measured(write: Write, answer: dict[str, Any], tokens: int | None) -> None:
    chat = {"messages": [USER, answer]}
    continued = {**chat, "continue_final_message": True}
    path = write(json_lines(chat, {**chat, "max_completion_tokens": 64}, continued))
    assert list(read(path)) == [
        Item(prompt=(USER,), output_tokens=tokens),
        Item(prompt=(USER,), output_tokens=64),
        Item(prompt=(USER, answer), output_tokens=None, extra={"continue_final_message": True}),
    ]


def test_which_field_counts(write: Write) -> None:
    path = write(
        json_lines(
            {"prompt": "p", "text": "t", "max_tokens": 3, "output_tokens": 1, "max_completion_tokens": 2},
            {"messages": None, "question": "q", "max_tokens": 3, "output_tokens": None, "max_completion_tokens": 2},
            {"prompt": "p", "messages": [USER], "id": 1, "n": 1, "response_format": {"type": "json_object"}},
        )
    )
    assert list(read(path)) == [
        Item(prompt="p", output_tokens=1),
        Item(prompt="q", output_tokens=2),
        Item(prompt=(USER,), output_tokens=None, extra={"n": 1, "response_format": {"type": "json_object"}}),
    ]


@pytest.mark.parametrize("name", ["data", "data.txt", "data.json", "data.jsonl", "data.csv"])
def test_the_content_tells_the_form(write: Write, name: str) -> None:
    for content in ('[{"prompt": "p"}]', ' [\r\n {"prompt": "p"}]', '{"prompt": "p"}', '\n{ "prompt": "p"}'):
        assert list(read(write(content, name))) == [Item(prompt="p", output_tokens=None)]


@pytest.mark.parametrize("text", ["[INST] hi", "{name}, hi", "[[a]]", "p", "  indented", "[1] a footnote", '"quoted"'])
def test_the_suffix_decides_where_the_content_does_not(write: Write, text: str) -> None:
    for name in ("data", "data.txt", "data.md"):
        assert list(read(write(text, name))) == [Item(prompt=text, output_tokens=None)]
    for name in ("data.json", "data.jsonl", "data.ndjson", "data.JSON"):
        with pytest.raises(ValueError, match=r"data\.\w+, (line|element) 1: expected"):
            read(write(text, name))


def test_half_a_surrogate_pair_can_be_sent(write: Write) -> None:
    half = '"\\ud83d!"'
    chat = f'{{"messages": [{{"role": "user", "content": {half}}}], "stop": {half}}}'
    sharegpt = f'{{"conversations": [{{"from": "human", "value": {half}}}]}}'
    items = [*read(write(f"[{chat}, {sharegpt}]")), *read(write(f'{chat}\n{sharegpt}\n{{"prompt": {half}}}'))]
    assert [item.prompt for item in items if isinstance(item.prompt, str)] == ["\ufffd!"] * 3
    assert [item.extra for item in items if item.extra] == [{"stop": "\ufffd!"}] * 2
    assert b"\\ud8" not in msgspec.json.encode(items)


# What is refused, and where.

FAULTS = [
    ("nothing", "expected a JSON object with messages, conversations"),
    (7, "not 7"),
    ({"id": 1, "Prompt": "x"}, 'among the fields, which are ["id", "Prompt"]'),
    ({"prompt": None}, "expected messages, conversations"),
    ({"prompt": " "}, "prompt: expected a text that is not blank"),
    ({"question": ["a"]}, 'question: expected a text that is not blank, not ["a"]'),
    ({"prompt": "x" * 90, "text": 1, "max_tokens": "9" * 90}, "max_tokens: expected whole tokens from 1 to"),
    ({"prompt": "x", "output_tokens": 0}, "output_tokens: expected whole tokens from 1 to 10000000, not 0"),
    ({"prompt": "x", "output_tokens": LONGEST + 1}, "output_tokens: expected"),
    ({"prompt": "x", "max_tokens": 1.5}, "not 1.5"),
    ({"prompt": "x", "max_tokens": True}, "not true"),
    ({"messages": "hi"}, "messages: expected a list, not"),
    ({"messages": []}, "messages: expected at least one"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, "at least one besides the answer"),
    ({"messages": [USER, "hi"]}, 'message 2: expected {"role": ..., "content": ...}, not "hi"'),
    ({"messages": [{"from": "human", "value": "hi"}]}, "message 1: expected"),
    ({"messages": [{"role": "user"}]}, "message 1: content: expected a text or a list of parts, not null"),
    ({"messages": [{"role": "user", "content": []}]}, "message 1: content: expected"),
    ({"messages": [{"role": "user", "content": ["hi"]}]}, 'message 1: expected parts like {"type": "text", ...}'),
    ({"messages": [USER], "model": "m"}, "model: the run says which model it measures: leave it out"),
    ({"messages": [USER], "stream": False}, "stream: every request is streamed: leave it out"),
    ({"messages": [USER], "stream_options": {}}, "stream_options: the run sets them: leave it out"),
    ({"messages": [USER], "n": 2}, "n: one answer a request is measured: leave it out, not 2"),
    ({"messages": [USER], "max_tokens": -1}, "max_tokens: expected"),
    ({"conversations": {}}, "conversations: expected a list of turns, not {}"),
    ({"conversations": [{"from": "human", "value": "a"}, "b"]}, 'turn 2: expected {"from": "human", "value": ...}'),
    ({"conversations": [{"role": "user", "content": "a"}]}, "turn 1: expected"),
    ({"conversations": [{"from": "gpt", "value": None}]}, "turn 1: expected"),
]


@pytest.mark.parametrize(("value", "fault"), FAULTS)
def test_a_fault_is_named_with_its_place(write: Write, value: Any, fault: str) -> None:
    good = {"prompt": "good"}
    as_lines, as_array = write(json_lines(good) + "\n" + json_lines(value, good)), json.dumps([good, value, good])
    for path, place in ((as_lines, "line 3"), (write(as_array, "array"), "element 2")):
        items = read(path)
        assert next(items).prompt == "good"
        with pytest.raises(ValueError, match=r"^[^\n]{1,300}$") as caught:
            next(items)
        assert str(caught.value).startswith(f"{path}, {place}: ")
        assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b'{"prompt": "a"}\n{"prompt": \n', "line 2: expected JSON: expecting value at character 12"),
        (b'{\n  "data": []\n}', "line 1: expected JSON: expecting property name"),
        (b'{"prompt": "a"} {"prompt": "b"}', "line 1: expected JSON: extra data at character 17"),
        (b'{"prompt": "a"}\n{"prompt": "\xe9"}', "line 2: not UTF-8: byte 13 of the line"),
        (b"a\nb\n\ncaf\xe9\n", "line 4: not UTF-8: byte 4 of the line"),
        ("wide".encode("utf-16"), "line 1: not UTF-8"),
        (b'[{"prompt": "a"}, {"prompt": "\xe9"}]', "element 2: not UTF-8: character 13"),
        (b'[{"prompt": "a"}, {"prompt": NaN}]', "element 2: NaN is no number"),
        (b'[{"prompt": "a"}', "element 1: the file ends inside the array"),
        (b'["a", "b"]', "element 1: expected a JSON object"),
        (b'{"prompt": ' + b"[" * 5000, "line 1: nested too deeply"),
    ],
)
def test_malformed_files(write: Write, content: bytes, fault: str) -> None:
    path = write(content)
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        list(read(path))
    assert str(caught.value).startswith(f"{path}, {fault}")


@pytest.mark.parametrize(
    ("content", "name", "fault"),
    [
        (b"", "data", ": no prompt in it: expected ShareGPT JSON, JSON lines"),
        (b"\xef\xbb\xbf\n \r\n", "data", ": no prompt in it"),
        (b"[ ]", "data.json", ": no prompt in it"),
        (b"", "data.jsonl", ": no prompt in it"),
        (json.dumps([talk((GPT, "x"))]).encode(), "data.json", ": no prompt in it"),
        (b"prompt,tokens\nhi,3\n", "data.csv", ": a table: expected ShareGPT JSON"),
        (b"\x1f\x8b\x08\x00", "data.jsonl.gz", ": a gzip file: unpack it to ShareGPT JSON"),
        (b"PK\x03\x04", "data", ": a zip file: unpack it"),
        (b"PAR1\x15", "data", ": a Parquet file: unpack it"),
    ],
)
def test_what_is_no_data_set_is_refused_at_once(write: Write, content: bytes, name: str, fault: str) -> None:
    path = write(content, name)
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}{fault}")


@pytest.mark.parametrize("use", [read, digest])
def test_what_cannot_be_read(tmp_path: Path, use: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, fault in {"missing": "No such file", "": "Is a directory", "pipe": "a pipe"}.items():
        with pytest.raises(ValueError, match=fault) as caught:
            use(tmp_path / name)
        assert str(caught.value).startswith(f"{tmp_path / name}: ")


# How little is held.


@pytest.mark.parametrize("as_array", [False, True])
def test_memory_does_not_grow_with_the_file(write: Write, as_array: bool) -> None:
    line = json.dumps({"prompt": "question " * 8})
    separator = ",\n" if as_array else "\n"
    path = write("[" * as_array + separator.join([line] * 200_000) + "]" * as_array)
    tracemalloc.start()
    items = read(path)
    count = sum(1 for _ in islice(items, 15_000))  # traced, reading takes ten times as long
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count + sum(1 for _ in items) == 200_000
    assert peak_bytes < 1_500_000 < path.stat().st_size / 10


@pytest.mark.parametrize("start", ["first\n", '{"prompt": "first"}\n', '[{"prompt": "first"},'])
def test_the_first_item_needs_only_the_beginning(write: Write, start: str) -> None:
    path = write(start)
    os.truncate(path, 2**36)  # a hole: takes no space, and minutes to read
    assert next(read(path)).prompt == "first"


def test_digest(write: Write) -> None:
    content = os.urandom(300_000)
    assert digest(write(content)) == hashlib.sha256(content).hexdigest()
