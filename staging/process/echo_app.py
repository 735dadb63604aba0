"""An application for trying a server out: what is POSTed goes to an engine and comes back.

    python -m staging serve staging.process.echo_app:app --api-servers 2 --port 8000
    curl -i -d hello http://127.0.0.1:8000/echo

The answer's headers tell which worker (``x-worker``) and which engine (``x-engine``)
served it. It is also an example of how an ASGI application reaches the engines.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from staging.process.engine_client import EngineClient

__all__ = ["app"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve ``POST /echo``; ASGI 3."""
    if scope["type"] == "lifespan":
        await _lifespan(scope, receive, send)
    elif scope["type"] == "http":
        await _request(scope, receive, send)


async def _lifespan(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()  # lifespan.startup
    client = EngineClient(scope["state"]["client_config"])
    try:
        await client.wait_for_engines()
        scope["state"]["engine"] = client
        await send({"type": "lifespan.startup.complete"})
        await receive()  # lifespan.shutdown
    finally:
        await client.close()
    await send({"type": "lifespan.shutdown.complete"})


async def _request(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] != "/echo":
        await _respond(send, 404, b"not found\n")
        return
    if scope["method"] != "POST":
        await _respond(send, 405, b"use POST\n", [(b"allow", b"POST")])
        return
    payload = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        payload += message.get("body", b"")
        if not message.get("more_body"):
            break
    state = scope["state"]
    try:
        answer, engine = await state["engine"].call(payload)
    except ConnectionError as error:
        await _respond(send, 503, f"{error}\n".encode())
        return
    worker = state["client_config"]["client_index"]
    headers = [(b"x-worker", b"%d" % worker), (b"x-engine", b"%d" % engine)]
    await _respond(send, 200, answer, headers)


async def _respond(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-length", b"%d" % len(body)), *(headers or [])],
        }
    )
    await send({"type": "http.response.body", "body": body})
