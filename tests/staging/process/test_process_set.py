"""What every manager has in common: a start, an end, and an end that nobody asked for."""

from __future__ import annotations

import gc
import pathlib
import subprocess
import sys
import time

import process_targets
import pytest

from staging.process import ZmqListener, get_engine_client_zmq_addr
from staging.process.children import ChildProcess
from staging.process.process_set import Listener, ProcessSet, check_listeners, clean_up

ROOT = pathlib.Path(__file__).resolve().parents[3]
SUPPORT = pathlib.Path(__file__).resolve().parent / "support"


class Owner:
    """A manager."""


class FakeSocket:
    def __init__(self, fd):
        self._fd = fd

    def fileno(self):
        return self._fd


class FakeListener:
    address = "tcp://127.0.0.1:1"

    def __init__(self, fd=3, error=None):
        self.socket = FakeSocket(fd)
        self.cleaned = 0
        self._error = error

    def close(self):
        """Nothing."""

    def cleanup(self):
        self.cleaned += 1
        if self._error is not None:
            raise self._error


def started(processes):
    process = ChildProcess(target=process_targets.sleep_on)
    processes.append(process)
    process.start()
    return process


def test_a_failed_start_ends_what_runs_and_cleans_up(household):
    owner, listener = Owner(), FakeListener()
    group = ProcessSet(owner)
    group.listeners.append(listener)

    def start():
        with group.starting():
            started(group.processes)
            raise KeyError("why")

    with pytest.raises(KeyError):
        start()
    assert not group.processes[0].is_alive()
    assert listener.cleaned


def test_a_shutdown_is_complete_when_it_is_repeated_after_an_interruption(household, monkeypatch):
    # Ctrl-C during the first call used to make every later call do nothing.
    owner, listener = Owner(), FakeListener(error=KeyboardInterrupt())
    group = ProcessSet(owner)
    group.listeners.append(listener)
    process = started(group.processes)
    with pytest.raises(KeyboardInterrupt):
        group.shutdown()
    listener._error = None
    second = started(group.processes)
    group.shutdown()
    assert not process.is_alive()
    assert not second.is_alive()
    assert listener.cleaned == 2


def test_a_forgotten_owner_is_shut_down(household):
    owner, listener = Owner(), FakeListener()
    group = ProcessSet(owner)
    group.listeners.append(listener)
    process = started(group.processes)
    del owner
    gc.collect()
    assert not process.is_alive()
    assert listener.cleaned == 1


def test_listeners_are_cleaned_up_though_one_fails():
    listeners = [FakeListener(error=OSError("no")), FakeListener()]
    clean_up(listeners)
    assert [listener.cleaned for listener in listeners] == [1, 1]


def test_a_zmq_listener_is_a_listener(household):
    listener = ZmqListener.bind(get_engine_client_zmq_addr(True, ""))
    assert isinstance(listener, Listener)
    listener.cleanup()


def test_listeners_are_checked_before_they_are_used():
    check_listeners("x", [FakeListener()], 1)
    with pytest.raises(ValueError, match="x has 1 listeners for 2 processes"):
        check_listeners("x", [FakeListener()], 2)
    with pytest.raises(TypeError, match=r"x\[0\] is 'tcp://h:1': it has no 'address'"):
        check_listeners("x", ["tcp://h:1"], 1)
    with pytest.raises(ValueError, match=r"x\[1\] is .*: its socket is closed"):
        check_listeners("x", [FakeListener(), FakeListener(-1)], 2)


@pytest.mark.parametrize(
    "end",
    [
        "",
        "raise ValueError('at the end')",
        "sys.exit(0)",
        "import threading; t = threading.Thread(target=time.sleep, args=(0.2,)); t.start()",
        "group.owner = owner",  # a cycle that is never collected
        "import gc; gc.freeze()",
    ],
)
def test_an_exit_without_a_shutdown_does_not_hang(household, tmp_path, end):
    """At exit multiprocessing joins its children: it would wait for a server for ever."""
    (tmp_path / "program.py").write_text(
        f"""
import sys, time
from staging.process import ZmqListener
from staging.process.children import ChildProcess
from staging.process.process_set import ProcessSet
import process_targets

class Owner: pass

if __name__ == "__main__":
    owner = Owner()
    group = ProcessSet(owner)
    group.listeners.append(ZmqListener.bind("ipc://{tmp_path}/socket"))
    for _ in range(2):
        args = "children ready sleep=1000", {str(tmp_path)!r}, "x"
        process = ChildProcess(target=process_targets.behave, args=args)
        group.processes.append(process)
        process.start()
    while not __import__("os").path.exists("{tmp_path}/ready-x"):
        time.sleep(0.005)
    {end}
"""
    )
    begin = time.monotonic()
    result = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")],
        env={"PYTHONPATH": f"{ROOT}:{SUPPORT}", "PATH": "/usr/bin:/bin"},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert time.monotonic() - begin < 20
    assert result.returncode == ("ValueError" in end), result.stderr
    assert "Error" not in result.stderr or "at the end" in result.stderr
    assert not (tmp_path / "socket").exists()
    household.expect_empty()
