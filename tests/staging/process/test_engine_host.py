"""An engine runs in a process that reports for it and lets SIGTERM unwind it."""

from __future__ import annotations

import os
import pathlib
import signal
import time

import pytest

from staging.process.children import ChildProcess
from staging.process.engine_host import EngineContext, load_engine, run_engine
from staging.process.status_board import ProcessState, StatusBoard

APPS = pathlib.Path(__file__).parent / "apps"


@pytest.fixture
def start(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(APPS))
    monkeypatch.setenv("ENGINE_EVENTS", str(tmp_path / "events"))
    board = StatusBoard(["EngineCore_0"])
    started = []

    def start_one(spec):
        process = ChildProcess(
            target=run_engine, args=(spec, EngineContext([], [], board)), kwargs={"engine_index": 0}
        )
        process.start()
        started.append(process)
        return process, board

    yield start_one
    for process in started:
        process.kill()
        process.join()
        process.close()
    board.close()


def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_it_reports_loads_and_runs_the_engine_and_sigterm_unwinds_it(start, tmp_path, capfd):
    process, board = start("engine_apps:patient")
    until(lambda: board.status()[0].state == ProcessState.READY)
    status = board.status()[0]
    assert status.pid == process.pid
    assert status.silent_s is not None
    title = pathlib.Path(f"/proc/{process.pid}/cmdline").read_bytes()
    assert title.rstrip(b"\0") == b"EngineCore_0"
    os.kill(process.pid, signal.SIGTERM)
    os.kill(process.pid, signal.SIGTERM)  # a second one does not break the unwinding
    process.join(60)
    assert process.exitcode == 0
    assert (tmp_path / "events").read_text() == "put away\n"
    assert f"[EngineCore_0 {process.pid}] hello from an engine" in capfd.readouterr().out


def test_sigterm_before_its_first_instruction_or_during_its_import_ends_it(start, tmp_path):
    early, _ = start("engine_apps:patient")
    os.kill(early.pid, signal.SIGTERM)
    importing, _ = start("slow_engine:run")
    until((tmp_path / "events").exists)
    os.kill(importing.pid, signal.SIGTERM)
    for process in (early, importing):
        process.join(60)
        assert process.exitcode == 0


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("echo", "write it as 'module:function'"),
        ("engine_apps:absent", "there is no such function"),
        ("engine_apps:NUMBER", "there is no such function"),
    ],
)
def test_an_engine_that_cannot_be_loaded_is_an_error_that_says_why(monkeypatch, spec, complaint):
    monkeypatch.syspath_prepend(str(APPS))
    with pytest.raises(ValueError, match=complaint):
        load_engine(spec)


def test_without_a_board_a_context_reports_to_nobody():
    context = EngineContext(["ipc:///a"], ["ipc:///b"])
    context.ready()
    context.beat()
