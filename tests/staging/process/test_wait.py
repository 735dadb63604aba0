"""The wait ends with the right verdict, soon, and for every way in which it can end."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
import time
import types

import process_targets
import pytest

from staging.process import (
    EngineProcessManager,
    descendants,
    shutdown,
    wait_for_completion_or_failure,
)
from staging.process.children import ChildProcess

KINDS = {
    "ours": ChildProcess,
    "spawn": multiprocessing.get_context("spawn").Process,
    "fork": multiprocessing.get_context("fork").Process,
}


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture(params=sorted(KINDS))
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def start(household, tmp_path):
    started = []

    def start(mode, kind=ChildProcess):
        name = f"child{len(started)}"
        process = kind(target=process_targets.behave, name=name, args=(mode, str(tmp_path), name))
        process.start()
        started.append(process)
        if "ready" in mode:
            wait_for((tmp_path / f"ready-{name}").exists)
        return process

    yield start
    shutdown(started, 0)


def servers(*processes):
    return types.SimpleNamespace(processes=list(processes))


class Waiter:
    """A wait in a thread, and what came of it."""

    def __init__(self, *args):
        self.error = None
        self.ended = None
        self._args = args
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            wait_for_completion_or_failure(*self._args)
        except Exception as error:
            self.error = error
        self.ended = time.monotonic()

    @property
    def is_over(self):
        return not self._thread.is_alive()

    def result(self, seconds=20.0):
        self._thread.join(seconds)
        assert self.is_over, "it waits for ever"
        return None if self.error is None else str(self.error)


class Engines:
    """An engine manager whose engines end when the test says so."""

    processes = ()

    def __init__(self):
        self.failed_proc_name = None
        self.over = threading.Event()

    def monitor_engine_liveness(self):
        assert self.over.wait(60)


def test_it_returns_when_every_server_has_ended_with_0(start, kind):
    first, second = start("exit=0", kind), start("sleep=0.2 exit=0", kind)
    begin = time.monotonic()
    wait_for_completion_or_failure(servers(first, second))
    assert time.monotonic() - begin < 20
    assert second.exitcode == 0


def test_servers_that_ended_before_count(start, kind):
    process = start("exit=0", kind)
    process.join()
    wait_for_completion_or_failure(servers(process))
    process = start("exit=4", kind)
    process.join()
    with pytest.raises(RuntimeError, match="died with exit code 4"):
        wait_for_completion_or_failure(servers(process))


def test_a_failure_is_told_with_name_pid_and_code(start, kind):
    process = start("exit=3", kind)
    other = start("ready sleep=1000", kind)
    with pytest.raises(RuntimeError) as caught:
        wait_for_completion_or_failure(servers(other, process))
    assert str(caught.value) == f"Process child0 (PID: {process.pid}) died with exit code 3"


def test_a_signal_that_nobody_of_us_sent_is_a_failure(start, kind):
    process = start("ready sleep=1000", kind)
    waiter = Waiter(servers(process))
    process.terminate()
    assert waiter.result().endswith("died with exit code -15")


@pytest.mark.parametrize("mode", ["ready sleep=1000", "ignore ready sleep=1000"])
def test_what_shutdown_has_ended_has_not_failed(start, kind, mode):
    processes = [start(mode, kind) for _ in range(2)]
    waiter = Waiter(servers(*processes))
    time.sleep(0.05)
    shutdown(processes, 0.3)
    assert waiter.result() is None


def test_a_code_is_seen_though_a_grandchild_holds_the_pipe(start, kind, household):
    # The sentinel of multiprocessing is that pipe: it went undetected.
    process = start("children ready exit=3", kind)
    waiter = Waiter(servers(process))
    assert waiter.result(10).endswith("died with exit code 3")
    household.kill()  # who waits ends nothing, and this is no child of ours for every kind


def test_a_code_that_cannot_be_known_is_a_failure(start, kind):
    process = start("exit=0", kind)
    os.waitpid(process.pid, 0)
    waiter = Waiter(servers(process))
    assert waiter.result().endswith("died with exit code None")


def test_one_that_is_reaped_elsewhere_meanwhile_is_a_failure(start, tmp_path, monkeypatch):
    process = start("ready await=go exit=0", KINDS["spawn"])
    waiter = Waiter(servers(process))
    time.sleep(0.05)

    def reaped(fd):
        raise ChildProcessError

    # As it is when another thread's waitpid has been faster.
    monkeypatch.setattr("staging.process.pidfd.exit_code", reaped)
    process._popen.poll = lambda *args: None
    (tmp_path / "go").touch()
    assert waiter.result().endswith("died with exit code None")
    monkeypatch.undo()
    os.waitpid(process.pid, 0)


def test_failures_of_one_moment_are_all_named(start, kind):
    processes = [start("ready sleep=1000", kind) for _ in range(4)]
    waiter = Waiter(servers(*processes))
    time.sleep(0.05)
    for process in processes[1:]:
        os.kill(process.pid, signal.SIGKILL)
    text = waiter.result()
    assert [part.split(" (")[0] for part in sorted(text.split("; "))] == [
        "Process child1",
        "Process child2",
        "Process child3",
    ]


def test_the_coordinator_is_watched(start, kind):
    server, proc = start("ready sleep=1000", kind), start("sleep=0.1 exit=5", kind)
    waiter = Waiter(servers(server), None, types.SimpleNamespace(proc=proc))
    assert waiter.result() == f"Process child1 (PID: {proc.pid}) died with exit code 5"


def test_a_coordinator_that_ends_with_0_is_no_end(start):
    server, proc = start("ready await=go exit=0"), start("exit=0")
    waiter = Waiter(servers(server), None, types.SimpleNamespace(proc=proc))
    proc.join()
    time.sleep(0.2)
    assert not waiter.is_over
    shutdown([server])
    assert waiter.result() is None


def test_servers_that_are_done_do_not_wait_for_engines_or_coordinator(start):
    # It used to block for ever when one side had ended and the other lived.
    server, proc = start("exit=0"), start("ready sleep=1000")
    engines = Engines()
    waiter = Waiter(servers(server), engines, types.SimpleNamespace(proc=proc))
    assert waiter.result() is None
    engines.over.set()


def test_a_monitor_that_ends_without_a_failure_ends_the_wait(start):
    # It used to be "OSError: handle is closed".
    engines = Engines()
    waiter = Waiter(servers(start("ready sleep=1000")), engines)
    time.sleep(0.1)
    assert not waiter.is_over
    engines.over.set()
    assert waiter.result() is None


def test_a_failed_engine_is_told_while_its_monitor_still_ends_the_others(start):
    engines = Engines()
    waiter = Waiter(servers(start("ready sleep=1000")), engines)
    time.sleep(0.05)
    begin = time.monotonic()
    engines.failed_proc_name = "EngineCore_7"
    assert waiter.result() == "Engine core process EngineCore_7 died unexpectedly."
    assert waiter.ended - begin < 0.1 * 3
    engines.over.set()


def test_an_engine_that_failed_before_is_told(start):
    engines = Engines()
    engines.failed_proc_name = "EngineCore_7"
    with pytest.raises(RuntimeError, match="EngineCore_7 died unexpectedly"):
        wait_for_completion_or_failure(servers(start("ready sleep=1000")), engines)
    engines.over.set()


def test_a_monitor_that_raises_is_a_failure(start):
    engines = types.SimpleNamespace(
        failed_proc_name=None, monitor_engine_liveness=lambda: {}["engine"]
    )
    with pytest.raises(RuntimeError, match="engine monitor failed: KeyError"):
        wait_for_completion_or_failure(servers(start("ready sleep=1000")), engines)


def test_engines_are_told_with_their_exit_codes(start, tmp_path):
    engines = EngineProcessManager(
        process_targets.engine, 3, ("ready await=go exit=6", str(tmp_path))
    )
    waiter = Waiter(servers(start("ready sleep=1000")), engines)
    for i in range(3):
        wait_for((tmp_path / f"ready-EngineCore_{i}").exists)
    os.kill(engines.processes[0].pid, signal.SIGKILL)
    assert waiter.result() == ("Engine core process EngineCore_0 died unexpectedly. (exit code -9)")
    assert engines.shutdown().survivors == ()


def test_engines_and_servers_that_fail_together_are_all_named(start, tmp_path):
    engines = EngineProcessManager(process_targets.engine, 1, ("ready sleep=9", str(tmp_path)))
    server = start("ready sleep=1000")
    wait_for((tmp_path / "ready-EngineCore_0").exists)
    waiter = Waiter(servers(server), engines)
    time.sleep(0.1)
    os.kill(server.pid, signal.SIGKILL)
    os.kill(engines.processes[0].pid, signal.SIGKILL)
    text = waiter.result()
    assert re.search(r"Process child0 \(PID: \d+\) died with exit code -9", text)
    assert "Engine core process EngineCore_0 died unexpectedly. (exit code -9)" in text
    engines.shutdown()


def test_a_process_that_is_closed_meanwhile_does_not_break_the_wait(start):
    first, second = start("await=go exit=0"), start("ready sleep=1000")
    waiter = Waiter(servers(first, second))
    time.sleep(0.05)
    shutdown([first])
    first.close()
    time.sleep(0.05)
    shutdown([second])
    assert waiter.result() is None or "exit code None" in waiter.result()


def test_a_process_that_was_never_started_is_an_error():
    with pytest.raises(ValueError, match="new has not been started"):
        wait_for_completion_or_failure(
            servers(ChildProcess(target=process_targets.sleep_on, name="new"))
        )


def test_nothing_to_wait_for_is_no_wait():
    wait_for_completion_or_failure(servers())


@pytest.fixture
def alarm():
    old = signal.getsignal(signal.SIGALRM)

    def arm(delay, error):
        def raise_it(signum, frame):
            raise error

        signal.signal(signal.SIGALRM, raise_it)
        signal.setitimer(signal.ITIMER_REAL, delay)

    yield arm
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)


def test_ctrl_c_ends_the_wait_quietly(start, alarm):
    process = start("ready sleep=1000")
    alarm(0.1, KeyboardInterrupt())
    wait_for_completion_or_failure(servers(process))
    assert process.is_alive()


def test_other_exceptions_of_signal_handlers_pass_through(start, alarm):
    process = start("ready sleep=1000")
    alarm(0.1, SystemExit(5))
    with pytest.raises(SystemExit) as caught:
        wait_for_completion_or_failure(servers(process))
    assert caught.value.code == 5
    assert process.is_alive()


def test_a_process_without_a_descriptor_is_asked_again_and_again():
    fake = types.SimpleNamespace(
        name="fake", pid=os.getppid(), exitcode=None, is_alive=lambda: fake.exitcode is None
    )
    waiter = Waiter(servers(fake))
    time.sleep(0.2)
    assert not waiter.is_over
    fake.exitcode = 3
    assert waiter.result().startswith("Process fake")


def test_the_least_that_a_process_may_have_is_enough(household):
    reader, writer = os.pipe()
    fake = types.SimpleNamespace(name="fake", pid=os.getppid(), sentinel=reader, exitcode=None)
    waiter = Waiter(servers(fake))
    time.sleep(0.1)
    assert not waiter.is_over
    fake.exitcode = 3
    os.close(writer)
    assert waiter.result() == f"Process fake (PID: {fake.pid}) died with exit code 3"
    os.close(reader)


def test_a_closed_pipe_is_not_an_end(household):
    reader, writer = os.pipe()
    os.close(writer)
    fake = types.SimpleNamespace(
        name="fake",
        pid=os.getppid(),
        sentinel=reader,
        exitcode=None,
        is_alive=lambda: fake.exitcode is None,
    )
    waiter = Waiter(servers(fake))
    time.sleep(0.2)
    assert not waiter.is_over
    fake.exitcode = 0
    assert waiter.result() is None
    os.close(reader)


def test_descriptors_are_given_back(start):
    process = start("exit=0")
    process.join()
    wait_for_completion_or_failure(servers(process), Engines.__new__(FailedEngines))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        wait_for_completion_or_failure(servers(process), Engines.__new__(FailedEngines))
    time.sleep(0.05)
    assert len(os.listdir("/proc/self/fd")) <= before


class FailedEngines(Engines):
    failed_proc_name = None

    def monitor_engine_liveness(self):
        return


def test_a_warden_that_is_killed_meanwhile_has_a_successor(start, monkeypatch):
    from staging.process.guard import guard

    monkeypatch.setattr("staging.process.wait._CHORES_INTERVAL", 0.02)
    waiter = Waiter(servers(start("ready sleep=1000")))
    pid = guard().warden_pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: guard().warden_pid not in {pid, None})
    wait_for(lambda: descendants.read_stat(pid) is None)
    assert not waiter.is_over
