"""What bounds the two phases of a request: prefill by compute, decode by memory bandwidth, either by overhead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from analysis import floors, metrics
from analysis.answer_findings import PER_EVENT
from analysis.diagnosis import Diagnosis, ms, share

if TYPE_CHECKING:
    from analysis.diagnosis import Times
    from analysis.evidence import Evidence

FAR = 0.3  # efficiency: a step of more than three times its floor does mostly something else
NEAR = 0.5  # efficiency: most of a step is its floor; good kernels reach 0.7 to 0.85
LATE_MS = 20.0  # of a first token: above what HTTP, tokenizer and scheduler take, below what a reader sees
DECODE = 0.25  # of a request's time: what takes less of it than its overhead is not worth a word
SOME = 0.2  # of the server's time: without prompts that take less, a request would not be a quarter faster
WORTH = 0.01  # of a request's time: less is not worth a word
REGRESS = 10  # requests of different lengths that a straight line takes ...
VARIED = 0.1  # ... with so much standard deviation over mean
BOTH = 0.5  # computing over reading, at their peaks, from which on either may bound a step: kernels differ so much


def phase(evidence: Evidence, times: Times) -> Diagnosis:
    """Of a level in which nothing stands in the way of either."""
    return prefill(evidence, times) if times.prompt_heavy else _decode(evidence, times)


def overhead(evidence: Evidence, times: Times) -> tuple[float, Diagnosis] | None:
    """Decode steps far above their floor, even those without a prompt beside them: where prompts are what costs the
    server its time, hardly one is without."""
    held, step, decode = evidence.floors, _step_ms(evidence, times), times.decode_share
    if held is None or (times.prompt_heavy and not times.lone):
        return None
    if step and held.itl_floor_ms is not None and decode >= DECODE and held.itl_floor_ms < FAR * step:
        return decode, _far("decode step", held.itl_floor_ms, step, decode)
    return None


def late(evidence: Evidence, times: Times) -> tuple[float, Diagnosis] | None:
    """The first token of a lone request that comes late, and not for the length of its prompt: by its floor or, where
    that is not known, by how little it grows with the prompt. Where the server knows of it, it is overhead of its own.
    """
    held, line, prompt = evidence.floors, _line(evidence), (times.own_share or 0.0) * times.e2e
    if not times.lone or prompt < LATE_MS:
        return None
    floor_ms = None if held is None else held.ttft_floor_ms
    if floor_ms is not None and floor_ms < FAR * prompt and times.way is not None:
        far = _far("prefill", floor_ms, prompt, prompt / times.e2e)
        lever = (
            f"{far.lever} A larger max_num_batched_tokens, if it is so small that each chunk reads all weights again."
        )
        return prompt / times.e2e, msgspec.structs.replace(far, lever=lever)
    grows = line is None or line[1] <= times.ttft / 2
    if grows if floor_ms is None else floor_ms >= FAR * prompt:
        return None
    levers = ["--metrics with the server's page tells its own TTFT from the client's"] if times.way is None else []
    levers += ["--hardware MODEL@GPU,dtype=... tells what the prompt takes"] if floor_ms is None else []
    return prompt / times.e2e, Diagnosis(
        code="unknown",
        words="The first token comes late, and not for the length of the prompt: it is "
        f"{'the way, ' if times.way is None else ''}the tokenizer, or a step that is long for any prompt (a mixture of "
        "experts reads all its weights).",
        evidence=_prefill_evidence(evidence, times, 0.0),
        lever=f"{'; '.join(levers)}.",
    )


def _far(what: str, floor_ms: float, took_ms: float, part: float) -> Diagnosis:
    return Diagnosis(
        code="overhead-bound",
        words=f"Most of a {what} is neither reading memory nor computing: the CPU, kernel launches, or communication "
        "between GPUs.",
        evidence=f"a {what} takes {ms(took_ms)}, its floor is {ms(floor_ms)} (efficiency {floor_ms / took_ms:.2g}); "
        f"{share(part)} of a request's time is that",
        lever="CUDA graphs (no --enforce-eager), a faster or freer CPU, asynchronous scheduling, fewer GPUs for one "
        "model. More bandwidth, more FLOPs or fewer bits would change little.",
    )


def prefill(evidence: Evidence, times: Times, waits_ms: float = 0.0) -> Diagnosis:
    """`waits_ms` is what a request waits until it is its prompt's turn."""
    said = _prefill_evidence(evidence, times, waits_ms)
    if times.lone:
        words = "Reading the prompt (prefill) takes much of the time, and a server shares no prompt among its requests"
    else:
        words = "Reading the prompts (prefill) takes the server's time"
        words += ", and answers stand still meanwhile" if times.streams and times.streams.stalls else ""
    lever = "Shorter prompts, prefix caching, more FLOPs (a faster GPU, FP8), or prefill on machines of its own. "
    hardware, bound = evidence.header.hardware, "compute"
    if hardware is not None and hardware.model.experts is not None:
        bound = "compute, or by reading all experts once more for each chunk"
        lever += "A larger max_num_batched_tokens makes fewer chunks."
    elif times.lone:
        lever += "More memory bandwidth or a larger max_num_seqs does nothing for it."
    elif times.prompts_fill:
        lever += "More memory bandwidth does nothing for it, and a larger max_num_seqs only moves the wait."
    else:
        lever += "More memory bandwidth does nothing for it."
        if waits_ms and times.queue is None:
            lever += " --metrics tells whether requests wait for a place too (then a larger max_num_seqs helps)."
    return Diagnosis(code="prefill-bound", words=f"{words}: it is bound by {bound}.", evidence=said, lever=lever)


def _prefill_evidence(evidence: Evidence, times: Times, waits_ms: float) -> str:
    held, seen = evidence.floors, times.streams
    said = [f"TTFT is {ms(times.ttft)} of {ms(times.e2e)}"]
    if waits_ms:
        said.append(f"{ms(waits_ms)} of it in the queue")
    if times.lone and held is not None and held.ttft_floor_ms is not None:
        said.append(f"floor {ms(held.ttft_floor_ms)}")
    if times.lone and (line := _line(evidence)) is not None:
        said.append(f"it grows by {ms(line[0])} a thousand prompt tokens, from {ms(max(0.0, line[1]))}")
    if times.load is not None and (times.blurred or seen is None):
        said.append("nearly each step reads one, or a chunk of one" if times.blurred else "there is hardly any decode")
        said.append(f"at their floor prompts would take {share(times.load)} of the time")
    elif not times.lone and seen is not None:
        said.append(f"prompts take {share(seen.prompt_share)} of the server's time")
        if seen.prompt_ms is not None:
            said.append(f"one takes {ms(seen.prompt_ms)}, a decode step of all {ms(seen.step_ms)}")
    return "; ".join(said)


def _line(evidence: Evidence) -> tuple[float, float] | None:
    """TTFT over the prompt tokens that were computed: ms a thousand tokens, and ms at none. None where there are too
    few lengths, or too much alike, for a line."""
    requests, chosen = evidence.requests, evidence.sampled
    tokens = (requests.prompt_tokens - np.nan_to_num(requests.cached_tokens))[chosen]
    ttft = metrics.ttft_sent_ms(requests)[chosen]
    known = ~np.isnan(tokens) & ~np.isnan(ttft)
    tokens, ttft = tokens[known], ttft[known]
    if len(tokens) < REGRESS or tokens.std() < VARIED * tokens.mean():
        return None
    slope, base = np.polyfit(tokens, ttft, 1)
    return 1e3 * float(slope), float(base)


def _decode(evidence: Evidence, times: Times) -> Diagnosis:
    if times.decode_share < DECODE:
        return _unknown_first(times)
    held, step = evidence.floors, _step_ms(evidence, times)
    said = f"{share(times.decode_share)} of a request's time is decode"
    wait = times.queue if times.queue is not None else times.streams.wait_ms if times.streams is not None else 0.0
    if wait >= WORTH * times.e2e:
        said += f", {share(wait / times.e2e)} a wait"
    if step is None or held is None or held.itl_floor_ms is None:
        return _unknown_decode(said if step is None else f"{said}, {ms(step)} a step", evidence, times)
    what, each = "a step", evidence.whole.tokens.per_event or 1.0
    if held.itl_floor_ms > step and each > PER_EVENT and times.streams is not None:
        what, step = f"an event of {each:.2g} tokens", times.streams.step_ms  # of a step at least
    near = NEAR * step <= held.itl_floor_ms
    said += f"; {what} takes {ms(step)}, floor {ms(held.itl_floor_ms)} (efficiency {held.itl_floor_ms / step:.2g})"
    if held.itl_floor_ms > step or (what != "a step" and not near):
        return Diagnosis(
            code="unknown",
            words="A token takes less than a step of this hardware can: its floor says nothing of this server.",
            evidence=said,
            lever="Check --hardware (model, dtype, gpus); or it makes several tokens a step (speculative decoding).",
        )
    words, lever = _bound(evidence, times)
    if not near:
        words += ", but less than half of a step is that"
        lever += " CUDA graphs, a faster CPU or less communication may cut the rest."
    return Diagnosis(code="decode-bound", words=f"{words}.", evidence=said, lever=lever)


def _unknown_decode(said: str, evidence: Evidence, times: Times) -> Diagnosis:
    what = "memory bandwidth bounds it or overhead"
    if not times.lone:
        what = "memory bandwidth bounds its steps, overhead, or chunks of the prompts read beside them"
    return Diagnosis(
        code="unknown",
        words=f"Making the tokens (decode) takes the time; whether {what} is not known.",
        evidence=said,
        lever=("--hardware MODEL@GPU,dtype=..." if evidence.floors is None else "Longer answers") + " would tell.",
    )


def _unknown_first(times: Times) -> Diagnosis:
    return Diagnosis(
        code="unknown",
        words="Nearly all the time passes before the first token; whether the prompts take it, a queue or the way is "
        "not known.",
        evidence=f"TTFT is {ms(times.ttft)} of {ms(times.e2e)}",
        lever="--metrics with the server's page would tell, or --hardware MODEL@GPU,dtype=... what the prompts take.",
    )


def _bound(evidence: Evidence, times: Times) -> tuple[str, str]:
    """What the floor of the step is made of, and what would lower it."""
    held = evidence.floors
    kv, weights = (held and held.step_kv_bytes) or 0.0, (held and held.step_weight_bytes) or 0.0
    words = "Making the tokens (decode) takes the time, and its steps are bound by "
    over = _compute_over_memory(evidence, kv + weights)
    if over > 1:
        lever = "More FLOPs (a faster GPU, FP8). More memory bandwidth does nothing for so large a batch."
        return f"{words}compute, as so many tokens are computed at once", lever
    if over > BOTH:
        lever = "A GPU with more of both, or weights in fewer bits (FP8). More of one alone may do nothing."
        return f"{words}compute or memory bandwidth: at so large a batch both take about as long", lever
    what, fewer = "the weights", "weights in fewer bits (FP8, INT4)"
    if kv > weights:
        what, fewer = "the KV cache", "an FP8 KV cache, shorter contexts"
    lever = f"Fewer bytes a token: {fewer}, speculative decoding; or more memory bandwidth. More FLOPs do nothing"
    prompts = 0.0 if times.lone or times.streams is None else times.streams.prompt_share
    lever += "." if prompts < SOME else f" but for the prompts beside them: {share(prompts)} of the server's time."
    return f"{words}memory bandwidth: each reads {what}", lever


def _compute_over_memory(evidence: Evidence, read_bytes: float) -> float:
    """The time that a step takes at least to compute its tokens, over that to read `read_bytes`; 0 where it is not
    known. All the tokens of an event were computed."""
    held, hardware = evidence.floors, evidence.header.hardware
    if held is None or hardware is None or not held.batch or not read_bytes:
        return 0.0
    flops_per_s = floors.flops_per_s(hardware)
    if flops_per_s is None:
        return 0.0
    tokens = held.batch * (evidence.whole.tokens.per_event or 1.0)
    return floors.decode_flops(hardware.model, tokens) / flops_per_s * floors.bytes_per_s(hardware) / read_bytes


def _step_ms(evidence: Evidence, times: Times) -> float | None:
    """An undisturbed step, None where there is none; where events carry several tokens, the time a token: an event may
    be one step or several."""
    each = evidence.whole.tokens.per_event
    if each is not None and each > PER_EVENT:
        return None if evidence.floors is None else evidence.floors.itl_ms
    return None if times.streams is None or times.blurred else times.streams.step_ms
