"""content_key of a request beside what is written by hand today.

python -m pytest benchmarks/staging/bench_hasher.py
"""

from __future__ import annotations

import pickle

import pytest
import torch
from compare import compare

from staging import content_key

blake3 = pytest.importorskip("blake3")

REQUEST = {
    "images": [torch.zeros(3, 224, 224, dtype=torch.uint8) for _ in range(4)],
    "prompt": "Describe the picture. " * 10,
    "sampling": {"temperature": 0.7, "top_p": 0.9, "max_tokens": 256, "stop": None},
}


def bench_request_with_images(show):
    def pickled():
        return blake3.blake3(pickle.dumps(REQUEST)).hexdigest()

    show(
        compare(
            "a key for a request with four images of 147 KiB (host times)",
            {"pickle, then blake3": pickled, "content_key": lambda: content_key(REQUEST)},
            calls=50,
        )
    )


@pytest.mark.parametrize("count", [100, 10_000])
def bench_token_ids(show, count):
    tokens = list(range(count))
    show(
        compare(
            f"a key for {count} token ids in a list (host times)",
            {
                "pickle, then blake3": lambda: blake3.blake3(pickle.dumps(tokens)).hexdigest(),
                "content_key": lambda: content_key(tokens),
            },
            calls=20,
        )
    )
