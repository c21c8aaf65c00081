"""`loadgen sim SPEC`: serve the simulated engine."""

import errno
import sys
from typing import Annotated

from cyclopts import Parameter


def sim(
    spec: str,
    *,
    port: int = 8000,
    host: str = "127.0.0.1",
    parent: Annotated[bool, Parameter(show=False, negative="")] = False,
) -> int:
    """Serve the simulated engine: a model on a GPU, batched and timed as vLLM would, over vLLM's API.

    Prints its URL on standard output once it listens, and serves until interrupted. Answers /v1/chat/completions,
    /v1/completions, /v1/models, /tokenize, /metrics, /health and /reset_prefix_cache; GET /truth gives the times at
    which every token was due and was written.

    Parameters
    ----------
    spec
        MODEL@GPU[,key=value...], such as llama-3.1-8b@h100,max_num_seqs=32. Keys: max_num_seqs,
        max_num_batched_tokens, max_model_len, gpus, dtype, kv_cache_dtype, gpu_memory_utilization,
        bandwidth_efficiency, compute_efficiency, overhead_us, overhead_per_seq_us, block_size, prefix_cache,
        spec_tokens, spec_acceptance, seed; and memory_gb, bandwidth_gb_s, bf16_tflops, fp8_tflops, fp4_tflops of a GPU
        that is not as in the catalogue.
    port
        Port to listen on; 0 picks a free one.
    host
        Address to listen on. The default is reachable from this machine only.
    parent
        End when standard input ends, so that a child does not outlive its parent.
    """
    from loadgen.sim import service
    from loadgen.sim.spec import parse

    def ready(bound_port: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        sys.stdout.write(f"http://{shown}:{bound_port}\n")
        sys.stdout.flush()

    parsed = parse(spec.removeprefix("sim:"))
    try:
        service.run(parsed, host=host, port=port, parent=parent, ready=ready)
    except OSError as error:
        reason = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror
        sys.stderr.write(f"loadgen sim: cannot listen on {host} port {port}: {reason}; --port 0 picks a free one\n")
        return 2
    return 0
