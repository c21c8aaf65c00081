"""Processes that signals leave alone."""

import multiprocessing
import signal
from multiprocessing.connection import Connection

from loadgen.children import start_deaf


def _say_what_is_blocked(pipe: Connection) -> None:
    pipe.send(signal.pthread_sigmask(signal.SIG_BLOCK, []))


def test_a_child_is_deaf_and_its_parent_is_not() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_say_what_is_blocked, args=(theirs,), daemon=True)
    start_deaf(process)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    theirs.close()
    assert {signal.SIGINT, signal.SIGTERM} <= ours.recv()
    process.join()
