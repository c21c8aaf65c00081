import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import floors
from analysis.catalog import facts
from analysis.hardware import Hardware, parse

MODELS = st.sampled_from(list(facts.models().values()))
HARDWARE = st.builds(
    Hardware,
    model=MODELS,
    gpu=st.sampled_from(list(facts.gpus().values())),
    dtype=st.sampled_from(["bf16", "fp8", "int4"]),
    gpus=st.integers(1, 8),
)

# The lesson's figures: ms of reading all weights once.
LESSON = [
    ("7b@l4,dtype=bf16", 46.7),
    ("7b@a100-80gb,dtype=bf16", 6.9),
    ("7b@h100,dtype=bf16", 4.2),
    ("7b@h200,dtype=bf16", 2.9),
    ("70b@a100-80gb,dtype=int8", 34.3),
    ("27b@h100,dtype=bf16", 1000 / 62),
]


@pytest.mark.parametrize(("text", "floor_ms"), LESSON)
def test_the_decode_floor_is_one_reading_of_the_weights(text: str, floor_ms: float) -> None:
    assert floors.decode_s(parse(text)) * 1e3 == pytest.approx(floor_ms, rel=0.01)


def test_a_prefill_of_7b_on_an_h100() -> None:
    assert floors.prefill_s(parse("7b@h100,dtype=bf16"), 4096) * 1e3 == pytest.approx(58, rel=0.01)


def test_break_even() -> None:
    assert floors.break_even_batch(parse("7b@h100,dtype=bf16")) == pytest.approx(295, abs=0.5)
    assert floors.break_even_batch(parse("7b@h100,dtype=bf16,gpus=2")) == pytest.approx(295, abs=0.5)
    assert floors.break_even_batch(parse("7b@m2-ultra,dtype=bf16")) is None


@given(HARDWARE)
def test_at_the_break_even_batch_compute_and_bandwidth_take_as_long(hardware: Hardware) -> None:
    batch = floors.break_even_batch(hardware)
    if batch is None:
        return
    compute = floors.flops_per_s(hardware)
    assert compute is not None
    compute_s = floors.decode_flops(hardware.model, batch) / compute
    assert compute_s == pytest.approx(
        floors.weight_bytes_read(hardware.model, batch, hardware.dtype) / floors.bytes_per_s(hardware), rel=0.02
    )


def test_speculation_by_hand() -> None:
    assert floors.speculative_gain(1.0, 3, 0.2) == pytest.approx(2.5)
    assert floors.speculative_tokens(0.7, 3) == pytest.approx((1 - 0.7**4) / 0.3)
    assert floors.speculative_gain(0.0, 3, 0.2) == pytest.approx(1 / 1.6)


def test_a_dense_decode_reads_all_weights_and_the_live_kv() -> None:
    assert floors.decode_bytes(parse("llama-3.1-8b@h100,dtype=bf16"), 3, 1000) == pytest.approx(
        (16.06e9, 3 * 131072 * 1000)
    )
    assert floors.decode_bytes(parse("llama-3.1-8b@h100,dtype=fp8,kv_cache_dtype=fp8"), 1, 1000) == pytest.approx(
        (8.03e9, 65536 * 1000)
    )
    assert floors.decode_flops(facts.model("llama-3.1-8b"), 3) == pytest.approx(2 * 8.03e9 * 3)


def test_one_token_touches_the_active_parameters_and_a_large_batch_all() -> None:
    model = facts.model("mixtral-8x7b")
    assert floors.weight_bytes_read(model, 1) == pytest.approx(2 * 12.88e9)
    assert floors.weight_bytes_read(model, 10_000) == pytest.approx(2 * 46.70e9)
    # 2 of 8 experts: the second token finds a quarter of its experts read already.
    experts_b = (46.70 - 12.88) / (1 - 2 / 8)
    assert floors.weight_bytes_read(model, 2) == pytest.approx(2e9 * (12.88 + experts_b * 2 / 8 * 6 / 8))


@given(MODELS, st.integers(1, 4096))
def test_weights_read_grow_with_the_batch_up_to_all(model: facts.Model, tokens: int) -> None:
    now, more = floors.weight_bytes_read(model, tokens), floors.weight_bytes_read(model, tokens + 1)
    assert model.active_params_b * 2e9 * (1 - 1e-9) <= now <= more <= floors.weight_bytes(model) * (1 + 1e-9)


def test_a_sliding_window_stops_growing_at_its_size() -> None:
    gemma = facts.model("gemma-3-27b")
    a_layer = 507904 / 62
    assert floors.kv_bytes(gemma, 1000) == pytest.approx(1000 * 507904)
    assert floors.kv_bytes(gemma, 10_000) == pytest.approx(a_layer * (10 * 10_000 + 52 * 1024))
    grown = floors.attention_flops(gemma, 10_000, 5_000)
    assert grown == pytest.approx(2 * 32 * 128 * (10 * (10_000**2 - 5_000**2) + 52 * 2 * 1024 * 5_000))


def test_a_shape_that_is_not_known_costs_nothing() -> None:
    unknown = parse("7b@h100,dtype=bf16")
    assert floors.kv_bytes(unknown.model, 1000) is None
    assert (floors.kv_tokens(unknown), floors.sequences(unknown, 100), floors.kv_parity_batch(unknown, 100)) == (
        None, None, None,
    )  # fmt: skip
    assert floors.attention_flops(unknown.model, 1000) == 0
    assert floors.decode_s(unknown, 8, 4000) == floors.decode_s(unknown, 8)


def test_prefill_flops_by_hand() -> None:
    model = facts.model("llama-3.1-8b")
    assert floors.prefill_flops(model, 1000) == pytest.approx(2 * 8.03e9 * 1000 + 2 * 32 * 32 * 128 * 1000**2)


@given(MODELS, st.lists(st.integers(1, 10_000), min_size=2, max_size=5))
def test_chunks_of_a_prefill_add_up_to_it(model: facts.Model, chunks: list[int]) -> None:
    ends = [sum(chunks[: i + 1]) for i in range(len(chunks))]
    pieces = [floors.prefill_flops(model, end, end - chunk) for end, chunk in zip(ends, chunks, strict=True)]
    assert sum(pieces) == pytest.approx(floors.prefill_flops(model, ends[-1]))


@pytest.mark.parametrize(
    ("gpu", "dtype", "tflops"),
    [
        ("h100", "bf16", 989),
        ("h100", "fp8", 1979),
        ("h100", "int8", 1979),
        ("h100", "int4", 989),
        ("h100", "mxfp4", 1979),
        ("b200", "fp4", 9000),
        ("a100-80gb", "fp8", 312),
        ("a100-80gb", "int8", 624),
    ],
)
def test_the_compute_rate_is_the_fastest_for_the_dtype(gpu: str, dtype: str, tflops: float) -> None:
    assert floors.compute_flops_per_s(facts.gpu(gpu), dtype) == tflops * 1e12


def test_an_unknown_compute_rate_leaves_the_bandwidth() -> None:
    hardware = parse("7b@m2-ultra,dtype=bf16")
    assert floors.compute_flops_per_s(hardware.gpu) is None
    assert floors.decode_s(hardware, 10_000) == floors.prefill_s(hardware, 10_000) == pytest.approx(14e9 / 800e9)


@given(HARDWARE, st.integers(1, 512), st.integers(0, 8000), st.integers(1, 8000))
def test_more_work_never_takes_less(hardware: Hardware, batch: int, context: int, more: int) -> None:
    now = floors.decode_s(hardware, batch, context)
    assert 0 < now <= floors.decode_s(hardware, batch + 1, context) * (1 + 1e-12)
    assert now <= floors.decode_s(hardware, batch, context + more) * (1 + 1e-12)
    assert floors.prefill_s(hardware, more) <= floors.prefill_s(hardware, more + 1) * (1 + 1e-12)
    assert floors.prefill_s(hardware, context + more, context) <= floors.prefill_s(hardware, context + more) * (
        1 + 1e-12
    )


def test_kv_capacity_gives_the_85_sequences_that_were_seen_running() -> None:
    hardware = parse("llama-3.1-70b@h100,gpus=2,dtype=fp8,kv_cache_dtype=fp8")
    assert floors.sequences(hardware, 5000 + 500 / 2) == pytest.approx(85, abs=1)
    tokens = floors.kv_tokens(hardware)
    assert tokens is not None
    assert tokens / 5250 == pytest.approx(85, abs=1)


def test_weights_that_do_not_fit_leave_no_capacity() -> None:
    hardware = parse("llama-3.1-70b@h100,dtype=bf16")
    assert (floors.kv_tokens(hardware), floors.sequences(hardware, 100)) == (0, 0)


def test_weights_that_do_not_fit_leave_none_of_an_unknown_shape_either() -> None:
    assert (floors.kv_tokens(parse("70b@h100,dtype=bf16")), floors.sequences(parse("70b@h100,dtype=bf16"), 100)) == (
        0,
        0,
    )


@given(HARDWARE, st.integers(1, 100_000))
def test_it_fits_on_as_many_as_it_takes_and_not_on_half(hardware: Hardware, context: int) -> None:
    gpus = floors.gpus_needed(hardware, context)
    assert gpus & (gpus - 1) == 0
    assert floors.fits(msgspec.structs.replace(hardware, gpus=gpus), context)
    assert gpus == 1 or not floors.fits(msgspec.structs.replace(hardware, gpus=gpus // 2), context)


def test_gpus_by_hand() -> None:
    assert floors.gpus_needed(parse("70b@h100,dtype=bf16"), 1000) == 2  # 140 GB in 144
    assert floors.gpus_needed(parse("llama-3.1-70b@h100,dtype=bf16"), 8000) == 2  # 141.1 GB, and 2.6 GB of KV
    assert floors.gpus_needed(parse("llama-3.1-70b@h100,dtype=bf16"), 10_000) == 4
    assert floors.gpus_needed(parse("7b@h100,dtype=bf16,gpus=8"), 1000) == 1


def test_a_steady_step_computes_prompts_beside_its_tokens() -> None:
    hardware = parse("llama-3.1-8b@h100,dtype=bf16")
    assert floors.steady_s(hardware, 1, 1155, 211) == floors.decode_s(hardware, 1, 1155 + 211 / 2)
    batch = 300
    prompts_s = batch / 211 * floors.prefill_s(hardware, 1155)
    assert (
        prompts_s < floors.steady_s(hardware, batch, 1155, 211) < prompts_s + floors.decode_s(hardware, batch, 1260.5)
    )
    assert floors.saturating_batch(parse("7b@m2-ultra,dtype=bf16"), 1155, 211) is None


@given(HARDWARE, st.integers(1, 4000), st.integers(1, 2000))
def test_at_saturation_compute_takes_as_long_as_reading(hardware: Hardware, prompt: int, output: int) -> None:
    batch = floors.saturating_batch(hardware, prompt, output)
    if batch is None:
        return
    weights_s = floors.weight_bytes(hardware.model, hardware.dtype) / floors.bytes_per_s(hardware)
    kv_s = floors.decode_bytes(hardware, batch, prompt + output / 2)[1] / floors.bytes_per_s(hardware)
    assert floors.steady_s(hardware, batch, prompt, output) == pytest.approx(weights_s + kv_s, rel=1e-6)
    twice = floors.steady_s(hardware, 2 * batch, prompt, output)
    assert twice == pytest.approx(2 * floors.steady_s(hardware, batch, prompt, output), rel=1e-6)


@given(st.integers(1, 16), st.floats(0, 1))
def test_at_the_break_even_acceptance_speculation_gains_nothing(drafts: int, cost: float) -> None:
    acceptance = floors.speculative_break_even(drafts, cost)
    assert acceptance is not None
    assert 0 <= acceptance <= 1
    assert floors.speculative_gain(acceptance, drafts, cost) == pytest.approx(1, abs=1e-9)


def test_break_even_acceptance_by_hand() -> None:
    assert floors.speculative_break_even(1, 0.2) == pytest.approx(0.2)
    assert floors.speculative_break_even(3, 0) == 0
    assert floors.speculative_break_even(3, 1.01) is None


def test_kv_passes_the_weights_at_the_parity_batch() -> None:
    hardware = parse("llama-3.1-8b@h100,dtype=bf16")
    batch = floors.kv_parity_batch(hardware, 2000)
    assert batch is not None
    weights, kv = floors.decode_bytes(hardware, batch, 2000)
    assert weights == pytest.approx(kv)
