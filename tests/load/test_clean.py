"""A client that is not in the way accuses nobody, on a machine that lets it run."""

from pathlib import Path

import pytest

from tests.load.command import run
from tests.test_selfcheck import client_findings

SLOTS = 4
TRIES = 8  # where something else takes the cores for a while, it is the client, and the tool is right to say so
SERVER = "sim:llama-3.1-8b@h100,bandwidth_efficiency=0.1"  # 48 ms a token: rare enough that a short wait is none of two
FLAGS = f"--concurrency {SLOTS} --duration 3s --input 32 --output 10 --metrics none"


def test_a_clean_run_accuses_nobody(tmp_path: Path) -> None:
    for attempt in range(TRIES):
        level = run(tmp_path / str(attempt), SERVER, *FLAGS.split()).summary
        if not client_findings(level):
            break
    assert client_findings(level) == {}
    assert level["validity"] == "VALID"
    assert level["achieved"]["concurrency"] == pytest.approx(SLOTS, rel=0.05)
    assert 0 < level["client"]["cpu_share"] < 0.8
    assert level["client"]["bound_share"] < 0.01
