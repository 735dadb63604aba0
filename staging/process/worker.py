"""The entry point of an API-server worker: an ASGI application on an inherited socket.

A worker obeys SIGTERM from its first instruction to its last, and exits 0 for it:

==============  ======================================================================
when            what SIGTERM does
==============  ======================================================================
before it runs  it is blocked, and acts when the handler stands
loading         the import is broken off
starting        the application's start-up is cancelled; one that blocks its loop is
                broken off
serving         no new connections; requests under way are finished, then the
                application is shut down
exiting         nothing more
==============  ======================================================================

All of it is over `shutdown_timeout` seconds after the signal: requests that are still
running are cancelled a little earlier, and a worker that cannot come to its end (a thread
that does not return, an application that hangs in its shutdown) is ended by a watchdog,
with exit code 0 and a warning that says so. SIGINT does the same; a second signal changes
nothing. Only a process that holds the interpreter lock for good outlives this, and is its
supervisor's to kill.

This module is imported before the handler stands, so it imports nothing slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from staging.process.children import starts_with_sigterm_blocked
from staging.process.process_logs import configure_logging, prefix_streams

__all__ = ["DEFAULT_SHUTDOWN_TIMEOUT_S", "WorkerHooks", "run_api_server_worker_proc", "run_worker"]

logger = logging.getLogger(__name__)

DEFAULT_SHUTDOWN_TIMEOUT_S = 4.0
"""Seconds from SIGTERM to the end; a supervisor kills after five unless told otherwise."""

# A start-up that has not reacted to its cancellation after this long (seconds) blocks the
# event loop, and is broken off where it stands.
_UNRESPONSIVE_S = 0.25

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class WorkerHooks(Protocol):
    """What a supervisor of its own hears from a worker, and may add to it."""

    def wrap(self, app: Any) -> Any:
        """Return the application that is served in place of the loaded one."""

    def ready(self) -> None:
        """Hear that the first connection can be accepted."""

    def draining(self) -> None:
        """Hear that SIGTERM has arrived at the event loop."""

    def beat(self, connections: int) -> None:
        """Hear every second, from the event loop, how many connections are held."""


class _Cancelled(SystemExit):
    """SIGTERM while nothing needs to be drained: exit code 0, past any `except Exception`."""

    def __init__(self) -> None:
        super().__init__(0)


class _Termination:
    """SIGTERM in a worker: what it does at which moment, and by when all is over.

    The handler runs on the main thread between two instructions of anything, so it
    takes no lock and logs nothing: it notes, wakes the loop, or raises. The watchdog's
    thread stands from the start, because none can be started at any moment.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.requested = False
        self.deadline = math.inf
        self.busy_with = "loading the application"
        self._main = threading.get_ident()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_request: Callable[[], None] = lambda: None
        self._on_break_off: Callable[[], None] = lambda: None
        self._acknowledged = False
        self._starting = True
        self._break_off = True
        self._over = False
        self._wake, self._alarm = os.pipe()

    def install(self) -> None:
        """Handle the signals from here on; one that was blocked until now acts at once."""
        threading.Thread(target=self._watch, name="staging-worker-watchdog", daemon=True).start()
        for signum in _SIGNALS:
            signal.signal(signum, self._handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        on_request: Callable[[], None],
        on_break_off: Callable[[], None],
    ) -> None:
        """From here on the loop is told, instead of the main thread being interrupted."""
        self.busy_with = "starting the application"
        self._loop, self._on_request, self._on_break_off = loop, on_request, on_break_off
        self._break_off = False
        if self.requested:
            raise _Cancelled

    def started(self) -> None:
        """From here on there may be something to drain: nothing is broken off any more."""
        self._starting = False
        self.busy_with = "serving"

    def unwinding(self) -> None:
        """From here on nothing is broken off any more, whatever is left of the start-up."""
        self._starting = False

    def detach(self) -> None:
        """Nothing is left that a signal could ask for; the deadline stays."""
        self._over = True
        self._loop = None

    def _handle(self, signum: int, frame: object) -> None:
        if self._over:
            return
        if not self.requested:
            self.requested = True
            self.deadline = time.monotonic() + self.limit_s
            with contextlib.suppress(OSError):
                os.write(self._alarm, b"!")
        if self._break_off and self._starting:
            self._break_off = False
            self._on_break_off()
            raise _Cancelled
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._acknowledge)

    def _acknowledge(self) -> None:
        if not self._acknowledged:
            self._acknowledged = True
            self._on_request()

    def _watch(self) -> None:
        os.read(self._wake, 1)
        pause = min(_UNRESPONSIVE_S, self.limit_s)
        while time.monotonic() + pause < self.deadline:
            time.sleep(pause)
            if not self._starting or self._acknowledged or self._over:
                break
            # It may have been raised where Python ignores exceptions (in a finalizer), so
            # once is not enough.
            self._break_off = True
            signal.pthread_kill(self._main, signal.SIGTERM)
            pause = 1.0
        time.sleep(max(0.0, self.deadline - time.monotonic()))
        # The process still runs, so something does not come to its end.
        with contextlib.suppress(Exception):
            logger.warning(
                "not drained within %g s of SIGTERM while %s: ending anyway",
                self.limit_s,
                self.busy_with,
            )
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        os._exit(0)


def _shutdown_timeout(args: object) -> float:
    value = getattr(args, "shutdown_timeout", None)
    if value is None:
        return DEFAULT_SHUTDOWN_TIMEOUT_S
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError(f"args.shutdown_timeout={value!r}: give a number of seconds, or None")
    return float(value)


def _takes_no_arguments(candidate: Any) -> bool:
    try:
        signature = inspect.signature(candidate)
    except (TypeError, ValueError):
        return False
    if any(
        parameter.kind is inspect.Parameter.VAR_POSITIONAL
        for parameter in signature.parameters.values()
    ):
        return False
    try:
        signature.bind()
    except TypeError:
        return False
    return not inspect.iscoroutinefunction(candidate)


def load_app(app: Any) -> Any:
    """Return the ASGI application that `app` names.

    Parameters
    ----------
    app
        ``"module:attribute"`` (the attribute may be dotted), an application, or a
        factory: something that can be called without arguments and returns one.

    Raises
    ------
    ValueError
        `app` is none of these. What the module or the factory raises passes through.
    """
    if isinstance(app, str):
        module_name, colon, attribute = app.partition(":")
        if not module_name or not colon or not attribute:
            raise ValueError(f"args.app={app!r}: write it as 'module:attribute'")
        try:
            loaded: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise  # the module is there, and something that it imports is not
            raise ValueError(
                f"args.app={app!r}: there is no module {error.name!r}; is its folder the current "
                "one, or on PYTHONPATH?"
            ) from error
        try:
            for name in attribute.split("."):
                loaded = getattr(loaded, name)
        except AttributeError as error:
            raise ValueError(f"args.app={app!r}: {error}") from error
    else:
        loaded = app
    if callable(loaded) and _takes_no_arguments(loaded):
        loaded = loaded()
    if not callable(loaded):
        raise ValueError(
            f"args.app={app!r}: {type(loaded).__name__!r} is neither an ASGI application nor a "
            "factory of one"
        )
    return loaded


def _new_event_loop(kind: str) -> asyncio.AbstractEventLoop:
    if kind in {"auto", "uvloop"}:
        try:
            import uvloop
        except ImportError:
            if kind == "uvloop":
                raise
        else:
            loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
            return loop
    elif kind not in {"asyncio", "none"}:
        raise ValueError(f"loop={kind!r}: give 'auto', 'uvloop' or 'asyncio'")
    return asyncio.new_event_loop()


def _run(
    loop: asyncio.AbstractEventLoop,
    main: Coroutine[Any, Any, None],
    on_unwinding: Callable[[], None],
) -> None:
    """Run `main`, then end what it left in the loop. As `asyncio.run`, without its signals."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(main)
    finally:
        on_unwinding()
        try:
            _cancel_all(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    for task in tasks:
        if not task.cancelled() and task.exception() is not None:
            loop.call_exception_handler(
                {"message": "an error while a task was cancelled", "exception": task.exception()}
            )


def _set_title(title: str) -> None:
    try:
        import setproctitle
    except ImportError:
        return
    setproctitle.setproctitle(title)


@starts_with_sigterm_blocked
def run_api_server_worker_proc(
    listen_address: str,
    sock: socket.socket,
    args: Any,
    client_config: Mapping[str, Any] | None = None,
    **uvicorn_kwargs: Any,
) -> None:
    """Serve an ASGI application as one of several workers, until SIGTERM.

    The target of an `APIServerProcessManager`. It returns when the worker has drained.

    Parameters
    ----------
    listen_address
        Where the server is reached, for the log.
    sock
        The inherited socket, bound; this process's copy is closed at the end.
    args
        ``app``: the application, see `load_app`. Optional: ``logging_config``, see
        `staging.process.process_logs.configure_logging`; ``shutdown_timeout``: seconds
        from SIGTERM to the end (4.0).
    client_config
        What the manager gives its worker. The application finds it in its state, as
        ``scope["state"]["client_config"]``, from its lifespan start-up on.
    **uvicorn_kwargs
        For `uvicorn.Config`.

    Raises
    ------
    SystemExit
        With 0 when SIGTERM came before anything was served; with 3 when the
        application's start-up failed.
    ValueError
        An argument is wrong; it says which and what to do.
    """
    run_worker(listen_address, sock, args, client_config, uvicorn_kwargs=uvicorn_kwargs)


def run_worker(
    listen_address: str,
    sock: socket.socket,
    args: Any,
    client_config: Mapping[str, Any] | None,
    *,
    hooks: WorkerHooks | None = None,
    uvicorn_kwargs: Mapping[str, Any],
) -> None:
    """Do as `run_api_server_worker_proc` does, telling `hooks` about it."""
    config = dict(client_config or {})
    index = int(config.get("client_index", 0))
    title = f"APIServer_{index}"
    limit_s = _shutdown_timeout(args)
    termination = _Termination(limit_s)
    termination.install()
    _set_title(title)
    prefix_streams(title)
    configure_logging(
        getattr(args, "logging_config", None), level=uvicorn_kwargs.get("log_level") or "INFO"
    )
    app = load_app(getattr(args, "app", None))
    if hooks is not None:
        app = hooks.wrap(app)

    import uvicorn

    from staging.process.worker_server import StartupFailed, WorkerServer

    settings = dict(uvicorn_kwargs)
    loop_kind = str(settings.pop("loop", "auto"))
    # The application's own shutdown must find some time, too.
    settings.setdefault("timeout_graceful_shutdown", max(0.0, limit_s - min(1.0, limit_s / 4)))
    settings.setdefault("log_config", None)
    uvicorn_config = uvicorn.Config(app, **settings)
    uvicorn_config.load()
    loop = _new_event_loop(loop_kind)

    async def serve() -> None:
        def on_ready() -> None:
            termination.started()
            logger.info("serving on %s", listen_address)
            if hooks is not None:
                hooks.ready()

        def on_exit() -> None:
            termination.busy_with = "draining"
            server.request_exit()
            if hooks is not None:
                hooks.draining()

        server = WorkerServer(
            uvicorn_config,
            state={"client_config": client_config},
            loads=config.get("api_server_loads"),
            index=index,
            on_ready=on_ready,
        )
        termination.attach(loop, on_exit, server.expect_cancellation)
        beating = None if hooks is None else loop.create_task(_beat(hooks, server))
        await server.serve(sockets=[sock])
        if beating is not None:
            beating.cancel()

    try:
        _run(loop, serve(), termination.unwinding)
    except StartupFailed:
        # One that fails because it is cancelled has done what it was asked to.
        raise SystemExit(0 if termination.requested else 3) from None
    finally:
        termination.detach()
        sock.close()


async def _beat(hooks: WorkerHooks, server: Any) -> None:
    while True:
        hooks.beat(server.connections)
        await asyncio.sleep(1.0)
