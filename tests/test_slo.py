from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import slo
from analysis.slo import Term


@pytest.mark.parametrize(
    ("text", "term", "canonical"),
    [
        ("ttft p99 < 500ms", Term("ttft", 99.0, 500.0), "ttft p99 < 500ms"),
        ("  ITL  P95<=0.05S ", Term("itl", 95.0, 50.0), "itl p95 < 50ms"),
        ("tpot p99 ≤ 40 ms", Term("tpot", 99.0, 40.0), "tpot p99 < 40ms"),
        ("e2e p90 < 20s", Term("e2e", 90.0, 20_000.0), "e2e p90 < 20s"),
        ("e2e p50 < 2m", Term("e2e", 50.0, 120_000.0), "e2e p50 < 120s"),
        ("ttfat p99.9 < 1s", Term("ttfat", 99.9, 1000.0), "ttfat p99.9 < 1s"),
        ("ttft_sent p99 < 1500ms", Term("ttft_sent", 99.0, 1500.0), "ttft_sent p99 < 1.5s"),
        ("stall p99 < 900us", Term("stall", 99.0, 0.9), "stall p99 < 0.9ms"),
        ("error_rate < 0.1%", Term("error_rate", None, 0.001), "error_rate < 0.1%"),
        ("throughput > 2000", Term("throughput", None, 2000.0), "throughput > 2000"),
        ("throughput >= 2000.5/s", Term("throughput", None, 2000.5), "throughput > 2000.5"),
    ],
)
def test_terms(text: str, term: Term, canonical: str) -> None:
    assert slo.parse(text) == term
    assert str(term) == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no SLO term: write one such as 'ttft p99 < 500ms'"),
        ("ttft p99 = 5ms", "is no SLO term"),
        ("ttft p99 < -5ms", "is no SLO term"),
        ("ttft p99 < 1e9ms", "is no SLO term|with its unit"),
        ("tfft p99 < 5ms", "no metric 'tfft'; nearest: ttft"),
        ("qqq p99 < 5ms", "no metric 'qqq'; known: ttft, ttft_sent"),
        ("ttft < 5ms", "ttft needs a percentile, as in 'ttft p99 < 500ms'"),
        ("ttft p100 < 5ms", "between 0 and 100"),
        ("ttft p0 < 5ms", "between 0 and 100"),
        ("ttft p99 < 5", "expected a time with its unit, such as 5ms"),
        ("ttft p99 < 5 parsec", "expected a time with its unit"),
        ("ttft p99 < 0ms", "can never be kept"),
        ("ttft p99 < 0.4us", "between a microsecond and a day"),
        ("e2e p99 < 1441m", "between a microsecond and a day"),
        ("ttft p99 > 5ms", "ttft is kept below a limit, so write <"),
        ("throughput < 5", "throughput is kept above a limit, so write >"),
        ("throughput p99 > 5", "throughput has no percentiles, write throughput > 5"),
        ("throughput > 5ms", "output tokens per second, such as 5 or 5/s"),
        ("error_rate < 0.1", "expected a percentage below 100, such as 0.1%"),
        ("error_rate < 100%", "expected a percentage below 100"),
    ],
)
def test_a_wrong_term_says_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        slo.parse(text)
    assert repr(text) in str(error.value)
    assert "\n" not in str(error.value)


def test_what_may_exceed() -> None:
    assert [slo.parse(text).allowed for text in ("ttft p99 < 1s", "itl p99.9 < 1s", "error_rate < 0.1%")] == [
        0.01,
        0.001,
        0.001,
    ]


numbers = st.decimals(min_value="0.000001", max_value="999999999", places=6).map(lambda value: format(value, "f"))
percents = st.decimals(min_value="0.001", max_value="99.999", places=3).map(lambda value: format(value, "f"))
latencies = st.builds(
    "{} p{} < {}{}".format,
    st.sampled_from(slo.LATENCIES),
    percents,
    numbers,
    st.sampled_from(["us", "ms", "s", "m"]),
)
shares = st.builds("error_rate < {}%".format, percents)
rates = st.builds("throughput > {}".format, numbers)


def parsed(text: str) -> tuple[Term | None, str]:
    try:
        return slo.parse(text), ""
    except ValueError as error:
        return None, str(error)


@given(latencies | shares | rates)
def test_the_canonical_text_is_read_back(text: str) -> None:
    term, error = parsed(text)
    assert (term is None) == ("between a microsecond and a day" in error)
    if term is not None:
        assert slo.parse(str(term)) == term


@given(st.text(max_size=40) | st.text(alphabet="ttftp99 <>=.ms%0123456789_throughput", max_size=30))
def test_any_text_is_a_term_or_one_line_of_error(text: str) -> None:
    term, error = parsed(text)
    assert (term is None) == (len(error.splitlines()) == 1)


def test_presets_are_those_of_the_sheet() -> None:
    known = slo.presets()
    assert len(known) == 11
    assert all(preset.source and len(preset.terms) == 2 for preset in known.values())
    assert [str(term) for term in known["chat"].terms] == ["ttft p99 < 200ms", "tpot p99 < 50ms"]
    assert [str(term) for term in known["mlperf-llama3.1-405b-interactive"].terms] == [
        "ttft p99 < 4.5s",
        "tpot p99 < 80ms",
    ]


def test_values_are_presets_and_terms_and_the_last_counts() -> None:
    found = slo.terms(["e2e p90 < 20s", "Chat", "ttft p99 < 1s", "ttft p50 < 100ms", "e2e p90 < 20s"])
    assert [str(term) for term in found] == [
        "e2e p90 < 20s",
        "ttft p99 < 1s",
        "tpot p99 < 50ms",
        "ttft p50 < 100ms",
    ]
    assert slo.terms([]) == ()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("chatt", r"'chatt' is neither an SLO preset \(nearest: chat\) nor a term such as 'ttft p99 < 500ms'"),
        ("", r"neither an SLO preset \(known: chat, rag"),
        ("ttft p99 < 5", "with its unit"),
    ],
)
def test_a_wrong_value(value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        slo.terms([value])


def test_terms_are_read_without_numpy() -> None:
    code = "import sys, analysis.slo; print({'numpy', 'scipy', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
