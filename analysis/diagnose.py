"""At what a level is slow: why, by which numbers, what would change it and what would not.

Rules
- What a mean request waits for is split into the way to the server, its queue, prompts and decode steps: by the
  server's own counters where it has some, else by what the streams show of each other (see `streams`). What neither
  tells is not guessed: it is "unknown", with the flag that would tell.
- A client that was the limit, or a stream in bursts, hides the server: then nothing else is said of it.
- What stands in the way (the network, a queue, a full KV cache, overhead, prompts that stall answers) comes first, that
  which takes most of the time before the others. Only where nothing does, the phase that takes the time is named:
  prefill or decode near what the hardware allows is no fault, and yet what to change for more.
- Prompts that are what costs the server its time are named beside what stands in the way.
- A symptom without a cause is "unknown" where it takes the most time: else what is known is mended first.
- Empty only where no request succeeded: there is nothing to explain.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from analysis import metrics, phases, quantiles
from analysis.diagnosis import PLACES, PLACES_UNLESS, Diagnosis, ms, places, share, times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.diagnosis import Times
    from analysis.evidence import Evidence, Finding
    from analysis.server import Server
    from analysis.streams import Streams

CLIENT = ("client-lag", "client-cpu", "send-lag")  # findings, where they are errors
SHARE = 0.25  # of a request's time: without what takes less, it would not be a third faster
NETWORK_MS = 5.0  # more than a server's own HTTP and tokenizer take for a usual prompt ...
NETWORK_SHARE = 0.25  # ... and so much of TTFT
FULL = 0.95  # of the KV blocks: the rest is less than the next sequence needs
KV_BY_LENGTHS = 0.8  # of what fits, by mean lengths: blocks are held before they are full, and engines keep a reserve
PREEMPTED = 0.01  # of the requests: more than a p99 hides
STALLED = 3.0  # ITL p99 over p50
STALL_MS = 50.0  # ITL p99 that a reader sees: twice the usual speed of reading, the limit of a chat SLO
COINCIDE = 0.6  # of the time in stalls that would not hold a first token by chance, that before first tokens
STEADY = 0.8  # mean over the most of those that run: a level begins and ends with fewer
EVEN = 0.5  # of the spread that the number that decodes at once has by chance
DECILE = 1.28  # standard deviations from the mean to the tenth and the ninetieth percentile
ASIDE = 0.1  # of a request's time, that it stood still while others went on

_Weighed = tuple[float, Diagnosis]  # with the share of a request's time that it takes


def level(evidence: Evidence, findings: Sequence[Finding]) -> tuple[Diagnosis, ...]:
    """Strongest first. `findings` are those of the level."""
    hidden = _client(findings) or _bursts(findings)
    if hidden is not None:
        return (hidden,)
    spent = times(evidence)
    if spent is None:
        return ()
    checks = (_network, _waiting, phases.overhead, phases.late, _stalls)
    found = [one for check in checks if (one := check(evidence, spent)) is not None]
    if not found:
        return (phases.phase(evidence, spent),)
    named = any(one.code == "prefill-bound" for _, one in found)
    if spent.prompt_heavy and not named and not spent.lone and spent.streams is not None:
        found.append((spent.streams.prompt_share, phases.prefill(evidence, spent)))
    ordered = [diagnosis for _, diagnosis in sorted(found, key=lambda one: -one[0])]
    return tuple(one for place, one in enumerate(ordered) if place == 0 or one.code != "unknown")


def _client(findings: Sequence[Finding]) -> Diagnosis | None:
    found = [finding for finding in findings if finding.code in CLIENT and finding.severity == "error"]
    if not found:
        return None
    return Diagnosis(
        code="client",
        words="This client could not keep up: its own delay is in every number, and they say nothing of the server.",
        evidence="; ".join(finding.message for finding in found),
        lever="Mend that first: nothing changed on the server would show.",
    )


def _bursts(findings: Sequence[Finding]) -> Diagnosis | None:
    found = next((finding for finding in findings if finding.code == "bursty-stream"), None)
    if found is None:
        return None
    return Diagnosis(
        code="network",
        words="Tokens arrive in bursts: something on the way holds the stream back and passes it on in pieces.",
        evidence=found.message,
        lever="Switch off response buffering in the proxy (nginx: proxy_buffering off), or measure beside the server. "
        "Until then TTFT and ITL are the proxy's, and nothing tuned in the engine would show.",
    )


def _network(evidence: Evidence, spent: Times) -> _Weighed | None:
    server, way = evidence.server, spent.way
    if server is None or server.client_ttft_ms is None or server.ttft_ms is None or way is None:
        return None
    if way < NETWORK_MS or way < NETWORK_SHARE * server.client_ttft_ms:
        return None
    return way / spent.e2e, Diagnosis(
        code="network",
        words="The first token takes longer than the server knows of: the network, a proxy, or its own HTTP front end "
        "holds it.",
        evidence=f"TTFT is {ms(server.client_ttft_ms)} at the client and {ms(server.ttft_ms)} by the server's own "
        f"count: {ms(way)} lie between",
        lever="Measure beside the server, and without the proxy, to see which it is. A faster GPU or a setting of the "
        "engine would change none of it.",
    )


def _waiting(evidence: Evidence, spent: Times) -> _Weighed | None:
    """Why requests wait: for room in the KV cache, for the prompts before theirs, or for a place among those that run.

    Without the server's count the wait is what other answers did not stand still for, and a wait for a place shows as a
    number that decodes at once and does not change.
    """
    server, seen = evidence.server, spent.streams
    aside = 0.0 if seen is None else seen.aside_ms
    wait = spent.queue if spent.queue is not None else 0.0 if seen is None else seen.wait_ms
    part, lengths = min(1.0, (wait + aside) / spent.e2e), _kv_by_lengths(evidence)
    if server is not None and server.kv_use is not None:
        preempted = (server.preemptions or 0) > PREEMPTED * len(evidence.requests.index)
        full = server.kv_use.max >= FULL and (preempted or part >= SHARE)
    else:
        full = lengths is not None and _with_one_more(evidence, lengths) >= KV_BY_LENGTHS and part >= SHARE
    if full:
        return max(part, SHARE), _kv_limited(evidence, spent, wait)
    if part < SHARE or seen is None:
        return None
    if wait < SHARE * spent.e2e:
        return (part, _unknown_wait(spent, seen)) if server is None and seen.aside_ms > wait else None
    if spent.prompts_fill or (spent.prompt_heavy and not _as_many(server, spent, seen)):
        return part, phases.prefill(evidence, spent, wait)
    if spent.blurred:
        return part, _unknown_limit(spent, seen, wait)
    if spent.queue is None and not _as_many(server, spent, seen):
        return part, _unknown_wait(spent, seen)
    return part, _queueing(evidence, spent, seen, wait)


def _as_many(server: Server | None, spent: Times, seen: Streams) -> bool:
    """Whether about as many run at any time: as many as there are places."""
    if spent.queue is not None and server is not None and server.running is not None:
        return server.running.mean >= STEADY * server.running.max
    others = 0.0 if not spent.in_flight else max(0.0, 1 - seen.decoding / spent.in_flight)
    chance = 2 * DECILE * math.sqrt(seen.decoding * others)  # binomial, of those in flight
    return seen.decoding_high - seen.decoding_low <= EVEN * chance


def _kv_by_lengths(evidence: Evidence) -> float | None:
    """The share of the KV cache that what decodes takes, by its lengths and the memory of the hardware."""
    held = evidence.floors
    if held is None or held.batch is None or held.context is None or not held.kv_tokens:
        return None
    return held.batch * held.context / held.kv_tokens


def _with_one_more(evidence: Evidence, lengths: float) -> float:
    """Of a few long sequences the next one needs much of it."""
    batch = evidence.floors.batch if evidence.floors is not None else None
    return lengths * (batch + 1) / batch if batch else lengths


def _kv_limited(evidence: Evidence, spent: Times, wait: float) -> Diagnosis:
    server = evidence.server
    if server is not None and server.kv_use is not None:
        said = f"the KV cache is up to {share(server.kv_use.max)} used"
        if server.running is not None and server.waiting is not None:
            said += f", {server.running.mean:.3g} run and {server.waiting.mean:.3g} wait"
        if server.preemptions is not None:
            said += f", {server.preemptions} preemptions"
    else:
        said = f"what decodes would fill {share(_kv_by_lengths(evidence) or 0.0)} of the KV cache, by its lengths"
    if spent.streams is not None and spent.streams.aside_ms > ASIDE * spent.e2e:
        said += f"; answers are set aside for {ms(spent.streams.aside_ms)}"
    return Diagnosis(
        code="kv-limited",
        words="The KV cache is full: requests wait until others leave it, or are thrown out and computed again.",
        evidence=f"{said}; {ms(wait)} of {ms(spent.e2e)} in the queue",
        lever="Room for KV: an FP8 KV cache, weights in fewer bits, a larger gpu_memory_utilization, more GPUs; "
        "shorter prompts or answers. A larger max_num_seqs does nothing but preempt more.",
    )


def _queueing(evidence: Evidence, spent: Times, seen: Streams, wait: float) -> Diagnosis:
    server, unless = evidence.server, ""
    lever = PLACES
    use = None if server is None or server.kv_use is None else server.kv_use.max
    if spent.queue is not None and server is not None and server.running is not None and server.waiting is not None:
        most = server.running.max
        said = f"{server.running.mean:.3g} run (at most {most:.0f}) and {server.waiting.mean:.3g} wait"
    else:
        most = seen.decoding_high
        before = "" if spent.in_flight is None else f" of {spent.in_flight:.3g} in flight"
        said = f"{seen.decoding:.3g}{before} decode at once, and always about as many"
    if use is not None:
        said += f"; the KV cache is {share(use)} used"
        lever += " More KV cache does nothing."
    elif (lengths := _kv_by_lengths(evidence)) is not None:
        said += f"; by their lengths they would fill {share(lengths)} of the KV cache that its memory has room for"
        unless = ", unless its KV cache is smaller than its memory allows"
        lever += " --metrics tells whether the KV cache is full: then raising it does nothing."
    else:
        unless = ", unless its KV cache is full"
        lever = PLACES_UNLESS
    return Diagnosis(
        code="queueing",
        words=places(most, unless),
        evidence=f"{said}; {ms(wait)} of {ms(spent.e2e)} in the queue",
        lever=lever,
    )


def _unknown_wait(spent: Times, seen: Streams) -> Diagnosis:
    words = "Much of the time passes before the first token; whether in a queue, for the prompt or on the way is not "
    if seen.aside_ms >= ASIDE * spent.e2e:
        words = "Requests wait, and answers are set aside while others go on: a full KV cache does that, but it is not "
    return Diagnosis(
        code="unknown",
        words=f"{words}known.",
        evidence=f"TTFT is {ms(spent.ttft)} of {ms(spent.e2e)}, and other answers went on for {ms(seen.wait_ms)} of "
        f"it; {seen.decoding_low:.0f} to {seen.decoding_high:.0f} decode at once",
        lever="--metrics with the server's page would tell: queue, prefill, KV cache or network.",
    )


def _unknown_limit(spent: Times, seen: Streams, wait: float) -> Diagnosis:
    return Diagnosis(
        code="unknown",
        words="Requests wait for a place or for the prompts before theirs; which it is, is not known.",
        evidence=f"{ms(wait)} of {ms(spent.e2e)} in the queue; {seen.decoding:.3g} decode at once, and nearly each "
        "step reads a prompt too",
        lever="--hardware MODEL@GPU,dtype=... would tell how much of the time the prompts take.",
    )


def _stalls(evidence: Evidence, spent: Times) -> _Weighed | None:
    """Answers that stand still now and then. Where prompts are what takes the server's time, that is named instead."""
    seen = spent.streams
    if seen is None or spent.lone or spent.prompt_heavy:
        return None
    gaps = metrics.itl_ms(evidence.requests, evidence.sampled)
    p50, p99 = quantiles.point(gaps, 0.5), quantiles.point(gaps, 0.99)
    part = seen.stolen_ms / spent.e2e
    if p50 is None or p99 is None or p99 < STALLED * p50 or (p99 < STALL_MS and part < SHARE):
        return None
    said = f"ITL p99 is {ms(p99)}, p50 {ms(p50)}"
    other = 1 - min(1.0, 2 * seen.firsts)
    if seen.by_prompts is None or 1 - seen.by_prompts > (1 - COINCIDE) * other:
        return max(part, seen.aside_ms / spent.e2e), _unknown_stalls(said, spent, seen)
    return part, Diagnosis(
        code="prefill-steals-decode",
        words="Answers stand still while the server reads the prompts of other requests.",
        evidence=f"{said}; {share(seen.by_prompts)} of the time in long gaps is before first tokens of other requests; "
        f"it is {ms(seen.stolen_ms)} of {ms(spent.e2e)}",
        lever="A smaller max_num_batched_tokens (chunked prefill: shorter stalls, later first tokens), prefix caching, "
        "or prefill on machines of its own. More memory bandwidth does nothing for it.",
    )


def _unknown_stalls(said: str, spent: Times, seen: Streams) -> Diagnosis:
    return Diagnosis(
        code="unknown",
        words="Answers stand still now and then, and not only for other requests' prompts; for what is not known.",
        evidence=f"{said}; {share(seen.by_prompts or 0.0)} of the time in long gaps is before first tokens of other "
        f"requests, of which there are {seen.firsts:.2g} a step anyhow; {ms(seen.aside_ms)} of {ms(spent.e2e)} while "
        "others went on",
        lever="--metrics counts preemptions. Else the server's log and host: pauses of its garbage collector, other "
        "work on its GPU or CPU, the network.",
    )
