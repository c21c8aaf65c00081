"""Processes of our own that end when the one that started them says so, and not by a signal.

Ctrl-C, and whoever stops a whole service, send theirs to all processes at once: to these too, also while they start.
"""

import signal
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess

_NOT_THEIRS = (signal.SIGINT, signal.SIGTERM)


def start_deaf(process: SpawnProcess) -> None:
    resource_tracker.ensure_running()  # as it starts, it lets these signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_THEIRS)
    try:
        process.start()  # what is blocked here is blocked there, from the first instruction on
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
