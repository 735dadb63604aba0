"""Views of pinned memory: live, alive, honest about races."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

from staging import UvaBuffer, copy_slice, sim, uva_available, uva_view  # noqa: E402
from staging import uva as uva_module  # noqa: E402
from staging.extension import _C  # noqa: E402


def on_host(view):
    """What a kernel of the device reads: copied by one to device memory, and from there."""
    copy = torch.zeros(view.shape, dtype=view.dtype, device=view.device)
    copy_slice(view, copy, view.shape[0])
    return copy.cpu()


def test_nothing_but_a_cuda_device_has_views():
    assert not uva_available("cpu")
    with pytest.raises(ValueError, match="CUDA"):
        uva_view(torch.zeros(3), "cpu")


@pytest.mark.cuda
def test_a_view_is_the_host_memory_itself():
    host = torch.zeros(4, 3, dtype=torch.int32, pin_memory=True)
    view = uva_view(host)
    assert view.device.type == "cuda"
    assert view.shape == host.shape
    assert view.stride() == host.stride()
    for value in (1, 2, 3):
        host.fill_(value)
        assert (on_host(view) == value).all()


@pytest.mark.cuda
def test_views_of_slices_have_their_offsets_and_strides():
    host = torch.arange(24, dtype=torch.int32).view(4, 6).pin_memory()
    view = uva_view(host[1:, ::2])
    assert view.stride() == (6, 2)
    assert torch.equal(on_host(view), host[1:, ::2])


@pytest.mark.cuda
def test_pytorch_copies_views_as_it_copies_any_device_tensor():
    host = torch.arange(16).pin_memory()
    view = uva_view(host)
    assert torch.equal(view.clone().cpu(), host)
    assert torch.equal(view.cpu(), host)
    assert torch.equal(torch.empty_like(view).copy_(view).cpu(), host)
    back = torch.zeros_like(host).pin_memory()
    back.copy_(view, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(back, host)
    view.copy_(torch.full_like(view, 7))
    torch.cuda.synchronize()
    assert (host == 7).all()


@pytest.mark.sim
@pytest.mark.cuda
def test_a_copy_of_a_view_reads_the_host_memory_when_it_runs():
    host = torch.ones(16, dtype=torch.int32).pin_memory()
    with sim.policy("lazy"):
        copy = uva_view(host).clone()
        host.fill_(2)
        assert (copy.cpu() == 2).all()


@pytest.mark.cuda
def test_a_view_keeps_the_host_memory_alive():
    host = torch.full((1 << 16,), 7, dtype=torch.int32, pin_memory=True)
    view = uva_view(host)
    del host
    gc.collect()
    others = [torch.zeros(1 << 16, dtype=torch.int32, pin_memory=True) for _ in range(4)]
    assert (on_host(view) == 7).all()
    del others


@pytest.mark.cuda
def test_pageable_and_empty_tensors_are_refused():
    with pytest.raises(ValueError, match="pinned"):
        uva_view(torch.zeros(3))


@pytest.mark.cuda
def test_a_device_that_does_not_see_writes_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(uva_module, "_live", {})
    monkeypatch.setattr(uva_module._C, "sees_host_writes", lambda device: False)
    assert not uva_available("cuda:0")
    with pytest.raises(RuntimeError, match=r"cuda:0.*confidential computing.*CpuGpuBuffer"):
        uva_view(torch.zeros(3, pin_memory=True), "cuda:0")


@pytest.mark.cuda
def test_each_device_is_tried_once(monkeypatch):
    tried = []
    real = _C.sees_host_writes
    monkeypatch.setattr(uva_module, "_live", {})
    monkeypatch.setattr(
        uva_module._C, "sees_host_writes", lambda device: tried.append(device) or real(device)
    )
    for _ in range(3):
        assert uva_available("cuda:0")
    assert tried == [0]


@pytest.mark.cuda
def test_a_buffer_says_whether_it_is_guarded():
    single = UvaBuffer(3, dtype=torch.int32, device="cuda")
    double = UvaBuffer(3, dtype=torch.int32, device="cuda", slots=2)
    assert not single.guarded
    assert double.guarded
    assert "guarded=False" in repr(single)
    assert "guarded=True" in repr(double)
    with pytest.raises(ValueError, match="slots"):
        UvaBuffer(3, dtype=torch.int32, device="cuda", slots=0)


@pytest.mark.cuda
def test_one_slot_is_one_address():
    buffer = UvaBuffer(3, dtype=torch.int32, device="cuda")
    address = buffer.uva.data_ptr()
    with buffer.write() as array:
        array[:] = [1, 2, 3]
    assert buffer.uva.data_ptr() == address
    assert on_host(buffer.uva).tolist() == [1, 2, 3]


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("policy", ["lazy", "random"])
@pytest.mark.parametrize("slots", [2, 3])
def test_with_several_slots_kernels_read_what_was_written_for_them(policy, slots):
    buffer = UvaBuffer(64, dtype=torch.int32, device="cuda", slots=slots)
    results = torch.zeros(20, 64, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    with sim.policy(policy, seed=5):
        for step in range(20):
            with buffer.write() as array:
                array[:] = step
            # A kernel that reads the view in place, whenever it comes to run.
            copy_slice(buffer.uva.view(8, 8), results[step].view(8, 8), 8)
            copy_slice(buffer.uva.view(8, 8)[:, :4], results[step].view(8, 8)[:, :4], 8)
        torch.cuda.synchronize()
    assert results.cpu()[:, 0].tolist() == list(range(20))
    assert all(len(set(row.tolist())) == 1 for row in results.cpu())


@pytest.mark.cuda
def test_a_block_that_raises_leaves_the_view_as_it_was():
    buffer = UvaBuffer(2, dtype=torch.int32, device="cuda", slots=2)
    with buffer.write() as array:
        array[:] = 1
    address = buffer.uva.data_ptr()

    def write_half():
        with buffer.write() as array:
            array[:] = 2
            raise KeyError

    with pytest.raises(KeyError):
        write_half()
    assert buffer.uva.data_ptr() == address
    assert buffer.np.tolist() == [1, 1]
