"""What the hardware allows: bytes, FLOPs and KV capacity, from the catalogue alone.

A floor must never overstate the work: where a quantity is not known, the smaller bound is taken.
Sizes are decimal (1 GB = 1e9 bytes), as vendors give memory and bandwidth.

Two phases, two bounds. Prefill computes a whole prompt at once: FLOPs over compute. Decode computes one token of each
sequence and reads all the weights for it: bytes over bandwidth, until the batch is large.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from analysis.hardware import DTYPE_BYTES

if TYPE_CHECKING:
    from analysis.catalog.facts import Gpu, Model
    from analysis.hardware import Hardware

INT8_OF_BF16 = 2.0  # tensor cores that have no fp8 do int8 at twice their rate for bf16 (A100, A10, TPU v5e)


def weight_bytes(model: Model, dtype: str = "bf16") -> float:
    """parameters * bytes per parameter."""
    return model.params_b * 1e9 * DTYPE_BYTES[dtype]


def weight_bytes_read(model: Model, tokens: float, dtype: str = "bf16") -> float:
    """Bytes of weights that one step over `tokens` tokens reads (for pure decode: the batch size).

    Dense: all. MoE: `shared + experts * (1 - (1 - k/E)^tokens)`, the expected share of experts that uniform routing
    touches. The split follows from total P and active A parameters: experts = (P - A) / (1 - k/E).
    """
    if model.experts is None or model.experts_per_token is None:
        return weight_bytes(model, dtype)
    used = model.experts_per_token / model.experts
    in_experts_b = (model.params_b - model.active_params_b) / (1 - used)
    read_b = model.params_b - in_experts_b * math.pow(1 - used, tokens)
    return read_b * 1e9 * DTYPE_BYTES[dtype]


def kv_bytes(model: Model, context: float, kv_dtype: str = "bf16") -> float | None:
    """KV cache of one sequence of `context` tokens; None where the model's shape is not known.

    2 * layers * kv heads * head dim * bytes a token (MLA: layers * 576 * bytes); layers with a sliding window stop
    growing at its size.
    """
    if model.kv_bytes_per_token_bf16 is None:
        return None
    full = model.kv_bytes_per_token_bf16 * DTYPE_BYTES[kv_dtype] / DTYPE_BYTES["bf16"]
    if model.window_tokens is None or not model.layers:
        return full * context
    windowed = model.window_layers / model.layers
    return full * ((1 - windowed) * context + windowed * min(context, model.window_tokens))


def decode_flops(model: Model, batch: float) -> float:
    """FLOPs of one decode step without its attention: 2 * active parameters * batch (a multiply and an add each)."""
    return 2 * model.active_params_b * 1e9 * batch


def attention_flops(model: Model, end: float, start: float = 0) -> float:
    """FLOPs of causal attention for the positions `start`..`end`: `2 * layers * heads * head_dim * (end^2 - start^2)`.

    In layers with a sliding window a position past it sees `window_tokens` others. 0 where the shape is not known.
    """
    if model.layers is None or model.heads is None or model.head_dim is None:
        return 0.0
    full = model.layers - model.window_layers
    seen = full * (end * end - start * start) + model.window_layers * (_seen(model, end) - _seen(model, start))
    return 2.0 * model.heads * model.head_dim * seen


def _seen(model: Model, end: float) -> float:
    """Twice the pairs of positions up to `end` within the window."""
    window = end if model.window_tokens is None else min(end, model.window_tokens)
    return window * (2 * end - window)


def prefill_flops(model: Model, end: float, start: float = 0) -> float:
    """FLOPs of prefilling the positions `start`..`end`: `2 * N * s + 2 * layers * heads * head_dim * s^2` for a prompt.

    N is the active parameters. A chunk, or the part after a prefix hit, has `start` above 0.
    """
    return decode_flops(model, end - start) + attention_flops(model, end, start)


def compute_flops_per_s(gpu: Gpu, dtype: str = "bf16") -> float | None:
    """Dense rate of one device: the fastest at which weights of this precision can be computed with, as far as known.

    Weights of 4 bits are widened before they are used, but for fp4 on devices that can compute in it.
    """
    bf16, fp8 = gpu.bf16_dense_tflops, gpu.fp8_dense_tflops
    tflops = bf16
    if dtype in ("fp8", "int8", "q8_0") and fp8 is not None:
        tflops = fp8
    elif dtype in ("int8", "q8_0") and bf16 is not None:
        tflops = INT8_OF_BF16 * bf16
    elif dtype in ("fp4", "mxfp4"):
        tflops = gpu.fp4_dense_tflops or fp8 or bf16
    return None if tflops is None else tflops * 1e12


def bytes_per_s(hardware: Hardware) -> float:
    return hardware.gpu.bandwidth_gb_s * 1e9 * hardware.gpus


def flops_per_s(hardware: Hardware) -> float | None:
    rate = compute_flops_per_s(hardware.gpu, hardware.dtype)
    return None if rate is None else rate * hardware.gpus


def decode_bytes(hardware: Hardware, batch: float, context: float = 0.0) -> tuple[float, float]:
    """Bytes of one decode step over `batch` sequences of `context` tokens each: of weights, and of KV cache."""
    weights = weight_bytes_read(hardware.model, batch, hardware.dtype)
    return weights, batch * (kv_bytes(hardware.model, context, hardware.kv_cache_dtype) or 0.0)


def decode_s(hardware: Hardware, batch: float = 1.0, context: float = 0.0) -> float:
    """Least time of one decode step: `max((weights read + KV) / bandwidth, FLOPs / compute)`.

    At batch 1 and no context: weights / bandwidth, the floor of ITL.
    """
    read_s = sum(decode_bytes(hardware, batch, context)) / bytes_per_s(hardware)
    compute = flops_per_s(hardware)
    if compute is None:
        return read_s
    attention = batch * attention_flops(hardware.model, context + 1, context)
    return max(read_s, (decode_flops(hardware.model, batch) + attention) / compute)


def prefill_s(hardware: Hardware, prompt_tokens: float, cached_tokens: float = 0.0) -> float:
    """Least time to compute a prompt: its FLOPs over compute, and not less than one reading of the weights."""
    read = weight_bytes_read(hardware.model, prompt_tokens - cached_tokens, hardware.dtype)
    read_s, compute = read / bytes_per_s(hardware), flops_per_s(hardware)
    return (
        read_s
        if compute is None
        else max(read_s, prefill_flops(hardware.model, prompt_tokens, cached_tokens) / compute)
    )


def break_even_batch(hardware: Hardware) -> float | None:
    """Tokens a step from which it is bound by compute: `(compute / bandwidth) * bytes / 2`.

    MoE: by parameters read (all, at such a batch) over active ones. None where the compute rate is not known.
    """
    compute, model = flops_per_s(hardware), hardware.model
    if compute is None:
        return None
    ops_per_byte = compute / bytes_per_s(hardware)
    return ops_per_byte * DTYPE_BYTES[hardware.dtype] / 2 * model.params_b / model.active_params_b


def live_tokens(prompt_tokens: float, output_tokens: float) -> float:
    """Mean length of a sequence while it decodes, of fixed lengths."""
    return prompt_tokens + output_tokens / 2


def steady_s(hardware: Hardware, batch: float, prompt_tokens: float, output_tokens: float) -> float:
    """Least mean time a token where each of `batch` sequences that ends is followed by a new prompt.

    A decode step then has `batch / output` prompts to compute beside it, which can hide behind its reading, and its
    sequences have the mean live length, `prompt + output / 2`.
    """
    context = live_tokens(prompt_tokens, output_tokens)
    read_s, compute = sum(decode_bytes(hardware, batch, context)) / bytes_per_s(hardware), flops_per_s(hardware)
    if compute is None:
        return read_s
    return max(read_s, batch * _steady_flops(hardware.model, prompt_tokens, output_tokens) / compute)


def saturating_batch(hardware: Hardware, prompt_tokens: float, output_tokens: float) -> float | None:
    """Sequences from which `steady_s` is bound by compute, so that more of them take longer and no more tokens come.

    None where that is never so (KV cache takes as long to read as a sequence to compute), or the rate is not known.
    """
    compute = flops_per_s(hardware)
    if compute is None:
        return None
    live_bytes = kv_bytes(hardware.model, live_tokens(prompt_tokens, output_tokens), hardware.kv_cache_dtype) or 0.0
    flops = _steady_flops(hardware.model, prompt_tokens, output_tokens)
    left_s = flops / compute - live_bytes / bytes_per_s(hardware)
    weights_s = weight_bytes(hardware.model, hardware.dtype) / bytes_per_s(hardware)
    return weights_s / left_s if left_s > 0 else None


def _steady_flops(model: Model, prompt_tokens: float, output_tokens: float) -> float:
    """FLOPs of one output token, with its share of the prompt."""
    context = live_tokens(prompt_tokens, output_tokens)
    decode = decode_flops(model, 1) + attention_flops(model, context + 1, context)
    return decode + prefill_flops(model, prompt_tokens) / output_tokens


def usable_bytes(hardware: Hardware) -> float:
    """Memory that the server may take, for weights and KV cache."""
    return hardware.gpu.memory_gb * 1e9 * hardware.gpus * hardware.gpu_memory_utilization


def kv_room_bytes(hardware: Hardware, overhead_bytes: float = 0.0) -> float:
    """`memory * utilization - weights - overhead`; 0 where the weights do not fit."""
    return max(0.0, usable_bytes(hardware) - weight_bytes(hardware.model, hardware.dtype) - overhead_bytes)


def kv_tokens(hardware: Hardware, overhead_bytes: float = 0.0) -> int | None:
    """Tokens whose KV fits where no layer has a window; None where there is room and the model's shape is not known."""
    if not kv_room_bytes(hardware, overhead_bytes):
        return 0
    per_token = kv_bytes(hardware.model, 1.0, hardware.kv_cache_dtype)
    return None if per_token is None else int(kv_room_bytes(hardware, overhead_bytes) / per_token)


def sequences(hardware: Hardware, context: float, overhead_bytes: float = 0.0) -> int | None:
    """Sequences of `context` tokens whose KV fits at once; None where there is room and the shape is not known."""
    if not kv_room_bytes(hardware, overhead_bytes):
        return 0
    each = kv_bytes(hardware.model, context, hardware.kv_cache_dtype)
    return int(kv_room_bytes(hardware, overhead_bytes) / each) if each else None


def fits(hardware: Hardware, context: float) -> bool:
    """Whether memory holds the weights, and the KV of one such sequence where its size is known."""
    each = kv_bytes(hardware.model, context, hardware.kv_cache_dtype) or 0.0
    return weight_bytes(hardware.model, hardware.dtype) + each <= usable_bytes(hardware)


def gpus_needed(hardware: Hardware, context: float) -> int:
    """The fewest such devices that it fits on, as a power of two: tensor parallelism has to divide the heads."""
    gpus = 1
    while not fits(msgspec.structs.replace(hardware, gpus=gpus), context):
        gpus *= 2
    return gpus


def kv_parity_batch(hardware: Hardware, context: float) -> float | None:
    """Sequences of `context` tokens from which a decode step reads more KV cache than weights."""
    each = kv_bytes(hardware.model, context, hardware.kv_cache_dtype)
    return weight_bytes(hardware.model, hardware.dtype) / each if each else None


def speculative_tokens(acceptance: float, drafts: int) -> float:
    """Tokens a step of speculative decoding: `(1 - a^(g+1)) / (1 - a)`, at a = 1 all g drafts and the model's own."""
    return sum(acceptance**i for i in range(drafts + 1))


def speculative_gain(acceptance: float, drafts: int, draft_cost: float) -> float:
    """Tokens a step over its cost, `g * c + 1`, where a draft token costs the share `draft_cost` of a step."""
    return speculative_tokens(acceptance, drafts) / (drafts * draft_cost + 1)


def speculative_break_even(drafts: int, draft_cost: float) -> float | None:
    """The acceptance at which the gain is 1; None where drafts cost more than the steps they can save."""
    from scipy import optimize  # the simulated engine has no need of it

    if draft_cost > 1:
        return None
    return float(optimize.brentq(lambda acceptance: speculative_gain(acceptance, drafts, draft_cost) - 1, 0.0, 1.0))
