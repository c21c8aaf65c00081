from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import matplotlib
import msgspec
import numpy as np
import pytest
from matplotlib.text import Text

from analysis import floor_plots, floor_sheet, plots
from analysis.floor_sheet import Question, Sheet
from analysis.hardware import parse

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure


def sheet(text: str = "llama-3.1-8b@h100,dtype=bf16", **changes: Any) -> Sheet:
    usual = {"input_tokens": 1155, "output_tokens": 211, "batch": 32, "context_tokens": 1260.5}
    return floor_sheet.sheet(parse(text), Question(**(usual | changes)))


def figure(made: Sheet) -> Figure:
    with matplotlib.rc_context(plots.STYLE):
        return floor_plots._figure(made)


def test_the_same_sheet_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        floor_plots.draw(sheet(), tmp_path / name)
    for name in ("roofline.png", "roofline.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    ET.parse(tmp_path / "a" / "roofline.svg")


@pytest.mark.parametrize(
    "made",
    [
        sheet(),
        sheet("7b@h100,dtype=bf16", input_tokens=4096, batch=300),
        sheet("gpt-oss-120b@l4,dtype=mxfp4", input_tokens=5),
        sheet("deepseek-v3@h200,dtype=fp8,gpus=8", input_tokens=100_000, batch=1),
    ],
    ids=lambda made: made.hardware,
)
def test_each_phase_has_its_point_and_a_label_that_overlaps_no_other(made: Sheet) -> None:
    drawn = figure(made)
    axes = drawn.axes[0]
    markers = next(line for line in axes.get_lines() if line.get_marker() == "o")
    assert np.asarray(markers.get_xdata()).tolist() == [point.flops_per_byte for point in made.roofline]
    names = {point.name for point in made.roofline}
    labels = [text for text in drawn.findobj(Text) if text.get_text() in names]
    assert {text.get_text() for text in labels} == names
    boxes = [text.get_window_extent() for text in labels]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    frame = drawn.bbox
    assert all(frame.contains(*box.min) and frame.contains(*box.max) for box in boxes)


def test_the_ridge_is_where_the_two_limits_meet() -> None:
    words = " ".join(text.get_text() for text in figure(sheet()).findobj(Text))
    assert "ridge: 295 FLOPs a byte" in words
    assert "bound by bandwidth, 3.35 TB/s" in words
    assert "bound by compute, 989 TFLOP/s" in words


def test_a_strange_name_can_be_drawn(tmp_path: Path) -> None:
    floor_plots.draw(msgspec.structs.replace(sheet(), hardware="\U0001f600$x_1$\x07" + "y" * 200), tmp_path)
    ET.parse(tmp_path / "roofline.svg")
