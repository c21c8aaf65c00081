from pathlib import Path

import msgspec
import pytest

from analysis import floors, hardware
from analysis.catalog import facts

CONFIGS = Path(__file__).parent / "golden" / "configs"


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


def test_a_model_of_a_file_has_the_precision_that_it_says_unless_told() -> None:
    path = CONFIGS / "deepseek-v3.json"
    found = hardware.parse(f"{path}@h200,gpus=8")
    assert (found.model.name, found.model.kv_bytes_per_token_bf16, found.dtype) == ("deepseek-v3", 70272, "fp8")
    assert str(found) == "deepseek-v3 in fp8 on h200, 8 GPUs"
    assert hardware.parse(f"{path}@h200,gpus=8,dtype=int4").dtype == "int4"
    assert hardware.known(str(path)) == hardware.described(str(path)).model == found.model
    with pytest.raises(ValueError, match=r"^gemma-2-27b: a model has no size in bytes without a precision"):
        hardware.parse(f"{CONFIGS / 'gemma-2-27b.json'}@h100")


def test_a_directory_is_a_path_unless_its_name_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "phi-4", "7b", "a@b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_bytes((CONFIGS / "qwen3-8b.json").read_bytes())
    mine = hardware.parse("mine@l4")
    assert (mine.model.name, mine.dtype) == ("mine", "bf16")
    assert mine.model.params_b == pytest.approx(8.191, abs=0.001)
    assert hardware.parse("a@b@l4").model.name == "a@b"
    assert hardware.parse("./phi-4@l4").model.layers == 36
    assert hardware.known("phi-4") == facts.model("phi-4")
    assert hardware.known("7b").layers is None
    with pytest.raises(ValueError, match="unknown model 'yours'"):
        hardware.parse("yours@l4")
    with pytest.raises(ValueError, match=r"^meta-llama/Llama-3\.1-8B: no such file: expected a model's config\.json"):
        hardware.parse("meta-llama/Llama-3.1-8B@h100")


def test_a_model_by_hand_is_that_of_the_catalogue() -> None:
    row = facts.model("llama-3.1-8b")
    found = hardware.parse("8.03b@h100,dtype=bf16,layers=32,heads=32,kv_heads=8,head_dim=128")
    assert found.model == msgspec.structs.replace(row, name="8.03b")
    text = "30.53b@h100,layers=48,heads=32,kv_heads=4,head_dim=128,experts=128,experts_per_token=8,active_params=3.35b"
    experts = hardware.parse(f"{text},dtype=fp8").model
    assert experts == msgspec.structs.replace(facts.model("qwen3-30b-a3b"), name="30.53b")


def test_what_is_left_out_by_hand_is_unknown() -> None:
    model = hardware.by_hand("7B", layers=32, head_dim=128)
    assert (model.name, model.layers, model.kv_heads, model.heads) == ("7b", 32, None, None)
    assert model.kv_bytes_per_token_bf16 is None
    assert hardware.by_hand("7b") == hardware.known("7b")
    found = hardware.parse("7b@h100,dtype=bf16,layers=32,kv_heads=8,head_dim=128")
    assert floors.kv_tokens(found) == int((0.9 * 80e9 - 14e9) / 131072)


@pytest.mark.parametrize("key", ["layers", "heads", "kv_heads", "head_dim", "experts", "experts_per_token"])
@pytest.mark.parametrize("value", [0, -1, 10**6])
def test_sizes_by_hand_are_in_range(key: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"^{key}={value}: expected a whole number from 1 to "):
        hardware.by_hand("7b", **{key: value})  # type: ignore[arg-type]


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
        ("0b@h100,dtype=bf16", "params=0b: a model has parameters"),
        ("1001t@h100,dtype=bf16", "params=1001t: a model has parameters, and at most 1000t"),
        ("llama-3.1-8b@h100,dtype=bf16,layers=32,heads=8", "layers=, heads= describe a model known by its size alone"),
        ("x/config.json@h100,layers=32", "layers= describe a model known by its size alone, such as 7b"),
        ("7b@h100,dtype=bf16,layers=0", "layers=0: expected a whole number from 1 to 4096"),
        ("7b@h100,dtype=bf16,layers=4097", "layers=4097: expected a whole number from 1 to 4096"),
        ("7b@h100,dtype=bf16,heads=1e3", "heads=1e3: expected a whole number from 1 to 65536"),
        ("7b@h100,dtype=bf16,layers=3,layers=3", "layers is given twice"),
        ("7b@h100,dtype=bf16,heads=32,kv_heads=5", "kv_heads=5: 32 heads cannot share that many"),
        ("7b@h100,dtype=bf16,experts=8", "experts, experts_per_token and active_params describe a mixture"),
        ("7b@h100,dtype=bf16,active_params=3b", "experts, experts_per_token and active_params describe a mixture"),
        ("8b@h100,experts=8,experts_per_token=8,active_params=2b", "experts_per_token=8: expected fewer than the 8"),
        ("8b@h100,experts=8,experts_per_token=2,active_params=8b", "active_params=8b: expected less than all"),
        ("8b@h100,experts=8,experts_per_token=2,active_params=1b", "and at least the 2 of 8 experts"),
        ("8b@h100,experts=8,experts_per_token=2,active_params=two", "active_params=two: expected a number of param"),
        ("9c@h100,dtype=bf16", "unknown model '9c'"),
        ("7b@h1000,dtype=bf16", "unknown GPU 'h1000'; nearest: h100"),
    ],
)
def test_what_makes_no_sense_is_named(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("?", "\\?")) as caught:
        hardware.parse(text)
    assert "\n" not in str(caught.value)


def test_a_gpu_by_hand_and_one_that_differs_from_the_catalogue() -> None:
    found = hardware.parse("7b@A6000,dtype=bf16,memory_gb=48,bandwidth_gb_s=768,bf16_tflops=155").gpu
    assert found == facts.Gpu(
        name="a6000", memory_gb=48, bandwidth_gb_s=768, bf16_dense_tflops=155, fp8_dense_tflops=None
    )
    more = hardware.parse("7b@h100,dtype=bf16,bf16_tflops=1484").gpu
    assert (more.bf16_dense_tflops, more.bandwidth_gb_s, more.memory_gb) == (1484, 3350, 80)
    assert more.name == "h100 (bf16_tflops=1484)"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("", "unknown GPU 'a6000'; .*; or describe it: memory_gb=, bandwidth_gb_s=, bf16_tflops="),
        (",memory_gb=48", "or describe it"),
        (",memory_gb=48,bandwidth_gb_s=inf", "bandwidth_gb_s=inf: expected a number above 0"),
        (",memory_gb=48,bandwidth_gb_s=0", "bandwidth_gb_s=0: expected a number above 0"),
        (",memory_gb=x,bandwidth_gb_s=1", "memory_gb=x: expected a number above 0"),
        (",memory_gb=1,memory_gb=2", "memory_gb is given twice"),
    ],
)
def test_a_gpu_that_is_not_described_is_refused(keys: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        hardware.parse(f"7b@a6000,dtype=bf16{keys}")
