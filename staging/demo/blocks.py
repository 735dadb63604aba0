"""The blocks of a paged KV cache: who may have how many, and which ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Never given out: it is what the unused entries of a block table hold, so that a table that
# is read too far leads to no request's memory.
NULL_BLOCK = 0


class BlockAllocator:
    """Hands out block numbers, and promises of them.

    A request reserves what it will need in the end before it starts, and allocates blocks
    out of that as it grows. So a request that has started can always finish: no set of
    requests can be stuck, each waiting for a block that another one holds.

    Invariants: a block is free or has been handed out, never both, and is handed out once
    until it is freed; reservations never exceed the free blocks; ``NULL_BLOCK`` is never
    handed out.

    Parameters
    ----------
    blocks : int
        How many there are, the null block among them.

    Notes
    -----
    Blocks are reused last in, first out: what was freed in this step is written again in
    the next, which is hard on a copy that comes too late.
    """

    def __init__(self, blocks: int) -> None:
        if blocks < 2:
            raise ValueError(f"blocks must be at least 2, one of them the null block, got {blocks}")
        self.blocks = blocks
        self._stack = np.arange(blocks - 1, NULL_BLOCK, -1, dtype=np.int32)
        self._free = blocks - 1
        self._reserved = 0
        self._in_use = np.zeros(blocks, dtype=np.bool_)

    @property
    def free(self) -> int:
        """Blocks that nobody has, reserved or not."""
        return self._free

    @property
    def reserved(self) -> int:
        """Blocks that were promised and not yet handed out."""
        return self._reserved

    @property
    def available(self) -> int:
        """Blocks that can still be reserved."""
        return self._free - self._reserved

    def reserve(self, count: int) -> bool:
        """Promise ``count`` blocks; False, and nothing changed, where there are not so many."""
        if count < 0:
            raise ValueError(f"count must not be negative, got {count}")
        if count > self.available:
            return False
        self._reserved += count
        return True

    def cancel(self, count: int) -> None:
        """Give back a promise of ``count`` blocks that will not be used."""
        if not 0 <= count <= self._reserved:
            raise ValueError(f"count must be 0 to {self._reserved} (what is reserved), got {count}")
        self._reserved -= count

    def allocate(self, count: int) -> npt.NDArray[np.int32]:
        """Hand out ``count`` blocks out of what was reserved.

        Raises
        ------
        ValueError
            More than is reserved.
        """
        if not 0 <= count <= self._reserved:
            raise ValueError(f"count must be 0 to {self._reserved} (what is reserved), got {count}")
        # Top of the stack first.
        taken: npt.NDArray[np.int32] = self._stack[self._free - count : self._free][::-1].copy()
        self._free -= count
        self._reserved -= count
        self._in_use[taken] = True
        return taken

    def release(self, ids: npt.NDArray[np.int32]) -> None:
        """Take blocks back.

        Raises
        ------
        ValueError
            One of them is not in use, or is named twice; nothing is taken back.
        """
        if len(np.unique(ids)) != len(ids):
            raise ValueError("ids names a block twice")
        if len(ids) and not (
            ids.min() > NULL_BLOCK and ids.max() < self.blocks and self._in_use[ids].all()
        ):
            raise ValueError(f"ids names a block that is not in use: {ids.tolist()}")
        self._in_use[ids] = False
        self._stack[self._free : self._free + len(ids)] = ids[::-1]
        self._free += len(ids)
