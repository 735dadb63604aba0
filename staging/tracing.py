"""Ranges for profilers."""

from __future__ import annotations

from staging.arguments import flag_argument
from staging.extension import _C


def nvtx_ranges(enabled: bool = True) -> None:
    """Mark the copies of each buffer with an NVTX range of its name, or stop doing so.

    Parameters
    ----------
    enabled
        The environment variable ``STAGING_NVTX=1`` sets it from the start. Off, a copy pays
        one load for it.

    Raises
    ------
    RuntimeError
        This build has no NVTX: it was made without the CUDA toolkit's headers.

    Notes
    -----
    A buffer's name is its ``name=``; ranges are called ``name.copy_to_gpu``,
    ``name.copy_to_cpu``, ``name.fetch``, ``name.fill``, ``name.refill`` and ``name.wait``. They
    span the host's calls, not the transfers.
    """
    enabled = flag_argument(enabled, "enabled")
    if enabled and not _C.nvtx_available():
        raise RuntimeError(
            "this build of staging has no NVTX; build it where the CUDA toolkit's headers "
            "(nvtx3/nvToolsExt.h) are found"
        )
    _C.set_nvtx(enabled)
