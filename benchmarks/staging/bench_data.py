"""tensor_data beside the plain expression.

python -m pytest benchmarks/staging/bench_data.py

Of device tensors it takes a CUDA device, real or simulated. Over the simulated one the copy
from the device is a memcpy on the calling thread: a figure of the host's work, not a device's.
"""

from __future__ import annotations

import pytest
import torch
from compare import compare

from staging import tensor_data


def plain_data(tensor):
    return tensor.flatten().contiguous().view(torch.uint8).numpy().data


@pytest.mark.parametrize("nbytes", [64, 1 << 20])
def bench_contiguous_host_tensor(show, nbytes):
    tensor = torch.zeros(nbytes // 4, dtype=torch.float32)
    show(
        compare(
            f"tensor_data of {nbytes} contiguous bytes on the host (host times)",
            {"plain": lambda: plain_data(tensor), "staging": lambda: tensor_data(tensor)},
        )
    )


@pytest.mark.parametrize("nbytes", [1 << 20, 64 << 20])
def bench_transposed_host_tensor(show, nbytes):
    tensor = torch.zeros(nbytes // 4 // 512, 512, dtype=torch.float32).t()
    show(
        compare(
            f"tensor_data of {nbytes >> 20} transposed MiB on the host (host times)",
            {"plain": lambda: plain_data(tensor), "staging": lambda: tensor_data(tensor)},
            calls=max(1, (20 << 20) // nbytes),
            rounds=9,
        )
    )


on_device = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device, real or simulated"
)


@on_device
@pytest.mark.parametrize("nbytes", [64, 64 << 10, 1 << 20, 64 << 20])
def bench_device_tensor(show, where, nbytes):
    tensor = torch.zeros(nbytes, dtype=torch.uint8).to("cuda")
    show(
        compare(
            f"tensor_data of {nbytes} bytes on the device ({where})",
            {
                ".cpu(), then plain": lambda: plain_data(tensor.cpu()),
                "staging": lambda: tensor_data(tensor),
            },
            calls=max(1, min(500, (8 << 20) // nbytes)),
            settle=torch.cuda.synchronize,
        )
    )
