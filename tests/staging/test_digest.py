"""Digests of tensors: of every dtype, layout, size and device."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import itertools
import json
import math
import random
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
xxhash = pytest.importorskip("xxhash")

import reference_blake3  # noqa: E402
from external_streams import external_stream  # noqa: E402
from reference_blake3 import blake3  # noqa: E402

from staging import (  # noqa: E402
    DeviceError,
    digest_async,
    digests_async,
    sim,
    tensor_data,
    tensor_digest,
    tensor_digests,
    tensor_hexdigest,
)
from staging import digest as digest_module  # noqa: E402
from staging.extension import _C  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
VECTORS = json.loads((ROOT / "tests" / "data" / "blake3_vectors.json").read_text())["cases"]

STANDARD = {
    "blake3": lambda data: blake3(data).digest(),
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "xxh3_128": lambda data: xxhash.xxh3_128(data).digest(),
}
ALGORITHMS = list(STANDARD)
DTYPES = [
    getattr(torch, name)
    for name in [
        "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
        "float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128",
        "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
        "float4_e2m1fn_x2", "uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7",
        "int1", "int2", "int4", "int7", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2",
    ]
    if hasattr(torch, name)
]  # fmt: skip
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def pattern(nbytes: int) -> bytes:
    return (bytes(range(251)) * (nbytes // 251 + 1))[:nbytes]


def to_device(data: bytes | bytearray, device: str) -> torch.Tensor:
    if not data:
        return torch.empty(0, dtype=torch.uint8, device=device)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


def as_dtype(raw: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """View bytes as another dtype, also one that view() does not know."""
    result = torch.empty(0, dtype=dtype, device=raw.device)
    size = result.element_size()
    return result.set_(raw.untyped_storage(), 0, (raw.numel() // size,), (1,))


def logical_bytes(tensor: torch.Tensor) -> bytes:
    """The bytes in row-major order, from the storage and the strides alone."""
    size = tensor.element_size()
    raw = bytes(tensor.untyped_storage().cpu())
    parts = []
    for index in itertools.product(*map(range, tensor.shape)):
        at = tensor.storage_offset() + sum(
            i * stride for i, stride in zip(index, tensor.stride(), strict=True)
        )
        parts.append(raw[at * size : (at + 1) * size])
    return b"".join(parts)


# -- the standard digests ------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_the_official_vectors(device):
    tensors = [to_device(pattern(case["input_len"]), device) for case in VECTORS]
    for tensor, case in zip(tensors, VECTORS, strict=True):
        assert tensor_digest(tensor, framed=False).hex() == case["hash"]
    digests = tensor_digests(tensors, framed=False)
    assert [digest.hex() for digest in digests] == [case["hash"] for case in VECTORS]


def check_lengths(lengths: list[int], device: str, rng: random.Random) -> None:
    if device == "cpu" and reference_blake3.MISSING:
        pytest.skip(reference_blake3.REASON)
    data = rng.randbytes(1 << 20)
    whole = to_device(data, device)
    for batch in (
        itertools.batched(lengths, 200)
        if hasattr(itertools, "batched")
        else [lengths[i : i + 200] for i in range(0, len(lengths), 200)]
    ):
        starts = [rng.randint(0, len(data) - nbytes) for nbytes in batch]
        parts = [whole[at : at + n] for at, n in zip(starts, batch, strict=True)]
        expected = [
            blake3(memoryview(data)[at : at + n]).digest()
            for at, n in zip(starts, batch, strict=True)
        ]
        assert tensor_digests(parts, framed=False) == expected, (batch, starts)


@pytest.mark.parametrize("device", DEVICES)
def test_every_boundary_of_the_tree(device, seed):
    lengths = [1024 * 2**k + d for k in range(11) for d in (-1, 0, 1)]
    check_lengths([n for n in lengths if n <= 1 << 20], device, random.Random(seed))


@pytest.mark.parametrize("device", DEVICES)
def test_random_lengths_and_alignments(device, seed):
    rng = random.Random(seed)
    check_lengths([int(2 ** rng.uniform(0, 20)) for _ in range(600)], device, rng)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("device", DEVICES)
def test_ten_thousand_random_lengths_up_to_a_mebibyte(device, seed):
    rng = random.Random(seed)
    check_lengths([rng.randint(0, 1 << 20) for _ in range(10_000)], device, rng)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_unframed_it_is_the_standard_digest_of_the_bytes(algorithm, device):
    for tensor in (
        torch.arange(1000),
        torch.arange(1000).reshape(10, 100).t(),
        torch.arange(1000)[::3],
        torch.zeros(0, 5),
        torch.tensor(3.5),
        torch.ones(3).expand(4, 3),
        torch.arange(2_000_000, dtype=torch.int32).reshape(1000, 2000).t(),
        torch.tensor([1 + 2j, 3 - 4j]).conj(),
        torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        torch.ones(3, requires_grad=True),
    ):
        expected = STANDARD[algorithm](tensor_data(tensor))
        moved = tensor.to(device) if device == "cuda" else tensor
        assert tensor_digest(moved, algorithm, framed=False) == expected


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_in_every_layout(dtype, device):
    rng = random.Random(str(dtype))
    raw = to_device(rng.randbytes(4 * 6 * 16), device)
    size = torch.empty(0, dtype=dtype).element_size()
    strided = torch.empty(0, dtype=dtype, device=device)
    storage = raw.untyped_storage()
    for shape, strides, offset in (
        ((24,), (1,), 0),
        ((4, 6), (6, 1), 0),
        ((6, 4), (1, 6), 0),
        ((3, 3), (6, 2), 1),
        ((5, 6), (0, 1), 6),
        ((2, 2, 3), (1, 12, 3), 2),
        ((), (), 5),
        ((0, 3), (3, 1), 0),
    ):
        tensor = strided.set_(storage, offset, shape, strides)
        expected = logical_bytes(tensor)
        assert len(expected) == math.prod(shape) * size
        for algorithm in ALGORITHMS:
            digest = tensor_digest(tensor, algorithm, framed=False)
            assert digest == STANDARD[algorithm](expected), (shape, strides, algorithm)


# -- framed --------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_tensors_of_the_same_bytes_never_collide(algorithm):
    """Every dtype with every shape that holds the same 48 bytes, and no bytes at all."""
    seen: dict[bytes, tuple[torch.dtype, tuple[int, ...]]] = {}
    for nbytes in (48, 0):
        raw = torch.arange(nbytes, dtype=torch.uint8)
        for dtype in DTYPES:
            flat = as_dtype(raw, dtype)
            count = flat.numel()
            if count * flat.element_size() != nbytes:
                continue
            shapes = {
                shape
                for ndim in range(5 if algorithm == "blake3" else 3)
                for shape in itertools.product([0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 48], repeat=ndim)
                if math.prod(shape) == count
            }
            for shape in shapes:
                tensor = torch.empty(0, dtype=dtype).set_(
                    raw.untyped_storage(), 0, shape, torch.empty(shape).stride()
                )
                digest = tensor_digest(tensor, algorithm)
                assert digest not in seen, (seen.get(digest), dtype, shape)
                seen[digest] = (dtype, shape)
    assert len(seen) > (3000 if algorithm == "blake3" else 300)


def test_a_framed_digest_is_not_the_standard_one():
    assert tensor_digest(torch.ones(3)) != tensor_digest(torch.ones(3), framed=False)


def test_the_default_is_framed_blake3():
    tensor = torch.arange(5)
    assert tensor_digest(tensor) == tensor_digest(tensor, "blake3", True)
    assert tensor_hexdigest(tensor) == tensor_digest(tensor).hex()
    assert tensor_hexdigest(tensor, "sha256", False) == (
        hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
    )


# -- errors --------------------------------------------------------------------------------


def _fake() -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(3)


def _resized() -> torch.Tensor:
    tensor = torch.arange(100)
    tensor.untyped_storage().resize_(8)
    return tensor


def _resized_lazy() -> torch.Tensor:
    tensor = torch._neg_view(torch.arange(100))
    tensor.untyped_storage().resize_(8)
    return tensor


def _resized_strided() -> torch.Tensor:
    tensor = torch.zeros(10, 10).t()
    tensor.untyped_storage().resize_(0)
    return tensor


class _Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (3,))

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(function)


REFUSED = {
    "sparse COO": (lambda: torch.eye(3).to_sparse(), "sparse_coo"),
    "sparse CSR": (lambda: torch.eye(3).to_sparse_csr(), "sparse_csr"),
    "sparse CSC": (lambda: torch.eye(3).to_sparse_csc(), "sparse_csc"),
    "sparse BSR": (lambda: torch.eye(4).to_sparse_bsr(2), "sparse_bsr"),
    "mkldnn": (lambda: torch.eye(3).to_mkldnn(), "mkldnn"),
    "meta": (lambda: torch.empty(3, device="meta"), "meta"),
    "ZeroTensor": (lambda: torch._efficientzerotensor(3), "ZeroTensor"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "nested"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
        "jagged|nested",
    ),
    "FakeTensor": (_fake, "FakeTensor|meta"),
    "wrapper subclass": (_Wrapper, "_Wrapper|no memory"),
    "resized storage": (_resized, "storage"),
    "resized storage, lazy": (_resized_lazy, "storage was resized"),
    "resized storage, strided": (_resized_strided, "storage"),
    "a list": (lambda: [1.0], "must be a torch.Tensor, got list"),
    "None": (lambda: None, "must be a torch.Tensor, got NoneType"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("framed", [True, False])
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_hashed_is_refused_by_name(kind, framed):
    make, reason = REFUSED[kind]
    if kind == "mkldnn" and not torch.backends.mkldnn.is_available():
        pytest.skip("no mkldnn in this torch")
    tensor = make()
    for algorithm in ALGORITHMS:
        with pytest.raises(TypeError, match=reason):
            tensor_digest(tensor, algorithm, framed)


def test_a_batched_tensor_is_refused():
    def inside(tensor):
        with pytest.raises(TypeError, match="functorch"):
            tensor_digest(tensor)
        return tensor

    torch.vmap(inside)(torch.ones(2, 3))


@pytest.mark.parametrize("name", ["md5", None])
def test_an_unknown_algorithm_is_refused_and_the_known_are_listed(name):
    for call in (tensor_digest, tensor_hexdigest, digest_async):
        with pytest.raises(ValueError, match="'blake3', 'sha256', 'xxh3_128'"):
            call(torch.ones(1), name)


def fuzzed(rng: random.Random, device: str) -> torch.Tensor:
    """A tensor over a storage of random size, offset, shape and strides; some do not fit.

    On the host some are lazy views.
    """
    if device == "cuda":
        device = f"cuda:{rng.randrange(torch.cuda.device_count())}"
    storage = torch.empty(rng.randrange(5000), dtype=torch.uint8, device=device)
    if device == "cpu" or storage.numel() > 0:
        storage.copy_(to_device(rng.randbytes(storage.numel()), "cpu"))
    dtype = rng.choice(DTYPES)
    shape = tuple(rng.choice([0, 1, 1, 2, 3, 4, 8]) for _ in range(rng.randrange(6)))
    strides = tuple(rng.choice([0, 1, 1, 2, 3, 7, 40]) for _ in shape)
    tensor = torch.empty(0, dtype=dtype, device=device)
    tensor.set_(storage.untyped_storage(), rng.randrange(20), shape, strides)
    if device == "cpu" and dtype in LAZY_DTYPES:
        if dtype.is_complex and rng.random() < 0.4:
            tensor = tensor.conj()
        if rng.random() < 0.4:
            tensor = torch._neg_view(tensor)
    return tensor


LAZY_DTYPES = {
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32,
    torch.complex64, torch.complex128, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool,
}  # fmt: skip


def value_bytes(tensor: torch.Tensor) -> bytes:
    """The bytes of the values, also of lazy views: what is flipped is flipped by hand."""
    raw = bytearray(logical_bytes(tensor))
    if not tensor.is_conj() and not tensor.is_neg():
        return bytes(raw)
    size = tensor.element_size()
    if not tensor.is_floating_point() and not tensor.is_complex():
        for at in range(0, len(raw), size):
            negative = -int.from_bytes(raw[at : at + size], "little") % 256**size
            raw[at : at + size] = negative.to_bytes(size, "little")
        return bytes(raw)
    part = size // 2 if tensor.is_complex() else size
    for index, at in enumerate(range(part - 1, len(raw), part)):
        if tensor.is_neg() != (tensor.is_conj() and index % 2 == 1):
            raw[at] ^= 0x80
    return bytes(raw)


@pytest.mark.parametrize("device", DEVICES)
def test_no_tensor_crashes_it(device, seed):
    rng = random.Random(seed)
    hashed = refused = lazy = 0
    reasons = set()
    while hashed + refused < 600 or refused <= 5:  # until there were some of both, for any seed
        try:
            tensor = fuzzed(rng, device)
        except RuntimeError:  # torch itself says that it does not fit
            continue
        if rng.random() < 0.1:
            tensor.untyped_storage().resize_(rng.randrange(200))
        algorithm = rng.choice(ALGORITHMS)
        what = (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), device)
        try:
            digest = tensor_digest(tensor, algorithm, framed=False)
        except TypeError as error:
            refused += 1
            reasons.add(REASON.sub(r"\1", str(error)))
            with pytest.raises(TypeError):
                tensor_data(tensor)
            with pytest.raises(TypeError):
                tensor_digest(tensor, algorithm)
            continue
        hashed += 1
        lazy += tensor.is_conj() or tensor.is_neg()
        expected = value_bytes(tensor)
        assert digest == STANDARD[algorithm](expected), what
        assert bytes(tensor_data(tensor)) == expected, what
        flat = torch.frombuffer(bytearray(expected), dtype=torch.uint8) if expected else None
        if flat is not None:
            same = as_dtype(flat, tensor.dtype).view(tensor.shape)
            assert tensor_digest(tensor, algorithm) == tensor_digest(same, algorithm), what
    assert hashed > 100
    assert lazy > 10 or device != "cpu"
    assert reasons <= {"storage was resized", "has no memory", "a lazy view of torch.bool"}


REASON = re.compile(
    r".*(storage was resized|has no memory|a lazy view of torch\.bool).*", re.DOTALL
)


def test_a_tensor_of_many_dimensions():
    tensor = torch.arange(2**10).reshape((2,) * 10).permute(*reversed(range(10)))
    wide = tensor.reshape((2,) * 10 + (1,) * 30)
    for each in (tensor, wide):
        assert tensor_digest(each, framed=False) == STANDARD["blake3"](logical_bytes(each))


def test_negative_views_of_integers_are_their_values():
    tensor = torch._neg_view(torch.tensor([1, -2, 0]))
    assert tensor_digest(tensor) == tensor_digest(torch.tensor([-1, 2, 0]))


# -- what it costs -------------------------------------------------------------------------


def test_a_contiguous_tensor_is_not_copied_and_stays_resizable():
    tensor = torch.zeros(1000)
    view = _C.borrowed_bytes(tensor)
    assert view.nbytes == 4000
    assert view.readonly
    del view
    tensor_digest(tensor)
    tensor.resize_(2000)


def test_a_strided_tensor_is_read_in_blocks_of_a_megabyte():
    tensor = torch.arange(3 << 20, dtype=torch.int32).reshape(1 << 10, 3 << 10).t()
    blocks = _C.HostBlocks(tensor, 1 << 20)
    hasher = blake3()
    while (block := blocks.next()) is not None:
        assert block.nbytes <= 1 << 20
        hasher.update(block)
    assert hasher.digest() == STANDARD["blake3"](tensor_data(tensor))


def test_a_strided_tensor_takes_less_than_four_megabytes():
    code = """
import resource, torch
from staging import tensor_digest
tensor = torch.zeros(4096, 4096)
tensor.fill_(1)
view = tensor.t()
tensor_digest(view[:512, :512])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for algorithm in ("blake3", "sha256", "xxh3_128"):
    tensor_digest(view, algorithm)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4096, "KiB"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_hashing_does_not_hold_the_gil(algorithm):
    tensor = torch.zeros(64 << 20, dtype=torch.uint8)
    ticks = 0
    stop = threading.Event()

    def tick():
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            stop.wait(1e-4)

    def ticks_meanwhile(view: torch.Tensor) -> int:
        before = ticks
        tensor_digest(view, algorithm)
        return ticks - before

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        for view in (tensor, tensor.reshape(8192, 8192).t()):
            # The machine may be busy. Were the GIL held, there would be one tick at most.
            assert any(ticks_meanwhile(view) > 1 for _ in range(50))
    finally:
        stop.set()
        thread.join()


# -- handles -------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_a_handle_gives_the_digest(device):
    tensor = torch.arange(1000).to(device)
    for algorithm in ALGORITHMS:
        for framed in (True, False):
            handle = digest_async(tensor, algorithm, framed)
            assert handle.wait(60)
            assert handle.done()
            assert handle.result() == tensor_digest(tensor, algorithm, framed)
            assert handle.result(timeout=0) == handle.result()
    both = digests_async([tensor, tensor.cpu().reshape(10, 100)])
    assert both.result() == tensor_digests([tensor, tensor.reshape(10, 100)])
    assert digests_async([]).result() == []


@pytest.mark.parametrize("device", DEVICES)
def test_a_handle_can_be_awaited(device):
    tensors = [torch.arange(n).to(device) for n in (10, 1000, 100_000)]

    async def gather():
        return await asyncio.gather(*(_await(digest_async(tensor)) for tensor in tensors))

    async def _await(handle):
        return await handle

    assert asyncio.run(gather()) == tensor_digests(tensors)


@contextlib.contextmanager
def held_digest():
    """A handle whose digest does not come in the block, what it will be, and its stream."""
    source = torch.arange(100_000)
    stream = torch.cuda.Stream()
    tensor = source.to("cuda")
    torch.cuda.synchronize()
    with sim.hold(stream.cuda_stream):
        yield digest_async(tensor, stream=stream), tensor_digest(source)


@pytest.mark.sim
def test_an_await_takes_no_thread_and_polls_nothing():
    async def scenario():
        with contextlib.ExitStack() as stack:
            handle, expected = stack.enter_context(held_digest())
            threads = threading.active_count()
            waiting = asyncio.ensure_future(_result_of(handle))
            await asyncio.sleep(0.02)
            with sim.count() as calls:
                await asyncio.sleep(0.2)
            assert threading.active_count() == threads
            assert calls["cudaEventQuery"] == 0
            assert not waiting.done()
            stack.close()  # the stream goes on
            assert await asyncio.wait_for(waiting, 60) == expected

    asyncio.run(scenario())


async def _result_of(handle):
    return await handle


@pytest.mark.sim
def test_a_cancelled_await_leaves_the_digest():
    async def scenario():
        with held_digest() as (handle, expected):
            for _ in range(3):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(_result_of(handle), 0.02)
            waiting = [asyncio.ensure_future(_result_of(handle)) for _ in range(3)]
            await asyncio.sleep(0.02)
            waiting[1].cancel()
        assert await asyncio.wait_for(waiting[0], 60) == expected
        assert await asyncio.wait_for(waiting[2], 60) == expected
        with pytest.raises(asyncio.CancelledError):
            await waiting[1]
        assert await handle == expected

    asyncio.run(scenario())


@pytest.mark.sim
def test_an_event_loop_may_end_while_a_digest_is_awaited():
    with held_digest() as (handle, expected):

        async def scenario():
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(_result_of(handle), 0.02)

        asyncio.run(scenario())
        lost = asyncio.new_event_loop()
        task = lost.create_task(_result_of(handle))
        lost.call_later(0.02, lost.stop)
        lost.run_forever()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            lost.run_until_complete(task)
        lost.close()
    assert asyncio.run(_result_of(handle)) == expected


@pytest.mark.sim
def test_an_await_ends_with_the_error_of_the_device():
    async def scenario():
        with held_digest() as (handle, expected):
            waiting = asyncio.ensure_future(_result_of(handle))
            await asyncio.sleep(0.02)
            with sim.fault("cudaEventQuery") as fault, pytest.raises(DeviceError):
                await asyncio.wait_for(waiting, 60)  # the loop looks now and then
            assert fault.happened
        assert await handle == expected

    asyncio.run(scenario())


@pytest.mark.sim
def test_digests_of_several_devices_are_awaited_together():
    source = torch.arange(100_000)
    tensors = [source.to(f"cuda:{i}") for i in range(torch.cuda.device_count())]

    async def scenario():
        with sim.policy("lazy"):
            return await digests_async([*tensors, source, tensors[0].reshape(100, -1).t()])

    assert asyncio.run(scenario()) == tensor_digests(
        [source for _ in tensors] + [source, source.reshape(100, -1).t()]
    )


@pytest.mark.sim
def test_a_handle_waits_for_nothing_and_times_out():
    sim.set_policy("lazy")
    tensor = torch.arange(100_000).to("cuda")
    sim.run_all()
    with sim.count() as counts:
        handle = digest_async(tensor)
    assert not any("Synchronize" in name for name in counts)
    assert not handle.done()
    with pytest.raises(TimeoutError, match="not there after 0"):
        handle.result(timeout=0)
    assert handle.result() == tensor_digest(tensor.cpu())


@pytest.mark.sim
@pytest.mark.parametrize("policy", ["lazy", "random"])
def test_later_work_on_the_stream_does_not_change_the_digest(policy, seed):
    sim.set_policy(policy, seed=seed)
    tensor = torch.full((100_000,), 7.0, device="cuda")
    expected = tensor_digest(torch.full((100_000,), 7.0))
    handle = digest_async(tensor)
    tensor.fill_(8.0)
    assert handle.result() == expected


def take_freed_memory(count: int, value: float) -> None:
    torch.full((count,), value, device="cuda")
    torch.cuda.current_stream().synchronize()


@pytest.mark.sim
@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_the_tensor_may_be_dropped_while_it_is_hashed(whose, seed):
    sim.set_policy("lazy", seed=seed)
    expected = tensor_digest(torch.full((1000,), 7.0))
    with contextlib.ExitStack() as streams:
        side = torch.cuda.Stream() if whose == "ours" else streams.enter_context(external_stream())
        for _ in range(20):
            tensor = torch.full((1000,), 7.0, device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            handle = digest_async(tensor, stream=side)
            del tensor
            take_freed_memory(1000, 9.0)
            assert handle.result() == expected


@pytest.mark.sim
def test_an_interrupted_read_keeps_the_memory_until_its_copies_are_done(monkeypatch):
    """In blocks, on a stream that PyTorch's allocator must not be told of."""
    count = 3 << 18  # three blocks of floats; the first has arrived when it is interrupted

    class Interrupted:
        def update(self, block):
            raise KeyboardInterrupt

    with sim.policy("lazy"), external_stream() as side:
        for _ in range(4):
            tensor = torch.full((count,), 7.0, device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            address = tensor.data_ptr()
            monkeypatch.setattr(digest_module, "new_hasher", lambda *args: Interrupted())
            with pytest.raises(KeyboardInterrupt):
                tensor_digest(tensor, "sha256", stream=side)
            monkeypatch.undo()
            del tensor
            gc.collect()
            assert torch.full((count,), 9.0, device="cuda").data_ptr() != address
        sim.run_all()


@pytest.mark.sim
def test_a_dropped_handle_leaves_nothing():
    sim.set_policy("lazy")
    tensor = torch.arange(1000, device="cpu").to("cuda")
    for _ in range(50):
        digest_async(tensor)
    gc.collect()
    sim.run_all()
    from staging import pinned_stats

    before = pinned_stats()
    for _ in range(500):
        digest_async(tensor)
        sim.run_all()
    after = pinned_stats()
    assert after.count == before.count
    assert after.allocated == before.allocated


# -- devices and streams -------------------------------------------------------------------


@pytest.mark.sim
def test_only_the_digest_comes_back():
    tensor = torch.arange(1_000_000).to("cuda")
    strided = tensor.reshape(1000, 1000).t()
    tensor_digests([tensor, strided])
    for batch, nbytes in (([tensor], 32), ([strided], 32), ([tensor, strided], 64)):
        torch.cuda.synchronize()
        with sim.record() as calls:
            tensor_digests(batch)
        copies = [call for call in calls if call.name.startswith("cudaMemcpy")]
        assert [call.nbytes for call in copies] == [nbytes]
        launches = [call for call in calls if call.name == "cudaLaunchKernel"]
        assert len(launches) == 2  # chunks, and one level of trees


@pytest.mark.sim
def test_a_requests_images_take_one_launch():
    images = [torch.randint(0, 256, (40, 40, 3), dtype=torch.uint8) for _ in range(30)]
    images = [image.permute(2, 0, 1) if i % 2 else image for i, image in enumerate(images)]
    on_device = [image.to("cuda") for image in images]
    tensor_digests(on_device)
    torch.cuda.synchronize()
    with sim.count() as counts:
        digests = tensor_digests(on_device)
    assert counts["cudaLaunchKernel"] == 1
    assert digests == tensor_digests(images)


@pytest.mark.sim
def test_other_algorithms_read_a_device_tensor_in_blocks():
    tensor = torch.arange(1_000_000).to("cuda")
    torch.cuda.synchronize()
    with sim.record() as calls:
        digest = tensor_digest(tensor, "sha256", framed=False)
    copies = [call.nbytes for call in calls if call.name.startswith("cudaMemcpy")]
    assert sum(copies) == tensor.nbytes
    assert max(copies) == 1 << 20
    assert digest == hashlib.sha256(tensor.cpu().numpy().tobytes()).digest()


@pytest.mark.sim
@pytest.mark.parametrize("algorithm", ["blake3", "sha256"])
def test_it_runs_on_the_stream_that_is_given(algorithm):
    tensor = torch.arange(1000).to("cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    for context, stream in ((side, None), (torch.cuda.current_stream(), side)):
        with torch.cuda.stream(context), sim.record() as calls:
            tensor_digest(tensor, algorithm, stream=stream)
        work = [c for c in calls if c.name.startswith(("cudaMemcpy", "cudaLaunch"))]
        assert work
        assert {call.stream for call in work} == {side.cuda_stream}


@pytest.mark.sim
def test_the_current_device_stays():
    if torch.cuda.device_count() < 2:
        pytest.skip("one device")
    tensor = torch.arange(1000).to("cuda:1")
    for algorithm in ALGORITHMS:
        assert tensor_digest(tensor, algorithm) == tensor_digest(tensor.cpu(), algorithm)
    mixed = [tensor, tensor.to("cuda:0"), tensor.cpu()]
    assert len(set(tensor_digests(mixed))) == 1
    assert torch.cuda.current_device() == 0


@pytest.mark.sim
def test_a_stream_of_another_device_is_refused():
    if torch.cuda.device_count() < 2:
        pytest.skip("one device")
    stream = torch.cuda.Stream("cuda:1")
    for algorithm in ("blake3", "sha256"):
        with pytest.raises(ValueError, match="stream must belong to"):
            tensor_digest(torch.ones(3, device="cuda:0"), algorithm, stream=stream)


@pytest.mark.cuda
@pytest.mark.parametrize("algorithm", ["blake3", "sha256"])
def test_under_capture_it_is_refused(algorithm):
    tensor = torch.ones(10, device="cuda")
    tensor_digest(tensor, algorithm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor.fill_(2.0)
        with pytest.raises(RuntimeError, match="captures a CUDA graph"):
            tensor_digest(tensor, algorithm)
    graph.replay()
    assert tensor_digest(tensor, algorithm) == tensor_digest(torch.full((10,), 2.0), algorithm)


@pytest.mark.cuda
def test_the_default_device_and_inference_mode_do_not_matter():
    tensor = torch.arange(10)
    expected = tensor_digest(tensor)
    with torch.inference_mode():
        assert tensor_digest(tensor) == expected
        assert tensor_digest(tensor.to("cuda")) == expected
    torch.set_default_device("cuda")
    try:
        assert tensor_digest(tensor) == expected
        assert tensor_digest(tensor.reshape(2, 5).t()) == tensor_digest(tensor.reshape(2, 5).t())
    finally:
        torch.set_default_device("cpu")


@pytest.mark.cuda
def test_threads_hash_at_once():
    tensors = [torch.full((50_000,), float(i), device="cuda") for i in range(4)]
    expected = [tensor_digest(tensor.cpu()) for tensor in tensors]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(10):
            if tensor_digest(tensors[i]) != expected[i]:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
