"""Arguments of public functions as plain values: converted once, refused by name."""

from __future__ import annotations

import math
import operator
from math import prod
from typing import Any

from staging.extension import torch

_LONGEST = 80

QUANTIZED = frozenset(
    getattr(torch, name)
    for name in ("qint8", "quint8", "qint32", "quint4x2", "quint2x4")
    if hasattr(torch, name)
)
"""The dtypes whose values are not in the bytes alone."""


def shown(value: object) -> str:
    """Return repr(), shortened, for a message."""
    try:
        text = ascii(value)
    except Exception:  # the object's own; the message is about the argument
        return f"an object of type {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def int_argument(value: Any, name: str, least: int | None = None) -> int:
    """Return an int, or what ``operator.index`` takes, as a plain int.

    Raises
    ------
    TypeError
        It is none.
    ValueError
        It is less than ``least``, or does not fit in 64 bits.
    """
    try:
        number = int(operator.index(value))
    except TypeError as error:
        raise TypeError(
            f"{name} must be an int, got {shown(value)} of type {type(value).__name__}"
        ) from error
    if least is not None and number < least:
        raise ValueError(f"{name} must be >= {least}, got {number}")
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{name} must fit in 64 bits, got {shown(number)}")
    return number


def flag_argument(value: Any, name: str) -> bool:
    """Return a bool, NumPy's too, or 0 or 1; TypeError for anything else."""
    if isinstance(value, bool):
        return value
    if type(value).__module__ == "numpy" and type(value).__name__ in {"bool", "bool_"}:
        return bool(value)
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise TypeError(f"{name} must be a bool, got {shown(value)} of type {type(value).__name__}")


def seconds_argument(value: Any, name: str) -> float | None:
    """Return a number of seconds, or None; TypeError for anything else, ValueError for NaN."""
    if value is None:
        return None
    try:
        if isinstance(value, (str, bytes, bytearray)):  # float() reads them
            raise TypeError
        seconds = float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"{name} must be a number of seconds or None, got {shown(value)} of type "
            f"{type(value).__name__}"
        ) from None
    if math.isnan(seconds):
        raise ValueError(f"{name} must be a number of seconds, got nan")
    return seconds


def shape_argument(
    size: tuple[Any, ...], dtype: torch.dtype, name: str = "size"
) -> tuple[int, ...]:
    """Return the shape that ``*size`` stands for: several sizes, or one sequence of them.

    Raises
    ------
    TypeError
        A size is no int, or ``dtype`` is no dtype.
    ValueError
        A size is negative, such a tensor has 2**63 bytes or more, or ``dtype`` is quantized.
    """
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype, got {shown(dtype)}")
    if dtype in QUANTIZED:
        raise ValueError(
            f"dtype must not be a quantized one, whose tensors need a scale and a zero point; "
            f"got {dtype}. Take the dtype of the integers (tensor.int_repr())"
        )
    if len(size) == 1 and isinstance(size[0], (tuple, list)):
        size = tuple(size[0])
    shape = tuple(int_argument(extent, name, least=0) for extent in size)
    # As if no size were 0: PyTorch multiplies them into strides.
    if prod(extent or 1 for extent in shape) * dtype.itemsize >= 2**63:
        raise ValueError(f"{name} must be less than 2**63 bytes, got {shown(shape)} of {dtype}")
    return shape


def device_argument(device: Any, *kinds: str, exists: bool = True) -> torch.device:
    """Return a device of one of the kinds, that exists; a bare int is a CUDA device.

    Raises
    ------
    TypeError
        It is no device, and no name of one.
    ValueError
        It is of another kind, or this machine has no such device.
    """
    expected = " or ".join("CUDA" if kind == "cuda" else kind for kind in kinds)
    if isinstance(device, torch.device):
        place = device
    elif isinstance(device, str):
        try:
            place = torch.device(device)
        except RuntimeError:
            raise ValueError(f"device must be a {expected} device, got {shown(device)}") from None
    elif isinstance(device, int):
        index = int(device)
        if not 0 <= index < 128:  # PyTorch's index has 8 bits
            raise ValueError(f"device must be the index of a CUDA device, got {shown(device)}")
        place = torch.device("cuda", index)
    else:
        raise TypeError(f"device must be a torch.device, str or int, got {shown(device)}")
    if place.type not in kinds:
        raise ValueError(f"device must be a {expected} device, got {shown(str(place))}")
    if exists and place.type == "cuda" and place.index is not None:
        count = torch.cuda.device_count()
        if place.index >= count:
            raise ValueError(f"device must be one of {count} CUDA devices, got {str(place)!r}")
    return place
