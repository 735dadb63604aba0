"""uvicorn's server starts, drains and is cancelled as a worker needs it to."""

from __future__ import annotations

import asyncio
import signal
import socket

import pytest
import uvicorn

from staging.process.worker_server import StartupFailed, WorkerServer


class App:
    """An application whose start-up and end are the test's."""

    def __init__(self, *, fails=False, starts=True):
        self.fails = fails
        self.starts = starts
        self.events = []

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            self.events.append(scope["state"]["client_config"])
            await receive()
            if self.fails:
                await send({"type": "lifespan.startup.failed", "message": "no"})
                return
            try:
                await (asyncio.sleep(0) if self.starts else asyncio.sleep(600))
            except asyncio.CancelledError:
                self.events.append("cancelled")
                raise
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self.events.append("ended")
            await send({"type": "lifespan.shutdown.complete"})


def run(app, when_ready, **options):
    """Serve `app`, call `when_ready(server)` once it is ready, and return the server.

    What is left in the loop is cancelled, as at the end of a worker.
    """

    async def main():
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            config = uvicorn.Config(app, log_config=None)
            server = WorkerServer(
                config,
                state={"client_config": "the configuration"},
                on_ready=lambda: asyncio.get_running_loop().call_soon(when_ready, server),
                **options,
            )
            if not app.starts:
                asyncio.get_running_loop().call_later(0.05, when_ready, server)
            await server.serve([sock])
            return server

    return asyncio.run(asyncio.wait_for(main(), 60))


def test_it_serves_until_it_is_asked_to_exit():
    app = App()
    handler = signal.getsignal(signal.SIGTERM)
    server = run(app, lambda server: server.request_exit())
    assert app.events == ["the configuration", "ended"]
    assert server.connections == 0
    assert signal.getsignal(signal.SIGTERM) is handler  # it captures none


def test_a_start_up_under_way_is_cancelled_and_that_is_no_failure(caplog):
    app = App(starts=False)
    run(app, lambda server: server.request_exit())
    assert app.events == ["the configuration", "cancelled"]
    assert "unsupported" not in caplog.text


def test_asked_before_it_serves_it_does_not_start():
    async def main():
        app = App()
        server = WorkerServer(uvicorn.Config(app, log_config=None), state={})
        server.request_exit()
        await server.serve([socket.socket()])
        assert app.events == []

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_start_up_that_fails_is_an_error():
    with pytest.raises(StartupFailed):
        run(App(fails=True), lambda server: None)


def test_being_cancelled_by_anyone_else_is_passed_on():
    async def main():
        app = App(starts=False)
        server = WorkerServer(uvicorn.Config(app, log_config=None), state={"client_config": None})
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            serving = asyncio.ensure_future(server.serve([sock]))
            await asyncio.sleep(0.05)
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving

    asyncio.run(asyncio.wait_for(main(), 60))


def test_the_load_that_it_reports_follows_its_connections():
    loads = [2**31 - 1, 2**31 - 1]
    seen = []

    async def connect(server):
        sock = server.servers[0]._sock
        _, writer = await asyncio.open_connection(*sock.getsockname())
        while loads[1] != 1 or server.connections != 1:
            await asyncio.sleep(0.005)
        seen.append(list(loads))
        writer.close()
        while loads[1] != 0:
            await asyncio.sleep(0.005)
        server.request_exit()
        seen.append("asked")

    run(
        App(),
        lambda server: asyncio.ensure_future(connect(server)),
        loads=loads,
        index=1,
    )
    assert seen == [[2**31 - 1, 1], "asked"]
    assert loads == [2**31 - 1, 2**31 - 1]
