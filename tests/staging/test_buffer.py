"""CpuGpuBuffer: every case that users of the plain pinned buffer report, and its contract."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from external_streams import external_stream  # noqa: E402

import staging  # noqa: E402
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


@pytest.fixture
def upload_limit():
    before = staging.upload_stats().limit_nbytes if torch.cuda.is_available() else 0
    yield staging.set_upload_limit
    staging.set_upload_limit(before)


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
@pytest.mark.parametrize("rows", [16 * 1024, 256 * 1024], ids=["in the ring", "in blocks"])
def test_more_in_flight_than_the_ring_holds_waits_and_loses_nothing(rows, upload_limit):
    upload_limit(2 * 4 * rows)
    buffer = make(rows)
    log = torch.zeros(8, rows, dtype=torch.int32, device="cuda")
    with sim.policy("lazy"):
        for step in range(8):
            buffer.np[:] = step
            buffer.copy_to_gpu()
            log[step].copy_(buffer.gpu)
            assert buffer.stats().slots_in_flight <= max(2, 256 // (4 * rows // 1024))
        assert buffer.stats().waits > 0
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
def test_a_ring_that_fills_up_does_not_disturb_another_threads_capture():
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
def test_each_copy_in_flight_has_an_event_of_its_own():
    buffer, stream = make(8), torch.cuda.Stream()
    torch.cuda.synchronize()
    with sim.policy("lazy"), sim.hold(stream.cuda_stream):
        buffer.copy_to_gpu(stream=stream)
        staging.extension._C.trim(0)  # leaves no idle event, nor that of the buffer's fill
        before = sim.objects().events
        for _ in range(20):
            buffer.copy_to_gpu(stream=stream)
        assert sim.objects().events == before + 20


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
    assert type(buffer) is CpuGpuBuffer


# -- the other policies -------------------------------------------------------------------


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_under_wait_reading_np_waits_until_the_transfer_has_read_it(schedule, seed):
    buffer = make(64, reuse="wait")
    log = torch.zeros(50, 64, dtype=torch.int32, device="cuda")
    with sim.policy(schedule, seed=seed):
        for step in range(50):
            buffer.np[:] = step
            log[step].copy_(buffer.copy_to_gpu())
        assert [row.unique().tolist() for row in log.cpu()] == [[step] for step in range(50)]


@pytest.mark.sim
@pytest.mark.cuda
def test_under_wait_no_host_copy_is_made():
    buffer = make(64, reuse="wait")
    buffer.copy_to_gpu()
    assert buffer.stats().slots_in_flight == 0
    with sim.record() as calls:
        buffer.copy_to_gpu()
    assert [call.name for call in calls if call.kind] == ["cudaMemcpyAsync"]


@pytest.mark.sim
@pytest.mark.cuda
def test_under_wait_the_guard_is_gone_once_nothing_is_in_flight():
    buffer = make(64, reuse="wait")
    with sim.policy("lazy"):
        buffer.copy_to_gpu()
        assert type(buffer) is not CpuGpuBuffer
        assert type(buffer).__name__ == "CpuGpuBuffer"
        assert isinstance(buffer, CpuGpuBuffer)
        _ = buffer.cpu
        assert type(buffer) is CpuGpuBuffer


@pytest.mark.sim
@pytest.mark.cuda
def test_unchecked_is_the_plain_buffer_with_its_race():
    buffer = make(4, reuse="unchecked")
    with sim.policy("lazy"):
        buffer.np[:] = 1
        buffer.copy_to_gpu()
        buffer.np[:] = 2
        assert buffer.gpu.cpu().tolist() == [2] * 4
        buffer.gpu.fill_(3)
        buffer.copy_to_cpu()
        assert buffer.np.tolist() == [2] * 4
        assert type(buffer) is CpuGpuBuffer


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("reuse", ["wait", "unchecked"])
def test_a_host_array_in_flight_is_kept_whatever_the_policy(reuse):
    with sim.policy("lazy"):
        sim.clear_reports()
        buffer = make(1024, reuse=reuse)
        target = buffer.gpu
        buffer.np[:] = 3
        buffer.copy_to_gpu()
        del buffer
        gc.collect()
        others = [torch.full((1024,), 9, dtype=torch.int32).pin_memory() for _ in range(8)]
        assert target.cpu().unique().tolist() == [3]
        del others
        assert sim.reports() == []


@pytest.mark.cuda
@pytest.mark.parametrize("reuse", ["wait", "unchecked"])
def test_only_snapshots_do_without_pinned_memory(reuse):
    with pytest.raises(ValueError, match=r"pin_memory=True"):
        make(4, reuse=reuse, pin_memory=False)
    assert make(4, device="cpu", reuse=reuse).copy_to_gpu().shape == (4,)


@pytest.mark.sim
@pytest.mark.cuda
def test_an_unpinned_source_is_a_snapshot_and_still_asynchronous():
    buffer = make(64, pin_memory=False)
    with sim.policy("lazy"):
        buffer.np[:] = 1
        with sim.count() as calls:
            buffer.copy_to_gpu()
        buffer.np[:] = 2
        assert sim.pending() > 0
        assert calls["cudaStreamSynchronize"] == calls["cudaEventSynchronize"] == 0
        assert buffer.gpu.cpu().unique().tolist() == [1]


@pytest.mark.cuda
def test_a_large_snapshot_hints_once_at_what_is_cheaper():
    code = (
        "import warnings, torch, staging\n"
        "b = staging.CpuGpuBuffer(1 << 19, dtype=torch.int32, device='cuda')\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    b.copy_to_gpu(1 << 18); print(len(seen))\n"
        "    b.copy_to_gpu(); b.copy_to_gpu(); print(len(seen))\n"
        "print(seen[0].category.__name__, 'fill' in str(seen[0].message), seen[0].filename)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.split() == ["0", "1", "StagingHint", "True", "<string>"]


# -- fill ---------------------------------------------------------------------------------


def test_a_fill_writes_the_first_n_rows(device):
    buffer = make(5, 3, device=device)
    with buffer.fill(2) as rows:
        assert rows.shape == (2, 3)
        assert rows.dtype == np.int32
        rows[:] = [[1, 2, 3], [4, 5, 6]]
    assert buffer.gpu.cpu().tolist() == [[1, 2, 3], [4, 5, 6], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert not buffer.np.any()


@pytest.mark.parametrize("size", [(0,), (4,), (3, 0), ()])
def test_a_fill_of_any_shape(device, size):
    buffer = CpuGpuBuffer(size, dtype=torch.int64, device=device)
    with buffer.fill() as rows:
        rows[...] = 7
    assert buffer.gpu.cpu().tolist() == torch.full(size, 7).tolist()


def test_a_fill_without_numpy_is_a_tensor(device):
    buffer = make(4, 2, dtype=torch.bfloat16, device=device, with_numpy=False)
    with buffer.fill(3) as rows:
        assert rows.dtype == torch.bfloat16
        rows.fill_(1.5)
    assert buffer.gpu.cpu().tolist() == [[1.5, 1.5]] * 3 + [[0, 0]]


def test_a_fill_that_raises_copies_nothing(device):
    buffer = make(4, device=device)

    def fill() -> None:
        with buffer.fill() as rows:
            rows[:] = 9
            raise KeyError

    with pytest.raises(KeyError):
        fill()
    assert not buffer.gpu.cpu().any()
    assert buffer.stats().slots_in_flight == 0
    assert buffer.stats().copies_to_gpu == 0


def test_a_fill_is_entered_once(device):
    fill = make(4, device=device).fill()
    with fill as rows:
        rows[:] = 1
    with pytest.raises(RuntimeError, match="entered before"), fill:
        pass


@pytest.mark.parametrize("n", [-1, 5])
def test_a_fill_outside_the_buffer_is_an_error(device, n):
    with pytest.raises(ValueError, match=rf"0\.\.4.*got {n}"), make(4, device=device).fill(n):
        pass


def test_the_array_of_a_fill_is_read_only_behind_it_and_stays_readable(device):
    buffer = make(4, device=device)
    with buffer.fill() as rows:
        rows[:] = 5
    with pytest.raises(ValueError, match="read-only"):
        rows[:] = 6
    for step in range(100):  # others use the memory that the copies gave back
        buffer.np[:] = step
        buffer.copy_to_gpu()
    assert rows.tolist() == [5] * 4


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_fills_and_copies_of_one_buffer_keep_their_order(schedule, seed):
    buffer = make(16)
    side = torch.cuda.Stream()
    log = torch.zeros(60, 16, dtype=torch.int32, device="cuda")
    with sim.policy(schedule, seed=seed):
        for step in range(60):
            stream = side if step % 3 else torch.cuda.current_stream()
            if step % 2:
                with buffer.fill(stream=stream) as rows:
                    rows[:] = step
            else:
                buffer.np[:] = step
                buffer.copy_to_gpu(stream=stream)
                buffer.np[:] = -1
            side.wait_stream(torch.cuda.current_stream())
            torch.cuda.current_stream().wait_stream(side)
            log[step].copy_(buffer.gpu)
            side.wait_stream(torch.cuda.current_stream())
        assert [row.unique().tolist() for row in log.cpu()] == [[step] for step in range(60)]


@pytest.mark.sim
@pytest.mark.cuda
def test_a_fill_copies_its_bytes_once():
    buffer = make(1024)
    with buffer.fill() as rows:
        rows[:] = 1
    with sim.record() as calls:
        with buffer.fill() as rows:
            rows[:] = 2
    assert [call.name for call in calls if call.kind] == ["cudaMemcpyAsync"]


@pytest.mark.sim
@pytest.mark.cuda
def test_a_fill_left_open_holds_up_nobody(upload_limit):
    upload_limit(0)  # the least
    buffer, other = make(16 * 1024), make(16 * 1024)
    with sim.policy("lazy"), buffer.fill() as rows:
        for step in range(50):
            other.np[:] = step
            other.copy_to_gpu()
        rows[:] = 1
    assert other.gpu.cpu().unique().tolist() == [49]
    assert buffer.gpu.cpu().unique().tolist() == [1]


# -- capture ------------------------------------------------------------------------------


def capture(buffer: CpuGpuBuffer, out: torch.Tensor) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.copy_(buffer.copy_to_gpu())
    return graph


@pytest.mark.cuda
@pytest.mark.parametrize("reuse", ["snapshot", "wait"])
def test_a_hundred_rounds_of_refill_and_replay_give_each_its_own_bytes(reuse):
    buffer = make(256, reuse=reuse)
    seen = torch.zeros(100, 256, dtype=torch.int32, device="cuda")
    out = torch.zeros(256, dtype=torch.int32, device="cuda")
    graph = capture(buffer, out)
    for step in range(100):
        buffer.np[:] = step
        buffer.refill()
        graph.replay()
        buffer.np[:] = -1
        seen[step].copy_(out)
    assert [row.unique().tolist() for row in seen.cpu()] == [[step] for step in range(100)]


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rounds_of_refill_and_replay_under_every_schedule(schedule, seed):
    with sim.policy(schedule, seed=seed):
        test_a_hundred_rounds_of_refill_and_replay_give_each_its_own_bytes("snapshot")


@pytest.mark.sim
@pytest.mark.cuda
def test_the_rounds_synchronize_nothing():
    buffer = make(16)
    out = torch.zeros(16, dtype=torch.int32, device="cuda")
    graph = capture(buffer, out)
    with sim.count() as calls:
        for step in range(10):
            buffer.np[:] = step
            buffer.refill()
            graph.replay()
    for name in ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"):
        assert calls[name] == 0


@pytest.mark.cuda
def test_before_a_refill_a_replay_has_the_bytes_of_the_capture():
    buffer = make(4)
    out = torch.zeros(4, dtype=torch.int32, device="cuda")
    buffer.np[:] = 1
    graph = capture(buffer, out)
    buffer.np[:] = 2
    graph.replay()
    assert out.cpu().tolist() == [1] * 4


@pytest.mark.cuda
def test_an_unpinned_source_can_be_captured():
    buffer = make(4, pin_memory=False)
    out = torch.zeros(4, dtype=torch.int32, device="cuda")
    graph = capture(buffer, out)
    buffer.np[:] = 3
    buffer.refill()
    graph.replay()
    assert out.cpu().tolist() == [3] * 4


@pytest.mark.sim
@pytest.mark.cuda
def test_a_buffer_dropped_before_the_replay_keeps_its_memory():
    with sim.policy("lazy"):
        sim.clear_reports()
        buffer = make(1024)
        buffer.np[:] = 7
        out = torch.zeros(1024, dtype=torch.int32, device="cuda")
        graph = capture(buffer, out)
        del buffer
        gc.collect()
        others = [make(1024) for _ in range(8)]
        for other in others:
            other.np[:] = 9
            other.copy_to_gpu()
        graph.replay()
        assert out.cpu().unique().tolist() == [7]
        assert sim.reports() == []


@pytest.mark.sim
@pytest.mark.cuda
def test_a_graph_that_is_gone_gives_its_memory_back():
    gc.collect()
    staging.pinned_trim()  # what earlier graphs held
    in_use = staging.pinned_stats().in_use
    buffer = make(1024)
    out = torch.zeros(1024, dtype=torch.int32, device="cuda")
    graph = capture(buffer, out)
    graph.replay()
    torch.cuda.synchronize()
    assert staging.pinned_stats().in_use > in_use
    del buffer
    graph.reset()
    del graph
    gc.collect()
    sim.run_all()
    deadline = time.monotonic() + 20  # the driver tells when it gets round to it
    while staging.pinned_stats().in_use > in_use and time.monotonic() < deadline:
        staging.pinned_trim()
        time.sleep(0.001)
    assert staging.pinned_stats().in_use <= in_use  # fewer, where older graphs' came late


@pytest.mark.cuda
def test_two_graphs_of_one_buffer_read_the_same_refill():
    buffer = make(4)
    first, second = (torch.zeros(4, dtype=torch.int32, device="cuda") for _ in range(2))
    graphs = capture(buffer, first), capture(buffer, second)
    buffer.np[:] = 5
    buffer.refill()
    for graph in graphs:
        graph.replay()
    assert first.cpu().tolist() == second.cpu().tolist() == [5] * 4
    assert buffer.stats().captured == 2


@pytest.mark.cuda
@pytest.mark.parametrize("call", ["copy_to_cpu", "fetch", "fill", "refill"])
def test_what_a_graph_cannot_replay_safely_raises(call):
    buffer = make(4)
    buffer.copy_to_gpu()
    attempt = getattr(buffer, call) if call != "fill" else buffer.fill().__enter__
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        buffer.gpu.fill_(1)
        with pytest.raises(RuntimeError, match=r"cannot be captured|cannot run on a stream"):
            attempt()
    graph.replay()
    assert buffer.gpu.cpu().tolist() == [1] * 4  # the capture was not broken


@pytest.mark.cuda
def test_a_refill_without_a_capture_is_an_error():
    with pytest.raises(RuntimeError, match="nothing to fill"):
        make(4).refill()
    with pytest.raises(RuntimeError, match="on cpu"):
        make(4, device="cpu").refill()


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_copy_behind_a_replay_on_another_stream_comes_behind_it(schedule, seed):
    buffer = make(64)
    out = torch.zeros(64, dtype=torch.int32, device="cuda")
    side = torch.cuda.Stream()
    graph = capture(buffer, out)
    with sim.policy(schedule, seed=seed):
        for step in range(20):
            buffer.np[:] = -step
            buffer.refill()
            graph.replay()
            buffer.np[:] = step
            buffer.copy_to_gpu(stream=side)
            assert buffer.fetch(stream=side).result().unique().tolist() == [step]


@pytest.mark.cuda
@pytest.mark.parametrize("reuse", ["snapshot", "wait"])
def test_another_threads_capture_in_global_mode_does_not_notice(reuse):
    """Stages, waits, pins and fetches while another thread captures."""
    buffer = make(256, reuse=reuse)
    capturing, done = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def capture_slowly() -> None:
        try:
            stream = torch.cuda.Stream()
            x = torch.zeros(16, device="cuda")
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="global"):
                x.fill_(1)
                capturing.set()
                assert done.wait(60)
                x.fill_(2)
            graph.replay()
            torch.cuda.synchronize()
            assert x.cpu().tolist() == [2.0] * 16
        except BaseException as error:
            failures.append(error)
        finally:
            capturing.set()

    thread = threading.Thread(target=capture_slowly)
    thread.start()
    assert capturing.wait(60)
    try:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for step in range(50):
                buffer.np[:] = step
                buffer.copy_to_gpu()
                with buffer.fill(128) as rows:
                    rows[:] = step
                buffer.copy_to_cpu()
                assert buffer.np[0] == step
                assert buffer.fetch().result()[0] == step
            buffer.stats()
            staging.pinned_empty(1 << 20, dtype=torch.uint8)  # pins
    finally:
        done.set()
        thread.join()
    assert not failures, failures


# -- several devices ----------------------------------------------------------------------


def run_over_two_devices(code: str, *, policy: str = "lazy") -> str:
    from staging.sim.cli import environment

    env = environment(policy=policy, devices=2)
    result = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        env=env,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.sim
@pytest.mark.cuda
def test_work_on_the_second_device_makes_no_context_on_the_first():
    code = """
import asyncio, threading, torch, staging
from staging import CpuGpuBuffer, sim

def work():
    buffer = CpuGpuBuffer(64, dtype=torch.int32, device="cuda:1")
    for step in range(20):
        buffer.np[:] = step
        buffer.copy_to_gpu()
        with buffer.fill(32) as rows:
            rows[:] = step
        buffer.copy_to_cpu()
        assert buffer.np[0] == step
        fetch = buffer.fetch()
        assert fetch.result()[0] == step
        assert torch.cuda.current_device() == 0
    async def wait():
        return (await buffer.fetch())[0]
    assert asyncio.run(wait()) == 19
    pinned = staging.pinned_zeros(64, dtype=torch.int32, device=1)
    staging.copy_slice(buffer.gpu, pinned, 64)
    staging.copy_slice(pinned, buffer.gpu, 64)
    staging.copy_slice(torch.zeros(64, dtype=torch.int32), buffer.gpu, 64, snapshot=True)
    staging.copy_slices([(pinned[i : i + 2], buffer.gpu[2 * i :], 2) for i in range(8)])
    staging.tensor_digest(buffer.gpu)
    staging.tensor_data(buffer.gpu)
    buffer.stats()
    del buffer
    staging.pinned_trim()
    staging.extension._C.trim(1)
    assert torch.cuda.current_device() == 0

work()
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(sim.context_active(0), sim.context_active(1), sim.reports())
"""
    assert run_over_two_devices(code).strip() == "False True []"


@pytest.mark.sim
@pytest.mark.cuda
def test_two_devices_from_one_thread_keep_the_current_device():
    code = """
import torch
from staging import CpuGpuBuffer
buffers = [CpuGpuBuffer(64, dtype=torch.int32, device=f"cuda:{i}") for i in range(2)]
for current in (0, 1):
    torch.cuda.set_device(current)
    for step in range(10):
        for i, buffer in enumerate(buffers):
            buffer.np[:] = 10 * step + i
            buffer.copy_to_gpu()
            buffer.np[:] = -1
            assert torch.cuda.current_device() == current
        for i, buffer in enumerate(buffers):
            assert buffer.gpu.cpu().unique().tolist() == [10 * step + i]
try:
    buffers[0].copy_to_gpu(stream=torch.cuda.Stream(device=1))
except ValueError as error:
    print("cuda:0" in str(error) and "cuda:1" in str(error))
"""
    assert run_over_two_devices(code).strip() == "True"


# -- what the caller's PyTorch is set to --------------------------------------------------


@pytest.mark.cuda
def test_a_default_device_disturbs_nothing():
    torch.set_default_device("cuda")
    try:
        for dtype in (torch.int32, torch.bfloat16, torch.bool):
            buffer = make(4, dtype=dtype)
            assert buffer.cpu.device.type == "cpu"
            with buffer.fill() as rows:
                rows[:] = 1
            assert buffer.fetch().result().device.type == "cpu"
            assert make(0, dtype=dtype).np.shape == (0,)
            assert make(4, dtype=torch.int32, with_numpy=False).fetch(0).result().shape == (0,)
    finally:
        torch.set_default_device(None)


@pytest.mark.cuda
def test_inference_mode_and_autocast_disturb_nothing():
    buffer = make(4, dtype=torch.float32)
    with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
        buffer.np[:] = 1.5
        view = buffer.copy_to_gpu(2)
        result = buffer.fetch().result()
        buffer.copy_to_cpu()
    assert view.dtype == result.dtype == torch.float32
    assert not view.is_inference()
    assert not result.is_inference()
    view.fill_(2.5)
    assert buffer.gpu.cpu().tolist() == [2.5, 2.5, 0.0, 0.0]


def test_a_compiled_caller_is_not_disturbed(device):
    buffer = make(4, dtype=torch.float32, device=device)

    @torch.compile(backend="aot_eager")
    def step(flag: bool) -> torch.Tensor:
        return buffer.copy_to_gpu(3 if flag else 4).clone()

    for value in range(3):
        buffer.np[:] = value
        assert step(True).cpu().tolist() == [value] * 3
        assert step(False).cpu().tolist() == [value] * 4


# -- lifetimes, processes, errors ---------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize(
    "action",
    [
        "copy_to_gpu()",
        "copy_to_cpu()",
        "np",
        "fill().__enter__()",
        "fetch()",
        "stats()",
        "refill()",
    ],
)  # fmt: skip
def test_a_forked_child_is_told_so_whatever_it_does(action):
    code = f"""
import gc, os, torch
from staging import CpuGpuBuffer
buffer = CpuGpuBuffer(4, dtype=torch.int32, device='cuda')
buffer.copy_to_gpu()
buffer.copy_to_cpu()
pid = os.fork()
if pid == 0:
    try:
        buffer.{action}
    except RuntimeError as error:
        del buffer
        gc.collect()  # and dropping it makes no call
        os._exit(0 if 'forked' in str(error) else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "0"


@pytest.mark.sim
@pytest.mark.cuda
def test_a_signal_ends_a_wait_and_the_guard_stays():
    import signal

    buffer = make(4)
    stream = torch.cuda.Stream()

    def raise_it(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, raise_it)
    try:
        with sim.policy("lazy"):
            with sim.hold(stream.cuda_stream):
                buffer.copy_to_cpu(stream=stream)
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                with pytest.raises(KeyboardInterrupt):
                    _ = buffer.np
                assert type(buffer) is not CpuGpuBuffer
            assert buffer.np.tolist() == [0] * 4
            assert type(buffer) is CpuGpuBuffer
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.sim
@pytest.mark.cuda
def test_a_stalled_stream_does_not_hold_up_another():
    stalled, other = torch.cuda.Stream(), torch.cuda.Stream()
    first, second = make(1024), make(1024)
    with sim.policy("lazy"), sim.hold(stalled.cuda_stream):
        for step in range(300):
            first.copy_to_gpu(stream=stalled)  # 1.2 MB that never run
            second.np[:] = step
            second.copy_to_gpu(stream=other)
            if step % 50 == 0:
                assert second.fetch(stream=other).result().unique().tolist() == [step]
        assert first.stats().waits == second.stats().waits == 0


@pytest.mark.sim
@pytest.mark.cuda
def test_slots_cost_pinned_memory_for_what_is_copied_and_not_for_what_could_be():
    """Thirty buffers, one of 32 MB, of which a step copies 64 KB in all."""
    code = """
import torch, staging
from staging import CpuGpuBuffer
buffers = [CpuGpuBuffer(1024, dtype=torch.int32, device="cuda") for _ in range(29)]
table = CpuGpuBuffer(4096, 2048, dtype=torch.int32, device="cuda")
before = staging.pinned_stats().allocated
for step in range(200):
    for buffer in buffers:
        buffer.copy_to_gpu(480)
    table.copy_to_gpu(1)
    if step % 2:
        torch.cuda.current_stream().synchronize()
stats = staging.upload_stats()
assert 29 * 480 * 4 + 8192 > 62_000
print(stats.capacity_nbytes, staging.pinned_stats().allocated - before)
"""
    for policy in ("lazy", "eager"):
        from staging.sim.cli import environment

        result = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
            env=environment(policy=policy),
        )
        slots, pinned = map(int, result.stdout.split())
        assert 64_000 < slots < 4_000_000, policy
        assert pinned < 4_000_000, policy


@pytest.mark.cuda
def test_the_host_array_costs_a_page_more_at_most():
    nbytes = 5_000_000  # the next power of two is 8,388,608
    before = staging.pinned_stats()
    buffer = make(nbytes // 4)
    after = staging.pinned_stats()
    assert nbytes <= after.in_use - before.in_use <= nbytes + 4096
    assert buffer.cpu.is_pinned()


@pytest.mark.cuda
def test_a_buffer_beyond_the_limit_is_an_error_that_leaves_nothing():
    staging.pinned_trim()
    before = staging.pinned_stats()
    staging.set_pinned_limit(before.allocated + (1 << 20))
    try:
        with pytest.raises(staging.OutOfMemory, match="set_pinned_limit"):
            make(1 << 20)
    finally:
        staging.set_pinned_limit(None)
    assert staging.pinned_stats().in_use == before.in_use


# -- figures ------------------------------------------------------------------------------


def test_counts_its_copies_and_their_bytes(device):
    buffer = make(8, 2, device=device)
    buffer.copy_to_gpu()
    buffer.copy_to_gpu(3)
    buffer.copy_to_gpu(0)
    with buffer.fill(1) as rows:
        rows[:] = 0
    buffer.copy_to_cpu(4)
    buffer.fetch(2).result()
    stats = buffer.stats()
    assert (stats.copies_to_gpu, stats.bytes_to_gpu) == (3, 64 + 24 + 8)
    assert (stats.copies_to_cpu, stats.fetches, stats.bytes_to_cpu) == (1, 1, 32 + 16)


@pytest.mark.sim
@pytest.mark.cuda
def test_counts_its_waits_and_what_is_in_flight():
    buffer, other = make(8), make(8)
    with sim.policy("lazy"):
        for _ in range(3):
            buffer.copy_to_gpu()
        other.copy_to_gpu()
        assert buffer.stats().slots_in_flight in (2, 3)  # asking is a poll
        buffer.copy_to_cpu()
        _ = buffer.np
        stats = buffer.stats()
        assert stats.slots_in_flight == 0
        assert stats.waits == 1
        assert stats.waited_us > 0


@pytest.mark.sim
@pytest.mark.cuda
def test_a_stream_that_took_over_a_handle_is_another_stream():
    """A destroyed stream's handle may come back; its copies may still be in flight."""
    buffer = make(256)
    with sim.policy("lazy"):
        for step in range(40):
            with external_stream() as stream:
                buffer.np[:] = step
                buffer.copy_to_gpu(stream=stream)
            buffer.np[:] = -1
        assert buffer.fetch().result().unique().tolist() == [39]


@pytest.mark.cuda
def test_a_name_for_a_stream_of_each_thread_is_refused():
    with pytest.raises(ValueError, match="cudaStreamPerThread"):
        make(4).copy_to_gpu(stream=torch.cuda.ExternalStream(2))
