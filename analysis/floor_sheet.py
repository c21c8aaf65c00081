"""All floors of a model on hardware, as one result: what `loadgen floors` shows.

Sizes are decimal. None is unknown: KV without a shape of the model, compute without a rate in the catalogue.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

import msgspec

from analysis import floors, kv_plan, rounding
from analysis.catalog import facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.hardware import Hardware

Bound = Literal["bandwidth", "compute"]


class Speculate(msgspec.Struct, frozen=True, kw_only=True):
    """`drafts` tokens are guessed a step; a guess is right with `acceptance`, and costs `draft_cost` of a step."""

    drafts: int
    acceptance: float
    draft_cost: float


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """`context` is the mean live length of the `batch` sequences that decode at once."""

    input_tokens: int
    output_tokens: int
    batch: int
    context_tokens: float
    speculate: Speculate | None = None
    plan: bool = False
    slo: tuple[str, ...] = ()


class Decode(msgspec.Struct, frozen=True, kw_only=True):
    """One step over `batch` sequences of `context_tokens` each; `tokens_per_s` of all of them together."""

    batch: float
    context_tokens: float
    weight_bytes: float
    kv_bytes: float | None
    floor_ms: float
    tokens_per_s: float
    bound: Bound


class Prefill(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    flops: float
    floor_ms: float | None


class Kv(msgspec.Struct, frozen=True, kw_only=True):
    """`parity_batch`: sequences of that length from which a step reads more KV cache than weights."""

    bytes_per_token: float | None
    room_bytes: float
    tokens: int | None
    sequence_tokens: float
    sequences: int | None
    parity_batch: float | None


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    """`break_even_acceptance`: below it drafts cost more than they save; None: they always do.
    `free_batch`: sequences up to which checking the drafts costs no more than a step without."""

    asked: Speculate
    tokens_per_step: float
    gain: float
    break_even_acceptance: float | None
    floor_ms_per_token: float
    free_batch: float | None


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """The same question with weights of another precision."""

    dtype: str
    weight_bytes: float
    fits: bool
    decode_ms: float
    prefill_ms: float | None
    kv_tokens: int | None
    sequences: int | None
    break_even_batch: float | None
    note: str | None


class OnGpu(msgspec.Struct, frozen=True, kw_only=True):
    """The same question on another GPU. Where it does not fit on as many as were asked for, of as many as it takes."""

    gpu: str
    fits: bool
    gpus: int
    decode_ms: float
    tokens_per_s: float
    prefill_ms: float | None
    break_even_batch: float | None
    sequences: int | None


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """On the roofline: work per byte read, and the rate of it that is attainable."""

    name: str
    flops_per_byte: float
    flops_per_s: float


class Sheet(msgspec.Struct, frozen=True, kw_only=True):
    """`one` is a stream alone, without its context: the floor of ITL. `batch` is what was asked for."""

    hardware: str
    model: str
    gpu: str
    gpus: int
    dtype: str
    kv_cache_dtype: str
    gpu_memory_utilization: float
    params_b: float
    active_params_b: float
    input_tokens: int
    output_tokens: int
    memory_bytes: float
    usable_bytes: float
    bytes_per_s: float
    flops_per_s: float | None
    weight_bytes: float
    fits: bool
    gpus_needed: int
    one: Decode
    batch: Decode
    prefill: Prefill
    break_even_batch: float | None
    kv: Kv
    speculation: Speculation | None
    precisions: tuple[Precision, ...]
    catalogue: tuple[OnGpu, ...]
    roofline: tuple[Point, ...]
    plan: kv_plan.Plan | None


def sheet(hardware: Hardware, asked: Question) -> Sheet:
    """Raises ValueError for an SLO term that is none."""
    model, live = hardware.model, _live(asked)
    return Sheet(
        hardware=str(hardware),
        model=model.name,
        gpu=hardware.gpu.name,
        gpus=hardware.gpus,
        dtype=hardware.dtype,
        kv_cache_dtype=hardware.kv_cache_dtype,
        gpu_memory_utilization=hardware.gpu_memory_utilization,
        params_b=model.params_b,
        active_params_b=model.active_params_b,
        input_tokens=asked.input_tokens,
        output_tokens=asked.output_tokens,
        memory_bytes=hardware.gpu.memory_gb * 1e9 * hardware.gpus,
        usable_bytes=floors.usable_bytes(hardware),
        bytes_per_s=floors.bytes_per_s(hardware),
        flops_per_s=floors.flops_per_s(hardware),
        weight_bytes=floors.weight_bytes(model, hardware.dtype),
        fits=floors.fits(hardware, _full(asked)),
        gpus_needed=floors.gpus_needed(hardware, _full(asked)),
        one=_decode(hardware, 1, 0),
        batch=_decode(hardware, asked.batch, asked.context_tokens),
        prefill=Prefill(
            prompt_tokens=asked.input_tokens,
            flops=floors.prefill_flops(model, asked.input_tokens),
            floor_ms=_prefill_ms(hardware, asked),
        ),
        break_even_batch=floors.break_even_batch(hardware),
        kv=Kv(
            bytes_per_token=floors.kv_bytes(model, 1, hardware.kv_cache_dtype),
            room_bytes=floors.kv_room_bytes(hardware),
            tokens=floors.kv_tokens(hardware),
            sequence_tokens=live,
            sequences=floors.sequences(hardware, live),
            parity_batch=floors.kv_parity_batch(hardware, asked.context_tokens),
        ),
        speculation=None if asked.speculate is None else _speculation(hardware, asked.speculate),
        precisions=tuple(_precision(hardware, dtype, asked) for dtype in _dtypes(hardware)),
        catalogue=tuple(_on(hardware, gpu, asked) for gpu in facts.gpus().values()),
        roofline=_roofline(hardware, asked),
        plan=kv_plan.plan(hardware, asked.input_tokens, asked.output_tokens, asked.slo) if asked.plan else None,
    )


def dumps(made: Sheet) -> str:
    """One strict JSON object, in ASCII."""
    return json.dumps(rounding.digits(msgspec.to_builtins(made)), indent=2, allow_nan=False) + "\n"


def _live(asked: Question) -> float:
    return floors.live_tokens(asked.input_tokens, asked.output_tokens)


def _full(asked: Question) -> float:
    return asked.input_tokens + asked.output_tokens


def _decode(hardware: Hardware, batch: float, context: float) -> Decode:
    weights, kv = floors.decode_bytes(hardware, batch, context)
    floor_s, compute = floors.decode_s(hardware, batch, context), floors.flops_per_s(hardware)
    known = floors.kv_bytes(hardware.model, context, hardware.kv_cache_dtype) is not None
    read_s = (weights + kv) / floors.bytes_per_s(hardware)
    return Decode(
        batch=batch,
        context_tokens=context,
        weight_bytes=weights,
        kv_bytes=kv if known else None,
        floor_ms=floor_s * 1e3,
        tokens_per_s=batch / floor_s,
        bound="compute" if compute is not None and floor_s > read_s else "bandwidth",
    )


def _prefill_ms(hardware: Hardware, asked: Question) -> float | None:
    """None without a rate of compute: the reading of the weights alone says nothing about a prompt."""
    known = floors.flops_per_s(hardware) is not None
    return floors.prefill_s(hardware, asked.input_tokens) * 1e3 if known else None


def _speculation(hardware: Hardware, asked: Speculate) -> Speculation:
    gain = floors.speculative_gain(asked.acceptance, asked.drafts, asked.draft_cost)
    even = floors.break_even_batch(hardware)
    return Speculation(
        asked=asked,
        tokens_per_step=floors.speculative_tokens(asked.acceptance, asked.drafts),
        gain=gain,
        break_even_acceptance=floors.speculative_break_even(asked.drafts, asked.draft_cost),
        floor_ms_per_token=floors.decode_s(hardware) * 1e3 / gain,
        free_batch=None if even is None else even / (asked.drafts + 1),
    )


def _dtypes(hardware: Hardware) -> Sequence[str]:
    """16, 8 and 4 bits in the form that this GPU computes in, where it has one; and the one asked for."""
    gpu = hardware.gpu
    sixteen = "fp16" if hardware.dtype == "fp16" else "bf16"
    eight = "int8" if gpu.fp8_dense_tflops is None else "fp8"
    four = "int4" if gpu.fp4_dense_tflops is None else "fp4"
    usual = [sixteen, eight, four]
    return usual if hardware.dtype in usual else [hardware.dtype, *usual]


def _precision(hardware: Hardware, dtype: str, asked: Question) -> Precision:
    changed = msgspec.structs.replace(hardware, dtype=dtype)
    return Precision(
        dtype=dtype,
        weight_bytes=floors.weight_bytes(changed.model, dtype),
        fits=floors.fits(changed, _full(asked)),
        decode_ms=floors.decode_s(changed) * 1e3,
        prefill_ms=_prefill_ms(changed, asked),
        kv_tokens=floors.kv_tokens(changed),
        sequences=floors.sequences(changed, _live(asked)),
        break_even_batch=floors.break_even_batch(changed),
        note=_lacks(changed),
    )


def _lacks(hardware: Hardware) -> str | None:
    """What this GPU does not compute in."""
    gpu, dtype = hardware.gpu, hardware.dtype
    if gpu.bf16_dense_tflops is None:
        return "compute rate not known"
    if dtype == "int8" and gpu.fp8_dense_tflops is None:
        return "no fp8 rate: int8 at twice that of bf16"
    if dtype in ("fp8", "fp4", "mxfp4") and gpu.fp8_dense_tflops is None:
        return f"no {dtype} rate: computes in bf16"
    if dtype in ("int4", "q4_0"):
        return "computes in bf16" if gpu.fp4_dense_tflops is not None else "no fp4 rate: computes in bf16"
    if dtype in ("fp4", "mxfp4") and gpu.fp4_dense_tflops is None:
        return f"no {dtype} rate: computes in fp8"
    return None


def _on(hardware: Hardware, gpu: facts.Gpu, asked: Question) -> OnGpu:
    here = msgspec.structs.replace(hardware, gpu=gpu)
    fits = floors.fits(here, _full(asked))
    gpus = here.gpus if fits else floors.gpus_needed(here, _full(asked))
    here = msgspec.structs.replace(here, gpus=gpus)
    decode_s = floors.decode_s(here)
    return OnGpu(
        gpu=gpu.name,
        fits=fits,
        gpus=gpus,
        decode_ms=decode_s * 1e3,
        tokens_per_s=1 / decode_s,
        prefill_ms=_prefill_ms(here, asked),
        break_even_batch=floors.break_even_batch(here),
        sequences=floors.sequences(here, _live(asked)),
    )


def _roofline(hardware: Hardware, asked: Question) -> tuple[Point, ...]:
    """The workload's phases, by rising work per byte. Empty without a rate of compute."""
    even = floors.break_even_batch(hardware)
    if even is None:
        return ()
    batches = {"decode, 1 stream": 1.0}
    if asked.batch > 1:
        batches[f"decode, {asked.batch:,} at once"] = float(asked.batch)
    batches[f"decode, {even:,.0f} at once (break-even)"] = even
    points = [_decode_point(hardware, name, batch, asked.context_tokens) for name, batch in batches.items()]
    flops = floors.prefill_flops(hardware.model, asked.input_tokens)
    read = floors.weight_bytes_read(hardware.model, asked.input_tokens, hardware.dtype)
    rate = flops / floors.prefill_s(hardware, asked.input_tokens)
    name = f"prefill, {asked.input_tokens:,} tokens"
    points.append(Point(name=name, flops_per_byte=flops / read, flops_per_s=rate))
    return tuple(sorted(points, key=lambda point: point.flops_per_byte))


def _decode_point(hardware: Hardware, name: str, batch: float, context: float) -> Point:
    attention = floors.attention_flops(hardware.model, context + 1, context)
    flops = floors.decode_flops(hardware.model, batch) + batch * attention
    read = sum(floors.decode_bytes(hardware, batch, context))
    rate = flops / floors.decode_s(hardware, batch, context)
    return Point(name=name, flops_per_byte=flops / read, flops_per_s=rate)
