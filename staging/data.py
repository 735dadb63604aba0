"""The bytes of a tensor as a view."""

from __future__ import annotations

import re

from staging.copy import copy_slice
from staging.extension import _C, torch


def tensor_data(tensor: torch.Tensor, *, writable: bool = False) -> memoryview:
    """View the bytes of a tensor.

    Parameters
    ----------
    tensor
        Any tensor with one flat byte image: dense, of any dtype, shape, strides and device.
        Lazy conjugate and negative views are resolved first. A quantized tensor's bytes are
        its integers.
    writable
        A view through which the tensor can be written. Only for contiguous host tensors.

    Returns
    -------
    memoryview
        One-dimensional, format ``B``, in logical (row-major) order. Read-only by default.
        For a contiguous host tensor it is the tensor's own memory, which it keeps alive and
        which cannot be resized any more; for any other tensor it is a copy.

    Raises
    ------
    TypeError
        The tensor has no flat byte image (sparse, nested, meta, quantized with several elements
        in a byte, and the like); the message names the layout.
    ValueError
        ``writable`` was asked for a tensor that would have to be copied.
    RuntimeError
        The current stream of a device tensor captures a CUDA graph.
    DeviceError
        A call of the CUDA runtime failed. Nothing is left behind.

    Notes
    -----
    Waits for nothing where the tensor is on the host. A tensor on a device comes through
    three pinned blocks of a megabyte (fewer and smaller ones where ``set_pinned_limit`` allows
    no more), on its current stream, and the call returns when the
    bytes are there: it waits for what that stream held, and for no other. A strided one is
    gathered on the device first. The GIL is released meanwhile.
    """
    view = _C.contiguous_data(tensor, writable)
    if view is None:
        view = _copied_data(tensor, writable)
    return view


def _copied_data(tensor: torch.Tensor, writable: bool) -> memoryview:
    check_flat(tensor)
    _C.check_memory(tensor)
    if writable:
        raise ValueError(
            "writable=True needs a contiguous host tensor, whose own memory can be viewed; got "
            f"shape {tuple(tensor.shape)} with strides {tuple(tensor.stride())} on {tensor.device}"
        )
    if tensor.is_cuda:
        return _C.copied_data(dense_on_device(tensor))
    with torch.no_grad():
        host = tensor.detach()
        if host.device.type != "cpu":
            host = resolved(host).contiguous().to("cpu")
    return _C.copied_data(readable_on_host(host))


def readable_on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a host tensor as the extension reads it: lazy only in its sign bits.

    Parameters
    ----------
    tensor
        A host tensor with a flat image of bytes.

    Returns
    -------
    torch.Tensor
        The tensor, or one of the same values.

    Raises
    ------
    TypeError
        A lazy view of a dtype that PyTorch cannot resolve.
    """
    if (tensor.is_neg() or tensor.is_conj()) and tensor.dtype not in _SIGNED_BY_ONE_BIT:
        return resolved(tensor)
    return tensor


_SIGNED_BY_ONE_BIT = frozenset(
    {
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex32,
        torch.complex64,
        torch.complex128,
        getattr(torch, "bcomplex32", torch.complex128),  # since torch 2.14
    }
)


def resolved(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose memory holds its values: no lazy conjugate or negative view.

    Parameters
    ----------
    tensor
        Any dense tensor.

    Returns
    -------
    torch.Tensor
        The tensor itself, without its history, where it is no such view; of a quantized one
        its integers.

    Raises
    ------
    TypeError
        Its storage is smaller than its shape needs, or PyTorch cannot resolve a view of this
        dtype.
    """
    with torch.no_grad():
        tensor = _integers(tensor) if tensor.is_quantized else tensor.detach()
        if not tensor.is_conj() and not tensor.is_neg():
            return tensor
        _C.check_memory(tensor)  # PyTorch would read beyond its end
        try:
            return tensor.resolve_conj().resolve_neg()
        except RuntimeError as error:
            # What PyTorch says of a dtype; anything else is no matter of the type.
            if not re.search("not (implemented|supported)", str(error)):
                raise
            raise TypeError(
                f"a lazy view of {tensor.dtype} on {tensor.device} has no bytes yet, and PyTorch "
                f"cannot compute them: {error}"
            ) from error


def copyable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view that PyTorch can copy: it has no copy of the ints of one to seven bits."""
    return tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor


_INTEGERS = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}


def _integers(tensor: torch.Tensor) -> torch.Tensor:
    """Return a quantized tensor's memory as a tensor of plain integers; no copy."""
    integers = torch.empty(0, dtype=_INTEGERS[tensor.dtype], device=tensor.device)
    return integers.set_(
        tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )


def dense_on_device(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CUDA tensor's values in logical order, gathered on the device if need be.

    Parameters
    ----------
    tensor
        A CUDA tensor with a flat image of bytes.

    Returns
    -------
    torch.Tensor
        Contiguous; the tensor itself where it is that already.

    Raises
    ------
    TypeError
        Its storage is smaller than its shape needs, or it is a lazy view that PyTorch cannot
        resolve.

    Notes
    -----
    Enqueued on the current stream; waits for nothing.
    """
    _C.check_memory(tensor)
    tensor = resolved(tensor)
    if tensor.is_contiguous():
        return tensor
    with torch.no_grad():
        dense = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        try:
            # PyTorch has no copy of some dtypes; this one copies bytes.
            copy_slice(tensor, dense, len(tensor))
        except ValueError:  # more dimensions that do not lie together than it takes
            dense = tensor.contiguous()
        return dense


def check_flat(tensor: torch.Tensor) -> None:
    """Refuse a tensor that has no flat image of bytes.

    Parameters
    ----------
    tensor
        Any tensor.

    Raises
    ------
    TypeError
        The message names the layout.
    """
    layout = None
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout)
    elif tensor.is_nested:
        layout = "nested"
    elif tensor.device.type == "meta":
        layout = "meta (no memory)"
    elif tensor._is_zerotensor():
        layout = "ZeroTensor"
    elif torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        layout = "functorch wrapper"
    elif _C.is_wrapper(tensor):
        # A subclass that holds its values elsewhere (FakeTensor and others).
        layout = type(tensor).__name__
    elif tensor.is_quantized and tensor.dtype not in _INTEGERS:
        raise TypeError(
            f"several elements of {tensor.dtype} share a byte, so a tensor has no flat image of "
            "its elements' bytes; pass tensor.int_repr()"
        )
    if layout is not None:
        raise TypeError(f"a tensor of layout {layout} has no flat image of bytes")
