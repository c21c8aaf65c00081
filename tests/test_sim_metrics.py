import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.sim.metrics import Histogram, Latencies, render

SAMPLE = re.compile(r"^([a-z_]+:?[a-z0-9_]+)\{([a-z_]+=\"[^\"]*\",?)+\} -?[0-9.e+-]+$")


@given(st.lists(st.floats(0, 100), max_size=50))
def test_buckets_count_what_is_at_most_their_bound(values: list[float]) -> None:
    histogram = Histogram((0.5, 1.0, 10.0))
    for value in values:
        histogram.observe(value)
    samples = dict(line.rsplit(" ", 1) for line in histogram.lines("t", 'm="x"') if not line.startswith("#"))
    for bound in (0.5, 1.0, 10.0):
        assert float(samples[f't_bucket{{m="x",le="{bound}"}}']) == sum(value <= bound for value in values)
    assert float(samples['t_bucket{m="x",le="+Inf"}']) == float(samples['t_count{m="x"}']) == len(values)
    assert float(samples['t_sum{m="x"}']) == pytest.approx(sum(values))


def test_the_page_is_prometheus_text_with_vllms_names() -> None:
    latencies = Latencies()
    latencies.time_to_first_token.observe(0.03)
    page = render("m", {"vllm:num_requests_running": 2}, {"vllm:prompt_tokens_total": 30}, {"stop": 1}, latencies)
    lines = page.splitlines()
    assert page.endswith("\n")
    assert [line for line in lines if not (line.startswith("# TYPE ") or SAMPLE.match(line))] == []
    assert 'vllm:num_requests_running{engine="0",model_name="m"} 2.0' in lines
    assert "# TYPE vllm:prompt_tokens_total counter" in lines
    assert 'vllm:request_success_total{engine="0",model_name="m",finished_reason="stop"} 1.0' in lines
    histograms = {line.split()[2] for line in lines if line.endswith(" histogram")}
    assert histograms == {
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
        "vllm:request_queue_time_seconds",
        "vllm:request_prefill_time_seconds",
        "vllm:request_decode_time_seconds",
        "vllm:e2e_request_latency_seconds",
    }
