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

    from rich.console import Console

    from analysis.diagnosis import Diagnosis
    from analysis.measured import Level
    from analysis.summary import Summary

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


def show(run: Summary, console: Console) -> None:
    """Which level is slow at what, in a line; then what limits the run, why, and what would change it."""
    if not run.diagnoses:
        return
    named = "; ".join(f"{row.diagnosis.code} at {row.where}" for row in rows(run.levels))
    console.print(Text(f"slow at what: {named}"))
    grid = Table.grid(padding=(0, 1, 0, 0))
    for one in run.diagnoses:
        style = "dim" if one.code in _CALM else "yellow"
        text = Text.assemble(f"{safe(one.words)}\n", (f"{safe(one.evidence)}\n", "dim"), safe(one.lever))
        grid.add_row(Text(one.code, style=f"bold {style}"), text)
    console.print(grid)
