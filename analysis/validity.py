"""What is wrong with a level, or must be known to read its numbers: coded findings, each with what to do.

An error makes the level INVALID: its numbers are not the server's. The limits are those of method.md, "Validity".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from analysis import metrics, quantiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from analysis.quantiles import Distribution
    from analysis.records import Bools, Ended, Floats, Header, Planned, Requests
    from analysis.window import Flow

FAILURES_SHARE = 0.001  # failures are the server's answer: a warning above this
SURVIVORS_SHARE = 0.5  # an error when the statistics cover less than this of what was sent
CORRELATION = 0.3  # of failing with the wanted output length: worth a word above this
LENGTH_TOLERANCE = 0.01  # a length is as wanted within this share of it
LENGTH_SHARE = 0.01  # a warning when more requests than this miss their length
CACHED_SHARE = 0.01  # of prompt tokens, beyond the chat template's own head
TEMPLATE_TOKENS = 64  # of a chat template whose size is not known
PER_EVENT = 1.05  # tokens an event, above which ITL is not a gap between tokens
BURST_GAP_MS = 0.1  # B37: no server decodes that fast; such gaps were made on the way
BURST_SHARE = 0.1
BURST_TTFT_SHARE = 0.9  # B37: nearly all of E2E is TTFT, with more than BURST_EVENTS events ...
BURST_EVENTS = 8
BURST_MEAN_GAP_MS = 1.0  # ... and under a millisecond between them: a long queue alone does not look like that
BOUND_SHARE = 0.01
READ_LAG_MS = 1.0  # read lag p99 at most this ...
READ_LAG_SHARE = 0.05  # ... or this share of the median ITL, whichever is more
CPU_SHARE = 0.8  # of a core, a process
SEND_LAG_MS = 1.0
LITTLE = 0.05
LITTLE_PER_SLOT = 10  # requests a slot that a window must see end before Little's law can accuse
CLOCK_STEP_US = 1000
MESSAGE_CHARS = 200  # of a server's own words

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


class Finding(msgspec.Struct, frozen=True):
    code: str
    severity: Severity
    message: str


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one level. `flow` is None where there is no window; `itl_ms` are the gaps of the ok requests."""

    header: Header
    planned: Planned
    ended: Ended | None
    requests: Requests
    flow: Flow | None
    itl_ms: Floats
    itl: Distribution

    @property
    def sampled(self) -> Bools:
        return self.requests.measured & self.requests.ok


def findings(evidence: Evidence) -> tuple[Finding, ...]:
    """All findings of a level, the severest first."""
    found = [finding for check in CHECKS if (finding := check(evidence)) is not None]
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))


def validity(found: tuple[Finding, ...]) -> Literal["VALID", "INVALID"]:
    return "INVALID" if any(finding.severity == "error" for finding in found) else "VALID"


def cpu_share(ended: Ended | None) -> float | None:
    """Of one core, what the client's process took, the busiest where there are several."""
    if ended is None or ended.cpu_us is None or ended.end_us <= ended.start_us:
        return None
    return ended.cpu_us / (ended.end_us - ended.start_us)


def _failures(evidence: Evidence) -> Finding | None:
    failed = evidence.requests.measured & evidence.requests.failed
    sent = int(evidence.requests.measured.sum())
    if not sent or failed.sum() / sent <= FAILURES_SHARE:
        return None
    return Finding("failures", "warning", f"{failed.sum()} of {sent} requests failed: {_errors(evidence, failed)}")


def _survivors(evidence: Evidence) -> Finding | None:
    requests = evidence.requests
    finished = requests.measured & ~requests.cancelled
    ok, sent = int(evidence.sampled.sum()), int(finished.sum())
    if not sent:
        warmup = ~requests.measured & requests.failed
        why = f" ({warmup.sum()} failed in the warm-up: {_errors(evidence, warmup)})" if warmup.any() else ""
        return Finding(
            "survivors", "error", f"no measured request finished{why}: give the level more time (--duration)"
        )
    if ok >= SURVIVORS_SHARE * sent:
        return None
    failed = finished & requests.failed
    if not ok:
        return Finding("survivors", "error", f"none of {sent} requests succeeded: {_errors(evidence, failed)}")
    longer = ""
    wanted = requests.want_output_tokens
    known = finished & ~np.isnan(wanted)
    varied = known.any() and np.ptp(wanted[known]) > 0 and np.ptp(failed[known].astype(np.int64)) > 0
    if varied and abs(np.corrcoef(failed[known], wanted[known])[0, 1]) > CORRELATION:
        long, short = wanted[known & failed].mean(), wanted[known & requests.ok].mean()
        longer = (
            f"; failures correlate with output length ({long:.0f} tokens wanted where failed, {short:.0f} where ok)"
        )
    message = f"the statistics cover {_percent(ok / sent)} of the requests{longer}: lower the load or mend the server"
    return Finding("survivors", "error", message)


def _input_length(evidence: Evidence) -> Finding | None:
    requests = evidence.requests
    off = _off(requests.prompt_tokens, requests.want_input_tokens, evidence.sampled)
    if off is None:
        return None
    how = "give --tokenizer FILE for exact lengths, or read the results at the server's count"
    return Finding("input-length", "warning", f"prompts are not as long as wanted: {off}; {how}")


def _output_length(evidence: Evidence) -> Finding | None:
    requests = evidence.requests
    off = _off(requests.output_tokens, requests.want_output_tokens, evidence.sampled)
    if off is None:
        return None
    dropped = "ignore_eos" in _dropped(evidence.header)
    why = "the server refused ignore_eos" if dropped else "it stops early, or caps the output"
    return Finding(
        "output-length", "warning", f"outputs are not as long as wanted: {off}; {why}: compare at equal length"
    )


def _cached_prompts(evidence: Evidence) -> Finding | None:
    requests = evidence.requests
    template = evidence.header.server.get("template_tokens")
    if template is None:
        template = TEMPLATE_TOKENS if evidence.header.api == "chat" else 0
    chosen = evidence.sampled & (requests.prompt_tokens > 0)
    beyond = np.maximum(np.nan_to_num(requests.cached_tokens[chosen]) - template, 0).sum()
    if beyond <= CACHED_SHARE * requests.prompt_tokens[chosen].sum():
        return None
    share = _percent(beyond / requests.prompt_tokens[chosen].sum())
    message = f"{share} of the prompt tokens came from the server's prefix cache: TTFT is better than for fresh prompts"
    return Finding("cached-prompts", "warning", f"{message}; use fresh prompts, or switch the cache off")


def _multi_token_events(evidence: Evidence) -> Finding | None:
    each = metrics.per_event(evidence.requests, evidence.sampled)
    if each is None or each <= PER_EVENT:
        return None
    message = f"events carry {each:.2f} tokens: ITL is the gap between events; TPOT is the time a token"
    return Finding("multi-token-events", "info", message)


def _bursty_stream(evidence: Evidence) -> Finding | None:
    requests, gaps = evidence.requests, evidence.itl_ms
    if not len(gaps):
        return None
    share = float(np.mean(gaps < BURST_GAP_MS))
    many = evidence.sampled & (requests.events > BURST_EVENTS)
    ttft, e2e = metrics.ttft_ms(requests)[many], metrics.e2e_ms(requests)[many]
    late = (ttft > BURST_TTFT_SHARE * e2e) & (e2e - ttft < BURST_MEAN_GAP_MS * (requests.events[many] - 1))
    if share > BURST_SHARE:
        what = f"{_percent(share)} of the gaps are under {BURST_GAP_MS} ms"
    elif len(late) and late.mean() > BURST_SHARE:
        what = f"in {_percent(late.mean())} of the requests nearly all output comes at the end"
    else:
        return None
    message = f"the stream arrives in bursts ({what}): ITL says little; look for a buffering proxy in between"
    return Finding("bursty-stream", "warning", message)


def _hidden_reasoning(evidence: Evidence) -> Finding | None:
    hidden = metrics.hidden_tokens(evidence.requests)[evidence.sampled]
    if not hidden.any():
        return None
    total = evidence.requests.output_tokens[evidence.sampled]
    message = (
        f"{hidden.sum():.0f} of {np.nansum(total):.0f} output tokens are reasoning that the server counts and does not "
        "stream: rates and TPOT are of the visible tokens, TTFT holds the reasoning"
    )
    return Finding("hidden-reasoning", "warning", message)


def _no_answer(evidence: Evidence) -> Finding | None:
    silent = np.isnan(evidence.requests.answer_event[evidence.sampled])
    if not silent.any():
        return None
    message = (
        f"{silent.sum()} of {len(silent)} requests ended without answer text (in their reasoning, or in tool calls)"
    )
    return Finding("no-answer", "info", f"{message}: TTFAT leaves them out; allow more output tokens")


def _no_usage(evidence: Evidence) -> Finding | None:
    sources = evidence.requests.tokens_from[evidence.sampled]
    without = sources[sources != "usage"]
    if not len(without):
        return None
    by_events = np.mean(without != "tokenizer") > 0.5
    how = (
        "counted as one token an event: an estimate; give --tokenizer FILE" if by_events else "counted by the tokenizer"
    )
    return Finding(
        "no-usage", "warning", f"{len(without)} of {len(sources)} answers came without usage: tokens are {how}"
    )


def _option_dropped(evidence: Evidence) -> Finding | None:
    dropped = _dropped(evidence.header)
    if not dropped:
        return None
    message = f"the server refuses {', '.join(dropped)}: the requests went without, so lengths or counts may differ"
    return Finding("option-dropped", "warning", message)


def _clock_user(evidence: Evidence) -> Finding | None:
    if evidence.header.clock != "user":
        return None
    message = "no kernel time stamps: times are when this client read, its own delay included; see read lag"
    return Finding("clock-user", "warning", message)


def _insecure_tls(evidence: Evidence) -> Finding | None:
    if evidence.header.options.get("insecure") is not True:
        return None
    return Finding("insecure-tls", "warning", "TLS certificates were not checked (--insecure): prefer --ca-file")


def _stamp_bounds(evidence: Evidence) -> Finding | None:
    share = metrics.bound_share(evidence.requests, evidence.requests.measured)
    if share is None or share <= BOUND_SHARE:
        return None
    message = (
        f"{_percent(share)} of the stamps are only upper bounds: the client read late; use --workers or a free core"
    )
    return Finding("stamp-bounds", "warning", message)


def _client_lag(evidence: Evidence) -> Finding | None:
    """Over requests, of the largest lag of each: stricter than over reads, which the rows do not keep."""
    requests = evidence.requests
    bounds = metrics.bound_share(requests, requests.measured)
    if evidence.header.clock == "kernel" and (bounds is None or bounds < BOUND_SHARE):
        return None
    lag = requests.read_lag_us[requests.measured & ~np.isnan(requests.read_lag_us)] / 1e3
    p99 = quantiles.point(lag, 0.99)
    limit = READ_LAG_MS if evidence.itl.p50 is None else max(READ_LAG_MS, READ_LAG_SHARE * evidence.itl.p50)
    if p99 is None or p99 <= limit:
        return None
    message = f"the client read its sockets {p99:.3g} ms late (p99; limit {limit:.3g} ms), so it measured itself"
    return Finding("client-lag", "error", f"{message}: use --workers, a free core, or fewer streams")


def _client_cpu(evidence: Evidence) -> Finding | None:
    share = cpu_share(evidence.ended)
    if share is None or share <= CPU_SHARE:
        return None
    message = f"the client used {_percent(share)} of a core (limit {_percent(CPU_SHARE)}): use --workers"
    return Finding("client-cpu", "error", message)


def _send_lag(evidence: Evidence) -> Finding | None:
    requests = evidence.requests
    if evidence.planned.rate_per_s is None:
        return None
    lag = metrics.send_lag_ms(requests)[requests.measured]
    p99 = quantiles.point(lag[~np.isnan(lag)], 0.99)
    if p99 is None or p99 <= SEND_LAG_MS:
        return None
    message = f"requests were sent {p99:.3g} ms after they were due (p99; limit {SEND_LAG_MS:.3g} ms)"
    if evidence.header.options.get("max_concurrency") is not None:
        return Finding("send-lag", "warning", f"{message}: they waited for --max-concurrency, and TTFT counts it")
    return Finding("send-lag", "error", f"{message}: the client did not keep the schedule; use --workers")


def _little(evidence: Evidence) -> Finding | None:
    """In flight N against its nominal value, and against throughput * residence (X*R).

    Between the first and the last measured start every slot is busy, so N has no end effect in the closed loop. X*R
    has: requests in flight at one end of the window and not at the other, up to one residence a slot. That share is
    allowed on top. An error only where the window is long and ended by time, for a slot may run out of requests before;
    and not where slots wait on purpose, after a failure or for --max-rps.
    """
    flow, nominal = evidence.flow, evidence.planned.concurrency
    if flow is None or not flow.concurrency or flow.residence_s is None:
        return None
    n, product = flow.concurrency, flow.ended / flow.length_s * flow.residence_s
    per_slot = flow.ended / n
    by_time = evidence.ended is not None and evidence.ended.ended_by == "duration"
    failing = bool(evidence.requests.failed.any())
    severity: Severity = "error" if by_time and per_slot >= LITTLE_PER_SLOT and not failing else "warning"
    throttled = evidence.header.options.get("max_rps") is not None
    if nominal is not None and not throttled and abs(n - nominal) > LITTLE * nominal:
        message = f"{n:.3g} requests were in flight, not {nominal}: slots stood idle, or rows are lost"
        return Finding("little", severity, f"{message}; use --workers or longer outputs")
    if abs(n - product) > (LITTLE + 1 / per_slot) * n:
        message = f"{n:.3g} in flight, but throughput times latency is {product:.3g}: the level is not steady"
        return Finding("little", severity, f"{message}, or rows are lost; measure longer")
    return None


def _clock_step(evidence: Evidence) -> Finding | None:
    step_us = None if evidence.ended is None else evidence.ended.clock_step_us
    if step_us is None or abs(step_us) <= CLOCK_STEP_US:
        return None
    message = f"the wall clock stepped by {step_us / 1e3:.3g} ms in the level, and the kernel's stamps with it"
    return Finding("clock-step", "error", f"{message}: hold time synchronisation still and measure again")


def _few_samples(evidence: Evidence) -> Finding | None:
    n = int(evidence.sampled.sum())
    missing = [q for q in (0.5, 0.9, 0.95, 0.99) if n < quantiles.min_n(q)]
    if not n or not missing:
        return None
    needs = ", ".join(f"p{q * 100:.0f} {quantiles.min_n(q)}" for q in missing)
    message = f"a sample of {n} is too small for some percentiles, which are null (requests needed: {needs})"
    return Finding("few-samples", "info", f"{message}; use --requests {quantiles.min_n(missing[-1])} or more time")


def _errors(evidence: Evidence, failed: Bools) -> str:
    kinds, counts = np.unique(evidence.requests.error[failed], return_counts=True)
    most = np.argsort(-counts, kind="stable")
    shown = ", ".join(f"{counts[i]} {kinds[i] or 'unknown'}" for i in most)
    message = evidence.requests.messages.get(str(kinds[most[0]]), "")
    return f"{shown} ({message[:MESSAGE_CHARS]})" if message else shown


def _off(got: Floats, wanted: Floats, chosen: Bools) -> str | None:
    """How far the lengths are from what was wanted, in words; None where they are as wanted or unknown."""
    chosen = chosen & ~np.isnan(got) & ~np.isnan(wanted)
    residual = (got - wanted)[chosen]
    misses = np.abs(residual) > LENGTH_TOLERANCE * wanted[chosen]
    if not len(residual) or misses.mean() <= LENGTH_SHARE:
        return None
    spread = f"from {residual.min():+.0f} to {residual.max():+.0f}, mean {residual.mean():+.1f} tokens"
    return f"{_percent(misses.mean())} of {len(residual)} are off by more than {_percent(LENGTH_TOLERANCE)} ({spread})"


def _dropped(header: Header) -> tuple[str, ...]:
    return tuple(map(str, header.server.get("dropped") or ()))


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


CHECKS: tuple[Callable[[Evidence], Finding | None], ...] = (
    _survivors,
    _client_lag,
    _client_cpu,
    _send_lag,
    _little,
    _clock_step,
    _failures,
    _input_length,
    _output_length,
    _cached_prompts,
    _bursty_stream,
    _hidden_reasoning,
    _no_usage,
    _option_dropped,
    _stamp_bounds,
    _clock_user,
    _insecure_tls,
    _multi_token_events,
    _no_answer,
    _few_samples,
)
