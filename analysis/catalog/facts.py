"""GPUs and models as the floors need them, read from the CSV files beside this module.

Rates are dense (no sparsity) and per device, as vendors give them. None: the catalogue does not know.
"""

import csv
import difflib
import functools
from collections.abc import Iterable
from importlib import resources

import msgspec


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    memory_gb: float
    bandwidth_gb_s: float
    bf16_dense_tflops: float | None
    fp8_dense_tflops: float | None
    fp4_dense_tflops: float | None = None


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """Of a model known by its size alone, all that has a default is unknown, or none.

    heads          query heads; `head_dim` of keys and values, their mean where they differ (MLA)
    kv_heads       None for latent attention (MLA), whose cache has no heads
    experts        routed ones; None for dense models
    window_layers  of the layers, those that keep `window_tokens` of the context at most
    """

    name: str
    params_b: float
    active_params_b: float
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    kv_bytes_per_token_bf16: int | None = None
    window_layers: int = 0
    window_tokens: int | None = None


def gpu(name: str) -> Gpu:
    """Raises ValueError, with the nearest names, where the catalogue has no such GPU."""
    found = gpus().get(name.lower())
    if found is None:
        raise ValueError(_unknown("GPU", name, gpus()))
    return found


def model(name: str) -> Model:
    """Raises ValueError, with the nearest names, where the catalogue has no such model."""
    found = models().get(name.lower())
    if found is None:
        raise ValueError(_unknown("model", name, models()))
    return found


@functools.cache
def gpus() -> dict[str, Gpu]:
    return {
        row["device"]: Gpu(
            name=row["device"],
            memory_gb=float(row["memory_gb"]),
            bandwidth_gb_s=float(row["bandwidth_gb_s"]),
            bf16_dense_tflops=_float(row["bf16_dense_tflops"]),
            fp8_dense_tflops=_float(row["fp8_dense_tflops"]),
            fp4_dense_tflops=_float(row["fp4_dense_tflops"]),
        )
        for row in _rows("gpus.csv")
    }


@functools.cache
def models() -> dict[str, Model]:
    return {
        row["model"]: Model(
            name=row["model"],
            layers=int(row["layers"]),
            heads=int(row["heads"]),
            kv_heads=_int(row["kv_heads"]),
            head_dim=_int(row["head_dim"]),
            params_b=float(row["params_b"]),
            active_params_b=float(row["active_params_b"]),
            experts=_int(row["experts"]),
            experts_per_token=_int(row["experts_per_token"]),
            kv_bytes_per_token_bf16=int(row["kv_bytes_per_token_bf16"]),
            window_layers=_int(row["window_layers"]) or 0,
            window_tokens=_int(row["window_tokens"]),
        )
        for row in _rows("models.csv")
    }


def _rows(file: str) -> Iterable[dict[str, str]]:
    text = resources.files("analysis.catalog").joinpath(file).read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines())


def _int(text: str) -> int | None:
    return int(text) if text else None


def _float(text: str) -> float | None:
    return float(text) if text else None


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    hint = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(known)}"
    return f"unknown {kind} {name!r}; {hint}"
