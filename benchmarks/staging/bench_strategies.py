"""One by one, in a batch, by a kernel: device time, latency and where they cross.

What the cost table is about, measured where it runs. Only a GPU's figures say something; over
the simulated device it is host time.

python -m pytest -s benchmarks/staging/bench_strategies.py
"""

from __future__ import annotations

import statistics

import pytest
import torch

from staging import sim
from staging.extension import _C

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

COUNTS = (1, 4, 16, 64)
SIZES = (64, 256, 1024, 4096, 16 << 10, 64 << 10)
METHODS = ("copy", "batch", "kernel")
REPETITIONS = 30


def device_us(direction, method, sides, count, nbytes):
    """Return the device's time for one call: ``REPETITIONS`` of them in a row, between events."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    if not sim.active():
        torch.cuda._sleep(20_000_000)  # until all of them are enqueued
    start.record()
    _C.repeat_copies(direction, method, *sides, count, nbytes, REPETITIONS)
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1e3 / REPETITIONS


@pytest.mark.parametrize("direction", ["host_to_device", "device_to_host", "device_to_device"])
def bench_strategies(where, direction):
    nbytes = _C.time_copies_nbytes(COUNTS[-1], SIZES[-1])
    on_device = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
    other = (
        torch.zeros_like(on_device)
        if direction == "device_to_device"
        else torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)
    )
    to, from_ = (other, on_device) if direction == "device_to_host" else (on_device, other)
    print(f"\n{direction} ({where})")
    print("µs a call: until it returns / until the stream is idle / on the device, in a row")
    print(f"{'items':>6} {'bytes':>7} " + " ".join(f"{m:>26}" for m in METHODS) + "  quickest")
    crossovers = {}
    with torch.cuda.stream(torch.cuda.Stream()):  # the legacy stream has no batches
        for size in SIZES:
            for count in COUNTS:
                cells, totals = [], {}
                for method in METHODS:
                    _C.time_copies(direction, method, to, from_, count, size, 5)
                    times = _C.time_copies(direction, method, to, from_, count, size, REPETITIONS)
                    if times is None:
                        cells.append(f"{'-':>26}")
                        continue
                    host = statistics.median(t[0] for t in times)
                    totals[method] = statistics.median(t[1] for t in times)
                    device = device_us(direction, method, (to, from_), count, size)
                    cells.append(f"{host:8.2f} {totals[method]:8.2f} {device:8.2f}")
                quickest = min(totals, key=totals.get)
                crossovers.setdefault((size, quickest), count)
                print(f"{count:>6} {size:>7} " + " ".join(cells) + f"  {quickest}")
    for (size, method), count in crossovers.items():
        print(f"{size:>7} bytes: {method} is the quickest from {count} items")
