"""How values are written out before they are hashed.

Every value has one encoding, no two values share one, and none is the beginning of another.
docs/digest-framing.md specifies the encodings byte by byte, with test vectors.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from staging.extension import _C, torch

if TYPE_CHECKING:
    import numpy as np

MAGIC = b"staging-frame-1\n"
"""What every framed input begins with; 16 bytes."""

MAX_DEPTH = 200
"""How deep values may be nested. Deeper than that they contain themselves, most likely."""

_U64 = struct.Struct("<Q")
_TAGGED_U64 = struct.Struct("<cQ")
_TAGGED_F64 = struct.Struct("<cd")
# The sign and the payload of a NaN depend on how it was computed.
_NAN = b"d" + bytes.fromhex("000000000000f87f")


@dataclass(frozen=True)
class Content:
    """Stands for the digest of a tensor's bytes in a framed value."""

    tensor: torch.Tensor | np.ndarray[Any, Any]


Piece = bytes | bytearray | memoryview | Content


def frame(values: Iterable[object]) -> list[Piece]:
    """Write values out, one after another, without :data:`MAGIC`.

    Parameters
    ----------
    values
        Each ``None``, a bool, int, float, str, bytes-like object, tensor, NumPy array or
        scalar, or a list, tuple or dict of such values. The order of a dict's entries does
        not matter; its keys may not be or contain tensors.

    Returns
    -------
    list of Piece
        What is to be hashed, in order. Each :class:`Content` stands for the digest of its
        tensor's bytes.

    Raises
    ------
    TypeError
        A value, or one within it, has no encoding; the message says which, and where.
    ValueError
        Values are nested more than 200 deep, or contain themselves.
    """
    writer = _Writer()
    try:
        for value in values:
            writer.write(value, 0)
    except _NotEncodableError as error:
        raise error.kind(f"value{''.join(reversed(error.path))} {error}") from None
    return writer.finish()


def tensor_header(dtype: str, shape: Iterable[int], *, quantized: bool = False) -> bytes:
    """Write out what comes before the digest of a tensor's bytes.

    Parameters
    ----------
    dtype
        The dtype's name, ``"float32"``.
    shape
        The sizes.
    quantized
        Quantisation parameters follow the digest.

    Returns
    -------
    bytes
        Tag, name and shape.
    """
    sizes = tuple(shape)
    name = dtype.encode("ascii")
    tag = b"q" if quantized else b"x"
    return struct.pack(
        f"<cQ{len(name)}s{len(sizes) + 1}Q", tag, len(name), name, len(sizes), *sizes
    )


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without its module: ``"float32"``.

    Parameters
    ----------
    dtype
        Any dtype.

    Returns
    -------
    str
        The same for all aliases of a dtype.
    """
    name = _DTYPE_NAMES.get(dtype)
    if name is None:
        name = _DTYPE_NAMES[dtype] = str(dtype).removeprefix("torch.")
    return name


_DTYPE_NAMES: dict[torch.dtype, str] = {}
_CONTAINERS = frozenset({list, tuple, dict})


class _NotEncodableError(Exception):
    """Collects the path to the value on its way out."""

    def __init__(self, message: str, kind: type[Exception] = TypeError) -> None:
        super().__init__(message)
        self.kind = kind
        self.path: list[str] = []


class _Writer:
    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._buffer = bytearray()

    def finish(self) -> list[Piece]:
        self._flush()
        return self._pieces

    def write(self, value: object, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise _NotEncodableError(
                f"is nested more than {MAX_DEPTH} deep, or contains itself", ValueError
            )
        if type(value) in _CONTAINERS:
            # Most are plain all through, and long lists of numbers are.
            encoded = _C.frame_plain(value, MAX_DEPTH - depth)
            if encoded is not None:
                self._buffer += encoded
                return
        if value is None:
            self._buffer += b"N"
        elif isinstance(value, bool):
            self._buffer += b"T" if value else b"F"
        elif isinstance(value, int):
            nbytes = value.bit_length() // 8 + 1
            self._buffer += _TAGGED_U64.pack(b"i", nbytes)
            self._buffer += value.to_bytes(nbytes, "little", signed=True)
        elif isinstance(value, str):
            text = value.encode("utf-8", "surrogatepass")
            self._buffer += _TAGGED_U64.pack(b"s", len(text))
            self._buffer += text
        elif isinstance(value, (bytes, bytearray, memoryview)):
            self._write_bytes(value)
        elif isinstance(value, torch.Tensor):
            self._write_tensor(value, depth)
        elif _is_numpy(value):
            self._write_array(value)
        elif isinstance(value, float):
            is_nan = value != value  # noqa: PLR0124
            self._buffer += _NAN if is_nan else _TAGGED_F64.pack(b"d", value)
        elif isinstance(value, (list, tuple)):
            self._write_items(value, depth)
        elif isinstance(value, dict):
            self._write_dict(value, depth)
        else:
            raise _NotEncodableError(
                f"is of type {_type_name(value)}, which has no encoding; pass None, bool, int, "
                "float, str, bytes, tensors, NumPy arrays, or lists, tuples and dicts of these"
            )

    def _flush(self) -> None:
        if self._buffer:
            self._pieces.append(self._buffer)
            self._buffer = bytearray()

    def _write_bytes(self, value: bytes | bytearray | memoryview) -> None:
        view = memoryview(value)
        self._buffer += _TAGGED_U64.pack(b"b", view.nbytes)
        if view.nbytes == 0:
            return
        if not view.c_contiguous:
            view = memoryview(view.tobytes())
        self._flush()
        self._pieces.append(view.cast("B"))

    def _write_items(self, values: list[Any] | tuple[Any, ...], depth: int) -> None:
        tag = b"l" if isinstance(values, list) else b"t"
        values = tuple(values)  # as it is now, whatever reading an item runs
        self._buffer += _TAGGED_U64.pack(tag, len(values))
        index = 0
        try:
            for index, value in enumerate(values):  # noqa: B007
                self.write(value, depth + 1)
        except _NotEncodableError as error:
            error.path.append(f"[{index}]")
            raise

    def _write_dict(self, values: dict[Any, Any], depth: int) -> None:
        items = list(values.items())  # as it is now, whatever reading one runs
        self._buffer += _TAGGED_U64.pack(b"m", len(items))
        entries = [(self._encode_key(key, depth + 1), key, value) for key, value in items]
        entries.sort(key=lambda entry: entry[0])
        for encoded, key, value in entries:
            self._buffer += encoded
            try:
                self.write(value, depth + 1)
            except _NotEncodableError as error:
                error.path.append(f"[{key!r:.40}]")
                raise

    @staticmethod
    def _encode_key(key: object, depth: int) -> bytes:
        writer = _Writer()
        try:
            writer.write(key, depth)
            encoded = bytearray()
            for piece in writer.finish():
                if isinstance(piece, Content):
                    raise _NotEncodableError("is or contains a tensor; keys are plain values")
                encoded += piece
        except _NotEncodableError as error:
            error.path.append(f" (key {key!r:.40})")
            raise
        return bytes(encoded)

    def _write_tensor(self, tensor: torch.Tensor, depth: int) -> None:
        if tensor.is_nested:
            raise _NotEncodableError("is a nested tensor, which has no flat image of bytes")
        parameters = _quantization(tensor) if tensor.is_quantized else ()
        self._buffer += tensor_header(
            dtype_name(tensor.dtype), tensor.shape, quantized=tensor.is_quantized
        )
        self._flush()
        self._pieces.append(Content(tensor))
        for part in parameters:
            self.write(part, depth + 1)

    def _write_array(self, value: Any) -> None:
        import numpy as np

        if isinstance(value, np.ma.MaskedArray):
            raise _NotEncodableError(
                "is a masked array, whose mask is not among its bytes; pass its data and its mask"
            )
        array = np.asarray(value)
        dtype = array.dtype
        # Named as PyTorch names them; those of ml_dtypes are of kind V.
        if dtype.kind not in "biufcV" or not isinstance(
            getattr(torch, dtype.name, None), torch.dtype
        ):
            raise _NotEncodableError(
                f"is a NumPy value of dtype {dtype}, which has no encoding; pass numbers or bools"
            )
        if not dtype.isnative:
            array = array.astype(dtype.newbyteorder("="))
        self._buffer += tensor_header(dtype.name, array.shape)
        self._flush()
        self._pieces.append(Content(array))


def _quantization(tensor: torch.Tensor) -> tuple[object, ...]:
    try:
        name = str(tensor.qscheme()).removeprefix("torch.")
    except RuntimeError:
        raise _NotEncodableError(
            f"is a tensor of {tensor.dtype} without scale and zero point, so it has no values; "
            "make it with torch.quantize_per_tensor() or the like"
        ) from None
    if name.startswith("per_tensor"):
        return name, tensor.q_scale(), tensor.q_zero_point()
    return (
        name,
        tensor.q_per_channel_axis(),
        tensor.q_per_channel_scales(),
        tensor.q_per_channel_zero_points(),
    )


def _is_numpy(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def _type_name(value: object) -> str:
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"
