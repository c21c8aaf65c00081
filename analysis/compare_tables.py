"""A comparison in a terminal: the ratios of each setting, the noise, the gates, and last what it comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from analysis import ratios
from analysis.tables import UNKNOWN, number, safe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from analysis.compare import Compared, Ratio
    from analysis.gates import Judged
    from analysis.noise import Noise
    from analysis.recommend import Row

_NAMES: dict[ratios.Metric, str] = {"throughput": "tok/s", "goodput": "goodput"}
_VERDICTS = {"PASS": "green", "FAIL": "bold red", "UNDECIDED": "yellow"}


def show(found: Compared, console: Console) -> None:
    """Prints what was forced, how far it reaches, the tables, and the recommendation."""
    for text in found.forced:
        console.print(_line(f"forced although not comparable: {text}", "bold red"))
    console.print(_line(_reach(found), "dim"))
    names = list(dict.fromkeys(one.setting for one in found.ratios))
    for name in names:
        console.print(_line(f"{name} against {found.baseline}", "bold"))
        console.print(_ratios([one for one in found.ratios if one.setting == name], found))
    console.print(_line(_calls(found), ""))
    for text in _beside(found):
        console.print(_line(text, "dim"))
    if found.invalid:
        console.print(_line(f"left out, INVALID: {'; '.join(found.invalid)}", "yellow"))
    console.print(_settings(found.settings, under_slo=found.recommended.under_slo))
    for row in found.settings:
        for failure in row.failures:
            console.print(_line(f"{row.setting}: failed in {failure}", "bold red"))
    if found.gates:
        console.print(_gates(found))
    console.print(_line(found.recommended.sentence, "bold"))


def show_noise(found: Sequence[Noise], console: Console) -> None:
    """Prints a line for each load and metric."""
    table = _grid("load", "metric", "starts", "sd of the\nlog ratio", "two starts differ\nby up to (95 %)")
    last = ""
    for one in found:
        load = "" if one.load == last else one.load
        last = one.load
        sd, most = f"{_share(one.sd)} %", f"{_share(one.hides)} %"
        table.add_row(*map(Text, (safe(load), _NAMES.get(one.metric, one.metric), str(one.starts), sd, most)))
    console.print(_line("A against A: what starts of the same setting differ by, on this machine and server", "bold"))
    console.print(table)


def _reach(found: Compared) -> str:
    if found.reach == "these runs":
        return (
            "one start of each: intervals are of sampling within the runs. Restarts of the server were not replicated, "
            f"so what is called is about these runs only (loadgen tune --repeats {ratios.CLAIM_BLOCKS} replicates them)"
        )
    text = f"{found.blocks} blocks, each with a start of the server: t intervals of the log ratio within blocks"
    if found.reach == "indication":
        text += f"; {found.blocks} are an indication, {ratios.CLAIM_BLOCKS} make a claim"
    return text


def _ratios(some: Sequence[Ratio], found: Compared) -> Table:
    noisy = any(one.noise is not None for one in some)
    heads = ["load", "metric", "baseline", "this", "ratio", "95 % interval", "could\nsee %", "noise\n%", ""]
    table = _grid(*(head for head in heads if noisy or head != "noise\n%"))
    last = ""
    for one in some:
        low, high = one.ci95
        cells = [
            "" if one.load == last else one.load,
            _NAMES.get(one.metric, one.metric),
            number(one.a),
            number(one.b),
            f"{one.ratio:.3f}",
            UNKNOWN if low is None and high is None else f"{_ratio(low)} to {_ratio(high)}",
            _share(one.seen),
            *([_share(one.noise)] if noisy else []),
            _word(one, found),
        ]
        last = one.load
        table.add_row(*map(Text, map(safe, cells)), style="bold" if one.called else "")
    return table


def _word(one: Ratio, found: Compared) -> str:
    """What was called, or shown not to be there; nothing where neither was."""
    within = f"±{100 * found.margin:g} %" if one.alike else ""
    fewer = f"{one.blocks} of {found.blocks} blocks" if one.blocks < found.blocks else ""
    return ", ".join(filter(None, (one.called, within, fewer)))


def _calls(found: Compared) -> str:
    tested = [one for one in found.ratios if one.p is not None]
    called, alike = sum(one.called is not None for one in tested), sum(one.alike for one in tested)
    alone = sum(one.called is None and _excludes_1(one) for one in tested)
    words = f"called: {called or 'none'} of {len(tested)} differences" if tested else "no ratio could be tested"
    words += f"; {alike} by no more than ±{100 * found.margin:g} %, shown by test" if alike else ""
    if len(tested) > 1:
        words += f" (Holm over all {len(tested)})"
    if alone:
        words += f"; {alone} more by the interval alone, as one in twenty is by chance"
    return words


def _excludes_1(one: Ratio) -> bool:
    low, high = one.ci95
    return (low is not None and low > 1) or (high is not None and high < 1)


def _beside(found: Compared) -> list[str]:
    lines = ["could see: the smallest difference that had a chance of 80 % to be called"]
    if any(one.noise is not None for one in found.ratios):
        lines.append("noise: two starts of one setting differ by up to this (95 %; --aa)")
    return [*lines, *(f"note: {text}" for text in found.notes)]


def _settings(rows: Sequence[Row], *, under_slo: bool) -> Table:
    load = "largest load\nunder the SLO" if under_slo else "at load"
    table = _grid("setting", "starts", load, "output\ntok/s", "KV use\n%", "pre-\nemptions", "waiting")
    for row in rows:
        use = UNKNOWN if row.kv_use is None else f"{100 * row.kv_use:.0f}"
        cells = (
            row.setting,
            str(row.starts),
            _loads(row),
            number(row.output_tokens_per_s),
            use,
            number(row.preemptions),
            number(row.waiting),
        )
        table.add_row(*map(Text, map(safe, cells)))
    return table


def _loads(row: Row) -> str:
    """The lowest, with how they spread over the blocks."""
    if row.load is None:
        return UNKNOWN if not row.loads else f"in {len(row.loads)} of {row.starts} runs"
    others = [load for load in dict.fromkeys(row.loads) if load != row.load]
    return f"{row.load} (others: {', '.join(others)})" if others else row.load


def _gates(found: Compared) -> Table:
    """A line for each gate, setting and verdict, with the load that is nearest to be worse."""
    merged: dict[tuple[str, str, str], list[Judged]] = {}
    for one in found.gates:
        merged.setdefault((one.gate, one.setting, one.verdict), []).append(one)
    table = _grid("gate", "setting", "", "load", "worst", "bounds (95 % each)")
    for (gate, setting, verdict), some in merged.items():
        worst = min(some, key=lambda one: 1.0 if one.p is None else one.p)
        low, high = worst.ci90
        known = worst.ratio is not None
        at = f"{worst.ratio:.3f} at {worst.load}" if known else "not known"
        bounds = f"{_ratio(low)} to {_ratio(high)}" if known else "too few requests"
        cells = (gate, setting, verdict, ", ".join(one.load for one in some), at, bounds)
        table.add_row(*map(Text, map(safe, cells)), style=_VERDICTS[verdict])
    return table


def _grid(*heads: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in heads:
        left = head in ("load", "metric", "", "setting", "gate")
        table.add_column(head, justify="left" if left else "right", overflow="fold")
    return table


def _share(value: float | None) -> str:
    """In percent."""
    if value is None:
        return UNKNOWN
    return "<0.1" if value < 0.001 else f"{100 * value:.1f}" if value < 0.0995 else f"{100 * value:.0f}"


def _ratio(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3f}" if value < 1000 else f"{value:.2g}"


def _line(text: str, style: str) -> Text:
    return Text(safe(text), style=style)
