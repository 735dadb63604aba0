"""PyTorch over the simulated device, and what staging.sim says about it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

from staging import sim

pytestmark = pytest.mark.sim

torch = pytest.importorskip("torch")

from staging import CpuGpuBuffer, DeviceError  # noqa: E402
from staging.extension import _C  # noqa: E402

SCHEDULES = [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2), ("threads", 1)]
every_schedule = pytest.mark.parametrize(("policy", "seed"), SCHEDULES)


def plain_steps(steps: int) -> int:
    """The plain pattern: copy from a pinned array, overwrite it; returns the wrong steps."""
    host = torch.zeros(256, dtype=torch.int64).pin_memory()
    gpu = torch.zeros(256, dtype=torch.int64, device="cuda")
    log = torch.empty(steps, 256, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    for step in range(steps):
        host.fill_(step)
        gpu.copy_(host, non_blocking=True)
        log[step].copy_(gpu)
    seen = log.cpu()[:, 0]
    return int((seen != torch.arange(steps)).sum())


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process over the simulated device, as this one runs."""
    import os

    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, **environment},
    )


# -- schedules ------------------------------------------------------------------------------


def test_the_plain_pattern_is_right_under_eager():
    with sim.policy("eager"):
        assert plain_steps(200) == 0


def test_the_plain_pattern_corrupts_under_lazy():
    with sim.policy("lazy"):
        assert plain_steps(200) == 199


def test_the_plain_pattern_corrupts_under_random(seed: int):
    with sim.policy("random", seed=seed):
        assert plain_steps(200) > 0


def test_random_repeats_for_a_seed(seed: int):
    def wrong() -> int:
        with sim.policy("random", seed=seed):
            return plain_steps(300)

    assert wrong() == wrong()


def test_a_policy_is_undone_after_its_block():
    before = sim.current_policy()
    with sim.policy("lazy", seed=9):
        assert sim.current_policy() == ("lazy", 9)
    assert sim.current_policy() == before
    with pytest.raises(ValueError, match="name must be"):
        sim.set_policy("sometimes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed must be"):
        sim.set_policy("lazy", seed=-1)


@every_schedule
def test_a_chain_of_events_orders_two_streams(policy: sim.Policy, seed: int):
    with sim.policy(policy, seed=seed):
        steps = 50
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        hosts = torch.arange(1, steps + 1).pin_memory()
        gpu = torch.zeros(1, dtype=torch.int64, device="cuda")
        back = torch.zeros(steps, dtype=torch.int64).pin_memory()
        torch.cuda.synchronize()
        for i in range(steps):
            with torch.cuda.stream(first):
                first.wait_stream(second)
                gpu.copy_(hosts[i : i + 1], non_blocking=True)
            with torch.cuda.stream(second):
                second.wait_stream(first)
                back[i : i + 1].copy_(gpu, non_blocking=True)
        second.synchronize()
        assert back.tolist() == list(range(1, steps + 1))
        gpu.record_stream(first)
        gpu.record_stream(second)


def test_pending_work_can_be_stepped():
    with sim.policy("lazy"), sim.progress(0):
        host = torch.ones(4).pin_memory()
        gpu = torch.empty(4, device="cuda")
        sim.run_all()
        gpu.copy_(host, non_blocking=True)
        gpu.copy_(host, non_blocking=True)
        assert sim.pending() == 2
        assert sim.run_one()
        assert sim.pending() == 1
        sim.run_all()
        assert not sim.run_one()
        with pytest.raises(ValueError, match="idle_ms"), sim.progress(-1):
            pass


def test_a_held_stream_is_stalled():
    host = torch.ones(4).pin_memory()
    gpu = torch.zeros(4, device="cuda")
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    torch.cuda.synchronize()
    with sim.hold(stream.cuda_stream):
        with torch.cuda.stream(stream):
            gpu.copy_(host, non_blocking=True)
            event.record()
        assert not event.query()
        with pytest.raises(RuntimeError, match="held stream"):
            sim.set_policy("lazy")
    event.synchronize()
    assert gpu.cpu().tolist() == [1.0] * 4
    with pytest.raises(ValueError, match="stream must be"), sim.hold(1 << 40):
        pass


# -- PyTorch ------------------------------------------------------------------------------


def test_the_device_is_called_what_it_is():
    assert torch.cuda.is_available()
    assert torch.cuda.get_device_name(0) == "Simulated device"
    assert torch.cuda.get_device_properties(0).name == "Simulated device"
    assert sim.protection() in {"pkey", "mprotect"}


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16,
    torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 7, 1000])
def test_fills_and_copies_of_every_dtype(dtype: torch.dtype, count: int):
    with sim.policy("lazy"):
        filled = torch.full((count,), 1, dtype=dtype, device="cuda")
        expected = torch.full((count,), 1, dtype=dtype)
        assert torch.equal(filled.cpu().view(torch.uint8), expected.view(torch.uint8))
        zeros = torch.zeros(count, dtype=dtype, device="cuda")
        assert not zeros.cpu().view(torch.uint8).any()
        zeros.fill_(1)
        assert torch.equal(zeros.cpu().view(torch.uint8), expected.view(torch.uint8))


def test_copies_both_ways_and_on_the_device():
    source = torch.arange(1000)
    pinned = source.pin_memory()
    assert pinned.is_pinned()
    assert not source.is_pinned()
    for host in (source, pinned):
        for non_blocking in (False, True):
            gpu = torch.empty(1000, dtype=torch.int64, device="cuda")
            gpu.copy_(host, non_blocking=non_blocking)
            other = torch.empty_like(gpu)
            other.copy_(gpu)
            assert torch.equal(other.cpu(), source)
            assert torch.equal(other.to("cpu"), source)
    assert torch.equal(source.to("cuda", non_blocking=True).cpu(), source)


def test_events_measure_and_streams_synchronise():
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    torch.zeros(10, device="cuda")
    end.record()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) >= 0
    torch.cuda.current_stream().synchronize()
    assert torch.cuda.current_stream().query()


def test_a_graph_is_captured_and_replayed():
    with sim.policy("lazy"):
        host = torch.zeros(16, dtype=torch.int32).pin_memory()
        gpu = torch.empty(16, dtype=torch.int32, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            gpu.copy_(host, non_blocking=True)
        for round_ in range(5):
            host.fill_(round_)
            graph.replay()
            torch.cuda.synchronize()
            assert gpu.cpu().tolist() == [round_] * 16
        graph.reset()


def test_memory_is_accounted_for_and_runs_out():
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    assert total == torch.cuda.get_device_properties(0).total_memory
    big = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.mem_get_info()[0] <= free - (64 << 20)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(total, dtype=torch.uint8, device="cuda")
    del big
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] == free
    assert torch.zeros(4, device="cuda").cpu().tolist() == [0.0] * 4


def test_a_kernel_that_is_not_modelled_fails_by_name(capfd: pytest.CaptureFixture[str]):
    sim.clear_reports()
    one = torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError, match="operation not supported"):
        torch.sin(one)
    (report,) = sim.reports()
    assert report.kind == "unmodelled-kernel"
    assert "sin_kernel_cuda" in report.message
    assert "sin_kernel_cuda" in capfd.readouterr().err
    sim.clear_reports()
    assert sim.reports() == []
    assert one.cpu().tolist() == [1.0] * 4  # the device is as it was


# What each asks of the driver or of the runtime is not modelled.
LIBRARIES = {
    "cuBLAS": "square @ square",
    "cuDNN": "torch.nn.functional.conv2d(square[None, None], square[None, None, :3, :3])",
    "cuFFT": "torch.fft.fft(square)",
    "cuSOLVER": "torch.geqrf(square)",
    "NVRTC": "torch.special.bessel_j0(square)",
    "IPC": "torch.multiprocessing.reductions.reduce_tensor(square)",
    "virtual memory": (
        "torch.cuda.memory._set_allocator_settings('expandable_segments:True'); "
        "torch.empty(1 << 24, device='cuda')"
    ),
}


def test_a_library_that_needs_more_than_is_modelled_raises_and_the_process_goes_on():
    code = (
        "import json, torch, torch.multiprocessing.reductions\n"
        "from staging import sim\n"
        "square = torch.zeros(8, 8, device='cuda')\n"
        f"for name, statement in {LIBRARIES!r}.items():\n"
        "    sim.clear_reports()\n"
        "    try:\n"
        "        exec(statement)\n"
        "    except Exception as error:\n"
        "        raised = f'{type(error).__name__}: {error}'\n"
        "    else:\n"
        "        raised = ''\n"
        "    torch.cuda.synchronize()\n"
        "    assert torch.ones(4, device='cuda').cpu().tolist() == [1.0] * 4\n"
        "    kinds = sorted({report.kind for report in sim.reports()})\n"
        "    names = [report.message for report in sim.reports()]\n"
        "    print(json.dumps([name, raised, kinds, names]))\n"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    seen = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line[0] for line in seen] == list(LIBRARIES)
    for name, raised, kinds, names in seen:
        assert "Error" in raised.partition(":")[0], name
        if "libnvrtc-builtins" in raised:
            continue  # NVRTC does not find a part of its own and asks the driver for nothing
        assert kinds, name
        assert set(kinds) <= {"unmodelled-call", "unmodelled-kernel"}, name
        assert all(message in result.stderr for message in names), name
    # Where PyTorch passes the text of the error on, it is in the exception as well.
    texts = {line[0]: line[1] for line in seen}
    assert "cuModuleLoadData" in texts["NVRTC"] or "libnvrtc-builtins" in texts["NVRTC"]
    assert "cudaIpcGetMemHandle" in texts["IPC"]
    assert "cuMemAddressReserve" in texts["virtual memory"]


def test_the_exception_of_a_kernel_that_is_not_modelled_names_it():
    with pytest.raises(RuntimeError, match=r"does not model .*sin_kernel_cuda"):
        torch.sin(torch.ones(4, device="cuda"))
    sim.clear_reports()


def test_a_host_dereference_of_device_memory_faults():
    result = run_python(
        "import ctypes, torch\n"
        "gpu = torch.zeros(4, device='cuda'); torch.cuda.synchronize(); print('before')\n"
        "print(ctypes.string_at(gpu.data_ptr(), 4)); print('after')\n"
    )
    assert result.stdout == "before\n"
    assert result.returncode == -11


def test_memory_dropped_in_flight_is_reported_without_the_caching_allocator():
    code = (
        "import torch\n"
        "from staging import sim\n"
        "host = torch.ones(1024).pin_memory()\n"
        "gpu = torch.empty(1024, device='cuda')\n"
        "sim.set_policy('lazy')\n"
        "gpu.copy_(host, non_blocking=True)\n"
        "del gpu\n"
        "print([report.kind for report in sim.reports()])\n"
    )
    result = run_python(code, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "['free-in-flight']\n"


def test_two_devices_have_contexts_of_their_own():
    code = (
        "import torch\n"
        "from staging import sim\n"
        "assert torch.cuda.device_count() == 2\n"
        "gpu = torch.ones(4, device='cuda:1')\n"
        "assert gpu.cpu().tolist() == [1.0] * 4\n"
        "assert sim.context_active(1)\n"
        "print(sim.context_active(0), torch.cuda.current_device())\n"
    )
    result = run_python(code, STAGING_SIM_DEVICES="2")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "False 0\n"


def test_no_device_is_no_cuda():
    result = run_python(
        "import torch; print(torch.cuda.is_available(), torch.zeros(1).item())",
        STAGING_SIM_DEVICES="0",
    )
    assert result.stdout == "False 0.0\n", result.stderr


# -- calls --------------------------------------------------------------------------------


def test_counts_are_of_the_block():
    host = torch.ones(256).pin_memory()
    gpu = torch.empty(256, device="cuda")
    gpu.copy_(host, non_blocking=True)
    with sim.count() as calls:
        gpu.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    assert calls["cudaMemcpyAsync"] == 1
    assert calls["cudaStreamSynchronize"] == calls["cudaDeviceSynchronize"] == 0
    assert "cudaMalloc" not in calls
    assert calls.total() == sum(calls.values()) >= 1
    with pytest.raises(KeyError, match="cudaNonsense"):
        calls["cudaNonsense"]


def test_counters_start_from_the_reset():
    torch.cuda.synchronize()
    sim.reset_counters()
    assert not any(sim.counters().values())
    torch.cuda.synchronize()
    assert sim.counters()["cudaDeviceSynchronize"] == 1


def test_the_record_says_name_stream_bytes_and_kind():
    host = torch.ones(256).pin_memory()
    gpu = torch.empty(256, device="cuda")
    stream = torch.cuda.Stream()
    with sim.record() as recorded, torch.cuda.stream(stream):
        gpu.copy_(host, non_blocking=True)
    stream.synchronize()
    (copy,) = [call for call in recorded if call.kind]
    assert copy.name == "cudaMemcpyAsync"
    assert copy.stream == stream.cuda_stream
    assert copy.nbytes == 1024
    assert copy.kind == "HostToDevice"
    assert copy.result == 0
    assert copy.thread == threading.get_native_id()
    assert recorded.names().count("cudaMemcpyAsync") == 1
    assert recorded.dropped == 0


def test_the_record_is_bounded():
    with sim.record(limit=3) as recorded:
        for _ in range(10):
            torch.cuda.synchronize()
    assert len(recorded) == 3
    assert recorded.dropped > 0
    with pytest.raises(ValueError, match="limit"), sim.record(limit=-1):
        pass


# -- faults ---------------------------------------------------------------------------------


def test_the_nth_call_fails_and_the_next_one_works():
    host = torch.ones(256).pin_memory()
    gpu = torch.zeros(256, device="cuda")
    with sim.fault("cudaMemcpyAsync", nth=2, code=1) as fault:
        gpu.copy_(host, non_blocking=True)
        with pytest.raises(RuntimeError, match="invalid argument"):
            gpu.copy_(host, non_blocking=True)
    assert fault.happened
    assert gpu.cpu().tolist() == [1.0] * 256


def test_a_fault_of_a_library_leaves_the_calls_of_others_alone():
    host = torch.ones(256).pin_memory()
    buffer = CpuGpuBuffer(256, dtype=torch.float32, device="cuda")
    gpu = torch.zeros(256, device="cuda")
    with (
        sim.fault("cudaMemcpyAsync", code=1, library=_C.__file__) as ours,
        sim.fault("cudaMemcpyAsync", nth=3, code=1, library="/libc10_cuda") as nobodys,
    ):
        gpu.copy_(host, non_blocking=True)
        with pytest.raises(DeviceError, match="cudaMemcpyAsync"):
            buffer.copy_to_gpu()
        buffer.copy_to_gpu()
        gpu.copy_(host, non_blocking=True)
    assert (ours.happened, nobodys.happened) == (True, False)
    assert gpu.cpu().tolist() == [1.0] * 256


def test_a_fault_that_no_call_met_says_so():
    with sim.fault("cudaIpcNothing" if False else "cudaMemcpy2DAsync") as fault:
        pass
    assert not fault.happened
    with pytest.raises(ValueError, match="cudaNonsense"), sim.fault("cudaNonsense"):
        pass


def test_a_failed_allocation_is_out_of_memory():
    torch.cuda.empty_cache()
    # PyTorch frees its cache and tries again: two allocations have to fail.
    with (
        sim.fault("cudaMalloc", nth=1, code=2),
        sim.fault("cudaMalloc", nth=2, code=2),
        pytest.raises(torch.OutOfMemoryError),
    ):
        torch.empty(64 << 20, device="cuda")


def test_a_sticky_fault_fails_every_later_call_until_the_test_recovers():
    gpu = torch.zeros(4, device="cuda")
    try:
        with (
            sim.fault("cudaStreamSynchronize", code=700, sticky=True),
            pytest.raises(RuntimeError, match="illegal memory access"),
        ):
            torch.cuda.current_stream().synchronize()
        assert sim.lost() == 700
        with pytest.raises(RuntimeError, match="illegal memory access"):
            gpu.cpu()
    finally:
        sim.recover()
    assert sim.lost() == 0
    torch.cuda.synchronize()


def test_a_deferred_fault_happens_when_the_work_runs():
    host = torch.ones(256).pin_memory()
    gpu = torch.zeros(256, device="cuda")
    try:
        with sim.policy("lazy"):
            sim.run_all()
            with sim.fault("cudaMemcpyAsync", code=719, deferred=True):
                gpu.copy_(host, non_blocking=True)
            with pytest.raises(RuntimeError, match="unspecified launch failure"):
                torch.cuda.synchronize()
    finally:
        sim.recover()


# -- leaks ----------------------------------------------------------------------------------


def test_objects_count_what_is_alive():
    before = sim.objects()
    event = torch.cuda.Event()
    event.record()
    during = sim.objects()
    assert during.events == before.events + 1
    del event
    assert sim.objects().events == before.events
