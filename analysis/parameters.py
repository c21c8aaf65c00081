"""Parameters, KV cache and windows of a model, counted from its `config.json` as its architecture has them.

Counted is the language model: no vision tower, no layers that only guess further tokens (MTP). What is not known to be
counted rightly is refused.
"""

import msgspec

from analysis.architectures import FAMILIES, Family
from analysis.catalog.facts import Model
from analysis.config_values import BY_HAND, MAX_LAYERS, Config, flag, indices, optional, shown, whole

MAX_PARAMS_B = 1e6
_EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts")


class Attention(msgspec.Struct, frozen=True):
    """Of one layer. `cached` values a token are kept; `kv_heads` is None where they are of no head (MLA)."""

    params: int
    kv_heads: int | None
    head_dim: int
    cached: int


class Experts(msgspec.Struct, frozen=True):
    """Of the `layers` that route: parameters of `each` expert, and of what every token passes beside them."""

    layers: int
    count: int
    per_token: int
    each: int
    beside: int


def counted(config: Config, name: str) -> Model:
    """Raises ValueError, one line, for an architecture that is not counted, and for missing or impossible values."""
    kind = config.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        what = "no model_type" if kind is None else f"the architecture {shown(kind)} is not known here"
        raise ValueError(f"{what}: {BY_HAND}")
    config = {**family.defaults, **config}
    _refuse_variants(config, family)
    layers, heads = whole(config, "num_hidden_layers", "n_layer", high=MAX_LAYERS), _heads(config)
    attention = _mla(config, heads) if family.mla else _grouped(config, family, heads)
    experts = None if family.expert_width is None else _experts(config, family, layers)
    dense = layers - (experts.layers if experts else 0)
    lookup = whole(config, "vocab_size") * _hidden(config)
    total = lookup + _around(config, family, lookup) + layers * (attention.params + _norms(config, family))
    if dense:
        total += dense * _mlp(config, family, _width(config))
    idle = 0
    if experts:
        total += experts.layers * (experts.beside + experts.count * experts.each)
        idle = experts.layers * (experts.count - experts.per_token) * experts.each
    if total > MAX_PARAMS_B * 1e9:
        raise ValueError(f"these sizes make {total:.3g} parameters: there is no such model")
    active = total - idle - (lookup if idle and not family.lookup_active and not _tied(config) else 0)
    window_layers, window_tokens = _windows(config, family, layers)
    return Model(
        name=name,
        params_b=total / 1e9,
        active_params_b=active / 1e9,
        layers=layers,
        heads=heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        experts=experts.count if experts and idle else None,
        experts_per_token=experts.per_token if experts and idle else None,
        kv_bytes_per_token_bf16=2 * layers * attention.cached,
        window_layers=window_layers,
        window_tokens=window_tokens,
    )


def _refuse_variants(config: Config, family: Family) -> None:
    """Rare forms of known types that would be counted wrongly."""
    routed = [key for key in _EXPERTS if config.get(key) not in (None, 0, 1)]
    if routed and family.expert_width is None:
        raise ValueError(f"{routed[0]} in a model that is dense by its model_type: {BY_HAND}")
    if flag(config, "qk_layernorm") or not flag(config, "do_layer_norm_before", default=True):
        raise ValueError(f"qk_layernorm and do_layer_norm_before=false are not counted here: {BY_HAND}")
    if config.get("word_embed_proj_dim") not in (None, _hidden(config)):
        raise ValueError(f"a word_embed_proj_dim other than hidden_size is not counted here: {BY_HAND}")


def _hidden(config: Config) -> int:
    return whole(config, "hidden_size", "n_embd")


def _heads(config: Config) -> int:
    return whole(config, "num_attention_heads", "n_head")


def _width(config: Config) -> int:
    """Of a dense MLP. Beside experts, Llama 4 has a key of its own; GPT-2 and Falcon may leave it out: four times the
    model's."""
    beside = optional(config, "intermediate_size_mlp")
    if beside is not None:
        return beside
    four = config.get("model_type") in ("gpt2", "gpt_bigcode", "falcon")
    keys = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")
    return whole(config, *keys, default=4 * _hidden(config) if four else None)


def _tied(config: Config) -> bool:
    return flag(config, "tie_word_embeddings")


def _norm(config: Config, family: Family) -> int:
    return _hidden(config) * (2 if family.norm_bias else 1)


def _norms(config: Config, family: Family) -> int:
    """Of a layer. Falcon's attention and MLP may stand side by side, after one norm or two."""
    count = family.norms
    if "parallel_attn" in family.defaults:
        new = flag(config, "new_decoder_architecture")
        beside = flag(config, "parallel_attn")
        count = whole(config, "num_ln_in_parallel_attn", default=2, high=2) if new else 1 if beside else 2
    return count * _norm(config, family)


def _around(config: Config, family: Family, lookup: int) -> int:
    """Beside the layers and the input embedding: head, learned positions, and the last norm."""
    head = 0 if _tied(config) else lookup
    bias = whole(config, "vocab_size") if family.head_bias else 0
    rows = 0
    if family.positions is not None:
        rows = whole(config, "max_position_embeddings", "n_positions") + family.positions
    return head + bias + rows * _hidden(config) + _norm(config, family)


def _grouped(config: Config, family: Family, heads: int) -> Attention:
    """Multi-head, grouped-query or multi-query attention: q, k, v and output projections."""
    hidden, kv_heads = _hidden(config), _kv_heads(config, heads)
    if heads % kv_heads:
        raise ValueError(f"{heads} attention heads cannot share {kv_heads} of keys and values")
    if config.get("head_dim") is None and hidden % heads:
        raise ValueError(f"no head_dim, and a hidden_size of {hidden} does not divide over {heads} heads")
    head_dim = whole(config, "head_dim", default=hidden // heads)
    q, kv = heads * head_dim, kv_heads * head_dim
    params = hidden * (2 * q + 2 * kv)
    if flag(config, family.bias):
        params += q + 2 * kv + (hidden if family.output_bias else 0)
    if family.qk_norm and flag(config, "use_qk_norm", default=True):
        params += 2 * head_dim if family.qk_norm == "head" else q + kv
    return Attention(params + (heads if family.sinks else 0), kv_heads, head_dim, 2 * kv)


def _kv_heads(config: Config, heads: int) -> int:
    """Falcon's and StarCoder's `multi_query` is one head for all; the files may name others that are not used."""
    if "multi_query" in config and not flag(config, "new_decoder_architecture"):
        return 1 if flag(config, "multi_query") else heads
    return whole(config, "num_key_value_heads", "num_kv_heads", default=heads)


def _mla(config: Config, heads: int) -> Attention:
    """Latent attention: queries may, keys and values do go through a narrow projection with a norm, and that is cached,
    with the part of the keys that is rotated."""
    hidden, rank = _hidden(config), whole(config, "kv_lora_rank")
    nope, rope, values = (whole(config, key) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    q = heads * (nope + rope)
    q_rank = optional(config, "q_lora_rank")
    params = hidden * q if q_rank is None else q_rank * (hidden + 1 + q)
    params += hidden * (rank + rope) + rank + rank * heads * (nope + values) + heads * values * hidden
    return Attention(params, None, (nope + rope + values) // 2, rank + rope)


def _mlp(config: Config, family: Family, width: int) -> int:
    hidden, inward = _hidden(config), 2 if family.gated else 1
    return (inward + 1) * hidden * width + (inward * width + hidden if flag(config, family.mlp_bias) else 0)


def _experts(config: Config, family: Family, layers: int) -> Experts:
    count, hidden = whole(config, *_EXPERTS), _hidden(config)
    per_token = whole(config, "num_experts_per_tok", "experts_per_token")
    if per_token > count:
        raise ValueError(f"{per_token} experts per token, of {count}")
    width = whole(config, family.expert_width or "")
    beside = hidden * count + (count if family.router_bias else 0)
    if family.shared == "n_shared_experts":
        shared = width * whole(config, family.shared, default=0, low=0)
        beside += _mlp(config, family, shared) if shared else 0
    elif family.shared:
        beside += _mlp(config, family, whole(config, family.shared)) + hidden  # and its gate
    return Experts(_routed_layers(config, layers), count, per_token, _mlp(config, family, width), beside)


def _routed_layers(config: Config, layers: int) -> int:
    """The layers of experts among the dense ones: the first are dense, or each so many-th has experts, or by name."""
    first = whole(config, "first_k_dense_replace", default=0, low=0)
    every = whole(config, "decoder_sparse_step", "interleave_moe_layer_step", default=1)
    multiple = whole(config, "moe_layer_freq", default=1)
    dense = set(indices(config, "mlp_only_layers") or ())
    named = indices(config, "moe_layers")
    routed = range(every - 1, layers, every) if named is None else {i for i in named if i < layers}
    return sum(i >= first and i % multiple == 0 and i not in dense for i in routed)


def _windows(config: Config, family: Family, layers: int) -> tuple[int, int | None]:
    """Layers with a window, and the tokens it holds."""
    kinds = _kinds(config, family, layers)
    window = optional(config, family.window)
    if window is None or not flag(config, "use_sliding_window", default=True):
        return 0, None
    if family.window == "attention_chunk_size":
        window = max(1, window // 2)  # a chunk starts empty: half of one is seen on average
    if kinds is not None:
        windowed = sum(kind != "full_attention" for kind in kinds)
    elif family.full_every > 1:
        keys = ("sliding_window_pattern", "_sliding_window_pattern")
        windowed = layers - layers // whole(config, *keys, default=family.full_every)
    elif family.full_every == 1:
        windowed = 0
    else:  # Qwen's first layers see all
        windowed = max(0, layers - whole(config, "max_window_layers", default=0, low=0))
    return (windowed, window) if windowed else (0, None)


def _kinds(config: Config, family: Family, layers: int) -> list[str] | None:
    """Of attention, for each layer; None where the file does not say."""
    kinds = config.get("layer_types")
    computed = config.get("no_rope_layers")
    if kinds is None and family.window == "attention_chunk_size" and computed:  # Llama 4: 1 has a rotation and chunks
        rotated = indices(config, "no_rope_layers") or []
        kinds = ["chunked_attention" if one else "full_attention" for one in rotated]
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ValueError(f"the layers' kinds of attention: expected a list of {layers}, got {shown(kinds)}")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention", "chunked_attention"):
            raise ValueError(f"a layer of {shown(kind)} is not counted here: {BY_HAND}")
    return kinds
