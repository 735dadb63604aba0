"""Descriptors that are kept free for ending processes.

To find and signal a process takes two descriptors: a file of ``/proc`` and a pidfd. A
process that has run out of descriptors has to end its children nevertheless, so it holds
some from before the first child's fork, and gives one up wherever none is left.

Standard library only, because the warden imports it. Any thread may call it, and so may a
signal handler: the list is only changed by single operations.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import TypeVar

_Opened = TypeVar("_Opened")

SIZE = 8
"""Two for each of the threads that may end processes at once: the main one, whoever waits,
an engine monitor and a drain."""

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
"""What the kernel says when it has run out of something for now."""

_held: list[int] = []


def hold() -> None:
    """Fill the reserve.

    Raises
    ------
    OSError
        There are not that many descriptors left; what there was is kept.
    """
    while len(_held) < SIZE:
        _held.append(os.eventfd(0, os.EFD_CLOEXEC))


def refill() -> None:
    """Fill the reserve as far as that is possible, if it is held at all."""
    if _held:
        with contextlib.suppress(OSError):
            hold()


def release() -> None:
    """Give all of it up: there is nothing left to end."""
    while _give_up():
        pass


def opened(open_: Callable[[], _Opened]) -> _Opened:
    """Return what `open_` returns; where nothing is left, from the reserve.

    Raises
    ------
    OSError
        What `open_` raises, also when the reserve has been used up.
    """
    while True:
        try:
            return open_()
        except OSError as error:
            if error.errno not in EXHAUSTED or not _give_up():
                raise


def _give_up() -> bool:
    try:
        fd = _held.pop()
    except IndexError:
        return False
    os.close(fd)
    return True
