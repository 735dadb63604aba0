"""Engines are watched, and the first that fails is named."""

from __future__ import annotations

import os
import signal
import threading
import time

import process_targets
import pytest

from staging.process import EngineProcessManager


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def engines(household, tmp_path):
    managers = []

    def start(mode, count=2, **options):
        manager = EngineProcessManager(
            process_targets.engine, count, (mode, str(tmp_path)), **options
        )
        managers.append(manager)
        return manager

    yield start
    for manager in managers:
        manager.shutdown(0)


def monitored(manager):
    thread = threading.Thread(target=manager.monitor_engine_liveness)
    thread.start()
    return thread


def test_engines_are_named_by_their_index(engines, tmp_path):
    manager = engines("ready sleep=1000", start_index=3)
    assert [process.name for process in manager.processes] == ["EngineCore_3", "EngineCore_4"]
    wait_for((tmp_path / "ready-EngineCore_4").exists)


def test_one_that_dies_is_named_before_the_others_are_ended(engines, tmp_path, monkeypatch):
    manager = engines("ignore ready sleep=1000")
    for i in range(2):
        wait_for((tmp_path / f"ready-EngineCore_{i}").exists)
    thread = monitored(manager)
    os.kill(manager.processes[1].pid, signal.SIGKILL)
    wait_for(lambda: manager.failed_proc_name is not None)
    assert manager.failed_proc_name == "EngineCore_1"
    assert manager.processes[0].is_alive()  # its end takes five seconds
    manager.shutdown(0)
    thread.join()


def test_an_exit_code_is_a_failure_and_none_is_not(engines, tmp_path):
    for mode, failed in (("sleep=0.1 exit=3", "EngineCore_0"), ("sleep=0.1 exit=0", None)):
        manager = engines(mode, 1)
        manager.monitor_engine_liveness()
        assert manager.failed_proc_name == failed


def test_an_engine_that_has_failed_before_is_found(engines):
    manager = engines("exit=3", 1)
    manager.processes[0].join()
    manager.monitor_engine_liveness()
    assert manager.failed_proc_name == "EngineCore_0"


def test_a_shutdown_ends_the_monitor_and_is_no_failure(engines, tmp_path):
    manager = engines("ready sleep=1000")
    thread = monitored(manager)
    wait_for((tmp_path / "ready-EngineCore_1").exists)
    report = manager.shutdown()
    thread.join(10)
    assert not thread.is_alive()
    assert manager.failed_proc_name is None
    assert {r.outcome for r in report.processes} == {"terminated"}


def test_the_monitor_does_not_shorten_the_time_that_a_shutdown_gives(engines, tmp_path):
    manager = EngineProcessManager(process_targets.linger_by_index, 2, (str(tmp_path),))
    thread = monitored(manager)
    for i in range(2):
        wait_for((tmp_path / f"ready-{i}").exists)
    begin = time.monotonic()
    # One ends at once; the monitor sees that, and the other needs longer than five seconds.
    report = manager.shutdown(60)
    thread.join()
    assert time.monotonic() - begin > 5
    assert {r.exitcode for r in report.processes} == {0}


def test_one_that_is_reaped_elsewhere_is_a_failure(engines, tmp_path):
    manager = engines("await=go exit=0", 1)
    thread = monitored(manager)
    process = manager.processes[0]
    process._popen._lock.acquire()  # so that it is not reaped here first
    (tmp_path / "go").touch()
    os.waitpid(process.pid, 0)
    process._popen._lock.release()
    thread.join(10)
    assert manager.failed_proc_name == "EngineCore_0"


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"count": 0}, "num_engines is 0"), ({"start_index": -1}, "start_index is -1")],
)
def test_arguments_are_checked(engines, options, reason):
    with pytest.raises(ValueError, match=reason):
        engines("ready", **options)


def test_descriptors_of_the_monitor_are_given_back(engines):
    def run():
        manager = engines("exit=0", 1)
        manager.processes[0].join()
        before = len(os.listdir("/proc/self/fd"))
        manager.monitor_engine_liveness()
        assert len(os.listdir("/proc/self/fd")) <= before

    run()
