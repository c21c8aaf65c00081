"""Prometheus text under vLLM's names: https://docs.vllm.ai/en/latest/usage/metrics.html"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping

_LATENCY_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
_FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0)
_INTER_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


class Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        yield f"# TYPE {name} histogram"
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {float(total)}'
        yield f"{name}_count{{{labels}}} {float(total)}"
        yield f"{name}_sum{{{labels}}} {self._sum}"


class Latencies:
    """The engine's own view of its requests, on its timetable."""

    def __init__(self) -> None:
        self.time_to_first_token = Histogram(_FIRST_TOKEN_S)
        self.inter_token_latency = Histogram(_INTER_TOKEN_S)
        self.request_queue_time = Histogram(_LATENCY_S)
        self.request_prefill_time = Histogram(_LATENCY_S)
        self.request_decode_time = Histogram(_LATENCY_S)
        self.e2e_request_latency = Histogram(_LATENCY_S)


def render(
    model: str,
    gauges: Mapping[str, float],
    counters: Mapping[str, float],
    finished: Mapping[str, int],
    latencies: Latencies,
) -> str:
    """`gauges` and `counters` by name; `finished` counts requests by finish reason."""
    labels = f'engine="0",model_name="{model}"'
    lines: list[str] = []
    for kind, values in (("gauge", gauges), ("counter", counters)):
        for name, value in values.items():
            lines += (f"# TYPE {name} {kind}", f"{name}{{{labels}}} {float(value)}")
    lines.append("# TYPE vllm:request_success_total counter")
    for reason, count in finished.items():
        lines.append(f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {float(count)}')
    for field, histogram in vars(latencies).items():
        lines += histogram.lines(f"vllm:{field}_seconds", labels)
    return "\n".join(lines) + "\n"
