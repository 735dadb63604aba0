"""``/health`` and ``/ready`` answer for the whole server, out of its board."""

from __future__ import annotations

import asyncio
import json

import pytest

from staging.process.health import HealthApp, health_report
from staging.process.status_board import ProcessState, StatusBoard

STARTING, READY, DRAINING = ProcessState.STARTING, ProcessState.READY, ProcessState.DRAINING


@pytest.fixture
def board():
    made = StatusBoard(["EngineCore_0", "ApiServer_0"])
    for name in made.names:
        made.row(name).begin()  # each is this process
    yield made
    made.close()


def set_states(board, *states):
    for name, state in zip(board.names, states, strict=True):
        board.row(name).set_state(state)


def kill(board, name):
    board.row(name)._row.start_ticks = -1


async def behind(scope, receive, send):
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b"behind"})


def ask(board, path, method="GET", kind="http"):
    sent = []

    async def send(message):
        sent.append(message)

    app = HealthApp(behind, board, board.row("ApiServer_0"))
    asyncio.run(app({"type": kind, "path": path, "method": method}, None, send))
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


@pytest.mark.parametrize(
    ("states", "status"),
    [
        ((STARTING, STARTING), "starting"),
        ((READY, STARTING), "starting"),
        ((READY, READY), "ok"),
        ((READY, DRAINING), "draining"),
        ((STARTING, DRAINING), "draining"),
    ],
)
def test_the_status_is_that_of_the_processes_together(board, states, status):
    set_states(board, *states)
    assert health_report(board)["status"] == status
    assert ask(board, "/health")[0] == 200
    assert ask(board, "/ready")[0] == (200 if status == "ok" else 503)


@pytest.mark.parametrize("states", [(READY, READY), (STARTING, READY), (READY, DRAINING)])
def test_a_process_that_has_died_is_failing(board, states):
    set_states(board, *states)
    kill(board, "EngineCore_0")
    assert health_report(board)["status"] == "failing"
    assert ask(board, "/health")[0] == 503
    assert ask(board, "/ready")[0] == 503


def test_a_process_that_drained_and_ended_before_this_one_is_no_failure(board):
    set_states(board, READY, DRAINING)
    kill(board, "ApiServer_0")
    assert health_report(board)["status"] == "draining"
    board.note_end("ApiServer_0", 0)
    assert health_report(board)["status"] == "draining"
    board.note_end("ApiServer_0", 1)
    assert health_report(board)["status"] == "failing"


def test_the_report_tells_of_each_process(board):
    set_states(board, READY, READY)
    _, headers, body = ask(board, "/health")
    assert headers[b"content-type"] == b"application/json"
    assert int(headers[b"content-length"]) == len(body)
    report = json.loads(body)
    assert [entry["name"] for entry in report["processes"]] == list(board.names)
    assert set(report["processes"][0]) == {
        "name",
        "pid",
        "state",
        "condition",
        "exit_code",
        "uptime_s",
        "silent_s",
        "connections",
        "requests",
        "rss_bytes",
    }


def test_everything_else_is_passed_on_and_counted(board):
    assert ask(board, "/healthy")[0] == 299
    assert ask(board, "/", "POST")[2] == b"behind"
    assert ask(board, "/health", kind="websocket")[0] == 299
    assert board.status()[1].requests == 2
    ask(board, "/health")
    assert board.status()[1].requests == 2


def test_head_has_no_body_and_other_methods_are_refused(board):
    status, headers, body = ask(board, "/ready", "HEAD")
    assert (status, body) == (503, b"")
    assert int(headers[b"content-length"]) > 0
    status, headers, _ = ask(board, "/ready", "POST")
    assert (status, headers[b"allow"]) == (405, b"GET, HEAD")
