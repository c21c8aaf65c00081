"""Counts against the parameters that the models' own code makes: totals of transformers 4.57's classes, which are also
those of the published weights."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from analysis.catalog import facts
from analysis.parameters import counted
from tests.test_architectures import HIDDEN, LAYERS, VOCAB, params, small

CONFIGS = Path(__file__).parent / "golden" / "configs"
TOTALS = {
    "command-r": 34_980_831_232,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_404_352,
    "falcon-40b": 41_303_293_952,
    "falcon-7b": 6_921_720_704,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-27b": 27_009_346_304,
    "glm-4.5-air": 106_852_245_504,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2": 124_439_808,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-4-scout": 107_769_861_120,
    "mistral-7b-v0.1": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "olmoe-1b-7b": 6_919_161_856,
    "opt-125m": 125_239_296,
    "phi-2": 2_779_683_840,
    "phi-4": 14_659_507_200,
    "pythia-6.9b": 6_857_302_016,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-8b": 8_190_735_360,
    "starcoder": 15_517_456_384,
    "starcoder2-15b": 15_957_889_024,
}
# Rows of the catalogue, each by what its config.json changes in another's.
ALSO: dict[str, tuple[str, dict[str, int]]] = {
    "llama-2-13b": ("llama-2-7b", {
        "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40,
        "num_key_value_heads": 40,
    }),
    "llama-2-70b": ("llama-3.1-70b", {"vocab_size": 32000}),
    "llama-3.1-405b": ("llama-3.1-8b", {
        "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128,
    }),
    "qwen2.5-32b": ("qwen2.5-7b", {
        "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 40,
        "num_key_value_heads": 8,
    }),
    "qwen2.5-72b": ("qwen2.5-7b", {
        "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8,
    }),
    "qwen3-32b": ("qwen3-8b", {
        "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64, "num_attention_heads": 64,
    }),
    "qwen3-235b-a22b": ("qwen3-30b-a3b", {
        "hidden_size": 4096, "moe_intermediate_size": 1536, "num_hidden_layers": 94, "num_attention_heads": 64,
    }),
    "mixtral-8x22b": ("mixtral-8x7b", {
        "hidden_size": 6144, "intermediate_size": 16384, "num_hidden_layers": 56, "num_attention_heads": 48,
    }),
    "mistral-7b": ("mistral-7b-v0.1", {}),
}  # fmt: skip


def config(name: str, **changes: Any) -> dict[str, Any]:
    """The language model's part of a golden file."""
    decoded = msgspec.json.decode((CONFIGS / f"{name}.json").read_bytes(), type=dict[str, Any])
    return {**decoded.get("text_config", decoded), **changes}


def test_every_golden_file_has_its_total() -> None:
    assert sorted(path.stem for path in CONFIGS.glob("*.json")) == sorted(TOTALS)


@pytest.mark.parametrize("name", TOTALS)
def test_parameters_to_the_last_one(name: str) -> None:
    assert round(counted(config(name), name).params_b * 1e9) == TOTALS[name]


HYBRIDS = {"nemotron-nano-30b"}  # of a kind whose configuration is refused


@pytest.mark.parametrize(
    "row", [row for row in facts.models().values() if row.name not in HYBRIDS], ids=lambda row: row.name
)
def test_the_catalogue_agrees(row: facts.Model) -> None:
    """Active parameters count the input embedding, but for gpt-oss, as in what their publishers say. Version 0.1 of
    mistral-7b has a window, the later ones, of which the row is, have none."""
    base, changes = ALSO.get(row.name, (row.name, {}))
    windows = {"sliding_window": None} if row.name == "mistral-7b" else {}
    model = counted(config(base, **changes, **windows), row.name)
    assert model.params_b == pytest.approx(row.params_b, rel=0.001)
    assert model.active_params_b == pytest.approx(row.active_params_b, rel=0.001)
    sizes = {"params_b": row.params_b, "active_params_b": row.active_params_b}
    assert msgspec.structs.replace(model, **sizes) == row


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("deepseek-v2-lite", 2_661_150_208),
        ("deepseek-v3", 37_552_282_624),
        ("glm-4.5-air", 13_424_123_904),
        ("gpt-oss-120b", 5_132_849_472),
        ("llama-4-scout", 17_172_894_720),
        ("mixtral-8x7b", 12_879_925_248),
        ("olmoe-1b-7b", 1_282_017_280),
        ("qwen1.5-moe-a2.7b", 2_689_173_504),
        ("qwen3-30b-a3b", 3_353_032_704),
    ],
)
def test_active_parameters_are_those_a_token_passes(name: str, active: int) -> None:
    assert round(counted(config(name), name).active_params_b * 1e9) == active


@pytest.mark.parametrize(
    ("name", "kv_heads", "kv_bytes", "windows"),
    [
        ("mistral-7b-v0.1", 8, 131_072, (32, 4096)),
        ("llama-4-scout", 8, 196_608, (36, 4096)),  # chunks of 8,192
        ("falcon-7b", 1, 8_192, (0, None)),
        ("falcon-40b", 8, 122_880, (0, None)),
        ("starcoder", 1, 20_480, (0, None)),
        ("starcoder2-15b", 4, 81_920, (40, 4096)),
        ("deepseek-v2-lite", None, 27 * 576 * 2, (0, None)),
        ("gpt2", 12, 36_864, (0, None)),
    ],
)
def test_cache_and_windows(name: str, kv_heads: int | None, kv_bytes: int, windows: tuple[int, int | None]) -> None:
    model = counted(config(name), name)
    assert (model.kv_heads, model.kv_bytes_per_token_bf16) == (kv_heads, kv_bytes)
    assert (model.window_layers, model.window_tokens) == windows


def test_qwen_has_windows_only_if_it_uses_them_and_then_in_its_later_layers() -> None:
    used = {"use_sliding_window": True, "max_window_layers": 20}
    model = counted(config("qwen2.5-7b", **used), "qwen")
    assert (model.window_layers, model.window_tokens) == (8, 131_072)
    assert counted(config("qwen2.5-7b"), "qwen").window_layers == 0


def test_windows_as_the_file_lists_them() -> None:
    kinds = ["sliding_attention"] * 4 + ["full_attention"] * 2
    assert small("gemma2", layer_types=kinds).window_layers == 4
    assert small("gemma3_text", sliding_window_pattern=3).window_layers == 4
    model = small("llama4_text", no_rope_layers=[1, 1, 0, 1, 1, 0], attention_chunk_size=64)
    assert (model.window_layers, model.window_tokens) == (4, 32)


def test_layers_without_experts_have_an_mlp() -> None:
    """Of the small model: an MLP of 96 where there are no experts, else a router and 4 experts of 16."""
    mlp, routed = 3 * HIDDEN * 96, HIDDEN * 4 + 4 * 3 * HIDDEN * 16
    every = params("qwen3_moe")
    assert params("qwen3_moe", mlp_only_layers=[1, 2]) - every == 2 * (mlp - routed)
    assert params("qwen3_moe", decoder_sparse_step=2) - every == LAYERS // 2 * (mlp - routed)
    shared = 3 * HIDDEN * 16
    first = {count: params("deepseek_v2", first_k_dense_replace=count) for count in (0, 2)}
    assert first[2] - first[0] == 2 * (mlp - routed - shared)
    assert params("llama4_text", moe_layers=[1, 3, 5]) == params("llama4_text", interleave_moe_layer_step=2)
    assert small("qwen3_moe", mlp_only_layers=list(range(LAYERS))).experts is None


def test_all_experts_at_once_are_a_dense_model() -> None:
    model = small("mixtral", num_experts_per_tok=4)
    assert (model.experts, model.experts_per_token) == (None, None)
    assert model.active_params_b == model.params_b


def test_rare_forms() -> None:
    assert params("falcon", multi_query=False) > params("falcon")
    assert params("falcon", parallel_attn=False) - params("falcon") == LAYERS * 2 * HIDDEN
    new = {count: params("falcon", new_decoder_architecture=True, num_ln_in_parallel_attn=count) for count in (1, 2)}
    assert new[2] - new[1] == LAYERS * 2 * HIDDEN
    assert params("opt", enable_bias=False) < params("opt")
    assert params("phi") - params("phi", vocab_size=VOCAB - 1) == 2 * HIDDEN + 1
    assert params("cohere", use_qk_norm=True) - params("cohere") == LAYERS * (4 + 2) * 16
    # Without a narrow projection of the queries: hidden * q in place of rank * (hidden + 1 + q).
    wide, narrow = params("deepseek_v2"), params("deepseek_v2", q_lora_rank=20)
    assert wide - narrow == LAYERS * (HIDDEN * 48 - 20 * (HIDDEN + 1 + 48))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": None}, "no model_type: describe the model by hand (--params 7b)"),
        ({"model_type": "mamba"}, "the architecture 'mamba' is not known here: describe the model by hand"),
        ({"model_type": ["llama"]}, "the architecture a list of 1 is not known here"),
        ({"hidden_size": None}, "no hidden_size: describe the model by hand"),
        ({"intermediate_size": None}, "no intermediate_size: describe"),
        ({"num_key_value_heads": 3}, "32 attention heads cannot share 3 of keys and values"),
        ({"num_attention_heads": 33, "num_key_value_heads": 33}, "4096 does not divide over 33 heads"),
        ({"num_hidden_layers": 5000}, "num_hidden_layers = 5000: expected a whole number from 1 to 4096"),
        ({"num_hidden_layers": True}, "num_hidden_layers = True: expected a whole number"),
        ({"vocab_size": -1}, "vocab_size = -1: expected a whole number"),
        ({"hidden_size": 10**20}, "hidden_size = a huge number: expected"),
        ({"hidden_size": 1 << 26, "intermediate_size": 1 << 30}, "there is no such model"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings = 'no': expected true or false"),
        ({"num_local_experts": 8}, "num_local_experts in a model that is dense by its model_type"),
        ({"layer_types": ["full_attention"]}, "expected a list of 32, got a list of 1"),
        ({"layer_types": ["linear_attention"] * 32}, "a layer of 'linear_attention' is not counted here: describe"),
        ({"layer_types": [{}] * 32}, "a layer of an object of 0"),
        ({"qk_layernorm": True}, "not counted here"),
        ({"word_embed_proj_dim": 512}, "a word_embed_proj_dim other than hidden_size is not counted here"),
        ({"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3}, "3 experts per token, of 2"),
        ({"model_type": "mixtral"}, "no num_local_experts"),
    ],
)
def test_what_cannot_be_counted_rightly_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are compared below
        counted(config("llama-3.1-8b", **changes), "x")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
