"""What is first used on another stream than the one it was made on: its fill comes first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from external_streams import external_stream  # noqa: E402

import staging  # noqa: E402
from staging import CpuGpuBuffer, StagedRows, StagingGroup, UvaBuffer, sim  # noqa: E402

pytestmark = [pytest.mark.sim, pytest.mark.cuda]

N = 64
STEPS = 20  # a random schedule finds an order that is missing in fewer


def dirty_memory(stream: torch.cuda.Stream) -> None:
    """Leave memory to PyTorch's allocator that is not zero, for the next tensor of the stream."""
    with torch.cuda.stream(stream):
        blocks = [torch.full((4 * N,), 0x55, dtype=torch.int32, device="cuda") for _ in range(8)]
        torch.cuda.synchronize()
        del blocks


def first_use(
    schedule: str, seed: int, make: Callable[[], object], use: Callable[..., Callable[[], None]]
) -> None:
    """Make an object on one stream, ``use`` it first on another, and ``check`` at the end."""
    made_on, used_on = torch.cuda.Stream(), torch.cuda.Stream()
    for step in range(STEPS):
        dirty_memory(made_on)
        with sim.policy(schedule, seed=seed + step):
            with torch.cuda.stream(made_on):
                thing = make()
            check = use(thing, used_on)
            used_on.synchronize()
            torch.cuda.synchronize()
            check()


def buffer(**options: object) -> CpuGpuBuffer:
    return CpuGpuBuffer(N, dtype=torch.int32, device="cuda", **options)


def group() -> StagingGroup:
    return StagingGroup("cuda", {"a": (N, torch.int32), "b": (N, torch.int32)})


def expect(tensor: torch.Tensor, value: int) -> Callable[[], None]:
    def check() -> None:
        assert tensor.cpu().unique().tolist() == [value]

    return check


@pytest.fixture(params=["lazy", "random"])
def run(request, seed):
    return lambda make, use: first_use(request.param, seed, make, use)


@pytest.mark.parametrize(
    "options",
    [
        {"reuse": "snapshot"},
        {"reuse": "wait"},
        {"reuse": "unchecked"},
        {"pin_memory": False},
    ],
    ids=str,
)
def test_a_copy_to_the_device_comes_behind_the_fill(run, options):
    def use(made, stream):
        made.np[:] = 7
        made.copy_to_gpu(stream=stream)
        return expect(made.gpu, 7)

    run(lambda: buffer(**options), use)


def test_a_fetch_sees_zeros(run):
    def use(made, stream):
        return expect(made.fetch(stream=stream).result(), 0)

    run(buffer, use)


def test_a_copy_to_the_host_sees_zeros(run):
    def use(made, stream):
        made.np[:] = 3
        made.copy_to_cpu(stream=stream)
        return expect(made.cpu, 0)

    run(buffer, use)


def test_a_slot_that_the_caller_writes_comes_behind_the_fill(run):
    def use(made, stream):
        with made.fill(stream=stream) as rows:
            rows[:] = 7
        return expect(made.gpu, 7)

    run(buffer, use)


def test_a_groups_copy_comes_behind_the_arenas_fill(run):
    def use(made, stream):
        for member in made.values():
            member.np[:] = 7
        made.copy_to_gpu({"a": N, "b": N}, stream=stream)
        return lambda: [expect(member.gpu, 7)() for member in made.values()]

    run(group, use)


def test_a_groups_copy_to_the_host_sees_zeros(run):
    def use(made, stream):
        for member in made.values():
            member.np[:] = 3
        made.copy_to_cpu(stream=stream)
        return lambda: [expect(member.cpu, 0)() for member in made.values()]

    run(group, use)


@pytest.mark.parametrize("call", ["copy_to_gpu", "fill", "fetch"])
def test_a_members_own_copy_comes_behind_the_arenas_fill(run, call):
    def use(made, stream):
        member = made["b"]
        if call == "fetch":
            return expect(member.fetch(stream=stream).result(), 0)
        if call == "fill":
            with member.fill(stream=stream) as rows:
                rows[:] = 7
        else:
            member.np[:] = 7
            member.copy_to_gpu(stream=stream)
        return expect(member.gpu, 7)

    run(group, use)


def test_staged_rows_are_applied_behind_the_tables_fill(run):
    def use(made, stream):
        made.stage(1, 2, [7, 7])
        made.apply(stream=stream)

        def check() -> None:
            table = made.gpu.cpu()
            assert table[1].tolist() == [0, 0, 7, 7, 0, 0, 0, 0]
            assert not table[[0, 2, 3]].any()

        return check

    run(lambda: StagedRows(4, 8, torch.int32, "cuda"), use)


def test_rows_of_several_tables_are_applied_behind_the_fills_of_all(run):
    def make():
        return [StagedRows(2, 4, torch.int32, "cuda") for _ in range(3)]

    def use(made, stream):
        for table in made:
            table.stage(0, 0, [7, 7, 7, 7])
            table.stage(1, 0, [7, 7, 7, 7])
        staging.apply_rows(made, stream=stream)
        return lambda: [expect(table.gpu, 7)() for table in made]

    run(make, use)


def test_a_view_of_pinned_memory_needs_no_order(run):
    def use(made, stream):
        with made.write(stream=stream) as rows:
            rows[:] = 7
        with torch.cuda.stream(stream):
            out = torch.zeros(N, dtype=torch.int32, device="cuda")
            staging.copy_slice(made.uva.view(8, 8), out.view(8, 8), 8)
        return expect(out, 7)

    run(lambda: UvaBuffer(N, dtype=torch.int32, device="cuda", slots=2), use)


def test_slices_pass_through_slots_that_are_ready(run):
    def use(made, stream):
        with torch.cuda.stream(stream):
            out = torch.zeros(2, N, dtype=torch.int32, device="cuda")
            staging.copy_slices([(made, out[0], N), (made, out[1], N)], snapshot=True)
        made.fill_(1)
        return expect(out, 7)

    run(lambda: torch.full((N,), 7, dtype=torch.int32), use)


def test_a_digests_scratch_is_of_the_stream_that_uses_it(run):
    data = np.arange(5000, dtype=np.int32)
    want = staging.tensor_digest(torch.from_numpy(data), framed=False)

    def use(made, stream):
        stream.wait_stream(torch.cuda.default_stream())
        got = []
        for _ in range(3):
            with torch.cuda.stream(stream):
                got.append(staging.tensor_digest(made, framed=False))

        def check() -> None:
            assert got == [want] * 3

        return check

    def make():
        made = torch.from_numpy(data).to("cuda")
        torch.cuda.synchronize()
        return made

    run(make, use)


# -- around it -----------------------------------------------------------------------------


def test_a_first_copy_on_the_same_stream_waits_for_nothing():
    made = buffer()
    table = StagedRows(4, 8, torch.int32, "cuda")
    members = group()
    table.stage(0, 0, [1])
    with sim.count() as calls:
        made.copy_to_gpu()
        made.fetch()
        table.apply()
        members.copy_to_gpu()
        members["a"].copy_to_gpu()
    assert "cudaStreamWaitEvent" not in calls
    assert "cudaStreamSynchronize" not in calls


def test_making_an_object_records_one_event_and_waits_for_nothing():
    for make in (buffer, group, lambda: StagedRows(4, 8, torch.int32, "cuda")):
        make()
        with sim.policy("lazy"), sim.count() as calls:
            made = make()
        assert calls["cudaEventRecord"] == 1
        assert "cudaStreamWaitEvent" not in calls
        assert "cudaStreamSynchronize" not in calls
        del made


def test_a_fill_that_is_complete_costs_one_wait_at_most():
    side = torch.cuda.Stream()
    made = buffer()
    torch.cuda.synchronize()
    with sim.count() as calls:
        for _ in range(10):
            made.copy_to_gpu(stream=side)
    assert calls.get("cudaStreamWaitEvent", 0) <= 1


def test_a_buffer_that_was_never_used_goes_at_once():
    with sim.policy("lazy"):
        made = buffer()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        with sim.hold(torch.cuda.current_stream().cuda_stream):
            other = buffer()
            del other  # its fill is in the order of PyTorch's allocator
            assert torch.cuda.memory_allocated() == before
        del made


def test_a_buffer_made_on_a_stream_that_is_gone_is_in_order():
    side = torch.cuda.Stream()
    with sim.policy("lazy"):
        for step in range(10):
            with external_stream() as stream, torch.cuda.stream(stream):
                made = buffer()
            made.np[:] = step + 1
            made.copy_to_gpu(stream=side)
            torch.cuda.synchronize()
            assert made.gpu.cpu().unique().tolist() == [step + 1]


def test_a_buffer_of_the_second_device_is_in_order():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    side = torch.cuda.Stream("cuda:1")
    with sim.policy("lazy"):
        made = CpuGpuBuffer(N, dtype=torch.int32, device="cuda:1")
        made.np[:] = 7
        made.copy_to_gpu(stream=side)
        torch.cuda.synchronize("cuda:1")
    assert torch.cuda.current_device() == 0
    assert made.gpu.cpu().unique().tolist() == [7]


def test_memory_that_the_allocator_hands_out_again_is_in_order():
    side = torch.cuda.Stream()
    made_on = torch.cuda.Stream()
    addresses = set()
    with sim.policy("lazy"):
        for step in range(STEPS):
            with torch.cuda.stream(made_on):
                made = buffer()
            addresses.add(made.gpu.data_ptr())
            made.np[:] = step + 1
            made.copy_to_gpu(stream=side)
            got = made.fetch(stream=side)
            torch.cuda.synchronize()
            assert made.gpu.cpu().unique().tolist() == [step + 1]
            assert got.result().unique().tolist() == [step + 1]
            del made, got
    assert len(addresses) < STEPS


def test_a_replay_of_a_captured_copy_comes_behind_the_fill():
    """Captured and replayed on streams of their own, with nothing synchronized in between."""
    made_on, side = torch.cuda.Stream(), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with sim.policy("lazy"):
        with torch.cuda.stream(made_on):
            made = buffer()
        made.np[:] = 7
        with torch.cuda.stream(side):
            graph.capture_begin()
            made.copy_to_gpu()
            graph.capture_end()
            graph.replay()
        side.synchronize()
        torch.cuda.synchronize()
    assert made.gpu.cpu().unique().tolist() == [7]


@pytest.mark.parametrize(
    "make",
    [buffer, group, lambda: StagedRows(4, 8, torch.int32, "cuda")],
    ids=["buffer", "group", "rows"],
)
def test_what_a_capture_would_clear_at_every_replay_cannot_be_made_there(make):
    graph = torch.cuda.CUDAGraph()
    kept = torch.zeros(4, device="cuda")
    with torch.cuda.graph(graph):
        kept.fill_(3)
        with pytest.raises(RuntimeError, match="before the capture"):
            make()
    graph.replay()
    assert kept.cpu().tolist() == [3] * 4
    make()
