"""One frozen Summary of a run: the only source of summary.json, the tables and the plots."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from analysis import parts, records, server, verdicts
from analysis.answer import SERVERS_OWN, Answer, Trial, answer
from analysis.curve import GAIN, Curve, Measured, curve
from analysis.diagnose_run import whole_run
from analysis.diagnosis import Diagnosis  # noqa: TC001 - a field's type is read when the struct is made
from analysis.evidence import Finding, changing
from analysis.hardware import Hardware  # noqa: TC001 - a field's type is read when the struct is made
from analysis.measured import Level, asked, measure, over_saturated, statements
from analysis.rounding import rounded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from analysis.records import Run


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
    hardware: Hardware | None
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
    diagnoses: tuple[Diagnosis, ...]
    levels: tuple[Level, ...]


def summarize(directory: Path, hardware: Hardware | None = None) -> Summary:
    """The run in `directory`, on `hardware` where that is given, whatever its header says of it.

    Raises ValueError where it cannot be read (see `records.read`).
    """
    run = records.read(directory)
    if hardware is not None:
        run = msgspec.structs.replace(run, header=msgspec.structs.replace(run.header, hardware=hardware))
    samples = server.read(directory)
    pairs = [measure(run, level, samples) for level in sorted(run.requests | run.ended)]
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
        answer=None if said is None else rounded(said),
        curve=rounded(whole),
        diagnoses=whole_run(levels),
        levels=tuple(levels),
    )


_MADE = ("phases", "answer", "curve", "diagnoses", "levels")


def trials(run: Run) -> list[Trial]:
    """What the levels of `run` say that have come to an end, in their order, to one that decides on its levels."""
    return _trials(run, [measure(run, level) for level in sorted(run.requests)])


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
