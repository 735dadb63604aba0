"""NVTX ranges: what they are called is in the C++ test; here, that they can be switched."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from staging import CpuGpuBuffer, nvtx_ranges  # noqa: E402
from staging.extension import _C  # noqa: E402

needs_nvtx = pytest.mark.skipif(not _C.nvtx_available(), reason="this build has no NVTX")


@needs_nvtx
def test_copies_work_with_ranges_on():
    buffer = CpuGpuBuffer(4, dtype=torch.int32, device="cpu", name="ids")
    nvtx_ranges()
    try:
        assert _C.nvtx()
        buffer.np[:] = 1
        assert buffer.copy_to_gpu().tolist() == [1] * 4
        with pytest.raises(ValueError, match="n must be"):
            buffer.copy_to_cpu(9)
    finally:
        nvtx_ranges(False)
    assert not _C.nvtx()


@pytest.mark.skipif(_C.nvtx_available(), reason="this build has NVTX")
def test_a_build_without_nvtx_says_so():
    with pytest.raises(RuntimeError, match="nvToolsExt"):
        nvtx_ranges()
    nvtx_ranges(False)


@needs_nvtx
def test_the_environment_switches_them_on():
    code = "from staging.extension import _C; print(_C.nvtx())"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "STAGING_NVTX": "1"},
    )
    assert result.stdout.strip() == "True"
