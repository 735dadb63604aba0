"""Accept connections on a socket that several processes share, the least loaded first.

A kernel wakes the processes that wait on one listening socket in an order that has
nothing to do with their load: of 64 held connections, four workers got 39, 13, 11 and 1.
Here each process publishes how many connections it holds in an array that all share, and
leaves a waiting connection to another process while that one holds fewer.

Invariants: a process whose number is not the least accepts nothing, unless those with
lower numbers have let a connection wait for `PATIENCE_S` (they are busy, stopped or
dead); such a process is then ignored until its number moves. Waiting costs a timer every
`PAUSE_S`, and nothing at all while no connection waits.

An `AcceptGate` belongs to one event loop and its thread. The shared array's elements are
C ints, which are written by one process each and read whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl as ssl_module
from collections.abc import Callable, MutableSequence
from typing import Any

__all__ = ["UNREPORTED", "AcceptGate"]

logger = logging.getLogger(__name__)

UNREPORTED = 2**31 - 1
"""The load of a process that takes no part: not ready yet, or draining."""

PATIENCE_S = 0.05
"""How long a connection may wait for a less loaded process, in seconds."""

PAUSE_S = 0.002
"""How long a process looks away from a connection that is another's, in seconds."""

_EXHAUSTED_PAUSE_S = 1.0
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class AcceptGate:
    """Serve a shared listening socket; takes the place of an `asyncio.Server`.

    Parameters
    ----------
    loop
        The running loop.
    sock
        The shared socket, bound. It is made non-blocking and set to listen; whoever
        passed it closes it.
    protocol_factory
        Makes the protocol of one connection.
    loads
        Connections held, by process; shared between the processes.
    index
        This process's element of `loads`.
    backlog
        Connections that the kernel may hold until they are accepted.
    ssl
        Context for TLS, or None.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        protocol_factory: Callable[[], asyncio.Protocol],
        *,
        loads: MutableSequence[int],
        index: int,
        backlog: int = 2048,
        ssl: ssl_module.SSLContext | None = None,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._factory = protocol_factory
        self._loads = loads
        self._index = index
        self._ssl = ssl
        self._held = 0
        self._handshakes: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._deferred_since: float | None = None
        self._last_deferred = 0.0
        self._ignored: dict[int, int] = {}  # a process that let wait -> its load then
        self._closed = False
        sock.setblocking(False)
        sock.listen(backlog)
        self._publish()
        self._watch()

    @property
    def load(self) -> int:
        """Connections that this process holds, those in their TLS handshake included."""
        return self._held + len(self._handshakes)

    def set_held(self, count: int) -> None:
        """Tell how many connections the protocols hold."""
        self._held = count
        self._publish()

    def close(self) -> None:
        """Accept nothing more, and leave new connections to the others."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        else:
            self._loop.remove_reader(self._sock.fileno())
        self._publish()

    async def wait_closed(self) -> None:
        """Wait until the handshakes that had begun are over."""
        if self._handshakes:
            await asyncio.wait(list(self._handshakes))

    def _publish(self) -> None:
        self._loads[self._index] = UNREPORTED if self._closed else self.load

    def _watch(self) -> None:
        self._timer = None
        self._loop.add_reader(self._sock.fileno(), self._on_readable)

    def _look_away(self, seconds: float) -> None:
        self._loop.remove_reader(self._sock.fileno())
        self._timer = self._loop.call_later(seconds, self._watch)

    def _on_readable(self) -> None:
        while not self._must_defer():
            try:
                connection, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return  # another process was faster
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                logger.error("cannot accept connections for now: %s", error)
                self._look_away(_EXHAUSTED_PAUSE_S)
                return
            self._begin(connection)
        self._look_away(PAUSE_S)

    def _must_defer(self) -> bool:
        own = self.load
        loads = list(self._loads)
        # Whoever let a connection wait counts again once its number has moved.
        self._ignored = {i: load for i, load in self._ignored.items() if loads[i] == load}
        lower = {
            i: load
            for i, load in enumerate(loads)
            if load < own and i != self._index and i not in self._ignored
        }
        if not lower:
            self._deferred_since = None
            return False
        now = self._loop.time()
        if self._deferred_since is None or now - self._last_deferred > PATIENCE_S:
            self._deferred_since = now  # the first look at a connection that waits
        self._last_deferred = now
        if now - self._deferred_since < PATIENCE_S:
            return True
        self._ignored.update(lower)
        self._deferred_since = None
        return False

    def _begin(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        task = self._loop.create_task(self._connect(connection))
        self._handshakes.add(task)
        task.add_done_callback(self._begun)
        self._publish()

    def _begun(self, task: asyncio.Task[Any]) -> None:
        self._handshakes.discard(task)
        self._publish()

    async def _connect(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, connection, ssl=self._ssl)
        except (OSError, ssl_module.SSLError) as error:
            # The peer's doing: it left, or does not speak TLS.
            logger.debug("a connection ended before it began: %s", error)
            with contextlib.suppress(OSError):
                connection.close()
