"""Pinned host memory that kernels of a device read in place (unified virtual addressing)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from staging.arguments import device_argument, flag_argument, int_argument, shape_argument, shown
from staging.buffer import ml_dtype_of, numpy_view
from staging.extension import _C, torch
from staging.memory import pinned_zeros

if TYPE_CHECKING:
    import numpy.typing as npt

# device index -> whether its view of pinned memory is live
_live: dict[int, bool] = {}


def uva_available(device: torch.device | str | int) -> bool:
    """Whether kernels of a device see what the host writes into pinned memory.

    Tried once for each device: small kernels read pinned memory between host writes.
    Under confidential computing a device may see a copy instead, and results would be silently
    wrong (vllm-project/vllm #50671, #57404).

    Parameters
    ----------
    device
        A CUDA device. For any other the answer is False.

    Notes
    -----
    The first call for a device waits for those kernels.
    """
    place = device_argument(device, "cuda", "cpu", "meta")
    if place.type != "cuda":
        return False
    index = torch.cuda.current_device() if place.index is None else place.index
    if index not in _live:
        _live[index] = _C.sees_host_writes(index)
    return _live[index]


def uva_view(tensor: torch.Tensor, device: torch.device | str | int = "cuda") -> torch.Tensor:
    """Return a pinned host tensor as a tensor of a device: the same memory, read in place.

    Parameters
    ----------
    tensor
        In pinned memory, with any strides.
    device
        Whose kernels are to use it.

    Returns
    -------
    torch.Tensor
        With the same shape and strides. It keeps the host memory alive; keep it in turn until
        the kernels that use it are done.

    Raises
    ------
    ValueError
        The tensor is not pinned, has no memory, or ``device`` is no CUDA device.
    RuntimeError
        The device cannot address the memory, or does not see host writes (see
        `uva_available`).

    Notes
    -----
    **This view is not guarded against races**: a kernel reads what the host has written by the
    time when it runs, be that before or after the launch. `UvaBuffer` with two slots or more
    is guarded.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor must be a torch.Tensor, got {shown(tensor)}")
    place = device_argument(device, "cuda")
    if not tensor.is_pinned():
        raise ValueError(
            "tensor must be in pinned memory; make it with staging.pinned_empty() or "
            "pin_memory=True (which gives ordinary memory under confidential computing)"
        )
    if not uva_available(place):
        raise RuntimeError(
            f"{place} does not see what the host writes into pinned memory, as has been reported "
            "under confidential computing; use a CpuGpuBuffer"
        )
    index = torch.cuda.current_device() if place.index is None else place.index
    return _C.uva_view(tensor, index)


class UvaBuffer:
    """A host array that a device reads in place, in one or several slots.

    Parameters
    ----------
    *size : int
        The shape, as for `CpuGpuBuffer`.
    dtype : torch.dtype
        Of the array.
    device : torch.device or str or int
        Whose kernels read it.
    slots : int
        1: one array, **not guarded**: kernels read what the host has written by the time when
        they run. 2 or more: guarded; each ``write`` fills another slot, behind an event that
        says that the kernels that read it before are done.
    with_numpy : bool
        Make ``np``.

    Attributes
    ----------
    guarded : bool
        Whether the host can overwrite what a kernel has still to read: not if True.

    Raises
    ------
    ValueError, RuntimeError
        As `uva_view`, or ``slots`` is less than 1.

    Notes
    -----
    With several slots the address of ``uva`` changes with each ``write``: a CUDA graph that was
    captured with one of them keeps reading that one.

    Examples
    --------
    >>> buffer = UvaBuffer(1024, dtype=torch.int32, device="cuda", slots=2)
    >>> with buffer.write() as array:
    ...     array[:3] = [1, 2, 3]
    >>> kernel(buffer.uva)
    """

    def __init__(
        self,
        *size: int | torch.SymInt | tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device | str | int,
        slots: int = 1,
        with_numpy: bool = True,
    ) -> None:
        slots = int_argument(slots, "slots", least=1)
        with_numpy = flag_argument(with_numpy, "with_numpy")
        shape = shape_argument(size, dtype)
        device = device_argument(device, "cuda")
        ml_dtype = ml_dtype_of(dtype) if with_numpy else None
        with torch.inference_mode(False), torch.no_grad():
            self._cpu = [pinned_zeros(shape, dtype=dtype, device=device) for _ in range(slots)]
            self._uva = [uva_view(cpu, device) for cpu in self._cpu]
        self._np: list[npt.NDArray[Any]] | None = None
        if with_numpy:
            self._np = [numpy_view(cpu, ml_dtype) for cpu in self._cpu]
        self._device: int = self._uva[0].device.index
        self._current = 0
        # Of each slot: what the kernels that may read it have to pass, since it was replaced.
        self._readers: list[_C.StreamPoint | None] = [None] * slots

    @property
    def guarded(self) -> bool:
        """Whether the host cannot overwrite what a kernel has still to read."""
        return len(self._cpu) > 1

    @property
    def uva(self) -> torch.Tensor:
        """The device's view of the slot that was written last."""
        return self._uva[self._current]

    @property
    def cpu(self) -> torch.Tensor:
        """The host tensor of that slot. Where the buffer is guarded: only to be read."""
        return self._cpu[self._current]

    @property
    def np(self) -> npt.NDArray[Any]:
        """A NumPy view of ``cpu``."""
        if self._np is None:
            raise AttributeError("this UvaBuffer was made with with_numpy=False and has no 'np'")
        return self._np[self._current]

    @contextmanager
    def write(self, *, stream: torch.cuda.Stream | None = None) -> Iterator[Any]:
        """Write the next slot, which becomes ``uva`` at the end of the block.

        Parameters
        ----------
        stream
            Where the kernels run that read ``uva`` so far; the current stream of the device
            by default. Kernels on other streams are the caller's to order behind it.

        Yields
        ------
        numpy.ndarray or torch.Tensor
            The slot's host array. Where the block raises, ``uva`` stays what it was.

        Raises
        ------
        RuntimeError
            The stream captures a CUDA graph, or the process was forked after CUDA was
            initialised.

        Notes
        -----
        Waits until the kernels that have read this slot are done: those of the last but one
        ``write``, with two slots. Where the buffer is not guarded it waits for nothing.
        """
        following = (self._current + 1) % len(self._cpu)
        readers = self._readers[following]
        if readers is not None:
            readers.wait()
        yield self._cpu[following] if self._np is None else self._np[following]
        if self.guarded:
            self._readers[self._current] = _C.StreamPoint(self._device, stream)
            self._readers[following] = None
        self._current = following

    def __repr__(self) -> str:
        """Shape, dtype, place and whether it is guarded."""
        uva = self.uva
        return (
            f"UvaBuffer({', '.join(map(str, uva.shape))}, dtype={uva.dtype}, "
            f"device={str(uva.device)!r}, slots={len(self._cpu)}, guarded={self.guarded})"
        )
