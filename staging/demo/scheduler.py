"""Continuous batching: which requests run in a step, and how many tokens of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from staging.demo.blocks import BlockAllocator
from staging.demo.corpus import Request
from staging.demo.request_table import Limits, RequestTable


@dataclass(frozen=True, eq=False)
class Batch:
    """One step: for each request in it, its row in the table and how many tokens it runs.

    Attributes
    ----------
    rows, counts : ndarray of int32, (requests in the step,)
        Decoding requests first, one token each; then chunks of prompts. Each in the order
        in which the requests were admitted. No row is named twice, no count is 0.
    """

    rows: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]

    @property
    def tokens(self) -> int:
        """Tokens in the step."""
        return int(self.counts.sum())


class Scheduler:
    """Takes requests from a source and runs each to its end.

    Every step, each request that decodes gets its one token; what is left of the token
    budget goes to prompts, oldest request first, in chunks that fit. A request is admitted
    when there is budget for some of its prompt, a row for it and blocks for all of it.

    Parameters
    ----------
    limits : Limits
        Of requests, tokens and blocks.
    source : iterator of Request
        Where requests come from. It is only asked when there is room for another one.

    Attributes
    ----------
    table : RequestTable
        The running requests. ``schedule`` gives them blocks, ``advance`` moves them on.
    allocator : BlockAllocator
        Of the KV cache.
    finished : int
        Requests that have run to their end.
    """

    def __init__(self, limits: Limits, source: Iterator[Request]) -> None:
        self.limits = limits
        self.table = RequestTable(limits)
        self.allocator = BlockAllocator(limits.cache_blocks)
        self.finished = 0
        self._source = source
        self._next: Request | None = None  # taken from the source, and not admitted yet
        self._running = np.zeros(0, dtype=np.int32)  # rows, in the order of admission

    @property
    def running(self) -> int:
        """How many requests run."""
        return len(self._running)

    def schedule(self) -> Batch | None:
        """Choose a step, and give its requests the blocks that they need for it.

        Returns
        -------
        Batch or None
            None when nothing runs and the source is exhausted.
        """
        self._admit()
        table, rows = self.table, self._running
        if not len(rows):
            return None
        prompt_left = table.prompt[rows] - table.computed[rows]
        decoding = prompt_left <= 0
        decodes = rows[decoding]
        prefills, left = rows[~decoding], prompt_left[~decoding]
        # Each prompt gets what those before it leave of the budget.
        before = np.cumsum(left) - left
        chunks = np.clip(self.limits.step_tokens - len(decodes) - before, 0, left)
        in_step = chunks > 0
        batch = Batch(
            np.concatenate([decodes, prefills[in_step]]),
            np.concatenate([np.ones_like(decodes), chunks[in_step].astype(np.int32)]),
        )
        self._grow(batch)
        return batch

    def advance(self, batch: Batch) -> None:
        """Move on past a step that was handed over, and finish the requests that it completes."""
        table, rows = self.table, batch.rows
        table.computed[rows] += batch.counts
        done = rows[table.computed[rows] == table.length[rows]]
        if len(done):
            for row in done:
                self.allocator.release(table.remove(int(row)))
            self._running = self._running[~np.isin(self._running, done)]
            self.finished += len(done)

    def stop(self) -> None:
        """Drop every request that runs, and give its blocks back."""
        for row in self._running:
            promised = self.limits.blocks_of(int(self.table.length[row]))
            held = self.table.remove(int(row))
            self.allocator.cancel(promised - len(held))
            self.allocator.release(held)
        self._running = self._running[:0]

    def _admit(self) -> None:
        table, rows = self.table, self._running
        prompt_left = table.prompt[rows] - table.computed[rows]
        # Decoding rows have nothing left of their prompt and take one token.
        budget = self.limits.step_tokens - int(np.maximum(prompt_left, 1).sum())
        admitted = []
        while budget > 0 and table.free_rows:
            request = self._next or next(self._source, None)
            if request is None:
                break
            self.table.require_fits(request)
            self._next = request
            if not self.allocator.reserve(self.limits.blocks_of(len(request.tokens))):
                break  # in order: a small request does not overtake a large one
            admitted.append(table.add(request))
            self._next = None
            budget -= request.prompt_tokens
        if admitted:
            self._running = np.concatenate([rows, np.array(admitted, dtype=np.int32)])

    def _grow(self, batch: Batch) -> None:
        """Give each request of the step blocks for the tokens that it is about to run."""
        table, rows = self.table, batch.rows
        held = table.blocks_held[rows]
        needed = -(-(table.computed[rows] + batch.counts) // self.limits.block_tokens)
        more = needed - held
        total = int(more.sum())
        if not total:
            return
        request = np.repeat(np.arange(len(rows)), more)
        column = held[request] + np.arange(total) - (np.cumsum(more) - more)[request]
        table.blocks[rows[request], column] = self.allocator.allocate(total)
        table.blocks_held[rows] = needed
