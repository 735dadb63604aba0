"""Figures and limits of the upload rings."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from external_streams import external_stream  # noqa: E402

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


def copy_by_buffer(stream):
    buffer = copy_by_buffer.buffer
    buffer.copy_to_gpu(stream=stream)
    return buffer.fetch(stream=stream).wait()


def copy_by_group(stream):
    copy_by_group.group.copy_to_gpu(stream=stream)


def copy_by_slice(stream):
    with torch.cuda.stream(stream):
        staging.copy_slice(torch.ones(64), copy_by_slice.target, 64, snapshot=True)


def apply_rows(stream):
    apply_rows.table.stage(0, 0, [1, 2])
    apply_rows.table.apply(stream=stream)


def digest(stream):
    with torch.cuda.stream(stream):
        staging.tensor_digest(digest.tensor)


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore::staging.SlowPathWarning")
@pytest.mark.parametrize("policy", ["lazy", "random"])
@pytest.mark.parametrize(
    "use",
    [copy_by_buffer, copy_by_group, copy_by_slice, apply_rows, digest],
    ids=lambda f: f.__name__,
)
def test_a_thousand_streams_that_came_and_went_leave_nothing(use, policy, seed):
    copy_by_buffer.buffer = CpuGpuBuffer(4096, dtype=torch.int32, device="cuda")
    copy_by_group.group = staging.StagingGroup("cuda", {"a": (64, torch.int32)})
    copy_by_slice.target = torch.zeros(64, device="cuda")
    apply_rows.table = staging.StagedRows(4, 8, torch.int32, "cuda")
    digest.tensor = torch.ones(1000, device="cuda")
    torch.cuda.synchronize()
    staging.pinned_trim()
    before = staging.pinned_stats().allocated
    with sim.policy(policy, seed=seed):
        for _ in range(1000):
            with external_stream() as stream:
                use(stream)
                stream.synchronize()
    stats = upload_stats()
    assert (stats.in_flight_slots, stats.in_flight_nbytes) == (0, 0)
    assert staging.pinned_stats().allocated - before <= 8 << 20
    assert stats.events < 200


@pytest.mark.sim
@pytest.mark.cuda
def test_a_stalled_stream_at_the_limit_holds_up_no_other(seed):
    before = upload_stats().limit_nbytes
    buffers = [CpuGpuBuffer(8192, dtype=torch.int32, device="cuda") for _ in range(2)]
    stalled, other = torch.cuda.Stream(), torch.cuda.Stream()
    try:
        staging.set_upload_limit(1 << 20)
        torch.cuda.synchronize()
        waits = upload_stats().waits
        with sim.policy("lazy", seed=seed), sim.hold(stalled.cuda_stream):
            for _ in range((1 << 20) // (8192 * 4)):
                buffers[0].copy_to_gpu(stream=stalled)
            assert upload_stats().in_flight_nbytes >= 1 << 20
            for _ in range(100):  # waits for its own, if at all
                buffers[1].copy_to_gpu(stream=other)
            assert upload_stats().in_flight_nbytes <= (1 << 20) + (64 << 10)
            assert upload_stats().waits > waits
    finally:
        staging.set_upload_limit(before)


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
