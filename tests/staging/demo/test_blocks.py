"""A block has one owner at a time, and whoever was promised blocks gets them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from staging.demo.blocks import NULL_BLOCK, BlockAllocator


class AllocatorMachine(RuleBasedStateMachine):
    """Random reservations, allocations and releases, beside a set that says who owns what."""

    def __init__(self):
        super().__init__()
        self.allocator = BlockAllocator(24)
        self.held: list[int] = []
        self.promised = 0

    @rule(count=st.integers(0, 30))
    def reserve(self, count):
        fits = count <= 23 - len(self.held) - self.promised
        assert self.allocator.reserve(count) is fits
        self.promised += count if fits else 0

    @rule(data=st.data())
    def allocate(self, data):
        count = data.draw(st.integers(0, self.promised))
        taken = self.allocator.allocate(count).tolist()
        assert len(taken) == count
        assert not set(taken) & set(self.held)
        self.held += taken
        self.promised -= count

    @rule(data=st.data())
    def cancel(self, data):
        count = data.draw(st.integers(0, self.promised))
        self.allocator.cancel(count)
        self.promised -= count

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        ids = data.draw(st.lists(st.sampled_from(self.held), unique=True))
        self.allocator.release(np.array(ids, dtype=np.int32))
        self.held = [block for block in self.held if block not in ids]

    @invariant()
    def each_block_is_free_or_held_by_one(self):
        assert len(set(self.held)) == len(self.held)
        assert NULL_BLOCK not in self.held
        assert all(0 < block < 24 for block in self.held)
        assert self.allocator.free == 23 - len(self.held)
        assert self.allocator.reserved == self.promised <= self.allocator.free


AllocatorMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None
)
TestAllocator = AllocatorMachine.TestCase


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(1, 9)))
def test_all_blocks_come_back_in_whatever_order_they_are_released(order):
    allocator = BlockAllocator(9)
    for _ in range(2):
        assert allocator.reserve(8)
        assert sorted(allocator.allocate(8)) == list(range(1, 9))
        for block in order:
            allocator.release(np.array([block], dtype=np.int32))


def test_what_was_freed_last_is_used_first():
    allocator = BlockAllocator(9)
    allocator.reserve(6)
    first = allocator.allocate(3)
    allocator.release(first)
    assert set(allocator.allocate(3)) == set(first)


def test_more_than_was_reserved_is_not_handed_out():
    allocator = BlockAllocator(9)
    allocator.reserve(2)
    with pytest.raises(ValueError, match="0 to 2"):
        allocator.allocate(3)
    with pytest.raises(ValueError, match="0 to 2"):
        allocator.cancel(3)
    assert allocator.reserved == 2


@pytest.mark.parametrize("ids", [[1, 1], [8], [0], [-1], [9]], ids=str)
def test_a_wrong_release_changes_nothing(ids):
    allocator = BlockAllocator(9)
    allocator.reserve(4)
    held = allocator.allocate(4)
    with pytest.raises(ValueError, match="ids names a block"):
        allocator.release(np.array([int(held[0]), *ids], dtype=np.int32))
    assert allocator.free == 4
    allocator.release(held)
    assert allocator.free == 8
    with pytest.raises(ValueError, match="not in use"):
        allocator.release(held)
    assert allocator.free == 8


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="at least 2"):
        BlockAllocator(1)
    with pytest.raises(ValueError, match="negative"):
        BlockAllocator(2).reserve(-1)
