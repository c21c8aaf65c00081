"""`MODEL@GPU[,key=value...]`: what the simulated engine serves, and on what."""

import math

import msgspec

from analysis import floors
from analysis.catalog.facts import Gpu, Model, model
from analysis.hardware import DEVICE, DTYPE_BYTES, Hardware, device, pairs


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """A share of the peak rates is an efficiency. The defaults put llama-3.1-8b in bf16 on one h100 at 7 ms per token,
    its prefill at what published rows of that GPU show, and vLLM's TTFT and ITL at 92 requests/s within 15 %.

    docs/published.md has other engines' sets. `overhead_per_seq_us`: of each sequence in a step.
    """

    model: Model
    gpu: Gpu
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 32768
    gpus: int = 1
    dtype: str = "bf16"
    kv_cache_dtype: str = "bf16"
    gpu_memory_utilization: float = 0.9
    bandwidth_efficiency: float = 0.75
    compute_efficiency: float = 0.45
    overhead_us: float = 600.0
    overhead_per_seq_us: float = 0.0
    block_size: int = 16
    prefix_cache: bool = True
    spec_tokens: int = 0
    spec_acceptance: float = 0.7
    seed: int = 0

    @property
    def hardware(self) -> Hardware:
        return Hardware(
            model=self.model,
            gpu=self.gpu,
            dtype=self.dtype,
            kv_cache_dtype=self.kv_cache_dtype,
            gpus=self.gpus,
            gpu_memory_utilization=self.gpu_memory_utilization,
        )

    @property
    def kv_blocks(self) -> int:
        """Blocks that fit; one keeps `block_size` tokens of the layers that see the whole context."""
        per_token = floors.kv_bytes(self.model, 1, self.kv_cache_dtype)
        assert per_token is not None, "the catalogue knows the shape of its models"
        per_block = per_token / (1 + self._window_share) * self.block_size
        return int(floors.kv_room_bytes(self.hardware) / per_block)

    @property
    def _window_share(self) -> float:
        """Layers with a window, over layers without."""
        return self.model.window_layers / ((self.model.layers or 1) - self.model.window_layers)

    def window_blocks(self, blocks: int) -> int:
        """Blocks a sequence needs beside `blocks` of those, for the layers that keep a window of its context."""
        if self.model.window_tokens is None:
            return 0
        return math.ceil(min(blocks, self.model.window_tokens / self.block_size) * self._window_share)

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens of the longest sequence that fits, in whole blocks."""
        blocks = self.kv_blocks
        past_the_window = blocks - self.window_blocks(blocks)
        within = int(blocks / (1 + self._window_share)) - (self._window_share > 0)  # rounded up, each kind of its own
        return max(past_the_window, within, 0) * self.block_size


# Numbers: the smallest and the largest value that makes sense, both included. Names: the accepted ones.
_NUMBERS: dict[str, tuple[type[int] | type[float], float, float]] = {
    "max_num_seqs": (int, 1, 1 << 20),
    "max_num_batched_tokens": (int, 1, 1 << 30),
    "max_model_len": (int, 2, 1 << 30),
    "gpus": (int, 1, 4096),
    "gpu_memory_utilization": (float, 0.01, 1.0),
    "bandwidth_efficiency": (float, 0.001, 1.0),
    "compute_efficiency": (float, 0.001, 1.0),
    "overhead_us": (float, 0.0, 1e7),
    "overhead_per_seq_us": (float, 0.0, 1e6),
    "block_size": (int, 1, 1024),
    "spec_tokens": (int, 0, 64),
    "spec_acceptance": (float, 0.0, 1.0),
    "seed": (int, 0, 2**63 - 1),
}
_NAMES: dict[str, dict[str, str | bool]] = {
    "dtype": {name: name for name in DTYPE_BYTES},
    "kv_cache_dtype": {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8"},
    "prefix_cache": {"1": True, "true": True, "0": False, "false": False},
}
KEYS = tuple(field for field in Spec.__struct_fields__ if field in _NUMBERS or field in _NAMES)


def parse(text: str) -> Spec:
    """Raises ValueError, one line, for an unknown name, key or value, and for a model that does not fit the memory."""
    head, *settings = text.split(",")
    model_name, at, gpu_name = head.strip().partition("@")
    if not (at and model_name and gpu_name):
        raise ValueError(f"simulated engine {text!r}: expected MODEL@GPU[,key=value...], such as llama-3.1-8b@h100")
    options: dict[str, int | float | str | bool] = {}
    rates: dict[str, str] = {}
    for key, value in pairs("simulated engine", settings, (*KEYS, *DEVICE)):
        if key in DEVICE:
            rates[key] = value
        else:
            options[key] = _value(key, value)
    explicit_length = "max_model_len" in options
    given = {"model": model(model_name.strip()), "gpu": device(gpu_name.strip(), rates), **options}
    return _fitted(msgspec.convert(given, Spec), explicit_length=explicit_length)


def _value(key: str, text: str) -> int | float | str | bool:
    if key in _NAMES:
        if text not in _NAMES[key]:
            raise ValueError(f"simulated engine: {key}={text}: accepted: {', '.join(_NAMES[key])}")
        return _NAMES[key][text]
    kind, low, high = _NUMBERS[key]
    what = "a whole number" if kind is int else "a number"
    try:
        number = kind(text)
    except ValueError:
        raise ValueError(f"simulated engine: {key}={text}: expected {what}") from None
    if not low <= number <= high:  # NaN is in no range
        raise ValueError(f"simulated engine: {key}={text}: expected {what} from {low:g} to {high:g}")
    return number


def _fitted(spec: Spec, *, explicit_length: bool) -> Spec:
    """The same spec, its default context length cut to what fits."""
    name, on = spec.model.name, spec.gpu.name
    if floors.compute_flops_per_s(spec.gpu, spec.dtype) is None:
        raise ValueError(f"simulated engine: the compute rate of {on} is not in the catalogue: give bf16_tflops=")
    if spec.max_num_batched_tokens < spec.max_num_seqs:
        raise ValueError(
            f"simulated engine: max_num_batched_tokens={spec.max_num_batched_tokens} is below "
            f"max_num_seqs={spec.max_num_seqs}: a step could not serve every running sequence"
        )
    # Room for a prompt and an answer.
    capacity = spec.kv_capacity_tokens
    if capacity < 2:
        weights_gb = floors.weight_bytes(spec.model, spec.dtype) / 1e9
        usable_gb = spec.gpu.memory_gb * spec.gpus * spec.gpu_memory_utilization
        raise ValueError(
            f"simulated engine: {name} in {spec.dtype} needs {weights_gb:.1f} GB for its weights, and {spec.gpus} x "
            f"{on} at gpu_memory_utilization={spec.gpu_memory_utilization:g} has {usable_gb:.1f} GB, KV cache "
            "included: raise gpus=, or choose a smaller dtype="
        )
    if spec.max_model_len <= capacity:
        return spec
    if explicit_length:
        raise ValueError(
            f"simulated engine: max_model_len={spec.max_model_len} needs more KV cache than the {capacity} tokens that "
            f"fit beside {name} on {spec.gpus} x {on}"
        )
    return msgspec.structs.replace(spec, max_model_len=capacity)
