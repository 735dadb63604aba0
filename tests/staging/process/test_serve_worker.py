"""A server's worker reports what it comes to, and answers for the server's health."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import time

import pytest

from staging.process.children import ChildProcess
from staging.process.serve_worker import ServeArgs, serve_worker
from staging.process.status_board import ProcessState, StatusBoard


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parent / "apps"))
    monkeypatch.setenv("APP_EVENTS", os.devnull)
    board = StatusBoard(["ApiServer_0"])
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        args = ServeArgs("asgi_apps:plain", board, 5.0, uvicorn_kwargs={"access_log": False})
        process = ChildProcess(
            target=serve_worker, args=(f"http://127.0.0.1:{port}", sock, args, {"client_index": 0})
        )
        process.start()
    yield process, board, port
    process.kill()
    process.join()
    process.close()
    board.close()


def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_it_reports_ready_connections_requests_and_draining(worker, capfd):
    process, board, port = worker
    until(lambda: board.status()[0].state == ProcessState.READY)
    assert board.status()[0].pid == process.pid
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as held:
        held.request("GET", "/")
        assert json.loads(held.getresponse().read())["pid"] == process.pid
        held.request("GET", "/health")
        assert json.loads(held.getresponse().read())["status"] == "ok"
        until(lambda: board.status()[0].connections == 1)
    assert board.status()[0].requests == 1
    assert board.status()[0].silent_s < 60
    os.kill(process.pid, signal.SIGTERM)
    until(lambda: board.status()[0].state == ProcessState.DRAINING)
    process.join(60)
    assert process.exitcode == 0
    assert "uvicorn.access" not in capfd.readouterr().err
