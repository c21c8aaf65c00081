"""`loadgen tune` on a real vLLM: it tells two settings apart, survives one that cannot start, and leaves no process."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import FLAGS, free_port, install

SETTINGS = ("2", "8", "0")  # vLLM refuses the last
BLOCKS = 3
TIMEOUT_S = 1500.0  # of all starts and loads
LOAD = ["--concurrency", "8", "--requests", "64", "--input", "64", "--output", "32"]


def processes_of(folder: Path) -> set[int]:
    """Those that were started there: whatever they call themselves, and whoever their parent is by now."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):  # it has just ended
            if path.readlink() == folder:
                found.add(int(path.parent.name))
    return found


def tune(folder: Path, *flags: str) -> subprocess.Popen[str]:
    if os.environ.get("ENGINE_URL"):
        pytest.skip("tune starts servers of its own")
    directory = install()
    words = ["nice", "-n", "10", str(directory / "bin/vllm"), "serve", str(directory / "model")]
    words += ["--host", "127.0.0.1", "--port", str(free_port()), *FLAGS, "--max-num-seqs"]  # the last one counts
    launch = f"{shlex.join(words)} {{max_num_seqs}}"
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    command = [sys.executable, "-m", "loadgen.cli.app", "tune", "--launch", launch, *flags, "--out", "out"]
    return subprocess.Popen(command, cwd=folder, env=os.environ | environment, stderr=subprocess.PIPE, text=True)


class Tuned:
    def __init__(self, folder: Path) -> None:
        self.left = processes_of(folder)
        self.folder = folder / "out"
        self.tune = json.loads((self.folder / "tune.json").read_text())

    def runs(self, value: str) -> list[dict[str, Any]]:
        names = [one["values"]["max_num_seqs"] for one in self.tune["settings"]]
        runs = (run for run in self.tune["runs"] if run["setting"] == names.index(value))
        return sorted(runs, key=lambda run: run["block"])

    def levels(self, value: str) -> list[dict[str, Any]]:
        """In the order of the blocks."""
        found = []
        for run in self.runs(value):
            assert run["error"] is None, (self.folder / run["log"]).read_text()[-4000:]
            (level,) = json.loads((self.folder / run["directory"] / "summary.json").read_text())["levels"]
            found.append(level)
        return found


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    folder = tmp_path_factory.mktemp("tune")
    process = tune(folder, "--set", f"max_num_seqs={','.join(SETTINGS)}", "--repeats", str(BLOCKS), *LOAD)
    _, said = process.communicate(timeout=TIMEOUT_S)
    assert (folder / "out/tune.json").exists(), said[-4000:]
    return Tuned(folder)


def test_more_sequences_at_once_give_more_throughput_and_less_waiting(tuned: Tuned) -> None:
    two, eight = tuned.levels("2"), tuned.levels("8")
    assert len(two) == len(eight) == BLOCKS
    for at_two, at_eight in zip(two, eight, strict=True):
        assert {at_two["requests"]["failed"], at_eight["requests"]["failed"]} == {0}
        throughput = [level["throughput"]["output_tokens_per_s"] for level in (at_two, at_eight)]
        assert throughput[1] > 1.2 * throughput[0]
        assert at_two["ttft_ms"]["p50"] > 2 * at_eight["ttft_ms"]["p50"]  # six of eight wait


def test_the_comparison_is_sure_of_it(tuned: Tuned) -> None:
    """And the server's own metrics say why: with two places, six of eight wait."""
    compared = json.loads((tuned.folder / "compare.json").read_text())
    (ratio,) = (
        one for one in compared["ratios"] if (one["setting"], one["metric"]) == ("max_num_seqs=8", "throughput")
    )
    assert ratio["ci95"][0] is not None, compared["invalid"]
    assert ratio["ci95"][0] > 1
    assert ratio["ratio"] > 1.2
    waiting = {value: [level["server"]["waiting"]["mean"] for level in tuned.levels(value)] for value in ("2", "8")}
    assert min(waiting["2"]) > 4
    assert max(waiting["8"]) < 1


def test_a_setting_that_cannot_start_is_a_result_with_its_log(tuned: Tuned) -> None:
    for run in tuned.runs("0"):
        assert (run["directory"], run["error"]) == (None, "the server ended with exit code 1 before it was ready")
        assert "max_num_seqs" in (tuned.folder / run["log"]).read_text()
    assert len(tuned.runs("0")) == BLOCKS


def test_no_process_is_left(tuned: Tuned) -> None:
    assert tuned.left == set()


def test_an_interrupt_in_the_load_leaves_no_process(tmp_path: Path) -> None:
    load = ["--concurrency", "4", "--duration", "5m", "--input", "64", "--output", "32"]
    process = tune(tmp_path, "--set", "max_num_seqs=4", *load)
    rows = tmp_path / "out/block-0/max_num_seqs=4/requests.jsonl"
    for _ in range(5000):
        if process.poll() is not None or (rows.exists() and rows.stat().st_size):
            break
        time.sleep(0.1)
    assert rows.exists()
    assert len(processes_of(tmp_path)) >= 4  # this one, its supervisor, the server and its engine
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said[-4000:]
    assert processes_of(tmp_path) == set()
    assert json.loads((tmp_path / "out/tune.json").read_text())["runs"] == []
