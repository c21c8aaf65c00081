import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import hardware_words as words
from analysis.catalog import facts
from analysis.hardware import DTYPE_BYTES, KV_DTYPES, Hardware, parse


@pytest.mark.parametrize(
    ("served", "model"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-8B", "llama-3.1-8b"),
        ("llama3.1:8b-instruct-q4_K_M", "llama-3.1-8b"),
        ("/models/Meta-Llama-3.1-8B-Instruct.Q8_0.gguf", "llama-3.1-8b"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "llama-3.1-8b"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "llama-3.1-8b"),
        ("/hub/models--meta-llama--Llama-3.1-8B-Instruct/snapshots/0e9e39f249a1", "llama-3.1-8b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"),
        ("TheBloke/Llama-2-7B-Chat-GGUF", "llama-2-7b"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "qwen2.5-7b"),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4/", "qwen2.5-72b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "qwen3-30b-a3b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-v3"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("microsoft/phi-4", "phi-4"),
        # Like one of the catalogue, and another model.
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", None),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", None),
        ("NousResearch/Hermes-3-Llama-3.1-8B", None),
        ("meta-llama/Llama-3.2-1B-Instruct", None),
        ("meta-llama/Llama-3.1-8B-Instruct-speculator.eagle3", None),
        ("Qwen/Qwen2.5-VL-7B-Instruct", None),
        ("Qwen/Qwen2-7B", None),
        ("Qwen/Qwen2.5-7B-Instruct-Medusa", None),
        ("Qwen/Qwen3-30B", None),
        ("microsoft/Phi-4-mini-instruct", None),
        ("mistralai/Mistral-Small-24B-Instruct-2501", None),
        ("llama-31-8b", None),
        ("llama-3.1-80b", None),
        ("tiny", None),
        ("", None),
        ("///", None),
    ],
)  # fmt: skip
def test_a_servers_name_of_its_model(served: str, model: str | None) -> None:
    assert words.named(served) == model


@pytest.mark.parametrize("name", facts.models())
def test_every_model_is_known_by_its_own_name(name: str) -> None:
    assert words.named(name) == words.named(f"owner/{name.upper()}-Instruct") == name


@given(st.text() | st.from_regex(r"[a-z]+[-_:./]*\d[\d.]*b?[-a-z0-9._]*", fullmatch=True))
def test_any_name_is_one_of_the_catalogue_or_none(served: str) -> None:
    assert words.named(served) in {*facts.models(), None}


def test_the_model_can_be_the_servers() -> None:
    whole = parse("qwen2.5-7b@h100,dtype=int4,gpus=2")
    served = "Qwen/Qwen2.5-7B-Instruct-AWQ"
    assert words.said("qwen2.5-7b@h100,dtype=int4,gpus=2", None) == whole
    assert words.said("@h100,dtype=int4,gpus=2", served) == whole
    assert words.said(" h100 , dtype=int4 , gpus=2 ", served) == whole
    assert words.said("llama-3.1-8b@h100,dtype=bf16", served).model.name == "llama-3.1-8b"
    with pytest.raises(
        ValueError, match=r"no model by the server's name for it, 'my-model': say MODEL@h100,dtype=bf16"
    ):
        words.said("@h100,dtype=bf16", "my-model")
    with pytest.raises(ValueError, match="name for it, 'none'"):
        words.said("h100,dtype=bf16", None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("@h100", "^a model has no size in bytes without a precision: give dtype="),
        ("h100,dtype=bf15", "dtype=bf15: accepted"),
        ("@h1000,dtype=bf16", "unknown GPU 'h1000'"),
        ("lama@h100,dtype=bf16", "unknown model 'lama'"),
        ("", "'@': expected MODEL@GPU"),
        ("@h100,bf16", "'@h100,bf16': 'bf16' is no setting"),
        ("llama-3.1-70b@h100,dtype=bf16", "141 GB of weights do not fit 80 GB of memory: give gpus="),
    ],
)
def test_a_mistake_is_seen_before_a_server_is_asked(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("?", r"\?")) as caught:
        words.check(text)
    assert "\n" not in str(caught.value)


def test_what_is_right_passes() -> None:
    for text in ("@h100,dtype=bf16", "h100,dtype=fp8,gpus=8", "llama-3.1-70b@h100,dtype=bf16,gpus=2"):
        words.check(text)


@given(
    st.builds(
        Hardware,
        model=st.sampled_from(list(facts.models().values())),
        gpu=st.sampled_from(list(facts.gpus().values())),
        dtype=st.sampled_from(list(DTYPE_BYTES)),
        kv_cache_dtype=st.sampled_from(KV_DTYPES),
        gpus=st.integers(1, 4096),
        gpu_memory_utilization=st.floats(1e-6, 1),
    )
)
def test_words_are_read_back_as_the_same(hardware: Hardware) -> None:
    assert parse(words.words(hardware)) == hardware


@pytest.mark.parametrize("rates", ["", ",bf16_tflops=1484", ",memory_gb=141,bandwidth_gb_s=4800"])
@pytest.mark.parametrize("gpu", ["h100", "a6000,memory_gb=48,bandwidth_gb_s=768"])
def test_a_gpu_that_is_not_in_the_catalogue_is_said_whole(gpu: str, rates: str) -> None:
    if gpu.startswith("a6000") and "memory" in rates:
        rates = ",bf16_tflops=155,fp8_tflops=310"
    hardware = parse(f"llama-3.1-8b@{gpu}{rates},dtype=bf16")
    assert parse(words.words(hardware)) == hardware
