"""A step's arrays, as a model runner builds them for attention kernels and the sampler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from staging.demo.corpus import SAMPLING_DTYPES
from staging.demo.request_table import Limits, RequestTable
from staging.demo.scheduler import Batch

HostArrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class InputSpec:
    """An input: its name, its dtype and its largest shape. Steps use its first rows."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]

    @property
    def row_nbytes(self) -> int:
        """Bytes in one row of dimension 0."""
        return self.dtype.itemsize * prod(self.shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return self.shape[0] * self.row_nbytes


def input_specs(limits: Limits) -> tuple[InputSpec, ...]:
    """Name the inputs of a step.

    Of each token: ``input_ids``, ``positions`` (in its request), ``slot_mapping`` (where in
    the KV cache it is written: block times block size plus offset), ``token_request`` (whose
    it is). Of each request in the step: ``query_start`` (where its tokens begin; one more
    for the end), ``seq_lens`` (tokens so far, those of this step included),
    ``computed_tokens`` (before this step), ``logits_index`` (its last token in the step),
    ``block_table``, and its sampling parameters.
    """
    int32, int64 = np.dtype(np.int32), np.dtype(np.int64)
    tokens, requests = limits.step_tokens, limits.requests
    return (
        InputSpec("input_ids", int32, (tokens,)),
        InputSpec("positions", int64, (tokens,)),
        InputSpec("slot_mapping", int64, (tokens,)),
        InputSpec("token_request", int32, (tokens,)),
        InputSpec("query_start", int32, (requests + 1,)),
        InputSpec("seq_lens", int32, (requests,)),
        InputSpec("computed_tokens", int32, (requests,)),
        InputSpec("logits_index", int32, (requests,)),
        InputSpec("block_table", int32, (requests, limits.request_blocks)),
        *(InputSpec(name, dtype, (requests,)) for name, dtype in SAMPLING_DTYPES.items()),
    )


class InputBuilder:
    """Writes a step's inputs into host arrays. Knows no device.

    Parameters
    ----------
    limits : Limits
        What the arrays are large enough for.

    Attributes
    ----------
    specs : tuple of InputSpec
        What it writes.
    """

    def __init__(self, limits: Limits) -> None:
        self.specs = input_specs(limits)
        self._block_tokens = limits.block_tokens
        self._count_up = np.arange(max(limits.step_tokens, limits.requests + 1), dtype=np.int64)

    def build(self, table: RequestTable, batch: Batch, host: HostArrays) -> dict[str, int]:
        """Write the inputs of one step over those of the step before.

        Parameters
        ----------
        table
            The running requests, with the blocks for this step.
        batch
            The step.
        host
            An array for each spec, by name.

        Returns
        -------
        dict of str to int
            For each input, how many rows of dimension 0 this step uses: the first ones.
            What is behind them is left from earlier steps, and means nothing.
        """
        rows, counts = batch.rows, batch.counts
        requests, tokens = len(rows), batch.tokens
        computed = table.computed[rows]

        start = host["query_start"]
        start[0] = 0
        np.cumsum(counts, out=start[1 : requests + 1])

        request = np.repeat(self._count_up[:requests], counts)
        # A token's position: how far into its request's share of the step, behind what ran.
        position = self._count_up[:tokens] + (computed - start[:requests])[request]
        row = rows[request]
        block, offset = np.divmod(position, self._block_tokens)
        host["input_ids"][:tokens] = table.tokens[row, position]
        host["positions"][:tokens] = position
        host["token_request"][:tokens] = request
        slot = table.blocks[row, block].astype(np.int64) * self._block_tokens
        np.add(slot, offset, out=host["slot_mapping"][:tokens])

        np.add(computed, counts, out=host["seq_lens"][:requests])
        host["computed_tokens"][:requests] = computed
        np.subtract(start[1 : requests + 1], 1, out=host["logits_index"][:requests])
        # "clip", since take() with its default mode copies once more when it has an `out`; the
        # rows are in range in any case.
        np.take(table.blocks, rows, axis=0, out=host["block_table"][:requests], mode="clip")
        for name, column in table.sampling.items():
            np.take(column, rows, out=host[name][:requests], mode="clip")

        used = {spec.name: requests for spec in self.specs}
        used["query_start"] = requests + 1
        for name in ("input_ids", "positions", "slot_mapping", "token_request"):
            used[name] = tokens
        return used
