from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import matplotlib
import msgspec
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation, Text

from analysis import measured, panels, plots, summary
from analysis.evidence import Finding
from tests import fakes_run as fakes

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from analysis.measured import Level
    from analysis.summary import Summary

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return summary.summarize(fakes.sweep(tmp_path_factory.mktemp("run")))


def levels_like(level: Level, *points: tuple[Any, ...]) -> tuple[Level, ...]:
    """Levels of (concurrency, output tokens/s, p50, p99), the same in both panels."""
    new = []
    for place, (concurrency, rate, p50, p99) in enumerate(points):
        spread = msgspec.structs.replace(level.ttft_ms, p50=p50, p99=p99)
        throughput = msgspec.structs.replace(level.throughput, output_tokens_per_s=rate)
        changes = {"ttft_ms": spread, "itl_ms": spread, "throughput": throughput, "concurrency": concurrency}
        new.append(msgspec.structs.replace(level, level=place, **changes))
    return tuple(new)


def of(made: Summary, levels: tuple[Level, ...], slo: tuple[str, ...] = (), **curve: Any) -> Summary:
    """The run with other levels, and without a law but what `curve` says."""
    changes = {"fit": None, "why_no_fit": None, "holds": None, "fails": None} | curve
    found = msgspec.structs.replace(made.curve, **changes)
    return msgspec.structs.replace(made, levels=levels, slo=slo, curve=found)


def rates_like(level: Level, *points: tuple[float, float | None]) -> tuple[Level, ...]:
    """Levels of (rate, p50); without a p50 they are over-saturated."""
    finding = Finding("over-saturated", "error", "")
    new = []
    for place, (rate, p50) in enumerate(points):
        made = levels_like(level, (None, 10 * rate, p50, p50))[0]
        changes = {"findings": (finding,), "validity": "INVALID"} if p50 is None else {}
        new.append(msgspec.structs.replace(made, level=place, rate_per_s=rate, **changes))
    return tuple(new)


def words(figure: Figure) -> str:
    return " ".join(text.get_text().replace("\n", " ") for text in figure.texts)


def test_the_same_summary_gives_the_same_bytes_under_any_settings(tmp_path: Path, made: Summary) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    plots.draw(made, tmp_path / "a")
    with matplotlib.rc_context({"font.size": 30, "savefig.dpi": 20, "svg.fonttype": "none", "axes.facecolor": "red"}):
        plots.draw(made, tmp_path / "b")
    for name in ("curve.png", "curve.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    svg = (tmp_path / "a" / "curve.svg").read_text()
    assert "matplotlib.org" not in svg
    assert "dc:date" not in svg


def test_drawing_leaves_no_trace(tmp_path: Path, made: Summary) -> None:
    before = dict(matplotlib.rcParams)
    plots.draw(made, tmp_path)
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(1, 100.0, 20.0, 30.0)],
        [(1, 100.0, 20.0, None)],
        [(1, None, None, None)],
        [(1, 100.0, None, 30.0), (2, 150.0, 30.0, None)],
        [(1, 0.0, 0.0, 0.0)],
        [(1, 100.0, 20.0, 30.0), (2, 101.0, 90_000.0, 200_000.0)],
        [(None, 5.0, 5.0, 5.0), (None, 5.0, 5.0, 5.0)],
    ],
)
def test_awkward_levels_are_drawn(tmp_path: Path, made: Summary, points: list[Any]) -> None:
    plots.draw(of(made, levels_like(made.levels[0], *points)), tmp_path)
    ET.parse(tmp_path / "curve.svg")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_any_name_is_drawn(tmp_path: Path, made: Summary) -> None:
    """Missing glyphs warn, broken formulas raise, control characters are not XML."""
    named = msgspec.structs.replace(made, model="模型 🚀 $x^ \x1b\x00<b>&amp;\ud7ff" + "long" * 99)
    plots.draw(named, tmp_path)
    ET.parse(tmp_path / "curve.svg")


@pytest.mark.parametrize("points", ["doubling", "wall"])
def test_labels_name_every_level_and_do_not_overlap(made: Summary, points: str) -> None:
    loads = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    curves = {
        "doubling": [(n, 4000 * n / (n + 40), 10.0 + n / 10, 14.0 + n / 5) for n in loads],
        "wall": [(n, min(n * 60.0, 1000 + n / 9), 20.0 if n < 20 else 20.0 * n, 40.0 + 30 * n) for n in loads],
    }
    with matplotlib.rc_context(plots.STYLE):
        figure = plots._figure(of(made, levels_like(made.levels[0], *curves[points])))
        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        for axes in figure.axes:
            labels = [child for child in axes.get_children() if isinstance(child, Annotation)]
            assert [label.get_text() for label in labels] == [str(load) for load in loads]
            # Of the text alone: an annotation's own extent has its leader line in it.
            extents = [Text.get_window_extent(label, canvas.get_renderer()) for label in labels]
            for one, other in itertools.combinations(extents, 2):
                assert not one.overlaps(other)


def test_invalid_levels_are_hollow_and_named(made: Summary) -> None:
    figure = plots._figure(made)
    words = " ".join(text.get_text().replace("\n", " ") for text in figure.texts)
    assert "Hollow and crossed: INVALID (256: survivors)" in words
    left = figure.axes[1]
    assert any(line.get_markerfacecolor() == "white" and np.size(line.get_xdata()) for line in left.lines)
    solid = next(line for line in left.lines if line.get_color() == panels.DARK and line.get_linestyle() == "-")
    assert np.size(solid.get_xdata()) == 4


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"rate_per_s": 4.0}, "Labels: requests per second due."),
        ({"rate_per_s": 4.0, "speed": 2.0}, "Labels: speed of the trace's replay."),
        ({"concurrency": 3}, "Labels: concurrent requests."),
    ],
)
def test_note_says_what_labels_are(made: Summary, plan: dict[str, float], words: str) -> None:
    level = (
        msgspec.structs.replace(made.levels[2], concurrency=None, **plan)
        if "concurrency" not in plan
        else made.levels[2]
    )
    figure = plots._figure(of(made, (level,)))
    assert any(words in text.get_text() for text in figure.texts)
    labels = [child.get_text() for child in figure.axes[0].get_children() if isinstance(child, Annotation)]
    assert labels == [measured.load(level)]


def test_a_mix_is_drawn_as_one_and_says_so(tmp_path: Path) -> None:
    mixed = summary.summarize(fakes.write(tmp_path, fakes.mix(), [], fakes.header(arrivals="trace:/home/me/day.csv")))
    words = " ".join(text.get_text() for text in plots._figure(mixed).texts)
    assert "Over all classes (chat, rag)." in words
    assert "trace arrivals" in words
    assert "/home" not in words


def test_title_names_model_workload_and_host(made: Summary) -> None:
    secret = msgspec.structs.replace(made, target="https://user:pw@api.example.com:8443/v1?key=k")
    words = " ".join(text.get_text() for text in plots._figure(secret).texts)
    assert "meta-llama/Llama-3.1-8B-Instruct" in words
    assert "chat (512 in, 256 out)" in words
    assert "api.example.com:8443" in words
    assert "pw" not in words
    assert "key" not in words


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("http://localhost:8000/v1", "localhost:8000"),
        ("localhost:8000", "localhost:8000"),
        ("host/base?x=1", "host"),
        ("sim:llama@h100,max_num_seqs=32", "sim:llama@h100,max_num_seqs=32"),
        ("http://[::1]:80/", "[::1]:80"),
    ],
)
def test_host(target: str, host: str) -> None:
    assert plots._host(target) == host


@pytest.mark.parametrize(("high", "scale"), [(100.0, "linear"), (1000.0, "log"), (100_000.0, "log")])
def test_axis_is_logarithmic_where_the_range_demands_it(made: Summary, high: float, scale: str) -> None:
    points = [(1, 10.0, 20.0, None), (2, 20.0, high, None)]
    axes = plots._figure(of(made, levels_like(made.levels[0], *points))).axes[0]
    assert axes.get_yscale() == scale
    low, top = axes.get_ylim()
    assert low < 20 < high < top
    assert sum(low <= tick <= top for tick in axes.get_yticks()) >= 2


def test_a_law_has_a_panel_of_its_own(made: Summary) -> None:
    figure = plots._figure(made)
    assert [axes.get_title(loc="left")[:6] for axes in figure.axes] == ["Output", "Time t", "Inter-"]
    assert "Grey: the law fitted" in words(figure)
    assert len(plots._figure(of(made, made.levels)).axes) == 2


def test_the_open_loop_is_over_the_rate(made: Summary) -> None:
    levels = rates_like(made.levels[2], (2, 20.0), (4, 25.0), (8, None))
    figure = plots._figure(of(made, levels))
    axes = figure.axes[0]
    assert axes.get_xlabel() == "Request rate, requests/s"
    labels = [child for child in axes.get_children() if isinstance(child, Annotation)]
    assert [(label.get_text(), label.xy[0]) for label in labels] == [("2/s", 2), ("4/s", 4), ("8/s", 8)]
    assert labels[2].xy[1] == axes.get_ylim()[1]
    assert "On the upper edge: over-saturated" in words(figure)
    assert "Too few" not in words(figure)
    assert "cannot support" not in words(figure)


def test_a_trace_is_over_the_throughput(made: Summary) -> None:
    level = msgspec.structs.replace(rates_like(made.levels[2], (2, 20.0))[0], speed=1.0)
    assert plots._figure(of(made, (level,))).axes[0].get_xlabel() == "Output throughput, tokens/s"


def test_limits_are_lines_and_what_holds_is_shaded(made: Summary) -> None:
    levels = rates_like(made.levels[2], (2, 20.0), (4, 25.0), (8, None))
    slo = ("ttft p99 < 40ms", "tpot p99 < 30ms", "itl p95 < 10s")
    figure = plots._figure(of(made, levels, slo, holds=4.0, fails=8.0))
    ttft, itl = figure.axes
    texts = [[text.get_text() for text in axes.texts] for axes in (ttft, itl)]
    assert "ttft p99 < 40ms" in texts[0]
    assert not any("tpot" in text for text in texts[0])
    assert "itl p95 < 10s" not in texts[1]  # far above the picture
    patches = [patch.get_bbox() for axes in (ttft, itl) for patch in axes.patches if isinstance(patch, Rectangle)]
    assert [box.x1 for box in patches] == [4, 4]
    assert patches[0].y1 == 40
    assert patches[1].y1 == itl.get_ylim()[1]
    assert "Shaded: the SLO holds, up to 4/s." in words(figure)
    assert not plots._figure(of(made, levels, holds=4.0)).axes[0].patches  # without an SLO nothing holds one
