"""A pair of host and device arrays whose copies cannot race."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from staging.extension import _C, torch

if TYPE_CHECKING:
    import numpy.typing as npt

Reuse = Literal["snapshot"]

_POLICIES = ("snapshot",)


class CpuGpuBuffer(_C.Buffer):
    """A host array, a device array of the same shape, and the copies between them.

    ``copy_to_gpu`` takes the host array's bytes before it returns, so the array can be
    overwritten for the next step at once, through any view of it. ``cpu`` and ``np`` wait for
    a copy to the host that is still in flight before they are read; when none is, they are
    plain attributes.

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
        Pin the host array. By default where ``device`` is a CUDA device.
    with_numpy : bool
        Make ``np``. bfloat16, float8 and float4 have no NumPy dtype of their own: ``np`` is
        then of an ``ml_dtypes`` dtype.
    reuse : {"snapshot"}
        How the host array is protected while a copy to the device is in flight. "snapshot":
        the bytes are first put into a pinned slot, which the transfer reads.

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
        A dtype without a NumPy counterpart, an unknown ``reuse``.

    Notes
    -----
    The buffer orders its own copies, on whatever streams they are. It does not order other
    readers of ``gpu``: those belong to the caller, as with any tensor.

    One buffer may be used from several threads at once; whose copy comes first is theirs to
    decide.
    """

    cpu: torch.Tensor
    gpu: torch.Tensor
    np: npt.NDArray[Any]

    def __init__(
        self,
        *size: int | torch.SymInt | tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device | str | int,
        pin_memory: bool | None = None,
        with_numpy: bool = True,
        reuse: Reuse = "snapshot",
    ) -> None:
        if reuse not in _POLICIES:
            raise ValueError(f"reuse must be one of {', '.join(_POLICIES)}, got {reuse!r}")
        shape = _shape(size)
        place = torch.device(device)
        pin = place.type == "cuda" if pin_memory is None else pin_memory and place.type == "cuda"
        numpy_dtype = _numpy_dtype(dtype) if with_numpy else None
        # Ordinary mutable tensors, even where the constructor runs inside inference mode.
        with torch.inference_mode(False), torch.no_grad():
            cpu = torch.zeros(shape, dtype=dtype, device="cpu", pin_memory=pin)
            gpu = torch.zeros(shape, dtype=dtype, device=place)
        super().__init__(cpu, gpu, pin)
        self._host: dict[str, Any] = {"cpu": cpu}
        if with_numpy:
            array = cpu.view(torch.uint8).numpy() if numpy_dtype is not None else cpu.numpy()
            self._host["np"] = array if numpy_dtype is None else _view(array, numpy_dtype, shape)
        self.gpu = gpu
        self.__dict__.update(self._host)

    def copy_to_cpu(
        self, n: int | None = None, *, stream: torch.cuda.Stream | None = None
    ) -> torch.Tensor:
        """Copy the device array, or its first rows, to the host.

        Parameters
        ----------
        n
            How many rows of dimension 0; all of them by default.
        stream
            Instead of the current stream of the buffer's device.

        Returns
        -------
        torch.Tensor
            ``cpu`` or ``cpu[:n]``. This view, like any that was taken before, is not
            guarded: read it only after ``np`` or ``cpu`` has been read, or the stream
            has been waited for.

        Raises
        ------
        ValueError
            ``n`` is negative or larger than the buffer.
        RuntimeError
            The stream captures a CUDA graph, or the process was forked after CUDA was
            initialised.

        Notes
        -----
        Waits for nothing, except where the host array is not pinned: then it returns when
        the bytes are there. The next read of ``np`` or ``cpu`` waits for the copy.
        """
        view = self._copy_to_cpu(n, stream)
        # Behind the enqueueing, and in one step under the GIL: __getattr__ puts the names back
        # only while nothing is in flight.
        if self._in_flight():
            for name in self._host:
                self.__dict__.pop(name, None)
        return view

    @property
    def cp(self) -> Any:
        """A zero-copy CuPy view of ``gpu``; ImportError where CuPy is not installed."""
        import cupy

        return cupy.from_dlpack(self.gpu)

    def __getattr__(self, name: str) -> Any:
        """Hand out ``cpu`` and ``np`` after the copies that use the host array are done."""
        host = self.__dict__.get("_host", {})
        if name in host:
            while self._in_flight():
                self._wait()
            self.__dict__.update(host)
            return host[name]
        if name == "np":
            raise AttributeError("this CpuGpuBuffer was made with with_numpy=False and has no 'np'")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        """Shape, dtype and places."""
        gpu = self.gpu
        return (
            f"CpuGpuBuffer({', '.join(map(str, gpu.shape))}, dtype={gpu.dtype}, "
            f"device={str(gpu.device)!r}, pin_memory={self._host['cpu'].is_pinned()})"
        )


def _shape(size: tuple[Any, ...]) -> tuple[int, ...]:
    if len(size) == 1 and isinstance(size[0], (tuple, list)):
        size = tuple(size[0])
    return tuple(int(extent) for extent in size)


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any] | None:
    """Return the ml_dtypes dtype of ``dtype``, or None where NumPy has one of its own."""
    name = str(dtype).removeprefix("torch.")
    names = {
        "bfloat16": "bfloat16",
        "float8_e4m3fn": "float8_e4m3fn",
        "float8_e5m2": "float8_e5m2",
        "float8_e4m3fnuz": "float8_e4m3fnuz",
        "float8_e5m2fnuz": "float8_e5m2fnuz",
        "float8_e8m0fnu": "float8_e8m0fnu",
    }
    if name not in names:
        try:
            torch.empty(0, dtype=dtype).numpy()
        except (TypeError, RuntimeError) as error:
            raise ValueError(
                f"dtype {dtype} has no NumPy counterpart; pass with_numpy=False"
            ) from error
        return None
    try:
        import ml_dtypes
    except ImportError as error:
        raise ValueError(
            f"dtype {dtype} has no NumPy dtype of its own; pass with_numpy=False, or install "
            "ml_dtypes"
        ) from error
    dtype_of_ml: np.dtype[Any] = np.dtype(getattr(ml_dtypes, names[name]))
    return dtype_of_ml


def _view(
    array: npt.NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    return array.reshape(-1).view(dtype).reshape(shape)
