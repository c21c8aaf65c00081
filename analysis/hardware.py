"""`MODEL@GPU[,key=value...]`: which model runs on what, as far as the floors need to know.

MODEL is a name of the catalogue, a number of parameters (`7b`), or the path of a `config.json` or of its directory.
GPU is a name of the catalogue, or any with its memory and bandwidth.
"""

import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from analysis import model_config
from analysis.catalog.facts import Gpu, Model, gpu, gpus, model, models
from analysis.model_config import Described
from analysis.parameters import MAX_PARAMS_B

# Bytes per value. q8_0 and q4_0 are llama.cpp's: blocks of 32 values and a 16-bit scale; mxfp4 has 8 bits for 32.
DTYPE_BYTES = {
    "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5, "fp4": 0.5,
    "mxfp4": 0.53125, "q8_0": 1.0625, "q4_0": 0.5625,
}  # fmt: skip
KV_DTYPES = ("bf16", "fp16", "fp8", "int8", "fp32")
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([mbt])")
_BILLIONS = {"m": 1e-3, "b": 1.0, "t": 1e3}
# Of what describes a model by hand, beside active_params: the largest value that makes sense.
_MOST = {
    "layers": 4096, "heads": 65536, "kv_heads": 65536, "head_dim": 65536, "experts": 65536, "experts_per_token": 65536,
}  # fmt: skip
_SHAPE = (*_MOST, "active_params")
# Of what describes a device by hand: the field, and the largest value that makes sense.
DEVICE = {
    "memory_gb": ("memory_gb", 1e6),
    "bandwidth_gb_s": ("bandwidth_gb_s", 1e6),
    "bf16_tflops": ("bf16_dense_tflops", 1e6),
    "fp8_tflops": ("fp8_dense_tflops", 1e6),
    "fp4_tflops": ("fp4_dense_tflops", 1e6),
}


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
    """The model of the catalogue or of a path, or, for `7b`, `350m` or `1.5t`, a dense one known by its size alone.

    Raises ValueError, one line.
    """
    return described(name).model


def described(name: str) -> Described:
    """As `known`, with the precision that a `config.json` gives. Raises ValueError, one line."""
    if _is_path(name):
        return model_config.read(Path(name))
    return Described(model(name) if _params_b(name) is None else by_hand(name), None)


def by_hand(
    params: str,
    *,
    layers: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    experts: int | None = None,
    experts_per_token: int | None = None,
    active_params: str | None = None,
) -> Model:
    """A model of `params` parameters (`7b`), with what else is known of it: layers, kv_heads and head_dim give the KV
    bytes per token; a mixture of experts has experts, experts_per_token and active_params (`3b`). Raises ValueError.
    """
    total_b = _counted("params", params)
    whole = (layers, heads, kv_heads, head_dim, experts, experts_per_token)
    for key, value in zip(_MOST, whole, strict=True):
        if value is not None and not 1 <= value <= _MOST[key]:
            raise ValueError(f"{key}={value}: expected a whole number from 1 to {_MOST[key]}")
    if heads is not None and kv_heads is not None and heads % kv_heads:
        raise ValueError(f"kv_heads={kv_heads}: {heads} heads cannot share that many")
    active_b = _active_b(total_b, experts, experts_per_token, active_params)
    cached = layers and kv_heads and head_dim and 2 * layers * kv_heads * head_dim
    return Model(
        name=params.lower(),
        params_b=total_b,
        active_params_b=active_b,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        experts=experts,
        experts_per_token=experts_per_token,
        kv_bytes_per_token_bf16=2 * cached if cached else None,
    )


def _active_b(total_b: float, experts: int | None, experts_per_token: int | None, active_params: str | None) -> float:
    """All parameters, but for a mixture of experts, which takes all three to describe."""
    if experts is None and experts_per_token is None and active_params is None:
        return total_b
    if experts is None or experts_per_token is None or active_params is None:
        raise ValueError(
            "experts, experts_per_token and active_params describe a mixture of experts together: give all"
        )
    if experts_per_token >= experts:
        raise ValueError(f"experts_per_token={experts_per_token}: expected fewer than the {experts} experts")
    active_b = _counted("active_params", active_params)
    if not total_b * experts_per_token / experts <= active_b < total_b:
        raise ValueError(
            f"active_params={active_params}: expected less than all, and at least the {experts_per_token} of {experts} "
            "experts that a token passes"
        )
    return active_b


def _counted(key: str, text: str) -> float:
    billions = _params_b(text)
    if billions is None:
        raise ValueError(f"{key}={text}: expected a number of parameters, such as 7b or 350m")
    if not 0 < billions <= MAX_PARAMS_B:
        raise ValueError(f"{key}={text}: a model has parameters, and at most {MAX_PARAMS_B / 1e3:g}t")
    return billions


def _params_b(text: str) -> float | None:
    count = _COUNT.fullmatch(text.lower())
    return None if count is None else float(count[1]) * _BILLIONS[count[2]]


def _is_path(name: str) -> bool:
    """Names of the catalogue, and counts, stay what they are where a directory happens to be called so."""
    if "/" in name or name.endswith(".json"):
        return True
    return name.lower() not in models() and _params_b(name) is None and os.path.isdir(name)


def device(name: str, given: dict[str, str]) -> Gpu:
    """The GPU of the catalogue, with what is `given` (keys of DEVICE) in the place of its own; one that it does not
    have takes at least its memory and bandwidth. Raises ValueError, one line."""
    values: dict[str, Any] = {DEVICE[key][0]: _positive(key, text, DEVICE[key][1]) for key, text in given.items()}
    if name.lower() in gpus():
        changed = ", ".join(f"{key}={text}" for key, text in given.items())
        found = gpu(name)
        return msgspec.structs.replace(found, name=f"{found.name} ({changed})", **values) if given else found
    if not {"memory_gb", "bandwidth_gb_s"} <= given.keys():
        try:
            gpu(name)
        except ValueError as error:
            raise ValueError(f"{error}; or describe it: memory_gb=, bandwidth_gb_s=, bf16_tflops=") from None
    return Gpu(name=name.lower(), **({"bf16_dense_tflops": None, "fp8_dense_tflops": None} | values))


def parse(text: str) -> Hardware:
    """Keys: dtype, which has to be there if no file says it, kv_cache_dtype, gpus, gpu_memory_utilization; for a model
    known by its size, those of `by_hand`; for a GPU, those of DEVICE. Raises ValueError, one line."""
    head, *settings = (part.strip() for part in text.split(","))
    model_name, at, gpu_name = (part.strip() for part in head.rpartition("@"))
    if not (at and model_name and gpu_name):
        raise ValueError(f"{text!r}: expected MODEL@GPU[,key=value...], such as llama-3.1-8b@h100,dtype=fp8")
    given: dict[str, Any] = {}
    shape: dict[str, Any] = {}
    rates: dict[str, str] = {}
    for key, value in pairs(repr(text), settings, (*_VALUES, *_SHAPE, *DEVICE)):
        if key in _VALUES:
            given[key] = _VALUES[key](value)
        elif key in DEVICE:
            rates[key] = value
        else:
            shape[key] = value if key == "active_params" else _whole(key, value, _MOST[key])
    if shape and _params_b(model_name) is None:
        raise ValueError(
            f"{'=, '.join(shape)}= describe a model known by its size alone, such as 7b: the shape of {model_name} is "
            "that of the catalogue or of its file"
        )
    found = Described(by_hand(model_name, **shape), None) if shape else described(model_name)
    on, dtype = device(gpu_name, rates), given.pop("dtype", found.dtype)
    if dtype is None:  # 7 billion parameters are 28, 14, 7 or 3.5 GB
        raise ValueError(
            f"{found.model.name}: a model has no size in bytes without a precision: give dtype= "
            f"({', '.join(DTYPE_BYTES)})"
        )
    return Hardware(model=found.model, gpu=on, dtype=dtype, **given)


def pairs(where: str, settings: Iterable[str], accepted: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Key and value of each `key=value`. Raises ValueError, one line, for a key that is not accepted, or again."""
    seen = set()
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or key not in accepted:
            raise ValueError(f"{where}: {setting.strip()!r} is no setting; accepted: {'=, '.join(accepted)}=")
        if key in seen:
            raise ValueError(f"{where}: {key} is given twice")
        seen.add(key)
        yield key, value


def _dtype(text: str) -> str:
    if text not in DTYPE_BYTES:
        raise ValueError(f"dtype={text}: accepted: {', '.join(DTYPE_BYTES)}")
    return text


def _kv_dtype(text: str) -> str:
    if text not in KV_DTYPES:
        raise ValueError(f"kv_cache_dtype={text}: accepted: {', '.join(KV_DTYPES)}")
    return text


def _gpus(text: str) -> int:
    return _whole("gpus", text, 4096)


def _whole(key: str, text: str, most: int) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= most:
        raise ValueError(f"{key}={text}: expected a whole number from 1 to {most}")
    return int(text)


def _positive(key: str, text: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (math.isfinite(value) and 0 < value <= most):
        raise ValueError(f"{key}={text}: expected a number above 0, and at most {most:g}")
    return value


def _utilization(text: str) -> float:
    try:
        return _positive("gpu_memory_utilization", text, 1.0)
    except ValueError:
        raise ValueError(f"gpu_memory_utilization={text}: expected a share, such as 0.9") from None


_VALUES = {
    "dtype": _dtype,
    "kv_cache_dtype": _kv_dtype,
    "gpus": _gpus,
    "gpu_memory_utilization": _utilization,
}
