"""BLAKE3 to compare with: the package, or where it is missing this package's host implementation.

That one is held to the official vectors. It is enough to check a device, and not to check itself:
such comparisons are skipped, by ``against_the_package``.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

MISSING = importlib.util.find_spec("blake3") is None
REASON = "compares with the package blake3, which is not installed: pip install blake3"
against_the_package = pytest.mark.skipif(MISSING, reason=REASON)

if not MISSING:
    from blake3 import blake3
else:
    from staging.extension import _C

    def blake3(data: Any = b"") -> Any:
        hasher = _C.Blake3()
        hasher.update(data)
        return hasher
