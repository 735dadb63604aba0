"""What only a real device can settle: run by scripts/gpu_check, skipped everywhere else.

A kernel that spins stands ahead of the copies, so that they run late.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

import staging  # noqa: E402
from staging import CpuGpuBuffer, StagingGroup, copy_slices, uva_available, uva_view  # noqa: E402
from staging.memory import set_pinned_huge_pages  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.cuda]

COUNT = 4096
SPIN_CYCLES = 100_000_000  # some 50 ms


@pytest.fixture(autouse=True)
def _drained() -> Iterator[None]:
    yield
    torch.cuda.synchronize()


def spin() -> None:
    """Keep the current stream busy."""
    torch.cuda._sleep(SPIN_CYCLES)


def values(tensor: torch.Tensor) -> list[int]:
    return tensor.cpu().unique().tolist()


def test_the_plain_pattern_is_wrong_behind_a_slow_kernel():
    """The control: without it the tests below would prove nothing."""
    host = torch.ones(COUNT, dtype=torch.int32).pin_memory()
    gpu = torch.zeros(COUNT, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    spin()
    gpu.copy_(host, non_blocking=True)
    host.fill_(2)
    assert values(gpu) == [2]


@pytest.mark.parametrize("way", ["copy_to_gpu", "fill", "group"])
def test_a_buffer_is_right_behind_a_slow_kernel(way):
    if way == "group":
        group = StagingGroup("cuda", {"a": (COUNT, torch.int32)})
        buffer = group["a"]
    else:
        buffer = CpuGpuBuffer(COUNT, dtype=torch.int32, device="cuda")
    seen = []
    torch.cuda.synchronize()
    spin()
    for step in range(1, 9):
        if way == "fill":
            with buffer.fill(COUNT) as view:
                view[:] = step
        else:
            buffer.np[:] = step
            group.copy_to_gpu({"a": COUNT}) if way == "group" else buffer.copy_to_gpu()
        seen.append(buffer.gpu.clone())
        buffer.np[:] = -1
    assert [values(each) for each in seen] == [[step] for step in range(1, 9)]


def test_results_are_complete_behind_a_slow_kernel():
    buffer = CpuGpuBuffer(COUNT, dtype=torch.int32, device="cuda")
    spin()
    buffer.gpu.fill_(7)
    handle = buffer.fetch()
    buffer.gpu.fill_(8)
    assert set(handle.result().tolist()) == {7}
    spin()
    buffer.gpu.fill_(9)
    buffer.copy_to_cpu()
    assert set(buffer.np.tolist()) == {9}


def test_kernels_see_what_the_host_wrote_through_a_view_of_pinned_memory():
    if not uva_available("cuda"):
        pytest.skip("this device does not see the host's writes: uva_available() is False")
    host = staging.pinned_zeros(COUNT, dtype=torch.int32)
    view = uva_view(host)
    for step in range(1, 200):
        host.fill_(step)
        assert values(view.clone()) == [step]


def test_a_replay_behind_a_slow_kernel_reads_what_was_there_when_it_was_launched():
    """``refill`` waits for the event that the graph records, with the external flag."""
    buffer = CpuGpuBuffer(COUNT, dtype=torch.int32, device="cuda")
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    out = torch.zeros(COUNT, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        buffer.copy_to_gpu()
        out.copy_(buffer.gpu)
    seen = []
    for step in range(1, 5):
        buffer.np[:] = step
        buffer.refill()
        with torch.cuda.stream(stream):
            spin()
            graph.replay()
            seen.append(out.clone())
    stream.synchronize()
    assert [values(each) for each in seen] == [[step] for step in range(1, 5)]


@pytest.mark.parametrize("method", ["copy", "batch", "kernel"])
def test_many_slices_arrive_by_each_method(method):
    """One by one, by cudaMemcpyBatchAsync, and by a kernel, by a table in which the others cost."""
    from staging.extension import _C

    device = torch.cuda.current_device()
    before = _C.cost_table(device)
    table = {direction: {name: dict(row) for name, row in methods.items()}
             for direction, methods in before.items()}  # fmt: skip
    for methods in table.values():
        for name, row in methods.items():
            if name != method:
                row["fixed_us"] += 1e6
    try:
        _C.set_cost_table(device, table)
        sources = [staging.pin(torch.full((257 + i,), i, dtype=torch.int32)) for i in range(40)]
        targets = [torch.full_like(source, -1, device="cuda") for source in sources]
        with torch.cuda.stream(torch.cuda.Stream()) as _:
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            spin()
            copy_slices([(s, t, len(s)) for s, t in zip(sources, targets, strict=True)])
            torch.cuda.current_stream().synchronize()
        assert [values(target) for target in targets] == [[i] for i in range(40)]
    finally:
        _C.set_cost_table(device, before)


def test_memory_that_a_side_stream_uses_is_not_handed_out_again():
    """A copy on another stream calls ``record_stream``: the allocator waits for it."""
    side = torch.cuda.Stream()
    buffer = CpuGpuBuffer(1 << 20, dtype=torch.int32, device="cuda")
    buffer.np[:] = 5
    out = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        spin()
        out.copy_(buffer.copy_to_gpu())
    del buffer
    others = [torch.full((1 << 20,), -1, dtype=torch.int32, device="cuda") for _ in range(4)]
    side.synchronize()
    assert values(out) == [5]
    assert len(others) == 4


def test_pinned_memory_on_huge_pages_holds_what_is_copied():
    set_pinned_huge_pages(True)
    try:
        host = staging.pinned_empty(4 << 20, dtype=torch.int32)
        host.copy_(torch.arange(4 << 20, dtype=torch.int32))
        gpu = torch.empty(4 << 20, dtype=torch.int32, device="cuda")
        gpu.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(gpu.cpu(), host)
    finally:
        set_pinned_huge_pages(False)
