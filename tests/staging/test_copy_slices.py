"""Many slices in one call: what lands where, in how many calls, and what is refused."""

from __future__ import annotations

import gc
import random

import pytest
import torch

from staging import copy_slices
from staging.extension import _C

needs_cuda_build = pytest.mark.skipif(not _C.built_with_cuda, reason="needs a CUDA build")


def pinned(*shape, dtype=torch.int32):
    return torch.zeros(*shape, dtype=dtype, pin_memory=True)


def on_device(*shape, dtype=torch.int32):
    return torch.zeros(*shape, dtype=dtype, device="cuda")


def numbered(count, size=64):
    """Host sources with bytes of their own, and as many destinations on the device."""
    sources = [pinned(size) for _ in range(count)]
    for i, source in enumerate(sources):
        source.copy_(torch.arange(size, dtype=torch.int32) + 1000 * i)
    return sources, [on_device(size) for _ in range(count)]


# -- on the host alone -----------------------------------------------------------------------


def test_host_slices_are_copied_in_turn():
    a = torch.arange(6)
    b = torch.zeros(6, dtype=torch.int64)
    c = torch.zeros(6, dtype=torch.int64)
    copy_slices([(a, b, 4), (b, c, 6), (a[3:], c[1:], 2)])
    assert b.tolist() == [0, 1, 2, 3, 0, 0]
    assert c.tolist() == [0, 3, 4, 3, 0, 0]


def test_no_slices_and_slices_without_bytes_do_nothing():
    copy_slices([])
    a = torch.ones(3)
    copy_slices([(a, torch.zeros(3), 0), (torch.zeros(0), torch.zeros(0), 0), (a, a, 3)])


def test_any_iterable_will_do():
    a, b = torch.ones(2), torch.zeros(2)
    copy_slices(pair for pair in [(a, b, 2)])
    assert b.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("bad", "error", "what"),
    [
        (lambda: (torch.zeros(3), torch.zeros(3), 4), ValueError, r"slices\[1\].*length.*0\.\.3"),
        (lambda: (torch.zeros(3), torch.zeros(3), -1), ValueError, r"slices\[1\].*length"),
        (lambda: (torch.zeros(3), torch.zeros(3).int(), 1), TypeError, r"slices\[1\].*dtype"),
        (lambda: (torch.zeros(3, 2), torch.zeros(3), 1), ValueError, r"slices\[1\].*shape"),
        (lambda: (torch.zeros(3), [0.0], 1), TypeError, r"slices\[1\]\[1\].*Tensor"),
        (lambda: (torch.zeros(3), torch.zeros(3)), TypeError, r"slices\[1\].*tuple"),
        (lambda: (torch.zeros(3), torch.zeros(3, device="meta"), 1), TypeError, r"slices\[1\]"),
    ],
)
def test_a_bad_slice_is_named_and_nothing_is_copied(bad, error, what):
    a, b = torch.ones(3), torch.zeros(3)
    with pytest.raises(error, match=what):
        copy_slices([(a, b, 3), bad()])
    assert not b.any()


# -- with a device ---------------------------------------------------------------------------


@pytest.mark.cuda
def test_slices_between_host_and_device_arrive_whole():
    sources, destinations = numbered(20)
    copy_slices([(s, d, 3 * i) for i, (s, d) in enumerate(zip(sources, destinations, strict=True))])
    back = [pinned(64) for _ in destinations]
    copy_slices([(d, b, 64) for d, b in zip(destinations, back, strict=True)])
    torch.cuda.synchronize()
    for i, (source, result) in enumerate(zip(sources, back, strict=True)):
        assert torch.equal(result[: 3 * i], source[: 3 * i])
        assert not result[3 * i :].any()


@pytest.mark.cuda
def test_pageable_destinations_are_there_when_the_call_returns():
    sources, destinations = numbered(5)
    copy_slices([(s, d, 64) for s, d in zip(sources, destinations, strict=True)])
    back = [torch.zeros(64, dtype=torch.int32) for _ in destinations]
    copy_slices([(d, b, 64) for d, b in zip(destinations, back, strict=True)])
    for source, result in zip(sources, back, strict=True):
        assert torch.equal(result, source)


@pytest.mark.cuda
def test_what_one_slice_wrote_the_next_one_reads():
    source = pinned(8)
    source += 7
    a, b, back = on_device(8), on_device(8), pinned(8)
    copy_slices([(source, a, 8), (a, b, 8), (b[2:], a, 3), (a, back, 8)])
    torch.cuda.synchronize()
    assert back.tolist() == [7] * 8
    copy_slices([(source[:4], back, 4), (back, a, 8)])  # host to host comes first here, too


@pytest.mark.cuda
def test_a_snapshot_may_be_overwritten_at_once():
    sources = [pinned(64), torch.zeros(64, dtype=torch.int32)]
    destinations = [on_device(64) for _ in sources]
    for step in range(1, 6):
        for source in sources:
            source.fill_(step)
        copy_slices([(s, d, 64) for s, d in zip(sources, destinations, strict=True)], snapshot=True)
        for source in sources:
            source.fill_(-1)
        assert all((d.cpu() == step).all() for d in destinations)


@pytest.mark.cuda
def test_a_device_slice_on_two_devices_is_refused():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    here, there = on_device(4), torch.zeros(4, dtype=torch.int32, device="cuda:1")
    source = pinned(4)
    with pytest.raises(ValueError, match="one device"):
        copy_slices([(source, here, 4), (source, there, 4)])


@pytest.mark.cuda
def test_a_stream_of_ones_own_is_used():
    stream = torch.cuda.Stream()
    sources, destinations = numbered(4)
    copy_slices([(s, d, 64) for s, d in zip(sources, destinations, strict=True)], stream=stream)
    stream.synchronize()
    assert torch.equal(destinations[3].cpu(), sources[3])


# -- in how many calls -----------------------------------------------------------------------


def enqueuing(calls):
    names = ("cudaMemcpyAsync", "cudaMemcpyBatchAsync", "cudaMemcpy2DAsync", "cudaLaunchKernel")
    return {name: calls[name] for name in names if calls[name]}


@pytest.mark.sim
def test_sixteen_small_slices_are_one_launch():
    from staging import sim

    sources, destinations = numbered(16)
    slices = [(s, d, 50) for s, d in zip(sources, destinations, strict=True)]
    copy_slices(slices)
    with sim.count() as calls:
        copy_slices(slices)
    assert enqueuing(calls) == {"cudaLaunchKernel": 1}


@pytest.mark.sim
def test_sixteen_pageable_slices_are_one_launch_and_one_event():
    from staging import sim

    destinations = [on_device(64) for _ in range(16)]
    slices = [(torch.ones(64, dtype=torch.int32), d, 50) for d in destinations]
    copy_slices(slices)
    with sim.count() as calls:
        copy_slices(slices)
    assert enqueuing(calls) == {"cudaLaunchKernel": 1}
    assert calls["cudaEventRecord"] == 1


@pytest.mark.sim
def test_neighbours_are_one_transfer():
    from staging import sim

    source, destination = pinned(16, 64), on_device(16, 64)
    with sim.count() as calls:
        copy_slices([(source[i], destination[i], 64) for i in range(16)])
    assert enqueuing(calls) == {"cudaMemcpyAsync": 1}


@pytest.mark.sim
def test_the_rows_of_a_strided_slice_share_one_launch_with_others():
    from staging import sim

    positions, on_gpu = pinned(3, 100), on_device(3, 100)
    sources, destinations = numbered(4)
    positions += torch.arange(300, dtype=torch.int32).view(3, 100)
    slices = [(positions[:, :40], on_gpu[:, :40], 3)]
    slices += [(s, d, 50) for s, d in zip(sources, destinations, strict=True)]
    with sim.count() as calls:
        copy_slices(slices)
    assert enqueuing(calls) == {"cudaLaunchKernel": 1}
    assert torch.equal(on_gpu.cpu()[:, :40], positions[:, :40])
    assert not on_gpu.cpu()[:, 40:].any()


@pytest.mark.sim
def test_pageable_destinations_are_waited_for_once():
    from staging import sim

    destinations = [on_device(64) for _ in range(8)]
    back = [torch.zeros(64, dtype=torch.int32) for _ in destinations]
    with sim.count() as calls:
        copy_slices([(d, b, 64) for d, b in zip(destinations, back, strict=True)])
    assert calls["cudaEventRecord"] == 1
    assert calls["cudaStreamSynchronize"] == calls["cudaDeviceSynchronize"] == 0


@pytest.mark.sim
def test_under_capture_pinned_slices_are_captured_and_others_are_refused():
    sources, destinations = numbered(16)
    slices = [(s, d, 50) for s, d in zip(sources, destinations, strict=True)]
    copy_slices(slices)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        copy_slices(slices)
        with pytest.raises(RuntimeError, match=r"slices\[1\].*CUDA graph"):
            copy_slices([slices[0], (torch.zeros(64, dtype=torch.int32), destinations[0], 4)])
    for i, source in enumerate(sources):
        source.fill_(5 + i)
    graph.replay()
    torch.cuda.synchronize()
    for i, destination in enumerate(destinations):
        assert (destination.cpu()[:50] == 5 + i).all()


# -- under every schedule --------------------------------------------------------------------


@pytest.mark.sim
@pytest.mark.parametrize("policy", ["lazy", "random", "threads"])
def test_sources_that_are_dropped_while_in_flight_arrive(policy):
    from staging import sim

    destinations = [on_device(256) for _ in range(12)]
    torch.cuda.synchronize()
    with sim.policy(policy, seed=1):
        for step in range(1, 20):
            sources = [pinned(256) for _ in destinations]
            for source in sources:
                source.fill_(step)
            copy_slices([(s, d, 256) for s, d in zip(sources, destinations, strict=True)])
            del sources, source
            gc.collect()
            assert all((d.cpu() == step).all() for d in destinations)


class Side:
    """A tensor somewhere, with a host twin to compute what is expected with."""

    def __init__(self, rng, place, rows, inner, dtype):
        gap = [size + rng.randrange(3) for size in inner]
        self.window = (slice(None), *(slice(0, size) for size in inner))
        self.twin = torch.zeros([rows, *gap], dtype=dtype)
        self.base = {
            "pinned": lambda: torch.zeros([rows, *gap], dtype=dtype, pin_memory=True),
            "pageable": lambda: torch.zeros([rows, *gap], dtype=dtype),
            "device": lambda: torch.zeros([rows, *gap], dtype=dtype, device="cuda"),
        }[place]()

    def fill(self, rng):
        self.twin.random_(0, 100, generator=torch.Generator().manual_seed(rng.randrange(2**31)))
        self.base.copy_(self.twin)

    @property
    def tensor(self):
        return self.base[self.window]

    @property
    def expected(self):
        return self.twin[self.window]


@pytest.mark.sim
@pytest.mark.parametrize("policy", ["lazy", "random"])
def test_random_slices_equal_copies_one_after_the_other(policy, seed):
    from staging import sim

    rng = random.Random(seed)
    for _ in range(60):
        dtype = rng.choice([torch.int32, torch.uint8, torch.float64, torch.int16])
        inner = [rng.randrange(1, 7) for _ in range(rng.randrange(3))]
        places = [rng.choice(["pinned", "pageable", "device"]) for _ in range(6)]
        sides = [Side(rng, place, rng.randrange(1, 9), inner, dtype) for place in places]
        for side in sides:
            side.fill(rng)
        torch.cuda.synchronize()
        slices = []
        # A host tensor once: the host uses it at once, and a transfer in stream order.
        used = set()
        for _ in range(rng.randrange(12)):
            pair = rng.sample(sides, 2)
            on_host = {id(side) for side in pair if side.base.device.type == "cpu"}
            if on_host & used:
                continue
            used |= on_host
            source, destination = pair
            n = rng.randrange(1 + min(len(source.base), len(destination.base)))
            slices.append((source.tensor, destination.tensor, n))
            destination.expected[:n] = source.expected[:n]
        with sim.policy(policy, seed=rng.randrange(1000)):
            copy_slices(slices, snapshot=rng.random() < 0.3)
            torch.cuda.synchronize()
        for side in sides:
            assert torch.equal(side.base.cpu(), side.twin)
