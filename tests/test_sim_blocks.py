from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from loadgen.sim.blocks import BlockPool


def test_blocks_are_reused_the_longest_unheld_first() -> None:
    pool = BlockPool(3)
    a, b, c = pool.allocate(3)
    pool.release([b])
    pool.release([c])
    pool.release([a])
    assert pool.allocate(3) == [b, c, a]


def test_the_tail_of_a_sequence_is_evicted_before_its_head() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(2)
    pool.publish(blocks[0], 100)
    pool.publish(blocks[1], 200)
    pool.release(blocks)
    pool.allocate(1)
    assert pool.match([100, 200]) == [blocks[0]]


def test_a_match_ends_at_the_first_unknown_block() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    for block, prefix in zip(blocks, (1, 2, 3), strict=True):
        pool.publish(block, prefix)
    assert pool.match([1, 9, 3]) == blocks[:1]


def test_the_same_content_twice_is_served_by_the_first() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.publish(first, 7)
    pool.publish(second, 7)
    pool.release([second])
    pool.allocate(1)
    assert pool.match([7]) == [first]


def test_reset_forgets_contents_and_keeps_holders() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(2)
    pool.publish(blocks[0], 1)
    pool.reset()
    assert pool.match([1]) == []
    assert pool.free == 0
    pool.release(blocks)
    assert pool.free == 2


class Holders(RuleBasedStateMachine):
    """Sequences that share prefixes, against a count of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12)
        self.held: list[list[int]] = []
        self.published = 0

    @rule(count=st.integers(1, 4), publish=st.booleans())
    def allocate(self, count: int, publish: bool) -> None:
        if count > self.pool.free:
            return
        blocks = self.pool.allocate(count)
        assert len(set(blocks)) == count
        assert not set(blocks) & {block for held in self.held for block in held}
        self.held.append(blocks)
        if publish:
            self.pool.publish(blocks[0], self.published)
            self.published += 1

    @precondition(lambda self: self.published)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        prefix = data.draw(st.integers(0, self.published - 1))
        found = self.pool.match([prefix])
        before = self.pool.free
        taken = self.pool.unheld(found)
        self.pool.hold(found)
        assert self.pool.free == before - taken
        self.held.append(found)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.pool.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @rule()
    def reset(self) -> None:
        self.pool.reset()

    @invariant()
    def free_is_what_nobody_holds(self) -> None:
        assert self.pool.free == 12 - len({block for held in self.held for block in held})


TestHolders = Holders.TestCase
TestHolders.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
