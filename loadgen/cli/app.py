"""The command line: `loadgen COMMAND`. Each command is a file of its own and imports what it needs when it runs."""

import io
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

from cyclopts import App, CycloptsError
from cyclopts.config import Toml

from loadgen.cli.arguments import hide_keys, without_keys
from loadgen.cli.signals import EXIT_INTERRUPTED, leave_at_once

EXIT_USAGE = 2

app = App(
    name="loadgen",
    help="Measure how an LLM endpoint serves: TTFT, ITL and throughput at each load, and the curve that joins them.",
    help_epilogue="""Examples

    loadgen run localhost:8000
    loadgen run https://api.example.com/v1 --model m --concurrency 1,8,32
    loadgen run sim:llama-3.1-8b@h100 --input 512 --output 128
    loadgen slo localhost:8000 --slo "ttft p99 < 500ms" --concurrency 16
    loadgen run localhost:8000 --json --quiet | jq '.levels[].ttft_ms.p50'
    loadgen report runs/NAME
    loadgen floors llama-3.1-8b@h100 --dtype bf16
""",
    help_format="plaintext",
    version_flags=["--version"],
)
for name, text in {
    "run": "Measure one or more levels of load.",
    "slo": "Does an SLO hold at a load, or which is the largest load at which it does?",
    "tune": "Measure a server under one setting after another, and compare them.",
    "floors": "What a model on a GPU cannot beat, how much KV cache fits, and which max_num_seqs to try.",
    "check": "One probe: address, model, what the server accepts, how it counts tokens.",
    "plan": "Print the requests that a run would send, as JSON lines.",
    "report": "Summary, table and plots again from a recorded run.",
    "compare": "Recorded runs side by side, with intervals.",
    "sim": "Serve the simulated engine.",
}.items():
    app.command(f"loadgen.cli.{name}:{name}", name=name, help=text)


def main() -> None:
    leave_at_once()
    hide_keys()
    _lean_on_nobody()
    sys.exit(execute(sys.argv[1:]))


class _Talk(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _lean_on_nobody() -> None:
    """What is said on standard error is not worth a run: its reader may go away, or its disk be full. And a process may
    be started without any of its standard files, whose numbers uvloop would not have taken by others."""
    while (file := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(file)
    talk = io.BufferedWriter(_Talk(2, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(talk, errors="backslashreplace", line_buffering=True)


def execute(arguments: list[str]) -> int:
    """Run one command line; the exit code. What the user got wrong is one line on standard error."""
    try:
        arguments = _use_config(arguments)
        result = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        said = without_keys(str(error))  # it repeats words of the command line
        return _complain(f"{said} (loadgen --help shows the flags)")
    except ValueError as error:
        return _complain(str(error))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _complain(f"{place}{error.strerror or error}")
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return result if isinstance(result, int) else 0


def _use_config(arguments: list[str]) -> list[str]:
    """`--config FILE` has to be known before the other flags are read."""
    app.config = ()
    for place, word in enumerate(arguments):
        if word == "--config" and place + 1 < len(arguments):
            path, rest = arguments[place + 1], arguments[place + 2 :]
        elif word.startswith("--config="):
            path, rest = word.removeprefix("--config="), arguments[place + 1 :]
        else:
            continue
        _check_config(path)
        app.config = (Toml(path, use_commands_as_keys=False),)
        return [*arguments[:place], *rest]
    return arguments


def _check_config(path: str) -> None:
    try:
        values = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ValueError(f"--config {path}: {(error.strerror or str(error)).lower()}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"--config {path}: not a TOML file ({error})") from None
    if tables := [name for name, value in values.items() if isinstance(value, dict)]:
        raise ValueError(f"--config {path}: [{tables[0]}]: flags stand at the top of the file, not in tables")


def _complain(message: str) -> int:
    line = " ".join(str(message).split())
    sys.stderr.write("".join(c for c in f"loadgen: {line}" if c.isprintable()) + "\n")
    return EXIT_USAGE


if __name__ == "__main__":
    main()
