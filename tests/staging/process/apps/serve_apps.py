"""Applications and engines for the tests of ``python -m staging serve``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import subprocess
import time

from staging.process import echo_app

FOLDER = pathlib.Path(os.environ.get("SERVE_FOLDER", "."))


async def app(scope, receive, send):
    """Echo; ``/slow`` takes a moment before it asks the engine, ``/hang`` for ever.

    ``/orphan`` leaves a process whose parent has ended.

    Worker 1 starts only once the file ``go`` is there, if ``wait`` is.
    """
    if scope["type"] == "lifespan":
        index = scope["state"]["client_config"]["client_index"]
        while index == 1 and (FOLDER / "wait").exists() and not (FOLDER / "go").exists():
            await asyncio.sleep(0.01)
    elif scope["path"] in {"/slow", "/hang"}:
        (FOLDER / f"seen{scope['path'].replace('/', '-')}").touch()
        await asyncio.sleep(0.7 if scope["path"] == "/slow" else 600)
        scope = {**scope, "path": "/echo"}
    elif scope["path"] in {"/environment", "/orphan"}:
        body = json.dumps(sorted(os.environ)).encode()
        if scope["path"] == "/orphan":
            subprocess.run(["sh", "-c", "sleep 0.5 & exit 0"], check=True)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})
        return
    await echo_app.app(scope, receive, send)


async def never(scope, receive, send):
    """Do not start."""
    await asyncio.sleep(600)


def failing_engine(context, *, engine_index):
    """Fail once the workers are there."""
    context.ready()
    time.sleep(0.2)
    raise SystemExit(7)


def deaf_engine(context, *, engine_index):
    """Do not hear of SIGTERM."""
    context.ready()
    while True:
        with contextlib.suppress(SystemExit):
            time.sleep(600)
