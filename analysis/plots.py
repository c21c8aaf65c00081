"""The throughput-latency curve as PNG and SVG: TTFT and ITL over output tokens/s, one point a level.

The same summary gives the same bytes: nothing of the day, the machine or the user's matplotlib settings goes in.
"""

from __future__ import annotations

import functools
import textwrap
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from analysis import panels, slo
from analysis.measured import asked, load, over_saturated
from analysis.panels import Limit, Point

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from analysis.measured import Level
    from analysis.summary import Summary

FONT = "DejaVu Sans"  # bundled with matplotlib
MULTI_TOKEN = 1.05  # tokens an event from which the plot says so
TITLE_CHARS = 52  # beside the legend
SUBTITLE_CHARS = 105
NOTE_CHARS = 145  # a line
STYLE: Any = {
    "font.family": FONT,
    "font.size": 13,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "text.parse_math": False,  # a model name is no formula
    "svg.fonttype": "path",
    "svg.hashsalt": "loadgen",
}


def draw(summary: Summary, directory: Path) -> None:
    """Writes curve.png and curve.svg."""
    save(lambda: _figure(summary), directory, "curve")


def save(figure: Callable[[], Figure], directory: Path, name: str) -> None:
    """As PNG and SVG; `figure` makes it under the style of all our plots."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        made = figure()
        made.savefig(directory / f"{name}.png", dpi=150, metadata={"Software": None})
        made.savefig(directory / f"{name}.svg", metadata={"Date": None, "Creator": None})


def _figure(summary: Summary) -> Figure:
    figure = Figure(figsize=(12.8, 6.4), dpi=72)  # at 72 dots an inch a pixel is a point
    FigureCanvasAgg(figure)
    grows = summary.curve.fit is not None
    *growth, ttft, itl = figure.subplots(1, 3 if grows else 2)
    itl.sharex(ttft)
    figure.subplots_adjust(
        left=0.06 if grows else 0.07, right=0.975, top=0.765, bottom=0.175, wspace=0.24 if grows else 0.16
    )
    figure.text(0.02, 0.975, printable(summary.model or "unknown model"), fontsize=19, va="top")
    figure.text(
        0.02, 0.905, printable(_subtitle(summary), chars=SUBTITLE_CHARS), fontsize=14, va="top", color="#444444"
    )
    note = textwrap.fill(printable(_note(summary), chars=2 * NOTE_CHARS), NOTE_CHARS)
    figure.text(0.02, 0.02, note, fontsize=11.5, color="#444444")
    held = _held(summary)
    for axes in growth:
        axes.set_title("Output throughput, tokens/s", loc="left", fontsize=14, pad=12)
        axes.set_xlabel("Concurrent requests")
        axes.grid(visible=True)
        panels.growth(axes, summary.curve, _rates(summary.levels), None if held is None else held.concurrency)
    held_at = None if held is None else _place(held)
    for axes, metric, title in ((ttft, *_TTFT), (itl, *_ITL)):
        axes.set_title(title, loc="left", fontsize=14, pad=12)
        axes.set_xlabel("Request rate, requests/s" if _open_loop(summary.levels) else "Output throughput, tokens/s")
        axes.xaxis.set_major_formatter(FuncFormatter(panels.tick))
        axes.grid(visible=True)
        panels.latency(axes, _points(summary.levels, metric), limits(summary, metric), held_at)
    _legend(figure, summary.levels)
    return figure


_TTFT: tuple[Literal["ttft_ms"], str] = ("ttft_ms", "Time to first token (TTFT), ms")
_ITL: tuple[Literal["itl_ms"], str] = ("itl_ms", "Inter-token latency (ITL), ms")


def _open_loop(levels: Sequence[Level]) -> bool:
    return bool(levels) and all(level.rate_per_s is not None and level.speed is None for level in levels)


def _place(level: Level) -> float | None:
    """Where the level stands on the axis of load."""
    return level.rate_per_s if _open_loop([level]) else level.throughput.output_tokens_per_s


def _held(run: Summary) -> Level | None:
    """The level of the largest load at which the SLO holds."""
    holds = run.curve.holds if run.slo else None
    return None if holds is None else next(level for level in run.levels if asked(level) == holds)


def _rates(levels: Sequence[Level]) -> list[tuple[int, float, bool]]:
    return [
        (level.concurrency, level.throughput.output_tokens_per_s, level.validity == "VALID")
        for level in levels
        if level.concurrency is not None and level.throughput.output_tokens_per_s is not None
    ]


def limits(run: Summary, metric: Literal["ttft_ms", "itl_ms"]) -> list[Limit]:
    return [Limit(text=str(term), ms=term.limit) for term in slo.terms(run.slo or ()) if f"{term.metric}_ms" == metric]


def _points(levels: Sequence[Level], metric: Literal["ttft_ms", "itl_ms"]) -> list[Point]:
    """The levels that have a place in this panel, by rising load, whatever the order in which they were measured."""
    points = []
    for level in sorted(levels, key=lambda level: asked(level) or 0.0):
        spread, x = getattr(level, metric), _place(level)
        if x is not None and (spread.p50 is not None or spread.p99 is not None or over_saturated(level)):
            p50, p99 = (np.nan if value is None else value for value in (spread.p50, spread.p99))
            valid = level.validity == "VALID"
            points.append(Point(label=load(level), valid=valid, x=x, p50=p50, p99=p99, floor=_floor(level, metric)))
    return points


def _floor(level: Level, metric: Literal["ttft_ms", "itl_ms"]) -> float:
    if level.floors is None:
        return np.nan
    floor = level.floors.ttft_floor_ms if metric == "ttft_ms" else level.floors.itl_floor_ms
    return np.nan if floor is None else floor


def _legend(figure: Figure, levels: Sequence[Level]) -> None:
    handles: list[Any] = [Line2D([], [], **panels.P50), Line2D([], [], **panels.P99)]
    if any(level.validity == "INVALID" for level in levels):
        handles.append((Line2D([], [], **(panels.P50 | panels.HOLLOW)), Line2D([], [], **(panels.P50 | panels.CROSS))))
    labels = ["p50", "p99", "INVALID level"][: len(handles)]
    figure.legend(handles, labels, loc="upper right", bbox_to_anchor=(0.99, 0.995), frameon=False, ncols=len(handles))


def _subtitle(summary: Summary) -> str:
    lengths = [
        f"{text} {way}" for text, way in ((summary.workload.input, "in"), (summary.workload.output, "out")) if text
    ]
    workload = f"{summary.workload.name} ({', '.join(lengths)})" if lengths else summary.workload.name
    law = (summary.arrivals or "").split(":")[0]  # not its file
    arrivals = [f"{law} arrivals"] if law else []
    return "  ·  ".join([workload, *arrivals, _host(summary.target)])


def _note(run: Summary) -> str:
    """What the labels are, and what is not as it seems."""
    levels = run.levels
    if any(level.speed is not None for level in levels):
        what = "speed of the trace's replay"
    elif any(level.rate_per_s is not None for level in levels):
        what = "requests per second due"
    else:
        what = "concurrent requests"
    parts = [f"Labels: {what}."]
    classes = dict.fromkeys(part.name for level in levels for part in level.classes)
    if classes:
        parts.append(f"Over all classes ({', '.join(classes)}).")
    events = max((level.tokens.per_event for level in levels if level.tokens.per_event is not None), default=1.0)
    if events > MULTI_TOKEN:
        parts.append(f"ITL is between events, which carry up to {events:.2g} tokens.")
    if run.curve.fit is not None:
        parts.append("Grey: the law fitted; knee with its 95 % interval.")
    held = _held(run)
    if held is not None:
        parts.append(f"Shaded: the SLO holds, up to {load(held)}.")
    if any(map(over_saturated, levels)):
        parts.append("On the upper edge: over-saturated, so latencies are functions of the length of the run.")
    invalid = [
        f"{load(level)}: {'+'.join(finding.code for finding in level.findings if finding.severity == 'error')}"
        for level in levels
        if level.validity == "INVALID"
    ]
    if invalid:
        parts.append(f"Hollow and crossed: INVALID ({', '.join(invalid)}).")
    drawn = {point.label for metric in _METRICS for point in _points(levels, metric)}
    missing = [load(level) for level in levels if load(level) not in drawn]
    if missing:
        parts.append(f"Too few requests to draw: {', '.join(missing)}.")
    shown = [level for level in levels if load(level) in drawn and not over_saturated(level)]
    if any(level.ttft_ms.p99 is None or level.itl_ms.p99 is None for level in shown):
        parts.append("A p99 that the sample cannot support is not drawn.")
    return " ".join(parts)


_METRICS: tuple[Literal["ttft_ms", "itl_ms"], ...] = ("ttft_ms", "itl_ms")


def _host(target: str) -> str:
    """Host and port of an http target; any other target as it is."""
    if "://" not in target:
        return target if target.startswith("sim:") else target.split("/")[0].split("?")[0]
    return urlsplit(target).netloc.rpartition("@")[2]


def printable(text: str, chars: int = TITLE_CHARS) -> str:
    """What the font can write, and no more than `chars`: an unknown glyph warns, a control character breaks the SVG."""
    text = text if len(text) <= chars else text[: chars - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return "".join(char if char.isprintable() and ord(char) in _glyphs() else "?" for char in text)


@functools.cache
def _glyphs() -> frozenset[int]:
    return frozenset(FT2Font(font_manager.findfont(FONT)).get_charmap())
