"""The bytes of a tensor as a view."""

from __future__ import annotations

from staging.extension import _C, torch


def tensor_data(tensor: torch.Tensor, *, writable: bool = False) -> memoryview:
    """View the bytes of a tensor.

    Parameters
    ----------
    tensor
        Any tensor with one flat byte image: dense, of any dtype, shape, strides and device.
        Lazy conjugate and negative views are resolved first.
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
        The tensor has no flat byte image (sparse, nested, meta and the like); the message
        names the layout.
    ValueError
        ``writable`` was asked for a tensor that would have to be copied.

    Notes
    -----
    Waits for nothing where the tensor is on the host. A tensor on a device is brought to the
    host on its current stream, and the call returns when the bytes are there.
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
    with torch.no_grad():
        host = _dense(tensor.detach().resolve_conj().resolve_neg()).to("cpu")
    view = _C.contiguous_data(host, False)
    assert view is not None
    return view


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    try:
        return tensor.contiguous()
    except (RuntimeError, NotImplementedError):
        # Some dtypes (the bit types among them) have no copy; their bytes do.
        return _as_bytes(tensor).contiguous()


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return torch.as_strided(
        torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()),
        (*tensor.shape, tensor.element_size()),
        (*(stride * tensor.element_size() for stride in tensor.stride()), 1),
        tensor.storage_offset() * tensor.element_size(),
    )


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
    if layout is not None:
        raise TypeError(f"a tensor of layout {layout} has no flat image of bytes")
