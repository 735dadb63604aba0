"""The board shows every process as it is, to everyone, and wakes the supervisor."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time

import pytest

from staging.process import status_board
from staging.process.children import ChildProcess
from staging.process.status_board import ProcessState, StatusBoard


def report(board, name):
    row = board.row(name)
    row.begin()
    row.set_connections(3)
    row.count_request()
    row.count_request()
    row.set_state(ProcessState.READY)


@pytest.fixture
def board():
    made = StatusBoard(["EngineCore_0", "ApiServer_0"])
    yield made
    made.close()


def wakes(board):
    return bool(select.select([board], [], [], 0)[0])


def test_at_first_nothing_is_known_of_any_process(board):
    first, second = board.status()
    assert (first.name, second.name) == ("EngineCore_0", "ApiServer_0")
    assert first.pid is None
    assert first.state == ProcessState.STARTING
    assert first.condition == "unknown"
    assert first.uptime_s is None
    assert first.silent_s is None
    assert first.exit_code is None
    assert board.not_ready() == ["EngineCore_0", "ApiServer_0"]
    assert not wakes(board)


def test_what_a_child_reports_is_seen_by_its_parent_and_wakes_it(board):
    child = ChildProcess(target=report, args=(board, "ApiServer_0"))
    child.start()
    assert select.select([board], [], [], 60)[0]
    child.join(60)
    assert child.exitcode == 0
    status = board.status()[1]
    assert status.pid == child.pid
    assert status.state == ProcessState.READY
    assert (status.connections, status.requests) == (3, 2)
    assert status.condition == "dead"  # as it is by now
    assert board.not_ready() == ["EngineCore_0"]
    board.clear_wake()
    assert not wakes(board)
    child.close()


def test_a_process_sees_itself_running(board):
    report(board, "EngineCore_0")
    status = board.status()[0]
    assert status.condition == "running"
    assert status.uptime_s >= 0
    assert status.rss_bytes > 2**20


def test_a_stopped_process_shows_as_stopped(board):
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        row = board.row("EngineCore_0")
        row.begin()
        row._row.pid = sleeper.pid
        row._row.start_ticks = status_board.descendants.read_stat(sleeper.pid).start
        assert board.status()[0].condition == "running"
        sleeper.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 30
        while board.status()[0].condition != "stopped":
            assert time.monotonic() < deadline
    finally:
        sleeper.kill()
        sleeper.wait()
    assert board.status()[0].condition == "dead"


def test_a_pid_that_has_become_another_process_is_not_taken_for_it(board):
    row = board.row("EngineCore_0")
    row.begin()
    row._row.start_ticks -= 1
    assert board.status()[0].condition == "dead"


def test_only_a_process_that_gives_signs_of_life_can_fall_silent(board, monkeypatch):
    row = board.row("EngineCore_0")
    row.begin()
    assert board.status()[0].silent_s is None
    row.beat()
    assert board.status()[0].silent_s < 60
    monkeypatch.setattr(status_board, "SILENT_AFTER_S", 0.0)
    assert board.status()[0].condition == "unresponsive"


@pytest.mark.parametrize("code", [0, 7, -9, None])
def test_the_supervisor_notes_an_end_with_its_exit_code(board, code):
    report(board, "EngineCore_0")
    board.note_end("EngineCore_0", code)
    status = board.status()[0]
    assert status.state == ProcessState.ENDED
    assert status.condition == "dead"
    assert status.exit_code == code
    assert "EngineCore_0" not in board.not_ready()


def test_waking_never_blocks_and_outlives_the_supervisors_end(board):
    for _ in range(10_000):  # more than the socket holds
        board.wake()
    assert wakes(board)
    board.clear_wake()
    assert not wakes(board)
    board._wakened.close()
    board.wake()


def test_a_child_does_not_get_the_end_that_is_woken(board):
    assert "_wakened" not in board.__getstate__()


def test_its_memory_has_no_name_that_could_stay(board):
    report(board, "EngineCore_0")
    named = [name for name in os.listdir("/dev/shm") if name.startswith(f"pym-{os.getpid()}-")]
    assert named == []
    assert multiprocessing.active_children() == []
