import pytest

from analysis.catalog import facts


def test_every_row_loads_with_the_facts_of_its_sheet() -> None:
    assert len(facts.gpus()) == 24
    assert len(facts.models()) == 23
    h100 = facts.gpu("h100")
    assert (h100.memory_gb, h100.bandwidth_gb_s, h100.bf16_dense_tflops, h100.fp8_dense_tflops) == (80, 3350, 989, 1979)


@pytest.mark.parametrize(("gpu", "bf16", "fp8"), [("a100-80gb", 312, None), ("m2-ultra", None, None)])
def test_an_unknown_rate_is_none(gpu: str, bf16: float | None, fp8: float | None) -> None:
    found = facts.gpu(gpu)
    assert (found.bf16_dense_tflops, found.fp8_dense_tflops) == (bf16, fp8)


@pytest.mark.parametrize("model", facts.models().values(), ids=lambda model: model.name)
def test_kv_bytes_follow_from_the_shape(model: facts.Model) -> None:
    assert model.layers is not None
    if model.kv_heads is None:
        assert model.kv_bytes_per_token_bf16 == model.layers * 576 * 2
    else:
        assert model.head_dim is not None
        assert model.kv_bytes_per_token_bf16 == 2 * model.layers * model.kv_heads * model.head_dim * 2
    assert (model.experts is None) == (model.active_params_b == model.params_b)
    assert (model.window_tokens is None) == (model.window_layers == 0)
    assert model.window_layers < model.layers


def test_names_are_found_in_any_case() -> None:
    assert facts.model("Llama-3.1-8B").name == "llama-3.1-8b"
    assert facts.gpu("H100") is facts.gpu("h100")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'llama3.1-8b'; nearest: llama-3\.1-8b"):
        facts.model("llama3.1-8b")
    with pytest.raises(ValueError, match=r"unknown GPU 'h10'; nearest: .*h100"):
        facts.gpu("h10")
    with pytest.raises(ValueError, match=r"unknown GPU '\?'; known: l4, a10g"):
        facts.gpu("?")
