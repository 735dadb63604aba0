"""Handles for results on their way to the host."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")

import staging  # noqa: E402
from staging import CpuGpuBuffer, sim  # noqa: E402
from staging import fetch as fetch_module  # noqa: E402

SCHEDULES = ["lazy", "random"]


def make(*size: int, dtype=torch.int32, device="cuda", **options) -> CpuGpuBuffer:
    return CpuGpuBuffer(*size, dtype=dtype, device=device, **options)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    return request.param


# -- results ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.bfloat16, torch.complex64])
def test_brings_the_first_n_rows_into_a_tensor_of_their_own(device, dtype):
    buffer = make(5, 3, dtype=dtype, device=device, with_numpy=False)
    buffer.gpu.fill_(1)
    result = buffer.fetch(2).result()
    assert result.device.type == "cpu"
    assert result.dtype == dtype
    assert result.tolist() == torch.ones(2, 3, dtype=dtype).tolist()
    buffer.gpu.fill_(0)
    assert result.float().all() if dtype != torch.complex64 else result.real.all()


@pytest.mark.parametrize("n", [None, 0, 1, 4])
def test_brings_any_number_of_rows(device, n):
    buffer = make(4, device=device)
    assert buffer.fetch(n).result().shape == (4 if n is None else n,)


@pytest.mark.parametrize("size", [(), (0,), (3, 0)])
def test_brings_any_shape(device, size):
    assert CpuGpuBuffer(size, dtype=torch.int8, device=device).fetch().result().shape == size


@pytest.mark.parametrize("n", [-1, 5])
def test_an_n_outside_the_buffer_is_an_error(device, n):
    with pytest.raises(ValueError, match=rf"0\.\.4.*got {n}"):
        make(4, device=device).fetch(n)


def test_the_result_is_one_tensor(device):
    fetch = make(4, device=device).fetch()
    assert fetch.result() is fetch.result()


def test_a_meta_device_gives_a_tensor_of_the_shape():
    assert make(4, device="meta").fetch(3).result().shape == (3,)


@pytest.mark.cuda
def test_the_result_is_pinned():
    assert make(4).fetch().result().is_pinned()


def test_the_repr_asks_nothing(device):
    assert repr(make(4, 2, device=device).fetch(3)) == "Fetch((3, 2), dtype=torch.int32)"


# -- in flight ----------------------------------------------------------------------------


@pytest.mark.sim
@pytest.mark.cuda
def test_is_done_when_its_bytes_are_there_and_not_before():
    buffer = make(4)
    stream = torch.cuda.Stream()
    with sim.policy("lazy"), sim.hold(stream.cuda_stream):
        fetch = buffer.fetch(stream=stream)
        assert not fetch.done()
        assert not fetch.wait(0.01)
        with pytest.raises(TimeoutError, match="timeout=0"):
            fetch.result(timeout=0)
    assert fetch.wait()
    assert fetch.done()


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_many_are_in_flight_each_with_the_bytes_of_its_moment(schedule, seed):
    buffer = make(64)
    side = torch.cuda.Stream()
    with sim.policy(schedule, seed=seed):
        fetches = []
        for step in range(100):
            stream = side if step % 3 else None
            buffer.np[:] = step
            buffer.copy_to_gpu(stream=stream)
            fetches.append(buffer.fetch(stream=stream))
        assert [f.result().unique().tolist() for f in reversed(fetches)] == [
            [step] for step in reversed(range(100))
        ]


@pytest.mark.sim
@pytest.mark.cuda
def test_dropping_a_fetch_in_flight_keeps_its_memory_until_the_copy_is_done():
    with sim.policy("lazy"):
        sim.clear_reports()
        buffer = make(1024)
        buffer.gpu.fill_(7)
        buffer.fetch()
        gc.collect()
        others = [staging.pinned_zeros(1024, dtype=torch.int32) for _ in range(8)]
        torch.cuda.synchronize()
        assert not any(other.any() for other in others)
        assert sim.reports() == []


@pytest.mark.sim
@pytest.mark.cuda
def test_memory_of_fetches_is_used_again():
    buffer = make(1024)
    allocated = []
    for _ in range(200):
        buffer.fetch().result()
        allocated.append(staging.pinned_stats().allocated)
    assert allocated[-1] == allocated[10]


@pytest.mark.sim
@pytest.mark.cuda
def test_a_result_may_be_copied_on_and_dropped():
    with sim.policy("lazy"):
        buffer = make(1024)
        buffer.gpu.fill_(7)
        result = buffer.fetch().result()
        onward = result.to("cuda", non_blocking=True)
        del result
        gc.collect()
        others = [staging.pinned_zeros(1024, dtype=torch.int32) for _ in range(8)]
        assert onward.cpu().unique().tolist() == [7]
        del others


# -- asyncio ------------------------------------------------------------------------------


def test_is_awaitable(device):
    buffer = make(4, device=device)
    buffer.gpu.fill_(5)

    async def main():
        return (await buffer.fetch(3)).tolist()

    assert asyncio.run(main()) == [5] * 3


@pytest.mark.sim
@pytest.mark.cuda
def test_many_awaits_are_in_flight_at_once():
    buffer = make(16)
    streams = [torch.cuda.Stream() for _ in range(4)]

    async def main():
        fetches = []
        for step in range(64):
            buffer.np[:] = step
            stream = streams[step % 4]
            buffer.copy_to_gpu(stream=stream)
            fetches.append(buffer.fetch(stream=stream))
        return [r.unique().tolist() for r in await asyncio.gather(*fetches)]

    with sim.policy("lazy"):
        assert asyncio.run(main()) == [[step] for step in range(64)]


@pytest.mark.sim
@pytest.mark.cuda
def test_an_await_polls_nothing_and_adds_nothing_to_the_callers_stream():
    buffer = make(16)
    stream = torch.cuda.Stream()

    async def main():
        fetch = buffer.fetch(stream=stream)
        with sim.record() as calls:
            await fetch
        return calls

    with sim.policy("lazy"):
        calls = asyncio.run(main())
    assert sum(call.name == "cudaEventQuery" for call in calls) <= 3
    assert not [call for call in calls if call.stream == stream.cuda_stream]
    assert [call.name for call in calls].count("cudaLaunchHostFunc") == 1


@pytest.mark.sim
@pytest.mark.cuda
def test_a_stalled_stream_does_not_hold_up_the_await_of_another():
    buffer, other = make(16), make(16)
    stalled = torch.cuda.Stream()

    async def main():
        waiting = asyncio.ensure_future(_await(buffer.fetch(stream=stalled)))
        await asyncio.sleep(0)
        result = await asyncio.wait_for(_await(other.fetch()), 30)
        assert not waiting.done()
        waiting.cancel()
        return result.shape

    with sim.policy("lazy"), sim.hold(stalled.cuda_stream):
        assert asyncio.run(main()) == (16,)


async def _await(fetch):
    return await fetch


@pytest.mark.sim
@pytest.mark.cuda
def test_loops_that_were_closed_with_something_pending_leave_no_descriptor():
    buffer = make(16)
    stream = torch.cuda.Stream()

    async def leave():
        task = asyncio.ensure_future(_await(buffer.fetch(stream=stream)))
        await asyncio.sleep(0)
        assert not task.done()
        task._log_destroy_pending = False  # it is what this is about

    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    with sim.policy("lazy"), sim.hold(stream.cuda_stream):
        for _ in range(200):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(leave())
            loop.close()
    sim.run_all()  # until then a queue's descriptor is kept for its callback
    assert asyncio.run(_await(buffer.fetch())).shape == (16,)
    gc.collect()
    assert descriptors() <= before + 8


@pytest.mark.sim
@pytest.mark.cuda
def test_cancelling_an_await_leaves_the_fetch_and_the_loop_whole():
    buffer = make(16)
    buffer.gpu.fill_(3)
    stream = torch.cuda.Stream()

    async def main():
        with sim.hold(stream.cuda_stream):
            fetch = buffer.fetch(stream=stream)
            for _ in range(5):
                task = asyncio.ensure_future(_await(fetch))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(_await(fetch), 0.01)
        first, second = await asyncio.gather(_await(fetch), _await(fetch))
        assert first is second
        return first.tolist()

    with sim.policy("lazy"):
        assert asyncio.run(main()) == [3] * 16


@pytest.mark.sim
@pytest.mark.cuda
def test_a_loop_that_ends_while_a_callback_is_to_come_is_safe():
    buffer = make(16)
    stream = torch.cuda.Stream()

    async def leave():
        task = asyncio.ensure_future(_await(buffer.fetch(stream=stream)))
        await asyncio.sleep(0)
        assert not task.done()

    with sim.policy("lazy"):
        with sim.hold(stream.cuda_stream):
            asyncio.run(leave())
            gc.collect()
        sim.run_all()  # the callback comes now
    assert asyncio.run(_await(buffer.fetch())).shape == (16,)


@pytest.mark.cuda
def test_loops_of_several_threads_await_at_once():
    results: list[int] = []

    def work(number: int) -> None:
        buffer = make(16)

        async def main():
            for step in range(20):
                buffer.np[:] = number * 100 + step
                buffer.copy_to_gpu()
                results.append(int((await buffer.fetch())[0]) - number * 100 - step)

        asyncio.run(main())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [0] * 60


@pytest.mark.sim
@pytest.mark.cuda
def test_the_loops_state_goes_with_the_loop():
    buffer = make(16)
    stream = torch.cuda.Stream()

    async def main():
        await buffer.fetch(stream=stream)
        return weakref.ref(asyncio.get_running_loop())

    with sim.policy("lazy"):
        loop = asyncio.run(main())
    gc.collect()
    assert loop() is None
    assert len(fetch_module._by_loop) == 0


@pytest.mark.cuda
def test_uvloop_can_await_too():
    uvloop = pytest.importorskip("uvloop")
    buffer = make(16)
    buffer.gpu.fill_(2)
    loop = uvloop.new_event_loop()
    try:
        assert loop.run_until_complete(_await(buffer.fetch())).tolist() == [2] * 16
    finally:
        loop.close()


# -- errors -------------------------------------------------------------------------------


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("how", ["await", "result", "wait", "done"])
def test_an_error_of_the_device_ends_every_way_of_waiting(how):
    code = f"""
import asyncio, torch
from staging import CpuGpuBuffer, DeviceError, fetch, sim
fetch.WATCHDOG_S = 0.05
buffer = CpuGpuBuffer(16, dtype=torch.int32, device="cuda")
buffer.copy_to_gpu()
async def wait(handle):
    await handle
def ask(handle):
    how = {how!r}
    if how == "await":
        asyncio.run(asyncio.wait_for(wait(handle), 60))
    elif how == "done":
        while not handle.done():
            pass
    else:
        getattr(handle, how)()
with sim.fault("cudaMemcpyAsync", code=700, deferred=True):
    handle = buffer.fetch()
    for _ in range(2):
        try:
            ask(handle)
        except DeviceError as error:
            print(error.code, error.context_lost)
try:
    buffer.copy_to_gpu()
except DeviceError as error:
    print(error.code)
import os
os._exit(0)
"""
    from staging.sim.cli import environment

    result = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        env=environment(policy="lazy"),
    )
    assert result.stdout.split() == ["700", "True", "700", "True", "700"], result.stderr


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize(
    "call", ["cudaStreamCreateWithFlags", "cudaStreamWaitEvent", "cudaLaunchHostFunc"]
)
def test_a_notice_that_cannot_be_had_is_an_error_and_the_next_await_works(call):
    code = f"""
import asyncio, torch
from staging import CpuGpuBuffer, DeviceError, sim
buffer = CpuGpuBuffer(16, dtype=torch.int32, device="cuda")
async def main():
    fetch = buffer.fetch()
    with sim.fault({call!r}) as fault:
        try:
            await fetch
        except DeviceError as error:
            print(error.call)
    assert fault.happened
    print((await fetch).shape[0])
asyncio.run(main())
"""
    from staging.sim.cli import environment

    result = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        env=environment(policy="lazy"),
    )
    assert result.stdout.split() == [call, "16"], result.stderr


@pytest.mark.sim
@pytest.mark.cuda
def test_an_await_without_a_descriptor_says_so_and_result_and_the_next_await_work():
    code = """
import asyncio, os, resource, torch
from staging import CpuGpuBuffer
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
buffer = CpuGpuBuffer(16, dtype=torch.int32, device="cuda")
async def main():
    first, second = buffer.fetch(), buffer.fetch()
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        pass
    try:
        await first
    except Exception as error:
        print(type(error).__name__, "ulimit -n" in str(error))
    print(first.result().shape[0])
    for fd in taken:
        os.close(fd)
    print((await second).shape[0], (await buffer.fetch()).shape[0])
asyncio.run(main())
"""
    from staging.sim.cli import environment

    result = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        env=environment(policy="lazy"),
    )
    assert result.stdout.split() == ["RuntimeError", "True", "16", "16", "16"], result.stderr
