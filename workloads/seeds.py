"""One named random stream per dimension: drawing more input lengths never moves an output length.

The bits are the same on every machine (PCG64 seeded by a hash). What numpy makes of them may change between its
versions.
"""

import hashlib
import json

import numpy as np


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """The stream of these names, always from its start. Any integer is a seed, 0 too; the names "1" and 1 differ."""
    key = json.dumps([seed, *names]).encode()  # JSON, so that no two lists of names read the same
    return np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.sha256(key).digest())))
