"""The example application passes requests to the engine, and says what it does not serve."""

from __future__ import annotations

import asyncio

import pytest

from staging.process import echo_app


class Engine:
    """An engine client that answers as it is told to."""

    def __init__(self, failure=None):
        self.failure = failure

    async def call(self, payload):
        if self.failure:
            raise self.failure
        return payload[::-1], 4


def ask(path, method="POST", bodies=(b"abc",), engine=None):
    messages = [
        {"type": "http.request", "body": body, "more_body": i + 1 < len(bodies)}
        for i, body in enumerate(bodies)
    ]
    messages.append({"type": "http.disconnect"})
    sent = []

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "path": path,
        "method": method,
        "state": {"engine": engine or Engine(), "client_config": {"client_index": 2}},
    }
    asyncio.run(echo_app.app(scope, receive, send))
    return sent


@pytest.mark.parametrize("bodies", [(b"abc",), (b"a", b"", b"bc")])
def test_a_body_goes_to_the_engine_whole_and_its_answer_comes_back(bodies):
    start, body = ask("/echo", bodies=bodies)
    assert start["status"] == 200
    assert body["body"] == b"cba"
    assert dict(start["headers"]) == {
        b"content-length": b"3",
        b"x-worker": b"2",
        b"x-engine": b"4",
    }


@pytest.mark.parametrize(
    ("path", "method", "status"), [("/", "GET", 404), ("/echo", "GET", 405), ("/x", "POST", 404)]
)
def test_what_it_does_not_serve_is_refused(path, method, status):
    assert ask(path, method)[0]["status"] == status


def test_an_engine_that_cannot_be_reached_is_service_unavailable():
    start, body = ask("/echo", engine=Engine(ConnectionError("no engine is connected")))
    assert start["status"] == 503
    assert body["body"] == b"no engine is connected\n"


def test_a_client_that_leaves_is_not_answered():
    assert ask("/echo", bodies=()) == []
