"""For all tests."""

import socket
from collections.abc import Iterator

import hypothesis
import pytest

from loadgen.connection import SO_TIMESTAMPNS

# A busy machine is no failure. Half the usual examples: all tests together stay under a minute.
hypothesis.settings.register_profile("any machine", deadline=None, max_examples=50)
hypothesis.settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def _kernel_stamps() -> Iterator[None]:
    """The kernel stamps lazily, while some socket asks for it: else the first reads of a test can lack stamps."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        yield


@pytest.fixture
def dead_port() -> int:
    """On which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
