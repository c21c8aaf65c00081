"""At what a real vLLM is slow, and its floors: the truth is known from its flags and from the model's own files."""

import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from analysis import diagnose_run, floors, model_config, summary
from analysis.summary import Summary
from tests.engine.conftest import MAX_NUM_SEQS, Engine, install

WITHIN, BEYOND = (1, MAX_NUM_SEQS), (2 * MAX_NUM_SEQS, 4 * MAX_NUM_SEQS)  # users
LOAD = ("--concurrency", ",".join(map(str, WITHIN + BEYOND)), "--input", "64", "--output", "64", "--duration", "8s")
TRIES = 5
# The model's 10 MB fit into the processor's caches, so the memory's own bandwidth is no floor: no two cores read 200
# GB/s from either, and none computes 20 TFLOPS.
CPU = "cpu,memory_gb=16,bandwidth_gb_s=200,bf16_tflops=20"
SLOW = "cpu,memory_gb=16,bandwidth_gb_s=0.1,bf16_tflops=20"  # 0.1 s for one reading of the weights
KV_BYTES = 1 << 30  # VLLM_CPU_KVCACHE_SPACE, see conftest
SAVE = """
import sys
from transformers import AutoConfig, AutoModelForCausalLM
AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(sys.argv[1])).save_pretrained(sys.argv[2])
"""


def loadgen(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("loadgen")), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def run(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that nothing disturbed: server and client share their cores with whatever else goes on."""
    if engine.max_num_seqs is None:
        pytest.skip("the flags and the model of the engine at ENGINE_URL are not known")
    found: list[str] = []
    for _ in range(TRIES):
        out = tmp_path_factory.mktemp("diagnose") / "run"
        done = loadgen("run", engine.url, *LOAD, "--out", str(out), "--json")
        assert done.returncode in (0, 4), done.stderr[-4000:]
        found = [one["code"] for level in json.loads(done.stdout)["levels"] for one in level["findings"]]
        if not {"client-lag", "client-cpu", "send-lag", "little"} & set(found):
            assert done.returncode == 0, found
            return out
    pytest.fail(f"no run of {TRIES} was left undisturbed: {found}")


@pytest.fixture(params=["metrics", "none"])
def diagnosed(request: pytest.FixtureRequest, run: Path, tmp_path: Path) -> Summary:
    """As the run is diagnosed with the server's own count, and as without (`--metrics none`)."""
    if request.param == "none":
        run = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("server.jsonl"))
    made = summary.summarize(run)
    assert {level.server is None for level in made.levels} == {request.param == "none"}
    return made


def test_more_users_than_places_are_a_queue_and_the_places_are_counted(diagnosed: Summary) -> None:
    named = diagnosed.diagnoses[0]
    assert named.code == "queueing"
    assert f"the server runs about {MAX_NUM_SEQS} at once" in named.words
    for level in diagnosed.levels[len(WITHIN) :]:
        assert "queueing" in [one.code for one in level.diagnoses]
        assert diagnose_run.decoding(level) == pytest.approx(MAX_NUM_SEQS, rel=0.25)


def test_users_who_all_have_a_place_are_no_queue(diagnosed: Summary) -> None:
    within = diagnosed.levels[: len(WITHIN)]
    assert tuple(level.concurrency for level in within) == WITHIN
    for diagnoses in (diagnose_run.whole_run(within), *(level.diagnoses for level in within)):
        assert diagnoses
        assert not {"queueing", "kv-limited", "client"} & {one.code for one in diagnoses}


def on(hardware: str, run: Path) -> tuple[dict[str, Any], ...]:
    """The levels of the run as diagnosed on `hardware`; they are valid."""
    done = loadgen("report", str(run), "--hardware", f"{install() / 'model/config.json'}@{hardware}", "--json")
    assert done.returncode == 0, done.stderr[-4000:]
    levels = tuple(json.loads(done.stdout)["levels"])
    assert {level["validity"] for level in levels} == {"VALID"}
    return levels


def codes(level: dict[str, Any], what: str) -> set[str]:
    return {one["code"] for one in level[what]}


def test_a_tiny_model_on_a_processor_is_bound_by_overhead_not_by_its_floor(run: Path) -> None:
    levels = on(CPU, run)
    for level in levels:
        assert 0 < level["floors"]["itl_floor_ms"] < level["floors"]["itl_ms"]
        assert 0 < level["floors"]["ttft_floor_ms"] < level["floors"]["ttft_ms"]
        assert not {"below-floor", "near-floor"} & codes(level, "findings")
    assert levels[0]["floors"]["itl_efficiency"] < 0.3
    assert "overhead-bound" in codes(levels[0], "diagnoses")
    assert "queueing" in codes(levels[-1], "diagnoses")


def test_a_server_faster_than_its_hardware_is_found_and_the_run_stays_valid(run: Path) -> None:
    for level in on(SLOW, run):
        assert level["floors"]["itl_efficiency"] > 1
        assert "below-floor" in codes(level, "findings")
        assert not {"overhead-bound", "decode-bound"} & codes(level, "diagnoses")


def test_the_parameters_of_its_config_are_those_of_a_checkpoint(tmp_path: Path) -> None:
    if os.environ.get("ENGINE_URL"):
        pytest.skip("nothing is installed beside an engine at ENGINE_URL")
    directory = install()
    command = [str(directory / "bin/python"), "-c", SAVE, str(directory / "model"), str(tmp_path)]
    subprocess.run(command, env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=True, capture_output=True, timeout=300)
    with (tmp_path / "model.safetensors").open("rb") as file:  # the length of its header, and the header in JSON
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    parameters = sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    described = model_config.read(directory / "model")
    assert described.model.params_b * 1e9 == pytest.approx(parameters, abs=0.5)
    assert described.model.active_params_b == described.model.params_b
    assert described.dtype == "bf16"


def test_a_token_takes_as_much_kv_cache_as_the_engine_gives_it(engine: Engine) -> None:
    if engine.max_num_seqs is None:
        pytest.skip("the model of the engine at ENGINE_URL is not known")
    page = httpx.get(f"{engine.url}/metrics", trust_env=False).text
    (info,) = re.findall(r"^vllm:cache_config_info\{.*", page, re.MULTILINE)
    blocks, length = (int(re.findall(rf'[{{,]{name}="(\d+)"', info)[0]) for name in ("num_gpu_blocks", "block_size"))
    model = model_config.read(install() / "model").model
    assert floors.kv_bytes(model, blocks * length) == pytest.approx(KV_BYTES, rel=0.001)
