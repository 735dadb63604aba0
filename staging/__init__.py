"""CUDA-native tensor staging: race-free copies of small arrays between host and device.

Importing this package loads nothing else: neither torch, nor NumPy, nor the
extension module, nor the CUDA driver. Each name below is loaded from its module
when it is first used (PEP 562), so that ``import staging.process`` stays cheap in
processes that never touch a tensor.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> the module that defines it. The imports for type checkers below say
# the same; tests/staging/test_init.py compares the two.
_EXPORTS = {
    "BufferStats": "staging.buffer",
    "GroupBuffer": "staging.group",
    "GroupStats": "staging.group",
    "StagedRows": "staging.rows",
    "StagingGroup": "staging.group",
    "UvaBuffer": "staging.uva",
    "apply_rows": "staging.rows",
    "uva_available": "staging.uva",
    "uva_view": "staging.uva",
    "CpuGpuBuffer": "staging.buffer",
    "DeviceError": "staging.errors",
    "DigestHandle": "staging.digest",
    "Fetch": "staging.fetch",
    "OutOfMemory": "staging.errors",
    "SlowPathWarning": "staging.strictness",
    "StagingHint": "staging.strictness",
    "StrictError": "staging.strictness",
    "TensorHasher": "staging.hasher",
    "UploadStats": "staging.uploads",
    "content_key": "staging.hasher",
    "copy_slice": "staging.copy",
    "copy_slices": "staging.copy",
    "digest_async": "staging.digest",
    "digests_async": "staging.digest",
    "install_pinned_allocator": "staging.memory",
    "nvtx_ranges": "staging.tracing",
    "pin": "staging.memory",
    "pinned_empty": "staging.memory",
    "pinned_stats": "staging.memory",
    "pinned_trim": "staging.memory",
    "pinned_zeros": "staging.memory",
    "set_pinned_limit": "staging.memory",
    "set_upload_limit": "staging.uploads",
    "strict": "staging.strictness",
    "tensor_data": "staging.data",
    "tensor_digest": "staging.digest",
    "tensor_digests": "staging.digest",
    "tensor_hexdigest": "staging.digest",
    "upload_stats": "staging.uploads",
}

if TYPE_CHECKING:
    from staging.buffer import BufferStats as BufferStats
    from staging.buffer import CpuGpuBuffer as CpuGpuBuffer
    from staging.copy import copy_slice as copy_slice
    from staging.copy import copy_slices as copy_slices
    from staging.data import tensor_data as tensor_data
    from staging.digest import DigestHandle as DigestHandle
    from staging.digest import digest_async as digest_async
    from staging.digest import digests_async as digests_async
    from staging.digest import tensor_digest as tensor_digest
    from staging.digest import tensor_digests as tensor_digests
    from staging.digest import tensor_hexdigest as tensor_hexdigest
    from staging.errors import DeviceError as DeviceError
    from staging.errors import OutOfMemory as OutOfMemory
    from staging.fetch import Fetch as Fetch
    from staging.group import GroupBuffer as GroupBuffer
    from staging.group import GroupStats as GroupStats
    from staging.group import StagingGroup as StagingGroup
    from staging.hasher import TensorHasher as TensorHasher
    from staging.hasher import content_key as content_key
    from staging.memory import install_pinned_allocator as install_pinned_allocator
    from staging.memory import pin as pin
    from staging.memory import pinned_empty as pinned_empty
    from staging.memory import pinned_stats as pinned_stats
    from staging.memory import pinned_trim as pinned_trim
    from staging.memory import pinned_zeros as pinned_zeros
    from staging.memory import set_pinned_limit as set_pinned_limit
    from staging.rows import StagedRows as StagedRows
    from staging.rows import apply_rows as apply_rows
    from staging.strictness import SlowPathWarning as SlowPathWarning
    from staging.strictness import StagingHint as StagingHint
    from staging.strictness import StrictError as StrictError
    from staging.strictness import strict as strict
    from staging.tracing import nvtx_ranges as nvtx_ranges
    from staging.uploads import UploadStats as UploadStats
    from staging.uploads import set_upload_limit as set_upload_limit
    from staging.uploads import upload_stats as upload_stats
    from staging.uva import UvaBuffer as UvaBuffer
    from staging.uva import uva_available as uva_available
    from staging.uva import uva_view as uva_view

__all__ = [
    "BufferStats",
    "CpuGpuBuffer",
    "DeviceError",
    "DigestHandle",
    "Fetch",
    "GroupBuffer",
    "GroupStats",
    "OutOfMemory",
    "SlowPathWarning",
    "StagedRows",
    "StagingGroup",
    "StagingHint",
    "StrictError",
    "TensorHasher",
    "UploadStats",
    "UvaBuffer",
    "__version__",
    "apply_rows",
    "content_key",
    "copy_slice",
    "copy_slices",
    "digest_async",
    "digests_async",
    "install_pinned_allocator",
    "nvtx_ranges",
    "pin",
    "pinned_empty",
    "pinned_stats",
    "pinned_trim",
    "pinned_zeros",
    "set_pinned_limit",
    "set_upload_limit",
    "strict",
    "tensor_data",
    "tensor_digest",
    "tensor_digests",
    "tensor_hexdigest",
    "upload_stats",
    "uva_available",
    "uva_view",
]


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
