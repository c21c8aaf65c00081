import pytest

from analysis import hardware
from analysis.catalog import facts


def test_a_model_on_a_gpu_with_its_settings() -> None:
    found = hardware.parse("Llama-3.1-8B@H100, dtype=fp8, gpus=2, kv_cache_dtype=fp8, gpu_memory_utilization=0.8")
    assert (found.model, found.gpu) == (facts.model("llama-3.1-8b"), facts.gpu("h100"))
    assert (found.dtype, found.gpus, found.kv_cache_dtype, found.gpu_memory_utilization) == ("fp8", 2, "fp8", 0.8)
    assert str(found) == "llama-3.1-8b in fp8 on h100, 2 GPUs, KV in fp8"
    assert str(hardware.parse("7b@l4,dtype=bf16")) == "7b in bf16 on l4"


@pytest.mark.parametrize(("text", "params_b"), [("7b", 7), ("350M", 0.35), ("1.5t", 1500), ("0.5b", 0.5)])
def test_a_parameter_count_is_a_model_of_unknown_shape(text: str, params_b: float) -> None:
    found = hardware.known(text)
    assert found.params_b == found.active_params_b == pytest.approx(params_b)
    assert (found.layers, found.kv_bytes_per_token_bf16, found.experts) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("7b@h100", "no size in bytes without a precision"),
        ("7b@h100,dtype=bf17", "dtype=bf17: accepted: fp32, bf16"),
        ("7b@h100,dtype=bf16,kv_cache_dtype=int4", "kv_cache_dtype=int4: accepted: bf16"),
        ("7b@h100,dtype=bf16,gpus=0", "gpus=0: expected a whole number from 1"),
        ("7b@h100,dtype=bf16,gpus=²", "gpus=²: expected a whole number from 1"),
        ("7b@h100,dtype=bf16,gpu_memory_utilization=nan", "gpu_memory_utilization=nan: expected a share"),
        ("7b@h100,dtype=bf16,dtype=fp8", "dtype is given twice"),
        ("7b@h100,bf16", "'bf16' is no setting; accepted: dtype="),
        ("7b", "expected MODEL@GPU"),
        ("0b@h100,dtype=bf16", "a model has parameters"),
        ("9c@h100,dtype=bf16", "unknown model '9c'"),
        ("7b@h1000,dtype=bf16", "unknown GPU 'h1000'; nearest: h100"),
    ],
)
def test_what_makes_no_sense_is_named(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("?", "\\?")) as caught:
        hardware.parse(text)
    assert "\n" not in str(caught.value)
