"""A worker's side of the line to the engines: requests out, answers back, over ZMQ.

The worker binds and the engines connect, so that a worker needs to know no engine: its
supervisor has bound two listeners for it.

========  ======  ===========================  ========================================
listener  worker  from an engine               to an engine
========  ======  ===========================  ========================================
input     ROUTER  identity, ``HELLO``          identity, request id, payload
output    PULL    request id, payload, engine
========  ======  ===========================  ========================================

The identity is the engine's index in two bytes, little-endian; a request id is eight
bytes. A client belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping
from typing import Any

import zmq
import zmq.asyncio

from staging.process.listener import ZmqListener

__all__ = ["HELLO", "EngineClient", "engine_identity"]

logger = logging.getLogger(__name__)

HELLO = b"HELLO"


def engine_identity(index: int) -> bytes:
    """Return the ZMQ identity of the engine with this index."""
    return index.to_bytes(2, "little")


class EngineClient:
    """Sends requests to the engines in turn and returns their answers.

    Parameters
    ----------
    client_config
        What the manager gave the worker: addresses and listeners.

    Raises
    ------
    ValueError
        A listener is not what its address says.
    """

    def __init__(self, client_config: Mapping[str, Any]) -> None:
        self._context: Any = zmq.asyncio.Context()
        self._sockets: list[Any] = []
        try:
            for name, kind in (("input", zmq.ROUTER), ("output", zmq.PULL)):
                listener = ZmqListener(
                    client_config[f"{name}_address"], client_config[f"{name}_listener"]
                )
                options = {"router_mandatory": 1} if kind == zmq.ROUTER else {}
                self._sockets.append(listener.adopt(self._context, kind, linger=0, **options))
        except BaseException:
            self._close_sockets()
            raise
        self._input, self._output = self._sockets
        self._engines: list[bytes] = []
        self._changed = asyncio.Event()
        self._ids = itertools.count(1)
        self._turn = itertools.count()
        self._waiting: dict[bytes, asyncio.Future[tuple[bytes, int]]] = {}
        self._tasks = [
            asyncio.ensure_future(self._greet()),
            asyncio.ensure_future(self._receive()),
        ]

    @property
    def engines(self) -> list[int]:
        """The indices of the engines that have said hello."""
        return [int.from_bytes(identity, "little") for identity in self._engines]

    async def wait_for_engines(self, count: int = 1) -> None:
        """Wait until `count` engines have said hello; without a limit."""
        while len(self._engines) < count:
            self._changed.clear()
            await self._changed.wait()

    async def call(self, payload: bytes) -> tuple[bytes, int]:
        """Send one request to the engine whose turn it is, and wait for its answer.

        Returns
        -------
        tuple of bytes and int
            The answer, and the index of the engine that gave it.

        Raises
        ------
        ConnectionError
            No engine is connected, or this one is no longer, or the client is closed.
        """
        if not self._engines:
            raise ConnectionError("no engine is connected")
        engine = self._engines[next(self._turn) % len(self._engines)]
        request_id = next(self._ids).to_bytes(8, "little")
        answer: asyncio.Future[tuple[bytes, int]] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = answer
        try:
            try:
                await self._input.send_multipart([engine, request_id, payload])
            except zmq.ZMQError as error:
                raise ConnectionError(
                    f"engine {int.from_bytes(engine, 'little')} cannot be reached: {error}"
                ) from error
            return await answer
        finally:
            del self._waiting[request_id]

    async def close(self) -> None:
        """Close the sockets; requests that still wait raise ConnectionError. Repeatable."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the engine client was closed"))
        self._close_sockets()

    def _close_sockets(self) -> None:
        for sock in self._sockets:
            sock.close(linger=0)
        self._context.term()

    async def _greet(self) -> None:
        while True:
            identity, *message = await self._input.recv_multipart()
            if message != [HELLO]:
                logger.warning("an engine said %r instead of hello", message)
            elif identity not in self._engines:
                self._engines.append(identity)
                self._changed.set()

    async def _receive(self) -> None:
        while True:
            frames = await self._output.recv_multipart()
            if len(frames) != 3:
                logger.warning("an answer has %d frames instead of 3", len(frames))
                continue
            request_id, payload, engine = frames
            answer = self._waiting.get(request_id)
            if answer is not None and not answer.done():  # else its caller has gone
                answer.set_result((payload, int.from_bytes(engine, "little")))
