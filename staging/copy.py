"""Copies between tensors of any two places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from staging import cost_table
from staging.extension import _C

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

_copy_slice = _C.copy_slice


def copy_slice(
    from_tensor: torch.Tensor,
    to_tensor: torch.Tensor,
    length: int,
    *,
    snapshot: bool = False,
    stream: torch.cuda.Stream | None = None,
) -> torch.Tensor:
    """Copy ``from_tensor[:length]`` into ``to_tensor[:length]`` without blocking.

    Parameters
    ----------
    from_tensor, to_tensor
        Tensors of one dtype and one shape behind dimension 0, on the CPU or on CUDA
        devices, with any strides.
    length
        How many rows of dimension 0 to copy, at most the rows of either tensor.
    snapshot
        Take the bytes of a host source before returning. Without it a pinned source is
        read by the transfer itself, and must not be overwritten before the copy is done.
    stream
        Instead of the current stream of the device tensor's device (of the destination's,
        where both are on a device).

    Returns
    -------
    torch.Tensor
        ``to_tensor[:length]``.

    Raises
    ------
    TypeError
        The dtypes differ, a tensor is sparse, quantized, on another kind of device, a lazy
        conjugate or negative view, or requires a gradient while gradients are recorded.
    ValueError
        ``length`` or the shapes do not fit, the slices share memory, or elements of
        ``to_tensor`` do (it is expanded, say). Interleaved slices of one tensor, such as
        ``t[:, :2]`` and ``t[:, 4:6]``, share none. Strides of ``as_strided`` that nest in no
        order may be refused although nothing is shared.
    RuntimeError
        The stream captures a CUDA graph and this copy could not be replayed, or the process
        was forked after CUDA was initialised.

    Notes
    -----
    Both tensors' memory is kept until the copy is done, whatever becomes of them in Python.

    It does not wait for the copy, except that a copy into pageable memory returns when the
    bytes are there. A pageable or strided source passes through pinned slots: the call
    waits for the oldest copy of the stream where those are all in flight.
    """
    return _copy_slice(from_tensor, to_tensor, length, snapshot, stream)


def copy_slices(
    slices: Iterable[tuple[torch.Tensor, torch.Tensor, int]],
    *,
    snapshot: bool = False,
    stream: torch.cuda.Stream | None = None,
) -> None:
    """Copy many slices in one call, with as few operations as they need.

    Has the effect of ``copy_slice(from_tensor, to_tensor, length)`` of each in turn: the
    destinations may overlap, and one slice may read what one before it wrote.

    Parameters
    ----------
    slices
        Tuples ``(from_tensor, to_tensor, length)``, each as for `copy_slice`. Those on a
        device are all on the same one.
    snapshot
        Take the bytes of the host sources before returning; see `copy_slice`.
    stream
        Instead of the current stream of the tensors' device.

    Raises
    ------
    TypeError, ValueError
        As `copy_slice` does, naming the item; or the tensors are on several devices.
        Nothing was copied then.
    RuntimeError
        The stream captures a CUDA graph and one of the copies could not be replayed, or the
        process was forked after CUDA was initialised.

    Notes
    -----
    Neighbours become one transfer; small slices share one kernel launch or one batch, as
    a table of costs says is quickest. Bytes of pageable and strided sources pass through
    one pinned slot together.

    It does not wait for the copies, except that copies into pageable memory return when
    their bytes are there, after one wait for all of them.
    """
    cost_table.use_all_stored()
    _C.copy_slices(slices, snapshot=snapshot, stream=stream)
