"""SIGINT and SIGTERM outside the event loop: they end the process at once.

The exception that Python would raise instead can come in the middle of an import, and leave a library half begun: some
abort the process then. Nothing is lost: what was measured is written, and `loadgen report` reads it.
"""

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

EXIT_INTERRUPTED = 130

_Result = TypeVar("_Result")


def leave_at_once() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(EXIT_INTERRUPTED))


def run_loop(main: Coroutine[Any, Any, _Result]) -> _Result | None:
    """What it returns; None where an interrupt ended it."""
    import uvloop

    before = signal.signal(signal.SIGINT, signal.default_int_handler), signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        return uvloop.run(main)
    except (asyncio.CancelledError, KeyboardInterrupt):
        return None
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
