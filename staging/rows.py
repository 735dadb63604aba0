"""Sparse updates of large device tables: gathered on the host, applied in one launch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from staging import cost_table
from staging.arguments import device_argument, int_argument, shape_argument, shown
from staging.buffer import numpy_dtype_of
from staging.data import copyable, resolved
from staging.extension import _C, torch
from staging.memory import zero_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

    Values = torch.Tensor | npt.NDArray[Any] | Sequence[Any] | float


class StagedRows(_C.Rows):
    """A table on the device of which each step changes a few cells.

    A block table has megabytes, and a step appends some entries to some rows. ``stage`` takes
    such a write; ``apply`` packs all that were staged into one pinned slot and puts them into
    the table, with one launch.

    Parameters
    ----------
    rows, cols : int
        The table's shape.
    dtype : torch.dtype
        Of the table, any of whole bytes.
    device : torch.device or str or int
        Where the table is. On ``cpu`` writes are applied at once.
    name : str
        For profilers, see ``staging.nvtx_ranges``.

    Attributes
    ----------
    gpu : torch.Tensor
        The table, zero at first, at a fixed address.

    Raises
    ------
    ValueError
        A shape that cannot be, or a dtype of less than a byte.
    RuntimeError
        The current stream of the device captures a CUDA graph.

    Notes
    -----
    Writes have the effect of being applied in the order in which they were staged, also where
    they overlap. Applications come in the order of the calls, on whatever streams they are, and
    what follows one on its stream sees all of them, also where nothing was staged. Other
    readers of ``gpu`` are the caller's to order, as with any tensor.

    A table may be used from several threads at once; whose write comes first is then theirs
    to decide.

    Examples
    --------
    >>> table = StagedRows(256, 4096, torch.int32, "cuda")
    >>> table.stage(7, 12, [401, 402])  # table[7, 12:14]
    >>> table.apply()
    """

    gpu: torch.Tensor

    def __init__(
        self,
        rows: int,
        cols: int,
        dtype: torch.dtype,
        device: torch.device | str | int,
        *,
        name: str = "",
    ) -> None:
        shape = (int_argument(rows, "rows", least=0), int_argument(cols, "cols", least=0))
        shape_argument(shape, dtype, "rows and cols")
        place = device_argument(device, "cuda", "cpu")
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, got {shown(name)}")
        # An ordinary mutable tensor, even where the constructor runs inside inference mode.
        with torch.inference_mode(False), torch.no_grad():
            gpu = zero_bytes(torch.empty(shape, dtype=dtype, device=place))
        # None where there is no NumPy dtype at all: tensors only.
        self._dtype: np.dtype[Any] | None
        try:
            self._dtype = numpy_dtype_of(dtype)
        except ValueError:
            self._dtype = None
        super().__init__(gpu, _format_of(self._dtype), name)
        self.gpu = gpu
        if gpu.is_cuda:
            cost_table.use_stored(gpu.device.index)

    def stage(self, row: int, start: int, values: Values) -> None:
        """Take a write of ``gpu[row, start : start + len(values)]``.

        Parameters
        ----------
        row, start
            Where the values go.
        values
            One-dimensional: a NumPy array or a CPU tensor of the table's dtype, or a sequence
            of numbers. A single number is a write of one cell. Their bytes are taken: they
            may be overwritten at once.

        Raises
        ------
        TypeError
            An array or a tensor of another dtype, a tensor that is not on the CPU, or numbers
            of a kind that the table cannot have (floats for a table of ints, say).
        ValueError
            The write is out of bounds, a number is, or the values have several dimensions.

        Nothing was staged then.

        Notes
        -----
        Waits for nothing, and makes no CUDA call.
        """
        if self._stage(row, start, values):
            return
        if isinstance(values, torch.Tensor):
            self._stage_tensor(row, start, self._checked(values))
            return
        dtype = self._dtype
        if dtype is None:
            raise TypeError(
                f"values must be a torch.Tensor for a table of {self.gpu.dtype}, which has no "
                f"NumPy dtype; got {type(values).__name__}"
            )
        if isinstance(values, np.ndarray):
            if values.dtype != dtype:
                raise TypeError(
                    f"values must have the table's dtype {dtype}, got {values.dtype}; convert "
                    "them with .astype()"
                )
            array = values
        else:
            array = _numbers(values, dtype)
        if array.ndim > 1:
            raise ValueError(f"values must have one dimension, got {array.ndim}")
        self._stage_bytes(row, start, np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    def apply(self, *, stream: torch.cuda.Stream | None = None) -> torch.Tensor:
        """Enqueue what was staged; see :func:`apply_rows`.

        Parameters
        ----------
        stream
            Instead of the current stream of the table's device.

        Returns
        -------
        torch.Tensor
            ``gpu``.
        """
        _C.apply_rows([self], stream=stream)
        return self.gpu

    def discard(self) -> int:
        """Forget what was staged and not applied; return how many writes that were."""
        return self._discard()

    @property
    def pending(self) -> int:
        """How many writes are staged."""
        return self._pending()

    @property
    def pending_nbytes(self) -> int:
        """How many bytes they have."""
        return self._pending_nbytes()

    def _checked(self, values: torch.Tensor) -> torch.Tensor:
        if values.dtype != self.gpu.dtype:
            raise TypeError(
                f"values must have the table's dtype {self.gpu.dtype}, got {values.dtype}; "
                "convert them with .to()"
            )
        if values.device.type != "cpu":
            raise TypeError(f"values must be on the CPU, got {values.device}")
        if values.ndim > 1:
            raise ValueError(f"values must have one dimension, got {values.ndim}")
        return copyable(resolved(values)).contiguous().view(values.dtype)

    def __repr__(self) -> str:
        """Shape, dtype, place and what is staged."""
        rows, cols = self.gpu.shape
        return (
            f"StagedRows({rows}, {cols}, {self.gpu.dtype}, {str(self.gpu.device)!r}, "
            f"pending={self.pending})"
        )


def apply_rows(tables: Iterable[StagedRows], *, stream: torch.cuda.Stream | None = None) -> None:
    """Enqueue what was staged in several tables: one slot, one launch, one event record.

    Parameters
    ----------
    tables
        Different tables of one device.
    stream
        Instead of the current stream of their device.

    Raises
    ------
    TypeError, ValueError
        What is no table, is named twice, or is on another device.
    RuntimeError
        The stream captures a CUDA graph, or the process was forked after CUDA was
        initialised.

    Notes
    -----
    The staged writes are forgotten only once they were enqueued: after an error they are still
    there. Waits for nothing, except for the oldest copy in flight where the stream has more in
    flight than ``staging.set_upload_limit`` allows.
    """
    try:
        given = list(tables)
    except TypeError:
        raise TypeError(f"tables must be StagedRows, got {shown(tables)}") from None
    for index, table in enumerate(given):
        if not isinstance(table, StagedRows):
            raise TypeError(f"tables[{index}] must be a StagedRows, got {shown(table)}")
    _C.apply_rows(given, stream=stream)


# How much of a number a kind of dtype can say.
_KINDS = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


def _numbers(values: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return numbers as an array, if that loses nothing but precision."""
    given = np.asarray(values)
    if given.dtype.kind not in _KINDS:
        raise TypeError(f"values must be numbers, got {type(values).__name__} {values!r}")
    # An extension's dtype (of ml_dtypes) takes floats.
    if given.size and _KINDS[given.dtype.kind] > _KINDS.get(dtype.kind, 2):
        raise TypeError(
            f"values are of {given.dtype}, which does not fit the table's dtype {dtype}; convert "
            "them first"
        )
    try:
        return np.asarray(values, dtype=dtype)
    except OverflowError as error:
        raise ValueError(f"values must fit the table's dtype {dtype}: {error}") from error


def _format_of(dtype: np.dtype[Any] | None) -> str:
    """Return the buffer protocol's code of a native dtype, or ''."""
    if dtype is None:
        return ""
    try:
        empty: Any = np.empty(0, dtype)
        return memoryview(empty).format
    except (ValueError, BufferError):  # of ml_dtypes, for instance
        return ""
