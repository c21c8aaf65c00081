"""All settings in one picture: latency over throughput, and throughput over tokens/s per user with its Pareto front.

Points are geometric means over the blocks of a setting. As the plots of a run, the same data give the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter

from analysis import panels, plots, slo, tuned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from analysis.compare import Compared
    from analysis.measured import Level
    from analysis.records import Bools, Floats
    from analysis.tuned import Setting

# Okabe and Ito: told apart by the colour-blind; markers and line styles tell as well.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9")
MARKERS = ("o", "^", "s", "D", "v", "P", "X")
LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
SAME_PT = 9  # points as near as this, of one load, share a label
LEGEND_CHARS = 40
_QUANTILES: dict[float, str] = {99: "p99", 95: "p95", 90: "p90", 50: "p50"}
_METRICS: tuple[tuple[Literal["ttft_ms", "itl_ms"], str], ...] = (
    ("ttft_ms", "Time to first token (TTFT {}), ms"),
    ("itl_ms", "Inter-token latency (ITL {}), ms"),
)


class Line(msgspec.Struct, frozen=True):
    """A setting in a panel: its loads, and where each of them stands; NaN where nobody knows."""

    name: str
    loads: tuple[str, ...]
    x: Any
    y: Any


def draw(settings: Sequence[Setting], compared: Compared, directory: Path) -> None:
    """Writes compare.png and compare.svg."""
    plots.save(lambda: _figure([one for one in settings if one.replicates], compared), directory, "compare")


def _figure(settings: Sequence[Setting], compared: Compared) -> Figure:
    figure = Figure(figsize=(16, 6.8), dpi=72)
    FigureCanvasAgg(figure)
    *latencies, front = figure.subplots(1, 3)
    rows = -(-len(settings) // 4)
    figure.subplots_adjust(left=0.055, right=0.985, top=0.80 - 0.035 * (rows - 1), bottom=0.15, wspace=0.2)
    run = settings[0].replicates[0].run

    def rate(level: Level) -> float | None:
        return level.throughput.output_tokens_per_s

    figure.text(0.02, 0.975, plots.printable(run.model or "unknown model"), fontsize=19, va="top")
    figure.text(0.02, 0.02, plots.printable(_note(settings, compared), chars=180), fontsize=11.5, color="#444444")
    for axes, (metric, title) in zip(latencies, _METRICS, strict=True):
        quantile = _quantile(settings, metric)
        axes.set_title(title.format(quantile), loc="left", fontsize=14, pad=12)
        axes.set_xlabel("Output throughput, tokens/s")
        lines = [_line(one, rate, _spread(metric, quantile)) for one in settings]
        limits = [one for one in plots.limits(run, metric) if f" {quantile} " in one.text]
        _latency(axes, lines, limits)
    front.set_title("Output throughput, tokens/s", loc="left", fontsize=14, pad=12)
    front.set_xlabel("Tokens/s per user")
    _front(front, [
        _line(one, lambda level: level.throughput.per_user_tokens_per_s, rate) for one in settings
    ])  # fmt: skip
    handles = [Line2D([], [], **style(place)) for place in range(len(settings))]
    names = [plots.printable(one.name, chars=LEGEND_CHARS) for one in settings]
    figure.legend(handles, names, loc="upper left", bbox_to_anchor=(0.015, 0.93), frameon=False, ncols=4)
    return figure


def style(place: int) -> dict[str, Any]:
    """Of the setting at that place."""
    colour = COLOURS[place % len(COLOURS)]
    marker, line = MARKERS[place % len(MARKERS)], LINES[place % len(LINES)]
    size = max(11.5 - 2.5 * place, 5.0)  # what lies below looks out
    return {"color": colour, "marker": marker, "linestyle": line, "linewidth": 2.0, "markersize": size}


def _note(settings: Sequence[Setting], compared: Compared) -> str:
    what = (
        "requests per second"
        if any("/s" in load for one in settings for load in tuned.levels(one))
        else "concurrent requests"
    )
    parts = [f"Labels: {what}.", "Grey: the Pareto front, nothing measured is better in both."]
    if any(slo.terms(one.replicates[0].run.slo or ()) for one in settings):
        parts.append("Shaded: within the SLO.")
    parts.append({
        "claim": f"Means of {compared.blocks} blocks or more.",
        "indication": f"Means of {compared.blocks} blocks or more: an indication.",
        "these runs": "One start of each: restarts were not replicated.",
    }[compared.reach])  # fmt: skip
    return " ".join(parts)


def _quantile(settings: Sequence[Setting], metric: str) -> str:
    """The percentile that the SLO names; else the highest that most levels can state."""
    for term in slo.terms(settings[0].replicates[0].run.slo or ()):
        if f"{term.metric}_ms" == metric and term.percent in _QUANTILES:
            return _QUANTILES[term.percent]
    spreads = [
        getattr(level, metric)
        for one in settings
        for by in tuned.levels(one).values()
        for of in by.values()
        for level in of
    ]
    return "p99" if 2 * sum(one.p99 is not None for one in spreads) > len(spreads) else "p50"


def _spread(metric: str, quantile: str) -> Callable[[Level], float | None]:
    return lambda level: getattr(getattr(level, metric), quantile)


def _line(setting: Setting, x: Callable[[Level], float | None], y: Callable[[Level], float | None]) -> Line:
    by_load = tuned.levels(setting)
    every = [[level for of in blocks.values() for level in of] for blocks in by_load.values()]
    return Line(
        name=setting.name,
        loads=tuple(by_load),
        x=np.array([_mean([x(level) for level in levels]) for levels in every]),
        y=np.array([_mean([y(level) for level in levels]) for levels in every]),
    )


def _mean(values: Sequence[float | None]) -> float:
    """Geometric, of those that are known; NaN where none is."""
    known = [value for value in values if value]
    return float(np.exp(np.mean(np.log(known)))) if known else np.nan


def _latency(axes: Axes, lines: Sequence[Line], limits: Sequence[panels.Limit]) -> None:
    x, y = (np.concatenate([getattr(line, side) for line in lines]) for side in ("x", "y"))
    if not _room(axes, x, y):
        return
    seen = y[~np.isnan(y)]
    shown = [one for one in limits if one.ms <= panels.FAR * seen.max()]
    panels.latency_axis(axes, np.append(seen, [one.ms for one in shown]))
    if shown:
        lowest = min(one.ms for one in shown)
        axes.add_patch(Rectangle((0, 0), axes.get_xlim()[1], lowest, color=panels.HOLDS, linewidth=0, zorder=0.5))
    boxes = [panels.limit_line(axes, one) for one in shown]
    _curves(axes, lines, x, y, boxes)


def _front(axes: Axes, lines: Sequence[Line]) -> None:
    x, y = (np.concatenate([getattr(line, side) for line in lines]) for side in ("x", "y"))
    if not _room(axes, x, y):
        return
    axes.set_ylim(0, 1.12 * float(np.nanmax(y)))
    axes.yaxis.set_major_formatter(FuncFormatter(panels.tick))
    best = pareto(x, y)
    axes.plot(x[best], y[best], color="#bbbbbb", linewidth=7, solid_capstyle="round", zorder=0.8)
    _curves(axes, lines, x, y, [])


def _room(axes: Axes, x: Floats, y: Floats) -> bool:
    """Whether there is a point; sets the x axis."""
    known = ~np.isnan(x) & ~np.isnan(y)
    axes.grid(visible=True)
    if not known.any():
        axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
        axes.text(0.5, 0.5, "no level has a result to draw", ha="center", va="center", transform=axes.transAxes)
        return False
    axes.set_xlim(0, 1.08 * float(x[known].max()))
    axes.xaxis.set_major_formatter(FuncFormatter(panels.tick))
    return True


def _curves(axes: Axes, lines: Sequence[Line], x: Floats, y: Floats, boxes: Sequence[tuple[Floats, Floats]]) -> None:
    """The lines with their markers, and the loads beside these."""
    starts = np.cumsum([0, *(len(line.x) for line in lines)])
    drawn = []
    for place, line in enumerate(lines):
        known = ~np.isnan(line.x) & ~np.isnan(line.y)
        axes.plot(line.x[known], line.y[known], **style(place), clip_on=False)
        alone = np.full(len(x), np.nan)
        alone[starts[place] : starts[place + 1]] = line.y
        drawn.append(alone)
    labels = [load for line in lines for load in line.loads]
    named = _named(axes, labels, x, y)
    panels.write_labels(axes, labels, x, np.where(named, y, np.nan), drawn, [panels.NEAR_PT] * len(labels), boxes)


def _named(axes: Axes, labels: Sequence[str], x: Floats, y: Floats) -> Bools:
    """Which points get their label: not where the same stands at a point that cannot be told from it."""
    at = axes.transData.transform(np.column_stack((x, y)))
    named: Bools = ~np.isnan(at).any(axis=1)
    for place, label in enumerate(labels):
        before = [n for n in range(place) if named[n] and labels[n] == label]
        named[place] &= all(np.hypot(*(at[n] - at[place])) > SAME_PT for n in before)
    return named


def pareto(x: Floats, y: Floats) -> list[int]:
    """Places of the points that no other beats in both, by rising x."""
    known = np.flatnonzero(~np.isnan(x) & ~np.isnan(y))
    front: list[int] = []
    for place in sorted(known, key=lambda place: (-x[place], -y[place])):
        if not front or y[place] > y[front[-1]]:
            front.append(int(place))
    return front[::-1]
