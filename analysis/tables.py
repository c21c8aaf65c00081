"""The summary in a terminal. Server-given words are shown as text only: no control character, no markup."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from analysis import curve, laws, measured, quantiles
from analysis.diagnosis import PREFILL_ALONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from analysis.decision import Verdict
    from analysis.evidence import Finding
    from analysis.measured import Level
    from analysis.parts import Counts, Part, Phases
    from analysis.quantiles import Distribution
    from analysis.server import Spread
    from analysis.summary import Summary

UNKNOWN = "\N{EN DASH}"
INTERVAL = 0.05  # of a p99, up to which the table is silent about it
_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}
VERDICT_STYLES = {"PASS": "green", "FAIL": "bold red", "UNDECIDED": "yellow", "INVALID": "bold red"}
# Control, format (bidirectional overrides too), surrogate, private; line and paragraph separators.
_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def show(run: Summary, console: Console) -> None:
    """Prints what the workload is heavy in, the level table, a footnote for what is null, the curve in words, verdicts,
    and findings."""
    console.print(_line(f"{run.model or UNKNOWN}, {run.workload.name}, {run.target}", "bold"))
    if not run.levels:
        console.print(_line("no request was recorded", _STYLES["error"]))
        return
    for level in run.levels:
        if run.phases is not None and level.level == run.phases.level:
            console.print(_line(_heavy(run.workload.name, level), "dim"))
    table = _table(run)
    console.print(table)
    cells = " ".join(str(cell) for column in table.columns for cell in column.cells)
    if UNKNOWN in cells:
        console.print(_line(_footnote(run.levels), "dim"))
    if "±" in cells:
        console.print(_line(f"± farther end of the 95 % interval, where beyond {100 * INTERVAL:.0f} %", "dim"))
    if len(run.levels) >= laws.FEWEST or run.curve.why_no_fit is None:
        out = [measured.load(level) for level in run.levels if level.level in run.curve.left_out]
        for words in curve.words(run.curve, slo=bool(run.slo), unit=_unit(run.levels), left_out=out):
            console.print(_line(words, ""))
    if any(level.server is not None for level in run.levels):
        console.print(_server(run))
    if run.hardware is not None:
        console.print(_line(_FLOORS.format(run.hardware), "dim"))
        console.print(_floors(run))
    if any(level.goodput is not None for level in run.levels):
        console.print(_verdicts(run))
    if any(level.findings for level in run.levels):
        console.print(_findings(run.levels))


def safe(text: str) -> str:
    """The text with what could steer a terminal written out as code points."""
    return "".join(char if unicodedata.category(char) not in _UNSAFE else f"\\u{ord(char):04x}" for char in text)


def number(value: float | None) -> str:
    """Three significant digits, never fewer than the integer has."""
    if value is None:
        return UNKNOWN
    size = abs(value)
    return f"{value:.2f}" if size < 9.995 else f"{value:.1f}" if size < 99.95 else f"{value:.0f}"


def _p99(spread: Distribution) -> str:
    """With the farther end of its interval, in percent, where that is worth a word."""
    low, high = spread.p99_ci95
    if spread.p99 is None or low is None or high is None:
        return number(spread.p99)
    off = max(spread.p99 - low, high - spread.p99)
    return f"{number(spread.p99)} ±{100 * off / spread.p99:.0f}%" if off > INTERVAL * spread.p99 else number(spread.p99)


def _table(run: Summary) -> Table:
    leaving = any(level.requests.left for level in run.levels)
    heads = (
        _load_head(run.levels), "ok/failed\n/left" if leaving else "ok/\nfailed", "output\ntok/s", "tok/s\n/user",
        "TTFT ms\np50", "\np99", "ITL ms\np50", "\np99", "E2E ms\np50", "",
    )  # fmt: skip
    table = _grid(heads)
    for level in run.levels:
        invalid = level.validity == "INVALID"
        cells = (
            measured.load(level),
            _counts(level.requests, leaving=leaving),
            number(level.throughput.output_tokens_per_s),
            number(level.throughput.per_user_tokens_per_s),
            number(level.ttft_ms.p50),
            _p99(level.ttft_ms),
            number(level.itl_ms.p50),
            _p99(level.itl_ms),
            number(level.e2e_ms.p50),
            "INVALID" if invalid else "",
        )
        table.add_row(*map(Text, cells), style=_STYLES["error"] if invalid else "")
        for part in _parts(level):
            table.add_row(*map(Text, _part_cells(part, leaving=leaving)), style=_STYLES["error" if invalid else "info"])
    return table


def _grid(heads: Sequence[str]) -> Table:
    """Empty, of numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for head in heads:
        table.add_column(head, justify="right", overflow="fold")
    return table


def _server(run: Summary) -> Table:
    """Of each level what the server's own metrics say; its TTFT beside the client's, from sent."""
    heads = (
        _load_head(run.levels), "running\nmean", "\nmax", "waiting\nmean", "\nmax", "KV use %\nmean", "\nmax",
        "pre-\nempted", "prefix\nhits %", "TTFT ms\nserver", "\nclient",
    )  # fmt: skip
    table = _grid(heads)
    for level in run.levels:
        if (said := level.server) is not None:
            cells = (
                measured.load(level),
                *_spread(said.running),
                *_spread(said.waiting),
                *_spread(said.kv_use, share=True),
                UNKNOWN if said.preemptions is None else str(said.preemptions),
                _percent(said.prefix_hit_share),
                number(said.ttft_ms),
                number(said.client_ttft_ms),
            )
            table.add_row(*map(Text, cells), style=_STYLES["error"] if level.validity == "INVALID" else "")
    return table


_FLOORS = (
    "floors of {}: a decode step reads the weights and the live KV once, and a prompt has to be computed; % floor over "
    "measured (mean time a token, median TTFT from sent)"
)


def _floors(run: Summary) -> Table:
    """Of each level what the hardware allows, beside what was measured."""
    heads = (
        _load_head(run.levels), "in de-\ncode", "tokens\neach", "weights\nGB/step", "KV\nGB/step", "token ms\nfloor",
        "\ntook", "\n%", "TTFT ms\nfloor", "\ntook", "\n%",
    )  # fmt: skip
    table = _grid(heads)
    for level in run.levels:
        if (found := level.floors) is not None:
            cells = (
                measured.load(level),
                number(found.batch),
                UNKNOWN if found.context is None else f"{found.context:.0f}",
                *(
                    number(None if size is None else size / 1e9)
                    for size in (found.step_weight_bytes, found.step_kv_bytes)
                ),
                *map(number, (found.itl_floor_ms, found.itl_ms)),
                _percent(found.itl_efficiency),
                *map(number, (found.ttft_floor_ms, found.ttft_ms)),
                _percent(found.ttft_efficiency),
            )
            table.add_row(*map(Text, cells), style=_STYLES["error"] if level.validity == "INVALID" else "")
    return table


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else percent(share)


def _spread(spread: Spread | None, *, share: bool = False) -> tuple[str, str]:
    if spread is None:
        return UNKNOWN, UNKNOWN
    return (percent(spread.mean), percent(spread.max)) if share else (number(spread.mean), f"{spread.max:.0f}")


def _verdicts(run: Summary) -> Table:
    """A line for each term and one for the goodput, of each level and of the classes of its mix."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in (_load_head(run.levels), "SLO", "", "observed", "% over (interval)", "n_eff"):
        table.add_column(head, justify="left" if head in ("SLO", "") else "right", overflow="fold")
    for level in run.levels:
        load = measured.load(level)
        for name, statement in measured.statements(level):
            of = f"{name}: " if name else ""
            for one in statement.verdicts:
                invalid = level.validity == "INVALID"
                word = level.validity if invalid else one.verdict
                cells = (
                    load,
                    safe(f"{of}{one.term}"),
                    word,
                    *observed(one),
                    UNKNOWN if one.n_eff is None else str(one.n_eff),
                )
                table.add_row(*map(Text, cells), style=_STYLES["error"] if invalid else VERDICT_STYLES[one.verdict])
                load = ""
            if statement.goodput is not None:
                rate, share = statement.goodput.requests_per_s, statement.goodput.share
                missed = UNKNOWN if share is None else percent(1 - share)
                table.add_row(*map(Text, (load, safe(f"{of}goodput"), "", f"{number(rate)} req/s", missed)))
                load = ""
    return table


def observed(one: Verdict) -> tuple[str, str]:
    """What was observed, and the share over the limit with its interval; of throughput the interval of the rate."""
    if one.observed_per_s is not None:
        low, high = one.per_s_ci
        return f"{number(one.observed_per_s)} tok/s", f"{number(low)} to {number(high)} tok/s"
    low, high = one.exceed_ci
    if one.exceed is None or low is None or high is None:
        return UNKNOWN, UNKNOWN
    observed = UNKNOWN if one.observed_ms is None else f"{number(one.observed_ms)} ms"
    return observed, f"{percent(one.exceed)} ({percent(low)} to {percent(high)})"


def percent(share: float) -> str:
    return f"{100 * share:.2g}" if share < 0.0995 else f"{100 * share:.0f}"


def _load_head(levels: Sequence[Level]) -> str:
    if any(level.speed is not None for level in levels):
        return "speed"
    return "rate" if any(level.rate_per_s is not None for level in levels) else "conc."


def _unit(levels: Sequence[Level]) -> str:
    return {"conc.": "", "rate": "/s", "speed": "x"}[_load_head(levels)]


def _counts(counts: Counts, *, leaving: bool) -> str:
    return f"{counts.ok}/{counts.failed}" + (f"/{counts.left}" if leaving else "")


def _parts(level: Level) -> tuple[Part, ...]:
    return level.classes + (() if level.turns is None else (level.turns.first, level.turns.later))


def _part_cells(part: Part, *, leaving: bool) -> tuple[str, ...]:
    return (
        safe(part.name),
        _counts(part.requests, leaving=leaving),
        number(part.throughput.output_tokens_per_s),
        "",
        number(part.ttft_ms.p50),
        _p99(part.ttft_ms),
        number(part.itl_ms.p50),
        _p99(part.itl_ms),
        number(part.e2e_ms.p50),
        "",
    )


def _heavy(workload: str, lightest: Level) -> str:
    """Where the time goes. At a higher load TTFT would be a wait in the server's queue as well."""
    kind = "concurrency " if lightest.concurrency is not None else "speed " if lightest.speed is not None else ""
    at = kind + measured.load(lightest)
    parts = [_where(workload, lightest.phases), *(_where(part.name, part.phases) for part in lightest.classes)]
    return f"{'; '.join(filter(None, parts))} (at {at}, the lightest valid load; TTFT taken as prefill)"


def _where(name: str, phases: Phases | None) -> str:
    if phases is None:
        return ""
    prefill, decode = 100 * phases.prefill_share, 100 * (1 - phases.prefill_share)
    if phases.heavy == "prefill":
        return f"{name}: prefill-heavy, {prefill:.0f} % of the time in prefill"
    if phases.prefill_share < PREFILL_ALONE:
        return f"{name}: decode-heavy, {decode:.0f} % of the time in decode"
    return f"{name}: {decode:.0f} % of the time in decode, {prefill:.0f} % in prefill"


def _footnote(levels: tuple[Level, ...]) -> str:
    why = (
        f"a p50 needs {quantiles.min_n(0.5)} values, and a p99 {quantiles.min_n(0.99)} that do not depend on each "
        "other (two-sided 95 % interval)"
    )
    if any(level.window_s is None for level in levels):
        why += "; throughput needs two requests that start after the warm-up"
    if any(measured.over_saturated(level) for level in levels):
        why += "; where a server is over-saturated, latencies are functions of the length of the level"
    return f"{UNKNOWN} not known: {why}"


def _findings(levels: tuple[Level, ...]) -> Table:
    """A line for each code and severity, severest first, with the levels that have it and the words of the last."""
    merged: dict[tuple[str, str], list[tuple[Level, Finding]]] = {}
    for level in levels:
        for finding in level.findings:
            merged.setdefault((finding.severity, finding.code), []).append((level, finding))
    grid = Table.grid(padding=(0, 1, 0, 0))
    for (severity, code), found in sorted(merged.items(), key=lambda item: [*_STYLES].index(item[0][0])):
        where = "" if len(found) == len(levels) else f" at {', '.join(measured.load(level) for level, _ in found)}"
        last_level, last = found[-1]
        if len({finding.message for _, finding in found}) > 1:
            where += f"; at {measured.load(last_level)}"
        style = _STYLES[severity]
        grid.add_row(Text(severity, style=style), Text.assemble((code, style), safe(f"{where}: {last.message}")))
    return grid


def _line(text: str, style: str) -> Text:
    return Text(safe(text), style=style)
