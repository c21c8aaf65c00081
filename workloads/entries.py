"""What a file is a list of, one by one and with bounded memory: its lines, or the elements of one JSON array.

JSON is decoded by the standard library: yajl, which streams, turns a lone surrogate into another character or an
error, has no integers beyond 64 bits, and with ijson's paths a file of 200 KB (nested brackets) fills the memory.
"""

import codecs
import io
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

LONGEST = 2**25  # bytes of a line, characters of an element

BOM = b"\xef\xbb\xbf"
_SPACE = re.compile(r"[ \t\r\n]*")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_CHUNK_BYTES = 2**18


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """Raises ValueError for what cannot be opened, or read while it is open."""
    try:
        if path.is_fifo():
            raise ValueError(f"{path}: a pipe: expected a file, as it is read more than once")
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error


def lines(file: BinaryIO) -> Iterator[str]:
    """Each without its end, LF or CRLF. Raises ValueError for the next line, if it is not UTF-8 or too long."""
    bom = BOM
    while line := file.readline(LONGEST + 1):
        if len(line) > LONGEST:
            raise ValueError(f"longer than {LONGEST} bytes")
        try:
            yield line.removeprefix(bom).decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8: byte {error.start + 1} of the line") from error
        bom = b""


def elements(file: BinaryIO) -> Iterator[Any]:
    """Of the JSON array that the file is. Raises ValueError for the next element, or for what should separate it.

    An element is decoded again with more text while nothing follows it: it may go on. Bytes that are not UTF-8 become
    surrogates at first, so that the fault is reported of the element they are in.
    """
    chunks = iter(partial(file.read, _CHUNK_BYTES), b"")  # the first holds the bracket that opens the array
    source = codecs.iterdecode(chunks, "utf-8-sig", "surrogateescape")
    buffer = next(source, "")
    at = _after_space(buffer, 0)
    if not buffer.startswith("[", at):
        raise ValueError("expected a JSON array")
    separator, at = "[", at + 1
    while separator != "]":
        at, fault = _after_space(buffer, at), None
        if separator == "[" and buffer.startswith("]", at):
            end = at
            break
        try:
            value, end = _JSON.raw_decode(buffer, at)
            end = _after_space(buffer, end)
            if buffer[end : end + 1] not in ("", ",", "]"):  # "1." may yet become 1.5
                raise ValueError(f"expected , or ] after it, not {buffer[end]!r}")
        except (ValueError, RecursionError) as error:
            end, fault = len(buffer), error
        if end == len(buffer):
            buffer, at = buffer[at:] + _more(source, end - at, fault, at), 0
            continue
        yield _encodable(value, buffer[at:end])
        separator, at = buffer[end], end + 1
    if any(text.strip() for text in itertools.chain([buffer[end + 1 :]], source)):
        raise ValueError("expected nothing after the end of the array")


def _more(source: Iterator[str], length: int, fault: Exception | None, start: int) -> str:
    """Text that may complete the element of which `length` characters, from `start`, did not decode."""
    if length >= LONGEST:
        raise ValueError(f"longer than {LONGEST} characters, or {_why_not(fault, start)}")
    more = "".join(itertools.islice(source, 1 + length // _CHUNK_BYTES))  # at least doubled: few decodes in all
    if not more:
        raise ValueError(_why_not(fault, start)) from fault
    return more


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match
    return match.end()


def decode(text: str) -> Any:
    """The value of one JSON text. Raises ValueError, in one line."""
    try:
        value = _JSON.decode(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(_why_not(error)) from error
    return _encodable(value, text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON's")


_JSON = json.JSONDecoder(parse_constant=_refuse_constant)


def _why_not(fault: Exception | None, start: int = 0) -> str:
    if fault is None:
        return "the file ends inside the array"
    if isinstance(fault, json.JSONDecodeError):
        reason = fault.msg[0].lower() + fault.msg[1:].removesuffix(" at")
        return f"expected JSON: {reason} at character {fault.pos - start + 1}"
    return "nested too deeply" if isinstance(fault, RecursionError) else str(fault)


def _encodable(value: Any, text: str) -> Any:
    r"""The value of this JSON text with U+FFFD for what UTF-8 cannot hold: half of a pair, like "\ud800", is JSON."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"not UTF-8: character {error.start + 1}") from error
    if "\\ud" not in text and "\\uD" not in text:
        return value
    return _JSON.decode(_LONE_SURROGATE.sub("\ufffd", json.dumps(value, ensure_ascii=False)))
