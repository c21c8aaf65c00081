import hashlib
import math
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from workloads.lengths import (
    LARGEST_SIGMA,
    LONGEST,
    Lengths,
    canonical,
    canonical_pairs,
    draw,
    drawn,
    drawn_pairs,
    mean,
    pairs,
    parse,
)
from workloads.seeds import stream

whole = st.integers(1, LONGEST)
real = st.floats(1, LONGEST)
laws = st.one_of(
    whole.map(lambda n: Lengths("fixed", (float(n),))),
    st.tuples(whole, whole).map(lambda ends: Lengths("uniform", (float(min(ends)), float(max(ends))))),
    st.tuples(real, st.floats(0, LONGEST)).map(lambda both: Lengths("normal", both)),
    st.tuples(real, st.floats(0, LARGEST_SIGMA)).map(lambda both: Lengths("lognormal", both)),
)
of_files = st.lists(whole, min_size=1, max_size=20).map(lambda n: Lengths("file", values=tuple(n), file="f.txt"))


@given(laws)
def test_text_and_law_are_the_same_thing(law: Lengths) -> None:
    assert parse(str(law)) == law
    assert str(parse(str(law))) == str(law)


@pytest.mark.parametrize(
    ("text", "law", "parameters"),
    [
        ("512", "fixed", (512,)),
        (" 512 ", "fixed", (512,)),
        ("uniform:100..200", "uniform", (100, 200)),
        ("normal:512,64", "normal", (512, 64)),
        ("lognormal:512,0.6", "lognormal", (512, 0.6)),
        ("lognormal:1e3,.6", "lognormal", (1000, 0.6)),
    ],
)
def test_parse(text: str, law: str, parameters: tuple[float, ...]) -> None:
    parsed = parse(text)
    assert (parsed.law, parsed.parameters) == (law, parameters)


def test_canonical_text() -> None:
    assert str(parse("lognormal:1e3,.60")) == "lognormal:1000,0.6"
    assert str(parse("512.0")) == "512"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", "at least 1"),
        ("-5", "at least 1"),
        ("1.5", "whole number"),
        ("uniform:0..5", "at least 1"),
        ("uniform:200..100", "uniform:100..200"),
        ("uniform:100", "uniform:100..200"),
        ("normal:512,-1", "cannot be negative"),
        ("normal:-512,1", "at least 1"),
        ("lognormal:512,-0.1", "between 0 and 4"),
        ("lognormal:512,64", "between 0 and 4"),
        ("lognormal:0.5,0.6", "at least 1"),
        ("10000001", "at most 10000000"),
        ("1e400", "at most 10000000"),
        ("uniform:1.." + "9" * 400, "at most 10000000"),
        ("normal:10,1e300", "at most 10000000"),
        ("nan", "expected 512"),
        ("normal:nan,1", "expected 512"),
        ("inf", "expected 512"),
        ("", "expected 512"),
        ("512 tokens", "expected 512"),
        ("gaussian:1,2", "expected 512"),
        ("\u0665", "expected 512"),
        ("x" * 10_000, "expected 512"),
    ],
)
def test_refusals_say_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=r"^length '") as caught:
        parse(text)
    message = str(caught.value)
    assert expected in message
    assert len(message) < 300
    assert "\n" not in message


@given(st.text(max_size=30))
def test_any_text_is_a_law_or_a_value_error(text: str) -> None:
    try:
        law = parse(text)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017 (either outcome is right)
    else:
        assert draw(law, stream(0), 1)[0] >= 1


@given(laws | of_files, st.integers(0, 50), st.integers(0, 50))
def test_lengths_are_whole_in_range_and_drawn_in_any_portions(law: Lengths, first: int, second: int) -> None:
    at_once = draw(law, stream(7), first + second)
    rng = stream(7)
    in_two = np.concatenate([draw(law, rng, first), draw(law, rng, second)])
    assert at_once.dtype == np.int64
    assert np.array_equal(at_once, in_two)
    assert all(1 <= n <= LONGEST for n in at_once.tolist())
    assert list(islice(drawn(law, stream(7)), first + second)) == at_once.tolist()


# Kolmogorov-Smirnov against the law as its text states it. Lengths are rounded; half a token either way undoes it.
LAWS = {
    "uniform:100..200": stats.uniform(99.5, 101),
    "normal:512,64": stats.norm(512, 64),
    "lognormal:512,0.6": stats.lognorm(s=0.6, scale=512 * math.exp(-(0.6**2) / 2)),
}


@pytest.mark.parametrize("text", LAWS)
def test_draws_follow_the_law(text: str) -> None:
    drawn = draw(parse(text), stream(0, text), 20_000)
    spread = drawn + stream(1, text).uniform(-0.5, 0.5, 20_000)
    assert stats.kstest(spread, LAWS[text].cdf).pvalue > 0.001
    assert mean(parse(text)) == pytest.approx(LAWS[text].mean(), rel=1e-9)


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "512",
        "uniform:3..9",
        "uniform:1..1",
        "normal:512,64",
        "normal:10,20",
        "normal:3.4,0",
        "normal:1,5000000",
        "lognormal:512,0.6",
        "lognormal:20,1.5",
        "lognormal:9000000,1",
    ],
)
def test_mean_is_the_mean_of_what_is_drawn(text: str) -> None:
    drawn = draw(parse(text), stream(0, text), 100_000)
    error = 4 * drawn.std() / drawn.size**0.5
    assert mean(parse(text)) == pytest.approx(drawn.mean(), abs=error + 0.01)


def test_a_normal_law_that_reaches_under_one_token_has_a_larger_mean() -> None:
    assert mean(parse("normal:10,20")) == pytest.approx(14.3, abs=0.05)


def written(folder: Path, text: str | bytes) -> str:
    path = folder / "lengths"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path.name


def test_a_file_holds_a_length_on_each_line(tmp_path: Path) -> None:
    law = parse("file: " + written(tmp_path, "12\n\n 7 \r\n12"), tmp_path)
    assert law == Lengths("file", values=(12, 7, 12), file="lengths")
    assert str(law) == "file:lengths"
    assert mean(law) == pytest.approx(31 / 3)
    assert parse(f"file:{tmp_path / 'lengths'}").values == (12, 7, 12)


def test_lines_are_drawn_as_often_as_each_other() -> None:
    law = Lengths("file", values=(10, 20, 20, 90), file="f")
    found = draw(law, stream(0), 20_000).tolist()
    assert stats.chisquare([found.count(n) for n in (10, 20, 90)], [5000, 10_000, 5000]).pvalue > 0.001


def test_a_file_is_known_by_what_it_holds(tmp_path: Path) -> None:
    content = b"12\n7\n"
    tidy = parse("file:" + written(tmp_path, content), tmp_path)
    assert canonical(tidy) == f"file:sha256:{hashlib.sha256(content).hexdigest()}"
    elsewhere = Lengths("file", values=(12, 7), file="another")
    assert canonical(elsewhere) == canonical(tidy)
    assert canonical(Lengths("file", values=(7, 12), file="lengths")) != canonical(tidy)
    assert canonical(parse("512")) == "512"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file is empty; expected one whole number"),
        ("12\n\nx\n", "line 3: expected one whole number from 1 to 10000000 (got 'x')"),
        ("12\n0", "line 2: expected"),
        ("1.5", "line 1: expected"),
        ("10000001", "line 1: expected"),
        ("1,2", "line 1: expected"),
        ("9" * 5000, "line 1: expected"),
        ("\u0665", "line 1: expected"),
        (b"\xff\xfe\x00", "not a text file"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, text: str | bytes, says: str) -> None:
    name = written(tmp_path, text)
    with pytest.raises(ValueError, match=r"lengths") as caught:
        parse(f"file:{name}", tmp_path)
    assert says in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nope: No such file"):
        parse("file:nope", tmp_path)
    with pytest.raises(ValueError, match=r"nope: No such file"):
        pairs("nope", tmp_path)


@pytest.mark.parametrize(
    "text", ["input,output\n10,1\n20,2\n", "10,1\n\n 20 , 2", "\ufeffInput, Output\r\n10,1\r\n20,2\r\n"]
)
def test_pairs_of_a_file(tmp_path: Path, text: str) -> None:
    found = pairs(written(tmp_path, text), tmp_path)
    assert (found.input, found.output) == ((10, 20), (1, 2))
    tidy = b"10,1\n20,2\n"
    assert canonical_pairs(found) == f"sha256:{hashlib.sha256(tidy).hexdigest()}"


def test_pairs_stay_together(tmp_path: Path) -> None:
    found = pairs(written(tmp_path, "".join(f"{n},{n * n}\n" for n in range(1, 101))), tmp_path)
    some = list(islice(drawn_pairs(found, stream(0)), 3000))
    assert all(output == input_ * input_ for input_, output in some)
    assert len(set(some)) == 100


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file is empty; expected two whole numbers"),
        ("input,output\n", "no lengths below its first line"),
        ("10,1\ninput,output\n", "line 2: expected two whole numbers"),
        ("10\n", "line 1: expected two whole numbers from 1 to 10000000, input,output (got '10')"),
        ("10,1,1\n", "line 1"),
        ("10,1\n10,0\n", "line 2"),
    ],
)
def test_bad_pairs_are_named_with_their_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ValueError, match="lengths") as caught:
        pairs(written(tmp_path, text), tmp_path)
    assert says in str(caught.value)


@given(st.text(max_size=40))
def test_any_content_is_lengths_or_a_value_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("any")
    name = written(folder, text.encode("utf-8", "surrogatepass"))
    for form in ("column", "pairs"):
        try:
            assert parse(f"file:{name}", folder).values if form == "column" else pairs(name, folder).input
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017 (either outcome is right)
