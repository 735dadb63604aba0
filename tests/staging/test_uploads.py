"""Figures and limits of the upload rings."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import staging  # noqa: E402
from staging import CpuGpuBuffer, sim, upload_stats  # noqa: E402


@pytest.mark.sim
@pytest.mark.cuda
def test_shows_what_is_in_flight():
    torch.cuda.synchronize()
    staging.pinned_trim()  # nothing of others is in flight
    buffer = CpuGpuBuffer(1024, dtype=torch.int32, device="cuda")
    with sim.policy("lazy"):
        for _ in range(4):
            buffer.copy_to_gpu()
        stats = upload_stats("cuda:0")
        assert stats.in_flight_slots >= 4
        assert stats.in_flight_nbytes >= 4 * 4096
        assert stats.capacity_nbytes >= stats.in_flight_nbytes
    assert upload_stats(0).events >= 4


@pytest.mark.cuda
def test_the_limit_can_be_set_and_has_a_least():
    before = upload_stats().limit_nbytes
    try:
        staging.set_upload_limit(1 << 20)
        assert upload_stats().limit_nbytes == 1 << 20
        staging.set_upload_limit(0)
        assert upload_stats().limit_nbytes == 256 << 10
    finally:
        staging.set_upload_limit(before)


def test_a_negative_limit_is_an_error():
    with pytest.raises(ValueError, match="got -1"):
        staging.set_upload_limit(-1)


def test_a_device_without_uploads_is_an_error():
    with pytest.raises(ValueError, match="'cpu'"):
        upload_stats("cpu")
