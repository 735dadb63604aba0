"""What a runner knows of its running requests: one row each, one array per property."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from staging.demo.blocks import NULL_BLOCK
from staging.demo.corpus import COMPLETION_BYTES, PROMPT_BYTES, SAMPLING_DTYPES, Request


@dataclass(frozen=True)
class Limits:
    """How much there may be of everything.

    Attributes
    ----------
    requests
        Running at once.
    step_tokens
        In one step: the token budget.
    request_tokens
        In one request, its completion included.
    block_tokens
        In one block of the KV cache.
    cache_blocks
        In the KV cache, the null block among them. The default is three quarters of what
        the largest requests could fill: as in a server, not everyone can be large at once.
    """

    requests: int = 256
    step_tokens: int = 2048
    request_tokens: int = 1 + PROMPT_BYTES[1] + COMPLETION_BYTES[1]
    block_tokens: int = 16
    cache_blocks: int = 0

    def __post_init__(self) -> None:
        if self.requests < 1:
            raise ValueError(f"requests must be at least 1, got {self.requests}")
        if self.step_tokens < self.requests:
            raise ValueError(
                f"step_tokens must be at least requests ({self.requests}), so that each request "
                f"that decodes gets its token in each step; got {self.step_tokens}"
            )
        if self.request_tokens < 2 or self.block_tokens < 1:
            raise ValueError("request_tokens must be at least 2, block_tokens at least 1")
        if not self.cache_blocks:
            most = self.requests * self.request_blocks
            object.__setattr__(self, "cache_blocks", 1 + max(self.request_blocks, most * 3 // 4))
        if self.cache_blocks < 1 + self.request_blocks:
            raise ValueError(
                f"cache_blocks must hold the null block and one request of "
                f"{self.request_blocks} blocks, got {self.cache_blocks}"
            )

    @property
    def request_blocks(self) -> int:
        """Blocks of the largest request: the width of the block table."""
        return self.blocks_of(self.request_tokens)

    def blocks_of(self, tokens: int) -> int:
        """Blocks that ``tokens`` tokens take."""
        return -(-tokens // self.block_tokens)


class RequestTable:
    """The running requests as columns; a row is a request's while it runs.

    Columns rather than objects, so that a step's arrays are gathered with a few vector
    operations however many requests there are.

    Attributes
    ----------
    tokens : ndarray of int32, (requests, request_tokens)
        A request's tokens.
    length, prompt, computed, blocks_held : ndarray of int32, (requests,)
        Tokens in all, in the prompt, already run; blocks in ``blocks``. A row that is free
        has length 0.
    blocks : ndarray of int32, (requests, request_blocks)
        A request's blocks in the order of its tokens, then ``NULL_BLOCK``.
    sampling : dict of str to ndarray, (requests,)
        One column for each sampling parameter.
    """

    def __init__(self, limits: Limits) -> None:
        rows = limits.requests
        self.limits = limits
        self.tokens = np.zeros((rows, limits.request_tokens), dtype=np.int32)
        self.length = np.zeros(rows, dtype=np.int32)
        self.prompt = np.zeros(rows, dtype=np.int32)
        self.computed = np.zeros(rows, dtype=np.int32)
        self.blocks = np.full((rows, limits.request_blocks), NULL_BLOCK, dtype=np.int32)
        self.blocks_held = np.zeros(rows, dtype=np.int32)
        self.sampling = {name: np.zeros(rows, dtype) for name, dtype in SAMPLING_DTYPES.items()}
        self.request: list[Request | None] = [None] * rows
        self._free_rows = list(range(rows - 1, -1, -1))

    @property
    def free_rows(self) -> int:
        """How many more requests can run."""
        return len(self._free_rows)

    def require_fits(self, request: Request) -> None:
        """Raise ValueError where ``request`` is longer than the limit."""
        if len(request.tokens) > self.limits.request_tokens:
            raise ValueError(
                f"request {request.number} has {len(request.tokens)} tokens, more than the limit "
                f"of {self.limits.request_tokens}"
            )

    def add(self, request: Request) -> int:
        """Give ``request`` a row and return it.

        Raises
        ------
        ValueError
            There is no free row, or the request is longer than the limit.
        """
        self.require_fits(request)
        if not self._free_rows:
            raise ValueError(f"all {self.limits.requests} rows are taken")
        row = self._free_rows.pop()
        self.tokens[row, : len(request.tokens)] = request.tokens
        self.length[row] = len(request.tokens)
        self.prompt[row] = request.prompt_tokens
        self.computed[row] = 0
        for name, value in request.sampling.items():
            self.sampling[name][row] = value
        self.request[row] = request
        return row

    def remove(self, row: int) -> npt.NDArray[np.int32]:
        """Free the row and return the blocks that its request held."""
        if self.request[row] is None:
            raise ValueError(f"row {row} is free already")
        held: npt.NDArray[np.int32] = self.blocks[row, : self.blocks_held[row]].copy()
        self.blocks[row] = NULL_BLOCK
        self.blocks_held[row] = 0
        self.length[row] = 0
        self.request[row] = None
        self._free_rows.append(row)
        return held
