"""A supervisor has a warden exactly as long as it has something to guard."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

import staging
from staging.process import descendants, pidfd
from staging.process.guard import Guard, guard


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def own(household):
    return Guard()


@pytest.fixture
def child(own):
    """A child that the guard knows."""
    mark = descendants.new_mark()
    process = subprocess.Popen(
        ["sleep", "1000"],
        start_new_session=True,
        env=descendants.marked_environment(os.environ, [own.mark, mark]),
    )
    fd = pidfd.open_pidfd(process.pid)
    own.add_child(mark, process.pid, fd)
    yield process, mark
    process.kill()
    process.wait()
    own.remove_child(mark)
    os.close(fd)


def test_there_is_no_warden_without_anything_to_guard(own):
    own.check()
    assert own.warden_pid is None


def test_a_warden_comes_with_the_expectation_of_a_child_and_leaves_without_one(own):
    with own.expecting("mark"):
        pid = own.warden_pid
        assert pid is not None
        assert os.getsid(pid) == pid
    assert own.warden_pid is None
    wait_for(lambda: descendants.read_stat(pid) is None)


def test_it_stays_as_long_as_there_is_a_child_or_a_path(own, child, tmp_path):
    path = tmp_path / "socket"
    path.touch()
    own.add_path(str(path), path.lstat())
    own.remove_child(child[1])
    assert own.warden_pid is not None
    own.remove_path(str(path))
    assert own.warden_pid is None


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_a_warden_that_is_killed_or_stopped_has_a_successor_that_knows_all(
    own, child, signum, monkeypatch
):
    monkeypatch.setattr("staging.process.guard._SEND_TIMEOUT", 0.05)
    first = own.warden_pid
    os.kill(first, signum)
    if signum == signal.SIGKILL:
        wait_for(lambda: descendants.read_stat(first).is_dead)
        own.check()
    else:
        # A stopped one is found out when its socket is full.
        for i in range(10_000):
            own.add_path(f"/nonexistent/{i % 10}", os.stat("/"))
            if own.warden_pid != first:
                break
    assert own.warden_pid not in {first, None}
    for i in range(10):
        own.remove_path(f"/nonexistent/{i}")
    wait_for(lambda: descendants.read_stat(first) is None)


def test_a_successor_ends_what_its_predecessor_was_told(household, tmp_path):
    script = """
import os, signal, subprocess, sys, time
from staging.process import descendants, pidfd
from staging.process.guard import guard
# No mark: the warden can only know it because it is told again.
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
guard().add_child("mark", child.pid, pidfd.open_pidfd(child.pid))
os.kill(guard().warden_pid, signal.SIGKILL)
while not descendants.read_stat(guard().warden_pid).is_dead:
    time.sleep(0.001)
guard().check()
os.write(1, b"%d\\n" % child.pid)
os.kill(os.getpid(), signal.SIGKILL)
"""
    result = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, check=False, timeout=60
    )
    pid = int(result.stdout)
    wait_for(lambda: descendants.read_stat(pid) is None or descendants.read_stat(pid).is_dead)


def test_a_forked_copy_that_holds_every_pipe_does_not_delay_the_end(household):
    # Whoever waits for the end of a pipe waits for every process that has inherited it.
    script = r"""
import os, signal, subprocess, time
from staging.process import descendants, pidfd
from staging.process.guard import guard
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
guard().add_child("mark", child.pid, pidfd.open_pidfd(child.pid))
copy = os.fork()
if copy == 0:
    time.sleep(1000)
os.write(1, b"%d %d\n" % (child.pid, copy))
os.kill(os.getpid(), signal.SIGKILL)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    child, copy = map(int, process.stdout.readline().split())
    process.wait()
    wait_for(lambda: descendants.read_stat(child) is None or descendants.read_stat(child).is_dead)
    assert not descendants.read_stat(copy).is_dead  # no process of ours
    os.kill(copy, signal.SIGKILL)
    process.stdout.close()


def test_a_warden_that_cannot_run_is_an_error_that_says_so(own, monkeypatch):
    monkeypatch.setattr(
        "staging.process.guard._command", lambda *args: [sys.executable, "-S", "-c", "1/0"]
    )

    def watch():
        with own.expecting("mark"):
            for _ in range(10):
                pidfd.wait_any([own._link._pidfd], 10)
                own.check()

    with pytest.raises(RuntimeError, match="warden ended 3 times"):
        watch()


def test_the_application_cannot_break_the_warden(household, tmp_path):
    (tmp_path / "socket.py").write_text("raise SystemExit('shadowed')")
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('customised')")
    root = pathlib.Path(staging.__file__).resolve().parents[1]
    script = f"""
import sys; sys.path[:] = [p for p in sys.path if p not in ("", {str(tmp_path)!r})]
sys.path.append({str(root)!r})
from staging.process import pidfd
from staging.process.guard import guard
import time
with guard().expecting("mark"):
    time.sleep(0.3)
    assert not pidfd.has_ended(guard()._link._pidfd)
"""
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": "/nonexistent"}
    subprocess.run(
        [sys.executable, "-S", "-c", script], cwd=tmp_path, env=env, check=True, timeout=60
    )


def test_a_forked_copy_tells_the_warden_nothing(own, child):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            own.remove_child(child[1])
            own.check()
            assert guard() is not own
            assert guard().owner == os.getpid()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert own.warden_pid is not None
    assert child[0].poll() is None


def test_a_path_that_is_known_is_not_expected_again(own, tmp_path):
    path = str(tmp_path / "socket")
    assert own.expect_path(path)
    assert not own.expect_path(path)
    own.remove_path(path)


def test_descriptors_are_not_leaked(own, tmp_path):
    def count():
        return len(os.listdir("/proc/self/fd"))

    with own.expecting("mark"):
        pass
    before = count()
    for _ in range(5):
        with own.expecting("mark"):
            pass
    assert count() == before


def test_the_sockets_are_not_inherited_by_children(own):
    with own.expecting("mark"):
        assert isinstance(own._link._socket, socket.socket)
        assert not os.get_inheritable(own._link._socket.fileno())
        assert not os.get_inheritable(own._link._pidfd)
