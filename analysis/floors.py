"""What the hardware allows: bytes, FLOPs and KV capacity, from the catalogue alone.

A floor must never overstate the work: where the catalogue does not know a quantity, the smaller bound is taken.
Sizes are decimal (1 GB = 1e9 bytes), as vendors give memory and bandwidth.
"""

from analysis.catalog.facts import Gpu, Model

DTYPE_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}  # per value


def weight_bytes(model: Model, dtype: str = "bf16") -> float:
    """parameters * bytes per parameter."""
    return model.params_b * 1e9 * DTYPE_BYTES[dtype]


def weight_bytes_read(model: Model, tokens: int, dtype: str = "bf16") -> float:
    """Bytes of weights that one step over `tokens` tokens reads (for pure decode: the batch size).

    Dense: all. MoE: `shared + experts * (1 - (1 - k/E)^tokens)`, the expected share of experts that uniform routing
    touches. The split follows from total P and active A parameters: experts = (P - A) / (1 - k/E).
    """
    if model.experts is None or model.experts_per_token is None:
        return weight_bytes(model, dtype)
    used = model.experts_per_token / model.experts
    in_experts_b = (model.params_b - model.active_params_b) / (1 - used)
    read_b = model.params_b - in_experts_b * (1 - used) ** tokens
    return read_b * 1e9 * DTYPE_BYTES[dtype]


def kv_bytes_per_token(model: Model, kv_dtype: str = "bf16") -> float:
    """2 * layers * kv heads * head dim * bytes; MLA: layers * 576 * bytes. Sliding windows are not subtracted."""
    return model.kv_bytes_per_token_bf16 * DTYPE_BYTES[kv_dtype] / DTYPE_BYTES["bf16"]


def decode_bytes(model: Model, *, batch: int, live_tokens: int, dtype: str = "bf16", kv_dtype: str = "bf16") -> float:
    """Bytes of one decode step: `weights read + kv_bytes_per_token * live tokens`.

    `live_tokens` is the sum of the context lengths of the `batch` running sequences.
    """
    return weight_bytes_read(model, batch, dtype) + kv_bytes_per_token(model, kv_dtype) * live_tokens


def decode_flops(model: Model, batch: int) -> float:
    """FLOPs of one decode step: 2 * active parameters * batch (a multiply and an add each)."""
    return 2 * model.active_params_b * 1e9 * batch


def attention_flops(model: Model, end: int, start: int = 0) -> float:
    """FLOPs of causal attention for the positions `start`..`end`: `2 * layers * heads * head_dim * (end^2 - start^2)`.

    The catalogue knows kv heads, not query heads; there are at least as many of these, so kv heads keep it a floor.
    Latent attention (MLA), where neither is known, counts 0.
    """
    if model.kv_heads is None or model.head_dim is None:
        return 0.0
    return 2.0 * model.layers * model.kv_heads * model.head_dim * (end * end - start * start)


def prefill_flops(model: Model, end: int, start: int = 0) -> float:
    """FLOPs of prefilling the positions `start`..`end`: `2 * N * s + 2 * layers * heads * head_dim * s^2` for a prompt.

    N is the active parameters. A chunk, or the part after a prefix hit, has `start` above 0.
    """
    return decode_flops(model, end - start) + attention_flops(model, end, start)


def compute_flops_per_s(gpu: Gpu, dtype: str = "bf16") -> float | None:
    """Dense rate of one device: fp8's for fp8 weights where there is one, bf16's for all others."""
    tflops = gpu.bf16_dense_tflops
    if dtype == "fp8" and gpu.fp8_dense_tflops is not None:
        tflops = gpu.fp8_dense_tflops
    return None if tflops is None else tflops * 1e12


def kv_capacity_tokens(
    model: Model,
    gpu: Gpu,
    *,
    gpus: int = 1,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    utilization: float = 0.9,
    overhead_bytes: float = 0.0,
) -> int:
    """Tokens whose KV fits: `(memory * utilization - weights - overhead) / kv_bytes_per_token`; 0 where none does."""
    left_bytes = gpu.memory_gb * 1e9 * gpus * utilization - weight_bytes(model, dtype) - overhead_bytes
    return max(0, int(left_bytes / kv_bytes_per_token(model, kv_dtype)))
