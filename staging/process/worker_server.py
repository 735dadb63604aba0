"""uvicorn's server, made to obey a supervisor.

What differs from `uvicorn.Server`:

* It captures no signals. uvicorn raises a captured signal again when it has drained, so
  that a worker that did everything right ends with -15; and it looks at a signal only
  once the application's start-up is over.
* `request_exit` cancels a start-up that is under way.
* The application finds its supervisor's configuration in its state.
* Workers that share a socket accept by load (`staging.process.accept_gate`).

Everything runs on the event loop's thread, `request_exit` included.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import uvicorn

from staging.process.accept_gate import AcceptGate

__all__ = ["StartupFailed", "WorkerServer"]


class StartupFailed(Exception):
    """The application refused to start; uvicorn has logged why."""


class _Connections(set[Any]):
    """The set of a server's connections, which tells how many they are."""

    def __init__(self, on_change: Callable[[int], None]) -> None:
        super().__init__()
        self._on_change = on_change

    def add(self, connection: Any) -> None:
        super().add(connection)
        self._on_change(len(self))

    def discard(self, connection: Any) -> None:
        super().discard(connection)
        self._on_change(len(self))

    def remove(self, connection: Any) -> None:
        super().remove(connection)
        self._on_change(len(self))


class WorkerServer(uvicorn.Server):
    """One worker's server.

    Parameters
    ----------
    config
        uvicorn's configuration.
    state
        Put into the application's lifespan state, and so into every request's.
    loads, index
        The workers' shared loads and this worker's element; None for a worker that has
        the socket to itself.
    on_ready
        Called once, when the first connection can be accepted.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        state: Mapping[str, Any],
        loads: Any = None,
        index: int = 0,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self._state = dict(state)
        self._loads = loads
        self._index = index
        self._on_ready = on_ready
        self._gate: AcceptGate | None = None
        self._exit = asyncio.Event()
        self._serving: asyncio.Task[Any] | None = None
        self._lifespan_is_up = False
        self.server_state.connections = _Connections(self._count)

    @property
    def connections(self) -> int:
        """Connections that are held."""
        return len(self.server_state.connections)

    def _count(self, connections: int) -> None:
        if self._gate is not None:
            self._gate.set_held(connections)

    def request_exit(self) -> None:
        """Drain and return from `serve`; during start-up, cancel it."""
        self.should_exit = True
        self._exit.set()
        if self._lifespan_is_up or self._serving is None:
            return
        self.expect_cancellation()
        self._serving.cancel()

    def expect_cancellation(self) -> None:
        """Keep uvicorn from reporting a start-up that is being cancelled as a failure."""
        lifespan = getattr(self, "lifespan", None)
        if lifespan is not None and not self._lifespan_is_up:
            lifespan.startup_failed = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the worker."""
        yield

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `request_exit`; return once drained, or once start-up is cancelled.

        Raises
        ------
        StartupFailed
            The application's start-up failed.
        """
        self._serving = asyncio.current_task()
        try:
            if not self.should_exit:
                await super().serve(sockets)
        except asyncio.CancelledError:
            if not self.should_exit or self._lifespan_is_up:
                raise
        finally:
            self._serving = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then accept connections."""
        assert sockets, "a worker serves sockets that it was given"
        self.lifespan.state.update(self._state)
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise StartupFailed
        self._lifespan_is_up = True
        config, loop = self.config, asyncio.get_running_loop()

        def create_protocol() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg]
                config=config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )

        self.servers = []
        for sock in sockets:
            if self._loads is None:
                server: Any = await loop.create_server(
                    create_protocol, sock=sock, ssl=config.ssl, backlog=config.backlog
                )
            else:
                server = self._gate = AcceptGate(
                    loop,
                    sock,
                    create_protocol,
                    loads=self._loads,
                    index=self._index,
                    backlog=config.backlog,
                    ssl=config.ssl,
                )
            self.servers.append(server)
        self.started = True
        if not self.should_exit:
            self._on_ready()

    async def main_loop(self) -> None:
        """Do uvicorn's work of every 100 ms until it is time to exit."""
        counter = 0
        while not await self.on_tick(counter % 864000):
            counter += 1
            # Not a sleep: a worker that is told to exit does so at once.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._exit.wait(), 0.1)
