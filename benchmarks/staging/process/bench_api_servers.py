"""Starting and stopping 8 workers, beside `multiprocessing` alone.

    python -m pytest benchmarks/staging/process/bench_api_servers.py

Each worker touches a file when it runs, and sleeps; "start" is over when the last has
done so, "stop" when all are reaped. Wall times, the interpreters' start included. What
the managers do besides (a session, a warden, two listeners for each worker, and the
search for what a worker has left) is in their figures. bench_serve.py compares whole
servers with uvicorn's.
"""

from __future__ import annotations

import multiprocessing
import pathlib
import sys
import time

import pytest

from staging.process import APIServerProcessManager, ZmqListener, get_engine_client_zmq_addr

sys.path.append(str(pathlib.Path(__file__).parents[3] / "tests/staging/process/support"))

import process_targets

WORKERS = 8
ROUNDS = 5


def until(condition):
    while not condition():
        time.sleep(0.001)


class Staging:
    """Our manager."""

    def __init__(self, folder):
        self._folder = folder

    def start(self):
        """Return when every worker runs."""

        def listeners():
            return [ZmqListener.bind(get_engine_client_zmq_addr(True, "")) for _ in range(WORKERS)]

        self._manager = APIServerProcessManager(
            "",
            None,
            {"modes": ["ready sleep=1000"], "folder": str(self._folder)},
            WORKERS,
            listeners(),
            listeners(),
            process_targets.server,
        )
        for i in range(WORKERS):
            until((self._folder / f"ready-ApiServer_{i}").exists)

    def stop(self):
        """Return when every worker is reaped."""
        self._manager.shutdown()


class Multiprocessing:
    """The same processes without a manager: spawned, terminated, joined."""

    def __init__(self, folder):
        self._folder = folder

    def start(self):
        """Return when every worker runs."""
        context = multiprocessing.get_context("spawn")
        self._processes = [
            context.Process(
                target=process_targets.behave,
                args=("ready sleep=1000", str(self._folder), f"ApiServer_{i}"),
            )
            for i in range(WORKERS)
        ]
        for process in self._processes:
            process.start()
        for i in range(WORKERS):
            until((self._folder / f"ready-ApiServer_{i}").exists)

    def stop(self):
        """Return when every worker is reaped."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()


@pytest.mark.parametrize("make", [Staging, Multiprocessing], ids=["staging", "multiprocessing"])
def test_start_8_workers(benchmark, tmp_path_factory, make):
    started = []

    def fresh():
        started.append(make(tmp_path_factory.mktemp("workers")))
        return (started[-1],), {}

    try:
        benchmark.pedantic(make.start, setup=fresh, rounds=ROUNDS)
    finally:
        for supervisor in started:
            supervisor.stop()


@pytest.mark.parametrize("make", [Staging, Multiprocessing], ids=["staging", "multiprocessing"])
def test_stop_8_workers(benchmark, tmp_path_factory, make):
    def fresh():
        supervisor = make(tmp_path_factory.mktemp("workers"))
        supervisor.start()
        return (supervisor,), {}

    benchmark.pedantic(make.stop, setup=fresh, rounds=ROUNDS)
