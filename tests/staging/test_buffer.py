"""CpuGpuBuffer: every case that users of the plain pinned buffer report, and its contract."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from staging import CpuGpuBuffer, sim  # noqa: E402

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.float32, torch.float64, torch.complex64,
]  # fmt: skip
ML_DTYPES = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
SCHEDULES = ["lazy", "random"]


class PlainBuffer:
    """What a runner does today: a pinned tensor, a device tensor, a non-blocking copy."""

    def __init__(self, *size: int, dtype: torch.dtype, device: str) -> None:
        self.cpu = torch.zeros(*size, dtype=dtype, pin_memory=device != "cpu")
        self.gpu = torch.zeros(*size, dtype=dtype, device=device)
        self.np = self.cpu.numpy()

    def copy_to_gpu(self, n: int) -> torch.Tensor:
        return self.gpu[:n].copy_(self.cpu[:n], non_blocking=True)

    def copy_to_cpu(self, n: int) -> torch.Tensor:
        return self.cpu[:n].copy_(self.gpu[:n], non_blocking=True)


def make(*size: int, dtype=torch.int32, device="cuda", **options) -> CpuGpuBuffer:
    return CpuGpuBuffer(*size, dtype=dtype, device=device, **options)


# -- construction -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_are_zero_of_one_shape_and_dtype(dtype):
    buffer = make(4, 3, dtype=dtype, device="cpu")
    assert buffer.cpu.shape == buffer.gpu.shape == buffer.np.shape == (4, 3)
    assert buffer.cpu.dtype == buffer.gpu.dtype == dtype
    assert not buffer.cpu.any()
    assert not buffer.gpu.any()


def test_np_is_a_view_of_cpu():
    buffer = make(4, device="cpu")
    buffer.np[2] = 7
    assert buffer.cpu.tolist() == [0, 0, 7, 0]


@pytest.mark.parametrize("size", [(torch.Size([2, 3]),), ((2, 3),), (2, 3), ([2, 3],)])
def test_a_size_may_be_several_ints_or_one_sequence(size):
    assert tuple(CpuGpuBuffer(*size, dtype=torch.int32, device="cpu").gpu.shape) == (2, 3)


@pytest.mark.parametrize("size", [(0,), (0, 5), (5, 0)])
def test_a_zero_sized_buffer_works(size):
    buffer = make(*size, device="cpu")
    assert buffer.copy_to_gpu().shape == torch.Size(size)
    assert buffer.copy_to_cpu().shape == torch.Size(size)


def test_a_buffer_without_dimensions_is_copied_whole():
    buffer = CpuGpuBuffer((), dtype=torch.int64, device="cpu")
    buffer.np[()] = 5
    assert buffer.copy_to_gpu().item() == 5
    with pytest.raises(ValueError, match="n must be None"):
        buffer.copy_to_gpu(1)


def test_without_numpy_np_says_why():
    buffer = make(4, device="cpu", with_numpy=False)
    with pytest.raises(AttributeError, match="with_numpy=False"):
        _ = buffer.np
    assert buffer.cpu.shape == (4,)


def test_an_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such"):
        _ = make(4, device="cpu").no_such


@pytest.mark.parametrize("dtype", ML_DTYPES, ids=str)
def test_np_of_a_dtype_that_numpy_lacks_is_an_ml_dtypes_view(dtype):
    pytest.importorskip("ml_dtypes")
    buffer = make(4, 2, dtype=dtype, device="cpu")
    buffer.np[1, 1] = 1.5
    assert str(buffer.np.dtype) == str(dtype).removeprefix("torch.")
    assert buffer.cpu.float().tolist() == [[0, 0], [0, 1.5], [0, 0], [0, 0]]


def test_a_dtype_that_numpy_lacks_without_ml_dtypes_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ValueError, match=r"with_numpy=False.*ml_dtypes"):
        make(4, dtype=torch.bfloat16, device="cpu")
    make(4, dtype=torch.bfloat16, device="cpu", with_numpy=False)


def test_an_unknown_policy_is_named():
    with pytest.raises(ValueError, match="'sometimes'"):
        make(4, device="cpu", reuse="sometimes")


def test_tensors_made_inside_inference_mode_are_ordinary_ones():
    with torch.inference_mode():
        buffer = make(4, device="cpu")
    assert not buffer.cpu.is_inference()
    assert not buffer.gpu.is_inference()
    buffer.gpu.add_(1)


def test_a_meta_device_works():
    buffer = make(4, 2, device="meta")
    assert buffer.copy_to_gpu(3).shape == (3, 2)
    assert buffer.copy_to_gpu(3).device.type == "meta"


def test_the_repr_says_shape_dtype_and_place():
    assert repr(make(4, 2, device="cpu")) == (
        "CpuGpuBuffer(4, 2, dtype=torch.int32, device='cpu', pin_memory=False)"
    )


# -- copies, wherever the device is -------------------------------------------------------


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    return request.param


def test_copies_the_first_n_rows_and_no_more(device):
    buffer = make(5, 3, device=device)
    buffer.np[:] = np.arange(15).reshape(5, 3)
    view = buffer.copy_to_gpu(2)
    assert view.shape == (2, 3)
    assert view.data_ptr() == buffer.gpu.data_ptr()
    assert buffer.gpu.cpu().tolist() == [[0, 1, 2], [3, 4, 5], [0, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_copies_all_by_default_and_returns_gpu_itself(device):
    buffer = make(4, device=device)
    buffer.np[:] = 9
    assert buffer.copy_to_gpu() is buffer.gpu
    assert buffer.copy_to_gpu(4) is buffer.gpu
    assert buffer.gpu.cpu().tolist() == [9] * 4


def test_copies_back(device):
    buffer = make(4, device=device)
    buffer.gpu.fill_(3)
    buffer.copy_to_cpu(2)
    assert buffer.np.tolist() == [3, 3, 0, 0]
    assert buffer.copy_to_cpu().shape == (4,)
    assert buffer.cpu.tolist() == [3] * 4


@pytest.mark.parametrize("n", [-1, 5, 2**40])
def test_an_n_outside_the_buffer_is_an_error_with_both_numbers(device, n):
    buffer = make(4, device=device)
    for copy in (buffer.copy_to_gpu, buffer.copy_to_cpu):
        with pytest.raises(ValueError, match=rf"0\.\.4.*got {n}"):
            copy(n)


@pytest.mark.parametrize("n", [1.5, "2", object()])
def test_an_n_that_is_no_integer_is_a_type_error(device, n):
    with pytest.raises((TypeError, RuntimeError)):
        make(4, device=device).copy_to_gpu(n)


def test_n_may_be_a_numpy_integer(device):
    assert make(4, device=device).copy_to_gpu(np.int64(3)).shape == (3,)


def test_views_that_are_held_do_not_change(device):
    buffer = make(8, device=device)
    first = buffer.copy_to_gpu(3)
    second = buffer.copy_to_gpu(3)
    third = buffer.copy_to_gpu(5)
    assert first.shape == second.shape == (3,)
    assert first is not second
    assert third.shape == (5,)


def test_a_view_that_was_changed_is_not_handed_out_again(device):
    buffer = make(8, device=device)
    view = buffer.copy_to_gpu(3)
    view.unsqueeze_(0)
    del view
    assert buffer.copy_to_gpu(3).shape == (3,)
    view = buffer.copy_to_gpu(3)
    view.requires_grad = False
    alias = view.detach()
    del view
    assert buffer.copy_to_gpu(3).data_ptr() == alias.data_ptr()


def test_a_copy_counts_as_a_change_of_the_tensor(device):
    buffer = make(4, device=device)
    before = buffer.gpu._version
    view = buffer.copy_to_gpu(2)
    assert buffer.gpu._version > before
    assert view._version == buffer.gpu._version


# -- the races ----------------------------------------------------------------------------


def stage_steps(make_buffer, seed: int, steps: int) -> int:
    """Write, stage and log random prefixes; return how many steps the device saw wrong."""
    rng = np.random.default_rng(seed)
    rows = 64
    buffer = make_buffer(rows, dtype=torch.int32, device="cuda")
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    log = torch.zeros(100, rows, dtype=torch.int32, device="cuda")
    wrong = 0
    meant: list[np.ndarray] = []
    for step in range(steps):
        n = int(rng.integers(1, rows + 1))
        buffer.np[:n] = rng.integers(0, 2**31, n)
        stream = streams[int(rng.integers(2))] if step % 7 == 0 else streams[0]
        stream.wait_stream(streams[0])  # the last step's reader: ordering it is the caller's
        with torch.cuda.stream(stream):
            view = buffer.copy_to_gpu(n)
            log[step % 100, :n].copy_(view)
        streams[0].wait_stream(stream)
        meant.append(buffer.np[:n].copy())
        buffer.np[:] = -1  # the next step's preparation
        if len(meant) == 100 or step == steps - 1:
            seen = log.cpu().numpy()
            wrong += sum(
                not np.array_equal(seen[i, : len(row)], row) for i, row in enumerate(meant)
            )
            meant.clear()
    return wrong


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ten_thousand_random_steps_leave_no_wrong_byte(schedule, seed):
    with sim.policy(schedule, seed=seed):
        assert stage_steps(CpuGpuBuffer, seed, 10_000) == 0


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_same_steps_with_a_plain_buffer_go_wrong(schedule, seed):
    with sim.policy(schedule, seed=seed):
        assert stage_steps(PlainBuffer, seed, 200) > 0


@pytest.mark.cuda
def test_steps_on_the_device_at_hand_leave_no_wrong_byte(seed):
    assert stage_steps(CpuGpuBuffer, seed, 500) == 0


@pytest.mark.sim
@pytest.mark.cuda
def test_the_host_array_may_be_overwritten_through_a_view_taken_earlier():
    buffer = make(4)
    early = buffer.np
    with sim.policy("lazy"):
        early[:] = 1
        buffer.copy_to_gpu()
        early[:] = 2
        assert buffer.gpu.cpu().tolist() == [1] * 4


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("name", ["np", "cpu"])
def test_a_read_behind_a_copy_to_the_host_waits_for_it(name):
    buffer = make(4)
    with sim.policy("lazy"):
        buffer.gpu.fill_(6)
        buffer.copy_to_cpu()
        assert sim.pending() > 0
        assert getattr(buffer, name).tolist() == [6] * 4


@pytest.mark.sim
@pytest.mark.cuda
def test_a_plain_read_behind_a_copy_to_the_host_is_stale():
    buffer = PlainBuffer(4, dtype=torch.int32, device="cuda")
    with sim.policy("lazy"):
        buffer.gpu.fill_(6)
        buffer.copy_to_cpu(4)
        assert buffer.np.tolist() == [0] * 4


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_copy_to_the_device_behind_one_to_the_host_sends_the_devices_bytes(schedule, seed):
    buffer = make(4)
    with sim.policy(schedule, seed=seed):
        buffer.gpu.fill_(8)
        buffer.copy_to_cpu()
        buffer.copy_to_gpu()
        assert buffer.gpu.cpu().tolist() == [8] * 4
        assert buffer.np.tolist() == [8] * 4


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_copies_on_two_streams_keep_their_order(schedule, seed):
    buffer = make(256)
    side = torch.cuda.Stream()
    with sim.policy(schedule, seed=seed):
        for step in range(50):
            buffer.np[:] = step
            buffer.copy_to_gpu(stream=side if step % 2 else None)
        torch.cuda.synchronize()
        assert buffer.gpu.cpu().tolist() == [49] * 256


@pytest.mark.sim
@pytest.mark.cuda
def test_more_in_flight_than_the_ring_holds_waits_and_loses_nothing():
    rows = 256 * 1024  # 1 MiB a copy: two fill the ring
    buffer = make(rows)
    log = torch.zeros(8, rows, dtype=torch.int32, device="cuda")
    with sim.policy("lazy"):
        for step in range(8):
            buffer.np[:] = step
            buffer.copy_to_gpu()
            log[step].copy_(buffer.gpu)
        seen = log.cpu()
    assert [row.unique().tolist() for row in seen] == [[step] for step in range(8)]


@pytest.mark.sim
@pytest.mark.cuda
def test_a_buffer_dropped_in_flight_keeps_its_memory_until_done():
    with sim.policy("lazy"):
        sim.clear_reports()
        buffer = make(1024)
        buffer.gpu.fill_(1)
        buffer.copy_to_cpu()
        del buffer
        gc.collect()
        # Whoever gets that memory next must not see the copy arrive in it.
        others = [torch.zeros(1024, dtype=torch.int32, pin_memory=True) for _ in range(8)]
        torch.cuda.synchronize()
        assert not any(other.any() for other in others)
        assert sim.reports() == []


@pytest.mark.sim
@pytest.mark.cuda
def test_an_upload_survives_its_buffer():
    with sim.policy("lazy"):
        buffer = make(1024)
        target = buffer.gpu
        buffer.np[:] = 3
        buffer.copy_to_gpu()
        del buffer
        gc.collect()
        assert target.cpu().unique().tolist() == [3]


# -- streams, devices, threads, processes -------------------------------------------------


@pytest.mark.sim
@pytest.mark.cuda
def test_runs_on_the_current_stream_or_on_the_one_given():
    buffer = make(4)
    side = torch.cuda.Stream()
    for options, current in (({"stream": side}, None), ({}, side)):
        with torch.cuda.stream(current), sim.record() as calls:
            buffer.copy_to_gpu(**options)
        streams = {call.stream for call in calls if call.name == "cudaMemcpyAsync"}
        assert streams == {side.cuda_stream}


@pytest.mark.sim
@pytest.mark.cuda
def test_another_current_device_works_and_stays():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    buffer = make(4, device="cuda:1")
    torch.cuda.set_device(0)
    buffer.np[:] = 4
    buffer.copy_to_gpu()
    assert torch.cuda.current_device() == 0
    assert buffer.gpu.cpu().tolist() == [4] * 4


@pytest.mark.sim
@pytest.mark.cuda
def test_a_stream_of_another_device_is_an_error():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    with pytest.raises(ValueError, match="cuda:0"):
        make(4, device="cuda:1").copy_to_gpu(stream=torch.cuda.Stream(device=0))


@pytest.mark.cuda
def test_a_stream_argument_that_is_no_stream_is_a_type_error():
    with pytest.raises(TypeError, match="stream must be"):
        make(4).copy_to_gpu(stream=3)


@pytest.mark.cuda
def test_two_threads_use_two_buffers(seed):
    failures: list[int] = []

    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            buffer = make(128)
            for step in range(200):
                buffer.np[:] = number * 1000 + step
                view = buffer.copy_to_gpu()
                buffer.np[:] = -1
                if view.cpu().unique().tolist() != [number * 1000 + step]:
                    failures.append(step)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.cuda
def test_one_buffer_from_two_threads_stays_whole(seed):
    buffer = make(512)

    def work() -> None:
        for _ in range(200):
            buffer.copy_to_gpu(256)
            buffer.copy_to_cpu(256)
            _ = buffer.np[0]

    buffer.np[:] = 5
    buffer.copy_to_gpu()
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert buffer.np.tolist() == [5] * 512
    assert buffer.gpu.cpu().tolist() == [5] * 512


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_copy_on_a_stream_that_captures_is_refused_and_the_next_one_works():
    buffer = make(4)
    buffer.copy_to_gpu()
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="captures a CUDA graph"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            buffer.copy_to_gpu()
    torch.cuda.synchronize()
    buffer.np[:] = 3
    buffer.copy_to_gpu()
    assert buffer.gpu.cpu().tolist() == [3] * 4


@pytest.mark.cuda
def test_another_threads_capture_in_global_mode_does_not_notice():
    buffer = make(64 * 1024)  # several fill the ring: it queries events, and grows
    source, target = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
    failures: list[BaseException] = []

    def stage() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(50):
                    buffer.copy_to_gpu()
        except BaseException as error:
            failures.append(error)

    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        target.copy_(source)
        thread = threading.Thread(target=stage)
        thread.start()
        thread.join()
    assert not failures
    graph.replay()
    assert target.cpu().tolist() == [1] * 8


@pytest.mark.cuda
def test_a_forked_child_is_told_so():
    code = (
        "import os, torch\n"
        "from staging import CpuGpuBuffer\n"
        "buffer = CpuGpuBuffer(4, dtype=torch.int32, device='cuda')\n"
        "buffer.copy_to_gpu()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n"
        "        buffer.copy_to_gpu()\n"
        "    except RuntimeError as error:\n"
        "        os._exit(0 if 'forked' in str(error) else 1)\n"
        "    os._exit(2)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "0"


# -- cost, in calls -----------------------------------------------------------------------

ALLOWED = {"cudaMemcpyAsync", "cudaEventRecord", "cudaStreamIsCapturing", "cudaGetDevice"}
QUERY = {"cudaEventQuery", "cudaThreadExchangeStreamCaptureMode"}


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("n", [1, 64, 1024])
def test_a_copy_is_one_transfer_and_one_event_record(n):
    buffer = make(1024)
    calls = 1000
    with sim.policy("eager"):
        for _ in range(10 * calls):  # the ring also gives up what earlier tests needed
            buffer.copy_to_gpu(n)
        with sim.count() as counts:
            for _ in range(calls):
                buffer.copy_to_gpu(n)
    used = {name: count for name, count in counts.items() if count}
    assert used["cudaMemcpyAsync"] == calls
    assert used["cudaEventRecord"] == calls
    assert used.get("cudaStreamIsCapturing", 0) <= calls
    assert used.get("cudaGetDevice", 0) <= calls
    assert used.get("cudaEventQuery", 0) <= calls / 10
    assert set(used) <= ALLOWED | QUERY


@pytest.mark.sim
@pytest.mark.cuda
def test_no_rows_cost_no_runtime_call():
    buffer = make(16)
    with sim.count() as counts:
        buffer.copy_to_gpu(0)
        buffer.copy_to_cpu(0)
    assert not any(counts.values())


@pytest.mark.sim
@pytest.mark.cuda
def test_reading_np_with_nothing_in_flight_costs_no_runtime_call():
    buffer = make(16)
    buffer.copy_to_cpu()
    _ = buffer.np
    with sim.count() as counts:
        _ = buffer.np, buffer.cpu
    assert not any(counts.values())
    assert "np" in vars(buffer)
