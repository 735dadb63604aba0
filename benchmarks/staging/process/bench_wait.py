"""From a crash to its report: below 100 ms, whatever has crashed.

    python -m pytest benchmarks/staging/process/bench_wait.py

Wall time from SIGKILL to the exception of `wait_for_completion_or_failure`, of which
30 ms are waited on purpose, for other failures of the same moment.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import sys
import threading
import time
import types

import pytest

from staging.process import EngineProcessManager, shutdown, wait_for_completion_or_failure
from staging.process.children import ChildProcess

sys.path.append(str(pathlib.Path(__file__).parents[3] / "tests/staging/process/support"))

import process_targets

SERVERS = 8
ROUNDS = 20


def until(condition):
    while not condition():
        time.sleep(0.001)


@pytest.fixture
def servers(tmp_path):
    processes = [
        ChildProcess(
            target=process_targets.behave,
            name=f"ApiServer_{i}",
            args=("ready sleep=1000", str(tmp_path), f"ApiServer_{i}"),
        )
        for i in range(SERVERS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        until((tmp_path / f"ready-{process.name}").exists)
    yield processes
    shutdown(processes, 0)


class Wait:
    """A wait in a thread, for a crash that is to come."""

    def __init__(self, servers, engines=None):
        self._servers = types.SimpleNamespace(processes=servers)
        self._engines = engines
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        time.sleep(0.1)

    def _run(self):
        with contextlib.suppress(RuntimeError):
            wait_for_completion_or_failure(self._servers, self._engines)

    def kill_and_wait(self, pid):
        """Return when the failure has been reported."""
        os.kill(pid, signal.SIGKILL)
        self._thread.join()


def test_a_server_of_8_crashes(benchmark, servers, tmp_path):
    def prepare():
        if not servers[3].is_alive():
            ready = tmp_path / "ready-ApiServer_3"
            ready.unlink()
            servers[3] = ChildProcess(
                target=process_targets.behave,
                name="ApiServer_3",
                args=("ready sleep=1000", str(tmp_path), "ApiServer_3"),
            )
            servers[3].start()
            until(ready.exists)
        return (Wait(servers), servers[3].pid), {}

    benchmark.pedantic(Wait.kill_and_wait, setup=prepare, rounds=ROUNDS)


def test_an_engine_crashes(benchmark, servers, tmp_path):
    started = []

    def prepare():
        ready = tmp_path / "ready-EngineCore_0"
        ready.unlink(missing_ok=True)
        engines = EngineProcessManager(
            process_targets.engine, 1, ("ready sleep=1000", str(tmp_path))
        )
        started.append(engines)
        until(ready.exists)
        return (Wait(servers, engines), engines.processes[0].pid), {}

    try:
        benchmark.pedantic(Wait.kill_and_wait, setup=prepare, rounds=ROUNDS)
    finally:
        for engines in started:
            engines.shutdown(0)
