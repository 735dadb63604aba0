"""Sparse updates of a table on the device, beside the ways of doing it with torch alone.

python -m pytest benchmarks/staging/bench_rows.py                                # on a GPU
python -m staging sim --policy null python -m pytest benchmarks/staging/bench_rows.py
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from compare import compare

from staging import StagedRows

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ROWS, COLS = 256, 4096


@pytest.mark.parametrize("writes", [1, 16, 64, 256])
def bench_rows(where, show, writes):
    """Two entries for each of some rows, as a step appends to a block table."""
    values = np.arange(2, dtype=np.int32)
    table = StagedRows(ROWS, COLS, torch.int32, "cuda")
    plain = torch.zeros(ROWS, COLS, dtype=torch.int32, device="cuda")
    pinned = torch.zeros(ROWS, 2, dtype=torch.int32, pin_memory=True)
    whole = torch.zeros(ROWS, COLS, dtype=torch.int32, pin_memory=True)

    def copy_each():
        for row in range(writes):
            plain[row, 5:7].copy_(pinned[row], non_blocking=True)

    def copy_rows():
        plain[:writes].copy_(whole[:writes], non_blocking=True)

    def staged():
        for row in range(writes):
            table.stage(row, 5, values)
        table.apply()

    show(
        compare(
            f"{writes} writes of 8 bytes into {ROWS} x {COLS} int32 ({where})",
            {
                "a copy_ for each": copy_each,
                "one copy_ of the whole rows": copy_rows,
                "StagedRows": staged,
            },
            calls=max(10, 600 // writes),
            settle=torch.cuda.synchronize,
        )
    )
