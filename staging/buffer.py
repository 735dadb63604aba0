"""A pair of host and device arrays whose copies cannot race."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from staging.arguments import device_argument, flag_argument, shape_argument, shown
from staging.extension import _C, torch
from staging.fetch import Fetch
from staging.host_guard import class_without, guarded_class, open_class
from staging.memory import pinned_zeros, zero_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

Reuse = Literal["snapshot", "wait", "unchecked"]

_POLICIES = ("snapshot", "wait", "unchecked")


class CpuGpuBuffer(_C.Buffer):
    """A host array, a device array of the same shape, and the copies between them.

    ``copy_to_gpu`` takes the host array's bytes before it returns, so the array can be
    overwritten for the next step at once, through any view of it. ``cpu`` and ``np`` wait for
    a copy that uses the host array before they are read; when none does, they are plain
    attributes.

    Parameters
    ----------
    *size : int
        The shape, as for ``torch.zeros``; one ``torch.Size`` or tuple is accepted too. Any
        size may be 0.
    dtype : torch.dtype
        Of both arrays.
    device : torch.device or str or int
        Where ``gpu`` is. On ``cpu`` and ``meta`` copies are immediate and nothing is pinned.
    pin_memory : bool, optional
        Pin the host array, in memory of the pool that ``staging.pinned_stats`` shows. By default
        where ``device`` is a CUDA device.
    with_numpy : bool
        Make ``np``. bfloat16, float8, complex32 and bcomplex32 have no NumPy dtype of their
        own: ``np`` is then of an ``ml_dtypes`` dtype. float4_e2m1fn_x2, the ints of one to
        seven bits and the bits types have none there either.
    reuse : {"snapshot", "wait", "unchecked"}
        How the host array is protected while a copy to the device is in flight.

        ``"snapshot"``: its bytes are first put into a pinned slot, which the transfer reads.
        It may be overwritten at once. Costs a host copy.

        ``"wait"``: the transfer reads the array itself, and reading ``np`` or ``cpu`` waits
        for the transfer. A view that was taken before must not be written until then.

        ``"unchecked"``: the transfer reads the array itself, and nothing is guarded, in
        neither direction: for those who synchronize themselves. Memory in flight is kept
        alive and the buffer's copies stay in order all the same.
    name : str
        For profilers, see ``staging.nvtx_ranges``.

    Attributes
    ----------
    cpu : torch.Tensor
        The host array. Its contents and its address are stable.
    gpu : torch.Tensor
        The device array, at a fixed address.
    np : numpy.ndarray
        A view of ``cpu``. Where ``with_numpy`` is False, AttributeError.

    Raises
    ------
    ValueError
        A dtype without a NumPy counterpart, a quantized dtype, an unknown ``reuse``, or a
        ``reuse`` other than "snapshot" without pinned memory.
    OutOfMemory
        The pinned memory does not suffice, or ``staging.set_pinned_limit`` forbids it.
    RuntimeError
        The current stream of the device captures a CUDA graph: every replay would clear
        ``gpu``.

    Notes
    -----
    The buffer orders its own copies, on whatever streams they are, behind each other and behind
    the fill of ``gpu`` with zeros, which runs on the stream that is current here. It does not
    order other readers of ``gpu``: those belong to the caller, as with any tensor.

    One buffer may be used from several threads at once: each call is whole, and whose comes
    first is theirs to decide.

    While the device uses the host array, the object's class is a subclass of its own class
    with the same name (see ``staging.host_guard``).
    """

    __slots__ = ("__dict__", "_numpy_dtype", "_shape", "cpu", "gpu", "np")

    cpu: torch.Tensor
    gpu: torch.Tensor
    np: npt.NDArray[Any]
    _numpy_dtype: Any  # of np; None without it
    _shape: tuple[int, ...]  # of the arrays as they were made

    def __init__(
        self,
        *size: int | torch.SymInt | tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device | str | int,
        pin_memory: bool | None = None,
        with_numpy: bool = True,
        reuse: Reuse = "snapshot",
        name: str = "",
    ) -> None:
        if not isinstance(reuse, str):
            raise TypeError(f"reuse must be a str, got {shown(reuse)}")
        if reuse not in _POLICIES:
            raise ValueError(f"reuse must be one of {', '.join(_POLICIES)}, got {shown(reuse)}")
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, got {shown(name)}")
        with_numpy = flag_argument(with_numpy, "with_numpy")
        if pin_memory is not None:
            pin_memory = flag_argument(pin_memory, "pin_memory")
        shape = shape_argument(size, dtype)
        place = device_argument(device, "cuda", "cpu", "meta")
        pin = place.type == "cuda" if pin_memory is None else pin_memory and place.type == "cuda"
        if reuse != "snapshot" and place.type == "cuda" and not pin:
            raise ValueError(
                f"reuse={reuse!r} lets the transfer read the host array itself, which needs "
                f"pin_memory=True; got pin_memory={pin_memory}"
            )
        ml_dtype = ml_dtype_of(dtype) if with_numpy else None
        # Ordinary mutable tensors, even where the constructor runs inside inference mode.
        with torch.inference_mode(False), torch.no_grad():
            # The device first: pinned memory then belongs to its context, not to one that
            # would be made for it on the current device.
            gpu = zero_bytes(torch.empty(shape, dtype=dtype, device=place))
            cpu = host_zeros(shape, dtype, pin=pin, near=gpu.device)
        self._set_up(
            cpu, gpu, pin=pin, with_numpy=with_numpy, ml_dtype=ml_dtype, reuse=reuse, name=name
        )

    def _set_up(
        self,
        cpu: torch.Tensor,
        gpu: torch.Tensor,
        *,
        pin: bool,
        with_numpy: bool,
        ml_dtype: Any,  # a NumPy dtype; None where NumPy has one of its own
        reuse: Reuse,
        name: str,
        group: _C.Group | None = None,
    ) -> None:
        super().__init__(cpu, gpu, pin, reuse, name, group)
        cls = open_class(type(self))
        if not with_numpy:
            cls = class_without(
                cls, "np", "this CpuGpuBuffer was made with with_numpy=False and has no 'np'"
            )
        if cls is not type(self):
            self.__class__ = cls
        self.cpu = cpu
        self.gpu = gpu
        self._shape = tuple(cpu.shape)
        self._numpy_dtype = None
        if with_numpy:
            self.np = numpy_view(cpu, ml_dtype)
            self._numpy_dtype = self.np.dtype
        self._set_guard(cls, guarded_class(cls, ("cpu", "np") if with_numpy else ("cpu",)))

    def fill(
        self, n: int | None = None, *, stream: torch.cuda.Stream | None = None
    ) -> AbstractContextManager[Any]:
        """Write the first ``n`` rows straight into pinned memory, and copy them when done.

        Saves the host copy of a snapshot. The host array is neither read nor written.

        Parameters
        ----------
        n
            How many rows of dimension 0; all of them by default.
        stream
            Instead of the stream of the buffer's device that is current when the block
            begins.

        Returns
        -------
        contextmanager
            Of a NumPy array of the ``n`` rows (a tensor where the buffer has no ``np``). Its
            contents are undefined: write every row. At the end of the block they are
            copied to ``gpu[:n]``, in order with the buffer's other copies, and the array
            becomes read-only. Where the block raises, nothing is copied.

        Raises
        ------
        ValueError
            ``n`` is negative or larger than the buffer.
        RuntimeError
            The stream captures a CUDA graph, or the process was forked after CUDA was
            initialised.

        Notes
        -----
        Waits for nothing, except at the beginning for the oldest copy in flight where the
        stream has more in flight than ``staging.set_upload_limit`` allows.

        Examples
        --------
        >>> with buffer.fill(4) as rows:
        ...     rows[:] = token_ids
        """
        return _Fill(self, n, stream)

    def fetch(self, n: int | None = None, *, stream: torch.cuda.Stream | None = None) -> Fetch:
        """Copy the device array, or its first rows, to the host, into memory of their own.

        Parameters
        ----------
        n
            How many rows of dimension 0; all of them by default.
        stream
            Instead of the current stream of the buffer's device.

        Returns
        -------
        Fetch
            A handle to ask, to wait for, or to ``await``. Many may be in flight at once.

        Raises
        ------
        ValueError
            ``n`` is negative or larger than the buffer.
        OutOfMemory
            There is no pinned memory for the result.
        RuntimeError
            The stream captures a CUDA graph, or the process was forked after CUDA was
            initialised.

        Notes
        -----
        Waits for nothing. The copy sees the device array as it is on ``stream`` behind what
        was enqueued before; later copies of this buffer do not change it.
        """
        return Fetch(self._fetch(n, stream))

    def refill(self, n: int | None = None, *, stream: torch.cuda.Stream | None = None) -> None:
        """Give the next replay of a captured ``copy_to_gpu`` the host array's bytes of now.

        A copy that was captured in a CUDA graph reads pinned memory of its own at every
        replay. It has the bytes of the capture, or of the last refill. All graphs that captured
        a copy of this buffer read the same memory, and keep it, and ``gpu``, alive.

        Parameters
        ----------
        n
            How many rows of dimension 0; all of them by default.
        stream
            Where the replay will be launched: it is put behind this buffer's other copies so
            far. By default the current stream of the buffer's device.

        Raises
        ------
        RuntimeError
            No copy of this buffer was captured, or the stream captures.

        Notes
        -----
        Waits until every replay launched so far has read the memory, and for a copy into the
        host array. Refill and replay of one buffer belong to one thread.

        Examples
        --------
        >>> with torch.cuda.graph(graph):
        ...     model(buffer.copy_to_gpu())
        >>> for step in steps:
        ...     buffer.np[:] = step
        ...     buffer.refill()
        ...     graph.replay()
        """
        self._refill(n, stream)

    def stats(self) -> BufferStats:
        """Return what this buffer did so far.

        Notes
        -----
        Asks the runtime which copies are complete; waits for nothing.
        """
        return BufferStats(*self._stats())

    @property
    def cp(self) -> Any:
        """A zero-copy CuPy view of ``gpu``; ImportError where CuPy is not installed."""
        import cupy

        return cupy.from_dlpack(self.gpu)

    def __repr__(self) -> str:
        """Shape, dtype, places and policy."""
        gpu = self.gpu
        options = "" if self._reuse() == "snapshot" else f", reuse={self._reuse()!r}"
        return (
            f"CpuGpuBuffer({', '.join(map(str, gpu.shape))}, dtype={gpu.dtype}, "
            f"device={str(gpu.device)!r}, pin_memory={self._pinned()}{options})"
        )


@dataclass(frozen=True)
class BufferStats:
    """What a buffer did so far.

    Attributes
    ----------
    copies_to_gpu, copies_to_cpu, fetches
        Copies that were enqueued (on a CPU device: done); ``fill`` counts as a copy to the
        device. Copies of no rows are not counted.
    captured
        Copies that became part of a CUDA graph. Replays are not counted.
    bytes_to_gpu, bytes_to_cpu
        In those, fetches included, captured copies not.
    waits, waited_us
        How often a call waited for the device, and how long in all, in microseconds: reads of
        ``np`` and ``cpu``, refills, and copies that found the stream's limit reached.
    slots_in_flight
        Snapshots and fills whose copies are not complete.
    """

    copies_to_gpu: int
    copies_to_cpu: int
    fetches: int
    captured: int
    bytes_to_gpu: int
    bytes_to_cpu: int
    waits: int
    waited_us: int
    slots_in_flight: int


class _Fill:
    """The context manager of ``fill``; used once."""

    __slots__ = ("_buffer", "_n", "_slot", "_stream", "_view")

    def __init__(self, buffer: CpuGpuBuffer, n: int | None, stream: Any) -> None:
        self._buffer = buffer
        self._n = n
        self._stream = stream
        self._slot: Any = None
        self._view: Any = None

    def __enter__(self) -> Any:
        if self._slot is not None:
            raise RuntimeError("this fill was entered before; call fill() again")
        buffer = self._buffer
        self._slot = buffer._begin_fill(self._n, self._stream)
        shape = buffer._shape
        rows = self._slot.rows()  # not what n says now
        if rows >= 0:
            shape = (rows, *shape[1:])
        self._view = _slot_view(self._slot, buffer._numpy_dtype, buffer.gpu.dtype, shape)
        return self._view

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        view = self._view
        self._view = None
        if isinstance(view, np.ndarray):
            view.flags.writeable = False
        if kind is None:
            self._buffer._end_fill(self._slot)
        else:
            self._slot.abandon()


def _slot_view(
    slot: Any, numpy_dtype: np.dtype[Any] | None, dtype: torch.dtype, shape: tuple[int, ...]
) -> Any:
    if numpy_dtype is not None:
        # The array's base keeps the slot's memory.
        return np.ndarray(shape, numpy_dtype, buffer=slot)
    if 0 in shape:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(slot, dtype=torch.uint8).view(dtype).view(shape)


def host_zeros(
    shape: int | tuple[int, ...], dtype: torch.dtype, *, pin: bool, near: torch.device
) -> torch.Tensor:
    """Return a host tensor of zeros; pinned, it is of the pool and near the device ``near``."""
    if pin:
        return pinned_zeros(shape, dtype=dtype, device=near)
    return zero_bytes(torch.empty(shape, dtype=dtype, device="cpu"))


def numpy_dtype_of(dtype: torch.dtype) -> np.dtype[Any]:
    """Return the NumPy dtype of a torch dtype, of ``ml_dtypes`` where NumPy has none.

    Raises
    ------
    ValueError
        There is none, or ``ml_dtypes`` is not installed.
    """
    ml_dtype = ml_dtype_of(dtype)
    if ml_dtype is not None:
        return ml_dtype
    native: np.dtype[Any] = torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
    return native


# Not the ints of one to seven bits, nor float4_e2m1fn_x2: ml_dtypes has one of them in a byte,
# PyTorch leaves what the bytes mean to others, or has two.
_ML_DTYPES = frozenset(
    {
        "bcomplex32",
        "bfloat16",
        "complex32",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    }
)


def ml_dtype_of(dtype: torch.dtype) -> np.dtype[Any] | None:
    """Return the ml_dtypes dtype of ``dtype``, or None where NumPy has one of its own."""
    name = str(dtype).removeprefix("torch.")
    if name not in _ML_DTYPES:
        try:
            torch.empty(0, dtype=dtype, device="cpu").numpy()
        except (TypeError, RuntimeError) as error:
            raise ValueError(
                f"dtype {dtype} has no NumPy counterpart; pass with_numpy=False"
            ) from error
        return None
    try:
        import ml_dtypes

        dtype_of_ml: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError) as error:  # an older one lacks some
        raise ValueError(
            f"dtype {dtype} has no NumPy dtype of its own; pass with_numpy=False, or install "
            "ml_dtypes"
        ) from error
    return dtype_of_ml


def _no_bytes() -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cpu")


def numpy_view(cpu: torch.Tensor, dtype: np.dtype[Any] | None) -> npt.NDArray[Any]:
    """Return a view of a host tensor, of the dtype that `ml_dtype_of` has returned for it."""
    if dtype is None:
        native: npt.NDArray[Any] = cpu.numpy()
        return native
    flat = cpu.view(-1).view(torch.uint8) if cpu.numel() else _no_bytes()
    array: npt.NDArray[Any] = flat.numpy().view(dtype).reshape(tuple(cpu.shape))
    return array
