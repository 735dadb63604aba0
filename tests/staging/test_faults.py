"""Each call of the runtime fails in turn.

The error names the call, nothing is lost, the next operation works, and nobody else's check
finds a last error. What destroys the context is reported by every later call.
"""

from __future__ import annotations

import asyncio
import ctypes
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import staging  # noqa: E402
from staging import CpuGpuBuffer, DeviceError, copy_slice, sim  # noqa: E402
from staging.extension import _C  # noqa: E402

pytestmark = [pytest.mark.sim, pytest.mark.cuda]

UNKNOWN, OUT_OF_MEMORY = 999, 2
SMALL, LARGE = 256, 256 << 10  # a slot of a ring; a block that is pinned by itself


def last_error() -> int:
    return ctypes.CDLL(None).cudaPeekAtLastError()


class Scene:
    """A buffer whose device array must be what was staged last without an error."""

    def __init__(self, reuse: str, size: int = SMALL) -> None:
        self.start_cold()  # so that a large host array is not a part of something larger
        self.size = size
        self.buffer = CpuGpuBuffer(size, dtype=torch.int32, device="cuda", reuse=reuse)
        self.streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        self.step = 0
        self.staged = 0

    def stage(self) -> None:
        self.step += 1
        self.buffer.np[:] = self.step
        for stream in self.streams:
            self.buffer.copy_to_gpu(stream=stream)
            self.staged = self.step

    def bring_back(self) -> None:
        for stream in self.streams:
            self.buffer.copy_to_cpu(stream=stream)
        assert np.unique(self.buffer.np).tolist() == [self.staged]

    def fill(self) -> None:
        with self.buffer.fill(stream=self.streams[0]) as rows:
            rows[:] = self.step + 1
        self.step += 1
        self.staged = self.step

    def fetch(self) -> None:
        result = self.buffer.fetch(stream=self.streams[0]).result()
        assert np.unique(result.numpy()).tolist() == [self.staged]

    def awaited(self) -> None:
        async def wait() -> None:
            await self.buffer.fetch(stream=self.streams[0])

        asyncio.run(wait())

    def slices(self) -> None:
        source = torch.ones(self.size, dtype=torch.int32).expand(2, -1).t()  # through a slot
        target = torch.zeros(self.size, 2, dtype=torch.int32, device="cuda")
        copy_slice(source, target, self.size)
        assert target.cpu().unique().tolist() == [1]

    def check(self) -> None:
        """What was staged without an error is there, and all ways of copying work."""
        self.stage()
        assert np.unique(self.buffer.fetch().result().numpy()).tolist() == [self.staged]
        self.bring_back()
        self.fill()
        self.awaited()
        self.fetch()
        self.slices()

    def start_cold(self) -> None:
        """Leave no pinned memory and no event that could be used again."""
        torch.cuda.synchronize()
        _C.trim(0)


ACTIONS: dict[str, Callable[[Scene], None]] = {
    "stage": Scene.stage,
    "bring_back": Scene.bring_back,
    "fill": Scene.fill,
    "fetch": Scene.fetch,
    "awaited": Scene.awaited,
    "slices": Scene.slices,
}
CALLS = {
    "stage": [
        "cudaMemcpyAsync", "cudaEventCreateWithFlags", "cudaEventRecord", "cudaStreamWaitEvent",
        "cudaHostRegister", "cudaStreamIsCapturing", "cudaGetDevice",
    ],
    "bring_back": [
        "cudaMemcpyAsync", "cudaEventCreateWithFlags", "cudaEventRecord", "cudaEventQuery",
        "cudaStreamWaitEvent",
    ],
    "fill": ["cudaMemcpyAsync", "cudaEventCreateWithFlags", "cudaEventRecord", "cudaHostRegister"],
    "fetch": [
        "cudaMemcpyAsync", "cudaEventCreateWithFlags", "cudaEventRecord", "cudaEventQuery",
        "cudaHostRegister",
    ],
    "awaited": ["cudaLaunchHostFunc", "cudaStreamWaitEvent", "cudaMemcpyAsync"],
    "slices": ["cudaEventCreateWithFlags", "cudaEventRecord", "cudaHostRegister"],
}  # fmt: skip
CASES = [
    (action, call, reuse)
    for action, calls in CALLS.items()
    for call in calls
    for reuse in ("snapshot", "wait")
    if (action, call, reuse) != ("stage", "cudaHostRegister", "wait")  # it pins nothing
]


@pytest.mark.parametrize(("action", "call", "reuse"), CASES)
def test_a_failing_call_is_named_and_nothing_is_lost(action, call, reuse):
    happened = 0
    for nth in range(1, 4):
        scene = Scene(reuse, LARGE if call == "cudaHostRegister" else SMALL)
        with sim.policy("lazy"):
            scene.check()
            scene.start_cold()
            errors: list[DeviceError] = []
            with sim.fault(call, nth=nth, code=UNKNOWN) as fault:
                for _ in range(3):
                    try:
                        ACTIONS[action](scene)
                    except DeviceError as error:
                        errors.append(error)
                    assert last_error() == 0
            happened += fault.happened
            for error in errors:
                assert (error.call, error.code, error.context_lost) == (call, UNKNOWN, False)
                assert call in str(error)
            scene.check()
            assert last_error() == 0
    assert happened, f"{action} never called {call}"


@pytest.mark.parametrize("reuse", ["snapshot", "wait"])
def test_an_allocation_that_fails_is_out_of_memory_where_nothing_else_helps(reuse):
    scene = Scene(reuse, LARGE)
    scene.start_cold()
    with sim.fault("cudaHostRegister", code=OUT_OF_MEMORY) as fault:
        with pytest.raises(staging.OutOfMemory) as caught:
            scene.fill()
    assert fault.happened
    assert caught.value.code == OUT_OF_MEMORY
    assert isinstance(caught.value, MemoryError)
    assert last_error() == 0
    scene.check()


@pytest.mark.parametrize(
    "call",
    [
        "cudaStreamGetCaptureInfo",
        "cudaUserObjectCreate",
        "cudaGraphRetainUserObject",
        "cudaMemcpyAsync",
        "cudaEventRecordWithFlags",
        "cudaEventCreateWithFlags",
    ],
)
def test_a_failure_while_capturing_is_named_and_the_next_capture_works(call):
    buffer = CpuGpuBuffer(64, dtype=torch.int32, device="cuda")
    out = torch.zeros(64, dtype=torch.int32, device="cuda")
    stream = torch.cuda.Stream()

    def capture(copy: Callable[[], object]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            graph.capture_begin()
            try:
                copy()
                out.copy_(buffer.gpu)
            finally:
                graph.capture_end()
        return graph

    def failing_copy() -> None:
        with sim.fault(call, code=UNKNOWN) as fault:
            with pytest.raises(DeviceError) as caught:
                buffer.copy_to_gpu()
        assert fault.happened
        assert caught.value.call == call
        assert last_error() == 0

    buffer.copy_to_gpu(stream=stream)  # PyTorch learns of the stream, and asks nothing later
    torch.cuda.synchronize()
    capture(failing_copy)
    graph = capture(buffer.copy_to_gpu)
    buffer.np[:] = 5
    buffer.refill()
    graph.replay()
    torch.cuda.synchronize()
    assert out.cpu().unique().tolist() == [5]


@pytest.mark.parametrize("call", ["cudaMemcpyAsync", "cudaEventRecord", "cudaEventQuery"])
def test_a_lost_context_is_reported_by_every_later_call_and_nothing_hangs(call):
    code = f"""
import os, torch
from staging import CpuGpuBuffer, DeviceError, sim
buffer = CpuGpuBuffer(64, dtype=torch.int32, device="cuda", reuse="wait")
buffer.copy_to_gpu()
fetch = buffer.fetch()
with sim.fault({call!r}, code=700, sticky=True):
    reports = []
    for action in (
        lambda: buffer.np, lambda: buffer.copy_to_gpu(), lambda: buffer.copy_to_cpu(),
        lambda: buffer.np, lambda: buffer.fetch(), lambda: fetch.result(),
        lambda: buffer.fill().__enter__(), lambda: buffer.np, lambda: buffer.copy_to_gpu(),
    ):
        try:
            action()
            reports.append("-")
        except DeviceError as error:
            assert error.code == 700 and error.context_lost, error
            reports.append("x")
del fetch, buffer  # leaked, not reused; and it does not hang
print("".join(reports).lstrip("-"))
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
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.strip()) >= 3
    assert set(result.stdout.strip()) == {"x"}
