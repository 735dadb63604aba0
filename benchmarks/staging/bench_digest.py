"""tensor_digest beside the packages it uses, and beside a copy followed by a hash.

python -m pytest benchmarks/staging/bench_digest.py

On a GPU it also compares BLAKE3 on the device with what is done today, and with a plain read
of the same memory as the ceiling. Over the simulated device the same code runs at a thousandth
of the sizes, and shows the host's times alone: it has no device times.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable

import pytest
import torch
import xxhash
from compare import Comparison, compare

from staging import copy_slice, digest_async, sim, tensor_digest, tensor_digests
from staging.extension import _C

MiB = 1 << 20

try:
    import blake3
except ImportError:  # what compares with it is left out, and the titles say so
    blake3 = None
LEFT_OUT = "" if blake3 else "; without the package blake3"

PACKAGES: dict[str, Callable[[memoryview], bytes]] = {
    "blake3": lambda data: blake3.blake3(data).digest(),
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "xxh3_128": lambda data: xxhash.xxh3_128(data).digest(),
}


def threaded_blake3(data):
    if blake3 is None:
        hasher = _C.Blake3()
        hasher.update(data)
        return hasher.digest()
    return blake3.blake3(data, max_threads=blake3.blake3.AUTO).digest()


def sha256(data):
    return hashlib.sha256(data).digest()


def plain_data(tensor):
    return tensor.flatten().contiguous().view(torch.uint8).numpy().data


def calls_for(nbytes: int) -> int:
    return max(1, min(2000, (8 * MiB) // max(nbytes, 1)))


@pytest.mark.parametrize("nbytes", [64, 4096, MiB, 64 * MiB])
@pytest.mark.parametrize("algorithm", PACKAGES)
def bench_contiguous_host_tensor(show, algorithm, nbytes):
    tensor = torch.randint(0, 256, (nbytes,), dtype=torch.uint8)
    data = plain_data(tensor)
    if algorithm == "blake3" and blake3 is None:
        pytest.skip("the package blake3 is not installed")
    package = PACKAGES[algorithm]
    if algorithm == "blake3" and nbytes >= MiB:
        package = threaded_blake3
    show(
        compare(
            f"{algorithm} of {nbytes} contiguous bytes on the host (host times)",
            {
                "package": lambda: package(data),
                "package, again": lambda: package(data),  # how much of a ratio is noise
                "plain": lambda: package(plain_data(tensor)),
                "staging, unframed": lambda: tensor_digest(tensor, algorithm, False),
                "staging, framed": lambda: tensor_digest(tensor, algorithm),
            },
            calls=calls_for(nbytes),
            rounds=9 if nbytes > MiB else 15,
        )
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def bench_transposed_host_tensor(show, dtype):
    if blake3 is None:
        pytest.skip("the package blake3 is not installed")
    tensor = torch.empty(4096, 64 * MiB // 4096 // dtype.itemsize, dtype=dtype).fill_(1).t()
    show(
        compare(
            f"blake3 of a transposed 64 MiB host tensor of {dtype} (host times)",
            {
                "copy, then hash": lambda: threaded_blake3(plain_data(tensor)),
                "staging": lambda: tensor_digest(tensor, framed=False),
            },
            calls=1,
            rounds=9,
        )
    )


# -- on a device ---------------------------------------------------------------------------

SIMULATED = sim.active()
SCALE = 1024 if SIMULATED else 1

on_device = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device, real or simulated"
)


def random_on_device(nbytes: int) -> torch.Tensor:
    tensor = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    part = torch.randint(0, 256, (min(nbytes, 64 * MiB),), dtype=torch.uint8)
    for at in range(0, nbytes, part.numel()):
        to = tensor[at : at + part.numel()]
        to.copy_(part[: to.numel()])
    return tensor


def device_us(work: Callable[[], object], rounds: int = 9) -> float | None:
    """Return the device's median time for ``work``, in µs, measured with events.

    None over the simulated device, where ``work`` runs once and is not timed.
    """
    work()
    torch.cuda.synchronize()
    if SIMULATED:
        return None
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1000)
    return statistics.median(times)


def host_us(work: Callable[[], object], rounds: int) -> float:
    """Return the median time until ``work`` returns, in µs."""
    work()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def comparison(
    title: str, where: str, medians_us: dict[str, float | None], nbytes: int | None = None
) -> Comparison:
    """Name what was measured. Throughputs are those of a GPU, or not shown."""
    measured = {name: us for name, us in medians_us.items() if us is not None}
    if nbytes is not None and not SIMULATED:
        measured = {f"{name} ({nbytes / us / 1e3:.1f} GB/s)": us for name, us in measured.items()}
    return Comparison(f"{title} ({where})", measured)


@on_device
@pytest.mark.parametrize("nbytes", [MiB // SCALE, 64 * MiB // SCALE, 1024 * MiB // SCALE])
def bench_blake3_on_the_device(show, where, nbytes):
    tensor = random_on_device(nbytes)
    expected = threaded_blake3(plain_data(tensor.cpu()))
    assert tensor_digest(tensor, framed=False) == expected
    rounds = 3 if nbytes > 64 * MiB else 9
    shifted = torch.empty(nbytes + 16, dtype=torch.uint8, device="cuda")[2 : nbytes + 2]
    shifted.copy_(tensor)
    assert tensor_digest(shifted, framed=False) == expected
    medians = {
        "D2H, then sha256": host_us(
            lambda: hashlib.sha256(plain_data(tensor.cpu())).digest(), rounds
        ),
        "staging, until the digest is there": host_us(
            lambda: tensor_digest(tensor, framed=False), rounds
        ),
        "staging, device time": device_us(lambda: digest_async(tensor, framed=False)),
        "staging, device time, 2 bytes off": device_us(lambda: digest_async(shifted, framed=False)),
    }
    if blake3:
        medians["D2H, then blake3"] = host_us(
            lambda: threaded_blake3(plain_data(tensor.cpu())), rounds
        )
    if not SIMULATED:  # PyTorch's reduction is no kernel that it has
        words = tensor.view(torch.int64)
        medians["a plain read (sum), device time"] = device_us(words.sum)
    show(comparison(f"blake3 of {nbytes} bytes on the device{LEFT_OUT}", where, medians, nbytes))


@on_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def bench_blake3_of_a_transposed_device_tensor(show, where, dtype):
    nbytes = 256 * MiB // SCALE
    rows = 8192 if not SIMULATED else 256
    tensor = random_on_device(nbytes).view(dtype).reshape(rows, -1)
    view = tensor.t()

    def copied() -> torch.Tensor:
        # PyTorch's copy, but for the simulated device, which has none.
        if not SIMULATED:
            return view.contiguous()
        dense = torch.empty(view.shape, dtype=dtype, device="cuda")
        return copy_slice(view, dense, len(view))

    assert tensor_digest(view) == tensor_digest(copied())
    medians = {
        "copy together, then hash": device_us(lambda: digest_async(copied(), framed=False)),
        "staging": device_us(lambda: digest_async(view, framed=False)),
        "staging, not transposed": device_us(lambda: digest_async(tensor, framed=False)),
    }
    if not SIMULATED:
        title = f"blake3 of a transposed {nbytes} bytes of {dtype} on the device, device times"
        show(comparison(title, torch.cuda.get_device_name(), medians, nbytes))


@on_device
def bench_a_requests_images(show, where):
    side = 448 if not SIMULATED else 32
    package = threaded_blake3 if blake3 else sha256
    images = [random_on_device(3 * side * side).reshape(3, side, side) for _ in range(16)]
    show(
        comparison(
            f"16 images of {3 * side * side} bytes, until the digests are there",
            where,
            {
                f"D2H, then {package.__name__}, each": host_us(
                    lambda: [package(plain_data(image.cpu())) for image in images], 9
                ),
                "tensor_digest, each": host_us(
                    lambda: [tensor_digest(image) for image in images], 9
                ),
                "tensor_digests": host_us(lambda: tensor_digests(images), 9),
            },
        )
    )
