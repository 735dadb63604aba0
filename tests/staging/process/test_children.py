"""Children lead their own session, tell their end exactly, and leave nothing."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pathlib
import random
import signal
import socket
import sys
import threading
import time
from multiprocessing import connection

import process_targets
import pytest

from staging.process import children, descendants
from staging.process.children import (
    ChildProcess,
    starts_with_sigterm_blocked,
    unblock_sigterm,
)
from staging.process.guard import guard


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def behaving(mode, folder, name="child"):
    process = ChildProcess(target=process_targets.behave, name=name, args=(mode, str(folder), name))
    process.start()
    if "ready" in mode:
        wait_for((folder / f"ready-{name}").exists)
    return process


def ended(process, seconds=20.0):
    process.join(seconds)
    assert not process.is_alive()
    return process.exitcode


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_known_when_the_sentinel_is_readable(household, code):
    process = ChildProcess(target=process_targets.exit_with, args=(code,))
    process.start()
    assert connection.wait([process.sentinel], 20) == [process.sentinel]
    assert process.exitcode == code


def test_a_signal_that_ended_it_is_the_negative_code(household, tmp_path):
    process = behaving("ready sleep=1000", tmp_path)
    process.kill()
    assert ended(process) == -signal.SIGKILL


def test_it_leads_a_session_of_its_own(household, tmp_path):
    process = behaving("sleep=1000", tmp_path)
    # At once: not only when it has run some of its own code.
    assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
    process.kill()
    ended(process)


def test_sigterm_goes_to_the_child_alone(household, tmp_path):
    process = behaving("children ignore ready sleep=1000", tmp_path)

    def sleepers():
        members = household.members()
        return sum(descendants.read_command(s.pid) == b"sleep\x001000\x00" for s in members)

    wait_for(lambda: sleepers() == 3)
    process.terminate()
    time.sleep(0.2)
    assert process.is_alive()
    assert sleepers() == 3
    process.kill()
    ended(process)


@pytest.mark.parametrize("mode", ["family exit=0", "family exit=3", "family die=11"])
def test_what_it_leaves_is_killed_however_it_ends(household, tmp_path, mode):
    process = behaving(mode, tmp_path)
    code = ended(process)
    assert code == {"exit=0": 0, "exit=3": 3, "die=11": -11}[mode.split()[1]]


def test_an_end_is_seen_though_grandchildren_hold_every_pipe(household, tmp_path):
    # The pipe of multiprocessing's own sentinel would be held for 1,000 s.
    process = behaving("family exit=3", tmp_path)
    assert connection.wait([process.sentinel], 20) == [process.sentinel]
    assert process.exitcode == 3


def test_an_unknown_exit_code_is_none_and_the_process_is_not_alive(household):
    process = ChildProcess(target=process_targets.exit_with, args=(7,))
    process.start()
    os.waitpid(process.pid, 0)
    assert connection.wait([process.sentinel], 20)
    assert process.exitcode is None
    assert not process.is_alive()
    assert process not in multiprocessing.active_children()
    process.join()
    process.terminate()


def test_threads_that_ask_at_once_get_the_same_answer(household):
    process = ChildProcess(target=process_targets.exit_with, args=(7,))
    process.start()
    codes = []

    def ask():
        while (code := process.exitcode) is None:
            time.sleep(0)
        codes.append(code)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [7] * 4


def test_it_can_be_started_and_watched_in_any_thread(household):
    codes = []

    def run():
        process = ChildProcess(target=process_targets.exit_with, args=(4,))
        process.start()
        process.join()
        codes.append(process.exitcode)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    time.sleep(0.05)
    assert codes == [4]


def test_a_thread_that_ends_does_not_take_the_child_with_it(household, tmp_path):
    # PR_SET_PDEATHSIG would: it fires when the thread ends that made the child.
    started = []
    thread = threading.Thread(target=lambda: started.append(behaving("ready sleep=1000", tmp_path)))
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert started[0].is_alive()
    started[0].kill()
    ended(started[0])


def test_what_is_handed_to_a_child_is_not_inherited_by_its_children(household, tmp_path):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        target = process_targets.list_inheritable
        process = ChildProcess(target=target, args=(sock, str(tmp_path / "fds")))
        process.start()
        assert ended(process) == 0
    assert (tmp_path / "fds").read_text() == "[0, 1, 2]"


def test_large_arguments_arrive(household, tmp_path):
    payload = random.Random(1).randbytes(5 << 20)
    process = ChildProcess(target=process_targets.write_length, args=(payload, str(tmp_path / "n")))
    process.start()
    assert ended(process) == 0
    assert int((tmp_path / "n").read_text()) == len(payload)


def test_a_child_that_dies_before_it_reads_its_arguments_does_not_block_the_start(
    household, monkeypatch
):
    # multiprocessing keeps its own copy of the pipe's other end open and waits for ever.
    monkeypatch.setattr(
        "multiprocessing.spawn.get_command_line",
        lambda **kwargs: [sys.executable, "-S", "-c", "raise SystemExit(9)"],
    )
    process = ChildProcess(target=process_targets.exit_with, args=(bytes(2 << 20),))
    process.start()
    assert ended(process) == 9


def test_a_child_that_never_reads_its_arguments_is_an_error(household, monkeypatch):
    monkeypatch.setattr("staging.process.children._HANDOVER_TIMEOUT", 0.2)
    monkeypatch.setattr(
        "multiprocessing.spawn.get_command_line", lambda **kwargs: ["sleep", "1000"]
    )
    process = ChildProcess(target=process_targets.exit_with, args=(bytes(2 << 20),))
    with pytest.raises(TimeoutError, match="did not read its arguments"):
        process.start()
    assert process.pid is None


def test_ignored_sigchld_is_refused(household):
    old = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(RuntimeError, match="SIGCHLD is ignored"):
            ChildProcess(target=process_targets.exit_with, args=(0,)).start()
    finally:
        signal.signal(signal.SIGCHLD, old)


def test_what_cannot_be_pickled_leaves_nothing(household):
    process = ChildProcess(target=process_targets.exit_with, args=(threading.Lock(),))
    with pytest.raises(TypeError):
        process.start()
    assert guard().warden_pid is None


class Interruption(BaseException):
    pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_start_leaves_nothing(household):
    """At any moment of it: the pid of a child that was just forked may be lost."""
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    interrupted = 0

    def interrupt(signum, frame):
        raise Interruption

    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(40):
            process = ChildProcess(target=process_targets.sleep_on)
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 0.012))
                    process.start()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Interruption:
                interrupted += 1
                process.discard()
            else:
                process.kill()
                process.join()
            # What shares our session is multiprocessing's resource tracker, which its
            # own interrupted start may leave to be reaped.
            left = [stat for stat in household.members() if stat.sid != os.getsid(0)]
            assert not left, f"seed {seed}: {left}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert interrupted > 5, f"seed {seed}"


def test_an_interrupt_at_any_line_of_the_launch_arrives_and_leaves_nothing(household):
    """What is raised is the interrupt, not an error of cleaning up after it."""
    launch = children._Launch._launch.__code__

    def start(interrupted_line: int) -> int:
        """Interrupt before the line of that number, of those that run; count them."""
        lines = 0

        def trace_lines(frame, event, arg):
            nonlocal lines
            if event == "line":
                lines += 1
                if lines == interrupted_line:
                    raise Interruption
            return trace_lines

        def trace_calls(frame, event, arg):
            return trace_lines if frame.f_code is launch else None

        process = ChildProcess(target=process_targets.sleep_on)
        sys.settrace(trace_calls)
        try:
            process.start()
        finally:
            sys.settrace(None)
        process.kill()
        process.join()
        return lines

    total = start(0)
    assert total > 15
    for line in range(1, total):
        with pytest.raises(Interruption):
            start(line)
        left = [stat for stat in household.members() if stat.sid != os.getsid(0)]
        assert not left, f"line {line}: {left}"


def test_sigterm_waits_for_a_target_that_drains(household, tmp_path):
    process = ChildProcess(target=process_targets.drain, args=(str(tmp_path),))
    process.start()
    process.terminate()  # long before it can have a handler
    (tmp_path / "go").touch()
    assert ended(process) == 0
    assert (tmp_path / "drained").exists()


def test_sigterm_does_not_wait_for_other_targets(household, tmp_path):
    process = behaving("sleep=1000", tmp_path)
    process.terminate()
    assert ended(process) == -signal.SIGTERM


def test_starting_does_not_change_the_callers_signal_mask(household):
    multiprocessing.resource_tracker.ensure_running()
    old = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        process = ChildProcess(target=process_targets.sleep_on)
        process.start()
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])
        # And a supervisor that waits for signals does not make its children deaf.
        wait_for(lambda: not blocks(process.pid, signal.SIGTERM))
        process.terminate()
        assert ended(process) == -signal.SIGTERM
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


def blocks(pid, signum):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigBlk"):
            return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def test_the_mark_survives_a_process_title(household, tmp_path):
    pytest.importorskip("setproctitle")
    process = ChildProcess(target=process_targets.retitle, args=(str(tmp_path),))
    process.start()
    wait_for((tmp_path / "ready-title").exists)
    assert process.mark in descendants.read_marks(process.pid)
    process.kill()
    ended(process)


def test_a_child_that_finds_its_supervisor_dead_does_not_run(household, tmp_path):
    process = ChildProcess(target=process_targets.announce, args=(str(tmp_path), "ran"))
    process._parent_pid = 1  # as if it had been adopted
    pid = os.fork()
    if pid == 0:
        process.run()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert not (tmp_path / "ran").exists()


def test_a_forked_copy_of_the_supervisor_touches_nothing(household, tmp_path):
    process = behaving("family ready sleep=1000", tmp_path)
    before = {stat.key for stat in household.members()}
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            assert process.exitcode is None
            process.discard()
            process._popen.kill_descendants()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert process.is_alive()
    assert before <= {stat.key for stat in household.members()}
    process.kill()
    ended(process)


def test_descriptors_are_given_back(household):
    def run():
        process = ChildProcess(target=process_targets.exit_with, args=(0,))
        process.start()
        process.join()
        process.close()

    run()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        run()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_after_the_end_signals_go_nowhere(household):
    process = ChildProcess(target=process_targets.exit_with, args=(0,))
    process.start()
    process.join()
    process.terminate()
    process.kill()
    process.send_signal(signal.SIGTERM)
    process.kill_descendants()
    process.discard()
    assert process.exitcode == 0


def test_a_signal_before_the_start_is_an_error():
    with pytest.raises(ValueError, match="has not been started"):
        ChildProcess(target=process_targets.sleep_on).send_signal(signal.SIGTERM)


def test_the_drain_mark_is_on_the_function_itself():
    @starts_with_sigterm_blocked
    def target():
        """Nothing."""

    assert ChildProcess(target=target)._sigterm_blocked
    assert not ChildProcess(target=process_targets.sleep_on)._sigterm_blocked
    assert callable(unblock_sigterm)
