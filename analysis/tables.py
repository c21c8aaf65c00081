"""The summary in a terminal. Server-given words are shown as text only: no control character, no markup."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from analysis import quantiles, summary

if TYPE_CHECKING:
    from rich.console import Console

    from analysis.summary import Level, Summary
    from analysis.validity import Finding

UNKNOWN = "\N{EN DASH}"
_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}
# Control, format (bidirectional overrides too), surrogate, private; line and paragraph separators.
_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def show(run: Summary, console: Console) -> None:
    """Prints the level table, one footnote for what is null, and the findings."""
    console.print(_line(f"{run.model or UNKNOWN}, {run.workload.name}, {run.target}", "bold"))
    if not run.levels:
        console.print(_line("no request was recorded", _STYLES["error"]))
        return
    table = _table(run)
    console.print(table)
    if any(UNKNOWN in str(cell) for column in table.columns for cell in column.cells):
        console.print(_line(_footnote(run.levels), "dim"))
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


def _table(run: Summary) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    open_loop = any(level.rate_per_s is not None for level in run.levels)
    heads = (
        "rate" if open_loop else "conc.", "ok/\nfailed", "output\ntok/s", "tok/s\n/user", "TTFT ms\np50", "\np99",
        "ITL ms\np50", "\np99", "E2E ms\np50", "",
    )  # fmt: skip
    for head in heads:
        table.add_column(head, justify="right", overflow="fold")
    for level in run.levels:
        invalid = level.validity == "INVALID"
        cells = (
            summary.load(level),
            f"{level.requests.ok}/{level.requests.failed}",
            number(level.throughput.output_tokens_per_s),
            number(level.throughput.per_user_tokens_per_s),
            number(level.ttft_ms.p50),
            number(level.ttft_ms.p99),
            number(level.itl_ms.p50),
            number(level.itl_ms.p99),
            number(level.e2e_ms.p50),
            "INVALID" if invalid else "",
        )
        table.add_row(*map(Text, cells), style=_STYLES["error"] if invalid else "")
    return table


def _footnote(levels: tuple[Level, ...]) -> str:
    why = f"a p50 needs {quantiles.min_n(0.5)} samples and a p99 {quantiles.min_n(0.99)} (two-sided 95 % interval)"
    if any(level.window_s is None for level in levels):
        why += "; throughput needs two requests that start after the warm-up"
    return f"{UNKNOWN} not known: {why}"


def _findings(levels: tuple[Level, ...]) -> Table:
    """A line for each code and severity, severest first, with the levels that have it and the words of the last."""
    merged: dict[tuple[str, str], list[tuple[Level, Finding]]] = {}
    for level in levels:
        for finding in level.findings:
            merged.setdefault((finding.severity, finding.code), []).append((level, finding))
    grid = Table.grid(padding=(0, 1, 0, 0))
    for (severity, code), found in sorted(merged.items(), key=lambda item: [*_STYLES].index(item[0][0])):
        where = "" if len(found) == len(levels) else f" at {', '.join(summary.load(level) for level, _ in found)}"
        last_level, last = found[-1]
        if len({finding.message for _, finding in found}) > 1:
            where += f"; at {summary.load(last_level)}"
        style = _STYLES[severity]
        grid.add_row(Text(severity, style=style), Text.assemble((code, style), safe(f"{where}: {last.message}")))
    return grid


def _line(text: str, style: str) -> Text:
    return Text(safe(text), style=style)
