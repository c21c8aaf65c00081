"""Values as users write them, and what is said of those that are none."""

import itertools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.cli import values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("500ms", 0.5),
        ("250us", 0.00025),
        ("2m", 120),
        ("1h", 3600),
        ("1.5s", 1.5),
        (" 1s ", 1),
        ("007s", 7),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert values.duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "30",
        "s",
        "-1s",
        "+1s",
        "0s",
        "0.0ms",
        "1e3s",
        "1 s",
        "1s1s",
        "1,5s",
        ".5s",
        "1.s",
        "infs",
        "nans",
        "1d",
        "\u0663s",
    ],
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no duration: write a number above 0 with its unit"):
        values.duration_s(text)


@pytest.mark.parametrize(("text", "rate"), [("2", 2), ("2/s", 2), ("0.5", 0.5), (" 10/s ", 10)])
def test_rates(text: str, rate: float) -> None:
    assert values.rate_per_s(text) == rate


@pytest.mark.parametrize("text", ["", "0", "0/s", "-1", "2/m", "2 / s", "1e3", "inf", "nan", "/s"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError, match="is no rate: write requests per second above 0"):
        values.rate_per_s(text)


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("1", (1,)),
        ("1,2,4", (1, 2, 4)),
        ("1..64", (1, 2, 4, 8, 16, 32, 64)),
        ("1..48", (1, 2, 4, 8, 16, 32, 48)),
        ("3..20", (3, 6, 12, 20)),
        ("5..5", (5,)),
        ("8,1", (8, 1)),
        (" 1 , 4..8 ", (1, 4, 8)),
        ("1..4,100000", (1, 2, 4, 100_000)),
    ],
)
def test_levels(text: str, levels: tuple[int, ...]) -> None:
    assert values.levels(text) == levels


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0", "a level is a number from 1 to 100000"),
        ("100001", "a level is a number from 1 to 100000"),
        ("-1", "got '-1'"),
        ("1.5", "got '1.5'"),
        ("", "got ''"),
        ("1,,2", "got ''"),
        ("1,", "got ''"),
        ("..4", "got ''"),
        ("4..", "got ''"),
        ("1..2..3", "got '2..3'"),
        ("\u0663", "a level is a number"),
        ("8..1", "runs backwards, write 1..8"),
        ("1,1", "a level is named twice"),
        ("1..4,2", "a level is named twice"),
        ("9" * 5000, "a level is a number|limit"),
    ],
)
def test_what_are_no_levels(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        values.levels(text)


@given(st.integers(1, 100_000), st.integers(0, 17))
def test_a_range_doubles_and_ends_at_its_end(low: int, doublings: int) -> None:
    high = min(low * 2**doublings + 1, 100_000)
    levels = values.levels(f"{low}..{high}")
    assert (levels[0], levels[-1]) == (low, high)
    assert all(after == 2 * before for before, after in itertools.pairwise(levels[:-1]))
    assert len(levels) == 1 or levels[-2] < levels[-1] <= 2 * levels[-2]


@pytest.mark.parametrize(
    ("text", "pair"),
    [("X-Team: blue", ("X-Team", "blue")), ("a:b:c", ("a", "b:c")), ("X:", ("X", "")), (" X : y ", ("X", "y"))],
)
def test_headers(text: str, pair: tuple[str, str]) -> None:
    assert values.header(text) == pair


@pytest.mark.parametrize(
    "text", ["", "X", ": CANARY", "X Y: CANARY", "X: CANARY\nY: z", "X: CANARY\u00e9", "X\u00e9: CANARY"]
)
def test_what_is_no_header_is_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--header expects 'Name: value', in ASCII$"):
        values.header(text)


@pytest.mark.parametrize("name", ["Content-Length", "transfer-encoding", "Accept-Encoding"])
def test_headers_that_follow_from_the_request_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"^--header {name}: it follows from the request"):
        values.header(f"{name}: x")


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("{}", {}),
        ('{"temperature": 0, "ignore_eos": null}', {"temperature": 0, "ignore_eos": None}),
        ('{"n": 1, "best_of": null, "stream": true}', {"n": 1, "best_of": None, "stream": True}),
    ],
)
def test_bodies(text: str, fields: dict[str, Any]) -> None:
    assert values.body(text) == fields


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "--body is not JSON"),
        ("{", "--body is not JSON"),
        ('{"a": NaN}', "--body is not JSON"),
        ("[" * 100_000, "--body is not JSON"),
        ("[]", "--body expects a JSON object"),
        ("1", "--body expects a JSON object"),
        ('{"n": 2}', "n and best_of above 1 are refused"),
        ('{"best_of": 2}', "n and best_of above 1 are refused"),
        ('{"stream": false}', "stream must stay true"),
        ('{"stream": null}', "stream must stay true"),
    ],
)
def test_what_is_no_body(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        values.body(text)


def test_timeouts() -> None:
    assert values.timeouts("first=60s, idle=500ms") == {"first_s": 60, "idle_s": 0.5}
    assert set(values.timeouts("first=1s,idle=1s,total=1s,connect=1s")) == {"first_s", "idle_s", "total_s", "connect_s"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected first=, idle=, total= or connect= (got '')"),
        ("60s", "(got '60s')"),
        ("read=1s", "(got 'read=1s')"),
        ("first", "--timeout first='' is no duration"),
        ("first=1", "--timeout first='1' is no duration"),
        ("idle=1s,first=0s", "--timeout first='0s' is no duration"),
    ],
)
def test_what_are_no_timeouts(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        values.timeouts(text)


@pytest.mark.parametrize(("text", "size"), [("64KiB", 65536), (" 16MiB ", 2**24), ("1GiB", 2**30), ("4096", 4096)])
def test_sizes(text: str, size: int) -> None:
    assert values.size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "0", "1023", "16MB", "-1KiB", "1.5MiB", "9999999999"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is no size: write a number of at least 1KiB"):
        values.size_bytes(text)


@pytest.mark.parametrize(
    ("text", "rates"),
    [("2,4,8", (2, 4, 8)), ("1..16", (1, 2, 4, 8, 16)), ("0.5..3", (0.5, 1, 2, 3)), ("2/s, 10/s..15", (2, 10, 15))],
)
def test_several_rates(text: str, rates: tuple[float, ...]) -> None:
    assert values.rates(text) == rates


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is no rate"),
        ("2,", "'' is no rate"),
        ("0", "'0' is no rate"),
        ("-1", "'-1' is no rate"),
        ("1..x", "'x' is no rate"),
        ("8..0.5", "the range 8..0.5 runs backwards, write 0.5..8"),
        ("2,1..4", "a level is named twice"),
    ],
)
def test_what_are_no_rates(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        values.rates(text)


def test_factors() -> None:
    assert values.factors("1,2") == (1, 2)
    assert values.factors("0.25..1") == (0.25, 0.5, 1)
    for text in ("0", "1/s", "fast", ""):
        with pytest.raises(ValueError, match="is no speed: write a factor above 0"):
            values.factors(text)


def test_a_named_value_names_its_flag() -> None:
    assert values.named("--x", int, "5") == 5
    with pytest.raises(ValueError, match=r"^--x invalid literal"):
        values.named("--x", int, "y")
