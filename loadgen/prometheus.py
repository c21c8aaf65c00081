"""A server's Prometheus page under our names: tables of names, and no I/O.

    running, waiting                  requests                              gauges, summed over their labels
    kv_use                            share of the KV cache in use          gauge, mean over its labels
    accepted_share                    of drafted tokens, by the server      gauge, mean over its labels
    preemptions, prompt_tokens, output_tokens                               counters since the server started
    prefix_queries, prefix_hits       tokens looked up in the prefix cache, and found there
    draft_tokens, accepted_tokens     of speculative decoding
    ttft_s, ttft_n, queue_s, queue_n, prefill_s, prefill_n, decode_s, decode_n
                                      sums (seconds) and counts of the server's histograms

Of several names of one value the first on the page is taken. Since `:` is for recording rules only, some versions and
some collectors write `_` in its place: either is understood.
"""

import math
from collections.abc import Iterator

import msgspec
from prometheus_client.parser import text_string_to_metric_families

MOST_LINES = 10_000  # with names of ours: a page has some tens

_SHARES = ("kv_use", "accepted_share")


class Engine(msgspec.Struct, frozen=True):
    """`values`: name of ours -> names of its own; `times`: name of ours, without _s and _n -> its histogram's name."""

    values: dict[str, tuple[str, ...]]
    times: dict[str, str]


ENGINES = {
    # 0.32.0, as installed; the names with gpu_ are of earlier versions (gpu_cache_usage_perc: documentation of 0.7.0).
    "vllm": Engine(
        {
            "running": ("vllm:num_requests_running",),
            "waiting": ("vllm:num_requests_waiting",),
            "kv_use": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            "preemptions": ("vllm:num_preemptions_total",),
            "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
            "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
            "draft_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
            "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
            "prompt_tokens": ("vllm:prompt_tokens_total",),
            "output_tokens": ("vllm:generation_tokens_total",),
        },
        {
            "ttft": "vllm:time_to_first_token_seconds",
            "queue": "vllm:request_queue_time_seconds",
            "prefill": "vllm:request_prefill_time_seconds",
            "decode": "vllm:request_decode_time_seconds",
        },
    ),
    # srt/metrics/collector.py at 00ae9c15 (0.5). Tokens are counted when a request finishes; a prompt is looked up
    # whole. num_retracted_reqs without _total is a gauge of one batch.
    "sglang": Engine(
        {
            "running": ("sglang:num_running_reqs",),
            "waiting": ("sglang:num_queue_reqs",),
            "kv_use": ("sglang:token_usage",),
            "preemptions": ("sglang:num_retracted_requests_total", "sglang:num_retracted_reqs_total"),
            "prefix_queries": ("sglang:prompt_tokens_total",),
            "prefix_hits": ("sglang:cached_tokens_total",),
            "accepted_share": ("sglang:spec_accept_rate",),
            "prompt_tokens": ("sglang:prompt_tokens_total",),
            "output_tokens": ("sglang:generation_tokens_total",),
        },
        {"ttft": "sglang:time_to_first_token_seconds", "queue": "sglang:queue_time_seconds"},
    ),
    # docs/source/reference/metrics.md at 53fdbe61 (3). Tokens are counted when a request finishes.
    "tgi": Engine(
        {
            "running": ("tgi_batch_current_size",),
            "waiting": ("tgi_queue_size",),
            "prompt_tokens": ("tgi_request_input_length_sum",),
            "output_tokens": ("tgi_request_generated_tokens_sum",),
        },
        {"queue": "tgi_request_queue_duration"},
    ),
    # tools/server/README.md at 00dc8057; kv_cache_usage_ratio was there up to 2025. Tokens are counted when a request
    # finishes, and times are not counted by request.
    "llama.cpp": Engine(
        {
            "running": ("llamacpp:requests_processing",),
            "waiting": ("llamacpp:requests_deferred",),
            "kv_use": ("llamacpp:kv_cache_usage_ratio",),
            "prompt_tokens": ("llamacpp:prompt_tokens_total",),
            "output_tokens": ("llamacpp:tokens_predicted_total",),
        },
        {},
    ),
}


def _names(engine: Engine) -> Iterator[tuple[str, tuple[str, ...]]]:
    for ours, names in engine.values.items():
        yield ours, tuple(_plain(name) for name in names)
    for ours, name in engine.times.items():
        yield f"{ours}_s", (_plain(f"{name}_sum"),)
        yield f"{ours}_n", (_plain(f"{name}_count"),)


def _plain(name: str) -> str:
    return name.replace(":", "_")


_TABLES = {name: tuple(_names(engine)) for name, engine in ENGINES.items()}
_KNOWN = {name for table in _TABLES.values() for _, names in table for name in names}


def read(text: str) -> tuple[str | None, dict[str, float]]:
    """The engine whose names the page has most of, None where it has none, and its values under our names.

    What is not finite is left out. Raises ValueError where the lines with known names are no Prometheus text.
    """
    found = _samples(text)
    pages = {engine: dict(_values(table, found)) for engine, table in _TABLES.items()}
    engine = max(pages, key=lambda name: len(pages[name]))
    return (engine, pages[engine]) if pages[engine] else (None, {})


def _values(
    table: tuple[tuple[str, tuple[str, ...]], ...], found: dict[str, list[float]]
) -> Iterator[tuple[str, float]]:
    for ours, names in table:
        values = next((found[name] for name in names if name in found), None)
        if values is not None:
            value = sum(values) / (len(values) if ours in _SHARES else 1)
            if math.isfinite(value):
                yield ours, value


def _samples(text: str) -> dict[str, list[float]]:
    """By plain name, a value for each set of labels. Most of a page are buckets, of no use here: only lines with known
    names are parsed."""
    lines = [line for raw in text.split("\n") if _plain(_first_word(line := raw.strip())) in _KNOWN]
    if len(lines) > MOST_LINES:
        raise ValueError(f"{len(lines)} lines with known names")
    found: dict[str, list[float]] = {}
    for family in text_string_to_metric_families("\n".join([*lines, ""])):
        for sample in family.samples:
            if math.isfinite(sample.value):
                found.setdefault(_plain(sample.name), []).append(sample.value)
    return found


def _first_word(line: str) -> str:
    return line.partition("{")[0].partition(" ")[0].partition("\t")[0]
