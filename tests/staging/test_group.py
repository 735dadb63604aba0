"""Groups: what one call stages, in how many operations, and in which order."""

from __future__ import annotations

import gc
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from staging import CpuGpuBuffer, StagingGroup, sim  # noqa: E402

CUDA = pytest.param("cuda", marks=pytest.mark.cuda)
PLACES = ["cpu", CUDA]


def make(device="cuda", count=16, size=256, **options):
    members = {f"m{i}": (size, torch.int32) for i in range(count)}
    return StagingGroup(device, members, **options)


def fill(group, value):
    for i, member in enumerate(group.values()):
        member.np[...] = value + i


def enqueuing(calls):
    """The calls that put something on a stream."""
    names = (
        "cudaMemcpyAsync",
        "cudaMemcpy2DAsync",
        "cudaMemcpyBatchAsync",
        "cudaLaunchKernel",
        "cudaMemsetAsync",
        "cudaEventRecord",
        "cudaStreamWaitEvent",
    )
    return {name: calls[name] for name in names if calls[name]}


# -- members ---------------------------------------------------------------------------------


@pytest.mark.parametrize("device", PLACES)
def test_members_are_buffers_of_their_own(device):
    group = StagingGroup(
        device,
        {
            "tokens": (8, torch.int32),
            "table": ((4, 3), torch.int64),
            "mask": ((5,), torch.bool),
            "scale": ((), torch.float32),
            "none": (0, torch.int16),
        },
    )
    assert list(group) == ["tokens", "table", "mask", "scale", "none"]
    assert len(group) == 5
    assert "table" in group
    assert "other" not in group
    for member in group.values():
        assert isinstance(member, CpuGpuBuffer)
        assert member.cpu.shape == member.gpu.shape == member.np.shape
        assert not member.cpu.any()
        assert not member.gpu.cpu().any()
    assert group["table"].gpu.dtype == torch.int64
    with pytest.raises(KeyError, match=r"other.*tokens, table"):
        group["other"]


@pytest.mark.parametrize("device", PLACES)
def test_members_lie_apart_and_aligned_in_one_arena(device):
    group = StagingGroup(
        device, {"a": (3, torch.int8), "b": (70, torch.int64), "c": (1, torch.int8)}
    )
    for side in ("cpu", "gpu"):
        base = getattr(group["a"], side).data_ptr()
        offsets = [getattr(member, side).data_ptr() - base for member in group.values()]
        assert offsets == [0, 256, 256 + 768]
        storages = {getattr(member, side).untyped_storage().data_ptr() for member in group.values()}
        assert len(storages) == 1
    assert group.nbytes == 1280


@pytest.mark.parametrize("device", PLACES)
def test_addresses_stay(device):
    group = make(device)
    before = [(m.cpu.data_ptr(), m.np.ctypes.data, m.gpu.data_ptr()) for m in group.values()]
    for _ in range(3):
        group.copy_to_gpu()
        group.copy_to_cpu()
    after = [(m.cpu.data_ptr(), m.np.ctypes.data, m.gpu.data_ptr()) for m in group.values()]
    assert before == after


def test_writing_one_member_is_no_change_of_another_for_autograd():
    group = StagingGroup("cpu", {"index": (2, torch.int64), "other": (2, torch.int64)})
    weight = torch.ones(3, 2, requires_grad=True)
    loss = torch.nn.functional.embedding(group["index"].gpu, weight).sum()
    group.copy_to_gpu({"other": 2})
    loss.backward()  # would raise if the saved index counted as changed
    loss = torch.nn.functional.embedding(group["index"].gpu, weight).sum()
    group.copy_to_gpu({"index": 2})
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


def test_bfloat16_members():
    pytest.importorskip("ml_dtypes")
    group = StagingGroup("cpu", {"x": (4, torch.bfloat16)})
    group["x"].np[:] = [1.5, 2, 3, 4]
    group.copy_to_gpu({"x": 2})
    assert group["x"].gpu.tolist() == [1.5, 2, 0, 0]
    without = StagingGroup("cpu", {"x": (4, torch.bfloat16)}, with_numpy=False)
    with pytest.raises(AttributeError, match="with_numpy=False"):
        _ = without["x"].np


def test_a_meta_group_and_an_empty_one_copy_nothing():
    meta = make("meta", count=2)
    meta.copy_to_gpu({"m0": 3})
    assert meta["m0"].gpu.device.type == "meta"
    empty = StagingGroup("cpu", {})
    empty.copy_to_gpu()
    assert len(empty) == 0


@pytest.mark.parametrize(
    ("members", "error", "what"),
    [
        ({"a": (4,)}, TypeError, r"members\['a'\].*\(shape, dtype\)"),
        ({"a": (4, "int32")}, TypeError, r"members\['a'\]\[1\].*torch.dtype"),
        ({"a": ((4, -1), torch.int32)}, ValueError, r"members\['a'\]\[0\]"),
        ({1: (4, torch.int32)}, TypeError, "names"),
    ],
)
def test_members_that_cannot_be_are_refused(members, error, what):
    with pytest.raises(error, match=what):
        StagingGroup("cpu", members)


# -- one call --------------------------------------------------------------------------------


@pytest.mark.parametrize("device", PLACES)
def test_prefixes_by_member_and_by_name(device):
    group = make(device, count=5, size=10)
    fill(group, 1)
    group.copy_to_gpu({group["m0"]: 3, "m2": None, group["m4"]: 0, "m3": np.int64(2)})
    assert group["m0"].gpu.tolist() == [1] * 3 + [0] * 7
    assert group["m1"].gpu.tolist() == [0] * 10
    assert group["m2"].gpu.tolist() == [3] * 10
    assert group["m3"].gpu.tolist() == [4] * 2 + [0] * 8
    assert group["m4"].gpu.tolist() == [0] * 10


@pytest.mark.parametrize("device", PLACES)
def test_without_prefixes_all_members_are_copied_whole(device):
    group = make(device, count=4)
    fill(group, 5)
    group.copy_to_gpu()
    assert [int(m.gpu.cpu().unique()) for m in group.values()] == [5, 6, 7, 8]


@pytest.mark.parametrize("device", PLACES)
def test_the_order_of_the_dict_does_not_matter(device):
    group = make(device, count=6, size=10)
    names = list(group)
    for step in range(8):
        fill(group, 10 * step)
        random.Random(step).shuffle(names)
        group.copy_to_gpu(dict.fromkeys(names, 4))
        assert [m.gpu[0].item() for m in group.values()] == [10 * step + i for i in range(6)]


@pytest.mark.parametrize("device", PLACES)
def test_back_to_the_host(device):
    group = make(device, count=3, size=10)
    fill(group, 1)
    group.copy_to_gpu()
    for member in group.values():
        member.np[...] = 0
    group.copy_to_cpu({"m0": 4, "m2": 10})
    assert group["m0"].np.tolist() == [1] * 4 + [0] * 6
    assert group["m1"].np.tolist() == [0] * 10
    assert group["m2"].np.tolist() == [3] * 10


class Index:
    """An object that is an index, and does something when it is asked."""

    def __init__(self, value, effect=lambda: None):
        self.value = value
        self.effect = effect

    def __index__(self):
        self.effect()
        return self.value


@pytest.mark.parametrize("device", PLACES)
def test_a_dict_that_changes_while_it_is_read_is_read_as_it_was(device):
    group = make(device, count=3, size=10)
    fill(group, 1)
    prefixes = {}
    prefixes.update({"m0": Index(2, lambda: prefixes.pop("m1", None)), "m1": 3})
    group.copy_to_gpu(prefixes)
    assert group["m0"].gpu.tolist()[:3] == [1, 1, 0]
    assert group["m1"].gpu.tolist()[:4] == [2, 2, 2, 0]


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize(
    ("prefixes", "error", "what"),
    [
        ({"m1": 11}, ValueError, r"prefixes\['m1'\] must be in 0\.\.10.*got 11"),
        ({"m1": -1}, ValueError, r"prefixes\['m1'\].*got -1"),
        ({"m1": 2**80}, ValueError, r"prefixes\['m1'\]"),
        ({"m1": 2.0}, TypeError, r"prefixes\['m1'\] must be an int or None, got float"),
        ({"mx": 1}, ValueError, r"'mx'.*no member.*m0, m1"),
        ({"m1": 1, 7: 1}, ValueError, r"7.*no member"),
        ([("m1", 1)], TypeError, "dict"),
        (3, TypeError, "dict"),
    ],
)
def test_bad_prefixes_are_named_and_nothing_is_copied(device, prefixes, error, what):
    group = make(device, count=2, size=10)
    fill(group, 1)
    if isinstance(prefixes, dict):
        prefixes = {"m0": 10, **prefixes}
    with pytest.raises(error, match=what):
        group.copy_to_gpu(prefixes)
    assert not group["m0"].gpu.cpu().any()
    group.copy_to_gpu({"m0": 1})  # the next call is as good as ever
    assert group["m0"].gpu[0].item() == 1


def test_a_member_that_is_named_twice_or_has_no_rows_is_refused():
    group = StagingGroup("cpu", {"a": (4, torch.int32), "scalar": ((), torch.int32)})
    with pytest.raises(ValueError, match="'a' twice"):
        group.copy_to_gpu({"a": 1, group["a"]: 1})
    with pytest.raises(ValueError, match=r"scalar.*None"):
        group.copy_to_gpu({"scalar": 0})
    group["scalar"].np[...] = 3
    group.copy_to_gpu({"scalar": None})
    assert group["scalar"].gpu.item() == 3


@pytest.mark.cuda
def test_a_member_of_another_group_is_no_member():
    group, other = make(count=2), make(count=2)
    with pytest.raises(ValueError, match="no member"):
        group.copy_to_gpu({other["m0"]: 1})


def test_mappings_that_are_no_dicts_will_do():
    from types import MappingProxyType

    group = make("cpu", count=2)
    fill(group, 1)
    group.copy_to_gpu(MappingProxyType({"m1": 1}))
    assert group["m1"].gpu[0].item() == 2


# -- in how many operations ------------------------------------------------------------------


@pytest.mark.sim
@pytest.mark.cuda
def test_sixteen_whole_members_are_one_transfer_and_one_event():
    group = make()
    for _ in range(3):
        group.copy_to_gpu()
    with sim.count() as calls:
        group.copy_to_gpu(dict.fromkeys(group.values()))
    assert enqueuing(calls) == {"cudaMemcpyAsync": 1, "cudaEventRecord": 1}


@pytest.mark.sim
@pytest.mark.cuda
def test_sixteen_prefixes_are_one_launch_and_one_event():
    group = make()
    prefixes = dict.fromkeys(group.values(), 200)
    for _ in range(3):
        group.copy_to_gpu(prefixes)
    with sim.count() as calls:
        group.copy_to_gpu(prefixes)
    assert enqueuing(calls) == {"cudaLaunchKernel": 1, "cudaEventRecord": 1}
    assert calls["cudaPointerGetAttributes"] == 0
    assert calls["cudaStreamSynchronize"] == calls["cudaEventSynchronize"] == 0


@pytest.mark.sim
@pytest.mark.cuda
def test_a_large_member_gets_a_transfer_of_its_own():
    group = StagingGroup("cuda", {**{f"m{i}": (256, torch.int32) for i in range(8)},
                                  "large": (1 << 20, torch.int32)})  # fmt: skip
    prefixes = {**dict.fromkeys(list(group)[:8], 200), "large": 1 << 20}
    group.copy_to_gpu(prefixes)
    with sim.count() as calls:
        group.copy_to_gpu(prefixes)
    assert enqueuing(calls) == {
        "cudaLaunchKernel": 1,
        "cudaMemcpyAsync": 1,
        "cudaEventRecord": 1,
    }


@pytest.mark.sim
@pytest.mark.cuda
def test_downloads_are_one_operation_too():
    group = make()
    prefixes = dict.fromkeys(group.values(), 200)
    group.copy_to_cpu(prefixes)
    with sim.count() as calls:
        group.copy_to_cpu(prefixes)
    assert enqueuing(calls) == {"cudaLaunchKernel": 1, "cudaEventRecord": 1}


@pytest.mark.sim
@pytest.mark.cuda
def test_the_number_of_enqueuing_calls_does_not_grow_with_the_members():
    for count in (1, 30, 200, 1500):
        group = make(count=count, size=16)
        prefixes = dict.fromkeys(group.values(), 8)
        group.copy_to_gpu(prefixes)
        with sim.count() as calls:
            group.copy_to_gpu(prefixes)
        launches = calls["cudaLaunchKernel"]
        assert calls["cudaMemcpyAsync"] + launches == (2 if count == 1500 else 1)
        assert calls["cudaEventRecord"] == 1


@pytest.mark.sim
@pytest.mark.cuda
def test_stats_count_calls_bytes_and_operations():
    group = make(count=4, size=256)
    group.copy_to_gpu({"m0": 256, "m1": 128})
    group.copy_to_cpu({"m3": 1})
    stats = group.stats()
    assert (stats.copies_to_gpu, stats.copies_to_cpu) == (1, 1)
    assert (stats.bytes_to_gpu, stats.bytes_to_cpu) == (1536, 4)
    assert stats.operations == 2
    assert group["m1"].stats().bytes_to_gpu == 512


# -- races -----------------------------------------------------------------------------------


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("policy", ["lazy", "random", "threads"])
def test_the_host_arrays_may_be_overwritten_at_once(policy, seed):
    group = make(count=8, size=300)
    views = [member.np for member in group.values()]  # taken once, as runners do
    with sim.policy(policy, seed=seed):
        for step in range(1, 30):
            for i, view in enumerate(views):
                view[:] = 100 * step + i
            group.copy_to_gpu({m: 30 * i + step for i, m in enumerate(group.values())})
            for view in views:
                view[:] = -1
            if step % 10 == 0:
                for i, member in enumerate(group.values()):
                    used = 30 * i + step
                    assert (member.gpu.cpu()[:used] == 100 * step + i).all()


@pytest.mark.sim
@pytest.mark.cuda
def test_a_member_is_guarded_while_a_download_is_in_flight_and_the_others_are_not():
    group = make(count=3, size=10)
    fill(group, 1)
    group.copy_to_gpu()
    torch.cuda.synchronize()
    with sim.policy("lazy"):
        for member in group.values():
            member.np[...] = 0
        group.copy_to_cpu({"m1": 10})
        with sim.count() as calls:
            assert not group["m0"].np.any()
        assert calls["cudaEventQuery"] == 0
        assert group["m1"].np.tolist() == [2] * 10


@pytest.mark.sim
@pytest.mark.cuda
def test_a_copy_while_a_download_is_in_flight_is_the_devices_bytes():
    group = make(count=3, size=10)
    fill(group, 1)
    group.copy_to_gpu()
    torch.cuda.synchronize()
    with sim.policy("lazy"):
        views = [member.np for member in group.values()]
        for view in views:
            view[...] = 9
        group["m1"].copy_to_cpu()
        group.copy_to_gpu()
        torch.cuda.synchronize()
    assert [m.gpu[0].item() for m in group.values()] == [9, 2, 9]


@pytest.mark.sim
@pytest.mark.cuda
def test_a_member_by_itself_and_the_group_keep_their_order_on_two_streams():
    group = make(count=2, size=10)
    torch.cuda.synchronize()
    sides = [torch.cuda.Stream(), torch.cuda.Stream()]
    with sim.policy("lazy"):
        for step in range(1, 9):
            group["m0"].np[:] = step
            if step % 2:
                group.copy_to_gpu({"m0": 10}, stream=sides[step // 2 % 2])
            else:
                group["m0"].copy_to_gpu(stream=sides[(step // 2 + 1) % 2])
        sides[0].synchronize()
        sides[1].synchronize()
    assert group["m0"].gpu.tolist() == [8] * 10


@pytest.mark.sim
@pytest.mark.cuda
def test_a_group_that_is_dropped_in_flight_leaves_its_members_whole():
    with sim.policy("lazy"):
        group = make(count=4, size=64)
        fill(group, 1)
        member = group["m2"]
        gpu = member.gpu
        group.copy_to_gpu()
        group.copy_to_cpu()
        del group
        gc.collect()
        assert gpu.tolist() == [3] * 64
        assert member.np.tolist() == [3] * 64
        member.np[:] = 7
        member.copy_to_gpu()
        assert gpu.tolist() == [7] * 64
    assert sim.reports() == []


@pytest.mark.sim
@pytest.mark.cuda
def test_captured_copies_read_what_refill_gave_them():
    group = make(count=6, size=40)
    prefixes = dict.fromkeys(group.values(), 30)
    group.copy_to_gpu(prefixes)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    fill(group, 1)
    with torch.cuda.graph(graph):
        group.copy_to_gpu(prefixes)
    with sim.policy("lazy"):
        for step in range(2, 12):
            fill(group, 100 * step)
            group.refill(prefixes)
            fill(group, -1000)
            graph.replay()
            if step % 3 == 0:
                assert [m.gpu[29].item() for m in group.values()] == [
                    100 * step + i for i in range(6)
                ]
    assert not any(m.gpu.cpu()[30:].any() for m in group.values())


@pytest.mark.sim
@pytest.mark.cuda
def test_refill_without_a_captured_copy_is_refused():
    group = make(count=2)
    with pytest.raises(RuntimeError, match="captured"):
        group.refill({"m0": 1})
    with pytest.raises(RuntimeError, match="cpu"):
        make("cpu", count=2).refill()


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("keep_tails", [True, False])
def test_rows_behind_a_prefix(keep_tails):
    group = StagingGroup(
        "cuda", {"a": (64, torch.int32), "b": (64, torch.int32)}, keep_tails=keep_tails
    )
    fill(group, 1)
    group.copy_to_gpu()
    group["a"].gpu[10:].fill_(-1)
    group.copy_to_gpu({"a": 10, "b": 64})
    tail = group["a"].gpu.cpu()[10:]
    if keep_tails:
        assert (tail == -1).all()
    else:  # kept, or the host's
        assert (tail == -1).all() or (tail == 1).all()
    assert (group["a"].gpu.cpu()[:10] == 1).all()


@pytest.mark.sim
@pytest.mark.cuda
def test_the_device_arena_comes_from_pytorchs_allocator():
    before = torch.cuda.memory_allocated()
    group = make(count=4, size=1 << 20)
    assert torch.cuda.memory_allocated() - before == group.nbytes == 16 << 20
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        pooled = make(count=1, size=1 << 20)
    address = pooled["m0"].gpu.data_ptr()
    assert any(
        segment["address"] <= address < segment["address"] + segment["total_size"]
        for segment in pool.snapshot()
    )


@pytest.mark.sim
@pytest.mark.cuda
def test_another_device_may_be_current():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    group = make("cuda:1", count=3)
    fill(group, 1)
    assert torch.cuda.current_device() == 0
    group.copy_to_gpu({"m0": 5, "m2": 7})
    assert torch.cuda.current_device() == 0
    assert group["m2"].gpu[6].item() == 3


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("call", ["cudaMemcpyAsync", "cudaLaunchKernel", "cudaEventRecord"])
def test_a_failed_call_is_reported_and_the_next_one_works(call):
    from staging import DeviceError

    group = make(count=4, size=100)
    prefixes = dict.fromkeys(group.values(), 100 if call == "cudaMemcpyAsync" else 50)
    group.copy_to_gpu(prefixes)
    fill(group, 5)
    with sim.fault(call, code=1), pytest.raises(DeviceError, match=call):
        group.copy_to_gpu(prefixes)
    group.copy_to_gpu(prefixes)
    assert [m.gpu[0].item() for m in group.values()] == [5, 6, 7, 8]
    assert sim.reports() == []


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("policy", ["lazy", "random"])
def test_random_use_of_a_group_and_its_members_equals_the_order_of_the_calls(policy, seed):
    rng = random.Random(seed)
    for _ in range(6):
        dtypes = [torch.int32, torch.uint8, torch.float64, torch.int16, torch.bool]
        shapes = {f"m{i}": (rng.randrange(1, 60), rng.randrange(1, 5)) for i in range(5)}
        group = StagingGroup(
            "cuda", {name: (shape, rng.choice(dtypes)) for name, shape in shapes.items()}
        )
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        torch.cuda.synchronize()
        host = {name: np.zeros_like(member.np) for name, member in group.items()}
        device = {name: np.zeros_like(member.np) for name, member in group.items()}
        with sim.policy(policy, seed=rng.randrange(1 << 20)):
            for _ in range(60):
                names = rng.sample(list(group), rng.randrange(6))
                prefixes = {n: rng.randrange(1 + shapes[n][0]) for n in names}
                name = rng.choice(list(group))
                member, rows = group[name], rng.randrange(1 + shapes[name][0])
                stream = rng.choice(streams)
                match rng.randrange(7):
                    case 0 | 1 | 2:
                        value = rng.randrange(100)
                        member.np[:rows] = value
                        host[name][:rows] = value
                    case 3:
                        group.copy_to_gpu(prefixes, stream=stream)
                        for n, k in prefixes.items():
                            device[n][:k] = host[n][:k]
                    case 4:
                        group.copy_to_cpu(prefixes, stream=stream)
                        for n, k in prefixes.items():
                            host[n][:k] = device[n][:k]
                    case 5:
                        member.copy_to_gpu(rows, stream=stream)
                        device[name][:rows] = host[name][:rows]
                    case _:
                        member.copy_to_cpu(rows, stream=stream)
                        host[name][:rows] = device[name][:rows]
            torch.cuda.synchronize()
        for name, member in group.items():
            assert np.array_equal(member.np, host[name])
            assert np.array_equal(member.gpu.cpu().numpy(), device[name])
    assert sim.reports() == []
