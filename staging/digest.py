"""Digests of tensors: of their bytes, or of their dtype, shape and bytes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from staging.algorithms import digest_bytes, new_hasher
from staging.arguments import flag_argument, seconds_argument, shown
from staging.data import (
    check_flat,
    dense_on_device,
    readable_on_host,
    resolved,
    tensor_data,
)
from staging.extension import _C, torch
from staging.fetch import until_done
from staging.framing import MAGIC, Content, Piece, dtype_name, frame, tensor_header

if TYPE_CHECKING:
    import numpy as np

_T = TypeVar("_T")

# What a strided host tensor is read through; a device tensor through three of a third.
_BLOCK_NBYTES = 1 << 20


def tensor_digest(
    tensor: torch.Tensor,
    algorithm: str = "blake3",
    framed: bool = True,
    *,
    stream: torch.cuda.Stream | None = None,
) -> bytes:
    """Return a digest of a tensor.

    Parameters
    ----------
    tensor
        Any tensor with one flat byte image: dense, of any dtype, shape, strides and device.
        Lazy conjugate and negative views count as their values.
    algorithm
        ``"blake3"``, ``"sha256"`` or ``"xxh3_128"`` (fast, and not safe against somebody who
        looks for collisions).
    framed
        Bind dtype and shape, so that two tensors that differ in either never share a digest
        because their bytes agree; of a quantized tensor scale and zero point, too.
        docs/digest-framing.md specifies how. Otherwise it is the algorithm's standard digest of
        ``tensor_data(tensor)``, of a quantized tensor's integers alone.
    stream
        Where a device tensor is read, instead of the current stream of its device.

    Returns
    -------
    bytes
        32 bytes, 16 for ``xxh3_128``. Equal for equal dtype, shape and bytes, whatever the
        device, the strides and the process.

    Raises
    ------
    TypeError
        The tensor has no flat byte image (sparse, nested, meta, quantized with several elements
        in a byte, and the like) or not enough memory, or it is quantized without a scale; the
        message says why.
    ValueError
        The algorithm is not known; the message lists those that are.
    RuntimeError
        The stream captures a CUDA graph.

    Notes
    -----
    A contiguous host tensor is hashed where it is, a strided one is read through one
    megabyte. BLAKE3 of a device tensor is computed on the device, and the call waits for 32
    bytes to come back; for the other algorithms the bytes come through three megabytes of
    pinned memory. The GIL is released meanwhile.
    """
    if framed is not True:
        framed = flag_argument(framed, "framed")
    if isinstance(tensor, torch.Tensor) and not tensor.is_quantized:
        # The same in one go, for what needs no way through a device or a block.
        view = _C.borrowed_bytes(tensor)
        if view is not None:
            content = digest_bytes(algorithm, view)
            if not framed:
                return content
            return digest_bytes(algorithm, _beginning(tensor.dtype, tensor.shape) + content)
    return tensor_digests([tensor], algorithm, framed, stream=stream)[0]


@functools.lru_cache(maxsize=1024)
def _beginning(dtype: torch.dtype, shape: torch.Size) -> bytes:
    """Return what a framed tensor begins with, up to the digest of its bytes."""
    return MAGIC + tensor_header(dtype_name(dtype), shape)


def tensor_hexdigest(
    tensor: torch.Tensor,
    algorithm: str = "blake3",
    framed: bool = True,
    *,
    stream: torch.cuda.Stream | None = None,
) -> str:
    """Return :func:`tensor_digest` in hexadecimal.

    Parameters
    ----------
    tensor, algorithm, framed, stream
        As for :func:`tensor_digest`.

    Returns
    -------
    str
        64 digits, 32 for ``xxh3_128``.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As :func:`tensor_digest`.
    """
    return tensor_digest(tensor, algorithm, framed, stream=stream).hex()


def tensor_digests(
    tensors: Sequence[torch.Tensor],
    algorithm: str = "blake3",
    framed: bool = True,
    *,
    stream: torch.cuda.Stream | None = None,
) -> list[bytes]:
    """Return the digests of several tensors.

    BLAKE3 digests of a device's tensors take one launch together where the tensors are
    small, such as a request's images, while the host's are hashed on the host.

    Parameters
    ----------
    tensors
        Any number, on any devices.
    algorithm, framed
        As for :func:`tensor_digest`.
    stream
        As for :func:`tensor_digest`; the device tensors must then be on its device.

    Returns
    -------
    list of bytes
        In order.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As :func:`tensor_digest`.
    """
    return digests_async(tensors, algorithm, framed, stream=stream).result()


def digest_async(
    tensor: torch.Tensor,
    algorithm: str = "blake3",
    framed: bool = True,
    *,
    stream: torch.cuda.Stream | None = None,
) -> DigestHandle[bytes]:
    """Begin a digest, and return a handle to it.

    Parameters
    ----------
    tensor, algorithm, framed, stream
        As for :func:`tensor_digest`.

    Returns
    -------
    DigestHandle
        Its result is what :func:`tensor_digest` returns.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As :func:`tensor_digest`.

    Notes
    -----
    BLAKE3 of a device tensor waits for nothing: the tensor may be overwritten by later work
    on the same stream, and dropped. All other digests are done when this returns, so that
    the tensor may be overwritten then.
    """
    return digests_async([tensor], algorithm, framed, stream=stream).map(lambda digests: digests[0])


def digests_async(
    tensors: Sequence[torch.Tensor],
    algorithm: str = "blake3",
    framed: bool = True,
    *,
    stream: torch.cuda.Stream | None = None,
) -> DigestHandle[list[bytes]]:
    """Begin several digests, and return a handle to all of them.

    Parameters
    ----------
    tensors, algorithm, framed, stream
        As for :func:`tensor_digests`.

    Returns
    -------
    DigestHandle
        Its result is what :func:`tensor_digests` returns.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As :func:`tensor_digest`.

    Notes
    -----
    As for :func:`digest_async`.
    """
    new_hasher(algorithm)  # refuses an unknown one before anything is enqueued
    framed = flag_argument(framed, "framed")
    check_stream(stream)
    try:
        tensors = list(tensors)  # read once
    except TypeError:
        raise TypeError(f"tensors must be tensors, got {shown(tensors)}") from None
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"tensor must be a torch.Tensor, got {type(tensor).__name__}")
    if not framed:
        return content_digests(tensors, algorithm, stream=stream)
    frames = [frame([tensor]) for tensor in tensors]
    contents = [piece.tensor for pieces in frames for piece in pieces if isinstance(piece, Content)]

    def finish(digests: list[bytes]) -> list[bytes]:
        rest = iter(digests)
        return [digest_pieces(pieces, rest.__next__, algorithm) for pieces in frames]

    return content_digests(contents, algorithm, stream=stream).map(finish)


def check_stream(stream: object) -> None:
    """Refuse what is no CUDA stream and not None."""
    if stream is not None and not (hasattr(stream, "cuda_stream") and hasattr(stream, "device")):
        raise TypeError(f"stream must be a torch.cuda.Stream or None, got {shown(stream)}")


class DigestHandle(Generic[_T]):
    """A digest, or several, that may still be computed on a device.

    It can be asked, waited for, and awaited in asyncio. Dropping it is safe at any time.

    Notes
    -----
    ``await`` polls nothing and takes no thread: the device makes a file descriptor of the event
    loop readable (see :class:`~staging.fetch.Fetch`). Cancelling the awaiting task leaves the
    digest as it is.
    """

    def __init__(self, pending: Sequence[_C.PendingDigests], result: Callable[[], _T]) -> None:
        self._pending = pending
        self._make = result
        self._result: list[_T] = []

    def done(self) -> bool:
        """Return whether the result is there. Waits for nothing.

        Returns
        -------
        bool
            Whether :meth:`result` would return at once.
        """
        return all(pending.done() for pending in self._pending)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the result is there.

        Parameters
        ----------
        timeout
            In seconds; for ever by default.

        Returns
        -------
        bool
            False where the time passed first.
        """
        timeout = seconds_argument(timeout, "timeout")
        if timeout is None:
            return all(pending.wait() for pending in self._pending)
        deadline = time.monotonic() + timeout
        return all(pending.wait(deadline - time.monotonic()) for pending in self._pending)

    def result(self, timeout: float | None = None) -> _T:
        """Wait for the result and return it.

        Parameters
        ----------
        timeout
            In seconds; for ever by default.

        Returns
        -------
        bytes or list of bytes
            What the function that returned this handle says.

        Raises
        ------
        TimeoutError
            The time passed first. The digest is still being computed.
        DeviceError
            The device failed.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"the digest was not there after {timeout} s")
        if not self._result:
            self._result.append(self._make())
        return self._result[0]

    def __await__(self) -> Generator[Any, None, _T]:
        """Wait in asyncio, then return what :meth:`result` returns."""
        for pending in self._pending:
            yield from until_done(pending)
        return self.result()

    def map(self, function: Callable[[_T], Any]) -> DigestHandle[Any]:
        """Return a handle to what ``function`` makes of the result.

        Parameters
        ----------
        function
            Called once, when the result is first asked for.

        Returns
        -------
        DigestHandle
            Done when this one is.
        """
        return DigestHandle(self._pending, lambda: function(self.result()))


def content_digests(
    tensors: Sequence[torch.Tensor | np.ndarray[Any, Any]],
    algorithm: str,
    *,
    stream: torch.cuda.Stream | None = None,
) -> DigestHandle[list[bytes]]:
    """Begin the standard digests of tensors' bytes.

    Parameters
    ----------
    tensors
        Tensors and NumPy arrays, on any devices.
    algorithm, stream
        As for :func:`tensor_digests`.

    Returns
    -------
    DigestHandle
        To the digests, in order.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As :func:`tensor_digest`.
    """
    if stream is None:
        return _content_digests(tensors, algorithm, None)
    # What is made on the way is made there, too.
    with torch.cuda.stream(stream):
        return _content_digests(tensors, algorithm, stream)


def _content_digests(
    tensors: Sequence[torch.Tensor | np.ndarray[Any, Any]],
    algorithm: str,
    stream: torch.cuda.Stream | None,
) -> DigestHandle[list[bytes]]:
    on_device: dict[torch.device, list[int]] = {}
    if algorithm == "blake3":
        for index, tensor in enumerate(tensors):
            if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
                on_device.setdefault(tensor.device, []).append(index)
    elsewhere = set(range(len(tensors))).difference(*on_device.values())
    batches = []
    for indices in on_device.values():
        batch = [_on_device(tensors[index]) for index in indices]  # type: ignore[arg-type]
        batches.append((_C.PendingDigests(batch, stream), indices))
    results = [b""] * len(tensors)
    for index in sorted(elsewhere):
        results[index] = _content_digest(tensors[index], algorithm, stream)

    def collect() -> list[bytes]:
        for pending, indices in batches:
            for index, digest in zip(indices, pending.digests(), strict=True):
                results[index] = digest
        return results

    return DigestHandle([pending for pending, _ in batches], collect)


def digest_pieces(
    pieces: Sequence[Piece], next_content: Callable[[], bytes], algorithm: str
) -> bytes:
    """Hash what :func:`staging.framing.frame` wrote.

    Parameters
    ----------
    pieces
        Of a framed value.
    next_content
        Gives the digests that stand for the contents, in order.
    algorithm
        The algorithm's name.

    Returns
    -------
    bytes
        The digest.
    """
    hasher = new_hasher(algorithm)
    hasher.update(MAGIC)
    for piece in pieces:
        hasher.update(next_content() if isinstance(piece, Content) else piece)
    return hasher.digest()


def _on_device(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as the device's kernel can read it."""
    check_flat(tensor)
    _C.check_memory(tensor)
    tensor = resolved(tensor)
    # Only tensors of two billion units of access, with three dimensions or more.
    if not tensor.is_contiguous() and not _C.can_index_on_device(tensor):
        tensor = dense_on_device(tensor)
    return tensor


def _content_digest(
    tensor: torch.Tensor | np.ndarray[Any, Any], algorithm: str, stream: torch.cuda.Stream | None
) -> bytes:
    if not isinstance(tensor, torch.Tensor):
        return digest_bytes(algorithm, _array_bytes(tensor))
    view = _C.borrowed_bytes(tensor)
    if view is not None:
        return digest_bytes(algorithm, view)
    check_flat(tensor)
    blocks: _C.HostBlocks | _C.DeviceBlocks
    if tensor.is_cuda:
        blocks = _C.DeviceBlocks(dense_on_device(tensor), stream, _BLOCK_NBYTES)
    elif tensor.device.type == "cpu":
        blocks = _C.HostBlocks(readable_on_host(tensor), _BLOCK_NBYTES)
    else:
        return digest_bytes(algorithm, tensor_data(tensor))
    hasher = new_hasher(algorithm, _BLOCK_NBYTES if tensor.nbytes > _BLOCK_NBYTES else 0)
    while (block := blocks.next()) is not None:
        hasher.update(block)
    return hasher.digest()


def _array_bytes(array: np.ndarray[Any, Any]) -> memoryview | bytes:
    import numpy as np

    if array.nbytes == 0:
        return b""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
