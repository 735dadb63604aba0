"""Pinned tensors of the pool beside PyTorch's own: making, copying, dropping; and their size.

python -m pytest benchmarks/staging/bench_memory.py                # on a GPU
python -m staging sim --policy null python -m pytest benchmarks/staging/bench_memory.py

Over the simulated device the times are host times, and compare the ways with each other;
they are not device times.
"""

from __future__ import annotations

import pytest
import torch

from staging import memory, sim

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

WHERE = "simulated host times" if sim.active() else "host times"
SIZES = [256, 64 << 10, 4 << 20]


def of_torch(nbytes):
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)


def of_pool(nbytes):
    return memory.pinned_empty(nbytes, dtype=torch.uint8)


MAKERS = {"torch": of_torch, "staging": of_pool}


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("maker", MAKERS)
def bench_make_and_drop(benchmark, maker, nbytes):
    make = MAKERS[maker]
    benchmark.group = f"make and drop {nbytes} bytes ({WHERE})"
    make(nbytes)  # pinned once; what is measured is reuse
    benchmark(make, nbytes)


@pytest.mark.parametrize("maker", MAKERS)
def bench_copy_to_the_device(benchmark, maker):
    tensor = MAKERS[maker](4096)
    gpu = torch.empty(4096, dtype=torch.uint8, device="cuda")
    benchmark.group = f"copy_ of 4096 bytes, the source kept ({WHERE})"
    benchmark(gpu.copy_, tensor, non_blocking=True)


@pytest.mark.parametrize("maker", MAKERS)
def bench_make_copy_and_drop(benchmark, maker):
    make = MAKERS[maker]
    gpu = torch.empty(4096, dtype=torch.uint8, device="cuda")

    def step():
        gpu.copy_(make(4096), non_blocking=True)

    benchmark.group = f"make, copy_ 4096 bytes and drop ({WHERE})"
    benchmark(step)


@pytest.mark.parametrize("nbytes", [129 * (1 << 20) + (1 << 19)])
def bench_pinning(benchmark, nbytes):
    """Map, touch and register; the extra is what a block costs beyond its size."""
    benchmark.group = f"pin {nbytes} bytes anew ({WHERE})"

    def pin():
        tensor = of_pool(nbytes)
        extra = memory.pinned_stats().allocated - nbytes
        del tensor
        memory.pinned_trim()
        return extra

    memory.pinned_trim()
    benchmark.extra_info["extra_nbytes"] = benchmark.pedantic(pin, rounds=5)
