"""copy_slice beside two slices and copy_.

python -m pytest benchmarks/staging/bench_copy.py                                # on a GPU
python -m staging sim --policy eager python -m pytest benchmarks/staging/bench_copy.py
"""

from __future__ import annotations

import pytest
import torch
from compare import compare

from staging import copy_slice

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ROWS = 1024


def plain_slice(source, target, n):
    target[:n].copy_(source[:n], non_blocking=True)
    return target[:n]


@pytest.mark.parametrize("snapshot", [False, True], ids=["direct", "snapshot"])
def bench_pinned_to_device(where, show, snapshot):
    source = torch.zeros(ROWS, dtype=torch.int32, pin_memory=True)
    target = torch.zeros(ROWS, dtype=torch.int32, device="cuda")
    show(
        compare(
            f"copy_slice, pinned to device, 1 KiB, snapshot={snapshot} ({where})",
            {
                "plain": lambda: plain_slice(source, target, 256),
                "staging": lambda: copy_slice(source, target, 256, snapshot=snapshot),
            },
            settle=torch.cuda.synchronize,
        )
    )


def bench_device_to_pinned(where, show):
    source = torch.zeros(ROWS, dtype=torch.int32, device="cuda")
    target = torch.zeros(ROWS, dtype=torch.int32, pin_memory=True)
    show(
        compare(
            f"copy_slice, device to pinned, 1 KiB ({where})",
            {
                "plain": lambda: plain_slice(source, target, 256),
                "staging": lambda: copy_slice(source, target, 256),
            },
            settle=torch.cuda.synchronize,
        )
    )
