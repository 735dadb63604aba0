"""``/health`` and ``/ready``: what a server says about itself over HTTP.

``GET /health`` answers 200 while nothing is wrong with any process of the server, whether
it is starting, serving or draining, and 503 when one is dead, stopped or unresponsive;
its body tells of each process. It is for a liveness probe. ``GET /ready`` answers 200
while every process is ready for requests, and 503 before that and from the first sign of
draining on; it is for a readiness probe or a load balancer.

Any worker answers for the whole server, out of the status board.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from staging.process.status_board import ProcessState, ProcessStatus, StatusBoard, StatusRow

__all__ = ["HealthApp", "health_report"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def health_report(board: StatusBoard) -> dict[str, Any]:
    """Return the state of a server and of each of its processes, ready for JSON.

    Returns
    -------
    dict
        ``status``: ``"ok"``, ``"starting"``, ``"draining"`` or ``"failing"``;
        ``processes``: a dictionary for each. Times are in seconds.
    """
    processes = board.status()
    return {"status": _overall(processes), "processes": [_entry(p) for p in processes]}


def _overall(processes: list[ProcessStatus]) -> str:
    if any(map(_is_failing, processes)):
        return "failing"
    states = {process.state for process in processes}
    if states & {ProcessState.DRAINING, ProcessState.ENDED}:
        return "draining"
    return "ok" if states == {ProcessState.READY} else "starting"


def _is_failing(process: ProcessStatus) -> bool:
    if process.state == ProcessState.ENDED:
        return process.exit_code not in {0, -15}
    if process.state == ProcessState.DRAINING and process.condition == "dead":
        return False  # drained before this one was; the supervisor judges its exit code
    return process.condition in {"dead", "stopped", "unresponsive"}


def _entry(process: ProcessStatus) -> dict[str, Any]:
    return {
        "name": process.name,
        "pid": process.pid,
        "state": process.state.name.lower(),
        "condition": process.condition,
        "exit_code": process.exit_code,
        "uptime_s": _rounded(process.uptime_s),
        "silent_s": _rounded(process.silent_s),
        "connections": process.connections,
        "requests": process.requests,
        "rss_bytes": process.rss_bytes,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


class HealthApp:
    """An ASGI application that answers ``/health`` and ``/ready`` and passes on the rest.

    Parameters
    ----------
    app
        The application behind it.
    board
        The server's status board.
    row
        This worker's row, in which requests are counted.
    """

    def __init__(self, app: Any, board: StatusBoard, row: StatusRow) -> None:
        self._app = app
        self._board = board
        self._row = row

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's scope; ASGI 3."""
        if scope["type"] == "http":
            if scope["path"] in {"/health", "/ready"}:
                await self._answer(scope, send)
                return
            self._row.count_request()
        await self._app(scope, receive, send)

    async def _answer(self, scope: Scope, send: Send) -> None:
        if scope["method"] not in {"GET", "HEAD"}:
            await _send_json(send, 405, {"error": "use GET"}, extra=[(b"allow", b"GET, HEAD")])
            return
        report = health_report(self._board)
        if scope["path"] == "/health":
            status = 503 if report["status"] == "failing" else 200
        else:
            status = 200 if report["status"] == "ok" else 503
            report = {"status": report["status"]}
        await _send_json(send, status, report, with_body=scope["method"] == "GET")


async def _send_json(
    send: Send,
    status: int,
    content: Any,
    *,
    with_body: bool = True,
    extra: list[tuple[bytes, bytes]] | None = None,
) -> None:
    body = json.dumps(content).encode()
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"cache-control", b"no-store"),
                *(extra or []),
            ],
        }
    )
    await send({"type": "http.response.body", "body": body if with_body else b""})
