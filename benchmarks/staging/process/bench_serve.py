"""Starting, stopping and failing with 8 workers, beside uvicorn's own multi-process mode.

    python -m pytest benchmarks/staging/process/bench_serve.py

Each figure is a wall time of this machine, the interpreters' start included.

* start: from the command to the last worker's readiness
* stop: from SIGTERM to the end of the command, with idle workers
* crash: from the SIGKILL of one worker to the line that reports it. uvicorn looks at its
  workers every half second, and starts another one.
"""

from __future__ import annotations

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]

WORKERS = 8

APP = """
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
"""


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Command:
    """A multi-process server that is running, and its log."""

    def __init__(self, kind, folder):
        self.kind = kind
        (folder / "bench_app.py").write_text(APP)
        self.log = folder / f"log-{time.monotonic_ns()}"
        command = {
            "staging": ["staging", "serve", "--engine", "none", f"--api-servers={WORKERS}"],
            "uvicorn": ["uvicorn", f"--workers={WORKERS}"],
        }[kind]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command, "bench_app:app", f"--port={free_port()}"],
                stdout=log,
                stderr=log,
                env=environment,
                cwd=folder,
            )

    def until(self, pattern, count=1):
        """Wait until the log has `pattern` so often, and return what was found."""
        deadline = time.monotonic() + 120
        while len(found := re.findall(pattern, self.log.read_text())) < count:
            assert time.monotonic() < deadline
            assert self.process.poll() is None or self.kind == "staging", self.log.read_text()
            time.sleep(0.002)
        return found

    def until_ready(self):
        """Wait for the last worker."""
        self.until("Application startup complete", WORKERS)
        return self

    def crash(self):
        """Kill a worker; return once it is reported."""
        pid = self.until(r"Started server process \[(\d+)\]")[0]
        os.kill(int(pid), signal.SIGKILL)
        self.until(rf"PID: {pid}\) died" if self.kind == "staging" else rf"\[{pid}\] died")

    def stop(self):
        """Ask the command to end, and wait until it has."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)


@pytest.mark.parametrize("kind", ["staging", "uvicorn"])
def test_start_8_workers(benchmark, kind, tmp_path):
    started = []

    def start():
        started.append(Command(kind, tmp_path))
        started[-1].until_ready()

    def stop_last():
        if started:
            started[-1].stop()

    benchmark.pedantic(start, setup=stop_last, rounds=3)
    stop_last()


@pytest.mark.parametrize("kind", ["staging", "uvicorn"])
def test_stop_8_workers(benchmark, kind, tmp_path):
    def setup():
        return (Command(kind, tmp_path).until_ready(),), {}

    benchmark.pedantic(Command.stop, setup=setup, rounds=3)


@pytest.mark.parametrize("kind", ["staging", "uvicorn"])
def test_report_a_crash(benchmark, kind, tmp_path):
    started = []

    def setup():
        if started:
            started[-1].stop()
        started.append(Command(kind, tmp_path).until_ready())
        time.sleep(0.3)
        return (started[-1],), {}

    benchmark.pedantic(Command.crash, setup=setup, rounds=5)
    started[-1].stop()
