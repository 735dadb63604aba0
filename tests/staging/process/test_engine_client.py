"""A worker's requests reach the engines in turn, and each answer its own request."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
import zmq

from staging.process.addresses import get_engine_client_zmq_addr
from staging.process.engine_client import HELLO, EngineClient, engine_identity
from staging.process.listener import ZmqListener


@pytest.fixture
def config():
    made = {}
    listeners = []
    for name in ("input", "output"):
        listener = ZmqListener.bind(get_engine_client_zmq_addr(True, ""))
        listeners.append(listener)
        made[f"{name}_address"], made[f"{name}_listener"] = listener.address, listener.socket
    yield made
    for listener in listeners:
        listener.cleanup()


class Engine:
    """An engine whose answers are the test's; it runs on the test's thread."""

    def __init__(self, config, index=0):
        self.context = zmq.Context()
        self.identity = engine_identity(index)
        self.requests = self.context.socket(zmq.DEALER)
        self.answers = self.context.socket(zmq.PUSH)
        self.requests.identity = self.identity
        self.requests.connect(config["input_address"])
        self.answers.connect(config["output_address"])
        self.requests.send(HELLO)

    async def receive(self):
        while True:
            with contextlib.suppress(zmq.Again):
                return self.requests.recv_multipart(zmq.NOBLOCK)
            await asyncio.sleep(0.001)

    def answer(self, *frames):
        self.answers.send_multipart(list(frames))

    def close(self):
        self.context.destroy(linger=0)


def run(config, engines, test):
    """Run `test(client, *engines)` once the engines have said hello."""

    async def main():
        client = EngineClient(config)
        made = [Engine(config, index) for index in range(engines)]
        try:
            await client.wait_for_engines(engines)
            await test(client, *made)
        finally:
            await client.close()
            for engine in made:
                engine.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_request_and_its_answer_are_the_bytes_that_were_sent(config):
    async def test(client, engine):
        call = asyncio.ensure_future(client.call(b"\0 payload"))
        request_id, payload = await engine.receive()
        assert payload == b"\0 payload"
        engine.answer(request_id, b"answer \0", engine.identity)
        assert await call == (b"answer \0", 0)

    run(config, 1, test)


def test_answers_find_their_requests_in_any_order(config):
    async def test(client, engine):
        calls = [asyncio.ensure_future(client.call(b"%d" % i)) for i in range(20)]
        requests = [await engine.receive() for _ in calls]
        for request_id, payload in reversed(requests):
            engine.answer(request_id, b"for " + payload, engine.identity)
        answers = await asyncio.gather(*calls)
        assert [answer for answer, _ in answers] == [b"for %d" % i for i in range(20)]

    run(config, 1, test)


def test_engines_are_asked_in_turn(config):
    async def test(client, first, second):
        assert sorted(client.engines) == [0, 1]
        calls = [asyncio.ensure_future(client.call(b"x")) for _ in range(4)]
        for engine in (first, second, first, second):
            request_id, _ = await engine.receive()
            engine.answer(request_id, b"", engine.identity)
        assert sorted(index for _, index in await asyncio.gather(*calls)) == [0, 0, 1, 1]

    run(config, 2, test)


def test_a_request_that_was_given_up_does_not_disturb_the_others(config):
    async def test(client, engine):
        given_up = asyncio.ensure_future(client.call(b"1"))
        request_id, _ = await engine.receive()
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        engine.answer(request_id, b"late", engine.identity)
        call = asyncio.ensure_future(client.call(b"2"))
        request_id, _ = await engine.receive()
        engine.answer(request_id, b"in time", engine.identity)
        assert await call == (b"in time", 0)

    run(config, 1, test)


def test_what_does_not_follow_the_protocol_is_passed_over(config, caplog):
    async def test(client, engine):
        engine.requests.send(b"good day")
        engine.answer(b"one frame")
        engine.answer(b"12345678", b"nobody asked", engine.identity)
        call = asyncio.ensure_future(client.call(b"x"))
        request_id, _ = await engine.receive()
        engine.answer(request_id, b"y", engine.identity)
        assert await call == (b"y", 0)
        while "instead of hello" not in caplog.text:
            await asyncio.sleep(0.001)

    run(config, 1, test)
    assert "1 frames instead of 3" in caplog.text
    assert "instead of hello" in caplog.text


def test_without_an_engine_a_request_is_a_connection_error(config):
    async def test(client):
        with pytest.raises(ConnectionError, match="no engine is connected"):
            await client.call(b"x")

    run(config, 0, test)


def test_after_an_engines_end_a_request_to_it_is_a_connection_error(config):
    async def ask_until_it_fails(client):
        while True:
            with contextlib.suppress(asyncio.TimeoutError):  # ZMQ has not noticed yet
                await asyncio.wait_for(client.call(b"x"), 0.02)

    async def test(client, engine):
        engine.close()
        with pytest.raises(ConnectionError, match="engine 0 cannot be reached"):
            await ask_until_it_fails(client)

    run(config, 1, test)


def test_closing_the_client_ends_the_requests_that_wait(config):
    async def test(client, engine):
        waiting = asyncio.ensure_future(client.call(b"x"))
        await engine.receive()
        await client.close()
        with pytest.raises(ConnectionError, match="was closed"):
            await waiting

    run(config, 1, test)


def test_a_listener_that_is_none_is_an_error_and_nothing_is_left_open(config):
    config["output_listener"].close()
    threads = threading.active_count()

    async def main():
        with pytest.raises(ValueError, match="closed"):
            EngineClient(config)

    asyncio.run(main())
    assert config["input_listener"].fileno() == -1
    assert threading.active_count() == threads
