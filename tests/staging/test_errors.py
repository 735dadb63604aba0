"""Errors of the device runtime carry what failed, and are consumed where they arose."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from staging import CpuGpuBuffer, DeviceError, OutOfMemory, sim  # noqa: E402

INVALID_VALUE = 1


def test_out_of_memory_is_both_a_device_error_and_a_memory_error():
    assert issubclass(OutOfMemory, DeviceError)
    assert issubclass(OutOfMemory, MemoryError)
    assert issubclass(DeviceError, RuntimeError)


@pytest.mark.sim
@pytest.mark.cuda
def test_a_failed_call_is_reported_once_and_leaves_no_last_error():
    buffer = CpuGpuBuffer(8, dtype=torch.int32, device="cuda")
    buffer.copy_to_gpu()
    with sim.fault("cudaMemcpyAsync", nth=1, code=INVALID_VALUE):
        with pytest.raises(DeviceError) as caught:
            buffer.copy_to_gpu()
    error = caught.value
    assert error.call == "cudaMemcpyAsync"
    assert error.code == INVALID_VALUE
    assert error.name == "cudaErrorInvalidValue"
    assert error.text
    assert not error.context_lost
    assert "Earlier asynchronous work may be the cause" in str(error)
    # The next kernel's check finds nothing, and the next copy works.
    torch.zeros(4, device="cuda")
    buffer.np[:] = 5
    buffer.copy_to_gpu()
    assert buffer.gpu.cpu().tolist() == [5] * 8
