"""The throughput-latency curve as PNG and SVG: TTFT and ITL over output tokens/s, one point a level.

The same summary gives the same bytes: nothing of the day, the machine or the user's matplotlib settings goes in.
"""

from __future__ import annotations

import functools
import itertools
import textwrap
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import matplotlib
import msgspec
import numpy as np
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from analysis.summary import load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from analysis.records import Floats
    from analysis.summary import Level, Summary

DARK, LIGHT = "#12406b", "#c2701e"  # apart in lightness too, for black and white; markers and line styles tell as well
FONT = "DejaVu Sans"  # bundled with matplotlib
LABEL_PT = 12
DIRECTIONS = (
    *((0, 1), (0, -1), (1, -0.6), (-1, 0.6), (1, 0.6), (-1, -0.6), (1, 0), (-1, 0)),
    *((0.5, 1), (-0.5, 1), (0.5, -1), (-0.5, -1)),
)
NEAR_PT = 6  # between a point and its label; further off, a line leads to it
LOG_RANGE = 12  # largest over smallest latency from which the axis is logarithmic
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


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A level in one panel. Latencies in ms, NaN where unknown."""

    label: str
    valid: bool
    tokens_per_s: float
    p50: float
    p99: float


def draw(summary: Summary, directory: Path) -> None:
    """Writes curve.png and curve.svg."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        figure = _figure(summary)
        figure.savefig(directory / "curve.png", dpi=150, metadata={"Software": None})
        figure.savefig(directory / "curve.svg", metadata={"Date": None, "Creator": None})


def _figure(summary: Summary) -> Figure:
    figure = Figure(figsize=(12.8, 6.4), dpi=72)  # at 72 dots an inch a pixel is a point
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharex=True)
    figure.subplots_adjust(left=0.07, right=0.985, top=0.765, bottom=0.175, wspace=0.16)
    figure.text(0.02, 0.975, _printable(summary.model or "unknown model"), fontsize=19, va="top")
    figure.text(
        0.02, 0.905, _printable(_subtitle(summary), chars=SUBTITLE_CHARS), fontsize=14, va="top", color="#444444"
    )
    note = textwrap.fill(_printable(_note(summary.levels), chars=2 * NOTE_CHARS), NOTE_CHARS)
    figure.text(0.02, 0.02, note, fontsize=11.5, color="#444444")
    panels: tuple[tuple[Axes, Literal["ttft_ms", "itl_ms"], str], ...] = (
        (left, "ttft_ms", "Time to first token (TTFT), ms"),
        (right, "itl_ms", "Inter-token latency (ITL), ms"),
    )
    for axes, metric, title in panels:
        axes.set_title(title, loc="left", fontsize=14, pad=12)
        axes.set_xlabel("Output throughput, tokens/s")
        axes.xaxis.set_major_formatter(FuncFormatter(_tick))
        axes.grid(visible=True)
        _panel(axes, _points(summary.levels, metric))
    _legend(figure, summary.levels)
    return figure


def _panel(axes: Axes, points: Sequence[Point]) -> None:
    if not points:
        axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
        axes.text(0.5, 0.5, "no level has a result to draw", ha="center", va="center", transform=axes.transAxes)
        return
    x = np.array([point.tokens_per_s for point in points])
    p50 = np.array([point.p50 for point in points])
    p99 = np.array([point.p99 for point in points])
    valid = np.array([point.valid for point in points])
    axes.set_xlim(0, 1.08 * float(x.max()) or 1)
    _latency_axis(axes, np.concatenate((p50, p99)))
    for y, style in ((p99, _P99), (p50, _P50)):
        axes.plot(x[valid], y[valid], **style, clip_on=False)
        axes.plot(x[~valid], y[~valid], **(style | _HOLLOW), clip_on=False)
        axes.plot(x[~valid], y[~valid], **(style | _CROSS), clip_on=False)
    _label(axes, [point.label for point in points], x, p50, (p50, p99))


_P50: dict[str, Any] = {"color": DARK, "linestyle": "-", "linewidth": 2.2, "marker": "o", "markersize": 9}
_P99: dict[str, Any] = {"color": LIGHT, "linestyle": (0, (4, 2)), "linewidth": 1.8, "marker": "^", "markersize": 8}
_HOLLOW: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "white", "markeredgewidth": 1.6}
_LEADER: dict[str, Any] = {"arrowstyle": "-", "color": "#999999", "shrinkA": 0, "shrinkB": 5}
_CROSS: dict[str, Any] = {"linestyle": "none", "marker": "x", "markersize": 12, "markeredgewidth": 1.6}


def _latency_axis(axes: Axes, values: Floats) -> None:
    """Linear from 0, or logarithmic where the range demands it."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    axes.yaxis.set_major_formatter(FuncFormatter(_tick))
    if low <= 0 or high / low < LOG_RANGE:
        axes.set_ylim(0, 1.15 * high or 1)
        return
    axes.set_yscale("log")
    axes.set_ylim(low / 1.6, high * 1.5)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(_tick))


def _label(axes: Axes, labels: Sequence[str], x: Floats, y: Floats, lines: Sequence[Floats]) -> None:
    """Writes each label near its point, on the first free place: clear of other labels, markers, lines and the edge."""
    marks = [axes.transData.transform(np.column_stack((x, line))) for line in lines]
    marks = [line[~np.isnan(line).any(axis=1)] for line in marks]
    taken = [np.linspace(a, b, 60) for line in marks for a, b in itertools.pairwise(line)]
    ink = np.concatenate([*marks, *taken])
    frame = axes.get_window_extent()
    low, high = np.asarray(frame.min), np.asarray(frame.max) + LABEL_PT
    boxes: list[tuple[Floats, Floats]] = []
    for label, point in zip(labels, zip(x, y, strict=True), strict=True):
        if np.isnan(point).any():
            continue
        at = np.asarray(axes.transData.transform(point))
        half = np.array((0.33 * LABEL_PT * len(label) + 2, 0.45 * LABEL_PT + 1))
        places = [
            (distance, np.array(direction) * (half + distance))
            for distance in (NEAR_PT, 14, 24, 36, 50, 70)
            for direction in DIRECTIONS
        ]

        def crowd(offset: Floats, at: Floats = at, half: Floats = half, ink: Floats = ink) -> int:
            centre = at + offset
            inside = (centre - half >= low).all() and (centre + half <= high).all()
            over = sum(bool((np.abs(centre - other) < half + size).all()) for other, size in boxes)
            return int((np.abs(ink - centre) < half + 3).all(axis=1).sum()) + 100 * over + 1000 * (not inside)

        distance, offset = min(places, key=lambda place: (crowd(place[1]), place[0]))
        boxes.append((at + offset, half))
        if distance > NEAR_PT:
            ink = np.concatenate((ink, np.linspace(at, at + offset, 30)))  # its line is in the way of the next ones
        axes.annotate(
            label,
            xy=point,
            xytext=offset,
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=LABEL_PT,
            color=DARK,
            arrowprops=None if distance == NEAR_PT else _LEADER,
            annotation_clip=False,
        )


def _points(levels: Sequence[Level], metric: Literal["ttft_ms", "itl_ms"]) -> list[Point]:
    """The levels that have a place in this panel."""
    points = []
    for level in levels:
        spread, rate = getattr(level, metric), level.throughput.output_tokens_per_s
        if rate is not None and (spread.p50 is not None or spread.p99 is not None):
            p50, p99 = (np.nan if value is None else value for value in (spread.p50, spread.p99))
            valid = level.validity == "VALID"
            points.append(Point(label=load(level), valid=valid, tokens_per_s=rate, p50=p50, p99=p99))
    return points


def _legend(figure: Figure, levels: Sequence[Level]) -> None:
    handles: list[Any] = [Line2D([], [], **_P50), Line2D([], [], **_P99)]
    if any(level.validity == "INVALID" for level in levels):
        handles.append((Line2D([], [], **(_P50 | _HOLLOW)), Line2D([], [], **(_P50 | _CROSS))))
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


def _note(levels: Sequence[Level]) -> str:
    """What the labels are, and what is not as it seems."""
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
    if any(level.ttft_ms.p99 is None or level.itl_ms.p99 is None for level in levels if load(level) in drawn):
        parts.append("A p99 that the sample cannot support is not drawn.")
    return " ".join(parts)


_METRICS: tuple[Literal["ttft_ms", "itl_ms"], ...] = ("ttft_ms", "itl_ms")


def _host(target: str) -> str:
    """Host and port of an http target; any other target as it is."""
    if "://" not in target:
        return target if target.startswith("sim:") else target.split("/")[0].split("?")[0]
    return urlsplit(target).netloc.rpartition("@")[2]


def _tick(value: float, _position: int | None = None) -> str:
    return f"{value:,.10g}"


def _printable(text: str, chars: int = TITLE_CHARS) -> str:
    """What the font can write, and no more than `chars`: an unknown glyph warns, a control character breaks the SVG."""
    text = text if len(text) <= chars else text[: chars - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return "".join(char if char.isprintable() and ord(char) in _glyphs() else "?" for char in text)


@functools.cache
def _glyphs() -> frozenset[int]:
    return frozenset(FT2Font(font_manager.findfont(FONT)).get_charmap())
