"""``python -m staging serve``: an ASGI application from several workers, with engines.

One supervisor starts the engines and the workers, which share one listening socket;
reports when all are ready; and from then on waits for the first of: a signal, a failure,
the end. It restarts nothing: a server of which a part has failed ends, with an exit code
that says so, and whoever started it decides.

Signals
    A handler does nothing but leave a byte in a pipe. The first SIGTERM, SIGINT or SIGHUP
    drains: the workers finish their requests, then the engines are ended, all under one
    deadline. Another one kills what is left, at once.

Exit code
    0 after a drain in which every process ended by itself; 1 after a failure; 128 + n
    when signal n forced the end; 2 for a wrong command line.

What dies with the supervisor, however it dies, is the warden's business (see
`staging.process.warden`).
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib.util
import logging
import math
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from staging.process.api_servers import APIServerProcessManager
    from staging.process.engines import EngineProcessManager
    from staging.process.status_board import StatusBoard
    from staging.process.termination import ShutdownReport

__all__ = ["main"]

logger = logging.getLogger("staging.process.serve")

ECHO_ENGINE = "staging.process.echo_engine:run_echo_engine"

# What a drain may take after a failure (seconds): requests that wait for an engine that
# has died will not be answered.
_AFTER_FAILURE_S = 2.0

# Of the deadline: when the workers end by themselves, and when those that did not are
# killed. What is left is the engines'.
_WORKERS_SHARE = 0.7
_WORKERS_LIMIT = 0.8

# How much longer than its deadline a drain may take (seconds) before it is given up.
_DRAIN_MARGIN = 10.0

# How long the threads that waited are waited for once all processes have ended, and how
# long a forced end may take (seconds).
_JOIN_TIMEOUT = 2.0
_FORCED_TIMEOUT = 5.0
_FORCED_MARGIN = 3.0

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Signals:
    """The signals that have come, as bytes in a pipe, written where Python's C code is."""

    def __init__(self) -> None:
        self._noted = 0
        self.fd, self._end = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._end, False)
        signal.set_wakeup_fd(self._end, warn_on_full_buffer=False)
        for signum in _STOP_SIGNALS:
            # nohup ignores SIGHUP for those it starts.
            if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
                signal.signal(signum, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)

    def _note(self, signum: int, frame: object) -> None:
        self._noted += 1
        if self._noted == 2:
            # Whatever the supervisor is caught in, the kernel ends it then, and the warden
            # ends the rest. It takes nothing that could have run out.
            signal.setitimer(signal.ITIMER_REAL, _FORCED_TIMEOUT + _FORCED_MARGIN)

    def release(self) -> None:
        """Let further signals end the process: nothing is left that needs an order."""
        for signum in _STOP_SIGNALS:
            if signal.getsignal(signum) == self._note:
                signal.signal(signum, signal.SIG_DFL)

    def take(self) -> list[signal.Signals]:
        """Return those that have come since the last call."""
        with contextlib.suppress(BlockingIOError):
            return [
                signal.Signals(number)
                for number in os.read(self.fd, 4096)
                if number in _STOP_SIGNALS
            ]
        return []


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not in 0-65535")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value


def _attribute(text: str) -> str:
    module, colon, attribute = text.partition(":")
    if not module or not colon or not attribute:
        raise argparse.ArgumentTypeError(f"write it as module:attribute, not {text!r}")
    return text


def _engine(text: str) -> str | None:
    return {"echo": ECHO_ENGINE, "none": None}.get(text, _attribute(text) if ":" in text else "")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m staging serve",
        description="Serve an ASGI application from several workers on one socket.",
        epilog="Example: python -m staging serve staging.process.echo_app:app --api-servers 2, "
        "then curl -i -d hello http://127.0.0.1:8000/echo. GET /health tells of each process. "
        "A command line can be read by every user of the machine: keep secrets out of it.",
    )
    parser.add_argument(
        "app", type=_attribute, help="the application, or a factory of it, as module:attribute"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument(
        "--port", type=_port, default=8000, help="port; 0 takes a free one (%(default)s)"
    )
    parser.add_argument(
        "--api-servers", type=_positive_int, default=1, metavar="N", help="workers (%(default)s)"
    )
    parser.add_argument(
        "--engine",
        default="echo",
        metavar="SPEC",
        help="'echo', 'none', or a function as module:function (%(default)s)",
    )
    parser.add_argument(
        "--engines", type=_positive_int, default=1, metavar="N", help="engines (%(default)s)"
    )
    parser.add_argument(
        "--startup-timeout",
        type=_seconds,
        default=os.environ.get("STAGING_ENGINE_READY_TIMEOUT_S", "600"),
        metavar="S",
        help="seconds for every process to be ready (STAGING_ENGINE_READY_TIMEOUT_S, or 600)",
    )
    parser.add_argument(
        "--shutdown-timeout",
        type=_seconds,
        default=10.0,
        metavar="S",
        help="seconds from the signal until what has not drained is killed (%(default)g)",
    )
    parser.add_argument(
        "--timeout-keep-alive",
        type=_seconds,
        default=os.environ.get("STAGING_HTTP_TIMEOUT_KEEP_ALIVE", "5"),
        metavar="S",
        help="seconds that an idle connection is kept (STAGING_HTTP_TIMEOUT_KEEP_ALIVE, or 5)",
    )
    parser.add_argument(
        "--log-config", metavar="FILE", help="JSON file for logging.config.dictConfig"
    )
    parser.add_argument(
        "--log-level",
        default="info",
        choices=["critical", "error", "warning", "info", "debug", "trace"],
        help="(%(default)s)",
    )
    parser.add_argument("--no-access-log", action="store_true", help="log no requests")
    parser.add_argument(
        "--app-dir", default=".", metavar="DIR", help="folder to import from (%(default)s)"
    )
    return parser


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(argv)
    options.engine = _engine(options.engine)
    if options.engine == "":
        parser.error("argument --engine: give 'echo', 'none', or module:function")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal, a failure or the end.

    It is a program's main function: it takes over the process's signal handlers and the
    wakeup descriptor, and must be called on the main thread.

    Parameters
    ----------
    argv
        The command's arguments; ``sys.argv[1:]`` by default.

    Returns
    -------
    int
        The exit code; see the module.
    """
    options = _parse(argv)
    try:
        signals = _Signals()
    except OSError as error:
        print(f"staging serve: cannot start: {error}", file=sys.stderr)
        return 1

    from staging.process.process_logs import configure_logging, prefix_streams

    prefix_streams("serve")
    try:
        configure_logging(options.log_config, level=options.log_level)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    missing = _missing_packages(options)
    if missing:
        logger.error("%s: not installed; pip install 'tensor-staging[serve]'", ", ".join(missing))
        return 1
    sys.path.insert(0, os.path.abspath(options.app_dir))
    try:
        server = _Server(options, signals)
    except (OSError, RuntimeError, MemoryError) as error:
        _report(error)
        return 1
    return server.run()


def _missing_packages(options: argparse.Namespace) -> list[str]:
    needed = ["uvicorn", *(["zmq"] if options.engine == ECHO_ENGINE else [])]
    return [name for name in needed if importlib.util.find_spec(name) is None]


class _Failed(Exception):
    """The server has failed; its text says how."""


class _Stopped(Exception):
    """A signal has come."""


class _Server:
    """One run of a server. Everything but `_wait` and `_drain` is on the main thread."""

    def __init__(self, options: argparse.Namespace, signals: _Signals) -> None:
        from staging.process.sd_notify import Notifier

        self._options = options
        self._signals = signals
        self._notifier = Notifier()
        self._sock: socket.socket | None = None
        self._url = ""
        self._board: StatusBoard | None = None
        self._engines: EngineProcessManager | None = None
        self._servers: APIServerProcessManager | None = None
        self._verdict: BaseException | None = None
        self._waiting: _Thread | None = None
        # Taken before there is anything to end: it may be impossible then.
        self._draining = _Thread("staging-drain")
        self._reports: list[ShutdownReport] = []

    def run(self) -> int:
        failed = False
        try:
            self._start()
            self._watch()
        except _Stopped as stopped:
            logger.info("%s: draining", stopped)
        except _Failed as error:
            logger.error("%s", error)
            failed = True
        except Exception as error:
            _report(error)
            failed = True
        try:
            code = self._end(failed)
        except BaseException as error:
            _report(error)
            self._abandon(1)
        if any(process.is_alive() for process in self._processes()):
            self._abandon(code or 1)  # multiprocessing would wait for it, for ever
        self._signals.release()
        return code

    def _abandon(self, code: int) -> NoReturn:
        """End at once, by what needs nothing: the warden sees to the rest."""
        for process in self._processes():
            with contextlib.suppress(Exception):
                process.kill()
        os._exit(code)

    # -- start ------------------------------------------------------------------------

    def _start(self) -> None:
        from staging.process.api_servers import APIServerProcessManager
        from staging.process.engine_host import EngineContext, run_engine
        from staging.process.engines import EngineProcessManager
        from staging.process.serve_worker import ServeArgs, serve_worker
        from staging.process.status_board import StatusBoard
        from staging.process.wait import wait_for_completion_or_failure

        options = self._options
        self._waiting = _Thread("staging-wait")
        self._sock, self._url = _listen(options.host, options.port)
        logger.info("listening on %s", self._url)
        num_engines = options.engines if options.engine is not None else 0
        self._board = StatusBoard(
            [
                *(f"EngineCore_{i}" for i in range(num_engines)),
                *(f"ApiServer_{i}" for i in range(options.api_servers)),
            ]
        )
        self._check_signals()
        with _Listeners(options.api_servers) as listeners:
            if options.engine is not None:
                context = EngineContext(
                    [listener.address for listener in listeners.inputs],
                    [listener.address for listener in listeners.outputs],
                    self._board,
                    options.log_config,
                    options.log_level,
                )
                self._engines = EngineProcessManager(
                    run_engine, num_engines, (options.engine, context)
                )
                self._check_signals()
            self._servers = APIServerProcessManager(
                self._url,
                self._sock,
                ServeArgs(
                    app=options.app,
                    board=self._board,
                    shutdown_timeout=options.shutdown_timeout * _WORKERS_SHARE,
                    logging_config=options.log_config,
                    uvicorn_kwargs={
                        "log_level": options.log_level,
                        "access_log": not options.no_access_log,
                        "timeout_keep_alive": options.timeout_keep_alive,
                    },
                ),
                options.api_servers,
                listeners.inputs,
                listeners.outputs,
                serve_worker,
            )
            listeners.hand_over()
        self._waiting.begin(lambda: self._wait(wait_for_completion_or_failure))

    def _check_signals(self) -> None:
        taken = self._signals.take()
        if taken:
            raise _Stopped(taken[0].name)

    # -- serve ------------------------------------------------------------------------

    def _wait(self, wait: Callable[..., None]) -> None:
        try:
            wait(self._servers, self._engines)
        except BaseException as error:
            self._verdict = error

    def _watch(self) -> None:
        assert self._board is not None
        assert self._waiting is not None
        begin = time.monotonic()
        deadline: float | None = begin + self._options.startup_timeout
        poller = select.poll()
        for fd in (self._signals.fd, self._board.fileno(), self._waiting.fd):
            poller.register(fd, select.POLLIN)
        while True:
            self._board.clear_wake()
            self._note_ends()
            self._check_signals()
            if self._waiting.is_over:
                if self._verdict is not None:
                    raise _Failed(str(self._verdict))
                logger.info("the server has come to its end")
                return
            if deadline is not None:
                late = self._board.not_ready()
                if not late:
                    deadline = None
                    self._report_ready(time.monotonic() - begin)
                elif time.monotonic() >= deadline:
                    raise _Failed(
                        f"not ready after {self._options.startup_timeout:g} s: {', '.join(late)} "
                        "(see --startup-timeout)"
                    )
            pause = 1.0 if deadline is None else min(1.0, deadline - time.monotonic())
            poller.poll(math.ceil(max(0.0, pause) * 1000))

    def _report_ready(self, seconds: float) -> None:
        servers = self._options.api_servers
        status = f"serving on {self._url} with {servers} API server{'s' if servers > 1 else ''}"
        logger.info("ready after %.2f s: %s", seconds, status)
        self._notifier.ready(status)

    def _note_ends(self) -> None:
        assert self._board is not None
        for process in self._processes():
            if not process.is_alive():
                self._board.note_end(process.name, process.exitcode)

    def _processes(self) -> list[Any]:
        managers = (self._servers, self._engines)
        return [process for manager in managers if manager for process in manager.processes]

    # -- end --------------------------------------------------------------------------

    def _end(self, failed: bool) -> int:
        limit = self._options.shutdown_timeout
        if failed:
            limit = min(limit, _AFTER_FAILURE_S)
        self._notifier.stopping("stopping after a failure" if failed else "draining")
        if self._sock is not None:
            self._sock.close()  # so that no connection is taken once the workers take none
        draining = self._draining
        draining.begin(lambda: self._drain(limit))
        forced = self._await_drain(draining, time.monotonic() + limit + _DRAIN_MARGIN)
        if self._waiting is not None:
            self._waiting.begin(lambda: None)  # if it has not begun
            self._waiting.join(_JOIN_TIMEOUT)
        if self._board is not None:
            self._board.close()
        if forced is not None:
            logger.warning("forced to end by %s", forced.name)
            return 128 + forced
        if not draining.is_over:
            logger.error("the drain does not come to its end: giving it up")
            self._abandon(1)
        if draining.error is not None:
            logger.error("the drain has failed: %r", draining.error)
            failed = True
        for report in self._reports:
            for process in report.processes:
                if process.outcome in {"killed", "running"}:
                    logger.error("%s did not end within its deadline: %s", process.name, process)
                    failed = True
                elif process.exitcode not in {0, -signal.SIGTERM, None}:
                    if not failed:
                        logger.error("%s has failed while it drained", process)
                    failed = True
        logger.info("ended %s", "after a failure" if failed else "cleanly")
        return 1 if failed else 0

    def _drain(self, limit: float) -> None:
        """End the workers, then the engines, within `limit` seconds and what SIGKILL takes."""
        deadline = time.monotonic() + limit
        try:
            if self._servers is not None:
                self._reports.append(self._servers.shutdown(limit * _WORKERS_LIMIT))
        finally:
            if self._engines is not None:
                remaining = max(0.0, deadline - time.monotonic())
                self._reports.append(self._engines.shutdown(remaining))

    def _await_drain(self, draining: _Thread, give_up: float) -> signal.Signals | None:
        """Wait for the drain; kill all at another signal, and return which that was."""
        from staging.process.adopted import reap_adopted
        from staging.process.termination import shutdown

        forced: signal.Signals | None = None
        poller = select.poll()
        for fd in (self._signals.fd, draining.fd):
            poller.register(fd, select.POLLIN)
        while not draining.is_over and time.monotonic() < give_up:
            for signum in self._signals.take():
                if forced is None:
                    forced = signum
                    give_up = time.monotonic() + _FORCED_TIMEOUT
                    logger.warning("%s again: killing what is left", signum.name)
                    shutdown(self._processes(), 0, min_grace=0)
            reap_adopted()
            poller.poll(1000)
        return forced


class _Thread:
    """A thread whose end can be polled for; what it needs is taken when it is made."""

    def __init__(self, name: str) -> None:
        self.fd, self._end = os.pipe()
        self.is_over = False
        self.error: BaseException | None = None
        self._work: Callable[[], None] = lambda: None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            os.close(self.fd)
            os.close(self._end)
            raise

    def begin(self, work: Callable[[], None]) -> None:
        """Have the work done; once."""
        if not self._begun.is_set():
            self._work = work
            self._begun.set()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def _run(self) -> None:
        self._begun.wait()
        try:
            self._work()
        except BaseException as error:
            self.error = error
        finally:
            self.is_over = True
            os.close(self._end)


_ADVICE = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files (fs.file-max)",
    errno.EAGAIN: "raise the limit of processes (ulimit -u, or the container's pids limit)",
    errno.ENOMEM: "raise the limit of memory",
    errno.ENOSPC: "make room there",
}


def _report(error: BaseException) -> None:
    """Log a failure: what a machine has run out of in one sentence, a mistake with its place."""
    if isinstance(error, MemoryError):
        logger.error("the server has failed: no memory is left; %s", _ADVICE[errno.ENOMEM])
    elif isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        logger.error("the server has failed: %s; %s", error, _ADVICE[errno.EAGAIN])
    elif isinstance(error, OSError) and error.errno in _ADVICE:
        logger.error("the server has failed: %s; %s", error, _ADVICE[error.errno])
    else:
        logger.error("the server has failed", exc_info=error)


class _Listeners:
    """The workers' listeners, cleaned up unless they are handed over."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def __enter__(self) -> _Listeners:
        from staging.process.addresses import get_engine_client_zmq_addr
        from staging.process.listener import ZmqListener

        try:
            for _ in range(self._count):
                for listeners in (self.inputs, self.outputs):
                    address = get_engine_client_zmq_addr(True, "")
                    listeners.append(ZmqListener.bind(address))
        except BaseException:
            self._clean_up()
            raise
        return self

    def hand_over(self) -> None:
        """Leave them to the manager."""
        self.inputs, self.outputs = [], []

    def __exit__(self, *exception: object) -> None:
        self._clean_up()

    def _clean_up(self) -> None:
        from staging.process.process_set import clean_up

        clean_up([*self.inputs, *self.outputs])


def _listen(host: str, port: int) -> tuple[socket.socket, str]:
    """Return a listening socket and its URL.

    It listens from here on: of two servers that have only bound their port, both with
    SO_REUSEADDR, the second would find out in its workers.
    """
    try:
        found: Iterable[Any] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise _Failed(f"--host {host!r}: {error.strerror}") from error
    family, kind, protocol, _, address = next(iter(found))
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise _Failed(f"cannot listen on {host} port {port}: {error.strerror}") from error
    shown = f"[{host}]" if ":" in host else host
    return sock, f"http://{shown}:{sock.getsockname()[1]}"
