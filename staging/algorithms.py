"""The hash algorithms by name.

BLAKE3 comes from the package ``blake3``, which uses the processor's vector units and, for
large inputs, several threads; where it is not installed, from the extension, which gives
the same digests more slowly. SHA-256 comes from ``hashlib`` and XXH3 from ``xxhash``.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import math
import os
from collections.abc import Callable
from typing import Protocol

from staging.extension import _C

# From here on several threads pay for BLAKE3.
_THREADED_NBYTES = 1 << 20

# XXH3 is computed without a hash object, which takes a tenth less time, up to here where an
# old version of xxhash may hold the GIL meanwhile.
_AT_ONCE_NBYTES = 1 << 20


class Hasher(Protocol):
    """What every algorithm's object can do: ``hashlib``'s interface."""

    def update(self, data: bytes | bytearray | memoryview, /) -> object: ...  # noqa: D102
    def digest(self) -> bytes: ...  # noqa: D102


# A process that forks takes none of blake3's threads along, and the child would wait for
# them for ever: there BLAKE3 runs on the calling thread.
_in_forked_child = False


def _after_fork() -> None:
    global _in_forked_child  # noqa: PLW0603
    _in_forked_child = True


os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def _blake3() -> Callable[[int], Hasher]:
    try:
        module = importlib.import_module("blake3")
    except ImportError:
        return lambda nbytes: _C.Blake3()
    blake3 = module.blake3

    def new(nbytes: int) -> Hasher:
        if nbytes < _THREADED_NBYTES or _in_forked_child:
            hasher: Hasher = blake3()
        else:
            hasher = blake3(max_threads=blake3.AUTO)
        return hasher

    return new


@functools.cache
def _sha256() -> Callable[[int], Hasher]:
    return lambda nbytes: hashlib.sha256(usedforsecurity=False)


@functools.cache
def _xxh3_128() -> Callable[[int], Hasher]:
    try:
        module = importlib.import_module("xxhash")
    except ImportError as error:
        raise ImportError(
            "the algorithm 'xxh3_128' needs the package xxhash: pip install 'tensor-staging[hash]'"
        ) from error
    xxh3_128: Callable[[], Hasher] = module.xxh3_128
    return lambda nbytes: xxh3_128()


@functools.cache
def _xxh3_128_at_once() -> tuple[Callable[[bytes | memoryview], bytes], float]:
    """Return the function, and how many bytes it may be given."""
    _xxh3_128()  # says what to install
    module = importlib.import_module("xxhash")
    releases_gil = int(module.VERSION.split(".")[0]) >= 4
    at_once: Callable[[bytes | memoryview], bytes] = module.xxh3_128_digest
    return at_once, math.inf if releases_gil else _AT_ONCE_NBYTES


_ALGORITHMS: dict[str, Callable[[], Callable[[int], Hasher]]] = {
    "blake3": _blake3,
    "sha256": _sha256,
    "xxh3_128": _xxh3_128,
}

ALGORITHMS = tuple(_ALGORITHMS)
"""The names of the algorithms."""


def new_hasher(algorithm: str, nbytes: int = 0) -> Hasher:
    """Return a new hash object.

    Parameters
    ----------
    algorithm
        One of ``ALGORITHMS``.
    nbytes
        About how many bytes an ``update`` will get: from 1 MiB on BLAKE3 uses as many
        threads as there are processors.

    Returns
    -------
    Hasher
        An object with ``update`` and ``digest``.

    Raises
    ------
    ValueError
        The algorithm is not known; the message lists those that are.
    ImportError
        The package that it comes from is not installed; the message names it.
    """
    find = _ALGORITHMS.get(algorithm) if isinstance(algorithm, str) else None
    if find is None:
        known = ", ".join(map(repr, ALGORITHMS))
        raise ValueError(f"algorithm must be one of {known}, got {algorithm!r}")
    return find()(nbytes)


def digest_bytes(algorithm: str, data: bytes | memoryview) -> bytes:
    """Return the standard digest of some bytes.

    Parameters
    ----------
    algorithm
        One of ``ALGORITHMS``.
    data
        A contiguous buffer.

    Returns
    -------
    bytes
        32 bytes for ``blake3`` and ``sha256``, 16 for ``xxh3_128``.

    Raises
    ------
    ValueError, ImportError
        As :func:`new_hasher`.
    """
    if algorithm == "xxh3_128":
        at_once, limit_nbytes = _xxh3_128_at_once()
        if len(data) <= limit_nbytes:
            return at_once(data)
    hasher = new_hasher(algorithm, len(data))
    hasher.update(data)
    return hasher.digest()
