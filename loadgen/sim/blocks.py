"""KV cache blocks: who holds them, which prefix each full one keeps, and which is reused first.

held    a block with at least one holder; sequences with a common prefix hold the same blocks
free    no holder; a free block keeps its content until it is allocated again, the longest unheld first (LRU)
hash    of all tokens up to the end of the block, so equal hashes mean equal prefixes
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    def __init__(self, blocks: int) -> None:
        self.size = blocks
        self._untouched = 0  # blocks from here on have never been allocated: no list of them is needed
        self._holders: dict[int, int] = {}
        self._unheld: OrderedDict[int, None] = OrderedDict()
        self._block_of: dict[int, int] = {}
        self._hash_of: dict[int, int] = {}

    @property
    def free(self) -> int:
        return self.size - self._untouched + len(self._unheld)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks with no content; the caller has seen that so many are free."""
        blocks = []
        for _ in range(count):
            if self._untouched < self.size:
                block = self._untouched
                self._untouched += 1
            else:
                block, _ = self._unheld.popitem(last=False)
                self._forget(block)
            self._holders[block] = 1
            blocks.append(block)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """The tail first: a prefix is worth more than what follows it, and is evicted later."""
        for block in reversed(blocks):
            holders = self._holders[block] - 1
            if holders:
                self._holders[block] = holders
            else:
                del self._holders[block]
                self._unheld[block] = None

    def match(self, hashes: Iterable[int]) -> list[int]:
        """The blocks that keep the longest cached prefix of `hashes`; nobody holds them yet on the caller's behalf."""
        found = []
        for prefix in hashes:
            block = self._block_of.get(prefix)
            if block is None:
                break
            found.append(block)
        return found

    def unheld(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` are free: to hold them takes as many from `free`."""
        return sum(block in self._unheld for block in blocks)

    def hold(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._unheld.pop(block, None)
            self._holders[block] = self._holders.get(block, 0) + 1

    def publish(self, block: int, prefix: int) -> None:
        """`block` is full and keeps `prefix`; of two blocks with the same content the first one serves."""
        if self._block_of.setdefault(prefix, block) == block:
            self._hash_of[block] = prefix

    def reset(self) -> None:
        """Forget all contents; holders keep their blocks."""
        self._block_of.clear()
        self._hash_of.clear()

    def _forget(self, block: int) -> None:
        prefix = self._hash_of.pop(block, None)
        if prefix is not None:
            del self._block_of[prefix]
