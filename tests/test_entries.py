"""Lines and array elements: any text, any layout, any split of the buffer; each fault at the entry that has it."""

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads import entries
from workloads.entries import BOM, decode, elements, lines, opened

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)


@pytest.fixture(params=[1, 7, 2**18])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "_CHUNK_BYTES", request.param)


def until_fault(items: Iterator[Any]) -> tuple[list[Any], str]:
    """What came before the fault, and its message."""
    got: list[Any] = []
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        got.extend(items)  # keeps what came before
    return got, str(caught.value)


@given(
    st.lists(values, max_size=6),
    st.sampled_from([None, 1, "\t"]),
    st.booleans(),
    st.sampled_from([b"", BOM]),
    st.sampled_from(["", "\n", " \r\n\t"]),
    st.sampled_from([1, 2, 3, 64]),
)
def test_any_array_in_any_layout(
    array: list[Any], indent: int | str | None, ascii_only: bool, bom: bytes, space: str, chunk_bytes: int
) -> None:
    text = space + json.dumps(array, indent=indent, ensure_ascii=ascii_only) + space
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries, "_CHUNK_BYTES", chunk_bytes + len(bom) + len(space))
        assert list(elements(io.BytesIO(bom + text.encode()))) == array


@given(st.lists(texts, max_size=6), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.sampled_from([b"", BOM]))
def test_any_lines(wanted: list[str], end: str, end_at_last: bool, bom: bytes) -> None:
    wanted = [*(text.replace("\n", "").rstrip("\r").removeprefix("\ufeff") for text in wanted), "last"]
    file = io.BytesIO(bom + (end.join(wanted) + end * end_at_last).encode())
    assert list(lines(file)) == wanted


def test_only_line_feeds_end_a_line() -> None:
    assert list(lines(io.BytesIO("a\u2028b\x0bc\rd\r\ne".encode()))) == ["a\u2028b\x0bc\rd", "e"]


@given(values, st.booleans())
def test_decode_is_the_inverse_of_encode(value: Any, ascii_only: bool) -> None:
    assert decode(json.dumps(value, ensure_ascii=ascii_only)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\ud800x"', "\ufffdx"),
        (r'"\ud83d\ude00 \uDC00"', "\U0001f600 \ufffd"),
        (r'"\ud800\u0041"', "\ufffdA"),
        (r'{"\udfff": ["\\ud800", "\udead"]}', {"\ufffd": [r"\ud800", "\ufffd"]}),
    ],
)
def test_half_a_pair_becomes_what_utf8_can_hold(text: str, value: Any) -> None:
    assert decode(text) == value
    assert list(elements(io.BytesIO(f"[{text}, {text}]".encode()))) == [value, value]


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize(
    ("content", "before", "fault"),
    [
        (b'[1, {"a": tru}, 3]', [1], "expected JSON: expecting value at character 7"),
        (b'[1, {"a": 2', [1], "expecting ',' delimiter"),
        (b'[1, "abc', [1], "unterminated string"),
        (b"[1, 2", [1], "the file ends inside the array"),
        (b"[1, 2,", [1, 2], "expecting value"),
        (b"[1, 2,]", [1, 2], "expecting value"),
        (b"[1, 2,]" + b" " * 20, [1, 2], "expecting value"),
        (b"[,1]", [], "expecting value"),
        (b"[", [], "expecting value"),
        (b'[1, "a" "b"]', [1], "expected , or ] after it"),
        (b"[1, 2}", [1], "expected , or ] after it"),
        (b"[1, 2] 3", [1, 2], "nothing after the end"),
        (b"[1]\n[2]\n", [1], "nothing after the end"),
        (b"[]]", [], "nothing after the end"),
        (b'{"a": [1]}', [], "expected a JSON array"),
        (b"", [], "expected a JSON array"),
        (b"[1, NaN]", [1], "NaN is no number of JSON's"),
        (b"[1, -Infinity]", [1], "-Infinity is no number of JSON's"),
        (b'[1, "x\xff", 3]', [1], "not UTF-8: character 3"),
        (b'[1, "x\xed\xa0\x80"]', [1], "not UTF-8"),
        (b"[1, " + b"[" * 5000 + b"]" * 5000 + b"]", [1], "nested too deeply"),
        (b"[1, " + b"9" * 5000 + b"]", [1], "4300 digits"),
    ],
)
def test_a_fault_is_reported_after_all_before_it(content: bytes, before: list[Any], fault: str) -> None:
    got, message = until_fault(elements(io.BytesIO(content)))
    assert got == before
    assert fault in message


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"a": 1', "expected JSON: expecting ',' delimiter at character 8"),
        ("{'a': 1}", "property name enclosed in double quotes at character 2"),
        ('{"a": 1} 2', "extra data at character 10"),
        ("", "expecting value at character 1"),
        ('"tab\t"', "invalid control character"),
        ("[" * 5000, "nested too deeply"),
    ],
)
def test_decode_says_where_it_is_no_json(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        decode(text)
    assert fault in str(caught.value)


@given(st.binary(max_size=40), st.integers(1, 50))
def test_any_bytes_are_values_or_a_value_error(content: bytes, chunk_bytes: int) -> None:
    for start in (b"", b"[", b'[{"a":'):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(entries, "_CHUNK_BYTES", chunk_bytes)
            for read in (elements, lines):
                try:
                    got = list(read(io.BytesIO(start + content)))
                except ValueError as error:
                    assert "\n" not in str(error)  # noqa: PT017 (either outcome is right)
                else:
                    json.dumps(got, ensure_ascii=False).encode()  # strict: no surrogates are left


def test_a_line_is_utf8() -> None:
    got, message = until_fault(lines(io.BytesIO(b"good\nb\xc3(d\n")))
    assert (got, message) == (["good"], "not UTF-8: byte 2 of the line")
    _, message = until_fault(lines(io.BytesIO("wide".encode("utf-16"))))
    assert message == "not UTF-8: byte 1 of the line"


def test_an_entry_has_a_longest_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "LONGEST", 100)
    monkeypatch.setattr(entries, "_CHUNK_BYTES", 10)
    assert list(lines(io.BytesIO(b"x" * 99 + b"\n" + b"y" * 100))) == ["x" * 99, "y" * 100]
    got, message = until_fault(lines(io.BytesIO(b"short\n" + b"x" * 200)))
    assert (got, message) == (["short"], "longer than 100 bytes")
    got, message = until_fault(elements(io.BytesIO(b'["short", "' + b"x" * 400 + b'"]')))
    assert (got, message) == (
        ["short"],
        "longer than 100 characters, or expected JSON: unterminated string starting at character 1",
    )


@pytest.mark.parametrize("start", [b"first\n", b'["first",'], ids=["lines", "array"])
def test_the_first_comes_before_the_rest_is_read(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "huge"
    path.write_bytes(start)
    os.truncate(path, 2**36)  # a hole: takes no space, and minutes to read
    with opened(path) as file:
        assert next(elements(file) if start.startswith(b"[") else lines(file)) == "first"


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, fault in {"missing": "No such file", "": "Is a directory", "pipe": "a pipe: expected a file"}.items():
        with pytest.raises(ValueError, match=fault) as caught, opened(tmp_path / name):
            pass
        assert str(caught.value).startswith(str(tmp_path / name))
