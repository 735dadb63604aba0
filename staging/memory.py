"""Pinned host tensors from a pool that is exact, observable, and safe to drop.

Pinned memory lets a transfer run while the host goes on. A block of this pool costs a page
more than was asked for at most, comes from the NUMA node of its GPU, and is handed out again
only after every copy that used it is done, whoever made the copy::

    t = staging.pinned_empty(1024, dtype=torch.int32)
    gpu = t.to("cuda", non_blocking=True)
    del t  # its memory is kept until the copy has read it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import SupportsIndex

from staging.arguments import device_argument, int_argument, shape_argument
from staging.data import copyable, resolved
from staging.extension import _C, torch

__all__ = [
    "PinnedStats",
    "install_pinned_allocator",
    "pin",
    "pinned_empty",
    "pinned_stats",
    "pinned_trim",
    "pinned_zeros",
    "set_pinned_huge_pages",
    "set_pinned_limit",
    "uninstall_pinned_allocator",
]


@dataclass(frozen=True)
class PinnedStats:
    """What the pinned pool holds; sizes in bytes.

    ``allocated == in_use + in_flight + cached + lost`` at any moment.
    """

    allocated: int
    """Pinned in all."""
    in_use: int
    """Of live tensors, to the page (small ones to 64 bytes)."""
    in_flight: int
    """Dropped, but a copy or a CUDA graph may still use it."""
    cached: int
    """Free: handed out next, or unpinned by ``pinned_trim``."""
    lost: int
    """Never handed out again: an error left it unknown whether a copy uses it."""
    peak: int
    """High-water mark of ``allocated``."""
    peak_in_use: int
    """High-water mark of ``in_use``."""
    limit: int | None
    """What ``set_pinned_limit`` allows; None: no limit."""
    count: int
    """Live tensors' blocks."""
    regions: int
    """Separate registrations with the driver."""
    allocations: int
    """Blocks handed out so far."""
    pinnings: int
    """Regions pinned so far; what is slow."""
    waits: int
    """Times that an allocation at the limit waited for a copy to end."""
    failures: int
    """Runtime calls that failed here. Each was reported to its caller."""


def pinned_empty(
    *size: SupportsIndex | Sequence[SupportsIndex],
    dtype: torch.dtype | None = None,
    device: torch.device | str | int | None = None,
    numa_node: int | None = None,
) -> torch.Tensor:
    """Return an uninitialised CPU tensor in pinned memory.

    Parameters
    ----------
    *size
        The shape, as for ``torch.empty``: ints, or one sequence of them. Sizes may be 0.
    dtype
        ``torch.get_default_dtype()`` by default.
    device
        The GPU that the memory should be near, and whose context pins new memory. By default
        the current one, or one that has a context already. The tensor can be copied to and
        from any GPU.
    numa_node
        Take the memory from this node, whichever is near.

    Returns
    -------
    torch.Tensor
        On the CPU; ``is_pinned()`` is true. An ordinary tensor in every other way: it may be
        resized, viewed, shared between threads, and dropped while a copy is in flight.

    Raises
    ------
    ValueError
        A negative size, a quantized dtype, a device that is not a GPU, a NUMA node that is not
        online.
    TypeError
        A size that is no int, a dtype that is none.
    OutOfMemory
        The limit, or the system's memory, does not suffice.
    DeviceError
        The runtime refused to pin the memory, or lost the device.
    RuntimeError
        The process was forked after CUDA was initialised.

    Notes
    -----
    Initialises CUDA. Waits for nothing, except where the limit is reached or the system is
    short: then for copies that still use dropped tensors. Pinning new memory is slow: keep
    tensors, or let the pool keep their memory.

    PyTorch reports its non-blocking copies to the pool through the host allocator that is
    registered for CUDA, so the first call puts one in front of PyTorch's own; nothing else
    about PyTorch's changes (see ``install_pinned_allocator``). A copy that PyTorch does not
    make (another library, given ``data_ptr()``) is not seen: keep the tensor until it is done.

    A forked child must not use the tensor: it sees the parent's memory.

    On a machine without a GPU, or a build without CUDA, the memory is ordinary and
    ``is_pinned()`` is false.
    """
    dtype = torch.get_default_dtype() if dtype is None else dtype
    shape = list(shape_argument(size, dtype))
    tensor: torch.Tensor = _C.pinned_empty(shape, None, dtype, _near(device), _node(numa_node))
    return tensor


def pinned_zeros(
    *size: SupportsIndex | Sequence[SupportsIndex],
    dtype: torch.dtype | None = None,
    device: torch.device | str | int | None = None,
    numa_node: int | None = None,
) -> torch.Tensor:
    """Return a CPU tensor of zeros in pinned memory.

    Parameters, errors and notes are those of ``pinned_empty``.

    Returns
    -------
    torch.Tensor
        On the CPU, pinned, filled with zeros.
    """
    return zero_bytes(pinned_empty(*size, dtype=dtype, device=device, numa_node=numa_node))


def zero_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Fill the memory of a tensor that was made just now with zeros, and return it.

    PyTorch has no fill for some dtypes (float4_e2m1fn_x2, the ints of one to seven bits).
    """
    image = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    image.set_(tensor.untyped_storage()).zero_()
    return tensor


def pin(
    tensor: torch.Tensor,
    *,
    device: torch.device | str | int | None = None,
    numa_node: int | None = None,
) -> torch.Tensor:
    """Return a copy of a CPU tensor in pinned memory, or the tensor itself if it is pinned.

    Parameters
    ----------
    tensor
        A dense CPU tensor. Its strides are kept where it has no gaps and no overlaps;
        else the copy is contiguous.
    device, numa_node
        As for ``pinned_empty``.

    Returns
    -------
    torch.Tensor
        Pinned, of the same dtype, shape and values. Not part of the autograd graph, as with
        ``Tensor.pin_memory``.

    Raises
    ------
    TypeError
        Not a tensor, or one without a flat memory on the CPU (a GPU's, sparse, nested, meta), or
        a quantized one.
    OutOfMemory, DeviceError, RuntimeError
        As for ``pinned_empty``.

    Notes
    -----
    The copy is made before it returns; the original may be overwritten at once.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise TypeError(
            f"tensor must be a dense CPU tensor, got a {kind} one on {tensor.device}. "
            "Bring it to the CPU first (tensor.cpu(), tensor.to_dense())"
        )
    if tensor.is_quantized:
        raise TypeError(
            f"tensor must not be quantized, got one of {tensor.dtype}; pin its integers "
            "(tensor.int_repr())"
        )
    if torch.cuda.is_available() and tensor.is_pinned():
        return tensor
    with torch.no_grad():
        source = resolved(tensor)
        strides = torch.empty_like(source, device="meta").stride()
        pinned: torch.Tensor = _C.pinned_empty(
            list(source.shape), list(strides), source.dtype, _near(device), _node(numa_node)
        )
        copyable(pinned).copy_(copyable(source))
        return pinned


def pinned_stats() -> PinnedStats:
    """Return what the pinned pool of this process holds.

    Returns
    -------
    PinnedStats
        All zero before the first use of the pool. PyTorch's own pinned memory is not in it,
        unless ``install_pinned_allocator`` was called.

    Notes
    -----
    Never initialises CUDA. Looks which copies are over first; waits for none.
    """
    return PinnedStats(**_C.pinned_stats())


def pinned_trim() -> int:
    """Unpin the memory that no tensor and no copy in flight uses.

    Returns
    -------
    int
        The number of bytes given back to the system.

    Notes
    -----
    Waits for no copy. Unpinning takes time, and the driver may hold up other work meanwhile:
    call it when load has gone down, not on every step.
    """
    return int(_C.pinned_trim())


def set_pinned_limit(nbytes: int | None) -> None:
    """Limit what the pinned pool of this process may hold.

    Parameters
    ----------
    nbytes
        Bytes in all, of live tensors, copies in flight and the cache; None: no limit.

    Raises
    ------
    ValueError
        A negative number.
    TypeError
        Not an int.

    Notes
    -----
    At the limit an allocation unpins what is cached, then waits for copies that still use
    dropped tensors, and fails with OutOfMemory where that does not suffice. A lower limit than
    what is pinned unpins the cache at once and leaves live tensors alone. May be called before
    CUDA is initialised, and does not initialise it.
    """
    if nbytes is not None:
        if isinstance(nbytes, bool):
            raise TypeError(f"nbytes must be an int or None, got {nbytes}")
        nbytes = int_argument(nbytes, "nbytes", least=0)
    _C.set_pinned_limit(nbytes)


def set_pinned_huge_pages(enabled: bool) -> None:
    """Ask for huge pages behind pinned memory of 2 MiB and more that is made from now on.

    Parameters
    ----------
    enabled
        False is the default.

    Notes
    -----
    They make pinning quicker and the GPU's address translation cheaper. It is a wish: a
    kernel whose ``transparent_hugepage`` is ``never``, or that has none free, uses small pages.
    Such memory is not inherited by forked children, which fault where they touch it.
    """
    _C.set_pinned_huge_pages(bool(enabled))


def install_pinned_allocator() -> None:
    """Make the pinned pool PyTorch's own host allocator.

    From now on ``tensor.pin_memory()``, ``torch.empty(..., pin_memory=True)`` and data loaders
    with ``pin_memory=True`` take their memory from the pool: to the page instead of to the
    next power of two, within ``set_pinned_limit``, and seen in ``pinned_stats``. Pinned tensors
    that exist already stay as they are. Calling it again does nothing.

    Raises
    ------
    RuntimeError
        There is no GPU, or the build has no CUDA, or the process was forked after CUDA was
        initialised.

    Notes
    -----
    Initialises CUDA. Call it before other threads copy to or from GPUs: PyTorch does not
    synchronise the exchange of its allocator with copies that run at that moment.

    ``torch.cuda.host_memory_stats()`` then counts the pool's memory too. Its allocation
    histories do not show it.
    """
    _initialise()
    _C.own_pinned(True)


def uninstall_pinned_allocator() -> None:
    """Let PyTorch's host allocator serve PyTorch's pinned memory again.

    Tensors that the pool serves stay valid and protected.
    """
    if _C.owns_pinned():
        _C.own_pinned(False)


def _initialise() -> bool:
    """Initialise CUDA through PyTorch, so that ``is_pinned`` is answered; whether there is any."""
    # False in a forked child, where init() says what is wrong.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return _C.built_with_cuda
    if not (_C.built_with_cuda and torch.cuda.is_available()):
        return False
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return True


def _near(device: torch.device | str | int | None) -> int:
    """Return the index of a GPU; -1 for the default, or where there is none."""
    has_cuda = _initialise()
    if device is None:
        return -1
    # Without a GPU any of them will do.
    place = device_argument(device, "cuda", exists=has_cuda)
    return -1 if not has_cuda or place.index is None else place.index


def _node(numa_node: int | None) -> int:
    if numa_node is None:
        return -1
    numa_node = int_argument(numa_node, "numa_node")
    if numa_node not in _C.online_nodes():
        raise ValueError(
            f"numa_node must be one of the online nodes {_C.online_nodes()} or None, "
            f"got {numa_node}"
        )
    return numa_node
