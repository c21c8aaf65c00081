import heapq
import math
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from workloads.schedule import HIGHEST_CV, HIGHEST_RATE_PER_S, LOWEST_CV, LOWEST_RATE_PER_S, Law, due_us, parse
from workloads.seeds import stream

SEEDS = range(5)
RATE_PER_S = 40.0

rates = st.floats(0, HIGHEST_RATE_PER_S)
files = (
    st.text(st.characters(blacklist_characters="\0"), min_size=1)
    .map(Path)
    .filter(lambda file: str(file) == str(file).strip())  # as of any text, spaces around it are not of the law
)
laws = st.one_of(
    st.sampled_from([Law("poisson"), Law("constant")]),
    st.floats(LOWEST_CV, HIGHEST_CV).map(lambda cv: Law("gamma", (cv,))),
    st.tuples(rates, rates).filter(any).map(lambda ends: Law("ramp", ends)),
    files.map(lambda file: Law("trace", file=file)),
)


def offsets(text: str, count: int, *, seed: int = 0, level: int = 0, rate_per_s: float = RATE_PER_S) -> list[int]:
    return list(islice(due_us(parse(text), seed=seed, level=level, rate_per_s=rate_per_s, duration_s=None), count))


def ramp(text: str, duration_s: float, *, seed: int = 0) -> list[int]:
    return list(due_us(parse(text), seed=seed, level=0, rate_per_s=None, duration_s=duration_s))


# Law and text


@given(laws)
def test_text_and_law_are_the_same_thing(law: Law) -> None:
    assert parse(str(law)) == law
    assert str(parse(str(law))) == str(law)


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("constant", Law("constant")),
        (" poisson ", Law("poisson")),
        ("gamma:2.5", Law("gamma", (2.5,))),
        ("ramp:0..20", Law("ramp", (0, 20))),
        ("ramp:.5..2.5", Law("ramp", (0.5, 2.5))),
        ("ramp:1e2..5", Law("ramp", (100, 5))),
        ("trace:a/b:c.csv", Law("trace", file=Path("a/b:c.csv"))),
    ],
)
def test_parse(text: str, law: Law) -> None:
    assert parse(text) == law


def test_canonical_text() -> None:
    assert [str(parse(text)) for text in ("gamma:1.50", "ramp:1e2..0.250", "trace:./t.csv")] == [
        "gamma:1.5",
        "ramp:100..0.25",
        "trace:t.csv",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gamma:0", "say constant"),
        ("gamma:-1", "between 0.01 and 100"),
        ("gamma:0.001", "between 0.01 and 100"),
        ("gamma:nan", "between 0.01 and 100"),
        ("gamma:inf", "between 0.01 and 100"),
        ("ramp:-1..5", "between 0 and 1000000 requests/s"),
        ("ramp:0..1e9", "between 0 and 1000000 requests/s"),
        ("ramp:nan..5", "between 0 and 1000000 requests/s"),
        ("ramp:0..0", "sends nothing"),
        ("gamma", "expected poisson"),
        ("gamma:", "expected poisson"),
        ("gamma:1,2", "expected poisson"),
        ("ramp:5", "expected poisson"),
        ("ramp:1..2..3", "expected poisson"),
        ("trace", "expected poisson"),
        ("trace:", "expected poisson"),
        ("poisson:", "expected poisson"),
        ("poisson:3", "expected poisson"),
        ("Poisson", "expected poisson"),
        ("uniform", "expected poisson"),
        ("", "expected poisson"),
        ("x\n" * 10_000, "expected poisson"),
    ],
)
def test_refusals_say_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=r"^arrivals '") as caught:
        parse(text)
    message = str(caught.value)
    assert expected in message
    assert len(message) < 300
    assert "\n" not in message


@given(st.text(max_size=30) | st.builds("{}{}".format, st.sampled_from(["gamma:", "ramp:"]), st.text(".0123456789e-")))
def test_any_text_is_a_law_or_a_value_error(text: str) -> None:
    try:
        law = parse(text)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017 (either outcome is right)
        return
    if law.name != "trace":
        due = list(islice(due_us(law, seed=0, level=0, rate_per_s=1, duration_s=1e-3), 100))
        assert due == sorted(due)
        assert min(due, default=0) >= 0


@pytest.mark.parametrize("rate_per_s", [None, 0, -1, 1e-9, 1e9, math.nan, math.inf])
@pytest.mark.parametrize("text", ["constant", "poisson", "gamma:2"])
def test_a_rate_is_needed_and_more_than_nothing(text: str, rate_per_s: float | None) -> None:
    with pytest.raises(ValueError, match=f"^arrivals {text}: .*rate.* requests/s$"):
        due_us(parse(text), seed=0, level=0, rate_per_s=rate_per_s, duration_s=None)


@pytest.mark.parametrize("duration_s", [None, 0, -1, math.nan, math.inf])
def test_a_ramp_needs_a_duration(duration_s: float | None) -> None:
    with pytest.raises(ValueError, match="needs the duration of a level"):
        due_us(parse("ramp:0..5"), seed=0, level=0, rate_per_s=None, duration_s=duration_s)


def test_a_trace_is_not_drawn() -> None:
    with pytest.raises(ValueError, match=r"^arrivals trace:a.csv: a trace is replayed"):
        due_us(parse("trace:a.csv"), seed=0, level=0, rate_per_s=None, duration_s=None)


# One schedule, whatever is taken of it

DRAWN = ["constant", "poisson", "gamma:0.3", "gamma:3"]
RANDOM = DRAWN[1:]


@pytest.mark.parametrize("text", DRAWN)
def test_an_arrival_does_not_depend_on_how_many_are_taken(text: str) -> None:
    assert offsets(text, 100) == offsets(text, 10_000)[:100]


@pytest.mark.parametrize("text", RANDOM)
def test_seed_and_level_choose_the_schedule_and_0_is_a_seed(text: str) -> None:
    drawn = {(seed, level): tuple(offsets(text, 50, seed=seed, level=level)) for seed in (0, 1) for level in (0, 1)}
    assert len(set(drawn.values())) == 4
    assert tuple(offsets(text, 50, seed=0, level=0)) == drawn[0, 0]


def test_the_stream_is_the_named_one_of_seed_0() -> None:
    left_s = stream(0, "arrivals", 3).standard_exponential() / RATE_PER_S
    assert offsets("poisson", 1, seed=0, level=3) == [round(left_s * 1e6)]


@pytest.mark.parametrize("text", RANDOM)
def test_another_rate_is_the_same_pattern_at_another_speed(text: str) -> None:
    slow, fast = (np.array(offsets(text, 1000, rate_per_s=rate)) for rate in (1.0, 8.0))
    assert np.abs(slow / 8 - fast).max() <= 1


@pytest.mark.parametrize("rate_per_s", [LOWEST_RATE_PER_S, 3.0, 7.3, 2000.0, 2999.7, HIGHEST_RATE_PER_S])
def test_constant_gaps_do_not_drift(rate_per_s: float) -> None:
    due = np.array(offsets("constant", 20_000, rate_per_s=rate_per_s))
    exact = [float(i) / rate_per_s * 1e6 for i in range(20_000)]
    assert due[0] == 0
    assert np.abs(due - exact).max() <= max(0.5, exact[-1] * 1e-15)


# What a server sees. Tolerances are four standard errors of the law that is tested, p-values above 0.001.

RENEWAL = {"poisson": 1.0, "gamma:1": 1.0, "gamma:0.5": 0.5, "gamma:2": 2.0, "gamma:3": 3.0}  # CV of the gaps


def one_worker(text: str, count: int, seed: int) -> NDArray[np.int64]:
    return np.array(offsets(text, count, seed=seed))


def four_workers(text: str, count: int, seed: int) -> NDArray[np.int64]:
    """Each draws the schedule for itself and sends every fourth request of it."""
    parts = [islice(offsets(text, count, seed=seed), worker, None, 4) for worker in range(4)]
    return np.fromiter(heapq.merge(*parts), np.int64)


Seen = Callable[[str, int, int], NDArray[np.int64]]
seen_by_a_server = pytest.mark.parametrize("seen", [one_worker, four_workers])


def counts(due: NDArray[np.int64], window_s: float) -> NDArray[np.int64]:
    windows = int(due[-1] / 1e6 / window_s)
    return np.bincount((due / (window_s * 1e6)).astype(np.int64), minlength=windows)[:windows]


def dispersion_holds(due: NDArray[np.int64], cv: float) -> bool:
    """Index of dispersion of counts in windows of 200 mean gaps: CV^2 in the long run."""
    n = counts(due, 200 / RATE_PER_S)
    return bool(abs(n.var(ddof=1) / n.mean() / cv**2 - 1) < 4 * math.sqrt(2 / (n.size - 1)) + 0.05)


@seen_by_a_server
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("text", RENEWAL)
def test_rate_and_dispersion(text: str, seed: int, seen: Seen) -> None:
    due = seen(text, 100_000, seed)
    rate_per_s = due.size / due[-1] * 1e6
    assert rate_per_s == pytest.approx(RATE_PER_S, rel=4 * RENEWAL[text] / due.size**0.5)
    assert dispersion_holds(due, RENEWAL[text])


def test_four_schedules_of_one_seed_would_not_pass_for_one() -> None:
    part = offsets("poisson", 25_000, rate_per_s=RATE_PER_S / 4)
    assert not dispersion_holds(np.fromiter(heapq.merge(part, part, part, part), np.int64), 1.0)


@seen_by_a_server
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("text", RENEWAL)
def test_gaps_follow_the_law(text: str, seed: int, seen: Seen) -> None:
    """Gaps of 100 us and more, in which the rounding to 1 us does not show; and how many these are."""
    gaps = np.diff(seen(text, 20_000, seed))
    shape = 1 / RENEWAL[text] ** 2
    law = stats.gamma(shape, scale=1e6 / RATE_PER_S / shape)
    short = law.cdf(99.5)
    assert abs(np.mean(gaps < 100) - short) < 4 * math.sqrt(short * (1 - short) / gaps.size)
    assert stats.kstest(gaps[gaps >= 100], lambda x: (law.cdf(x) - short) / (1 - short)).pvalue > 0.001
    assert abs(stats.spearmanr(gaps[1:], gaps[:-1]).statistic) < 4 / gaps.size**0.5  # and do not depend on each other


@pytest.mark.parametrize("text", ["poisson", "gamma:1", "gamma:0.3", "gamma:3"])
def test_random_laws_are_stationary_from_the_start(text: str) -> None:
    """The first offset of a level has the law P(X > x) / E(X), and the first 10 mean gaps expect 10 requests."""
    cv = float(text.partition(":")[2] or 1)
    gap = stats.gamma(1 / cv**2, scale=cv**2)  # mean gaps
    levels = [np.array(offsets(text, 500, level=level)) / 1e6 * RATE_PER_S for level in range(800)]

    first = np.array([due[0] for due in levels])
    width = first.max() / 200_000
    steps = np.arange(width / 2, first.max() + width, width)
    first_law = np.interp(first, steps + width / 2, np.cumsum(gap.sf(steps) * width))
    assert stats.kstest(first_law, "uniform").pvalue > 0.001
    early = np.array([np.searchsorted(due, 10.0) for due in levels])
    assert early.mean() == pytest.approx(10, abs=4 * early.std() / len(levels) ** 0.5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("text", ["ramp:0..50", "ramp:50..0", "ramp:10..30", "ramp:25..25"])
def test_a_ramp_is_a_poisson_process_in_a_straight_line(text: str, seed: int) -> None:
    duration_s = 400.0
    due = np.array(ramp(text, duration_s, seed=seed)) / 1e6
    low, high = parse(text).parameters

    def expected(t: NDArray[np.float64]) -> NDArray[np.float64]:
        return low * t + (high - low) * t**2 / (2 * duration_s)

    assert due[-1] <= duration_s
    edges = np.linspace(0, duration_s, 11)
    in_tenths = np.diff(expected(edges))
    assert np.all(np.abs(np.histogram(due, edges)[0] - in_tenths) < 4 * np.sqrt(in_tenths))
    gaps = np.diff(expected(due), prepend=0)
    assert stats.kstest(gaps, stats.expon.cdf).pvalue > 0.001


def test_a_ramp_ends_with_its_level_and_may_be_empty() -> None:
    assert all(0 <= due <= 10_000 for seed in range(200) for due in ramp("ramp:0..200", 0.01, seed=seed))
    assert [] in [ramp("ramp:0..1", 0.01, seed=seed) for seed in range(3)]


def test_a_ramp_ends_the_same_for_any_reader() -> None:
    def taken(due: Iterator[int], count: int) -> list[int]:
        return list(islice(due, count))

    whole = ramp("ramp:0..100", 200)
    due = due_us(parse("ramp:0..100"), seed=0, level=0, rate_per_s=None, duration_s=200)
    assert [*taken(due, 7), *taken(due, 5000), *due] == whole
    assert len(whole) > 5007
