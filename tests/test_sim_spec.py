import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.sim.spec import KEYS, Spec, parse


def test_defaults() -> None:
    spec = parse("llama-3.1-8b@h100")
    assert (spec.model.name, spec.gpu.name, spec.gpus, spec.dtype) == ("llama-3.1-8b", "h100", 1, "bf16")
    assert (spec.max_num_seqs, spec.max_num_batched_tokens, spec.max_model_len) == (256, 8192, 32768)
    assert (spec.block_size, spec.prefix_cache, spec.spec_tokens) == (16, True, 0)


def test_every_key_is_set() -> None:
    spec = parse(
        "llama-3.1-70b@h100, gpus=4, dtype=fp8, kv_cache_dtype=fp8, max_num_seqs=8, max_num_batched_tokens=512, "
        "max_model_len=1000, gpu_memory_utilization=0.8, bandwidth_efficiency=0.5, compute_efficiency=0.4, "
        "overhead_us=10.5, overhead_per_seq_us=2, block_size=32, prefix_cache=0, spec_tokens=3, spec_acceptance=0.5, "
        "seed=7"
    )
    settings = {key: getattr(spec, key) for key in KEYS}
    assert settings == {
        "gpus": 4,
        "dtype": "fp8",
        "kv_cache_dtype": "fp8",
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "max_model_len": 1000,
        "gpu_memory_utilization": 0.8,
        "bandwidth_efficiency": 0.5,
        "compute_efficiency": 0.4,
        "overhead_us": 10.5,
        "overhead_per_seq_us": 2.0,
        "block_size": 32,
        "prefix_cache": False,
        "spec_tokens": 3,
        "spec_acceptance": 0.5,
        "seed": 7,
    }
    assert set(KEYS) == set(Spec.__struct_fields__) - {"model", "gpu"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("llama-3.1-8b", "expected MODEL@GPU"),
        ("@h100", "expected MODEL@GPU"),
        ("", "expected MODEL@GPU"),
        ("llama-3.1-9b@h100", "unknown model .* nearest: llama-3.1-8b"),
        ("llama-3.1-8b@h1000", "unknown GPU .* nearest: h100"),
        ("llama-3.1-8b@h100,max_seqs=4", f"'max_seqs=4' is no setting; accepted: {'=, '.join(KEYS)}=, memory_gb="),
        ("llama-3.1-8b@h100,gpus", "'gpus' is no setting"),
        ("llama-3.1-8b@h100,", "'' is no setting"),
        ("llama-3.1-8b@h100,gpus=1,gpus=2", "gpus is given twice"),
        ("llama-3.1-8b@h100,gpus=0", "gpus=0: expected a whole number from 1 to 4096"),
        ("llama-3.1-8b@h100,gpus=1.5", "gpus=1.5: expected a whole number"),
        ("llama-3.1-8b@h100,overhead_us=nan", "overhead_us=nan: expected a number from 0"),
        ("llama-3.1-8b@h100,dtype=fp5", "dtype=fp5: accepted: fp32, bf16, fp16, fp8, int8, int4"),
        ("llama-3.1-8b@h100,prefix_cache=maybe", "prefix_cache=maybe: accepted: 1"),
        ("llama-3.1-8b@h100,max_num_batched_tokens=100", "could not serve every running sequence"),
        ("llama-3.1-8b@m2-ultra", "compute rate of m2-ultra is not in the catalogue"),
        ("llama-3.1-70b@h100", r"needs 141\.1 GB for its weights, and 1 x h100 .* has 72\.0 GB"),
        ("llama-3.1-70b@h100,gpus=2,max_model_len=20000", "needs more KV cache than the 8848 tokens"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        parse(text)
    assert "\n" not in str(raised.value)


def test_the_default_context_is_cut_to_the_kv_cache() -> None:
    spec = parse("llama-3.1-70b@h100,gpus=2")
    assert spec.max_model_len == 8848 <= spec.kv_capacity_tokens


def test_a_window_makes_room_for_longer_sequences() -> None:
    """Of 62 layers 52 keep 1024 tokens: what is left of the room is for the other ten."""
    spec = parse("gemma-3-27b@h100,gpu_memory_utilization=0.8,max_model_len=100000")
    a_layer = 507904 / 62
    room = 80e9 * 0.8 - 54e9
    assert spec.kv_capacity_tokens == pytest.approx((room / a_layer - 52 * 1024) / 10, rel=0.001)
    assert spec.window_blocks(10) == 52
    assert spec.window_blocks(64) == spec.window_blocks(10_000) == -(-64 * 52 // 10)


def test_less_room_than_a_window() -> None:
    spec = parse("gemma-3-27b@h100,gpu_memory_utilization=0.678")
    assert 2 <= spec.max_model_len == spec.kv_capacity_tokens < 1024
    blocks = spec.kv_capacity_tokens // spec.block_size
    assert blocks + spec.window_blocks(blocks) <= spec.kv_blocks < 1.1 * (blocks + spec.window_blocks(blocks))


@given(st.text(max_size=40) | st.from_regex(re.compile(r"llama-3\.1-8b@h100(,[a-z_]+=[-\w.]*){0,3}"), fullmatch=True))
def test_any_text_is_a_spec_or_one_line_of_complaint(text: str) -> None:
    try:
        spec = parse(text)
    except msgspec.ValidationError:
        pytest.fail("a library's words, not ours")
    except ValueError:
        return
    assert 2 <= spec.max_model_len <= spec.kv_capacity_tokens


def test_a_gpu_that_differs_from_the_catalogue() -> None:
    found = parse("llama-3.1-8b@h100,bf16_tflops=1484,max_num_seqs=8")
    assert (found.gpu.bf16_dense_tflops, found.gpu.bandwidth_gb_s, found.max_num_seqs) == (1484, 3350, 8)
    assert parse("llama-2-7b@m2-ultra,bf16_tflops=27,dtype=q8_0").gpu.memory_gb == 192
