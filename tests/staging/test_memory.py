"""Pinned memory is exact, counted, and reused only after every copy that used it is done."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from staging import memory, sim
from staging.errors import DeviceError, OutOfMemory
from staging.extension import _C, torch

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
OVER_SIM = sim.active()
HAS_DEVICE = _C.built_with_cuda and torch.cuda.is_available()

sim_only = [
    pytest.mark.sim,
    pytest.mark.skipif(not OVER_SIM, reason="python -m staging sim python -m pytest …"),
]
cuda_only = [pytest.mark.cuda, pytest.mark.skipif(not HAS_DEVICE, reason="needs a CUDA device")]


def over_sim(test):
    """Mark a test that needs the simulated device's schedules, faults or counters."""
    for mark in sim_only:
        test = mark(test)
    return test


def over_cuda(test):
    """Mark a test that needs a device, real or simulated."""
    for mark in cuda_only:
        test = mark(test)
    return test


@pytest.fixture(autouse=True)
def clean():
    """Start from an empty pool; end with no misuse and nothing left in flight."""
    memory.pinned_trim()
    if OVER_SIM:
        sim.clear_reports()
    yield
    memory.uninstall_pinned_allocator()
    memory.set_pinned_limit(None)
    if HAS_DEVICE:
        torch.cuda.synchronize()
    assert memory.pinned_stats().in_flight == 0
    if OVER_SIM:
        assert sim.reports() == []


@pytest.fixture(params=["lazy", "random"])
def schedule(request):
    """Run the test under a legal schedule that is not the obvious one."""
    with sim.policy(request.param, seed=7):
        yield request.param


def run_python(code, **variables):
    """Run code in a process of its own, over the simulated device if this one is."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def ints(n, value=None):
    tensor = memory.pinned_empty(n, dtype=torch.int32)
    return tensor if value is None else tensor.fill_(value)


def values(gpu):
    """Return the values that a device tensor has; the simulated device has no kernel for it."""
    return gpu.cpu().unique().tolist()


def stats_sum(stats):
    return stats.in_use + stats.in_flight + stats.cached + stats.lost


# -- tensors --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        ((3,), (3,)),
        ((2, 3), (2, 3)),
        (([4, 5],), (4, 5)),
        ((torch.Size([2, 0]),), (2, 0)),
        ((0,), (0,)),
        ((), ()),
        ((np.int64(7),), (7,)),
    ],
)
def test_sizes_are_those_of_torch_empty(size, shape):
    tensor = memory.pinned_empty(*size, dtype=torch.float16)
    assert tensor.shape == shape
    assert tensor.dtype == torch.float16
    assert tensor.device == torch.device("cpu")
    assert tensor.is_contiguous()
    assert tensor.is_pinned() is HAS_DEVICE


def test_the_default_dtype_is_torchs():
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert memory.pinned_empty(1).dtype == torch.float64
    finally:
        torch.set_default_dtype(before)


def test_zeros_are_zero_also_in_reused_memory():
    ints(1000, -1)
    assert not memory.pinned_zeros(1000, dtype=torch.int32).any()


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        ((-1,), {}, ValueError, "size must be >= 0, got -1"),
        (("3",), {}, TypeError, "size"),
        ((1.5,), {}, TypeError, "size"),
        ((1,), {"dtype": "int32"}, TypeError, "dtype"),
        ((1,), {"device": "cpu"}, ValueError, "device .*'cpu'"),
        ((1,), {"numa_node": 999}, ValueError, "numa_node .*999"),
    ],
)
def test_bad_arguments_are_named_with_their_value(arguments, options, error, text):
    with pytest.raises(error, match=text):
        memory.pinned_empty(*arguments, **options)


@over_cuda
def test_a_device_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match=r"device .*cuda:99"):
        memory.pinned_empty(1, device="cuda:99")


def test_tensors_are_ordinary_tensors():
    tensor = memory.pinned_zeros(4)
    tensor.add_(1)
    tensor.resize_(1000)
    assert tensor[:4].tolist() == [1, 1, 1, 1]
    assert tensor.is_pinned() is HAS_DEVICE
    tensor.numpy()[0] = 5
    assert tensor[0] == 5
    with torch.inference_mode():
        assert memory.pinned_empty(3).is_inference()
    assert not memory.pinned_empty(3).is_inference()


@over_cuda
def test_the_default_device_of_torch_does_not_matter():
    torch.set_default_device("cuda")
    try:
        assert memory.pinned_zeros(3).device.type == "cpu"
        assert memory.pin(torch.zeros(3, device="cpu")).is_pinned()
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(24).reshape(2, 3, 4),
        lambda: torch.arange(24).reshape(4, 6).t(),
        lambda: torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
        lambda: torch.arange(24)[::3],
        lambda: torch.arange(3).expand(4, 3),
        lambda: torch.zeros(0, 3),
        lambda: torch.tensor(5.0),
        lambda: torch.tensor([1 + 2j, 3 - 1j]).conj(),
        lambda: torch.tensor([1.0, 2.0], requires_grad=True),
        lambda: torch.randn(5).to(torch.bfloat16),
    ],
)
def test_pin_copies_values_and_shape(make):
    source = make()
    pinned = memory.pin(source)
    assert pinned.is_pinned() is HAS_DEVICE
    assert pinned.dtype == source.dtype
    assert pinned.shape == source.shape
    assert torch.equal(pinned, source.detach())
    assert pinned.untyped_storage().data_ptr() != source.untyped_storage().data_ptr()
    assert not pinned.requires_grad


def test_pin_keeps_dense_strides():
    assert memory.pin(torch.zeros(4, 6).t()).stride() == (1, 6)
    assert memory.pin(torch.zeros(4, 6)[:, :2]).stride() == (2, 1)


@over_cuda
def test_pin_returns_what_is_pinned_already():
    tensor = memory.pinned_zeros(3)
    assert memory.pin(tensor) is tensor
    of_torch = torch.zeros(3).pin_memory()
    assert memory.pin(of_torch) is of_torch


@pytest.mark.parametrize(
    "make",
    [
        lambda: [1, 2],
        lambda: torch.zeros(2, device="meta"),
        lambda: torch.eye(2).to_sparse(),
    ],
)
def test_pin_refuses_what_has_no_flat_memory(make):
    with pytest.raises(TypeError, match="tensor must be"):
        memory.pin(make())


# -- figures and limits ---------------------------------------------------------------------


@over_cuda
def test_a_large_tensor_costs_a_page_more_at_most():
    before = memory.pinned_stats()
    nbytes = 129 * MIB + MIB // 2
    tensor = memory.pinned_empty(nbytes, dtype=torch.uint8)
    after = memory.pinned_stats()
    assert nbytes <= after.allocated - before.allocated <= nbytes + 4096
    assert nbytes <= after.in_use - before.in_use <= nbytes + 4096
    del tensor
    assert memory.pinned_stats().in_use == before.in_use


def test_the_figures_add_up():
    before = memory.pinned_stats()
    tensors = [memory.pinned_empty(n, dtype=torch.uint8) for n in (10, 5000, 3 * MIB)]
    stats = memory.pinned_stats()
    assert stats.count == before.count + 3
    assert stats.allocations == before.allocations + 3
    assert stats.in_use - before.in_use == 64 + 8192 + 3 * MIB
    assert stats.peak >= stats.allocated == stats_sum(stats)
    del tensors
    stats = memory.pinned_stats()
    assert stats.count == before.count
    assert stats.allocated == stats_sum(stats)
    trimmed = memory.pinned_trim()
    left = memory.pinned_stats()
    assert trimmed == stats.cached - left.cached
    assert left.cached == 0 or left.in_use > 0  # a region stays with the live tensors in it


@over_cuda
def test_a_tensor_in_flight_is_counted_as_such():
    with sim.policy("lazy") if OVER_SIM else contextlib.nullcontext():
        tensor = ints(MIB, 1)
        gpu = tensor.to("cuda", non_blocking=True)
        del tensor
        if OVER_SIM:
            assert memory.pinned_stats().in_flight == 4 * MIB
        torch.cuda.synchronize()
        stats = memory.pinned_stats()
        assert stats.in_flight == 0
        assert stats.cached >= 4 * MIB
        del gpu


def test_the_limit_is_kept_and_named():
    memory.set_pinned_limit(8 * MIB)
    assert memory.pinned_stats().limit == 8 * MIB
    with pytest.raises(OutOfMemory, match="set_pinned_limit") as caught:
        memory.pinned_empty(9 * MIB, dtype=torch.uint8)
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value, DeviceError)
    held = memory.pinned_empty(7 * MIB, dtype=torch.uint8)
    del held
    memory.pinned_empty(8 * MIB, dtype=torch.uint8)
    assert memory.pinned_stats().allocated <= 8 * MIB


@pytest.mark.parametrize(
    ("nbytes", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_a_bad_limit_is_an_error(nbytes, error):
    with pytest.raises(error, match="nbytes"):
        memory.set_pinned_limit(nbytes)
    assert memory.pinned_stats().limit is None


@over_sim
def test_at_the_limit_copies_in_flight_are_waited_for():
    memory.set_pinned_limit(4 * MIB)
    with sim.policy("lazy"):
        results = []
        for value in range(5):
            tensor = ints(MIB, value)
            results.append(tensor.to("cuda", non_blocking=True))
            del tensor
        assert [int(r[-1]) for r in results] == [0, 1, 2, 3, 4]
    assert memory.pinned_stats().allocated <= 4 * MIB


@over_sim
@pytest.mark.parametrize("by_torch", [False, True])
def test_a_wait_at_the_limit_ends_with_ctrl_c(by_torch):
    class Pressed(Exception):
        pass

    def press(*_):
        raise Pressed

    def allocate():
        if by_torch:
            torch.empty(MIB, dtype=torch.int32, pin_memory=True)
        else:
            ints(MIB)

    if by_torch:
        memory.install_pinned_allocator()
    memory.set_pinned_limit(4 * MIB)
    stream = torch.cuda.Stream()
    before = signal.signal(signal.SIGALRM, press)
    try:
        with sim.policy("lazy"), sim.hold(stream.cuda_stream):
            tensor = ints(MIB, 1)
            with torch.cuda.stream(stream):
                gpu = tensor.to("cuda", non_blocking=True)
            del tensor
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Pressed):
                allocate()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    stream.synchronize()
    assert int(gpu[0]) == 1


# -- copies that PyTorch makes ----------------------------------------------------------------


def drop_after_to(value, device):
    tensor = ints(1000, value)
    return tensor.to(device, non_blocking=True)


def drop_after_copy_of_a_slice(value, device):
    gpu = torch.empty(300, dtype=torch.int32, device=device)
    gpu.copy_(ints(1000, value)[500:800], non_blocking=True)
    return gpu


def drop_an_alias(value, device):
    array = ints(1000, value).numpy()[400:]
    return torch.from_numpy(array).to(device, non_blocking=True)


def drop_a_view_of_bytes(value, device):
    gpu = torch.empty(4000, dtype=torch.uint8, device=device)
    gpu.copy_(ints(1000, value).view(torch.uint8), non_blocking=True)
    return gpu.view(torch.int32)


def drop_on_a_side_stream(value, device):
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        gpu = drop_after_to(value, device)
    torch.cuda.current_stream(device).wait_stream(stream)
    return gpu


def drop_a_pinned_copy(value, device):
    return memory.pin(torch.full((1000,), value, dtype=torch.int32)).to(device, non_blocking=True)


def drop_memory_of_torch(value, device):
    tensor = torch.full((1000,), value, dtype=torch.int32).pin_memory()
    return tensor.to(device, non_blocking=True)


DROPS = [
    drop_after_to,
    drop_after_copy_of_a_slice,
    drop_an_alias,
    drop_a_view_of_bytes,
    drop_on_a_side_stream,
    drop_a_pinned_copy,
    drop_memory_of_torch,
]


@over_sim
@pytest.mark.parametrize("installed", [False, True])
@pytest.mark.parametrize("drop", DROPS, ids=lambda f: f.__name__)
def test_a_dropped_tensors_bytes_arrive(schedule, drop, installed):
    if installed:
        memory.install_pinned_allocator()
    device = f"cuda:{torch.cuda.device_count() - 1}"
    arrived = []
    for value in range(50):
        arrived.append(drop(value, device))
        # The next owner writes at once.
        ints(1000, -1)
        torch.full((1000,), -2, dtype=torch.int32).pin_memory()
    assert [values(gpu) for gpu in arrived] == [[value] for value in range(50)]


@over_sim
@pytest.mark.parametrize("policy", ["lazy", "random"])
def test_random_owners_never_see_each_others_bytes(policy, seed):
    choose = random.Random(seed)
    streams = [torch.cuda.Stream(choose.randrange(torch.cuda.device_count())) for _ in range(4)]
    memory.set_pinned_limit(6 * MIB)
    expected = []
    with sim.policy(policy, seed=seed):
        for step in range(300):
            n = choose.choice([1, 40, 1000, 20_000, 300_000])
            stream = choose.choice(streams)
            with torch.cuda.stream(stream):
                if choose.random() < 0.7:
                    first = choose.randrange(n)
                    source = ints(n, step)[first:]
                    gpu = torch.empty(n - first, dtype=torch.int32, device=stream.device)
                    gpu.copy_(source, non_blocking=True)
                    expected.append((gpu, step))
                    del source
                elif expected:
                    gpu, _ = choose.choice(expected)
                    if gpu.device == stream.device:
                        ints(gpu.numel()).copy_(gpu, non_blocking=True)  # dropped in flight
            if choose.random() < 0.3:
                sim.run_one()
            if choose.random() < 0.05:
                memory.pinned_trim()
        torch.cuda.synchronize()
        for stream in streams:
            stream.synchronize()
    assert [values(gpu) for gpu, _ in expected] == [[value] for _, value in expected]
    assert memory.pinned_stats().allocated <= 6 * MIB


@over_sim
def test_a_copy_to_a_dropped_tensor_does_not_reach_its_next_owner(schedule):
    gpu = torch.full((1000,), 7, dtype=torch.int32, device="cuda")
    for _ in range(50):
        ints(1000).copy_(gpu, non_blocking=True)
        owner = ints(1000, 3)
        torch.cuda.synchronize()
        assert owner.unique().tolist() == [3]


@over_sim
def test_dropping_makes_no_runtime_call():
    with sim.policy("lazy"):
        used, unused = ints(1000, 1), ints(1000, 2)
        gpu = used.to("cuda", non_blocking=True)
        with sim.count() as calls:
            del used, unused
        assert calls.total() == 0
        assert int(gpu[0]) == 1


@over_sim
def test_events_and_memory_stay_flat():
    def step():
        gpu.copy_(ints(1000, 1), non_blocking=True)

    gpu = torch.empty(1000, dtype=torch.int32, device="cuda")
    for _ in range(50):
        step()
    torch.cuda.synchronize()
    objects, stats = sim.objects(), memory.pinned_stats()
    for _ in range(2000):
        step()
    assert sim.objects().events <= objects.events + 1
    assert memory.pinned_stats().allocated == stats.allocated


@over_sim
@pytest.mark.parametrize("policy", ["random", "threads"])
def test_many_threads_copy_and_drop(policy):
    failed = []

    def work(seed):
        choose = random.Random(seed)
        stream = torch.cuda.Stream()
        for step in range(60):
            value = seed * 1000 + step
            with torch.cuda.stream(stream):
                gpu = ints(choose.choice([10, 1000, 100_000]), value).to("cuda", non_blocking=True)
            ints(1000, -1)
            if step % 20 == 10:
                memory.pinned_trim()
            stream.synchronize()
            if values(gpu) != [value]:
                failed.append((seed, step))

    ints(1)  # PyTorch's allocator is exchanged here, before there are threads
    with sim.policy(policy, seed=3):
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []


# -- graphs -----------------------------------------------------------------------------------


@over_sim
@pytest.mark.parametrize("installed", [False, True])
def test_a_captured_copy_keeps_its_dropped_source_as_long_as_the_graph(installed):
    if installed:
        memory.install_pinned_allocator()

    def make():
        if installed:
            return torch.empty(1000, dtype=torch.int32, pin_memory=True)
        return ints(1000)

    gpu = torch.zeros(1000, dtype=torch.int32, device="cuda")
    source = make().fill_(5)
    graph = torch.cuda.CUDAGraph()
    before = memory.pinned_stats()
    with torch.cuda.graph(graph):
        gpu.copy_(source, non_blocking=True)
    del source
    for _ in range(3):
        assert make().fill_(9).data_ptr()
        gpu.zero_()
        graph.replay()
        assert values(gpu) == [5]
    assert memory.pinned_stats().in_flight == 4096
    graph.reset()
    del graph
    deadline = time.monotonic() + 20  # the driver tells when it gets round to it
    while memory.pinned_stats().in_flight and time.monotonic() < deadline:
        time.sleep(0.01)
    stats = memory.pinned_stats()
    assert stats.in_flight == 0
    assert stats.count == before.count - 1


@over_sim
def test_another_threads_capture_is_not_disturbed():
    ints(1)
    capturing, done = threading.Event(), threading.Event()
    errors = []

    def capture():
        try:
            gpu, source = torch.zeros(4, device="cuda"), torch.ones(4).pin_memory()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="global"):
                gpu.copy_(source, non_blocking=True)
                capturing.set()
                done.wait(20)
            graph.replay()
            assert gpu.tolist() == [1, 1, 1, 1]
        except BaseException as error:
            errors.append(error)
        finally:
            capturing.set()

    thread = threading.Thread(target=capture)
    stream = torch.cuda.Stream()
    gpu = torch.zeros(MIB, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    thread.start()
    capturing.wait(20)
    try:
        with torch.cuda.stream(stream):
            for value in range(10):
                gpu.copy_(ints(MIB, value), non_blocking=True)  # registers, records, queries
        memory.pinned_trim()
    finally:
        done.set()
        thread.join()
    assert errors == []


# -- PyTorch's own pinned memory ----------------------------------------------------------------


@over_cuda
def test_the_installed_allocator_serves_torch_to_the_page():
    memory.install_pinned_allocator()
    memory.install_pinned_allocator()
    before = memory.pinned_stats()
    tensor = torch.empty(5 * MIB + 1, dtype=torch.uint8, pin_memory=True)
    assert tensor.is_pinned()
    assert memory.pinned_stats().in_use - before.in_use == 5 * MIB + 4096
    copy = torch.arange(1000).pin_memory()
    assert torch.equal(copy, torch.arange(1000))
    assert memory.pinned_stats().count == before.count + 2
    assert torch.empty(0, pin_memory=True).numel() == 0
    del tensor, copy
    assert memory.pinned_stats().in_use == before.in_use


@over_cuda
def test_a_data_loader_pins_from_the_installed_allocator():
    memory.install_pinned_allocator()
    before = memory.pinned_stats().allocations
    data = torch.utils.data.TensorDataset(torch.arange(64))
    loader = torch.utils.data.DataLoader(data, batch_size=16, pin_memory=True)
    batches = [batch for (batch,) in loader]
    assert torch.equal(torch.cat(batches), torch.arange(64))
    assert all(batch.is_pinned() for batch in batches)
    assert memory.pinned_stats().allocations >= before + 4


@over_cuda
def test_uninstalling_gives_torch_its_allocator_back():
    memory.install_pinned_allocator()
    of_pool = torch.full((1000,), 4).pin_memory()
    memory.uninstall_pinned_allocator()
    before = memory.pinned_stats().allocations
    of_torch = torch.full((1000,), 5).pin_memory()
    assert memory.pinned_stats().allocations == before
    memory.install_pinned_allocator()
    assert (of_pool == 4).all()
    assert (of_torch == 5).all()
    assert of_torch.to("cuda", non_blocking=True).cpu().unique().tolist() == [5]
    del of_torch, of_pool


@over_cuda
def test_torchs_host_figures_and_cache_include_the_pool():
    memory.install_pinned_allocator()
    torch.cuda.reset_accumulated_host_memory_stats()
    torch.cuda.reset_peak_host_memory_stats()
    before = torch.cuda.host_memory_stats()
    tensor = torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True)
    stats = torch.cuda.host_memory_stats()
    assert stats["active_bytes.current"] - before["active_bytes.current"] == 3 * MIB
    assert stats["allocated_bytes.current"] - before["allocated_bytes.current"] == 3 * MIB
    assert stats["active_requests.allocated"] == 1
    assert stats["num_host_alloc"] - before["num_host_alloc"] == 1
    del tensor
    torch._C._host_emptyCache()
    assert memory.pinned_stats().cached == 0


@over_cuda
def test_torch_gets_its_own_error_at_the_limit():
    memory.install_pinned_allocator()
    memory.set_pinned_limit(MIB)
    with pytest.raises(torch.OutOfMemoryError, match="set_pinned_limit"):
        torch.empty(2 * MIB, dtype=torch.uint8, pin_memory=True)


@pytest.mark.skipif(HAS_DEVICE, reason="there is a device")
def test_without_a_device_installing_is_an_error():
    with pytest.raises(RuntimeError, match="no CUDA"):
        memory.install_pinned_allocator()


# -- failures -----------------------------------------------------------------------------------


def no_error_is_left():
    """Whether PyTorch's next kernel finds no error of ours."""
    return torch.full((3,), 2.0, device="cuda").tolist() == [2.0, 2.0, 2.0]


@over_sim
@pytest.mark.parametrize("code", [1, 2])
def test_a_failed_pinning_names_the_call_and_leaves_nothing(code):
    before = memory.pinned_stats()
    with sim.fault("cudaHostRegister", code=code) as fault, pytest.raises(DeviceError) as caught:
        ints(MIB)
    assert fault.happened
    assert caught.value.call == "cudaHostRegister"
    assert caught.value.code == code
    assert isinstance(caught.value, OutOfMemory) is (code == 2)
    assert no_error_is_left()
    after = memory.pinned_stats()
    assert after.allocated == before.allocated
    assert after.failures == before.failures + 1
    assert ints(MIB, 1).sum() == MIB


@over_sim
def test_where_memory_is_short_the_cache_is_given_back_first():
    ints(MIB)
    assert memory.pinned_stats().cached == 4 * MIB
    with sim.fault("cudaHostRegister", code=2) as fault:
        ints(2 * MIB, 1)
    assert fault.happened
    assert no_error_is_left()


@over_sim
def test_a_device_that_cannot_register_memory_gets_the_drivers_allocator():
    with sim.fault("cudaHostRegister", code=801), sim.count() as calls:
        tensor = ints(MIB, 1)
    assert calls["cudaHostAlloc"] == 1
    assert tensor.is_pinned()
    assert values(tensor.to("cuda", non_blocking=True)) == [1]
    del tensor
    assert memory.pinned_trim() == 4 * MIB
    assert no_error_is_left()


@over_sim
def test_the_drivers_allocator_is_logged_once():
    result = run_python(
        """
import staging
from staging import sim
kept = []
for _ in range(3):
    with sim.fault("cudaHostRegister", code=801) as fault:
        kept.append(staging.pinned_empty(4 << 20))
    assert fault.happened
"""
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("cudaHostAlloc") == 1


@over_sim
@pytest.mark.parametrize("call", ["cudaEventRecord", "cudaEventCreateWithFlags"])
def test_a_copy_that_cannot_be_watched_is_waited_for_and_reported(call):
    gpu = torch.zeros(MIB, dtype=torch.int32, device="cuda")
    source = ints(MIB, 5)
    torch.cuda.synchronize()
    memory.pinned_trim()  # leaves no idle event, so that the copy has to make one
    with sim.policy("lazy"):
        with sim.fault(call) as fault, pytest.raises(RuntimeError, match=call):
            gpu.copy_(source, non_blocking=True)
        assert fault.happened
        del source
        ints(MIB, -1)
        assert values(gpu) == [5]
        assert no_error_is_left()
    stats = memory.pinned_stats()
    assert stats.lost == 0
    assert stats.failures >= 1


@over_sim
def test_a_failed_query_is_reported_and_the_next_allocation_works():
    with sim.policy("lazy"):
        gpu = ints(MIB, 1).to("cuda", non_blocking=True)
        with sim.fault("cudaEventQuery"), pytest.raises(DeviceError, match="cudaEventQuery"):
            ints(MIB)
        assert no_error_is_left()
        assert ints(MIB, 2).unique().tolist() == [2]
        assert values(gpu) == [1]


@over_sim
def test_after_a_destroyed_context_nothing_is_handed_out_and_nothing_hangs():
    result = run_python(
        """
import torch, staging
from staging import sim
t = staging.pinned_empty(1 << 20)
other = staging.pinned_empty(1 << 20)
try:
    with sim.fault("cudaEventRecord", code=700, sticky=True):
        t.to("cuda", non_blocking=True)
except RuntimeError as error:
    print(error)
del t
for _ in range(2):
    try:
        staging.pinned_empty(10)
    except RuntimeError as error:
        print(type(error).__name__, error)
staging.pinned_trim()
print(staging.pinned_stats().lost)
"""
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "cudaEventRecord" in lines[0]
    assert "lost" in lines[1]
    assert lines[1] == lines[2]
    assert lines[3] == str(4 << 20)


# -- processes ------------------------------------------------------------------------------------


@over_sim
def test_figures_trim_and_limit_do_not_initialise_cuda():
    result = run_python(
        """
import staging
from staging import sim
staging.pinned_stats  # loads torch, which asks for a few things
before = sim.counters()
staging.set_pinned_limit(1 << 20)
assert staging.pinned_stats().limit == 1 << 20
assert staging.pinned_trim() == 0
assert sim.counters() == before
try:
    staging.pinned_empty(2 << 20)
except MemoryError:
    print("limited")
"""
    )
    assert result.stdout == "limited\n", result.stderr


@over_sim
@pytest.mark.skipif(OVER_SIM and torch.cuda.device_count() < 2, reason="--devices 2")
def test_no_context_appears_where_nobody_wanted_one():
    result = run_python(
        """
import torch, staging
from staging import sim
a = staging.pinned_zeros(1 << 20, device=1)
print(sim.context_active(0), sim.context_active(1), torch.cuda.current_device())
b = staging.pinned_zeros(1 << 20)
print(sim.context_active(0), torch.cuda.current_device())
b.to("cuda:1", non_blocking=True)
torch.cuda.synchronize(1)
print(sim.context_active(0))
"""
    )
    assert result.stdout == "False True 0\nFalse 0\nFalse\n", result.stderr


@over_cuda
def test_tensors_may_live_until_the_interpreter_ends():
    result = run_python(
        """
import torch, staging
kept = staging.pinned_empty(1 << 20)
gpu = kept.to("cuda", non_blocking=True)
staging.install_pinned_allocator()
more = torch.zeros(10).pin_memory()
cycle = [staging.pinned_empty(10)]; cycle.append(cycle)
"""
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


@over_cuda
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_child_may_drop_tensors_and_is_told_not_to_make_any():
    tensor = ints(1000, 1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        text = "no error"
        try:
            signal.alarm(20)
            del tensor
            memory.pinned_empty(10)
        except RuntimeError as error:
            text = str(error)
        finally:
            os.write(write, text.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    assert "fork" in text
    assert tensor.unique().tolist() == [1]


@over_cuda
def test_huge_pages_are_a_wish():
    memory.set_pinned_huge_pages(True)
    try:
        tensor = ints(MIB, 3)
        assert tensor.is_pinned()
        assert tensor.to("cuda", non_blocking=True).cpu().unique().tolist() == [3]
        del tensor
    finally:
        memory.set_pinned_huge_pages(False)


def test_memory_comes_from_the_node_that_was_asked_for():
    node = _C.online_nodes()[-1]
    tensor = memory.pinned_zeros(3 * MIB, dtype=torch.uint8, numa_node=node)
    assert _C.node_of(tensor.data_ptr()) in (node, -1)
