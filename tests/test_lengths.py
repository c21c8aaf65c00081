import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from workloads.lengths import LARGEST_SIGMA, LONGEST, Lengths, draw, mean, parse
from workloads.seeds import stream

whole = st.integers(1, LONGEST)
real = st.floats(1, LONGEST)
laws = st.one_of(
    whole.map(lambda n: Lengths("fixed", (float(n),))),
    st.tuples(whole, whole).map(lambda ends: Lengths("uniform", (float(min(ends)), float(max(ends))))),
    st.tuples(real, st.floats(0, LONGEST)).map(lambda both: Lengths("normal", both)),
    st.tuples(real, st.floats(0, LARGEST_SIGMA)).map(lambda both: Lengths("lognormal", both)),
)


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
        ("0", "at least 1 token"),
        ("-5", "at least 1 token"),
        ("1.5", "whole number"),
        ("uniform:0..5", "at least 1 token"),
        ("uniform:200..100", "uniform:100..200"),
        ("uniform:100", "uniform:100..200"),
        ("normal:512,-1", "cannot be negative"),
        ("normal:-512,1", "at least 1 token"),
        ("lognormal:512,-0.1", "between 0 and 4"),
        ("lognormal:512,64", "between 0 and 4"),
        ("lognormal:0.5,0.6", "at least 1 token"),
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


@given(laws, st.integers(0, 50), st.integers(0, 50))
def test_lengths_are_whole_in_range_and_drawn_in_any_portions(law: Lengths, first: int, second: int) -> None:
    at_once = draw(law, stream(7), first + second)
    rng = stream(7)
    in_two = np.concatenate([draw(law, rng, first), draw(law, rng, second)])
    assert at_once.dtype == np.int64
    assert np.array_equal(at_once, in_two)
    assert all(1 <= n <= LONGEST for n in at_once.tolist())


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
