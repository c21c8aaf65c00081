"""The architectures whose `config.json` is counted: what the code of each fixes, which its file does not say."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """What the code of a model type fixes, and its `defaults` for keys of which the file is silent.

    norms          of a layer; one more follows the last layer
    bias           the key that gives the attention its biases, those of the output projection if `output_bias`
    qk_norm        norms of queries and keys: one for all heads ("head"), or as wide as all of them ("width")
    positions      rows of learned positions beyond those the file names; None: positions are computed
    expert_width   the key of the width of an expert; None: the model is dense
    shared         the key of how many experts, or of one how wide, every token passes
    full_every     each so many-th layer sees all of the context, the others a window; 1: all do, 0: none does
    lookup_active  the input embedding is counted among the active parameters
    """

    norms: int = 2
    norm_bias: bool = False
    bias: str = "attention_bias"
    output_bias: bool = True
    mlp_bias: str = "mlp_bias"
    head_bias: bool = False
    gated: bool = True
    qk_norm: Literal["head", "width"] | None = None
    sinks: bool = False
    positions: int | None = None
    mla: bool = False
    expert_width: str | None = None
    shared: Literal["n_shared_experts", "shared_expert_intermediate_size"] | None = None
    router_bias: bool = False
    lookup_active: bool = True
    window: str = "sliding_window"
    full_every: int = 1
    defaults: Mapping[str, Any] = {}


_LLAMA = Family()
_QWEN_WINDOWS = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_QWEN2 = Family(output_bias=False, full_every=0, defaults={"attention_bias": True, **_QWEN_WINDOWS})
_QWEN3 = Family(qk_norm="head", full_every=0, defaults={"head_dim": 128, **_QWEN_WINDOWS})
_QWEN3_MOE = Family(qk_norm="head", full_every=0, expert_width="moe_intermediate_size", defaults=_QWEN_WINDOWS)
_DEEPSEEK = Family(mla=True, expert_width="moe_intermediate_size", shared="n_shared_experts")
_DEEPSEEK_V3 = msgspec.structs.replace(_DEEPSEEK, defaults={"first_k_dense_replace": 3})
_GPT = Family(gated=False, norm_bias=True, positions=0, defaults={
    "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True,
})  # fmt: skip

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "granite": _LLAMA,
    "mistral": Family(full_every=0, defaults={"sliding_window": 4096}),
    "ministral": Family(full_every=0, defaults={"sliding_window": 4096}),
    "mixtral": Family(full_every=0, expert_width="intermediate_size"),
    "granitemoe": Family(expert_width="intermediate_size"),
    "phi3": Family(full_every=0),
    **dict.fromkeys(("qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), _QWEN2),
    "qwen2_moe": msgspec.structs.replace(
        _QWEN2, expert_width="moe_intermediate_size", shared="shared_expert_intermediate_size"
    ),
    **dict.fromkeys(("qwen3", "qwen3_vl_text"), _QWEN3),
    **dict.fromkeys(("qwen3_moe", "qwen3_vl_moe_text"), _QWEN3_MOE),
    "gemma": Family(defaults={"tie_word_embeddings": True, "head_dim": 256}),
    "gemma2": Family(norms=4, full_every=2, defaults={
        "tie_word_embeddings": True, "head_dim": 256, "sliding_window": 4096,
    }),
    # Its published files name only what differs from the defaults of its class.
    "gemma3_text": Family(norms=4, qk_norm="head", full_every=6, defaults={
        "tie_word_embeddings": True, "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "sliding_window": 4096,
    }),
    "cohere": Family(norms=1, qk_norm="width", defaults={"tie_word_embeddings": True, "use_qk_norm": False}),
    "cohere2": Family(norms=1, full_every=4, defaults={"tie_word_embeddings": True, "sliding_window": 4096}),
    "glm": Family(output_bias=False, defaults={"attention_bias": True, "head_dim": 128}),
    "glm4": Family(output_bias=False, norms=4, defaults={"attention_bias": True, "head_dim": 128}),
    "glm4_moe": Family(
        output_bias=False, qk_norm="head", expert_width="moe_intermediate_size", shared="n_shared_experts",
        defaults={"use_qk_norm": False, "first_k_dense_replace": 1},
    ),
    "olmo2": Family(qk_norm="width"),
    "olmo3": Family(qk_norm="width", full_every=4, defaults={"sliding_window": 4096}),
    "olmoe": Family(qk_norm="width", expert_width="intermediate_size"),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    # Its publisher counts 3.6 (20b) and 5.1 (120b) billion active: without the input embedding, of which a token reads
    # one row. All others count it.
    "gpt_oss": Family(
        sinks=True, expert_width="intermediate_size", router_bias=True, lookup_active=False, full_every=2,
        defaults={"attention_bias": True, "mlp_bias": True, "head_dim": 64, "sliding_window": 128},
    ),
    "llama4_text": Family(
        expert_width="intermediate_size", shared="n_shared_experts", window="attention_chunk_size", full_every=4,
        defaults={"n_shared_experts": 1, "head_dim": 128, "attention_chunk_size": 8192},
    ),
    "gpt2": _GPT,
    "gpt_bigcode": msgspec.structs.replace(_GPT, defaults={**_GPT.defaults, "multi_query": True}),
    "opt": Family(gated=False, norm_bias=True, positions=2, bias="enable_bias", mlp_bias="enable_bias", defaults={
        "tie_word_embeddings": True, "enable_bias": True,
    }),
    "falcon": Family(gated=False, norm_bias=True, bias="bias", mlp_bias="bias", defaults={
        "tie_word_embeddings": True, "multi_query": True, "parallel_attn": True,
    }),
    "gpt_neox": Family(gated=False, norm_bias=True, defaults={"attention_bias": True, "mlp_bias": True}),
    "phi": Family(gated=False, norms=1, norm_bias=True, head_bias=True, defaults={
        "attention_bias": True, "mlp_bias": True,
    }),
    "starcoder2": Family(gated=False, norm_bias=True, full_every=0, bias="use_bias", mlp_bias="use_bias", defaults={
        "tie_word_embeddings": True, "use_bias": True,
    }),
}  # fmt: skip
