"""`loadgen check TARGET`: what a run would find before its first request."""

import json

from loadgen.cli.options import Options, settings
from loadgen.cli.signals import EXIT_INTERRUPTED, run_loop

_DEFAULT = Options()


def check(target: str, /, options: Options = _DEFAULT) -> int:
    """Probe a target without load: its address, model, what it accepts, and how it counts tokens.

    Parameters
    ----------
    target
        As for run.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from loadgen.run import probe

    chosen = settings(target, options)
    server = run_loop(probe(chosen))
    if server is None:
        return EXIT_INTERRUPTED
    facts = {"model": server.dialect.model, "api": server.dialect.api, **server.facts}
    console = Console()
    if options.json:
        console.out(json.dumps(facts, indent=2, allow_nan=False), highlight=False)  # ASCII: nothing steers a terminal
        return 0
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in facts.items():
        shown = ", ".join(map(str, value)) or "none" if isinstance(value, list) else value
        table.add_row(
            name.replace("_", " "), Text("unknown" if shown is None else str(shown).encode("unicode_escape").decode())
        )
    console.print(table)
    return 0
