"""What a real vLLM counts is what the client received, and is named as the tables say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen import prometheus
from tests.engine.conftest import Engine

OUTPUT_TOKENS = 32


def test_its_counters_agree_with_the_client(engine: Engine, tmp_path: Path) -> None:
    loadgen = str(Path(sys.executable).with_name("loadgen"))
    load = ["--concurrency", "2,8", "--input", "64", "--output", "32", "--requests", "160"]
    done = subprocess.run(
        [loadgen, "run", engine.url, *load, "--out", str(tmp_path / "run"), "--json"],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode in (0, 4), done.stderr[-4000:]
    rows = [json.loads(line) for line in (tmp_path / "run/server.jsonl").read_text().splitlines()]
    assert rows[0]["engine"] == "vllm"
    speculative = {"draft_tokens", "accepted_tokens"}
    named = {
        *prometheus.ENGINES["vllm"].values,
        *(f"{n}_{end}" for n in prometheus.ENGINES["vllm"].times for end in "sn"),
    }
    assert named - speculative <= rows[-1].keys()
    requests = [json.loads(line) for line in (tmp_path / "run/requests.jsonl").read_text().splitlines()]
    at_2, at_8 = json.loads(done.stdout)["levels"]
    for level in (at_2, at_8):
        said = level["server"]
        received = sum(row["output_tokens"] for row in requests if row["level"] == level["level"])
        assert said["received_tokens"] == received
        assert said["output_tokens"] == pytest.approx(received, rel=0.01)
        assert "server-tokens" not in {finding["code"] for finding in level["findings"]}
        assert said["ttft_ms"] < said["client_ttft_ms"]
        assert said["prefix_hit_share"] < 0.1
        assert said["kv_use"]["max"] > 0
    if engine.max_num_seqs is not None:
        # A sample a second: what it meets is up to chance, and what it can meet is not.
        assert 0 < at_8["server"]["running"]["max"] <= engine.max_num_seqs
        assert 0 < at_8["server"]["waiting"]["max"] < 8
        assert at_2["server"]["running"]["max"] <= 2
        assert at_8["server"]["queue_ms"] > 10 * at_2["server"]["queue_ms"]
