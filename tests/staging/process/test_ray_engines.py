"""Engines on Ray are watched and ended as local ones are, by a real Ray."""

from __future__ import annotations

import asyncio
import gc
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time
from types import SimpleNamespace

import pytest

from staging.process import descendants
from staging.process.children import ChildProcess
from staging.process.echo_engine import run_echo_engine
from staging.process.engine_client import EngineClient
from staging.process.engine_host import EngineContext
from staging.process.listener import ZmqListener
from staging.process.ray_engines import RayEngineManager
from staging.process.wait import wait_for_completion_or_failure

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'tensor-staging[ray]'")

pytestmark = pytest.mark.timeout(180)

APPS = pathlib.Path(__file__).parent / "apps"


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Start one Ray for all tests here, in folders of its own."""
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(
            prefix="ray-",
            dir="/tmp",  # Ray's socket paths must be short
        ) as folder,
    ):
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("HOME", folder)
        root = str(pathlib.Path(__file__).parents[3])
        patch.setenv("PYTHONPATH", os.pathsep.join([root, str(APPS)]))
        patch.syspath_prepend(str(APPS))
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=80 * 2**20,
            _temp_dir=folder + "/r",
            log_to_driver=False,
        )
        try:
            yield
        finally:
            ray.shutdown()


@pytest.fixture
def start(cluster):
    managers = []

    def start_some(name, num_engines=2, *args, **options):
        import ray_apps

        managers.append(RayEngineManager(getattr(ray_apps, name), num_engines, args, **options))
        return managers[-1]

    yield start_some
    for manager in managers:
        manager.shutdown(0)


class Monitor(threading.Thread):
    """The watch over a manager's engines, and when it was over."""

    def __init__(self, manager):
        super().__init__(target=manager.monitor_engine_liveness)
        self.start()


def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def has_gone(pid):
    stat = descendants.read_stat(pid)
    return stat is None or stat.is_dead


def test_engines_run_and_return_when_they_are_asked_to(start, tmp_path):
    manager = start("obedient", 2, str(tmp_path), start_index=4)
    assert [engine.name for engine in manager.processes] == ["EngineCore_4", "EngineCore_5"]
    until(lambda: len(list(tmp_path.iterdir())) == 2)
    pids = [engine.pid for engine in manager.processes]
    assert all(engine.is_alive() for engine in manager.processes)
    assert not any(map(has_gone, pids))
    report = manager.shutdown(30)
    assert [entry.outcome for entry in report.processes] == ["terminated"] * 2
    assert [entry.exitcode for entry in report.processes] == [0] * 2
    assert {path.read_text() for path in tmp_path.iterdir()} == {"stopped"}
    assert all(map(has_gone, pids))
    assert manager.failed_proc_name is None
    again = manager.shutdown(30)
    assert [entry.outcome for entry in again.processes] == ["ended before"] * 2


def test_a_killed_actor_is_noticed_and_named_and_the_others_are_ended(start, tmp_path):
    manager = start("obedient", 2, str(tmp_path))
    until(lambda: len(list(tmp_path.iterdir())) == 2)
    monitor = Monitor(manager)
    victim = manager.processes[1]
    killed = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    until(lambda: manager.failed_proc_name is not None)
    assert time.monotonic() - killed < 3 * 1.0
    monitor.join(60)
    assert not monitor.is_alive()
    assert manager.failed_proc_name == "EngineCore_1"
    assert victim.exitcode is None  # it cannot be known, so it is not 0
    assert all(has_gone(engine.pid) for engine in manager.processes)
    assert [e.exitcode for e in manager.processes] == [0, None]


@pytest.mark.parametrize(("how", "code"), [("raise", 1), ("exit", 7), ("_exit", None)])
def test_an_engine_that_fails_is_a_failure_with_its_code_where_that_is_known(
    start, how, code, caplog
):
    manager = start("failing", 2, how)
    manager.monitor_engine_liveness()
    assert manager.failed_proc_name == "EngineCore_1"
    assert manager.processes[1].exitcode == code
    assert f"died with exit code {code}" in caplog.text
    if how == "raise":
        assert "the engine's own mistake" in caplog.text


def test_an_engine_that_returns_is_no_failure_and_ends_the_watch(start):
    manager = start("failing", 2, "return")
    manager.monitor_engine_liveness()
    assert manager.failed_proc_name is None
    assert not any(engine.is_alive() for engine in manager.processes)


def test_shutdown_while_the_monitor_watches_is_no_failure(start, tmp_path):
    manager = start("obedient", 1, str(tmp_path))
    monitor = Monitor(manager)
    manager.shutdown(30)
    monitor.join(60)
    assert not monitor.is_alive()
    assert manager.failed_proc_name is None


@pytest.mark.parametrize("name", ["deaf", "without_stop"])
def test_an_engine_that_does_not_return_is_killed_at_the_deadline(start, name):
    manager = start(name, 1)
    begin = time.monotonic()
    report = manager.shutdown(0.3)
    assert time.monotonic() - begin < 3 * 1.3
    assert [entry.outcome for entry in report.processes] == ["killed"]
    assert all(has_gone(engine.pid) for engine in manager.processes)


def test_a_stopped_actor_is_ended_too(start):
    manager = start("deaf", 1)
    (engine,) = manager.processes
    os.kill(engine.pid, signal.SIGSTOP)
    manager.shutdown(0.3)
    # It has been sent SIGKILL; when it is scheduled to end is the machine's business.
    until(lambda: has_gone(engine.pid))


def test_a_manager_that_is_forgotten_leaves_no_actor(start, tmp_path):
    import ray_apps

    manager = RayEngineManager(ray_apps.obedient, 1, [str(tmp_path)])
    pid = manager.processes[0].pid
    del manager
    gc.collect()
    until(lambda: has_gone(pid))


def test_requests_go_to_an_engine_on_ray_and_its_death_ends_the_wait(cluster):
    listeners = [ZmqListener.bind("tcp://127.0.0.1:0") for _ in range(2)]
    context = EngineContext([listeners[0].address], [listeners[1].address])
    manager = RayEngineManager(run_echo_engine, 1, [context])

    async def ask():
        client = EngineClient(
            {
                "input_address": listeners[0].address,
                "input_listener": listeners[0].socket,
                "output_address": listeners[1].address,
                "output_listener": listeners[1].socket,
            }
        )
        await client.wait_for_engines()
        answer = await client.call(b"over there and back")
        await client.close()
        return answer

    server = ChildProcess(target=time.sleep, args=(600,), name="ApiServer_0")
    server.start()
    try:
        assert asyncio.run(asyncio.wait_for(ask(), 60)) == (b"over there and back", 0)
        os.kill(manager.processes[0].pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="Engine core process EngineCore_0 died unexpect"):
            wait_for_completion_or_failure(SimpleNamespace(processes=[server]), manager)
    finally:
        manager.shutdown(0)
        server.kill()
        server.join()
        server.close()
        for listener in listeners:
            listener.cleanup()


def test_what_the_cluster_lacks_is_an_error_that_names_who_waits(start):
    with pytest.raises(TimeoutError, match=r"EngineCore_0, EngineCore_1.*actor_options"):
        start("deaf", 2, actor_options={"num_gpus": 1}, start_timeout=0.5)


@pytest.mark.parametrize(
    "options", [{"num_engines": 0}, {"num_engines": True}, {"start_index": -1}]
)
def test_wrong_counts_are_errors_that_name_the_argument(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        RayEngineManager(print, **{"num_engines": 1, **options})


def test_a_wrong_timeout_is_an_error_that_names_it(start, tmp_path):
    manager = start("obedient", 1, str(tmp_path))
    for timeout in (-1, float("nan"), "5", True):
        with pytest.raises(ValueError, match="timeout is"):
            manager.shutdown(timeout)
    assert manager.processes[0].is_alive()


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"tensor-staging\[ray\]"):
        RayEngineManager(print, 1)


def test_before_ray_is_initialized_it_says_so(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(RuntimeError, match=r"call ray.init\(\) first"):
        RayEngineManager(print, 1)
