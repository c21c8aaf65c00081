"""One frozen Summary of a run: the only source of summary.json, the tables and the plots.

Numbers are rounded to 6 significant digits once, here, so that all of them show the same.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from analysis import blocks, decision, metrics, parts, quantiles, records, steady, validity, verdicts, window
from analysis.answer import SERVERS_OWN, Answer, Trial, answer
from analysis.client_findings import cpu_share
from analysis.curve import GAIN, Curve, Measured, curve
from analysis.evidence import Evidence, Finding, changing
from analysis.pace import Schedule, schedule

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from analysis.records import Floats, Requests, Run

DIGITS = 6
Result = TypeVar("Result", bound=msgspec.Struct)


class Achieved(msgspec.Struct, frozen=True, kw_only=True):
    """In the window. `rate_per_s` counts every request sent, later turns of a conversation too."""

    concurrency: float | None
    rate_per_s: float | None


class Throughput(parts.Rates, frozen=True, kw_only=True):
    output_tokens_per_s_ci95: tuple[float | None, float | None]
    whole_run_output_tokens_per_s: float | None
    per_user_tokens_per_s: float | None


class ReadLag(msgspec.Struct, frozen=True, kw_only=True):
    """Over the measured requests, of the largest lag of each."""

    p50: float | None
    p99: float | None
    max: float | None


class SendLag(msgspec.Struct, frozen=True, kw_only=True):
    p99: float | None


class Client(msgspec.Struct, frozen=True, kw_only=True):
    clock: Literal["kernel", "user"]
    read_lag_ms: ReadLag
    send_lag_ms: SendLag
    bound_share: float | None
    cpu_share: float | None


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A level as in summary.json. `server` and `floors` are not filled yet.

    `schedule` is of the open loop, `classes` of a mix, `turns` of conversations.
    """

    level: int
    concurrency: int | None
    rate_per_s: float | None
    speed: float | None
    validity: Literal["VALID", "INVALID"]
    findings: tuple[Finding, ...]
    requests: parts.Counts
    window_s: float | None
    achieved: Achieved
    schedule: Schedule | None
    throughput: Throughput
    goodput: verdicts.Goodput | None
    ttft_ms: quantiles.Distribution
    ttft_sent_ms: quantiles.Distribution
    ttfat_ms: quantiles.Distribution
    itl_ms: quantiles.Distribution
    tpot_ms: quantiles.Distribution
    e2e_ms: quantiles.Distribution
    tokens: parts.Tokens
    phases: parts.Phases | None
    classes: tuple[parts.Part, ...]
    turns: parts.Turns | None
    verdicts: tuple[decision.Verdict, ...]
    client: Client
    server: None = None
    floors: None = None


class RunPhases(parts.Phases, frozen=True, kw_only=True):
    """Of `level`, the lightest valid one, where least waits in the server's queue."""

    level: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """summary.json: the facts of the header, then the levels."""

    format: int
    loadgen: str
    started_at: str
    target: str
    model: str | None
    api: str
    workload: records.Workload
    arrivals: str | None
    seed: int
    slo: tuple[str, ...] | None
    clock: Literal["kernel", "user"]
    host: dict[str, Any]
    server: dict[str, Any]
    options: dict[str, Any]
    phases: RunPhases | None
    seeks: Literal["verdict", "concurrency", "rate"] | None
    answer: Answer | None
    curve: Curve
    levels: tuple[Level, ...]


def summarize(directory: Path) -> Summary:
    """The run in `directory`. Raises ValueError where it cannot be read (see `records.read`)."""
    run = records.read(directory)
    pairs = [_level(run, level) for level in sorted(run.requests | run.ended)]
    levels = [level for level, _ in pairs]
    if run.cut_rows and levels:
        cut = Finding("cut-row", "info", "the last row of requests.jsonl was cut by a crash and is left out")
        levels[-1] = msgspec.structs.replace(levels[-1], findings=(*levels[-1].findings, cut))
    facts = {name: getattr(run.header, name) for name in Summary.__struct_fields__ if name not in _MADE}
    said = None if run.header.seeks is None else answer(run.header, _trials(run, pairs))
    whole = curve([_measured(level, run.header) for level in levels])
    if said is not None:  # levels at one load say more together
        whole = msgspec.structs.replace(whole, holds=said.holds, fails=said.fails)
    return Summary(
        **facts,
        phases=_lightest(levels),
        answer=None if said is None else _rounded(said),
        curve=_rounded(whole),
        levels=tuple(levels),
    )


_MADE = ("phases", "answer", "curve", "levels")


def trials(run: Run) -> list[Trial]:
    """What the levels of `run` say that have come to an end, in their order, to one that decides on its levels."""
    return _trials(run, [_level(run, level) for level in sorted(run.requests)])


def _trials(run: Run, pairs: Sequence[tuple[Level, verdicts.Held]]) -> list[Trial]:
    found = []
    for level, held in pairs:
        ended, load = run.ended.get(level.level), asked(level)
        if ended is None or ended.ended_by == "interrupt" or load is None:
            continue
        kept_up = ended.ended_by != "over-saturated"
        why_not = _why_not(level, kept_up=kept_up)
        found.append(Trial(level=level.level, load=load, held=held, kept_up=kept_up, why_not=why_not))
    return found


def _why_not(level: Level, *, kept_up: bool) -> str | None:
    """The finding that makes it useless for an answer; None where what is wrong is the server's own doing."""
    silent = kept_up and not level.requests.ok
    for finding in level.findings:
        if finding.severity == "error" and (silent or finding.code not in SERVERS_OWN):
            return f"{finding.code}: {finding.message}"
    return None


def summarize_level(run: Run, level: int) -> Level:
    """One level of a run. While the run goes on, `records.read(directory, only=level)` reads enough for it."""
    return _level(run, level)[0]


def _level(run: Run, level: int) -> tuple[Level, verdicts.Held]:
    header, planned, ended = run.header, run.header.planned(level), run.ended.get(level)
    requests = run.requests.get(level, records.NO_REQUESTS)
    tokens = metrics.event_tokens(requests)
    settled = _settled(requests, tokens, header, planned)
    requests, held = (requests, None) if settled is None else (settled.requests, settled.window)
    flow = None if held is None else window.flow(requests, tokens, held)
    whole = parts.whole(requests, tokens, held, flow, header)
    kept = schedule(requests, ended) if planned.open_loop else None
    evidence = Evidence(
        header=header, planned=planned, ended=ended, requests=requests, flow=flow, schedule=kept, settled=settled,
        whole=whole,
    )  # fmt: skip
    found = validity.findings(evidence)
    judged = verdicts.Held(requests=requests, tokens=tokens, steady=held)
    stated = verdicts.of_levels(header, [judged])
    valid = validity.validity(found)
    if valid == "INVALID":
        stated = {name: verdicts.withheld(statement) for name, statement in stated.items()}
    made = _shown(
        Level(
            level=level,
            concurrency=planned.concurrency,
            rate_per_s=planned.rate_per_s,
            speed=planned.speed,
            validity=valid,
            findings=found,
            window_s=None if flow is None else flow.length_s,
            achieved=Achieved(
                concurrency=None if flow is None else flow.concurrency,
                rate_per_s=None if flow is None else flow.starts_per_s,
            ),
            schedule=kept,
            throughput=_throughput(requests, tokens, held, flow, whole.throughput, planned.concurrency),
            goodput=stated.get("", verdicts.NOTHING).goodput,
            classes=parts.classes(requests, tokens, held, header, stated),
            turns=parts.turns(requests, tokens, held, header),
            verdicts=stated.get("", verdicts.NOTHING).verdicts,
            client=_client(header, ended, requests),
            **{name: getattr(whole, name) for name in _OF_THE_WHOLE},
        )
    )
    return made, judged


def _settled(
    requests: Requests, tokens: Floats, header: records.Header, planned: records.Planned
) -> steady.Settled | None:
    found = window.find(requests, open_loop=planned.open_loop)
    if found is None or changing(header, planned):
        return None if found is None else steady.Settled(requests=requests, window=found)
    return steady.settle(requests, tokens, found, open_loop=planned.open_loop)


_OF_THE_WHOLE = set(parts.Part.__struct_fields__) - {"name", "throughput", "goodput", "verdicts"}


def write(summary: Summary, path: Path) -> None:
    """Strict, indented JSON, the same bytes for the same summary."""
    path.write_text(dumps(summary), encoding="ascii")


def dumps(summary: Summary) -> str:
    """ASCII only: whatever a server put into a name or a message cannot steer a terminal."""
    return json.dumps(msgspec.to_builtins(summary), indent=2, allow_nan=False) + "\n"


def exit_code(summary: Summary) -> int:
    """4 where a level is INVALID or there is none; 1 where a verdict is FAIL, 3 where one is UNDECIDED; else 0.

    Where there is an answer, of that alone.
    """
    if summary.answer is not None:
        return {"PASS": 0, "FAIL": 1, "UNDECIDED": 3, "INVALID": 4}[summary.answer.verdict]
    if not summary.levels or any(level.validity == "INVALID" for level in summary.levels):
        return 4
    stated = [statement for level in summary.levels for _, statement in statements(level)]
    found = {one.verdict for statement in stated for one in statement.verdicts}
    return 1 if "FAIL" in found else 3 if "UNDECIDED" in found else 0


def statements(level: Level) -> list[tuple[str, verdicts.Statement]]:
    """Of the level, at "", and of the classes of its mix, at their names."""
    held: list[tuple[str, Level | parts.Part]] = [("", level), *((part.name, part) for part in level.classes)]
    return [(name, verdicts.Statement(goodput=one.goodput, verdicts=one.verdicts)) for name, one in held]


def load(level: Level) -> str:
    """What the level asked of the server: `8` requests at once, `4/s`, or a trace at `2x` its speed."""
    if level.concurrency is not None:
        return str(level.concurrency)
    if level.speed is not None:
        return f"{level.speed:g}x"
    return f"level {level.level}" if level.rate_per_s is None else f"{level.rate_per_s:g}/s"


def asked(level: Level) -> float | None:
    """What `load` names, as a number."""
    return next((float(x) for x in (level.concurrency, level.speed, level.rate_per_s) if x is not None), None)


def saturated(levels: Sequence[Level]) -> bool:
    """Whether the last step up in concurrency gained, per doubling, under 5 % of the largest output tokens/s.

    Only a valid pair of levels can say so: a client or a server that fails looks saturated too.
    """
    if len(levels) < 2:
        return False
    before, last = levels[-2:]
    rates = [level.throughput.output_tokens_per_s for level in levels]
    if rates[-1] is None or rates[-2] is None or "INVALID" in (before.validity, last.validity):
        return False
    if before.concurrency is None or last.concurrency is None or last.concurrency <= before.concurrency:
        return False
    gain = (rates[-1] - rates[-2]) / math.log2(last.concurrency / before.concurrency)
    return gain < GAIN * max(rate for rate in rates if rate is not None)


def _lightest(levels: Sequence[Level]) -> RunPhases | None:
    """Levels of one run are all of one kind: by concurrency, by rate, or by speed."""
    for level in sorted(levels, key=lambda level: asked(level) or math.inf):
        if level.validity == "VALID" and level.phases is not None:
            return RunPhases(level=level.level, prefill_share=level.phases.prefill_share, heavy=level.phases.heavy)
    return None


def _throughput(
    requests: Requests,
    tokens: Floats,
    held: window.Window | None,
    flow: window.Flow | None,
    rates: parts.Rates,
    users: int | None,
) -> Throughput:
    """Per user: over the slots of the closed loop, in the open loop over the requests in flight."""
    share = None if flow is None else users or flow.concurrency
    return Throughput(
        **msgspec.structs.asdict(rates),
        output_tokens_per_s_ci95=(None, None) if held is None else _rate_ci95(requests, tokens, held),
        whole_run_output_tokens_per_s=window.whole_run_tokens_per_s(requests, tokens),
        per_user_tokens_per_s=None if flow is None or not share else flow.output_tokens_per_s / share,
    )


def _rate_ci95(requests: Requests, tokens: Floats, held: window.Window) -> tuple[float, float]:
    low, high = blocks.mean_interval(window.block_rates(requests, tokens, held))
    return max(0.0, low), high


def _client(header: records.Header, ended: records.Ended | None, requests: Requests) -> Client:
    read = quantiles.distribution(requests.read_lag_us[requests.measured] / 1e3)
    send = quantiles.distribution(metrics.send_lag_ms(requests)[requests.measured])
    return Client(
        clock=header.clock,
        read_lag_ms=ReadLag(p50=read.p50, p99=read.p99, max=read.max),
        send_lag_ms=SendLag(p99=send.p99),
        bound_share=metrics.bound_share(requests, requests.measured),
        cpu_share=cpu_share(ended),
    )


def _shown(level: Level) -> Level:
    """Rounded; of an over-saturated level no latency, which would be a function of its length."""
    if over_saturated(level):
        turns = level.turns and parts.Turns(first=_bare(level.turns.first), later=_bare(level.turns.later))
        classes = tuple(_bare(part) for part in level.classes)
        level = msgspec.structs.replace(_bare(level), classes=classes, turns=turns)
    return _rounded(level)


def _bare(part: Any) -> Any:
    """A level or a part of one, with nothing of its latencies but how many there were."""
    latencies = {name: getattr(part, name) for name in _OF_THE_WHOLE if name.endswith("_ms")}
    counts = {name: quantiles.Distribution(n=latency.n) for name, latency in latencies.items()}
    return msgspec.structs.replace(part, **counts)


def over_saturated(level: Level) -> bool:
    return any(finding.code == "over-saturated" for finding in level.findings)


def _measured(level: Level, header: records.Header) -> Measured:
    planned = header.planned(level.level)
    return Measured(
        level=level.level,
        concurrency=level.concurrency,
        load=asked(level),
        valid=level.validity == "VALID",
        over_saturated=over_saturated(level),
        one_rate=planned.open_loop and not changing(header, planned),
        tokens_per_s=level.throughput.output_tokens_per_s,
        tokens_per_s_ci95=level.throughput.output_tokens_per_s_ci95,
        verdicts=frozenset(verdict.verdict for verdict in level.verdicts),
    )


def _rounded(result: Result) -> Result:
    """The struct, with its numbers as they are shown."""
    return msgspec.convert(_digits(msgspec.to_builtins(result)), type(result))


def _digits(value: Any) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is no result")
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _digits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_digits(item) for item in value]
    return value
