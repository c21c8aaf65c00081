from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation, Text

from analysis import compare, compare_plots, panels
from analysis.quantiles import Distribution
from tests import fakes_compare as fakes

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from analysis.tuned import Setting


def sweep(name: str, most: float, **changes: Any) -> Setting:
    """A setting that grows up to `most` tokens/s, in two blocks."""
    runs = [
        fakes.run(*(fakes.level(n, most * n / (n + 8), 1 + n / 10 + block / 100) for n in (1, 4, 16, 64)), **changes)
        for block in range(2)
    ]  # fmt: skip
    return fakes.tuned(name, runs)


SETTINGS = [sweep("max_num_seqs=16", 1000), sweep("max_num_seqs=64", 2000)]


def figure(*settings: Setting) -> Figure:
    return compare_plots._figure(list(settings), compare.compare(settings))


def words(made: Figure) -> str:
    return " ".join(text.get_text() for text in made.findobj(Text))


def test_the_same_comparison_gives_the_same_bytes(tmp_path: Path) -> None:
    found = compare.compare(SETTINGS)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        compare_plots.draw(SETTINGS, found, tmp_path / name)
    for name in ("compare.png", "compare.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    ET.parse(tmp_path / "a" / "compare.svg")


def test_each_setting_is_a_line_in_each_panel() -> None:
    made = figure(*SETTINGS)
    for axes in made.axes:
        lines = [line for line in axes.get_lines() if line.get_marker() != "None"]
        assert [np.size(line.get_xdata()) for line in lines] == [4, 4]
        assert len(lines) == 2
    legend = made.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["max_num_seqs=16", "max_num_seqs=64"]
    assert "Means of 2 blocks or more: an indication." in words(made)


def test_points_are_geometric_means_of_blocks() -> None:
    ttft = figure(*SETTINGS).axes[0]
    y = np.asarray(ttft.get_lines()[0].get_ydata())
    assert y[0] == pytest.approx(200 * np.sqrt(1.1 * 1.11))


def test_the_slo_is_a_region_at_its_own_percentile() -> None:
    ttft, itl, front = figure(*(sweep(name, 1000, slo=("ttft p95 < 600ms",)) for name in "ab")).axes
    (region,) = [patch for patch in ttft.patches if isinstance(patch, Rectangle)]
    assert region.get_height() == 600
    assert "TTFT p95" in ttft.get_title(loc="left")
    assert "ITL p99" in itl.get_title(loc="left")
    assert not itl.patches
    assert not front.patches


def test_a_limit_far_off_leaves_the_points_their_room() -> None:
    ttft = figure(*(sweep(name, 1000, slo=("ttft p99 < 600s",)) for name in "ab")).axes[0]
    assert not ttft.patches


def test_a_p99_that_few_levels_have_is_not_drawn() -> None:
    settings = [fakes.alone(name, fakes.level(8, p99=False), fakes.level(16, 150, p99=False)) for name in "ab"]
    made = figure(*settings)
    assert "TTFT p50" in made.axes[0].get_title(loc="left")
    assert "One start of each" in words(made)


def test_loads_are_named_once_where_points_coincide() -> None:
    same = figure(sweep("a", 1000), sweep("b", 1000))
    for axes in same.axes:
        names = [text.get_text() for text in axes.texts if isinstance(text, Annotation)]
        assert sorted(names) == ["1", "16", "4", "64"]
    apart = figure(*SETTINGS).axes[2]
    assert [text.get_text() for text in apart.texts].count("64") == 2


def test_rates_are_said_to_be_such() -> None:
    settings = [fakes.alone(name, fakes.level(concurrency=None, rate_per_s=4.0)) for name in "ab"]
    assert "Labels: requests per second." in words(figure(*settings))


def test_nothing_to_draw_is_said() -> None:
    level = fakes.level()
    bare = {name: Distribution(n=1) for name in fakes.LATENCIES}
    unknown = msgspec.structs.replace(level.throughput, output_tokens_per_s=None, per_user_tokens_per_s=None)
    settings = [fakes.alone(name, msgspec.structs.replace(level, throughput=unknown, **bare)) for name in "ab"]
    assert words(figure(*settings)).count("no level has a result to draw") == 3


def test_a_setting_that_failed_is_no_line(tmp_path: Path) -> None:
    settings = [*SETTINGS, fakes.tuned("broken", [], ["block 0: no"])]
    compare_plots.draw(settings, compare.compare(settings), tmp_path)
    assert (tmp_path / "compare.png").stat().st_size > 10_000


def test_many_settings_are_told_apart() -> None:
    styles = [compare_plots.style(place) for place in range(12)]
    kinds = [(one["color"], one["marker"], one["linestyle"]) for one in styles]
    assert len(set(kinds)) == 12
    assert all(one["markersize"] >= 5 for one in styles)


points = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=15)


@given(points)
def test_pareto(made: list[tuple[float, float]]) -> None:
    x, y = np.array(made).T
    front = compare_plots.pareto(x, y)
    assert all(x[a] < x[b] and y[a] > y[b] for a, b in itertools.pairwise(front))
    for place in range(len(x)):
        assert any(x[n] >= x[place] and y[n] >= y[place] for n in front)


def test_pareto_leaves_out_what_is_not_known() -> None:
    assert compare_plots.pareto(np.array([1.0, np.nan, 3.0]), np.array([2.0, 9.0, np.nan])) == [0]
    assert panels.FAR > 1
