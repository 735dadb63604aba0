"""Wait for a server's processes, and say exactly which of them failed."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import Any, Protocol

from staging.process import pidfd as _pidfd
from staging.process import reserve
from staging.process.adopted import reap_adopted
from staging.process.exit_codes import exit_code_of
from staging.process.guard import guard
from staging.process.termination import told_to_stop

logger = logging.getLogger(__name__)

# How often (seconds) an engine monitor, or a process that has no descriptor, is asked.
_POLL_INTERVAL = 0.05

# How often (seconds) the warden is looked after and adopted processes are reaped.
_CHORES_INTERVAL = 1.0

# Failures this close together (seconds) belong to the same moment: when a machine runs
# out of memory, or an engine drags the others down, all that fall are named.
_SAME_MOMENT = 0.03

_TERMINATED = (-15, -9)


class APIServers(Protocol):
    """What is waited for; `APIServerProcessManager` is one."""

    @property
    def processes(self) -> Any:
        """The processes, with ``name``, ``pid``, ``sentinel`` and ``exitcode``."""


class Engines(Protocol):
    """Engines that watch themselves; `EngineProcessManager` is one."""

    failed_proc_name: str | None

    def monitor_engine_liveness(self) -> None:
        """Return when an engine has ended, or when they are shut down."""


class Coordinator(Protocol):
    """A process that must live as long as the servers do."""

    proc: Any


def wait_for_completion_or_failure(
    api_server_manager: APIServers,
    engine_manager: Engines | None = None,
    coordinator: Coordinator | None = None,
) -> None:
    """Wait until every API server has ended with 0, or until something has failed.

    It stops nothing: that is the caller's, in a ``finally``.

    Parameters
    ----------
    api_server_manager
        Anything with ``processes``.
    engine_manager
        Anything with ``monitor_engine_liveness()``, which is called in a thread, and
        ``failed_proc_name``, which is read every 50 ms: a monitor may name the failed
        engine and then spend seconds in ending the others. The wait is over when the
        monitor returns.
    coordinator
        Anything with ``proc``.

    Raises
    ------
    RuntimeError
        ``Process <name> (PID: <pid>) died with exit code <code>`` for a server or the
        coordinator, None being a code that cannot be known, or ``Engine core process
        <name> died unexpectedly.`` with its exit code where that is known. Failures of
        the same moment (30 ms) are all named, parted by ``; ``. A process that
        `staging.process.shutdown` has ended has not failed.
    ValueError
        A process has not been started.

    Notes
    -----
    KeyboardInterrupt ends the wait, and it returns; other exceptions from signal
    handlers pass through. Call it from any thread.
    """
    watch = None
    try:
        watch = _Watch(api_server_manager, engine_manager, coordinator)
        logger.info("Waiting for API servers to complete ...")
        failures = watch.wait()
    except KeyboardInterrupt:
        logger.info("Interrupted while waiting for API servers")
        return
    finally:
        if watch is not None:
            watch.close()
    if failures:
        message = "; ".join(failures.values())
        logger.error("%s", message)
        raise RuntimeError(message)


class _Watch:
    """One call's processes and monitor."""

    def __init__(
        self, servers: APIServers, engines: Engines | None, coordinator: Coordinator | None
    ) -> None:
        self._servers: list[_Watched] = []
        self._others: list[_Watched] = []
        self._monitor: _Monitor | None = None
        try:
            for proc in servers.processes:
                self._servers.append(_Watched(proc))
            if coordinator is not None and coordinator.proc is not None:
                self._others.append(_Watched(coordinator.proc))
            if engines is not None:
                self._monitor = _Monitor(engines)
        except BaseException:
            self.close()
            raise

    def wait(self) -> dict[str, str]:
        """Return the failures of the first moment that has any; none when all is done."""
        next_chores = time.monotonic()
        while True:
            # Before the processes are looked at: what ends later is seen next time.
            monitor_is_over = self._monitor is not None and self._monitor.is_over
            failures = self._failures()
            if failures:
                return self._failures_of_this_moment(failures)
            if monitor_is_over or self._is_complete():
                return {}
            if time.monotonic() >= next_chores:
                _do_chores()
                next_chores = time.monotonic() + _CHORES_INTERVAL
            self._sleep(_CHORES_INTERVAL)

    def close(self) -> None:
        for watched in self._servers + self._others:
            watched.close()
        if self._monitor is not None:
            self._monitor.close()

    def _is_complete(self) -> bool:
        if self._servers:
            return all(server.has_ended for server in self._servers)
        return self._monitor is None and all(other.has_ended for other in self._others)

    def _failures(self) -> dict[str, str]:
        """Return what is known of each process that has failed, by its name."""
        failures = {}
        for watched in self._servers + self._others:
            watched.update()
            if watched.failure is not None:
                failures[f"{watched.name} {watched.pid}"] = watched.failure
        if self._monitor is not None:
            failures.update(self._monitor.failures())
        return failures

    def _failures_of_this_moment(self, failures: dict[str, str]) -> dict[str, str]:
        """Return the failures and those that follow at once; the first stay in front."""
        deadline = time.monotonic() + _SAME_MOMENT
        while (remaining := deadline - time.monotonic()) > 0:
            self._sleep(remaining)
            failures.update(self._failures())
        return failures

    def _sleep(self, limit: float) -> None:
        """Wait until something may have changed, at most `limit` seconds."""
        running = [w for w in self._servers + self._others if not w.has_ended]
        fds = [watched.fd for watched in running if watched.fd >= 0]
        if len(fds) < len(running):
            limit = min(limit, _POLL_INTERVAL)
        if self._monitor is not None and not self._monitor.is_over:
            fds.append(self._monitor.fd)
            limit = min(limit, _POLL_INTERVAL)
        _pidfd.wait_any(fds, limit)


class _Watched:
    """A process whose end is waited for, by a descriptor of our own where there is one."""

    def __init__(self, proc: Any) -> None:
        self._proc = proc
        self.fd = -1
        self.has_ended = False
        self.failure: str | None = None
        try:
            self.name, self.pid = proc.name, proc.pid
        except ValueError:  # closed: it has ended, and its exit code is gone
            self.name, self.pid = getattr(proc, "_name", repr(proc)), None
            self._note_end(None)
            return
        if self.pid is None:
            raise ValueError(f"process {self.name} has not been started")
        if not self._claims_to_live():
            self._note_end(exit_code_of(proc))
            return
        self._open()
        self.update()

    def _open(self) -> None:
        # A pidfd, because a process's own sentinel may be a pipe that a grandchild
        # holds; a copy of it, because its owner may close it while we wait.
        fd = getattr(self._proc, "pidfd", None)
        if fd is None:
            try:
                fd = _pidfd.open_pidfd(self.pid)
                if _pidfd.is_own_child(fd):
                    self.fd = fd
                    return
                os.close(fd)
            except OSError as error:
                if error.errno in reserve.EXHAUSTED:
                    return  # it is asked whether it lives
            if getattr(getattr(self._proc, "_popen", None), "method", None) in {"fork", "spawn"}:
                # Our child, and somebody has reaped it; it would seem to live for ever.
                self._note_end(self._proc.exitcode)
                return
            fd = getattr(self._proc, "sentinel", None)
        if isinstance(fd, int):
            with contextlib.suppress(OSError):
                self.fd = os.dup(fd)

    def update(self) -> None:
        """See whether it has ended, and how."""
        if self.has_ended or (self.fd >= 0 and not _pidfd.wait_any([self.fd], 0)):
            return
        if self.fd < 0 and self._claims_to_live():
            return
        code = exit_code_of(self._proc, self.fd)
        if code is None and self._claims_to_live() and not self._has_left():
            # A pipe that is closed while its process lives says nothing more.
            self.close()
            return
        self._note_end(code)

    def _claims_to_live(self) -> bool:
        try:
            is_alive = getattr(self._proc, "is_alive", None)
            return bool(is_alive()) if is_alive is not None else self._proc.exitcode is None
        except ValueError:  # closed while we waited
            return False

    def _has_left(self) -> bool:
        """Return whether it is dead though it claims to live: somebody has reaped it."""
        return self.fd >= 0 and not _is_pipe(self.fd)

    def _note_end(self, code: int | None) -> None:
        self.has_ended = True
        if code != 0 and not (code in _TERMINATED and told_to_stop(self._proc)):
            self.failure = f"Process {self.name} (PID: {self.pid}) died with exit code {code}"

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class _Monitor:
    """An engine manager's own monitor, in a thread."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._error: BaseException | None = None
        self.is_over = False
        self.fd, end = os.pipe()
        self._thread = threading.Thread(
            target=self._run, args=(end,), name="EngineMonitor", daemon=True
        )
        try:
            self._thread.start()
        except BaseException:
            os.close(end)
            self.close()
            raise

    def _run(self, end: int) -> None:
        try:
            self._engines.monitor_engine_liveness()
        except BaseException as error:
            self._error = error
        finally:
            self.is_over = True
            os.close(end)

    def failures(self) -> dict[str, str]:
        """Return what the monitor has found to have failed until now."""
        failed = self._engines.failed_proc_name
        if failed is None:
            if self._error is not None:
                return {"monitor": f"The engine monitor failed: {self._error!r}"}
            return {}
        # First what the monitor says; then others, unless it has ended them itself.
        failures = {failed: _engine_failure(failed, None)}
        for process in list(getattr(self._engines, "processes", ())):
            code = _exit_code(process)
            if code in {None, 0}:
                continue
            ended_by_us = code in _TERMINATED and (
                told_to_stop(process) or not hasattr(process, "kill_descendants")
            )
            if process.name == failed or not ended_by_us:
                failures[process.name] = _engine_failure(process.name, code)
        return failures

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _engine_failure(name: str, code: int | None) -> str:
    known = "" if code is None else f" (exit code {code})"
    return f"Engine core process {name} died unexpectedly.{known}"


def _exit_code(process: Any) -> int | None:
    try:
        code = process.exitcode
    except ValueError:  # closed
        return None
    return code if isinstance(code, int) else None


def _is_pipe(fd: int) -> bool:
    return os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:")


def _do_chores() -> None:
    try:
        guard().check()
    except RuntimeError as error:
        logger.error("%s", error)
    reap_adopted()
