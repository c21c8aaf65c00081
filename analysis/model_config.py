"""A model, and its precision, from the `config.json` of a Hugging Face repository.

The file is untrusted: whatever it holds makes a model of finite sizes, or a ValueError of one line.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from analysis.catalog.facts import Model
from analysis.config_values import shown
from analysis.parameters import counted

# float32 is missing: it tells how a file was saved, and engines load it in 16 bits unless told.
_SAVED = {"bfloat16": "bf16", "float16": "fp16", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8"}
_COMPRESSED = {("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4", ("float", 4): "fp4"}
_MODELOPT = {
    "FP8": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8", "FP8_PB_WO": "fp8", "NVFP4": "fp4", "NVFP4_AWQ": "fp4",
    "W4A16_AWQ": "int4", "W4A8_AWQ": "int4", "INT8_SQ": "int8",
}  # fmt: skip
_MAX_BYTES = 16_000_000


class Described(msgspec.Struct, frozen=True):
    """`dtype` is None where the file does not say, or says what no floor knows."""

    model: Model
    dtype: str | None


def read(path: Path, name: str | None = None) -> Described:
    """`path`: a `config.json`, or a directory that has one. Raises ValueError, one line, with the path."""
    file = path / "config.json" if os.path.isdir(path) else path
    where = str(file) if str(file).isprintable() else ascii(str(file))
    try:
        return _described(_parsed(file), _name(file) if name is None else name)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def from_config(config: Mapping[str, Any], name: str) -> Described:
    """Raises ValueError, one line, for an architecture that is not counted, and for missing or impossible values."""
    try:
        return _described(config, name)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _parsed(file: Path) -> dict[str, Any]:
    if not os.path.isfile(file):  # unlike Path.is_file, it raises for no path
        raise ValueError("no such file: expected a model's config.json, or a directory that has one")
    try:
        with file.open("rb") as opened:
            text = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    if len(text) > _MAX_BYTES:
        raise ValueError(f"more than {_MAX_BYTES // 1_000_000} MB: no config.json of a model")
    try:
        config = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("no JSON: expected a model's config.json") from None
    if not isinstance(config, dict):
        raise ValueError(f"expected a JSON object, got {shown(config)}")
    return config


def _name(file: Path) -> str:
    """That of the directory, or, in a cache of Hugging Face's, of the model (`models--ORG--NAME/snapshots/HASH`)."""
    place = file.absolute()
    if place.name != "config.json":
        name = place.stem
    elif place.parent.parent.name == "snapshots":
        name = place.parents[2].name.split("--")[-1]
    else:
        name = place.parent.name
    return name if name.isprintable() else ascii(name)


def _described(config: Mapping[str, Any], name: str) -> Described:
    """Models of more than text keep the language model under `text_config`."""
    text = config.get("text_config")
    if text is None:
        return Described(counted(config, name), _dtype(config))
    if not isinstance(text, dict):
        raise ValueError(f"text_config = {shown(text)}: expected an object")
    shared = ("tie_word_embeddings", "quantization_config", "torch_dtype", "dtype")
    inherited = {key: config[key] for key in shared if key in config}
    return Described(counted({**inherited, **text}, name), _dtype({**text, **inherited}))


def _dtype(config: Mapping[str, Any]) -> str | None:
    """Of most weights. Embeddings, head and what `modules_to_not_convert` names stay in 16 bits, which makes the file
    larger than parameters * bytes: a floor takes the smaller size."""
    quantization = config.get("quantization_config") or config.get("compression_config")
    if quantization is None:
        saved = config.get("torch_dtype") or config.get("dtype")
        return _SAVED.get(saved.removeprefix("torch.")) if isinstance(saved, str) else None
    if not isinstance(quantization, dict):
        raise ValueError(f"quantization_config = {shown(quantization)}: expected an object")
    return _quantized(quantization)


def _quantized(quantization: Mapping[str, Any]) -> str | None:
    method = quantization.get("quant_method")
    if method in ("fp8", "fbgemm_fp8"):
        return "fp8"
    if method == "mxfp4":
        return "mxfp4"
    if method in ("awq", "gptq", "auto-round", "intel/auto-round"):
        return _integer(quantization.get("bits", quantization.get("w_bit")))
    if method in (None, "bitsandbytes"):
        four, eight = (quantization.get(key) is True for key in ("load_in_4bit", "load_in_8bit"))
        return "int4" if four else "int8" if eight else None
    if method == "compressed-tensors":
        return _compressed(quantization.get("config_groups"))
    if method in ("modelopt", "modelopt_fp4"):
        inner = quantization.get("quantization")
        algorithm = (inner if isinstance(inner, dict) else quantization).get("quant_algo")
        return _MODELOPT.get(algorithm) if isinstance(algorithm, str) else None
    return None


def _integer(bits: object) -> str | None:
    return f"int{bits}" if type(bits) is int and bits in (4, 8) else None


def _compressed(groups: object) -> str | None:
    """One for all groups of layers; where they differ, the file does not say one."""
    found = set[str | None]()
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        kind, bits = (weights.get("type"), weights.get("num_bits")) if isinstance(weights, dict) else (None, None)
        found.add(_COMPRESSED.get((kind, bits)) if isinstance(kind, str) and type(bits) is int else None)
    return found.pop() if len(found) == 1 else None
