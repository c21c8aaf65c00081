"""`loadgen compare A B ...`: recorded runs or settings side by side, with intervals."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from loadgen.cli.values import named

if TYPE_CHECKING:
    from analysis.compare import Compared
    from analysis.tuned import Setting


def compare(
    *directories: Path,
    gate: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    margin: str = "5%",
    aa: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    force: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    out: Path | None = None,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Recorded runs side by side: the ratio to the first, the baseline, per load and metric, with its interval.

    Exit codes: 0 compared, and every gate PASS. 1: a gate FAILED. 2: not comparable, or usage. 3: a gate is UNDECIDED;
    where that shall not stop a pipeline, end the line with `|| [ $? -eq 3 ]`. 4: levels are INVALID.

    Parameters
    ----------
    directories
        Directories that `loadgen run`, `slo` or `tune` wrote; of `tune` each setting counts. The first is the baseline.
    gate
        The worst that is allowed, such as 'ttft p99 +5%' or 'throughput -3%'; may be repeated. It FAILS only where the
        interval excludes it.
    margin
        Up to this a difference counts as none; to call it none is tested too.
    aa
        A against A: only by how much starts of the same setting differ. Runs that are given all count as one setting.
    force
        Compare although workload, model, API or client differ. The result says so.
    out
        Directory for compare.json, compare.png and compare.svg. Default: they are not written.
    json
        Print the comparison as JSON.
    """
    from rich.console import Console

    from analysis import compare as comparing
    from analysis import compare_tables, gates, tuned

    if not directories:
        raise ValueError("name two run directories or more, or one that `loadgen tune` wrote")
    held = [named("--gate", gates.parse, text) for text in gate]
    share = named("--margin", _share, margin)
    settings = tuned.read(list(directories))
    if aa:
        return _noise(settings, force=force, json=json)
    found = comparing.compare(settings, margin=share, held=held, force=force)
    if json:
        print(comparing.dumps(found), end="")  # noqa: T201 - the result goes to standard output
    else:
        compare_tables.show(found, Console())
    if out is not None:
        _write(found, settings, out)
        Console(stderr=True).print(f"{out}/: compare.json, compare.png, compare.svg", markup=False, highlight=False)
    return comparing.exit_code(found)


def _noise(settings: "list[Setting]", *, force: bool, json: bool) -> int:
    from rich.console import Console

    from analysis import compare, compare_tables, noise

    found = compare.against_itself(settings, force=force)
    if json:
        print(noise.dumps(found), end="")  # noqa: T201
    else:
        compare_tables.show_noise(found, Console())
    return 0


def _write(found: "Compared", settings: "list[Setting]", out: Path) -> None:
    from analysis import compare, compare_plots

    out.mkdir(parents=True, exist_ok=True)
    (out / "compare.json").write_text(compare.dumps(found), encoding="ascii")
    compare_plots.draw(settings, found, out)


def _share(text: str) -> float:
    """`5%` or `2.5%`."""
    match = re.fullmatch(r"([0-9]{1,2}(?:\.[0-9]{1,3})?)\s*%", text.strip())
    if match is None or float(match[1]) == 0:
        raise ValueError(f"{text!r} is no margin: write a percentage above 0 and below 100, such as 5%")
    return float(match[1]) / 100
