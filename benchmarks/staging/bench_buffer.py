"""CpuGpuBuffer.copy_to_gpu beside the plain pinned buffer.

python -m pytest benchmarks/staging/bench_buffer.py                              # on a GPU
python -m staging sim --policy eager python -m pytest benchmarks/staging/bench_buffer.py
"""

from __future__ import annotations

import itertools

import pytest
import torch
from compare import compare

from staging import CpuGpuBuffer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ROWS = 1024


class PlainBuffer:
    """A pinned tensor, a device tensor, and a non-blocking copy of the first rows."""

    def __init__(self):
        self.cpu = torch.zeros(ROWS, dtype=torch.int32, pin_memory=True)
        self.gpu = torch.zeros(ROWS, dtype=torch.int32, device="cuda")
        self.np = self.cpu.numpy()

    def copy_to_gpu(self, n):
        return self.gpu[:n].copy_(self.cpu[:n], non_blocking=True)


def bench_copy_to_gpu(where, show):
    plain = PlainBuffer()
    buffer = CpuGpuBuffer(ROWS, dtype=torch.int32, device="cuda")
    show(
        compare(
            f"copy_to_gpu(256), 1 KiB ({where})",
            {
                "plain": lambda: plain.copy_to_gpu(256),
                "staging": lambda: buffer.copy_to_gpu(256),
                "staging, all": buffer.copy_to_gpu,
            },
            settle=torch.cuda.synchronize,
        )
    )


def bench_copy_to_gpu_of_changing_lengths(where, show):
    plain = PlainBuffer()
    buffer = CpuGpuBuffer(ROWS, dtype=torch.int32, device="cuda")
    lengths = itertools.cycle(range(200, 300))
    show(
        compare(
            f"copy_to_gpu(n), n changes with every call ({where})",
            {
                "plain": lambda: plain.copy_to_gpu(next(lengths)),
                "staging": lambda: buffer.copy_to_gpu(next(lengths)),
            },
            settle=torch.cuda.synchronize,
        )
    )


@pytest.mark.parametrize("nbytes", [4 << 10, 64 << 10, 1 << 20])
def bench_copy_to_gpu_of_larger_arrays(where, show, nbytes):
    rows = nbytes // 4
    cpu = torch.zeros(rows, dtype=torch.int32, pin_memory=True)
    gpu = torch.zeros(rows, dtype=torch.int32, device="cuda")
    buffer = CpuGpuBuffer(rows, dtype=torch.int32, device="cuda")
    show(
        compare(
            f"copy_to_gpu() of {nbytes >> 10} KiB ({where})",
            {
                "plain": lambda: gpu.copy_(cpu, non_blocking=True),
                "staging": buffer.copy_to_gpu,
            },
            calls=200,
            settle=torch.cuda.synchronize,
        )
    )


def bench_read_np_with_nothing_in_flight(where, show):
    plain = PlainBuffer()
    buffer = CpuGpuBuffer(ROWS, dtype=torch.int32, device="cuda")
    buffer.copy_to_cpu()
    _ = buffer.np
    show(
        compare(
            f"read .np, nothing in flight ({where})",
            {"plain attribute": lambda: plain.np, "staging": lambda: buffer.np},
            calls=20_000,
        )
    )
