"""The worker of ``python -m staging serve``: a worker that reports to a status board."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from staging.process.children import starts_with_sigterm_blocked
from staging.process.status_board import ProcessState, StatusBoard, StatusRow
from staging.process.worker import run_worker

__all__ = ["ServeArgs", "serve_worker"]


@dataclass
class ServeArgs:
    """What every worker of a server is given.

    Attributes
    ----------
    app, logging_config, shutdown_timeout
        As `run_api_server_worker_proc` takes them.
    board
        Where the worker reports.
    uvicorn_kwargs
        For `uvicorn.Config`.
    """

    app: str
    board: StatusBoard
    shutdown_timeout: float
    logging_config: str | None = None
    uvicorn_kwargs: dict[str, Any] = field(default_factory=dict)


class _Reports:
    """Writes a worker's row; the hooks of `run_worker`."""

    def __init__(self, board: StatusBoard, row: StatusRow) -> None:
        self._board = board
        self._row = row

    def wrap(self, app: Any) -> Any:
        from staging.process.health import HealthApp

        return HealthApp(app, self._board, self._row)

    def ready(self) -> None:
        self._row.beat()
        self._row.set_state(ProcessState.READY)

    def draining(self) -> None:
        self._row.set_state(ProcessState.DRAINING)

    def beat(self, connections: int) -> None:
        # A worker that is still starting may block its loop for as long as it likes.
        self._row.set_connections(connections)
        if self._row.state != ProcessState.STARTING:
            self._row.beat()


@starts_with_sigterm_blocked
def serve_worker(
    listen_address: str,
    sock: socket.socket,
    args: ServeArgs,
    client_config: Mapping[str, Any],
) -> None:
    """Serve as one of a server's workers; the target of an `APIServerProcessManager`."""
    row = args.board.row(f"ApiServer_{client_config['client_index']}")
    row.begin()
    run_worker(
        listen_address,
        sock,
        args,
        client_config,
        hooks=_Reports(args.board, row),
        uvicorn_kwargs=args.uvicorn_kwargs,
    )
