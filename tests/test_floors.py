import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import floors
from analysis.catalog import facts

MODELS = st.sampled_from(list(facts.models().values()))

# Published at concurrency 1: model, dtype, GPU, GPUs, input, output, ms per output token.
PUBLISHED = [
    ("llama-3.1-8b", "fp16", "a100-80gb", 2, 200, 1000, 8.33),
    ("llama-3.1-8b", "fp16", "a100-80gb", 2, 7000, 1000, 10.99),
    ("llama-3.1-8b", "fp8", "h100", 1, 200, 2000, 5.40),
    ("llama-3.1-8b", "fp8", "h100", 1, 7000, 1000, 7.47),
    ("llama-3.1-70b", "fp8", "h100", 8, 200, 2000, 12.70),
    ("llama-3.1-70b", "fp8", "h100", 2, 5000, 500, 18.58),
]
# Claims that cannot be: ms per token at batch 1, below what reading the weights takes.
IMPOSSIBLE = [
    ("llama-2-70b", "fp16", "h100", 1000 / 85),
    ("llama-2-7b", "bf16", "a100-80gb", 1000 / 200),
    ("llama-3.1-8b", "bf16", "h100", 3.47),
]


def decode_ms(model: str, dtype: str, gpu: str, gpus: int, live_tokens: int) -> float:
    read = floors.decode_bytes(facts.model(model), batch=1, live_tokens=live_tokens, dtype=dtype)
    return read / (facts.gpu(gpu).bandwidth_gb_s * 1e9 * gpus) * 1e3


@pytest.mark.parametrize(("model", "dtype", "gpu", "gpus", "inputs", "outputs", "itl_ms"), PUBLISHED)
def test_no_published_row_beats_its_floor(
    model: str, dtype: str, gpu: str, gpus: int, inputs: int, outputs: int, itl_ms: float
) -> None:
    floor_ms = decode_ms(model, dtype, gpu, gpus, inputs + outputs // 2)
    assert 0.15 * itl_ms < floor_ms < 0.92 * itl_ms


@pytest.mark.parametrize(("model", "dtype", "gpu", "claimed_ms"), IMPOSSIBLE)
def test_impossible_claims_lie_below_the_floor(model: str, dtype: str, gpu: str, claimed_ms: float) -> None:
    assert claimed_ms < decode_ms(model, dtype, gpu, 1, 0)


def test_a_dense_decode_reads_all_weights_and_the_live_kv() -> None:
    model = facts.model("llama-3.1-8b")
    assert floors.decode_bytes(model, batch=3, live_tokens=1000) == pytest.approx(16.06e9 + 131072 * 1000)
    assert floors.decode_bytes(model, batch=1, live_tokens=1000, dtype="fp8", kv_dtype="fp8") == pytest.approx(
        8.03e9 + 65536 * 1000
    )
    assert floors.decode_flops(model, 3) == pytest.approx(2 * 8.03e9 * 3)


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


def test_prefill_flops_by_hand() -> None:
    model = facts.model("llama-3.1-8b")
    assert floors.prefill_flops(model, 1000) == pytest.approx(2 * 8.03e9 * 1000 + 2 * 32 * 8 * 128 * 1000**2)
    assert floors.prefill_flops(facts.model("deepseek-v3"), 10) == pytest.approx(2 * 37.55e9 * 10)


@given(MODELS, st.lists(st.integers(1, 10_000), min_size=2, max_size=5))
def test_chunks_of_a_prefill_add_up_to_it(model: facts.Model, chunks: list[int]) -> None:
    ends = [sum(chunks[: i + 1]) for i in range(len(chunks))]
    pieces = [floors.prefill_flops(model, end, end - chunk) for end, chunk in zip(ends, chunks, strict=True)]
    assert sum(pieces) == pytest.approx(floors.prefill_flops(model, ends[-1]))


@pytest.mark.parametrize(
    ("gpu", "dtype", "tflops"),
    [("h100", "bf16", 989), ("h100", "fp8", 1979), ("h100", "int4", 989), ("a100-80gb", "fp8", 312)],
)
def test_the_compute_rate_is_that_of_the_dtype(gpu: str, dtype: str, tflops: float) -> None:
    assert floors.compute_flops_per_s(facts.gpu(gpu), dtype) == tflops * 1e12


def test_an_unknown_compute_rate_is_none() -> None:
    assert floors.compute_flops_per_s(facts.gpu("m2-ultra")) is None


def test_kv_capacity_gives_the_85_sequences_that_were_seen_running() -> None:
    tokens = floors.kv_capacity_tokens(
        facts.model("llama-3.1-70b"), facts.gpu("h100"), gpus=2, dtype="fp8", kv_dtype="fp8"
    )
    assert tokens / (5000 + 500 / 2) == pytest.approx(85, abs=1)


def test_weights_that_do_not_fit_leave_no_capacity() -> None:
    assert floors.kv_capacity_tokens(facts.model("llama-3.1-70b"), facts.gpu("h100")) == 0
