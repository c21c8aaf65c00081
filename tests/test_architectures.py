"""The families' rules, on one small model each: what a rule adds is computed here by hand."""

from typing import Any

import pytest

from analysis.architectures import FAMILIES
from analysis.catalog.facts import Model
from analysis.parameters import counted

HIDDEN, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 64, 96, 6, 4, 2, 16, 100
SMALL: dict[str, Any] = {
    "hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": VOCAB, "max_position_embeddings": 50,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24,
    "n_shared_experts": 1, "kv_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 10,
}  # fmt: skip
ATTENTION = HIDDEN * HEAD_DIM * (2 * HEADS + 2 * KV_HEADS)
MLP = 3 * HIDDEN * WIDTH
NORM = HIDDEN
LLAMA = 2 * VOCAB * HIDDEN + LAYERS * (ATTENTION + MLP + 2 * NORM) + NORM


def small(kind: str, **changes: Any) -> Model:
    config = {"model_type": kind, **SMALL, **changes}
    if FAMILIES[kind].expert_width is None:
        del config["num_experts"]
    return counted(config, kind)


def params(kind: str, **changes: Any) -> int:
    return round(small(kind, **changes).params_b * 1e9)


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_is_counted(kind: str) -> None:
    model = small(kind)
    assert 100_000 < params(kind) < 1_000_000
    assert (model.experts is not None) == (model.active_params_b < model.params_b)
    assert model.window_layers <= LAYERS
    # Tied by default or not: one matrix of embeddings lies between the two.
    tied, untied = params(kind, tie_word_embeddings=True), params(kind, tie_word_embeddings=False)
    assert untied - tied == VOCAB * HIDDEN
    assert params(kind) in (tied, untied)


def test_llama_is_embeddings_attention_mlp_and_norms() -> None:
    assert params("llama") == LLAMA
    assert params("mistral") == params("phi3") == params("granite") == LLAMA


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("qwen2", LAYERS * (HEADS + 2 * KV_HEADS) * HEAD_DIM),
        ("qwen3", LAYERS * 2 * HEAD_DIM),
        ("olmo2", LAYERS * (HEADS + KV_HEADS) * HEAD_DIM),
        ("gemma2", LAYERS * 2 * NORM - VOCAB * HIDDEN),
        ("gemma3_text", LAYERS * 2 * (NORM + HEAD_DIM) - VOCAB * HIDDEN),
        ("cohere2", -LAYERS * NORM - VOCAB * HIDDEN),
        ("gpt_neox", LAYERS * ((HEADS + 2 * KV_HEADS) * HEAD_DIM + WIDTH + 2 * HIDDEN + 2 * NORM - MLP // 3) + NORM),
    ],
)
def test_what_a_family_adds_to_llama(kind: str, more: int) -> None:
    assert params(kind) == LLAMA + more


def test_biases_where_the_file_says_so() -> None:
    attention, mlp = (HEADS + 2 * KV_HEADS) * HEAD_DIM + HIDDEN, 2 * WIDTH + HIDDEN
    assert params("llama", attention_bias=True) == LLAMA + LAYERS * attention
    assert params("llama", mlp_bias=True) == LLAMA + LAYERS * mlp
    assert params("glm") - params("glm", attention_bias=False) == LAYERS * (attention - HIDDEN)


@pytest.mark.parametrize(
    ("kind", "windows"),
    [("llama", 0), ("gemma2", 3), ("gpt_oss", 3), ("gemma3_text", 5), ("cohere2", 5), ("olmo3", 5), ("mistral", 6)],
)
def test_layers_with_a_window(kind: str, windows: int) -> None:
    model = small(kind, sliding_window=32)
    assert (model.window_layers, model.window_tokens) == (windows, 32 if windows else None)
    assert (small(kind, sliding_window=None).window_layers, small(kind, sliding_window=None).window_tokens) == (0, None)
