"""What is read of each engine's page: in tests/golden/metrics are excerpts, each named after its engine and version."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen import prometheus

PAGES = Path(__file__).parent / "golden/metrics"
EXPECTED: dict[str, tuple[str, dict[str, float]]] = {
    "vllm-0.32": (
        "vllm",
        {
            "running": 14, "waiting": 3, "kv_use": 0.5, "preemptions": 2, "prefix_queries": 4000, "prefix_hits": 1000,
            "draft_tokens": 500, "accepted_tokens": 300, "prompt_tokens": 4000, "output_tokens": 1200,
            "ttft_s": 2.5, "ttft_n": 20, "queue_s": 0.9, "queue_n": 18, "prefill_s": 1.8, "prefill_n": 18,
            "decode_s": 36, "decode_n": 18,
        },
    ),
    "vllm-earlier": (
        "vllm",
        {
            "running": 8, "waiting": 0, "kv_use": 0.01, "prefix_queries": 800, "prefix_hits": 600,
            "prompt_tokens": 1000, "output_tokens": 500, "ttft_s": 0.03, "ttft_n": 1,
        },
    ),
    "sglang-0.5": (
        "sglang",
        {
            "running": 162, "waiting": 28, "kv_use": 0.28, "preemptions": 48, "prefix_queries": 8e6, "prefix_hits": 2e6,
            "accepted_share": 0.6, "prompt_tokens": 8e6, "output_tokens": 7.5e6, "ttft_s": 2350, "ttft_n": 11008,
            "queue_s": 1100, "queue_n": 11000,
        },
    ),
    "tgi-3": (
        "tgi",
        {"running": 4, "waiting": 5, "prompt_tokens": 5120, "output_tokens": 640, "queue_s": 1.2, "queue_n": 10},
    ),
    "llama.cpp": ("llama.cpp", {"running": 4, "waiting": 46, "prompt_tokens": 512, "output_tokens": 39080}),
}  # fmt: skip


def page(name: str) -> str:
    return (PAGES / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_page_of_each_engine(name: str) -> None:
    assert prometheus.read(page(name)) == EXPECTED[name]


def test_every_page_is_tested() -> None:
    assert {path.stem if path.suffix == ".txt" else path.name for path in PAGES.iterdir()} == {*EXPECTED}
    assert {engine for engine, _ in EXPECTED.values()} == {*prometheus.ENGINES}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_underscore_for_the_colon(name: str) -> None:
    """As collectors in between write it, and some versions of SGLang."""
    assert prometheus.read(page(name).replace(":", "_")) == EXPECTED[name]


def test_the_name_of_now_goes_before_that_of_then() -> None:
    both = "vllm:gpu_cache_usage_perc 0.1\nvllm:kv_cache_usage_perc 0.2\n"
    assert prometheus.read(both) == ("vllm", {"kv_use": 0.2})


@pytest.mark.parametrize("text", ["", "<html>vllm:</html>", "go_goroutines 7\n", "vllm:num_requests_running_total 3\n"])
def test_a_page_without_known_names(text: str) -> None:
    assert prometheus.read(text) == (None, {})


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e999"])
def test_what_is_not_finite_is_left_out(value: str) -> None:
    text = f"vllm:num_requests_running {value}\nvllm:num_requests_waiting 1\n"
    assert prometheus.read(text) == ("vllm", {"waiting": 1})


def test_a_sum_that_is_not_finite_is_left_out() -> None:
    text = 'vllm:num_requests_running{engine="0"} 1e308\nvllm:num_requests_running{engine="1"} 1e308\n'
    assert prometheus.read(text) == (None, {})


@pytest.mark.parametrize("line", ["vllm:num_requests_running", 'vllm:num_requests_running{a="x} 1', "tgi_queue_size x"])
def test_a_malformed_line_with_a_known_name_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        prometheus.read(f"vllm:num_requests_waiting 1\n{line}\n")


def test_malformed_lines_of_others_are_none_of_ours() -> None:
    assert prometheus.read("?? {{{ 5\nvllm:num_requests_waiting 1\n") == ("vllm", {"waiting": 1})


def test_a_page_that_never_ends_is_refused() -> None:
    with pytest.raises(ValueError, match="10001 lines"):
        prometheus.read("tgi_queue_size 1\n" * 10_001)


@given(st.lists(st.sampled_from(["tgi_queue_size", "{", "}", "=", '"', "\\", ",", "\n", "\r", " ", "1", "é", "\x00"])))
def test_any_text_gives_finite_values_or_a_value_error(parts: list[str]) -> None:
    try:
        _, values = prometheus.read("tgi_queue_size" + "".join(parts))
    except ValueError:
        return
    assert all(math.isfinite(value) for value in values.values())


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=5))
def test_labels_are_summed_and_shares_averaged(values: list[float]) -> None:
    lines = [
        f'{name}{{engine="{i}"}} {value!r}\n'
        for name in ("vllm:generation_tokens_total", "vllm:kv_cache_usage_perc")
        for i, value in enumerate(values)
    ]
    _, read = prometheus.read("".join(lines))
    assert read["output_tokens"] == pytest.approx(sum(values))
    assert read["kv_use"] == pytest.approx(sum(values) / len(values))


def test_every_name_is_documented() -> None:
    text = (Path(__file__).parents[1] / "docs/server.md").read_text()
    engines = prometheus.ENGINES.values()
    names = {name for engine in engines for names in (*engine.values.values(), engine.times.values()) for name in names}
    assert sorted(name for name in names if f"`{name}`" not in text) == []
