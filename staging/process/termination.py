"""End processes: ask, wait until one deadline, kill, reap, and tell what happened.

It runs in the caller's thread and starts none, so that it works at the interpreter's
exit, in a finalizer, and in a signal handler.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from staging.process import descendants, reserve
from staging.process import pidfd as _pidfd
from staging.process.exit_codes import exit_code_of

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S = 5.0
"""Seconds that processes are given when nothing else is said."""

# After SIGKILL, at most this long (seconds) for processes to end and to be reaped; the
# rest of the second that is promised is for looking through /proc on a busy machine.
_REAP_TIMEOUT = 0.8

# How often (seconds) a process without a pidfd is asked whether it lives.
_POLL_INTERVAL = 0.01

# How often the kill is begun again when the caller's signal handlers raise meanwhile.
_MAX_INTERRUPTIONS = 100


@dataclass(frozen=True)
class ProcessReport:
    """How one process ended.

    Attributes
    ----------
    name, pid
        What it was called; the pid is None if it never had one.
    exitcode
        Its exit status, or ``-signal``; None where it cannot be known.
    outcome
        ``"ended before"``; ``"terminated"`` (it obeyed SIGTERM, or ended by itself
        meanwhile); ``"killed"``; ``"running"`` (SIGKILL has been sent and has not ended
        it yet: it is in an uninterruptible call, or is freeing much memory);
        ``"not started"``; ``"closed"``; ``"not ours"`` (a process of another one, which
        was left alone).
    seconds
        From the call to its end.
    """

    name: str
    pid: int | None
    exitcode: int | None
    outcome: str
    seconds: float

    def __str__(self) -> str:
        code = "" if self.exitcode is None else f", exit code {self.exitcode}"
        return f"{self.name} (PID: {self.pid}): {self.outcome}{code}, {self.seconds:.2f} s"


@dataclass(frozen=True)
class ShutdownReport:
    """What `shutdown` has done.

    Attributes
    ----------
    processes
        A report for each process, in the order in which they were given.
    seconds
        How long it took.
    """

    processes: tuple[ProcessReport, ...]
    seconds: float

    @property
    def survivors(self) -> tuple[ProcessReport, ...]:
        """Those that still run, though SIGKILL has been sent."""
        return tuple(report for report in self.processes if report.outcome == "running")

    @property
    def killed(self) -> tuple[ProcessReport, ...]:
        """Those that did not end in time, and were killed."""
        return tuple(report for report in self.processes if report.outcome == "killed")

    def __str__(self) -> str:
        return "; ".join(map(str, self.processes)) or "no processes"


def shutdown(
    procs: Iterable[Any], timeout: float | None = None, *, min_grace: float = 0.25
) -> ShutdownReport:
    """End processes: SIGTERM to all, one shared deadline, SIGKILL to those that are left.

    What a process has started is killed with it, also when the process itself obeys.
    A stopped process is continued, so that it can obey.

    Parameters
    ----------
    procs
        `ChildProcess`, `multiprocessing.Process`, or anything with ``name``, ``pid``,
        ``exitcode``, ``is_alive()``, ``terminate()`` and ``kill()``. They may be
        unstarted, closed, ended or another process's.
    timeout
        Seconds until SIGKILL; None means 5.
    min_grace
        Seconds that every process gets at least: a process that needs 50 ms to put its
        things away should have them even if the timeout is 0.

    Returns
    -------
    ShutdownReport
        Within ``max(timeout, min_grace) + 1`` seconds. It names the processes that
        SIGKILL has not ended by then (``survivors``).

    Raises
    ------
    ValueError
        `timeout` or `min_grace` is negative or not a number.
    BaseException
        Whatever a signal handler of the caller raises meanwhile. The wait is then over:
        all are killed and reaped before it is passed on.
    """
    grace = max(
        _seconds("timeout", DEFAULT_TIMEOUT_S if timeout is None else timeout),
        _seconds("min_grace", min_grace),
    )
    procs = list(procs)
    targets: list[_Target] = []
    interruption: BaseException | None = None
    begin = time.monotonic()
    try:
        for proc in procs:
            targets.append(_Target(proc, begin))
        for target in targets:
            target.terminate()
        _await_all(targets, begin + grace)
    except BaseException as error:
        interruption = error
    for attempt in range(_MAX_INTERRUPTIONS):
        try:
            if attempt:
                # It does not take its time a second time: what a process has started is
                # found after its end, too, unless it hides well.
                for target in targets:
                    target.signal_at_once(signal.SIGKILL)
            _kill_all(procs, targets, begin)
            break
        except BaseException as error:
            interruption = interruption or error
    for target in targets:
        target.close()
    if interruption is not None:
        raise interruption
    report = ShutdownReport(tuple(target.report() for target in targets), time.monotonic() - begin)
    if report.survivors:
        logger.warning("Processes that SIGKILL has not ended yet: %s", report)
    return report


def told_to_stop(proc: Any) -> bool:
    """Return whether `shutdown` has sent this process a signal."""
    try:
        return proc in _told_to_stop
    except TypeError:
        return getattr(proc, "_staging_told_to_stop", False) is True


_told_to_stop: weakref.WeakSet[Any] = weakref.WeakSet()


def _note_told_to_stop(proc: Any) -> None:
    try:
        _told_to_stop.add(proc)
    except TypeError:  # not hashable, or no weak references
        with contextlib.suppress(AttributeError):
            proc._staging_told_to_stop = True


def _seconds(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise ValueError(f"{name} is {value!r}: it must be a number of seconds, 0 or more")
    return float(value)


class _Target:
    """One process that is to end. Methods may be repeated after an interruption."""

    def __init__(self, proc: Any, begin: float) -> None:
        self._proc = proc
        self._begin = begin
        self._name = _attribute(proc, "name") or type(proc).__name__
        self._fd = -1
        self._code: int | None = None
        self._end = 0.0
        self._was_killed = False
        # Ours tell and end what they have started; of others it is noted beforehand,
        # because it is found by its parents only while they live.
        self._is_ours = hasattr(proc, "kill_descendants")
        self._family: dict[tuple[int, int], descendants.ProcessStat] = {}
        self._outcome = ""  # as long as it runs
        try:
            self._pid: int | None = proc.pid
            alive = proc.is_alive()
        except ValueError:
            self._pid = None
            self._outcome = "closed"
        except AssertionError:
            self._outcome = "not ours"
        except Exception:
            logger.warning("Cannot tell whether %s lives", self._name, exc_info=True)
            self._pid = _attribute(proc, "pid")
        else:
            if self._pid is None:
                self._outcome = "not started"
            elif not alive:
                self._note_end("ended before")
            else:
                self._open()

    def _open(self) -> None:
        """Get a handle of a running process, if it is a child of ours."""
        pid = self._pid
        assert pid is not None
        try:
            if self._is_ours:
                fd = self._proc.pidfd
                if fd is not None:
                    self._fd = reserve.opened(lambda: os.dup(fd))
                return
            fd = reserve.opened(lambda: _pidfd.open_pidfd(pid))
        except OSError as error:
            if error.errno in reserve.EXHAUSTED:
                return  # it is asked whether it lives, and ended by its own methods
            fd = -1
        if fd >= 0 and _pidfd.is_own_child(fd):
            self._fd = fd
            return
        if fd >= 0:
            os.close(fd)
        if getattr(_attribute(self._proc, "_popen"), "method", None) in {"fork", "spawn"}:
            # It was our child and has been reaped: the number may be another's now, and
            # multiprocessing would take it to live for ever.
            self._note_end("ended before")

    def terminate(self) -> None:
        if self.has_ended():
            return
        self._note_family()
        _note_told_to_stop(self._proc)
        try:
            self._proc.terminate()
        except Exception as error:
            logger.warning("Cannot send SIGTERM to %s: %r", self._name, error)
            if self._fd >= 0:
                _pidfd.send_signal(self._fd, signal.SIGTERM)
        if self._fd >= 0 and self._pid is not None:
            stat = descendants.read_stat(self._pid)
            if stat is not None and stat.state in "Tt":
                _pidfd.send_signal(self._fd, signal.SIGCONT)

    def kill(self) -> None:
        if self.has_ended():
            return
        _note_told_to_stop(self._proc)
        self._was_killed = True
        if self._fd < 0:
            try:
                if self._is_ours:
                    self._proc.kill_descendants()
            finally:
                self._proc.kill()
            return
        try:
            # So that it starts nothing more while its family is looked for.
            _pidfd.send_signal(self._fd, signal.SIGSTOP)
            if self._is_ours:
                self._proc.kill_descendants()
            else:
                self._note_family()
                self._kill_family()
        finally:
            _pidfd.send_signal(self._fd, signal.SIGKILL)

    def signal_at_once(self, signum: int) -> None:
        if not self._outcome and self._fd >= 0:
            self._was_killed = True
            _pidfd.send_signal(self._fd, signum)

    def has_ended(self) -> bool:
        """Return whether it runs no more; then it is reaped, and its family has ended."""
        if self._outcome:
            return True
        if self._fd >= 0:
            if not _pidfd.has_ended(self._fd):
                return False
            self._kill_family()
        elif _alive(self._proc):
            return False
        self._note_end("killed" if self._was_killed else "terminated")
        return True

    @property
    def fd(self) -> int:
        return self._fd

    def report(self) -> ProcessReport:
        end = self._end if self._outcome and self._end else time.monotonic()
        return ProcessReport(
            str(self._name),
            self._pid,
            self._code,
            self._outcome or "running",
            0.0 if self._outcome == "ended before" else end - self._begin,
        )

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _note_end(self, outcome: str) -> None:
        self._code = exit_code_of(self._proc, self._fd)
        self._end = time.monotonic()
        self._outcome = outcome

    def _note_family(self) -> None:
        if self._is_ours or self._fd < 0 or self._pid is None:
            return
        for stat in descendants.find_family(roots=[self._pid]):
            self._family[stat.key] = stat

    def _kill_family(self) -> None:
        """SIGKILL those that were noted, and what they have started since."""
        living = [
            stat
            for stat in self._family.values()
            if (now := descendants.read_stat(stat.pid)) is not None and now.start == stat.start
        ]
        for stat in living:
            descendants.stop(stat)
        if living:
            descendants.kill_family(roots=[stat.pid for stat in living])
        for stat in living:
            handle = descendants.kill(stat)
            if handle is not None and handle >= 0:
                os.close(handle)
        self._family.clear()


def _await_all(targets: list[_Target], deadline: float) -> None:
    """Wait until all have ended, or until the deadline (of the monotonic clock)."""
    while True:
        pending = [target for target in targets if not target.has_ended()]
        remaining = deadline - time.monotonic()
        if not pending or remaining <= 0:
            return
        fds = [target.fd for target in pending if target.fd >= 0]
        _pidfd.wait_any(
            fds, remaining if len(fds) == len(pending) else min(remaining, _POLL_INTERVAL)
        )


def _kill_all(procs: list[Any], targets: list[_Target], begin: float) -> None:
    """SIGKILL all that still run, with their descendants, and reap them."""
    while len(targets) < len(procs):
        targets.append(_Target(procs[len(targets)], begin))
    pending = [target for target in targets if not target.has_ended()]
    for target in pending:
        try:
            target.kill()
        except Exception as error:
            logger.warning("Cannot kill %s: %r", target.report().name, error)
    _await_all(pending, time.monotonic() + _REAP_TIMEOUT)


def _alive(proc: Any) -> bool:
    try:
        return bool(proc.is_alive())
    except Exception:
        return False  # it has been closed meanwhile


def _attribute(proc: Any, name: str) -> Any:
    try:
        return getattr(proc, name, None)
    except Exception:
        return None
