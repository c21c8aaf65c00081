"""The roofline of a model on hardware as PNG and SVG, with the workload's phases on it.

Left of the ridge the memory's bandwidth is the limit, right of it the compute rate. The same sheet, the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from analysis import panels, plots

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from analysis.floor_sheet import Sheet

_TERA = 1e12
_SUBTITLE_CHARS = 110


def draw(made: Sheet, directory: Path) -> None:
    """Writes roofline.png and roofline.svg. The sheet has a roofline: not without a rate of compute."""
    plots.save(lambda: _figure(made), directory, "roofline")


def _figure(made: Sheet) -> Figure:
    figure = Figure(figsize=(12.8, 7.2), dpi=72)  # at 72 dots an inch a pixel is a point
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.085, right=0.97, top=0.8, bottom=0.15)
    figure.text(0.02, 0.975, plots.printable(made.hardware), fontsize=19, va="top")
    lengths = f"{made.input_tokens:,} tokens in, {made.output_tokens:,} out"
    subtitle = f"{lengths}  ·  decode at {made.batch.context_tokens:,.0f} tokens of context each"
    figure.text(0.02, 0.91, plots.printable(subtitle, chars=_SUBTITLE_CHARS), fontsize=14, va="top", color="#444444")
    axes.set_title("Attainable TFLOP/s", loc="left", fontsize=14, pad=12)
    axes.set_xlabel("FLOPs per byte read")
    _roof(axes, made)
    _points(axes, made)
    note = (
        "More compute lifts the flat part alone, and does nothing for what stands on the slope: there, fewer bytes or "
        "more bandwidth do."
    )
    figure.text(0.02, 0.025, note, fontsize=11.5, color="#444444")
    return figure


def _roof(axes: Axes, made: Sheet) -> None:
    """The slope of the bandwidth, the flat of the compute rate, and the ridge where they meet."""
    top, ridge = _corner(made)
    work = [point.flops_per_byte for point in made.roofline]
    low, high = min(*work, ridge / 10) / 3, max(*work, ridge) * 12
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low / ridge * top, top * 6))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1,)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(panels.tick))
    axes.grid(visible=True)
    axes.plot([low, ridge, high], [low / ridge * top, top, top], color=panels.GREY, linewidth=2.4, zorder=2)
    axes.axvline(ridge, color=panels.GREY, linestyle=(0, (1, 1.5)), linewidth=1.6)
    for text, y, left in (
        (f"bound by bandwidth, {made.bytes_per_s / 1e12:.3g} TB/s", 1.0, True),
        (f"bound by compute, {top:,.4g} TFLOP/s", 1.0, False),
        (f"ridge: {ridge:,.0f} FLOPs a byte", 0.045, False),
    ):
        axes.annotate(
            text, (ridge, y), (-8 if left else 8, -2), xycoords=("data", "axes fraction"), textcoords="offset points",
            ha="right" if left else "left", va="top", fontsize=panels.LABEL_PT, color=panels.GREY,
        )  # fmt: skip


def _corner(made: Sheet) -> tuple[float, float]:
    """TFLOP/s and FLOPs per byte of the ridge."""
    assert made.flops_per_s is not None, "a roof needs its flat part"
    return made.flops_per_s / _TERA, made.flops_per_s / made.bytes_per_s


def _points(axes: Axes, made: Sheet) -> None:
    """The phases; their labels keep clear of the roof, of which the ends and the corner are points without one."""
    top, ridge = _corner(made)
    x, y = (np.array([getattr(point, side) for point in made.roofline]) for side in ("flops_per_byte", "flops_per_s"))
    axes.plot(x, y / _TERA, **(panels.P50 | {"linestyle": "none"}), zorder=3)
    at = np.concatenate((x, [axes.get_xlim()[0], ridge, axes.get_xlim()[1]]))
    order = np.argsort(at, kind="stable")
    labels = [*(point.name for point in made.roofline), "", "", ""]
    roof = top * np.minimum(at / ridge, 1)[order]
    named = [labels[place] for place in order]
    frame = axes.get_window_extent()
    line = np.array([axes.transData.transform((ridge, top))[0], (frame.y0 + frame.y1) / 2])
    upright = (line, np.array([1.0, frame.height / 2]))  # the line of the ridge
    panels.write_labels(axes, named, at[order], roof, [roof], [panels.NEAR_PT] * len(named), [upright])
