"""A step's inputs in one call, beside the ways of doing it with torch alone.

python -m pytest benchmarks/staging/bench_group.py                                # on a GPU
python -m staging sim --policy eager python -m pytest benchmarks/staging/bench_group.py
"""

from __future__ import annotations

import time

import pytest
import torch
from compare import compare

from staging import CpuGpuBuffer, StagingGroup

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ROWS = 256  # of int32: 1 KiB


class Plain:
    """The usual pattern: a pinned tensor, a device tensor and ``copy_``."""

    def __init__(self, rows):
        self.cpu = torch.zeros(rows, dtype=torch.int32, pin_memory=True)
        self.gpu = torch.zeros(rows, dtype=torch.int32, device="cuda")

    def copy_to_gpu(self, n):
        return self.gpu[:n].copy_(self.cpu[:n], non_blocking=True)


def ways(count, used, rows=ROWS):
    """Return each way of staging the first ``used`` of the ``rows`` of ``count`` arrays."""
    plain = [Plain(rows) for _ in range(count)]
    buffers = [CpuGpuBuffer(rows, dtype=torch.int32, device="cuda") for _ in range(count)]
    group = StagingGroup("cuda", {f"m{i}": (rows, torch.int32) for i in range(count)})
    prefixes = dict.fromkeys(group.values(), used)
    packed = torch.zeros(count * used, dtype=torch.int32, pin_memory=True)
    landed = torch.zeros(count * used, dtype=torch.int32, device="cuda")
    parts = list(packed.split(used))
    sources = [buffer.cpu[:used] for buffer in plain]
    targets = [buffer.gpu[:used] for buffer in plain]

    def plain_loop():
        for buffer in plain:
            buffer.copy_to_gpu(used)

    def foreach():
        torch._foreach_copy_(targets, sources, non_blocking=True)

    def pack_then_copy():
        # To where the parts lie one behind the other: a runner would have to read them there.
        torch._foreach_copy_(parts, sources)
        landed.copy_(packed, non_blocking=True)

    def buffer_loop():
        for buffer in buffers:
            buffer.copy_to_gpu(used)

    def together():
        group.copy_to_gpu(prefixes)

    return {
        "plain loop": plain_loop,
        "torch._foreach_copy_": foreach,
        "pack, then one copy (torch)": pack_then_copy,
        "CpuGpuBuffer loop": buffer_loop,
        "StagingGroup": together,
    }


@pytest.mark.parametrize("used", [ROWS, ROWS * 3 // 4], ids=["whole", "prefixes"])
@pytest.mark.parametrize("count", [1, 4, 16, 64])
def bench_group(where, show, count, used):
    calls = max(20, 1600 // count)
    show(
        compare(
            f"{count} arrays of 1 KiB, {used} of {ROWS} rows ({where})",
            ways(count, used),
            calls=calls,
            settle=torch.cuda.synchronize,
        )
    )


def call_ns(call, calls=2000, rounds=40):
    """Return the CPU time of one call: this thread's, of the best round and of the median one."""
    for _ in range(calls // 4):
        call()
    times = []
    for _ in range(rounds):
        start = time.thread_time_ns()
        for _ in range(calls):
            call()
        times.append((time.thread_time_ns() - start) / calls)
        torch.cuda.synchronize()
    return min(times), sorted(times)[rounds // 2]


@pytest.mark.parametrize("used", [ROWS, ROWS * 3 // 4], ids=["whole", "prefixes"])
def bench_slope(where, used):
    """What a further member costs: the difference between 64 and 16 members.

    In CPU time, so that what else the machine does counts for little. Use the schedule "null",
    where the simulated device does nothing.
    """
    times = {}
    for count in (16, 64):
        group = StagingGroup("cuda", {f"m{i}": (ROWS, torch.int32) for i in range(count)})
        prefixes = dict.fromkeys(group.values(), used)
        times[count] = call_ns(lambda group=group, prefixes=prefixes: group.copy_to_gpu(prefixes))
    best, median = ((many - few) / 48 for few, many in zip(times[16], times[64], strict=True))
    print(f"\n{used} of {ROWS} rows ({where}), CPU time")
    for count, (least, middle) in times.items():
        print(f"  {count} members: {least:.0f} ns a call in the best round, {middle:.0f} median")
    print(f"  each further member: {best:.1f} ns, median {median:.1f}")


def bench_latency(where):
    """From the call until the device has the bytes, by each way; of whole arrays."""
    print()
    print(f"µs until the stream is idle ({where})")
    print(f"{'members':>8} {'bytes':>6} " + " ".join(f"{name:>28}" for name in ways(1, 1)))
    for rows in (16, 64, 256, 1024, 4096, 16384):
        for count in (1, 4, 16, 64):
            medians = []
            for way in ways(count, rows, rows).values():
                times = []
                for _ in range(60):
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    way()
                    torch.cuda.synchronize()
                    times.append(time.perf_counter() - start)
                medians.append(sorted(times)[len(times) // 2] * 1e6)
            print(f"{count:>8} {4 * rows:>6} " + " ".join(f"{value:28.1f}" for value in medians))
