"""How many sequences at once (`max_num_seqs`) a model on hardware can hold, and how many keep an SLO.

Memory caps them, and so does the time a token takes, which grows with them. Every number here is of the best case, or
of a stated efficiency: a plan says where to measure, and nothing else.
"""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Literal

import msgspec

from analysis import floors, slo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from analysis.hardware import Hardware
    from analysis.slo import Metric

USUAL = 0.6  # of a floor; 0.5 to 0.75 is what published measurements of tuned servers reach
_MOST = 1 << 20  # sequences: beyond this nothing binds
_ALIGN = 1024  # tokens
# How vLLM is told. Weights of other precisions come quantised, and are told by the model's own configuration.
_VLLM_DTYPE = {"bf16": "--dtype bfloat16", "fp16": "--dtype float16", "fp32": "--dtype float32",
               "fp8": "--quantization fp8"}  # fmt: skip
_VLLM_KV = {"fp8": "--kv-cache-dtype fp8"}


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """The plan at one efficiency; 1 is the floor itself.

    itl_seqs      the most whose decode step meets the ITL limit; 0: not even one does. None: there is no limit, or
                  nothing known that breaks it
    steady_seqs   the same where the prompts of those who come next are computed between the tokens
    max_num_seqs  the most that memory and the ITL limit allow
    binds         what is smallest: one of these two, or compute, from which on more at once bring no more tokens
    ttft_ms       of a prompt that waits for nothing
    """

    efficiency: float
    itl_seqs: int | None
    steady_seqs: int | None
    max_num_seqs: int | None
    binds: Literal["memory", "itl", "compute"] | None
    ttft_ms: float | None
    ttft_met: bool | None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Of sequences of `input_tokens` and `output_tokens` each.

    memory_full_seqs  the most that memory holds with all at their full length: none is ever preempted
    memory_live_seqs  with all at their mean live length, input + output / 2, as staggered ones are
    saturating_seqs   compute is busy from here on
    try_seqs          values of max_num_seqs that are worth a measurement, and `command` that measures them
    """

    input_tokens: int
    output_tokens: int
    full_tokens: int
    live_tokens: float
    slo: tuple[str, ...]
    itl_limit_ms: float | None
    ttft_limit_ms: float | None
    memory_full_seqs: int | None
    memory_live_seqs: int | None
    saturating_seqs: int | None
    floor: Case
    usual: Case
    try_seqs: tuple[int, ...]
    command: str | None


def plan(hardware: Hardware, input_tokens: int, output_tokens: int, asked: Sequence[str] = ()) -> Plan:
    """`asked` are SLO terms and presets. Raises ValueError for one that is neither."""
    terms = slo.terms(asked)
    itl_ms, ttft_ms = _limit(terms, ("itl", "tpot")), _limit(terms, ("ttft", "ttft_sent", "ttfat"))
    live = floors.live_tokens(input_tokens, output_tokens)
    memory = floors.sequences(hardware, live)
    saturating = floors.saturating_batch(hardware, input_tokens, output_tokens)
    knee = None if saturating is None else max(1, math.ceil(saturating))

    def case(efficiency: float) -> Case:
        limit_s = None if itl_ms is None else itl_ms / 1e3 * efficiency
        itl = _most(lambda n: floors.decode_s(hardware, n, live), limit_s)
        steady = _most(lambda n: floors.steady_s(hardware, n, input_tokens, output_tokens), limit_s)
        allowed = _least(memory, itl, steady)
        prefill_s = None if floors.flops_per_s(hardware) is None else floors.prefill_s(hardware, input_tokens)
        takes_ms = None if prefill_s is None else prefill_s * 1e3 / efficiency
        return Case(
            efficiency=efficiency,
            itl_seqs=itl,
            steady_seqs=steady,
            max_num_seqs=allowed,
            binds=_binds(memory, _least(itl, steady), knee),
            ttft_ms=takes_ms,
            ttft_met=None if ttft_ms is None or takes_ms is None else takes_ms <= ttft_ms,
        )

    best, usual = case(1.0), case(USUAL)
    values = _values(best.max_num_seqs, usual.max_num_seqs, knee)
    return Plan(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        full_tokens=input_tokens + output_tokens,
        live_tokens=live,
        slo=tuple(map(str, terms)),
        itl_limit_ms=itl_ms,
        ttft_limit_ms=ttft_ms,
        memory_full_seqs=floors.sequences(hardware, input_tokens + output_tokens),
        memory_live_seqs=memory,
        saturating_seqs=knee,
        floor=best,
        usual=usual,
        try_seqs=values,
        command=_command(hardware, input_tokens, output_tokens, asked, values) if values else None,
    )


def _limit(terms: Sequence[slo.Term], metrics: tuple[Metric, ...]) -> float | None:
    """The tightest of these, in ms."""
    return min((term.limit for term in terms if term.metric in metrics), default=None)


def _most(step_s: Callable[[int], float], limit_s: float | None) -> int | None:
    """The largest batch whose step, which grows with it, takes no longer."""
    if limit_s is None or step_s(_MOST) <= limit_s:
        return None
    low, high = 0, _MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if step_s(middle) <= limit_s else (low, middle)
    return low


def _least(*counts: int | None) -> int | None:
    return min((count for count in counts if count is not None), default=None)


def _binds(memory: int | None, itl: int | None, knee: int | None) -> Literal["memory", "itl", "compute"] | None:
    least = _least(memory, itl, knee)
    if least is None:
        return None
    return "memory" if least == memory else "itl" if least == itl else "compute"


def _values(best: int | None, usual: int | None, knee: int | None) -> tuple[int, ...]:
    """Three to five powers of two: from half of what is likely to bind to what the best case allows."""
    if best == 0:
        return ()
    likely = max(1, _least(best, usual, knee) or 1)
    if _least(best, usual, knee) is None:
        return (16, 64, 256)
    first = max(0, likely.bit_length() - 2)
    last = (max(likely, best or _MOST) - 1).bit_length()
    return tuple(1 << power for power in range(first, min(max(last, first + 2), first + 4) + 1))


def _command(
    hardware: Hardware, input_tokens: int, output_tokens: int, asked: Sequence[str], values: Sequence[int]
) -> str:
    longest = ((input_tokens + output_tokens) // _ALIGN + 1) * _ALIGN  # room for what a chat template adds
    serve = [
        "vllm serve MODEL --max-num-seqs {n}",
        f"--max-model-len {longest}",
        f"--gpu-memory-utilization {hardware.gpu_memory_utilization:g}",
        f"--tensor-parallel-size {hardware.gpus}" if hardware.gpus > 1 else "",
        _VLLM_DTYPE.get(hardware.dtype, ""),
        _VLLM_KV.get(hardware.kv_cache_dtype, ""),
    ]
    return " ".join([
        f'loadgen tune --launch "{" ".join(filter(None, serve))}"',
        f"--set n={','.join(map(str, values))}",
        f"--input {input_tokens} --output {output_tokens} --concurrency 1..{values[-1]}",
        *(f"--slo {shlex.quote(text)}" for text in asked),
    ])  # fmt: skip
