"""Loads the extension module behind the tensors it works on.

``torch`` comes first: its libraries, and the CUDA runtime among them, must be loaded
before the extension that links against them.
"""

from __future__ import annotations

from pathlib import Path

import torch

try:
    from staging import _C
except ImportError as error:
    raise ImportError(
        f"staging's extension cannot be loaded with torch {torch.__version__}: {error}. It is "
        "built for one version of torch: rebuild it with "
        "'pip install --no-build-isolation --force-reinstall tensor-staging' (or 'make build')"
    ) from error

# Warnings are attributed to the first caller outside of this folder.
_C.set_package_folder(str(Path(__file__).parent) + "/")

__all__ = ["_C", "torch"]
