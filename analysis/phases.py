"""What bounds the two phases of a request: prefill by compute, decode by memory bandwidth, either by overhead."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
WORTH = 0.01  # of a request's time: less is not worth a word
REGRESS = 10  # requests of different lengths that a straight line takes ...
VARIED = 0.1  # ... with so much standard deviation over mean
BANDWIDTH = 0.9  # of a step's floor is reading memory; where it is less, computing bounds the step


def phase(evidence: Evidence, times: Times) -> Diagnosis:
    """Of a level in which nothing stands in the way of either."""
    return prefill(evidence, times) if times.prompt_heavy else _decode(evidence, times)


def overhead(evidence: Evidence, times: Times) -> tuple[float, Diagnosis] | None:
    """Decode steps far above their floor, even those without a prompt beside them."""
    held, step, decode = evidence.floors, _step_ms(evidence, times), times.decode_share
    if held is None:
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
        return prompt / times.e2e, _far("prefill", floor_ms, prompt, prompt / times.e2e)
    grows = line is None or line[1] <= times.ttft / 2
    if grows if floor_ms is None else floor_ms >= FAR * prompt:
        return None
    return prompt / times.e2e, Diagnosis(
        code="unknown",
        words="The first token comes late, and not for the length of the prompt: it is the way, the tokenizer, or "
        "something else before the engine.",
        evidence=_prefill_evidence(evidence, times, 0.0),
        lever="--metrics with the server's page tells its own TTFT from the client's, --hardware what the prompt takes "
        "(a mixture of experts reads all its weights for a short one). A faster GPU would hardly help.",
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
    return Diagnosis(
        code="prefill-bound",
        words=f"{words}: it is bound by compute.",
        evidence=said,
        lever="Shorter prompts, prefix caching, more FLOPs (a faster GPU, FP8), or prefill on machines of its own. "
        "More memory bandwidth or a larger max_num_seqs does nothing for it.",
    )


def _prefill_evidence(evidence: Evidence, times: Times, waits_ms: float) -> str:
    held, seen = evidence.floors, times.streams
    said = [f"TTFT is {ms(times.ttft)} of {ms(times.e2e)}"]
    if waits_ms:
        said.append(f"{ms(waits_ms)} of it a wait for other prompts")
    if times.lone and held is not None and held.ttft_floor_ms is not None:
        said.append(f"floor {ms(held.ttft_floor_ms)}")
    if times.lone and (line := _line(evidence)) is not None:
        said.append(f"it grows by {ms(line[0])} a thousand prompt tokens, from {ms(max(0.0, line[1]))}")
    if times.load is not None and times.blurred:
        said.append(f"nearly each step reads one; at their floor they would take {share(times.load)} of the time")
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
    held, step = evidence.floors, _step_ms(evidence, times)
    said = f"{share(times.decode_share)} of a request's time is decode"
    wait = times.queue if times.queue is not None else times.streams.wait_ms if times.streams is not None else 0.0
    if wait >= WORTH * times.e2e:
        said += f", {share(wait / times.e2e)} a wait"
    if step is None or held is None or held.itl_floor_ms is None:
        return _unknown_decode(said if step is None else f"{said}, {ms(step)} a step", known=held is not None)
    said += f"; a step takes {ms(step)}, floor {ms(held.itl_floor_ms)} (efficiency {held.itl_floor_ms / step:.2g})"
    if held.itl_floor_ms > step:
        return Diagnosis(
            code="unknown",
            words="A token takes less than a step of this hardware can: its floor says nothing of this server.",
            evidence=said,
            lever="Check --hardware (model, dtype, gpus); or it makes several tokens a step (speculative decoding).",
        )
    words, lever = _bound(evidence)
    if held.itl_floor_ms < NEAR * step:
        words += ", but less than half of a step is that"
        lever += " CUDA graphs, a faster CPU or less communication would cut the rest."
    return Diagnosis(code="decode-bound", words=f"{words}.", evidence=said, lever=lever)


def _unknown_decode(said: str, *, known: bool) -> Diagnosis:
    return Diagnosis(
        code="unknown",
        words="Making the tokens (decode) takes the time; whether memory bandwidth bounds it or overhead is not known.",
        evidence=said,
        lever=("Longer answers" if known else "--hardware MODEL@GPU,dtype=...") + " would tell.",
    )


def _bound(evidence: Evidence) -> tuple[str, str]:
    """What the floor of the step is made of, and what would lower it."""
    held, hardware = evidence.floors, evidence.header.hardware
    kv, weights = (held and held.step_kv_bytes) or 0.0, (held and held.step_weight_bytes) or 0.0
    floor_ms = (held and held.itl_floor_ms) or 0.0
    words = "Making the tokens (decode) takes the time, and its steps are bound by "
    if hardware is not None and 1e3 * (kv + weights) / floors.bytes_per_s(hardware) < BANDWIDTH * floor_ms:
        lever = "More FLOPs (a faster GPU, FP8). More memory bandwidth does nothing for so large a batch."
        return f"{words}compute, as so many tokens are computed at once", lever
    what, fewer = "the weights", "weights in fewer bits (FP8, INT4)"
    if kv > weights:
        what, fewer = "the KV cache", "an FP8 KV cache, shorter contexts"
    lever = f"Fewer bytes a token: {fewer}, speculative decoding; or more memory bandwidth. More FLOPs do nothing."
    return f"{words}memory bandwidth: each reads {what}", lever


def _step_ms(evidence: Evidence, times: Times) -> float | None:
    """An undisturbed step, None where there is none; where events carry several tokens, the time a token: an event may
    be one step or several."""
    each = evidence.whole.tokens.per_event
    if each is not None and each > PER_EVENT:
        return None if evidence.floors is None else evidence.floors.itl_ms
    return None if times.streams is None or times.blurred else times.streams.step_ms
