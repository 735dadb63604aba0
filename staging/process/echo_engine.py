"""An engine that returns what it is sent: the smallest one that a server can run.

It shows an engine's side of the protocol that `staging.process.engine_client` describes,
and stands in for a model where only the processes around it matter.
"""

from __future__ import annotations

import threading
from typing import Any

import zmq

from staging.process.engine_client import HELLO, engine_identity
from staging.process.engine_host import EngineContext

__all__ = ["run_echo_engine"]

_BEAT_INTERVAL_MS = 1000


def run_echo_engine(
    context: EngineContext, *, engine_index: int, stop: threading.Event | None = None
) -> None:
    """Answer every request with its own payload, until SIGTERM or `stop`.

    Parameters
    ----------
    context
        The workers' addresses.
    engine_index
        Tells the engines apart.
    stop
        Where the engine is no process of its own: when to return, within 50 ms.
    """
    identity = engine_identity(engine_index)
    zmq_context = zmq.Context()
    outputs: dict[Any, Any] = {}  # the socket of a worker's requests -> that of its answers

    def connect(kind: int, address: str) -> Any:
        sock = zmq_context.socket(kind)
        sock.setsockopt(zmq.IDENTITY, identity)
        sock.setsockopt(zmq.IPV6, int("[" in address))
        sock.connect(address)
        return sock

    try:
        poller = zmq.Poller()
        for requests, answers in zip(
            context.input_addresses, context.output_addresses, strict=True
        ):
            source = connect(zmq.DEALER, requests)
            outputs[source] = connect(zmq.PUSH, answers)
            source.send(HELLO)
            poller.register(source, zmq.POLLIN)
        context.ready()
        while stop is None or not stop.is_set():
            for source, _ in poller.poll(_BEAT_INTERVAL_MS if stop is None else 50):
                request_id, payload = source.recv_multipart()
                outputs[source].send_multipart([request_id, payload, identity])
            context.beat()
    finally:
        zmq_context.destroy(linger=0)  # closes its sockets, too
