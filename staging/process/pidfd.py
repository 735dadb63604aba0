"""Process handles: open, signal, wait for and read the end of a process by pidfd.

A pid is a number that the kernel gives away again once its process has been reaped;
a pidfd names one process for good (Linux 5.3, `pidfd_open(2)`). Everything here that
signals goes through one. Functions of this module hold no state and may be called
from any thread.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import signal
import time
from collections.abc import Iterable

# Linux 5.4, waitid(2); os.P_PIDFD is missing where Python was built with older headers.
P_PIDFD: int = getattr(os, "P_PIDFD", 3)

_ENDED = os.WEXITED | os.WNOHANG


def open_pidfd(pid: int) -> int:
    """Return a pidfd of process `pid`, not inheritable.

    Raises
    ------
    ProcessLookupError
        There is no such process.
    OSError
        The kernel has no pidfds (before 5.3), or a sandbox forbids them.
    """
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno in {errno.ENOSYS, errno.EPERM}:
            raise OSError(
                error.errno,
                "pidfd_open(2) is refused: processes are watched by pidfd, which needs Linux 5.4 "
                "and a seccomp profile that allows it",
            ) from None
        raise


def send_signal(pidfd: int, signum: int) -> bool:
    """Send `signum` to the process; return False if it has been reaped already."""
    try:
        signal.pidfd_send_signal(pidfd, signum)
    except ProcessLookupError:
        return False
    return True


def has_ended(pidfd: int) -> bool:
    """Return whether the process has ended (it may still be waiting to be reaped)."""
    return bool(wait_any([pidfd], 0))


def wait_any(fds: Iterable[int], timeout: float | None) -> list[int]:
    """Wait until one of `fds` is readable, and return those that are.

    Parameters
    ----------
    fds
        pidfds, pipes or sockets; poll(2) is used, so numbers above 1023 are fine.
    timeout
        Seconds; None waits without limit. Exceptions raised by the caller's signal
        handlers end the wait.

    Returns
    -------
    list of int
        The descriptors that are readable, closed at the other end, or invalid;
        empty after the timeout.
    """
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    if timeout is None:
        return [fd for fd, _ in poller.poll()]
    # Rounded up: poll takes whole milliseconds, and 0 would spin until the deadline.
    return [fd for fd, _ in poller.poll(math.ceil(max(0.0, timeout) * 1000))]


def exit_code(pidfd: int) -> int | None:
    """Return the exit code of an ended child and leave it to be reaped.

    Returns
    -------
    int or None
        The exit status, or ``-signal`` for a child that a signal ended, as
        `multiprocessing` writes it; None while it runs.

    Raises
    ------
    ChildProcessError
        The process is no child of the caller, or somebody else has reaped it.
    """
    result = os.waitid(P_PIDFD, pidfd, _ENDED | os.WNOWAIT)
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def reap(pidfd: int) -> None:
    """Reap an ended child; do nothing if it runs or somebody else has reaped it."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(P_PIDFD, pidfd, _ENDED)


def is_own_child(pidfd: int) -> bool:
    """Return whether the process is a child of the caller that is not reaped yet."""
    try:
        exit_code(pidfd)
    except ChildProcessError:
        return False
    return True


def is_own_child_number(pid: int) -> bool:
    """Return whether process `pid` is a child of the caller that is not reaped yet.

    As long as it is, the number is its own, and may be signalled.
    """
    try:
        os.waitid(os.P_PID, pid, _ENDED | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def reap_number(pid: int) -> bool:
    """Reap a child of the caller; return False if it still runs."""
    try:
        return os.waitid(os.P_PID, pid, _ENDED) is not None
    except ChildProcessError:
        return True


def await_end(pidfds: Iterable[int], timeout: float) -> set[int]:
    """Wait until all of `pidfds` have ended, at most `timeout` seconds.

    Returns
    -------
    set of int
        Those that still run.
    """
    deadline = time.monotonic() + timeout
    running = set(pidfds)
    while running:
        running.difference_update(wait_any(running, deadline - time.monotonic()))
        if time.monotonic() >= deadline:
            break
    return running
