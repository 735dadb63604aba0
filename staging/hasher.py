"""Digests of nested values: tensors, bytes, numbers and texts in lists, tuples and dicts."""

from __future__ import annotations

from typing import Any

from staging.algorithms import new_hasher
from staging.digest import check_stream, content_digests
from staging.extension import torch
from staging.framing import MAGIC, Content, frame


class TensorHasher:
    """An incremental digest of values, such as a request's multimodal inputs.

    Every value is written out by an encoding of its own (docs/digest-framing.md), so that
    sequences of values that differ never share a digest by accident: ``["ab", "c"]`` and
    ``["a", "bc"]``, ``1`` and ``1.0`` and ``True``, a list and a tuple all differ. The order
    of a dict's entries does not matter. Tensors count by dtype, shape and bytes (and
    scale and zero point, where they are quantized), whatever their strides and their device;
    NumPy arrays and scalars count as tensors.

    Parameters
    ----------
    algorithm
        ``"blake3"``, ``"sha256"`` or ``"xxh3_128"``.

    Raises
    ------
    ValueError
        The algorithm is not known; the message lists those that are.

    Notes
    -----
    One hasher belongs to one thread at a time.
    """

    def __init__(self, algorithm: str = "blake3") -> None:
        self._algorithm = algorithm
        self._hasher: Any = new_hasher(algorithm)
        self._hasher.update(MAGIC)

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        return self._algorithm

    def update(self, *values: object, stream: torch.cuda.Stream | None = None) -> TensorHasher:
        """Add values.

        ``update(a, b)`` is ``update(a)`` and ``update(b)``, and not ``update([a, b])``.

        Parameters
        ----------
        values
            Each ``None``, a bool, int, float, str, bytes-like object, tensor, NumPy array or
            scalar, or a list, tuple or dict of such values.
        stream
            Where device tensors are read, instead of the current streams of their devices.

        Returns
        -------
        TensorHasher
            This one.

        Raises
        ------
        TypeError
            A value, or one within it, has no encoding; the message says which and where.
            Nothing was added.
        ValueError
            Values are nested more than 200 deep, or contain themselves. Nothing was added.

        Notes
        -----
        Waits for the tensors' bytes to be hashed. With BLAKE3 the tensors of a device take
        one launch together, where they are small.
        """
        check_stream(stream)
        pieces = frame(values)
        tensors = [piece.tensor for piece in pieces if isinstance(piece, Content)]
        contents = iter(content_digests(tensors, self._algorithm, stream=stream).result())
        for piece in pieces:
            self._hasher.update(next(contents) if isinstance(piece, Content) else piece)
        return self

    def digest(self) -> bytes:
        """Return the digest of everything up to now; more may follow.

        Returns
        -------
        bytes
            32 bytes, 16 for ``xxh3_128``.
        """
        digest: bytes = self._hasher.digest()
        return digest

    def hexdigest(self) -> str:
        """Return :meth:`digest` in hexadecimal.

        Returns
        -------
        str
            64 digits, 32 for ``xxh3_128``.
        """
        return self.digest().hex()

    def copy(self) -> TensorHasher:
        """Return a hasher of the same values, to which others may be added.

        Returns
        -------
        TensorHasher
            An independent copy.
        """
        other = TensorHasher.__new__(TensorHasher)
        other._algorithm = self._algorithm
        other._hasher = self._hasher.copy()
        return other


def content_key(*values: object, algorithm: str = "blake3") -> str:
    """Return a key for deduplication: equal content has equal keys.

    Equal dtype, shape and bytes of tensors, and equal values around them, give one key in
    every process and on every machine, whatever the strides and the devices of the tensors.

    Parameters
    ----------
    values
        As for :meth:`TensorHasher.update`. The key of one tensor is its
        :func:`~staging.digest.tensor_hexdigest`.
    algorithm
        ``"blake3"``, ``"sha256"`` or ``"xxh3_128"``.

    Returns
    -------
    str
        Hexadecimal digits.

    Raises
    ------
    TypeError, ValueError
        As :meth:`TensorHasher.update`.

    Notes
    -----
    Bytes are compared, not numbers: 0.0 and -0.0 in a tensor differ, and so do NaNs of
    different bits.
    """
    return TensorHasher(algorithm).update(*values).hexdigest()
