"""Processes and listeners that are started together and end together.

What every manager has in common: a start that leaves nothing when it fails, a shutdown
that can be repeated, and the same shutdown when the manager is forgotten or the
interpreter exits.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from multiprocessing import util
from typing import Any, Protocol, runtime_checkable

from staging.process.termination import ShutdownReport, shutdown

logger = logging.getLogger(__name__)


@runtime_checkable
class Listener(Protocol):
    """A listening socket as the managers take it; `ZmqListener` is one."""

    @property
    def address(self) -> str:
        """Where peers connect."""

    @property
    def socket(self) -> Any:
        """The socket that a child inherits."""

    def close(self) -> None:
        """Close this process's copy."""

    def cleanup(self) -> None:
        """Close, and remove what this process made of it."""


class ProcessSet:
    """The processes and listeners of one manager.

    Parameters
    ----------
    owner
        The manager. When it is garbage collected, or the interpreter exits, the set is
        shut down; so the set must not refer to it.
    min_grace
        Passed on to `shutdown`, in seconds.
    """

    def __init__(self, owner: object, *, min_grace: float = 0.25) -> None:
        self.processes: list[Any] = []
        self.listeners: list[Any] = []
        self._min_grace = min_grace
        # exitpriority 0: before multiprocessing joins its children at exit, which would
        # wait for a server for ever.
        self._finalizer = util.Finalize(owner, self.shutdown, exitpriority=0)

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Undo the start on any exception: end what runs, clean the listeners up."""
        try:
            yield
        except BaseException:
            self.shutdown(0)
            for process in self.processes:
                if process.pid is None:
                    process.discard()  # its start may have been interrupted
            raise

    def shutdown(self, timeout: float | None = None) -> ShutdownReport:
        """End the processes, then clean the listeners up; repeat it as often as needed.

        Parameters
        ----------
        timeout
            Seconds until SIGKILL; None means 5.
        """
        try:
            report = shutdown(self.processes, timeout, min_grace=self._min_grace)
        finally:
            clean_up(self.listeners)
        if not report.survivors:
            self._finalizer.cancel()
        return report


def clean_up(listeners: Iterable[Any]) -> None:
    """Clean every listener up; one that fails does not keep the others."""
    for listener in listeners:
        try:
            listener.cleanup()
        except Exception as error:
            logger.warning("Cannot clean %r up: %r", listener, error)


def check_listeners(name: str, listeners: Any, count: int) -> None:
    """Check that there is a listener for each of `count` processes.

    Raises
    ------
    TypeError
        One of them lacks a member.
    ValueError
        There are too few or too many of them, or one is closed.
    """
    if len(listeners) != count:
        raise ValueError(f"{name} has {len(listeners)} listeners for {count} processes")
    for i, listener in enumerate(listeners):
        for member in ("address", "socket", "close", "cleanup"):
            if not hasattr(listener, member):
                raise TypeError(f"{name}[{i}] is {listener!r}: it has no {member!r}")
        if listener.socket.fileno() < 0:
            raise ValueError(f"{name}[{i}] is {listener!r}: its socket is closed")
