"""A pidfd names one process, tells of its end, and leaves its exit code readable."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from staging.process import pidfd


@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "1000"])
    fd = pidfd.open_pidfd(process.pid)
    yield process, fd
    os.close(fd)
    process.kill()
    process.wait()


def end(process, fd):
    process.kill()
    assert pidfd.wait_any([fd], 10) == [fd]


def test_it_is_not_inheritable(child):
    assert not os.get_inheritable(child[1])


def test_a_kernel_without_pidfds_is_an_error_that_says_so(monkeypatch):
    def refuse(pid, flags=0):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(OSError, match=r"needs Linux 5\.4"):
        pidfd.open_pidfd(os.getpid())


def test_a_running_child_has_no_exit_code(child):
    assert pidfd.exit_code(child[1]) is None
    assert not pidfd.has_ended(child[1])
    assert pidfd.is_own_child(child[1])


def test_the_exit_code_can_be_read_before_and_without_reaping(child):
    end(*child)
    assert pidfd.exit_code(child[1]) == -signal.SIGKILL
    assert pidfd.exit_code(child[1]) == -signal.SIGKILL
    assert child[0].wait() == -signal.SIGKILL


def test_an_exit_status_is_the_code():
    process = subprocess.Popen([sys.executable, "-c", "import os; os._exit(7)"])
    fd = pidfd.open_pidfd(process.pid)
    pidfd.wait_any([fd], 10)
    assert pidfd.exit_code(fd) == 7
    process.wait()
    os.close(fd)


def test_a_child_that_was_reaped_is_nobodys_child(child):
    end(*child)
    pidfd.reap(child[1])
    assert not pidfd.is_own_child(child[1])
    with pytest.raises(ChildProcessError):
        pidfd.exit_code(child[1])
    pidfd.reap(child[1])
    assert not pidfd.send_signal(child[1], signal.SIGTERM)


def test_reaping_a_running_child_does_nothing(child):
    pidfd.reap(child[1])
    assert pidfd.is_own_child(child[1])


def test_another_process_is_not_a_child_of_ours():
    fd = pidfd.open_pidfd(os.getppid())
    assert not pidfd.is_own_child(fd)
    os.close(fd)


def test_a_wait_ends_at_its_timeout_and_does_not_spin(child):
    before = time.process_time()
    begin = time.monotonic()
    assert pidfd.wait_any([child[1]], 0.2) == []
    assert time.monotonic() - begin >= 0.2
    assert time.process_time() - before < 0.1


def test_await_end_returns_those_that_still_run(child):
    other = subprocess.Popen(["true"])
    fd = pidfd.open_pidfd(other.pid)
    assert pidfd.await_end([fd, child[1]], 1.0) == {child[1]}
    other.wait()
    os.close(fd)


def test_a_child_can_be_known_and_reaped_by_its_number():
    process = subprocess.Popen(["sleep", "1000"])
    assert pidfd.is_own_child_number(process.pid)
    assert not pidfd.reap_number(process.pid)
    assert not pidfd.is_own_child_number(os.getppid())
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert pidfd.reap_number(process.pid)
    assert not pidfd.is_own_child_number(process.pid)
    assert pidfd.reap_number(process.pid)  # by somebody
    process.returncode = -9
