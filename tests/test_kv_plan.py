from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import floors, kv_plan
from analysis.catalog import facts
from analysis.hardware import Hardware, parse

LLAMA = parse("llama-3.1-8b@h100,dtype=bf16")


def test_memory_by_hand() -> None:
    """0.9 of 80 GB without 16.06 GB, over 131,072 bytes a token."""
    tokens = (72e9 - 16.06e9) / 131072
    made = kv_plan.plan(LLAMA, 2000, 500)
    assert made.memory_full_seqs == int(tokens / 2500)
    assert made.memory_live_seqs == int(tokens / 2250)
    assert (made.floor.itl_seqs, made.floor.steady_seqs, made.itl_limit_ms) == (None, None, None)
    assert (made.floor.max_num_seqs, made.floor.binds) == (made.memory_live_seqs, "memory")


def test_the_itl_limit_holds_up_to_the_number_and_not_beyond() -> None:
    made = kv_plan.plan(LLAMA, 2000, 500, ["itl p99 < 10ms"])
    for case in (made.floor, made.usual):
        n = case.itl_seqs
        assert n is not None
        assert floors.decode_s(LLAMA, n, 2250) / case.efficiency <= 0.010
        assert floors.decode_s(LLAMA, n + 1, 2250) / case.efficiency > 0.010
        steady = case.steady_seqs
        assert steady is not None
        assert floors.steady_s(LLAMA, steady, 2000, 500) / case.efficiency <= 0.010
        assert floors.steady_s(LLAMA, steady + 1, 2000, 500) / case.efficiency > 0.010
    assert (made.floor.binds, made.usual.binds) == ("itl", "itl")
    assert (made.usual.max_num_seqs or 0) < (made.floor.max_num_seqs or 0)


def test_the_tightest_limit_of_the_slo_counts() -> None:
    made = kv_plan.plan(LLAMA, 100, 100, ["chat", "itl p50 < 30ms", "ttft_sent p50 < 90ms"])
    assert (made.itl_limit_ms, made.ttft_limit_ms) == (30, 90)
    assert made.slo == ("ttft p99 < 200ms", "tpot p99 < 50ms", "itl p50 < 30ms", "ttft_sent p50 < 90ms")


def test_prompts_between_the_tokens_make_compute_bind() -> None:
    made = kv_plan.plan(LLAMA, 1155, 211, ["chat"])
    assert made.saturating_seqs is not None
    assert made.saturating_seqs < (made.floor.max_num_seqs or 0)
    assert made.floor.binds == "compute"
    assert (made.floor.steady_seqs or 0) < (made.floor.itl_seqs or 0)


def test_ttft_at_the_floor_and_at_a_usual_efficiency() -> None:
    made = kv_plan.plan(LLAMA, 8000, 100, ["ttft p99 < 200ms"])
    assert made.floor.ttft_ms == pytest.approx(floors.prefill_s(LLAMA, 8000) * 1e3)
    assert made.usual.ttft_ms == pytest.approx(floors.prefill_s(LLAMA, 8000) * 1e3 / kv_plan.USUAL)
    assert (made.floor.ttft_met, made.usual.ttft_met) == (True, False)


def test_what_does_not_fit_has_no_command() -> None:
    for text in ("70b@h100,dtype=bf16", "llama-3.1-70b@h100,dtype=bf16"):
        made = kv_plan.plan(parse(text), 1000, 100)
        assert (made.floor.max_num_seqs, made.floor.binds) == (0, "memory")
        assert (made.try_seqs, made.command) == ((), None)


def test_a_limit_that_no_stream_meets() -> None:
    made = kv_plan.plan(LLAMA, 1000, 100, ["itl p99 < 4ms"])
    assert (made.floor.itl_seqs, made.floor.max_num_seqs, made.floor.binds) == (0, 0, "itl")
    assert made.command is None


def test_where_nothing_is_known_nothing_binds() -> None:
    made = kv_plan.plan(parse("7b@m2-ultra,dtype=bf16"), 1000, 100, ["itl p99 < 50ms"])
    assert (made.floor.max_num_seqs, made.floor.binds, made.saturating_seqs) == (None, None, None)
    assert made.try_seqs


def test_the_command() -> None:
    hardware = parse("llama-3.1-70b@h100,dtype=fp8,gpus=2,kv_cache_dtype=fp8,gpu_memory_utilization=0.85")
    made = kv_plan.plan(hardware, 5000, 500, ["itl p99 < 50ms"])
    assert made.command is not None
    words = shlex.split(made.command)
    assert words[:3] == ["loadgen", "tune", "--launch"]
    assert words[3] == (
        "vllm serve MODEL --max-num-seqs {n} --max-model-len 6144 --gpu-memory-utilization 0.85 "
        "--tensor-parallel-size 2 --quantization fp8 --kv-cache-dtype fp8"
    )
    values = ",".join(map(str, made.try_seqs))
    assert words[4:] == [
        "--set", f"n={values}", "--input", "5000", "--output", "500", "--concurrency", f"1..{made.try_seqs[-1]}",
        "--slo", "itl p99 < 50ms",
    ]  # fmt: skip


@settings(deadline=None)
@given(
    st.builds(
        Hardware,
        model=st.sampled_from(list(facts.models().values())),
        gpu=st.sampled_from(list(facts.gpus().values())),
        dtype=st.sampled_from(["bf16", "fp8", "int4"]),
        gpus=st.sampled_from([1, 2, 8]),
    ),
    st.integers(1, 100_000),
    st.integers(1, 10_000),
    st.integers(1, 200),
)
def test_every_plan_is_in_order(hardware: Hardware, prompt: int, output: int, limit_ms: int) -> None:
    made = kv_plan.plan(hardware, prompt, output, [f"itl p99 < {limit_ms}ms"])
    assert (made.memory_full_seqs or 0) <= (made.memory_live_seqs or 0)
    for best, usual in (
        (made.floor.itl_seqs, made.usual.itl_seqs),
        (made.floor.max_num_seqs, made.usual.max_num_seqs),
        (made.floor.itl_seqs, made.floor.steady_seqs),
    ):
        assert best is None or (usual is not None and usual <= best)
    if made.floor.max_num_seqs == 0:
        assert made.try_seqs == ()
        return
    assert 3 <= len(made.try_seqs) <= 5
    assert all(n & (n - 1) == 0 for n in made.try_seqs)
    assert list(made.try_seqs) == sorted(set(made.try_seqs))
    likely = min(n for n in (made.floor.max_num_seqs, made.usual.max_num_seqs, made.saturating_seqs) if n is not None)
    assert made.try_seqs[0] <= max(likely, 1) <= made.try_seqs[-1]
