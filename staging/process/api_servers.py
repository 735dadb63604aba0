"""Several API-server processes on one listening socket."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from staging.process.children import ChildProcess
from staging.process.process_set import Listener, ProcessSet, check_listeners
from staging.process.termination import ShutdownReport

logger = logging.getLogger(__name__)

UNREPORTED_LOAD = 2**31 - 1
"""A server's entry in ``api_server_loads`` until it reports how much it holds."""

COUNTERS_PER_SERVER = 8
"""Entries of ``mp_admission_counters`` for each server: 64 bytes, a cache line."""


class APIServerProcessManager:
    """Starts API servers and ends them.

    Each is a process named ``ApiServer_<i>`` that calls
    ``target_server_fn(listen_address, sock, args, client_config)``. ``client_config``
    has ``input_address``, ``output_address``, ``input_listener`` and
    ``output_listener`` (sockets; `ZmqListener.adopt` makes ZMQ sockets of them),
    ``client_count`` and ``client_index``; where they are given,
    ``stats_update_address`` and ``tensor_queue``; and with several servers
    ``api_server_loads``, shared integers in which each server writes how many
    connections it holds (2**31-1 until it does), so that only the least loaded accepts
    the next one. Where ``args.max_num_queued_reqs`` is set there is
    ``mp_admission_counters`` too: shared 64-bit counters, eight to a server, of which
    each server writes only its own.

    Parameters
    ----------
    listen_address, sock, args
        Passed on to the servers, unchecked. The socket stays the caller's.
    num_servers
        How many to start, at least 1.
    input_listeners, output_listeners
        A listener for each server: a `ZmqListener`, or anything with ``address``,
        ``socket``, ``close()`` and ``cleanup()``. They are the manager's from here on:
        it closes each pair after that server's start, and cleans them up at the end.
    target_server_fn
        What each server calls, importable by name; `run_api_server_worker_proc` where
        none is given.
    stats_update_address, tensor_queue
        Passed on in ``client_config``.

    Attributes
    ----------
    processes : list of ChildProcess
        The servers, in the order of their index.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong, which is found before anything is started.
    BaseException
        Any failure while starting, and whatever a signal handler raises meanwhile: what
        was started is ended, and every listener cleaned up, before it is passed on.

    Notes
    -----
    A manager that is forgotten, or that lives when the interpreter exits, is shut down.
    """

    def __init__(  # noqa: PLR0917 - the arguments and their order are those of its users
        self,
        listen_address: str,
        sock: Any,
        args: Any,
        num_servers: int,
        input_listeners: Sequence[Listener],
        output_listeners: Sequence[Listener],
        target_server_fn: Callable[..., Any] | None = None,
        stats_update_address: str | None = None,
        tensor_queue: Any = None,
    ) -> None:
        self.listen_address = listen_address
        self.sock = sock
        self.args = args
        self._set = ProcessSet(self)
        self.processes: list[ChildProcess] = self._set.processes
        with self._set.starting():
            self._set.listeners += [*input_listeners, *output_listeners]
            if isinstance(num_servers, bool) or not isinstance(num_servers, int) or num_servers < 1:
                raise ValueError(f"num_servers is {num_servers!r}: it must be at least 1")
            check_listeners("input_listeners", input_listeners, num_servers)
            check_listeners("output_listeners", output_listeners, num_servers)
            if target_server_fn is None:
                from staging.process import worker

                target_server_fn = worker.run_api_server_worker_proc
            shared = _shared_config(args, num_servers, stats_update_address, tensor_queue)
            for i in range(num_servers):
                ends = input_listeners[i], output_listeners[i]
                config = {
                    "input_address": ends[0].address,
                    "output_address": ends[1].address,
                    "input_listener": ends[0].socket,
                    "output_listener": ends[1].socket,
                    "client_count": num_servers,
                    "client_index": i,
                    **shared,
                }
                process = ChildProcess(
                    target=target_server_fn,
                    name=f"ApiServer_{i}",
                    args=(listen_address, sock, args, config),
                )
                self.processes.append(process)
                process.start()
                for listener in ends:
                    listener.close()
        logger.info("Started %d API server processes", num_servers)

    def shutdown(self, timeout: float | None = None) -> ShutdownReport:
        """End the servers and clean the listeners up; see `staging.process.shutdown`.

        It may be called again at any time, also after a call that was interrupted.

        Parameters
        ----------
        timeout
            Seconds until SIGKILL; None means 5. It returns at most a second later.
        """
        return self._set.shutdown(timeout)


def _shared_config(
    args: Any, num_servers: int, stats_update_address: str | None, tensor_queue: Any
) -> dict[str, Any]:
    """Return the entries of ``client_config`` that are the same for every server."""
    config: dict[str, Any] = {}
    if stats_update_address is not None:
        config["stats_update_address"] = stats_update_address
    if tensor_queue is not None:
        config["tensor_queue"] = tensor_queue
    if num_servers > 1:
        from multiprocessing.sharedctypes import RawArray

        config["api_server_loads"] = RawArray("i", [UNREPORTED_LOAD] * num_servers)
        if getattr(args, "max_num_queued_reqs", None) is not None:
            config["mp_admission_counters"] = RawArray("q", num_servers * COUNTERS_PER_SERVER)
    return config
