"""shutdown ends everything, within its promise, and tells what happened."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import threading
import time
import types

import process_targets
import pytest

from staging.process import ProcessReport, ShutdownReport, descendants, shutdown
from staging.process.children import ChildProcess
from staging.process.termination import told_to_stop

ALLOWANCE = 3.0  # times the promised time: the machine is shared

# Children of both kinds are to be ended alike.
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
    count = 0

    def start(mode, kind=ChildProcess):
        nonlocal count
        count += 1
        name = f"child{count}"
        process = kind(target=process_targets.behave, name=name, args=(mode, str(tmp_path), name))
        process.start()
        if "ready" in mode:
            wait_for((tmp_path / f"ready-{name}").exists)
        if "stop" in mode:
            wait_for(lambda: descendants.read_stat(process.pid).state == "T")
        return process

    return start


def timed(procs, timeout=None, **options):
    begin = time.monotonic()
    report = shutdown(procs, timeout, **options)
    seconds = time.monotonic() - begin
    grace = max(5.0 if timeout is None else timeout, options.get("min_grace", 0.25))
    assert seconds < (grace + 1) * ALLOWANCE
    return report, seconds


def family_of(kind):
    # Those who have hidden are found by what only a child of ours hands on.
    return "family" if kind is ChildProcess else "children"


def is_reaped(pid):
    return descendants.read_stat(pid) is None


def test_processes_that_obey_are_terminated_and_reaped(start, kind):
    processes = [start("ready sleep=1000", kind) for _ in range(2)]
    report, seconds = timed(processes)
    assert [r.outcome for r in report.processes] == ["terminated"] * 2
    assert [r.exitcode for r in report.processes] == [-signal.SIGTERM] * 2
    assert seconds < 5
    assert all(is_reaped(process.pid) for process in processes)


def test_one_that_ignores_sigterm_is_killed_and_reaped(start, kind):
    # SIGKILL without a reap left a zombie, with exit code None.
    process = start("ignore ready sleep=1000", kind)
    report, seconds = timed([process], 0.3)
    assert report.killed == report.processes
    assert report.processes[0].exitcode == process.exitcode == -signal.SIGKILL
    assert is_reaped(process.pid)
    assert seconds >= 0.3


def test_grandchildren_end_though_the_child_obeys(start, kind, household):
    process = start(f"{family_of(kind)} ready sleep=1000", kind)
    timed([process])
    household.expect_empty()


def test_grandchildren_end_with_a_child_that_is_killed(start, kind, household):
    process = start(f"ignore {family_of(kind)} ready sleep=1000", kind)
    timed([process], 0.0)
    household.expect_empty()


def test_a_pipe_that_a_grandchild_holds_is_not_waited_for(start, kind):
    # join() waited for the sentinel's pipe: the whole timeout, for nothing.
    process = start(f"{family_of(kind)} ready sleep=1000", kind)
    _, seconds = timed([process], 30.0)
    assert seconds < 5


def test_a_timeout_of_zero_lets_a_child_put_its_things_away(household, tmp_path):
    # It used to be killed at once, and needs 50 ms.
    process = ChildProcess(target=process_targets.linger, args=(str(tmp_path), 0.05))
    process.start()
    wait_for((tmp_path / "ready-linger").exists)
    report, _ = timed([process], 0, min_grace=2.0)
    assert report.processes[0].outcome == "terminated"
    assert (tmp_path / "put away").exists()


def test_a_stopped_process_can_obey(start, kind):
    process = start("ready stop sleep=1000", kind)
    report, seconds = timed([process], 30.0)
    assert report.processes[0].outcome == "terminated"
    assert seconds < 5


def test_a_stopped_process_that_ignores_sigterm_is_killed(start):
    process = start("ready ignore stop sleep=1000")
    report, _ = timed([process], 0.3)
    assert report.processes[0].outcome == "killed"


def test_the_deadline_is_shared(start):
    processes = [start("ignore ready sleep=1000") for _ in range(3)]
    report, seconds = timed(processes, 0.5)
    assert len(report.killed) == 3
    assert seconds < 1.5 * ALLOWANCE


def test_one_that_cannot_be_terminated_does_not_keep_the_others(start):
    first, second = start("ready sleep=1000"), start("ready sleep=1000")

    def fail():
        raise RuntimeError("no")

    broken = types.SimpleNamespace(
        name="broken", pid=None, exitcode=None, is_alive=lambda: True, terminate=fail, kill=fail
    )
    first.terminate = fail
    report, _ = timed([broken, first, second], 0.3)
    assert report.processes[1].outcome == "terminated"
    assert report.processes[2].outcome == "terminated"


def test_one_that_raises_while_it_is_asked_does_not_keep_the_others(start):
    class Broken:
        name = "broken"
        pid = 1 << 22
        exitcode = None

        def is_alive(self):
            raise OSError("no")

        terminate = kill = is_alive

    process = start("ready sleep=1000")
    report, _ = timed([Broken(), process], 0.3)
    assert report.processes[1].outcome == "terminated"


class Fake:
    """A process of another kind: nothing but what the interface asks for."""

    def __init__(self, obeys):
        self.name, self.pid, self.exitcode = "fake", os.getppid(), None
        self._obeys = obeys
        self.calls = []

    def is_alive(self):
        return self.exitcode is None

    def terminate(self):
        self.calls.append("terminate")
        if self._obeys == "terminate":
            self.exitcode = 0

    def kill(self):
        self.calls.append("kill")
        if self._obeys == "kill":
            self.exitcode = -9


def test_another_kind_of_process_is_ended_by_its_own_methods():
    # Its pid is no child of ours, so that it is never signalled by number.
    obeys, waits, stays = Fake("terminate"), Fake("kill"), Fake("nothing")
    report, seconds = timed([obeys, waits, stays], 0.1, min_grace=0.1)
    assert obeys.calls == ["terminate"]
    assert waits.calls == ["terminate", "kill"]
    assert [r.outcome for r in report.processes] == ["terminated", "killed", "running"]
    assert report.survivors == (report.processes[2],)
    assert seconds >= 0.1


def test_what_cannot_be_ended_is_left_alone(start, kind):
    unstarted = kind(target=process_targets.sleep_on)
    ended = start("exit=3", kind)
    ended.join()
    closed = start("exit=0", kind)
    closed.join()
    closed.close()
    report, seconds = timed([unstarted, ended, closed])
    assert [r.outcome for r in report.processes] == ["not started", "ended before", "closed"]
    assert report.processes[1].exitcode == 3
    assert seconds < 1


def test_one_that_has_ended_but_was_not_reaped_is_reaped(start, kind):
    process = start("exit=3", kind)
    wait_for(lambda: descendants.read_stat(process.pid).is_dead)
    report, _ = timed([process])
    assert report.processes[0].outcome == "ended before"
    assert report.processes[0].exitcode == 3
    assert is_reaped(process.pid)


def test_one_that_somebody_has_reaped_is_not_waited_for_or_signalled(start, kind):
    # multiprocessing takes it to live for ever, and would send SIGKILL to its number.
    process = start("exit=3", kind)
    os.waitpid(process.pid, 0)
    process.kill = process.terminate = None  # would fail
    report, seconds = timed([process], 20.0)
    assert report.processes[0].outcome == "ended before"
    assert report.processes[0].exitcode is None
    assert seconds < 5


def test_another_process_child_is_left_alone(start, kind):
    process = start("ready sleep=1000", kind)
    pid = os.fork()
    if pid == 0:
        report = shutdown([process], 0)
        os._exit(0 if report.processes[0].outcome == "not ours" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert process.is_alive()
    timed([process])


class Interruption(BaseException):
    pass


@pytest.fixture
def alarm():
    def interrupt(signum, frame):
        raise Interruption

    old = signal.signal(signal.SIGALRM, interrupt)
    yield lambda delay, interval=0.0: signal.setitimer(signal.ITIMER_REAL, delay, interval)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)


def test_an_interruption_escalates_and_leaves_nothing_alive(start, kind, alarm):
    processes = [start("ignore ready sleep=1000", kind) for _ in range(2)]
    begin = time.monotonic()
    alarm(0.2)
    with pytest.raises(Interruption):
        shutdown(processes, 60)
    assert time.monotonic() - begin < 1.2 * ALLOWANCE
    assert all(is_reaped(process.pid) for process in processes)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_storm_of_interruptions_leaves_nothing_alive(start, alarm):
    processes = [start("ignore ready sleep=1000") for _ in range(3)]
    alarm(0.01, 0.02)
    try:
        shutdown(processes, 60)
    except Interruption:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert all(is_reaped(process.pid) for process in processes)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interruption_at_any_moment_leaves_nothing_alive(start, alarm):
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    for _ in range(10):
        processes = [start("ready sleep=1000") for _ in range(2)]
        alarm(rng.uniform(1e-5, 0.02))
        try:
            shutdown(processes, 60)
        except Interruption:
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        assert all(is_reaped(process.pid) for process in processes), f"seed {seed}"


def test_two_threads_may_shut_down_the_same_processes(start):
    processes = [start("ignore ready sleep=1000") for _ in range(2)]
    reports = []
    threads = [
        threading.Thread(target=lambda t=t: reports.append(shutdown(processes, t)))
        for t in (0.4, 30.0)
    ]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - begin < 1.4 * ALLOWANCE
    assert all(r.exitcode == -signal.SIGKILL for report in reports for r in report.processes)


def test_it_starts_no_thread_and_no_process(start, household, monkeypatch):
    process = start("ready sleep=1000")
    monkeypatch.setattr(threading.Thread, "start", None)
    monkeypatch.setattr(subprocess, "Popen", None)
    assert shutdown([process]).processes[0].outcome == "terminated"


def test_it_closes_what_it_opens(start, kind):
    process = start("ready sleep=1000", kind)
    before = len(os.listdir("/proc/self/fd"))
    shutdown([process])
    assert len(os.listdir("/proc/self/fd")) <= before


def test_it_remembers_whom_it_has_told_to_stop(start):
    told, ended = start("ready sleep=1000"), start("exit=0")
    ended.join()
    shutdown([told, ended])
    assert told_to_stop(told)
    assert not told_to_stop(ended)


@pytest.mark.parametrize("value", [-1, float("nan"), "5", True])
def test_times_must_be_seconds(value):
    with pytest.raises(ValueError, match=r"timeout is .*: it must be a number of seconds"):
        shutdown([], value)
    with pytest.raises(ValueError, match=r"min_grace is .*: it must be a number of seconds"):
        shutdown([], min_grace=value)


def test_a_report_reads_well():
    report = ShutdownReport(
        (
            ProcessReport("a", 1, -15, "terminated", 0.5),
            ProcessReport("b", 2, None, "running", 1.0),
        ),
        1.0,
    )
    assert str(report) == (
        "a (PID: 1): terminated, exit code -15, 0.50 s; b (PID: 2): running, 1.00 s"
    )
    assert str(ShutdownReport((), 0.0)) == "no processes"
