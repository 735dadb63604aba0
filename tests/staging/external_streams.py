"""Streams that PyTorch did not make: they may be destroyed at any time."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_NON_BLOCKING = 1


@contextmanager
def external_stream() -> Iterator[torch.cuda.ExternalStream]:
    """A stream of the runtime, destroyed at the end; its handle may then come back."""
    runtime = ctypes.CDLL(None)
    handle = ctypes.c_void_p()
    assert runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), _NON_BLOCKING) == 0
    try:
        yield torch.cuda.ExternalStream(handle.value)
    finally:
        assert runtime.cudaStreamDestroy(handle) == 0
