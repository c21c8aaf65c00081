"""`loadgen report RUN`: summary, table and plots again from a recorded run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from analysis.hardware import Hardware
    from analysis.summary import Summary


def report(
    run: Path,
    /,
    *,
    hardware: str | None = None,
    json: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Write summary.json, curve.png and curve.svg again, the same bytes from the same records, and print the table.

    Parameters
    ----------
    run
        The directory that `loadgen run` wrote.
    hardware
        What it ran on, for the floors, as for run; the record keeps what it has. Default: what the record says.
    json
        Print the summary as JSON instead of the table.
    """
    return present(run, hardware=None if hardware is None else _said(run, hardware), json=json)


def _said(directory: Path, text: str) -> "Hardware":
    """Raises ValueError."""
    from analysis import hardware_words, records
    from loadgen.cli import values

    served = records.read_header(directory).model
    return values.named("--hardware", lambda words: hardware_words.said(words, served), text)


def present(
    directory: Path,
    *,
    hardware: "Hardware | None" = None,
    json: bool = False,
    quiet: bool = False,
    answer_only: bool = False,
) -> int:
    """Finish a run and show it: results on standard output, where the files are on standard error.

    A run that has an answer begins with it; its levels follow, unless `answer_only`.

    The exit code. Raises ValueError where the run cannot be read.
    """
    from rich.console import Console

    from analysis import answer_tables, diagnosis_tables, summary, tables

    result, console = finish(directory, hardware), Console()
    if json:
        print(summary.dumps(result), end="")  # noqa: T201 - the result goes to standard output
    else:
        answer_tables.show(result, console)
        if not answer_only:
            tables.show(result, console)
            diagnosis_tables.show(result, console)
    if not quiet:
        Console(stderr=True).print(f"{directory}/: summary.json, curve.png, curve.svg", markup=False, highlight=False)
    return summary.exit_code(result)


def finish(directory: Path, hardware: "Hardware | None" = None) -> "Summary":
    """Write summary.json, curve.png and curve.svg from the records in `directory`."""
    from analysis import plots, summary

    result = summary.summarize(directory, hardware)
    summary.write(result, directory / "summary.json")
    plots.draw(result, directory)
    return result
