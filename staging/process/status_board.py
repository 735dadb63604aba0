"""A table in shared memory: how each process of a server is.

Every process writes its own row and reads all of them, so any worker can report on the
whole server without asking anybody. The supervisor makes the board, hands it to its
children, and is woken when a row changes its state.

Invariants: a row is written by its process alone, except that the supervisor notes an
end; a field is one aligned machine word, so it is read whole. The memory has no name and
goes away with the last process that maps it. Any thread may use the board.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from typing import Any

from staging.process import descendants

__all__ = ["ProcessState", "ProcessStatus", "StatusBoard", "StatusRow"]

SILENT_AFTER_S = 10.0
"""A process that beats, and has not done so for this long (seconds), is unresponsive."""

_UNKNOWN_EXIT = -(2**31)
_PAGE = os.sysconf("SC_PAGESIZE")


class ProcessState(enum.IntEnum):
    """How far a process is."""

    STARTING = 0
    READY = 1
    DRAINING = 2
    ENDED = 3


class _Row(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_int64),
        ("start_ticks", ctypes.c_int64),
        ("state", ctypes.c_int64),
        ("exit_code", ctypes.c_int64),
        ("since_ns", ctypes.c_int64),  # CLOCK_MONOTONIC
        ("beat_ns", ctypes.c_int64),
        ("connections", ctypes.c_int64),
        ("requests", ctypes.c_int64),
    )


@dataclass(frozen=True)
class ProcessStatus:
    """One process of the server, at the moment it was asked about.

    Attributes
    ----------
    name
        Such as ``ApiServer_0``.
    pid
        None until it has come to its first instruction.
    state
        How far it is, by its own account.
    condition
        ``"running"``; ``"stopped"`` (SIGSTOP, or a debugger); ``"dead"``;
        ``"unresponsive"`` (it has not given a sign for ten seconds); ``"unknown"`` where it
        has no pid yet.
    exit_code
        Its exit code where the supervisor knows it.
    uptime_s
        Seconds since it came to its first instruction.
    silent_s
        Seconds since it last gave a sign; None for a process that gives none.
    connections, requests
        Connections held, and requests begun, by an API server.
    rss_bytes
        Resident memory; None where it cannot be read.
    """

    name: str
    pid: int | None
    state: ProcessState
    condition: str
    exit_code: int | None
    uptime_s: float | None
    silent_s: float | None
    connections: int
    requests: int
    rss_bytes: int | None


class StatusBoard:
    """The rows of a server's processes.

    Parameters
    ----------
    names
        The processes, in the order of their rows.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._rows: Any = RawArray(_Row, len(self.names))
        self._waker, self._wakened = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._waker.setblocking(False)
        self._wakened.setblocking(False)

    def __getstate__(self) -> dict[str, Any]:
        # Children wake; only the supervisor is woken.
        return {"names": self.names, "_rows": self._rows, "_waker": self._waker}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def fileno(self) -> int:
        """Return the descriptor that is readable when a row has changed; supervisor only."""
        return self._wakened.fileno()

    def clear_wake(self) -> None:
        """Forget that rows have changed, before they are read; supervisor only."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._wakened.recv(1)

    def row(self, name: str) -> StatusRow:
        """Return the row of process `name`, for it to write."""
        return StatusRow(self, self.names.index(name))

    def close(self) -> None:
        """Close the supervisor's sockets; children find out when they wake it."""
        self._waker.close()
        self._wakened.close()

    def wake(self) -> None:
        """Wake the supervisor; it reads the rows, so that one wake may stand for many."""
        with contextlib.suppress(OSError):
            self._waker.send(b"!")

    def note_end(self, name: str, exit_code: int | None) -> None:
        """Note that a process has ended; by the supervisor, who knows its exit code."""
        row = self._rows[self.names.index(name)]
        row.exit_code = _UNKNOWN_EXIT if exit_code is None else exit_code
        row.state = ProcessState.ENDED

    def status(self) -> list[ProcessStatus]:
        """Return how every process is, in the order of the rows."""
        return [self._status(name, row) for name, row in zip(self.names, self._rows, strict=True)]

    def not_ready(self) -> list[str]:
        """Return the names of those that have not reported themselves ready yet."""
        return [
            name
            for name, row in zip(self.names, self._rows, strict=True)
            if row.state == ProcessState.STARTING
        ]

    def _status(self, name: str, row: Any) -> ProcessStatus:
        now = time.monotonic_ns()
        pid = row.pid or None
        state = ProcessState(row.state)
        ended = state == ProcessState.ENDED
        silent_s = (now - row.beat_ns) / 1e9 if row.beat_ns else None
        exit_known = ended and row.exit_code != _UNKNOWN_EXIT
        return ProcessStatus(
            name=name,
            pid=pid,
            state=state,
            condition=_condition(pid, row.start_ticks, silent_s) if not ended else "dead",
            exit_code=int(row.exit_code) if exit_known else None,
            uptime_s=(now - row.since_ns) / 1e9 if row.since_ns else None,
            silent_s=silent_s,
            connections=int(row.connections),
            requests=int(row.requests),
            rss_bytes=None if ended or pid is None else _rss_bytes(pid),
        )


class StatusRow:
    """A process's own row.

    A board that is read meanwhile shows the fields as they are; nothing is locked.
    """

    def __init__(self, board: StatusBoard, index: int) -> None:
        self._board = board
        self._row = board._rows[index]

    def begin(self) -> None:
        """Report the calling process as started."""
        stat = descendants.read_stat(os.getpid())
        self._row.start_ticks = 0 if stat is None else stat.start
        self._row.since_ns = time.monotonic_ns()
        self._row.pid = os.getpid()

    @property
    def state(self) -> ProcessState:
        """How far the process is."""
        return ProcessState(self._row.state)

    def set_state(self, state: ProcessState) -> None:
        """Report how far the process is, and wake the supervisor."""
        self._row.state = state
        self._board.wake()

    def beat(self) -> None:
        """Give a sign of life; a process that has once done so is expected to go on."""
        self._row.beat_ns = time.monotonic_ns()

    def set_connections(self, count: int) -> None:
        """Report the number of connections that are held."""
        self._row.connections = count

    def count_request(self) -> None:
        """Count a request that has begun; from one thread only."""
        self._row.requests += 1


def _condition(pid: int | None, start_ticks: int, silent_s: float | None) -> str:
    if pid is None:
        return "unknown"
    stat = descendants.read_stat(pid)
    if stat is None or stat.is_dead or stat.start != start_ticks:
        return "dead"
    if stat.state in "Tt":
        return "stopped"
    if silent_s is not None and silent_s > SILENT_AFTER_S:
        return "unresponsive"
    return "running"


def _rss_bytes(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE  # proc_pid_statm(5)
    except OSError:
        return None
