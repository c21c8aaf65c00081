import math
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import floors
from analysis.architectures import FAMILIES
from analysis.catalog import facts
from analysis.hardware import DTYPE_BYTES
from analysis.model_config import Described, from_config, read

CONFIGS = Path(__file__).parent / "golden" / "configs"
LLAMA = msgspec.json.decode((CONFIGS / "llama-3.1-8b.json").read_bytes(), type=dict[str, Any])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("llama-2-7b", "fp16"),
        ("llama-3.1-8b", "bf16"),
        ("llama-3.1-70b", "bf16"),
        ("qwen2.5-7b", "bf16"),
        ("qwen3-8b", "bf16"),
        ("qwen3-30b-a3b", "bf16"),
        ("mixtral-8x7b", "bf16"),
        ("gemma-2-27b", None),  # saved in float32
        ("gemma-3-27b", "bf16"),
        ("phi-4", "bf16"),
        ("deepseek-v3", "fp8"),
        ("gpt-oss-20b", "mxfp4"),
        ("gpt-oss-120b", "mxfp4"),
    ],
)
def test_public_files_give_the_row_of_the_catalogue(name: str, dtype: str | None) -> None:
    """To half a percent here; test_parameters has the last digit, and which parameters are active."""
    found, row = read(CONFIGS / f"{name}.json"), facts.model(name)
    assert found.dtype == dtype
    assert found.model.name == name
    assert found.model.params_b == pytest.approx(row.params_b, rel=0.005)
    assert found.model.active_params_b == pytest.approx(row.active_params_b, rel=0.005)
    sizes = {"params_b": row.params_b, "active_params_b": row.active_params_b}
    assert msgspec.structs.replace(found.model, **sizes) == row


def test_the_language_model_of_a_model_of_more_than_text() -> None:
    vision = {"model_type": "siglip_vision_model", "hidden_size": 1152}
    nested = {"model_type": "llava", "text_config": LLAMA, "vision_config": vision, "torch_dtype": "float16"}
    assert from_config(nested, "x") == Described(from_config(LLAMA, "x").model, "fp16")
    outside = {"text_config": {k: v for k, v in LLAMA.items() if k != "tie_word_embeddings"}}
    tied = from_config({**outside, "tie_word_embeddings": True}, "x")
    assert from_config(outside, "x").model.params_b - tied.model.params_b == pytest.approx(0.525, abs=0.001)
    with pytest.raises(ValueError, match=r"^x: text_config = 'llama': expected an object$"):
        from_config({"text_config": "llama"}, "x")


FP8_GROUP = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}
INT4_GROUP = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 128}}


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({"torch_dtype": None}, None),
        ({"torch_dtype": None, "dtype": "bfloat16"}, "bf16"),
        ({"torch_dtype": "torch.float16"}, "fp16"),
        ({"torch_dtype": "float32"}, None),
        ({"torch_dtype": "auto"}, None),
        ({"torch_dtype": 16}, None),
        ({"quantization_config": None}, "bf16"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "fbgemm_fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}, "int4"),
        ({"quantization_config": {"quant_method": "awq", "w_bit": 4}}, "int4"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, "int8"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, None),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "int4"),
        ({"quantization_config": {"load_in_4bit": False, "load_in_8bit": True}}, "int8"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4"}}}, "fp4"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}}, None),
        ({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"0": FP8_GROUP}}}, "fp8"),
        ({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"0": INT4_GROUP}}}, "int4"),
        ({"compression_config": {"quant_method": "compressed-tensors", "config_groups": {"0": INT4_GROUP}}}, "int4"),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {"0": FP8_GROUP, "1": INT4_GROUP},
                }
            },
            None,
        ),
        ({"quantization_config": {"quant_method": "aqlm"}}, None),
    ],
)
def test_the_precision_of_the_weights(changes: dict[str, Any], dtype: str | None) -> None:
    assert from_config({**LLAMA, **changes}, "x").dtype == dtype
    assert dtype is None or dtype in DTYPE_BYTES


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_directory_and_its_name(tmp_path: Path) -> None:
    text = msgspec.json.encode(LLAMA)
    write(tmp_path / "my-llama" / "config.json", text)
    assert read(tmp_path / "my-llama").model.name == "my-llama"
    assert read(tmp_path / "my-llama" / "config.json").model.name == "my-llama"
    assert read(write(tmp_path / "other.json", text)).model.name == "other"
    assert read(tmp_path / "other.json", "named").model.name == "named"
    cached = tmp_path / "models--org--Llama-X" / "snapshots" / "0e9e39f2"
    write(cached / "config.json", text)
    assert read(cached).model.name == "Llama-X"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no JSON: expected a model's config.json"),
        ("{", "no JSON"),
        (b'{"model_type": "\xff"}', "no JSON"),
        ('{"hidden_size": NaN}', "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[1]", "expected a JSON object, got a list of 1"),
        ("null", "expected a JSON object, got None"),
        ("{}", "no model_type: describe the model by hand (--params 7b)"),
        ('{"model_type": "jamba"}', "the architecture 'jamba' is not known here: describe the model by hand"),
        ('{"model_type": "llama\\n"}', r"the architecture 'llama\n' is not known here"),
        ('{"model_type": "llama", "num_hidden_layers": 1e999}', "no JSON"),
        ('{"text_config": {"model_type": "llama"}}', "no hidden_size: describe"),
    ],
)
def test_what_is_no_config_is_named_with_its_path(tmp_path: Path, text: str | bytes, words: str) -> None:
    path = write(tmp_path / "config.json", text)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are compared below
        read(tmp_path)
    assert str(caught.value).startswith(f"{path}: {words}")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"config\.json: no such file: expected a model's config\.json, or a directory"
    ):
        read(tmp_path)
    with pytest.raises(ValueError, match=r"^'x\\ny\.json': no such file"):
        read(Path("x\ny.json"))
    for name in ("x\0y", "x" * 5000, "/dev/zero"):
        with pytest.raises(ValueError, match="no such file"):
            read(Path(name))
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ValueError, match="no such file"):
        read(tmp_path)


def test_a_large_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(10**9)  # a hole
    with pytest.raises(ValueError, match=r"more than 16 MB: no config\.json of a model"):
        read(path)


KEYS = sorted({key for path in CONFIGS.glob("*.json") for key in msgspec.json.decode(path.read_bytes())})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(0, 300) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)
CHANGES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4)
BASES = st.sampled_from([msgspec.json.decode(path.read_bytes()) for path in sorted(CONFIGS.glob("*.json"))])
KINDS = st.sampled_from([*FAMILIES, "mamba"]).map(lambda kind: {"model_type": kind})


@given(BASES, CHANGES, st.just({}) | KINDS)
def test_any_object_is_a_model_or_one_line(base: dict[str, Any], changes: dict[str, Any], kind: dict[str, str]) -> None:
    """Real files with a few values changed to anything, as files of their own or of another architecture."""
    _is_a_model_or_one_line({**base, **changes, **kind})


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=12), VALUES))
def test_noise_is_one_line(config: dict[str, Any]) -> None:
    _is_a_model_or_one_line(config)


def _is_a_model_or_one_line(config: dict[str, Any]) -> None:
    found, error = _tried(config)
    if found is None:
        assert error.startswith("x: ")
        assert error.isprintable()
        assert len(error) < 200
        return
    model = found.model
    numbers = [value for value in msgspec.structs.asdict(model).values() if isinstance(value, int | float)]
    assert all(math.isfinite(value) and value >= 0 for value in numbers)
    assert 0 < model.active_params_b <= model.params_b <= 1e6
    assert found.dtype is None or found.dtype in DTYPE_BYTES
    assert 0 < floors.weight_bytes_read(model, 2.5) <= floors.weight_bytes(model)
    assert (floors.kv_bytes(model, 10.0) or 0) > 0


def _tried(config: dict[str, Any]) -> tuple[Described | None, str]:
    try:
        return from_config(config, "x"), ""
    except ValueError as error:
        return None, str(error)
