"""`loadgen floors`: the figures it was built for, what it refuses, prints and writes, and the command it proposes."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from analysis import kv_plan
from loadgen.cli.app import app, execute

if TYPE_CHECKING:
    from pathlib import Path

Capture = pytest.CaptureFixture[str]


def floors(capsys: Capture, *arguments: str) -> Any:
    assert execute(["floors", *arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


@pytest.mark.parametrize(("gpu", "floor_ms"), [("l4", 46.7), ("a100-80gb", 6.9), ("h100", 4.2), ("h200", 2.9)])
def test_7b_in_16_bits(capsys: Capture, gpu: str, floor_ms: float) -> None:
    assert round(floors(capsys, f"7b@{gpu}", "--dtype", "bf16")["one"]["floor_ms"], 1) == floor_ms


def test_a_prefill_and_the_break_even_batch(capsys: Capture) -> None:
    found = floors(capsys, "7b@h100", "--dtype", "bf16", "--input", "4096")
    assert found["prefill"]["floor_ms"] == pytest.approx(58, abs=0.5)
    assert round(found["break_even_batch"]) == 295


def test_70b_in_8_bits_on_an_a100(capsys: Capture) -> None:
    assert 34 <= floors(capsys, "70b@a100-80gb", "--dtype", "int8")["one"]["floor_ms"] <= 35


def test_27b_in_16_bits_on_an_h100(capsys: Capture) -> None:
    assert round(floors(capsys, "27b@h100", "--dtype", "fp16")["one"]["tokens_per_s"]) == 62


def test_three_drafts_that_are_all_right(capsys: Capture) -> None:
    flags = ("--speculate", "3", "--acceptance", "1", "--draft-cost", "0.2")
    found = floors(capsys, "7b@h100", "--dtype", "bf16", *flags)["speculation"]
    assert (found["gain"], found["tokens_per_step"]) == (2.5, 4)


def test_flags_and_keys_say_the_same(capsys: Capture) -> None:
    keys = "llama-3.1-8b@h100,dtype=fp8,kv_cache_dtype=fp8,gpus=2,gpu_memory_utilization=0.8"
    flags = "--dtype fp8 --kv-cache-dtype fp8 --gpus 2 --gpu-memory-utilization 0.8"
    assert floors(capsys, keys) == floors(capsys, "llama-3.1-8b@h100", *flags.split())
    assert floors(capsys, keys, "--batch", "9") == floors(capsys, keys, "--concurrency", "9")


@pytest.mark.parametrize("target", ["h100 --params 7b", "@h100 --params 7b", "7b@h100"])
def test_a_model_by_hand(capsys: Capture, target: str) -> None:
    shape = "--dtype bf16 --layers 32 --heads 32 --kv-heads 8 --head-dim 128"
    found = floors(capsys, *target.split(), *shape.split())
    assert found["kv"]["bytes_per_token"] == 131072
    assert found["one"]["weight_bytes"] == 14e9
    moe = "--experts 8 --experts-per-token 2 --active-params 3b"
    found = floors(capsys, *target.split(), *shape.split(), *moe.split())
    assert found["one"]["weight_bytes"] == 6e9


def test_a_model_of_a_file(capsys: Capture, tmp_path: Path) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "vocab_size": 128256}
    config |= {"intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    config |= {"num_key_value_heads": 8, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = floors(capsys, f"{tmp_path}@h100")
    assert found["dtype"] == "bf16"
    assert found["params_b"] == pytest.approx(8.03, rel=0.001)
    assert found["kv"]["bytes_per_token"] == 131072


def test_unknown_is_null(capsys: Capture) -> None:
    found = floors(capsys, "7b@m2-ultra,dtype=bf16")
    assert found["kv"]["tokens"] is found["flops_per_s"] is found["prefill"]["floor_ms"] is found["plan"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("7b@h100", "no size in bytes without a precision"),
        ("h100 --params 7b", "no size in bytes without a precision"),
        ("7b@h100 --dtype bf17", "dtype=bf17: accepted: fp32, bf16"),
        ("7b@h100,dtype=bf16 --dtype fp8", "dtype is given twice"),
        ("7b --dtype bf16", "expected MODEL@GPU"),
        ("7b@h1000 --dtype bf16", "unknown GPU 'h1000'; nearest: h100"),
        ("7b@h100 --dtype bf16 --gpus two", "gpus=two: expected a whole number"),
        ("7b@h100 --dtype bf16 --params 8b", "the model is 7b already"),
        ("h100 --dtype bf16 --kv-heads 8", "expected MODEL@GPU"),
        ("llama-3.1-8b@h100 --dtype bf16 --kv-heads 8", "kv_heads= describe a model known by its size alone"),
        ("h100 --params big --dtype bf16", "unknown model 'big'"),
        ("h100 --params 7b --layers 3.2 --dtype bf16", "layers=3.2: expected a whole number"),
        ("7b@h100 --dtype bf16 --input 0", "--input 0: expected 1 to"),
        ("7b@h100 --dtype bf16 --context 0", "--context 0: expected 1 to"),
        ("7b@h100 --dtype bf16 --batch 1000000", "--batch 1000000: expected 1 to"),
        ("7b@h100 --dtype bf16 --acceptance 1", "say --speculate N"),
        ("7b@h100 --dtype bf16 --speculate 0", "--speculate 0: expected 1 to"),
        ("7b@h100 --dtype bf16 --speculate 3 --acceptance 70", "--acceptance 70: expected a share"),
        ("7b@h100 --dtype bf16 --speculate 3 --acceptance nan", "--acceptance nan: expected a share"),
        ("7b@h100 --dtype bf16 --speculate 3 --draft-cost -1", "--draft-cost -1: expected the share"),
        ("7b@h100 --dtype bf16 --slo chatt", "neither an SLO preset (nearest: chat"),
        ("", "requires an argument"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(capsys: Capture, arguments: str, words: str) -> None:
    assert execute(["floors", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err


def test_tables(capsys: Capture) -> None:
    assert execute(["floors", "llama-3.1-8b@h100", "--dtype", "bf16"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "llama-3.1-8b in bf16 on h100" in out
    assert "Plan" not in out


def test_files_are_written_where_asked(capsys: Capture, tmp_path: Path) -> None:
    assert execute(["floors", "7b@h100", "--dtype", "bf16", "--json", "--out", str(tmp_path / "new" / "here")]) == 0
    out, err = capsys.readouterr()
    assert {path.name for path in (tmp_path / "new" / "here").iterdir()} == {
        "floors.json", "roofline.png", "roofline.svg",
    }  # fmt: skip
    assert (tmp_path / "new" / "here" / "floors.json").read_text() == out
    assert "roofline.png" in err


def test_there_is_no_roofline_without_a_rate(capsys: Capture, tmp_path: Path) -> None:
    assert execute(["floors", "7b@m2-ultra", "--dtype", "bf16", "--out", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["floors.json"]
    assert "no picture: the compute rate of m2-ultra is not known" in " ".join(capsys.readouterr().err.split())


def test_the_plan_proposes_a_command_that_tune_takes(capsys: Capture) -> None:
    found = floors(
        capsys, "llama-3.1-8b@h100", "--dtype", "bf16", "--input", "2000", "--output", "500", "--slo", "chat"
    )
    plan = found["plan"]
    assert plan["floor"]["max_num_seqs"] == 189
    assert plan["usual"]["efficiency"] == kv_plan.USUAL
    loadgen, *arguments = shlex.split(plan["command"])
    assert loadgen == "loadgen"
    _, bound, _ = app.parse_args(arguments, exit_on_error=False, print_error=False)
    options = bound.arguments["options"]
    assert options.slo == ("chat",)
    assert (options.input, options.output, options.concurrency) == ("2000", "500", "1..256")
    assert options.set == ("n=64,128,256",)
    assert "{n}" in options.launch


def test_plan_without_a_limit(capsys: Capture) -> None:
    plan = floors(capsys, "llama-3.1-8b@h100", "--dtype", "bf16", "--plan")["plan"]
    assert (plan["itl_limit_ms"], plan["floor"]["itl_seqs"]) == (None, None)
    assert plan["floor"]["max_num_seqs"] == plan["memory_live_seqs"]
