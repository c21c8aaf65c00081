"""Who says on what the target runs: the user before the spec, the spec before the card, and the card of anybody."""

import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from analysis import hardware_words
from analysis.hardware import Hardware, parse
from loadgen.cli.options import Options, settings
from loadgen.dialects import Dialect
from loadgen.machine import known
from loadgen.preflight import Server
from tests.fakes_api import Api, on_uvloop
from tests.fakes_tls import little_trust
from tests.test_run import no_leaks, run_against
from workloads.tokens import guess

__all__ = ["little_trust", "no_leaks"]

ON = "llama-3.1-8b@h100,dtype=bf16"


def server(card: str | None = None, model: str = "meta-llama/Llama-3.1-8B-Instruct") -> Server:
    return Server(
        url=httpx.URL("http://h/v1/chat/completions"),
        base=httpx.URL("http://h/v1"),
        dialect=Dialect(api="chat", model=model, extra={}),
        vocabulary=guess(),
        as_ids=False,
        request_tokens_s=(0.1, 0.1),
        facts={"hardware": card},
    )


def found(server: Server, target: str = "localhost:8000", **flags: Any) -> Hardware | None:
    made = known(settings(target, Options(**flags)), server)
    return None if made is None else msgspec.convert(msgspec.json.decode(msgspec.json.encode(made)), Hardware)


def test_nothing_is_guessed() -> None:
    assert found(server()) is None


def test_the_users_words() -> None:
    assert found(server(), hardware=ON) == parse(ON)
    assert found(server(), hardware="@h100,dtype=bf16") == parse(ON)
    assert found(server("7b@l4,dtype=bf16"), "sim:llama-3.1-8b@h200", hardware=ON) == parse(ON)
    with pytest.raises(ValueError, match=r"^--hardware '@h100,dtype=bf16': the catalogue has no model"):
        found(server(model="my-model"), hardware="@h100,dtype=bf16")


def test_an_embedded_engine_is_known_exactly() -> None:
    expected = parse("llama-3.1-70b@h100,dtype=fp8,gpus=2,kv_cache_dtype=fp8,gpu_memory_utilization=0.8")
    spec = "sim:llama-3.1-70b@h100,gpus=2,dtype=fp8,kv_cache_dtype=fp8,gpu_memory_utilization=0.8,seed=3"
    assert found(server("7b@l4,dtype=bf16"), spec) == expected
    assert found(server(hardware_words.words(expected))) == expected


@pytest.mark.parametrize("card", ["a word", "@", "", "7b@h100", "llama-3.1-405b@l4,dtype=bf16", "@h100,dtype=bf16,x=1"])
def test_a_card_that_says_nothing_sensible_says_nothing(card: str) -> None:
    assert found(server(card)) is None


@on_uvloop
async def test_the_header_says_on_what_it_ran() -> None:
    async def header(out: str, **flags: Any) -> Any:
        outcome = await run_against(Api(models=["meta-llama/Llama-3.1-8B"]), concurrency="1", out=Path(out), **flags)
        return json.loads((outcome.directory / "run.json").read_text())

    assert (await header("a"))["hardware"] is None
    said = await header("b", hardware="@h100,dtype=fp8")
    assert said["hardware"]["model"]["kv_bytes_per_token_bf16"] == 131072
    assert (said["hardware"]["dtype"], said["hardware"]["gpu"]["bandwidth_gb_s"]) == ("fp8", 3350)
    with pytest.raises(
        ValueError, match=r"--hardware .* the catalogue has no model by the server's name for it, 'tiny'"
    ):
        await run_against(Api(), hardware="@h100,dtype=fp8", out=Path("c"))
    assert not Path("c").exists()
