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


def bench_policies(where, show):
    """With nothing in flight: ``wait`` may cost 1.3 times ``unchecked``."""
    buffers = {
        reuse: CpuGpuBuffer(ROWS, dtype=torch.int32, device="cuda", reuse=reuse)
        for reuse in ("unchecked", "wait", "snapshot")
    }
    show(
        compare(
            f"copy_to_gpu(256) by policy, nothing in flight ({where})",
            {
                reuse: lambda buffer=buffer: buffer.copy_to_gpu(256)
                for reuse, buffer in buffers.items()
            },
            settle=torch.cuda.synchronize,
        )
    )


def bench_policies_with_a_read(where, show):
    """A step of each policy: write through ``np``, copy."""

    def step(buffer):
        buffer.np[0] = 1
        buffer.copy_to_gpu(256)

    buffers = {
        reuse: CpuGpuBuffer(ROWS, dtype=torch.int32, device="cuda", reuse=reuse)
        for reuse in ("unchecked", "wait", "snapshot")
    }
    show(
        compare(
            f"np[0] = 1; copy_to_gpu(256) by policy ({where})",
            {reuse: lambda buffer=buffer: step(buffer) for reuse, buffer in buffers.items()},
            settle=torch.cuda.synchronize,
        )
    )


class PlainAttribute:
    def __init__(self, array):
        self.np = array


# Ten reads a call: the call itself costs more than one.
_TEN_READS = compile("def read(b):\n    " + "b.np; " * 10, "<reads>", "exec")


def _reader():
    names: dict = {}
    exec(_TEN_READS, names)
    return names["read"]


def bench_reading_np(where, show):
    """With nothing in flight: 1.5 times a plain attribute is allowed."""
    buffer = CpuGpuBuffer(ROWS, dtype=torch.int32, device="cuda")
    buffer.copy_to_cpu()
    plain = PlainAttribute(buffer.np)
    readers = {"plain attribute": (_reader(), plain), "staging": (_reader(), buffer)}
    show(
        compare(
            f"ten reads of np, nothing in flight ({where})",
            {
                name: lambda read=read, subject=subject: read(subject)
                for name, (read, subject) in readers.items()
            },
            calls=20_000,
        )
    )


def bench_fill(where, show):
    buffer = CpuGpuBuffer(ROWS * 64, dtype=torch.int32, device="cuda")
    values = torch.arange(ROWS * 64, dtype=torch.int32).numpy()

    def through_np():
        buffer.np[:] = values
        buffer.copy_to_gpu()

    def through_fill():
        with buffer.fill() as rows:
            rows[:] = values

    show(
        compare(
            f"write and stage 256 KiB ({where})",
            {"np and copy_to_gpu": through_np, "fill": through_fill},
            calls=200,
            settle=torch.cuda.synchronize,
        )
    )


def bench_fetch(where, show):
    buffer = CpuGpuBuffer(ROWS, dtype=torch.int32, device="cuda")
    gpu = torch.zeros(ROWS, dtype=torch.int32, device="cuda")

    def plain():
        cpu = torch.empty(ROWS, dtype=torch.int32, pin_memory=True)
        cpu.copy_(gpu, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        event.synchronize()
        return cpu

    show(
        compare(
            f"4 KiB to the host, waited for ({where})",
            {
                "plain": plain,
                "staging, fetch": lambda: buffer.fetch().result(),
                "staging, copy_to_cpu": lambda: (buffer.copy_to_cpu(), buffer.np),
            },
            settle=torch.cuda.synchronize,
        )
    )
