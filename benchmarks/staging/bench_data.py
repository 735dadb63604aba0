"""tensor_data beside the plain expression.

python -m pytest benchmarks/staging/bench_data.py
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


def bench_transposed_host_tensor(show):
    tensor = torch.zeros(512, 512, dtype=torch.float32).t()
    show(
        compare(
            "tensor_data of a transposed 1 MiB host tensor (host times)",
            {"plain": lambda: plain_data(tensor), "staging": lambda: tensor_data(tensor)},
            calls=20,
        )
    )
