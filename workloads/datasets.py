"""Prompts from a file: ShareGPT JSON, chat JSONL, prompt JSONL, plain text. Streamed: a file may exceed the memory.

The content tells the form, the suffix only where the content does not. `[` with an object: one JSON array of objects.
`{` with a quoted name: one JSON object a line. Anything else: one prompt a line. An object is read by the first of
these fields that it has, null being as good as absent; blank lines are skipped.

- `messages` (OpenAI's): sent as they are. An answer at the end is not sent, unless `continue_final_message` says that
  the server shall go on with it. All other fields go into the request's body, but `id` and those named here.
- `conversations` (ShareGPT's): the first human turn is the prompt, with the system turns before it as messages. The
  human turns after it are the later ones. Blank turns, the model's before the first question, other senders and other
  fields are left out; so is, without a word, a conversation in which no human says anything.
- `prompt`, `text`, `question`: the prompt. Other fields describe it, and are not sent.

How long an answer is: the first of `output_tokens`, `max_completion_tokens` and `max_tokens`, beside `messages` or a
prompt; failing that, the characters of the recorded answer / 4, rounded up (English; other scripts take more tokens).
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from workloads import entries
from workloads.lengths import LONGEST
from workloads.request import Messages

CHARACTERS_PER_TOKEN = 4

_FORMS = "ShareGPT JSON, JSON lines with messages or a prompt, or one prompt a line"
_FIELDS = "messages, conversations, prompt, text or question"
_PROMPTS = ("prompt", "text", "question")
_LENGTHS = ("output_tokens", "max_completion_tokens", "max_tokens")
_NOT_SENT = {"id", "messages", "conversations", *_PROMPTS, *_LENGTHS}
_NOT_FROM_A_FILE = {
    "model": "the run says which model it measures",
    "stream": "every request is streamed",
    "stream_options": "the run sets them",
}
_HUMAN = {"human", "user"}
_MODEL = {"gpt", "assistant", "chatgpt", "bard", "bing", "model"}

_ARRAY = re.compile(rb'\s*\[\s*([{"\]]|\Z)')
_OBJECT = re.compile(rb'\s*\{\s*(["}]|\Z)')
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh91AY&SY": "bzip2",
    b"PAR1": "Parquet",
}


class Item(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str | Messages
    output_tokens: int | None  # of the answer, as the file says or lets one estimate
    extra: dict[str, Any] = {}  # fields of the body: tools, response_format
    later: tuple[str, ...] = ()  # the user's turns after the first
    later_output_tokens: tuple[int | None, ...] = ()  # one for each of them


def read(path: Path) -> Iterator[Item]:
    """The items in the order of the file, each read when it is taken.

    Raises ValueError, naming the file and the line or the element of the array, both from 1: at once for a file that
    cannot be read, holds no prompt or has a fault before its first, else where the fault is reached.
    """
    items = _items(path)
    first = next(items, None)
    if first is None:
        raise ValueError(f"{path}: no prompt in it: expected {_FORMS}")
    return itertools.chain([first], items)


def digest(path: Path) -> str:
    """SHA-256 of the file's bytes, in hex. Raises ValueError if it cannot be read."""
    with entries.opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _items(path: Path) -> Iterator[Item]:
    with entries.opened(path) as file:
        form = _form(path, file.peek())
        if form == "array":
            items = map(_item, entries.elements(file))
        else:
            items = map(_plain if form == "text" else _item_of_line, entries.lines(file))
        yield from _placed(f"{path}, {'element' if form == 'array' else 'line'}", items)


def _placed(where: str, items: Iterator[Item | None]) -> Iterator[Item]:
    number = 1
    try:
        for item in items:
            number += 1
            if item is not None:
                yield item
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} {number}: {error}") from error


def _form(path: Path, head: bytes) -> Literal["array", "objects", "text"]:
    for magic, packer in _PACKED.items():
        if head.startswith(magic):
            raise ValueError(f"{path}: a {packer} file: unpack it to {_FORMS}")
    head = head.removeprefix(entries.BOM)
    suffix = path.suffix.lower()
    if _ARRAY.match(head):
        return "array"
    if _OBJECT.match(head):
        return "objects"
    if suffix in {".json", ".jsonl", ".ndjson"}:
        return "array" if head.lstrip().startswith(b"[") else "objects"
    if suffix in {".csv", ".tsv"}:
        raise ValueError(f"{path}: a table: expected {_FORMS}")
    return "text"


def _plain(line: str) -> Item | None:
    return Item(prompt=line, output_tokens=None) if line.strip() else None


def _item_of_line(line: str) -> Item | None:
    return _item(entries.decode(line)) if line.strip() else None


def _item(value: Any) -> Item | None:
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object with {_FIELDS}, not {_shortened(value)}")
    if value.get("messages") is not None:
        return _chat(value)
    if value.get("conversations") is not None:
        return _conversation(value["conversations"])
    for name in _PROMPTS:
        prompt = value.get(name)
        if prompt is not None:
            if not isinstance(prompt, str) or not prompt.strip():
                raise ValueError(f"{name}: expected a text that is not blank, not {_shortened(prompt)}")
            return Item(prompt=prompt, output_tokens=_length(value))
    raise ValueError(f"expected {_FIELDS} among the fields, which are {_shortened(list(value))}")


def _shortened(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _length(fields: dict[str, Any]) -> int | None:
    for name in _LENGTHS:
        value = fields.get(name)
        if value is not None:
            if type(value) is not int or not 1 <= value <= LONGEST:
                raise ValueError(f"{name}: expected whole tokens from 1 to {LONGEST}, not {_shortened(value)}")
            return value
    return None


def _estimate(answer: str) -> int | None:
    return -(-len(answer) // CHARACTERS_PER_TOKEN) or None


def _chat(fields: dict[str, Any]) -> Item:
    extra = {name: value for name, value in fields.items() if name not in _NOT_SENT and value is not None}
    for name, reason in _NOT_FROM_A_FILE.items():
        if name in extra:
            raise ValueError(f"{name}: {reason}: leave it out")
    if extra.get("n", 1) != 1:
        raise ValueError(f"n: one answer a request is measured: leave it out, not {_shortened(extra['n'])}")
    messages = fields["messages"]
    if not isinstance(messages, list):
        raise ValueError(f"messages: expected a list, not {_shortened(messages)}")
    for number, message in enumerate(messages, 1):
        _check_message(number, message)
    tokens = _length(fields)
    if messages and messages[-1]["role"] == "assistant" and extra.get("continue_final_message") is not True:
        *messages, answer = messages
        tokens = tokens or _estimate(_text(answer.get("content") or ""))
    if not messages:
        raise ValueError("messages: expected at least one besides the answer")
    return Item(prompt=tuple(messages), output_tokens=tokens, extra=extra)


def _check_message(number: int, message: Any) -> None:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError(f'message {number}: expected {{"role": ..., "content": ...}}, not {_shortened(message)}')
    content = message.get("content")
    if content is None and message["role"] == "assistant":
        return  # it called tools
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not content:
        raise ValueError(f"message {number}: content: expected a text or a list of parts, not {_shortened(content)}")
    for part in content:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ValueError(f'message {number}: expected parts like {{"type": "text", ...}}, not {_shortened(part)}')


def _text(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if isinstance(part.get("text"), str))


def _conversation(turns: Any) -> Item | None:
    if not isinstance(turns, list):
        raise ValueError(f"conversations: expected a list of turns, not {_shortened(turns)}")
    system: list[str] = []
    asked: list[str] = []
    answers: list[int | None] = []
    for number, turn in enumerate(turns, 1):
        match turn:
            case {"from": str(sender), "value": str(text)}:
                pass
            case _:
                raise ValueError(f'turn {number}: expected {{"from": "human", "value": ...}}, not {_shortened(turn)}')
        if not text.strip():
            continue
        if sender in _HUMAN:
            asked.append(text)
            answers.append(None)
        elif sender in _MODEL and asked and answers[-1] is None:
            answers[-1] = _estimate(text)
        elif sender == "system" and not asked:
            system.append(text)
    if not asked:
        return None
    prompt: str | Messages = asked[0]
    if system:
        messages = [*({"role": "system", "content": text} for text in system), {"role": "user", "content": asked[0]}]
        prompt = tuple(messages)
    return Item(
        prompt=prompt,
        output_tokens=answers[0],
        later=tuple(asked[1:]),
        later_output_tokens=tuple(answers[1:]),
    )
