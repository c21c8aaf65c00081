"""One measured level of a run: its frozen Level, as it stands in summary.json.

Numbers are rounded to 6 significant digits once, here, so that the file, the tables and the plots show the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from analysis import blocks, decision, metrics, parts, quantiles, records, server, steady, validity, verdicts, window
from analysis.client_findings import cpu_share
from analysis.diagnose import level as diagnose
from analysis.diagnosis import Diagnosis  # noqa: TC001 - a field's type is read when the struct is made
from analysis.efficiency import Floors, of_level
from analysis.evidence import Evidence, Finding, changing
from analysis.pace import Schedule, schedule
from analysis.rounding import rounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.records import Floats, Requests, Run


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
    """A level as in summary.json.

    `schedule` is of the open loop, `classes` of a mix, `turns` of conversations, `floors` of hardware that is known.
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
    server: server.Server | None = None
    floors: Floors | None = None
    diagnoses: tuple[Diagnosis, ...] = ()


def summarize_level(run: Run, level: int, samples: Sequence[server.Sample] = ()) -> Level:
    """One level of a run, with all its samples. While it goes on, `records.read(directory, only=level)` is enough."""
    return measure(run, level, samples)[0]


def measure(run: Run, level: int, samples: Sequence[server.Sample] = ()) -> tuple[Level, verdicts.Held]:
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
        whole=whole, samples=samples, server=server.of_level(samples, run.ended, level, requests, tokens),
        floors=of_level(header, requests, tokens, held),
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
            server=evidence.server,
            floors=evidence.floors,
            diagnoses=diagnose(evidence, found),
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


def over_saturated(level: Level) -> bool:
    return any(finding.code == "over-saturated" for finding in level.findings)


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
        bare = level.floors and msgspec.structs.replace(level.floors, ttft_ms=None, ttft_efficiency=None)
        turns = level.turns and parts.Turns(first=_bare(level.turns.first), later=_bare(level.turns.later))
        classes = tuple(_bare(part) for part in level.classes)
        level = msgspec.structs.replace(_bare(level), classes=classes, turns=turns, floors=bare)
    return rounded(level)


def _bare(part: Any) -> Any:
    """A level or a part of one, with nothing of its latencies but how many there were."""
    latencies = {name: getattr(part, name) for name in _OF_THE_WHOLE if name.endswith("_ms")}
    counts = {name: quantiles.Distribution(n=latency.n) for name, latency in latencies.items()}
    return msgspec.structs.replace(part, **counts)
