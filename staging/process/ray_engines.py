"""Engines as Ray actors: the interface of `EngineProcessManager`, over several machines.

An engine is an actor that runs one function to its end. What a supervisor relies on is
kept from the local manager: an engine that ends is noticed at once and named, the others
are then ended, nothing is restarted, and shutdown has a deadline after which nothing is
asked any more.

An actor cannot be sent SIGTERM: its function does not run on its process's main thread,
and its machine may be another. A function with a ``stop`` parameter is handed a
`threading.Event` instead, which is set when it should return; one without it is killed.

Ray is only imported when a manager is made; it comes with the extra ``[ray]``.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import util
from typing import Any, NamedTuple

from staging.process import descendants
from staging.process import pidfd as _pidfd
from staging.process.termination import DEFAULT_TIMEOUT_S, ProcessReport, ShutdownReport

__all__ = ["RayEngine", "RayEngineManager"]

logger = logging.getLogger(__name__)

# Seconds: how often the monitor looks whether it is over, what an engine gets at least to
# return, and how long the end of a killed actor is waited for.
_MONITOR_INTERVAL = 1.0
_MIN_GRACE = 0.25
_KILL_TIMEOUT = 0.7


class _Identity(NamedTuple):
    """Which process an actor is."""

    hostname: str
    pid: int
    start: int
    """Clock ticks from that machine's boot to the process's start."""
    namespace: tuple[str, int]
    """The machine's boot, and the pid namespace on it: where `pid` means something."""


def _identify() -> _Identity:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    stat = descendants.read_stat(os.getpid())
    return _Identity(
        socket.gethostname(),
        os.getpid(),
        0 if stat is None else stat.start,
        (boot, os.stat("/proc/self/ns/pid").st_ino),
    )


class _Actor:
    """What runs in the actor's process; its methods are called from different threads."""

    def __init__(self) -> None:
        self._stop = threading.Event()

    def identify(self) -> _Identity:
        return _identify()

    def run(
        self, target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> int:
        """Run the engine and return its exit code, as a process would have it."""
        if _takes_stop(target):
            kwargs = {**kwargs, "stop": self._stop}
        try:
            target(*args, **kwargs)
        except SystemExit as error:
            if error.code is None:
                return 0
            return error.code if isinstance(error.code, int) else 1
        return 0

    def stop(self) -> None:
        self._stop.set()


def _takes_stop(target: Callable[..., Any]) -> bool:
    try:
        return "stop" in inspect.signature(target).parameters
    except (TypeError, ValueError):
        return False


class RayEngine:
    """One engine, as a supervisor sees a process.

    Attributes
    ----------
    name : str
        ``EngineCore_<index>``.
    pid : int or None
        The actor's process, on `hostname`.
    hostname : str or None
        The machine it runs on.
    exitcode : int or None
        None while it runs and where it cannot be known (its process has ended); 0 when
        its function has returned; 1 when that has raised.
    """

    def __init__(self, name: str, actor: Any, can_stop: bool) -> None:
        self.name = name
        self.pid: int | None = None
        self.hostname: str | None = None
        self.exitcode: int | None = None
        self.reason = ""
        self._actor = actor
        self._can_stop = can_stop
        self._run: Any = None
        self._ended = False
        self._was_asked = False
        self._was_killed = False
        self._pidfd = -1  # of an actor on this machine
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<RayEngine {self.name} pid={self.pid} on {self.hostname}>"

    def is_alive(self) -> bool:
        """Return whether the engine's function still runs."""
        import ray

        if not self._ended and self._run is not None and ray.is_initialized():
            with contextlib.suppress(Exception):
                if ray.wait([self._run], timeout=0)[0]:
                    self._note_end()
        return not self._ended and self._run is not None

    def terminate(self) -> None:
        """Ask the engine to return; kill one that cannot be asked."""
        if not self._can_stop:
            self.kill()
            return
        self._was_asked = True
        if not self._ended:
            self._actor.stop.remote()

    def kill(self) -> None:
        """Kill the actor, whatever it does. It is not restarted."""
        import ray

        self._was_asked = True
        self._was_killed = self._was_killed or not self._ended
        ray.kill(self._actor, no_restart=True)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the engine's end, at most `timeout` seconds."""
        import ray

        if self._run is not None and not self._ended:
            ray.wait([self._run], timeout=timeout)
            self.is_alive()

    def _begin(
        self, target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._run = self._actor.run.remote(target, args, kwargs)

    def _note_identity(self, identity: _Identity) -> None:
        self.pid, self.hostname = identity.pid, identity.hostname
        if identity.namespace != _identify().namespace:
            return  # the number is another machine's
        with contextlib.suppress(OSError):
            handle = _pidfd.open_pidfd(identity.pid)
            stat = descendants.read_stat(identity.pid)
            if stat is not None and stat.start == identity.start:
                self._pidfd = handle
            else:
                os.close(handle)

    def _note_end(self) -> None:
        import ray

        with self._lock:
            if self._ended:
                return
            try:
                self.exitcode = ray.get(self._run)
            except ray.exceptions.RayTaskError as error:
                self.exitcode, self.reason = 1, repr(error.cause)
            except Exception as error:
                # Its process has ended, or its machine, or Ray: nobody knows its code.
                self.reason = type(error).__name__
            self._ended = True

    def _outcome(self) -> str:
        if not self._ended:
            return "running"
        return "killed" if self._was_killed else "terminated"

    def _end_process(self, deadline: float) -> None:
        """See to it that the killed actor's process has gone, if it is on this machine.

        Ray waits five seconds before it does more than ask, and a stopped process does
        not hear it.
        """
        if self._pidfd < 0:
            return
        if _pidfd.wait_any([self._pidfd], max(0.0, deadline - time.monotonic()) / 2):
            return
        with contextlib.suppress(PermissionError):
            _pidfd.send_signal(self._pidfd, signal.SIGKILL)
        _pidfd.wait_any([self._pidfd], max(0.0, deadline - time.monotonic()))

    def __del__(self) -> None:
        if getattr(self, "_pidfd", -1) >= 0:
            os.close(self._pidfd)


class _Engines:
    """The engines of one manager; holds no reference to it."""

    def __init__(self) -> None:
        self.engines: list[RayEngine] = []

    def shutdown(self, timeout: float | None = None) -> ShutdownReport:
        import ray

        limit = DEFAULT_TIMEOUT_S if timeout is None else timeout
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit >= 0:
            raise ValueError(f"timeout is {timeout!r}: it must be a number of seconds, 0 or more")
        begin = time.monotonic()
        # No lock: a monitor may be ending the engines by its own deadline, and an earlier
        # one holds nevertheless. Everything below may be done twice, or at once.
        ended_before = {engine.name for engine in self.engines if not engine.is_alive()}
        if ray.is_initialized():
            try:
                self._ask(begin + max(limit, _MIN_GRACE))
            finally:
                self._kill()
        seconds = time.monotonic() - begin
        reports = tuple(
            ProcessReport(engine.name, engine.pid, engine.exitcode, "ended before", 0.0)
            if engine.name in ended_before
            else ProcessReport(engine.name, engine.pid, engine.exitcode, engine._outcome(), seconds)
            for engine in self.engines
        )
        return ShutdownReport(reports, time.monotonic() - begin)

    def _ask(self, deadline: float) -> None:
        import ray

        for engine in self.engines:
            if engine.is_alive():
                with _logged("ask", engine):
                    engine.terminate()
        runs = [engine._run for engine in self.engines if engine.is_alive()]
        if runs:
            remaining = max(0.0, deadline - time.monotonic())
            with contextlib.suppress(Exception):
                ray.wait(
                    runs,
                    num_returns=len(runs),
                    timeout=None if math.isinf(remaining) else remaining,
                )

    def _kill(self) -> None:
        # An engine whose function has returned still has a process.
        import ray

        for engine in self.engines:
            engine.is_alive()
            with _logged("kill", engine):
                engine.kill()
        # From here on: Ray may have taken its time to be told, and a process that is sent
        # SIGKILL still has to be scheduled to end.
        deadline = time.monotonic() + _KILL_TIMEOUT
        for engine in self.engines:
            engine._end_process(deadline)
        runs = [engine._run for engine in self.engines if engine.is_alive()]
        if runs:
            with contextlib.suppress(Exception):
                ray.wait(runs, num_returns=len(runs), timeout=max(0.0, deadline - time.monotonic()))
            for engine in self.engines:
                engine.is_alive()


@contextlib.contextmanager
def _logged(what: str, engine: RayEngine) -> Any:
    """One engine that cannot be reached does not keep the others from their end."""
    try:
        yield
    except Exception as error:
        logger.warning("Cannot %s %s: %r", what, engine.name, error)


class RayEngineManager:
    """Starts engines as Ray actors, notices when one ends, and ends them.

    Each runs ``target_fn(*args, **kwargs, engine_index=index)`` in an actor, and gets
    ``stop=threading.Event()`` too where `target_fn` has such a parameter.

    Parameters
    ----------
    target_fn
        What each engine runs; importable on every machine.
    num_engines
        How many to start, at least 1.
    args, kwargs
        Passed on to every engine.
    start_index
        The first engine's index.
    actor_options
        For Ray's ``options()``: resources such as ``num_gpus``, a scheduling strategy, a
        runtime environment. ``num_cpus`` is 0 unless it is given.
    start_timeout
        Seconds for all actors to be running.

    Attributes
    ----------
    processes : list of RayEngine
        The engines, in the order of their index.
    failed_proc_name : str or None
        The name of the first engine that `monitor_engine_liveness` has seen fail.

    Raises
    ------
    ValueError
        An argument is wrong, which is found before anything is started.
    ImportError
        Ray is not installed.
    RuntimeError
        Ray has not been initialized, or an actor failed to start.
    TimeoutError
        Not all actors were running in time: the cluster lacks what they ask for.
    BaseException
        Whatever a signal handler raises meanwhile. On any exception what was started is
        killed before it is passed on.
    """

    def __init__(
        self,
        target_fn: Callable[..., Any],
        num_engines: int,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        start_index: int = 0,
        actor_options: Mapping[str, Any] | None = None,
        start_timeout: float = 600.0,
    ) -> None:
        if isinstance(num_engines, bool) or not isinstance(num_engines, int) or num_engines < 1:
            raise ValueError(f"num_engines is {num_engines!r}: it must be at least 1")
        if not isinstance(start_index, int) or start_index < 0:
            raise ValueError(f"start_index is {start_index!r}: it must be 0 or more")
        self.failed_proc_name: str | None = None
        self._stopping = threading.Event()
        self._engines = _Engines()
        self.processes: list[RayEngine] = self._engines.engines
        try:
            import ray
        except ImportError as error:
            raise ImportError(
                "engines on Ray need Ray: pip install 'tensor-staging[ray]'"
            ) from error
        if not ray.is_initialized():
            raise RuntimeError("Ray is not initialized: call ray.init() first")
        self._finalizer = util.Finalize(self, self._engines.shutdown, args=(0,), exitpriority=0)
        try:
            options = {
                "num_cpus": 0,
                **(actor_options or {}),
                # run, and beside it stop and identify
                "max_concurrency": 3,
                "max_restarts": 0,
                "max_task_retries": 0,
            }
            actor_class = ray.remote(_Actor).options(**options)
            for index in range(start_index, start_index + num_engines):
                self.processes.append(
                    RayEngine(f"EngineCore_{index}", actor_class.remote(), _takes_stop(target_fn))
                )
            self._await_actors(start_timeout)
            for index, engine in enumerate(self.processes, start_index):
                engine._begin(target_fn, args, {**(kwargs or {}), "engine_index": index})
        except BaseException:
            self.shutdown(0)
            raise
        logger.info("Started %d engines on Ray", num_engines)

    def _await_actors(self, timeout: float) -> None:
        import ray

        identities = {engine._actor.identify.remote(): engine for engine in self.processes}
        _, late = ray.wait(list(identities), num_returns=len(identities), timeout=timeout)
        if late:
            names = ", ".join(identities[ref].name for ref in late)
            raise TimeoutError(
                f"not running on Ray after {timeout:g} s: {names}; see `ray status` for the "
                "resources that the cluster has free, and actor_options for what is asked for"
            )
        for ref, engine in identities.items():
            try:
                engine._note_identity(ray.get(ref))
            except Exception as error:
                raise RuntimeError(f"{engine.name} failed to start on Ray: {error}") from error

    def monitor_engine_liveness(self) -> None:
        """Wait until an engine ends, then end the others; return at once after `shutdown`.

        ``failed_proc_name`` is set before the others are ended if the engine that ended
        did so by itself with another exit code than 0. Call it in a thread;
        `wait_for_completion_or_failure` does.
        """
        import ray

        runs = {engine._run: engine for engine in self.processes if engine._run is not None}
        while runs and not self._stopping.is_set():
            try:
                ended, _ = ray.wait(list(runs), timeout=_MONITOR_INTERVAL)
            except Exception as error:
                if not self._stopping.is_set():
                    # Without Ray nothing is known of any engine: none can be relied on.
                    self.failed_proc_name = self.failed_proc_name or self.processes[0].name
                    logger.error("Ray can't be reached, so the engines are lost: %r", error)
                break
            for ref in ended:
                engine = runs[ref]
                engine._note_end()
                if engine.exitcode != 0 and not engine._was_asked:
                    self.failed_proc_name = self.failed_proc_name or engine.name
                    logger.error(
                        "Engine %s (PID: %s on %s) died with exit code %s%s",
                        engine.name,
                        engine.pid,
                        engine.hostname,
                        engine.exitcode,
                        f": {engine.reason}" if engine.reason else "",
                    )
            if ended:
                break
        self.shutdown()

    def shutdown(self, timeout: float | None = None) -> ShutdownReport:
        """End the engines: ask them to return, then kill their actors. It may be repeated.

        Parameters
        ----------
        timeout
            Seconds until they are killed; None means 5. It returns at most a second
            later. An actor on another machine may outlive that: Ray has been told.

        Returns
        -------
        ShutdownReport
            How each engine ended.
        """
        self._stopping.set()
        report = self._engines.shutdown(timeout)
        if not report.survivors:
            self._finalizer.cancel()
        return report
