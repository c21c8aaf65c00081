from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from analysis import curve, panels
from analysis.curve import Estimate, Measured
from analysis.panels import Limit, Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

N = [1, 2, 4, 8, 16, 32, 64]


@pytest.fixture
def axes() -> Axes:
    figure = Figure(figsize=(4, 6), dpi=72)
    FigureCanvasAgg(figure)
    return figure.subplots()


def points(*latencies: float) -> list[Point]:
    return [
        Point(label=str(i), valid=True, x=10.0 * i, p50=latency, p99=2 * latency)
        for i, latency in enumerate(latencies, start=1)
    ]


def found(rates: list[float]) -> curve.Curve:
    return curve.curve(
        [
            Measured(
                level=i,
                concurrency=n,
                load=n,
                valid=True,
                over_saturated=False,
                one_rate=False,
                tokens_per_s=rate,
                tokens_per_s_ci95=(rate * 0.98, rate * 1.02),
                verdicts=frozenset(),
            )
            for i, (n, rate) in enumerate(zip(N, rates, strict=True))
        ]
    )


def dotted(axes: Axes) -> list[list[float]]:
    lines = (line for line in axes.lines if line.get_marker() == panels.FLOOR["marker"])
    return [np.asarray(line.get_ydata()).tolist() for line in lines]


def test_the_floor_is_drawn_under_the_valid_levels(axes: Axes) -> None:
    made = [msgspec.structs.replace(point, floor=5.0 + i) for i, point in enumerate(points(20, 30, 40))]
    made[1] = msgspec.structs.replace(made[1], valid=False)
    panels.latency(axes, made, [Limit(text="itl p99 < 6ms", ms=6)], None)
    assert dotted(axes) == [[5, 7]]
    (name,) = (text for text in axes.texts if text.get_text() == "hardware floor")
    assert name.xy == (30, 7)  # type: ignore[attr-defined]
    assert name.get_color() == panels.GREY


def test_a_floor_far_below_leaves_the_points_their_room(axes: Axes) -> None:
    made = [msgspec.structs.replace(point, floor=0.1) for point in points(20, 400)]
    panels.latency(axes, made, [], None)
    assert dotted(axes) == []
    assert axes.get_ylim()[0] > 10


def test_without_a_floor_there_is_none(axes: Axes) -> None:
    panels.latency(axes, points(20, 30), [], None)
    assert dotted(axes) == []
    assert "hardware floor" not in [text.get_text() for text in axes.texts]


def grown(axes: Axes, made: curve.Curve, rates: list[float], holds: float | None = None) -> dict[str, Any]:
    panels.growth(axes, made, [(n, rate, True) for n, rate in zip(N, rates, strict=True)], holds)
    return {text.get_text(): text for text in axes.texts}


def capped(cap: float) -> list[float]:
    return [min(n, cap) / (0.007 + 9e-5 * min(n, cap)) for n in N]


def test_the_law_is_drawn_between_the_levels_alone(axes: Axes) -> None:
    rates = capped(32)
    texts = grown(axes, found(rates), rates)
    law = axes.lines[0]
    x, y = (np.asarray(data, float) for data in law.get_data())
    assert (x[0], x[-1]) == (1, 64)
    assert y.max() == pytest.approx(max(rates), rel=0.01)
    assert list(texts) == ["knee: 32", f"saturated: {max(rates):,.0f}"]


def test_the_band_of_the_knee_is_its_interval(axes: Axes) -> None:
    rates = capped(32)
    made = found(rates)
    grown(axes, made, rates)
    band = next(patch for patch in axes.patches if isinstance(patch, Rectangle))
    assert (band.get_x(), band.get_x() + band.get_width()) == made.knee.ci95


def test_an_interval_without_an_end_goes_to_the_last_level(axes: Axes) -> None:
    rates = capped(32)
    made = msgspec.structs.replace(found(rates), knee=Estimate(value=50.0, ci95=(None, None)))
    grown(axes, made, rates)
    band = next(patch for patch in axes.patches if isinstance(patch, Rectangle))
    assert (band.get_x(), band.get_x() + band.get_width()) == (1, 64)


def test_what_is_unknown_is_not_drawn(axes: Axes) -> None:
    rates = [140.0 * n for n in N]
    assert grown(axes, found(rates), rates) == {}
    assert not axes.patches
    assert len([line for line in axes.lines if np.size(line.get_xdata())]) == 2  # the law and the levels


def test_the_region_that_holds_ends_at_its_load(axes: Axes) -> None:
    rates = capped(32)
    grown(axes, found(rates), rates, holds=16)
    assert max(patch.get_extents().transformed(axes.transData.inverted()).x1 for patch in axes.patches[:1]) == (
        pytest.approx(16)
    )


def test_a_limit_far_above_the_points_is_left_out(axes: Axes) -> None:
    panels.latency(axes, points(10, 20, 30), [Limit(text="near", ms=500), Limit(text="far", ms=900)], None)
    texts = [text.get_text() for text in axes.texts]
    assert "near" in texts
    assert "far" not in texts
    assert axes.get_ylim()[1] > 500


def test_labels_keep_clear_of_limits(axes: Axes) -> None:
    panels.latency(axes, points(10, 20, 30), [Limit(text="ttft p99 < 21ms", ms=21)], None)
    axes.figure.canvas.draw()
    renderer = axes.figure.canvas.get_renderer()  # type: ignore[attr-defined]
    boxes = [text.get_window_extent(renderer) for text in axes.texts]
    assert not any(boxes[0].overlaps(other) for other in boxes[1:])


def test_a_panel_of_over_saturated_levels_has_no_scale(axes: Axes) -> None:
    lost = [Point(label="8/s", valid=False, x=8, p50=np.nan, p99=np.nan)]
    panels.latency(axes, lost, [], None)
    assert list(axes.get_yticks()) == []
    assert [text.get_text() for text in axes.texts] == ["8/s"]
