"""A real vLLM to test against: the user's own at ENGINE_URL, or one on the CPU that is installed here and started.

The installation goes to .engine/ in the checkout, or to LOADGEN_ENGINE_DIR, and stays there for the next time.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import msgspec
import pytest

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
START_TIMEOUT_S = 300
STOP_TIMEOUT_S = 20
MAX_NUM_SEQS = 4
# Blocks of 32 tokens, the smallest the CPU has: by default they are as long as a whole prompt of the test, and no
# prompt could ever be found in the prefix cache.
FLAGS = (
    f"--load-format dummy --dtype bfloat16 --enforce-eager --max-model-len 2048 --max-num-seqs {MAX_NUM_SEQS}"
    " --block-size 32 --enable-prompt-tokens-details"
).split()


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    max_num_seqs: int | None  # None: somebody else's server, whose flags are unknown

    def metric(self, name: str) -> float:
        """The present value of a counter or gauge of /metrics, summed over its labels."""
        text = httpx.get(f"{self.url}/metrics", trust_env=False).raise_for_status().text
        values = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)", text, re.MULTILINE)
        assert values, f"{self.url}/metrics has no {name}: not vLLM, or a version that names it otherwise"
        return sum(float(value) for value in values)


def install() -> Path:
    directory = Path(os.environ.get("LOADGEN_ENGINE_DIR") or CHECKOUT / ".engine")
    environment = dict(os.environ)
    if sys.version_info[:2] == (3, 11):
        environment.setdefault("PYTHON311", sys.executable)
    done = subprocess.run(
        [HERE / "install.sh", directory], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        pytest.fail(f"installing vLLM failed:\n{done.stdout[-4000:]}", pytrace=False)
    return directory


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def wait_until_healthy(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    why = f"not ready after {START_TIMEOUT_S} s"
    while time.monotonic() < deadline:
        if server.poll() is not None:
            why = f"ended with exit code {server.returncode} before it was ready"
            break
        try:
            if httpx.get(f"{url}/health", trust_env=False, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.5)
    pytest.fail(f"vLLM {why}; the end of its log:\n{log.read_text(errors='replace')[-4000:]}", pytrace=False)


def stop(server: subprocess.Popen[bytes]) -> None:
    """End the server and its children, which share its process group: ask first, then do not."""
    server.terminate()
    with suppress(subprocess.TimeoutExpired):
        server.wait(STOP_TIMEOUT_S)
    with suppress(ProcessLookupError):  # all gone
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


@contextmanager
def serve(directory: Path, log: Path) -> Iterator[str]:
    """Base URL of a vLLM that runs as long as the context does."""
    port = free_port()
    vllm, model = str(directory / "bin/vllm"), str(directory / "model")
    # It shares few cores with the client, which has to read in time: the client goes first. Linux compares niceness
    # within a session only (autogroup), so the server gets a process group of its own, but no session.
    command = ["nice", "-n", "10", vllm, "serve", model, "--host", "127.0.0.1", "--port", str(port), *FLAGS]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(url, server, log)
        yield url
    finally:
        stop(server)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts servers of its own comes first: the session's one, once started, takes half a core to wait."""
    items.sort(key=lambda item: item.path.name != "test_tune.py")


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    own = os.environ.get("ENGINE_URL")
    if own:
        yield Engine(url=own.rstrip("/"), max_num_seqs=None)
        return
    with serve(install(), tmp_path_factory.mktemp("engine") / "vllm.log") as url:
        yield Engine(url=url, max_num_seqs=MAX_NUM_SEQS)
