"""Engine processes on this machine, and the watch over them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from staging.process import pidfd as _pidfd
from staging.process.children import ChildProcess
from staging.process.process_set import ProcessSet
from staging.process.termination import ShutdownReport, told_to_stop

logger = logging.getLogger(__name__)


class EngineProcessManager:
    """Starts engines, notices when one ends, and ends them.

    Each is a process named ``EngineCore_<index>`` that calls
    ``target_fn(*args, **kwargs, engine_index=index)``.

    Parameters
    ----------
    target_fn
        What each engine calls, importable by name.
    num_engines
        How many to start, at least 1.
    args, kwargs
        Passed on to every engine.
    start_index
        The first engine's index; those of a server on several machines differ.

    Attributes
    ----------
    processes : list of ChildProcess
        The engines, in the order of their index.
    failed_proc_name : str or None
        The name of the first engine that `monitor_engine_liveness` has seen fail.

    Raises
    ------
    ValueError
        `num_engines` or `start_index` is wrong, which is found before anything is
        started.
    BaseException
        Any failure while starting, and whatever a signal handler raises meanwhile: what
        was started is ended before it is passed on.
    """

    def __init__(
        self,
        target_fn: Callable[..., Any],
        num_engines: int,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        start_index: int = 0,
    ) -> None:
        self.failed_proc_name: str | None = None
        self._stopping = threading.Event()
        self._set = ProcessSet(self)
        self.processes: list[ChildProcess] = self._set.processes
        with self._set.starting():
            if isinstance(num_engines, bool) or not isinstance(num_engines, int) or num_engines < 1:
                raise ValueError(f"num_engines is {num_engines!r}: it must be at least 1")
            if not isinstance(start_index, int) or start_index < 0:
                raise ValueError(f"start_index is {start_index!r}: it must be 0 or more")
            for index in range(start_index, start_index + num_engines):
                process = ChildProcess(
                    target=target_fn,
                    name=f"EngineCore_{index}",
                    args=tuple(args),
                    kwargs={**(kwargs or {}), "engine_index": index},
                )
                self.processes.append(process)
                process.start()
        logger.info("Started %d engine processes", num_engines)

    def monitor_engine_liveness(self) -> None:
        """Wait until an engine ends, then end the others; return soon after `shutdown`.

        ``failed_proc_name`` is set before the others are ended if the engine that ended
        did so by itself with another exit code than 0. Call it in a thread;
        `wait_for_completion_or_failure` does.
        """
        # Copies, so that a process object may be closed meanwhile.
        watched = {}
        try:
            for process in self.processes:
                fd = process.pidfd
                if fd is not None:
                    watched[os.dup(fd)] = process
            while watched and not self._stopping.is_set():
                ended = _pidfd.wait_any(watched, 1.0)
                for fd in ended:
                    process = watched[fd]
                    code = process.exitcode
                    if code != 0 and not self._stopping.is_set() and not told_to_stop(process):
                        self.failed_proc_name = self.failed_proc_name or process.name
                        logger.error(
                            "Engine %s (PID: %s) died with exit code %s",
                            process.name,
                            process.pid,
                            code,
                        )
                if ended:
                    break
        finally:
            for fd in watched:
                os.close(fd)
        if not self._stopping.is_set():
            # Else somebody ends them already, and may have given them more time.
            self.shutdown()

    def shutdown(self, timeout: float | None = None) -> ShutdownReport:
        """End the engines; see `staging.process.shutdown`. It may be called again.

        Parameters
        ----------
        timeout
            Seconds until SIGKILL; None means 5. It returns at most a second later.
        """
        self._stopping.set()
        return self._set.shutdown(timeout)
