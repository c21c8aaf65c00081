"""At what a run is slow, in a terminal: each diagnosis once for all neighbouring levels that have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from rich.table import Table
from rich.text import Text

from analysis import measured
from analysis.tables import safe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.diagnosis import Diagnosis
    from analysis.measured import Level

_CALM = ("decode-bound", "prefill-bound", "unknown")  # no fault


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """`loads` are those of the levels that share the diagnosis; its numbers are of the last of them."""

    loads: tuple[str, ...]
    diagnosis: Diagnosis

    @property
    def where(self) -> str:
        return self.loads[0] if len(self.loads) == 1 else f"{self.loads[0]} to {self.loads[-1]}"


def rows(levels: Sequence[Level]) -> list[Row]:
    """In the order of the levels, the strongest of each first."""
    found: list[Row] = []
    open_: dict[str, int] = {}  # code -> place in `found`, of what the level before has
    for level in levels:
        still: dict[str, int] = {}
        for one in level.diagnoses:
            place = open_.get(one.code)
            if place is None or one.code in still:
                place = len(found)
                found.append(Row(loads=(), diagnosis=one))
            found[place] = Row(loads=(*found[place].loads, measured.load(level)), diagnosis=one)
            still[one.code] = place
        open_ = still
    return found


def table(levels: Sequence[Level]) -> Table:
    """The load, and in one cell below each other: code and words, evidence, lever."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows(levels):
        grid.add_row(Text(row.where), said(row.diagnosis))
    return grid


def said(one: Diagnosis) -> Text:
    style = "dim" if one.code in _CALM else "yellow"
    return Text.assemble(
        (one.code, f"bold {style}"), f" {safe(one.words)}\n", (f"{safe(one.evidence)}\n", "dim"), safe(one.lever)
    )
