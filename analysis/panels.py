"""The panels of the plot: latency over throughput or rate, and throughput over concurrency. Axes in, ink out."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from analysis import curve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from analysis.curve import Curve, Estimate, Fit
    from analysis.records import Floats

DARK, LIGHT = "#12406b", "#c2701e"  # apart in lightness too, for black and white; markers and line styles tell as well
GREY, HOLDS, BAND = "#555555", "#e6f2e6", "#dbe7f3"
LABEL_PT = 12
DIRECTIONS = (
    *((0, 1), (0, -1), (1, -0.6), (-1, 0.6), (1, 0.6), (-1, -0.6), (1, 0), (-1, 0)),
    *((0.5, 1), (-0.5, 1), (0.5, -1), (-0.5, -1)),
)
NEAR_PT, NEAR_EDGE_PT = 6, 8  # between a point and its label; further off, a line leads to it
LOG_RANGE = 12  # largest over smallest latency from which the axis is logarithmic
FAR = 10  # times the largest latency: a limit above it is not drawn, for it would leave the points no room
P50: dict[str, Any] = {"color": DARK, "linestyle": "-", "linewidth": 2.2, "marker": "o", "markersize": 9}
P99: dict[str, Any] = {"color": LIGHT, "linestyle": (0, (4, 2)), "linewidth": 1.8, "marker": "^", "markersize": 8}
HOLLOW: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "white", "markeredgewidth": 1.6}
CROSS: dict[str, Any] = {"linestyle": "none", "marker": "x", "markersize": 12, "markeredgewidth": 1.6}
FLOOR: dict[str, Any] = {"color": GREY, "linestyle": (0, (1, 1.2)), "linewidth": 1.6, "marker": "_", "markersize": 9}
_LEADER: dict[str, Any] = {"arrowstyle": "-", "color": "#999999", "shrinkA": 0, "shrinkB": 5}


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A level in one panel. Latencies in ms, NaN where unknown; both are where the server is over-saturated.

    `floor` is the least that its hardware allows, drawn for valid levels.
    """

    label: str
    valid: bool
    x: float
    p50: float
    p99: float
    floor: float = math.nan


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    ms: float


def latency(axes: Axes, points: Sequence[Point], limits: Sequence[Limit], holds: float | None) -> None:
    """One latency over `x`: levels, limits as lines, shaded what lies below them up to `holds`, and the floor.

    A point without a latency stands on the upper edge.
    """
    if not points:
        axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
        axes.text(0.5, 0.5, "no level has a result to draw", ha="center", va="center", transform=axes.transAxes)
        return
    x, p50, p99 = (np.array([getattr(point, name) for point in points]) for name in ("x", "p50", "p99"))
    valid = np.array([point.valid for point in points])
    above = np.isnan(p50) & np.isnan(p99)
    axes.set_xlim(0, 1.08 * float(x.max()) or 1)
    seen = np.concatenate((p50, p99))[~np.isnan(np.concatenate((p50, p99)))]
    shown = [limit for limit in limits if not len(seen) or limit.ms <= FAR * seen.max()]
    floor = np.array([point.floor if point.valid else np.nan for point in points])
    if len(seen) and (floor < seen.min() / FAR).any():
        floor[:] = np.nan  # the axis would be of the room between
    latency_axis(axes, np.concatenate((seen, floor[~np.isnan(floor)], [limit.ms for limit in shown])))
    top = axes.get_ylim()[1]
    edge = np.where(above, top, np.nan)
    if holds is not None:
        lowest = min([limit.ms for limit in shown], default=top)
        axes.add_patch(Rectangle((0, 0), holds, lowest, color=HOLDS, linewidth=0, zorder=0.5))
    for y, style in ((p99, P99), (p50, P50)):
        _levels(axes, x[~above], y[~above], valid[~above], style)
    _levels(axes, x[above], edge[above], valid[above], P50)
    named = [limit_line(axes, limit) for limit in shown]
    # Several levels at one load are one load.
    labels = [point.label if at == 0 or point.label != points[at - 1].label else "" for at, point in enumerate(points)]
    nears = [NEAR_EDGE_PT if high else NEAR_PT for high in above]
    lines = (p50, p99, edge, floor)
    taken = write_labels(axes, labels, x, np.where(above, top, p50), lines, nears, named)
    if not np.isnan(floor).all():
        known = ~np.isnan(floor)
        axes.plot(x[known], floor[known], **FLOOR, zorder=1.3)
        names = [""] * len(x)
        names[int(np.nanargmax(np.where(known, x, np.nan)))] = "hardware floor"
        write_labels(axes, names, x, floor, lines, [1] * len(x), taken, GREY)


def growth(axes: Axes, found: Curve, levels: Sequence[tuple[int, float, bool]], holds: float | None) -> None:
    """Output tokens/s over concurrency: (N, tokens/s, valid) of the levels, the law, the knee and the saturation."""
    fit = found.fit
    assert fit is not None, "a panel of growth is of a law"
    n, rate, valid = (np.array(values) for values in zip(*levels, strict=True))
    axes.set(xlim=(0, 1.08 * float(n.max())), ylim=(0, 1.18 * float(rate.max())))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=True))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(tick))
    if holds is not None:
        axes.axvspan(0, holds, color=HOLDS, linewidth=0, zorder=0.5)
    smooth = np.linspace(fit.first, fit.last, 400)
    axes.plot(smooth, curve.throughput(fit, smooth), color=GREY, linewidth=1.8, zorder=1.5)
    if found.knee.value is not None:
        _knee(axes, found.knee, fit)
    most = found.saturation_tokens_per_s
    if most.value is not None:
        start = found.saturated.value or fit.first
        axes.plot([start, fit.last], [most.value] * 2, color=GREY, linestyle=(0, (1, 1.5)), linewidth=1.6)
        axes.annotate(
            f"saturated: {most.value:,.0f}", (fit.last, most.value), (0, 12), textcoords="offset points", ha="right",
            fontsize=LABEL_PT, color=GREY,
        )  # fmt: skip
    _levels(axes, n, rate, valid, P50 | {"linestyle": "none"})


def _knee(axes: Axes, knee: Estimate, fit: Fit) -> None:
    """A line up to the law, its interval as a band, and its name on the side that has more room."""
    assert knee.value is not None, "an unknown knee is not drawn"
    low = fit.first if knee.ci95[0] is None else knee.ci95[0]
    high = fit.last if knee.ci95[1] is None else knee.ci95[1]
    top = float(curve.throughput(fit, np.array([knee.value]))[0])
    axes.add_patch(Rectangle((low, 0), high - low, top, color=BAND, linewidth=0, zorder=0.6))
    axes.plot([knee.value] * 2, [0, top], color=DARK, linewidth=1.2, zorder=1.4)
    to_left = knee.value > fit.last / 2
    axes.annotate(
        f"knee: {knee.value:.0f}", (low if to_left else high, 0), (-5 if to_left else 5, 8), textcoords="offset points",
        ha="right" if to_left else "left", fontsize=LABEL_PT, color=DARK,
    )  # fmt: skip


def _levels(axes: Axes, x: Floats, y: Floats, valid: Any, style: dict[str, Any]) -> None:
    axes.plot(x[valid], y[valid], **style, clip_on=False)
    axes.plot(x[~valid], y[~valid], **(style | HOLLOW), clip_on=False)
    axes.plot(x[~valid], y[~valid], **(style | CROSS), clip_on=False)


def limit_line(axes: Axes, limit: Limit) -> tuple[Floats, Floats]:
    """A line with its name above its left end; the centre and half the size of the name, for labels to keep clear."""
    axes.axhline(limit.ms, color=GREY, linestyle=(0, (6, 3)), linewidth=1.3, zorder=1.2)
    at = axes.transData.transform((0, limit.ms))
    axes.annotate(limit.text, (0, limit.ms), (6, 4), textcoords="offset points", fontsize=LABEL_PT, color=GREY)
    half = np.array((0.33 * LABEL_PT * len(limit.text), 0.6 * LABEL_PT))
    return np.asarray(at) + np.array((6, 4)) + half, half


def latency_axis(axes: Axes, values: Floats) -> None:
    """Linear from 0, or logarithmic where the range demands it; without a scale where there is no value."""
    if not len(values):
        axes.set(ylim=(0, 1), yticks=[])
        return
    low, high = float(values.min()), float(values.max())
    axes.yaxis.set_major_formatter(FuncFormatter(tick))
    if low <= 0 or high / low < LOG_RANGE:
        axes.set_ylim(0, 1.15 * high or 1)
        return
    axes.set_yscale("log")
    axes.set_ylim(low / 1.6, high * 1.5)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(tick))


def write_labels(
    axes: Axes,
    labels: Sequence[str],
    x: Floats,
    y: Floats,
    lines: Sequence[Floats],
    nears: Sequence[int],
    boxes: Sequence[tuple[Floats, Floats]] = (),
    color: str = DARK,
) -> list[tuple[Floats, Floats]]:
    """Writes each label near its point, on the first free place: clear of other labels, markers, lines and the edge.

    A point without a label has none. `boxes` are taken: centre and half the size of each, in pixels; then those of the
    labels too, which it returns.
    """
    marks = [axes.transData.transform(np.column_stack((x, line))) for line in lines]
    marks = [line[~np.isnan(line).any(axis=1)] for line in marks]
    taken = [np.linspace(a, b, 60) for line in marks for a, b in itertools.pairwise(line)]
    ink = np.concatenate([*marks, *taken])
    frame = axes.get_window_extent()
    low, high = np.asarray(frame.min), np.asarray(frame.max) + LABEL_PT
    taken_boxes = list(boxes)
    for label, point, near in zip(labels, zip(x, y, strict=True), nears, strict=True):
        if np.isnan(point).any() or not label:
            continue
        at = np.asarray(axes.transData.transform(point))
        half = np.array((0.33 * LABEL_PT * len(label) + 2, 0.45 * LABEL_PT + 1))
        places = [
            (distance, np.array(direction) * (half + distance))
            for distance in (near, 14, 24, 36, 50, 70)
            for direction in DIRECTIONS
        ]

        def crowd(offset: Floats, at: Floats = at, half: Floats = half, ink: Floats = ink) -> int:
            centre = at + offset
            inside = (centre - half >= low).all() and (centre + half <= high).all()
            over = sum(bool((np.abs(centre - other) < half + size).all()) for other, size in taken_boxes)
            return int((np.abs(ink - centre) < half + 3).all(axis=1).sum()) + 100 * over + 1000 * (not inside)

        distance, offset = min(places, key=lambda place: (crowd(place[1]), place[0]))
        taken_boxes.append((at + offset, half))
        if distance > near:
            ink = np.concatenate((ink, np.linspace(at, at + offset, 30)))  # its line is in the way of the next ones
        axes.annotate(
            label,
            xy=point,
            xytext=offset,
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=LABEL_PT,
            color=color,
            arrowprops=None if distance == near else _LEADER,
            annotation_clip=False,
        )
    return taken_boxes


def tick(value: float, _position: int | None = None) -> str:
    return f"{value:,.10g}"
