"""`MODEL@GPU[,key=value...]`: which model runs on what, as far as the floors need to know."""

import re
from typing import Any

import msgspec

from analysis.catalog.facts import Gpu, Model, gpu, model

# Bytes per value. q8_0 and q4_0 are llama.cpp's: blocks of 32 values and a 16-bit scale; mxfp4 has 8 bits for 32.
DTYPE_BYTES = {
    "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5, "fp4": 0.5,
    "mxfp4": 0.53125, "q8_0": 1.0625, "q4_0": 0.5625,
}  # fmt: skip
KV_DTYPES = ("bf16", "fp16", "fp8", "int8", "fp32")
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([mbt])")
_BILLIONS = {"m": 1e-3, "b": 1.0, "t": 1e3}


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """A model in `dtype` on `gpus` devices that share its weights and its KV cache (tensor parallel)."""

    model: Model
    gpu: Gpu
    dtype: str
    kv_cache_dtype: str = "bf16"
    gpus: int = 1
    gpu_memory_utilization: float = 0.9

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES or self.kv_cache_dtype not in DTYPE_BYTES:
            raise ValueError(f"dtype {self.dtype}, KV in {self.kv_cache_dtype}: accepted: {', '.join(DTYPE_BYTES)}")
        if self.gpus < 1:
            raise ValueError(f"{self.gpus} GPUs: expected at least 1")

    def __str__(self) -> str:
        many = f", {self.gpus} GPUs" if self.gpus > 1 else ""
        kv = "" if DTYPE_BYTES[self.kv_cache_dtype] == 2 else f", KV in {self.kv_cache_dtype}"
        return f"{self.model.name} in {self.dtype} on {self.gpu.name}{many}{kv}"


def known(name: str) -> Model:
    """The model of the catalogue, or, for `7b`, `350m` or `1.5t`, a dense one of which the size alone is known.

    Raises ValueError, one line.
    """
    count = _COUNT.fullmatch(name.lower())
    if count is None:
        return model(name)
    params_b = float(count[1]) * _BILLIONS[count[2]]
    if not params_b:
        raise ValueError(f"{name}: a model has parameters")
    return Model(name=name.lower(), params_b=params_b, active_params_b=params_b)


def parse(text: str) -> Hardware:
    """Keys: dtype, which has to be there, kv_cache_dtype, gpus, gpu_memory_utilization. Raises ValueError, one line."""
    head, *settings = (part.strip() for part in text.split(","))
    model_name, at, gpu_name = head.partition("@")
    if not (at and model_name and gpu_name):
        raise ValueError(f"{text!r}: expected MODEL@GPU[,key=value...], such as llama-3.1-8b@h100,dtype=fp8")
    given: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or key not in _VALUES:
            raise ValueError(f"{text!r}: {setting!r} is no setting; accepted: {'=, '.join(_VALUES)}=")
        if key in given:
            raise ValueError(f"{text!r}: {key} is given twice")
        given[key] = _VALUES[key](value)
    return made(known(model_name), gpu(gpu_name), **given)


def made(
    model: Model,
    gpu: Gpu,
    *,
    dtype: str | None = None,
    kv_cache_dtype: str = "bf16",
    gpus: int = 1,
    gpu_memory_utilization: float = 0.9,
) -> Hardware:
    """Raises ValueError where there is no precision: 7 billion parameters are 28, 14, 7 or 3.5 GB."""
    if dtype is None:
        raise ValueError(
            f"{model.name}: a model has no size in bytes without a precision: give dtype= ({', '.join(DTYPE_BYTES)})"
        )
    return Hardware(
        model=model,
        gpu=gpu,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        gpus=gpus,
        gpu_memory_utilization=gpu_memory_utilization,
    )


def _dtype(text: str) -> str:
    if text not in DTYPE_BYTES:
        raise ValueError(f"dtype={text}: accepted: {', '.join(DTYPE_BYTES)}")
    return text


def _kv_dtype(text: str) -> str:
    if text not in KV_DTYPES:
        raise ValueError(f"kv_cache_dtype={text}: accepted: {', '.join(KV_DTYPES)}")
    return text


def _gpus(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 4096:
        raise ValueError(f"gpus={text}: expected a whole number from 1 to 4096")
    return int(text)


def _utilization(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:  # NaN is in no range
        raise ValueError(f"gpu_memory_utilization={text}: expected a share, such as 0.9")
    return share


_VALUES = {
    "dtype": _dtype,
    "kv_cache_dtype": _kv_dtype,
    "gpus": _gpus,
    "gpu_memory_utilization": _utilization,
}
