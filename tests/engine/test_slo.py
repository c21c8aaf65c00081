"""The largest load that a real vLLM holds is what its own limit on sequences makes it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.conftest import Engine

BUDGET_S = 360


def test_the_largest_concurrency_is_near_max_num_seqs(engine: Engine, tmp_path: Path) -> None:
    """With all its places taken, a request waits for one to end: a quarter of the time that one takes (here about a
    second) for each user too many."""
    if engine.max_num_seqs is None:
        pytest.skip("the flags of the engine at ENGINE_URL are not known")
    out = tmp_path / "found"
    command = [
        *(str(Path(sys.executable).with_name("loadgen")), "slo", engine.url, "--find", "concurrency"),
        *("--concurrency", "1..64", "--slo", "ttft p95 < 200ms", "--input", "64", "--output", "128"),
        *("--budget", f"{BUDGET_S}s", "--out", str(out), "--json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUDGET_S + 120)
    assert (out / "summary.json").exists(), f"exit code {done.returncode}, no summary:\n{done.stderr[-4000:]}"
    assert done.returncode in (0, 3), done.stderr[
        -4000:
    ]  # 3: where cores are shared, a budget may not decide both ends
    found = json.loads(done.stdout)["answer"]["found"]
    seems = found["seems"]
    low, high = float(found["holds"] or seems[0]), float(found["fails"] or seems[1])
    assert engine.max_num_seqs - 1 <= low < high <= engine.max_num_seqs + 4, done.stderr[-4000:]
    if done.returncode == 0:
        assert (found["holds"], found["fails"]) == (low, high)
        assert low >= engine.max_num_seqs
