"""The echo engine returns every payload to the worker it came from, until it is stopped."""

from __future__ import annotations

import asyncio
import threading

import pytest

from staging.process.addresses import get_engine_client_zmq_addr
from staging.process.echo_engine import run_echo_engine
from staging.process.engine_client import EngineClient
from staging.process.engine_host import EngineContext
from staging.process.listener import ZmqListener


@pytest.mark.parametrize("transport", ["ipc", "tcp://127.0.0.1:0", "tcp://[::1]:0"])
def test_payloads_come_back_to_every_worker(transport):
    workers = 2
    listeners = [
        ZmqListener.bind(get_engine_client_zmq_addr(True, "") if transport == "ipc" else transport)
        for _ in range(2 * workers)
    ]
    inputs, outputs = listeners[:workers], listeners[workers:]
    context = EngineContext([x.address for x in inputs], [x.address for x in outputs])
    stop = threading.Event()
    engine = threading.Thread(
        target=run_echo_engine, args=(context,), kwargs={"engine_index": 3, "stop": stop}
    )
    engine.start()

    async def main():
        clients = [
            EngineClient(
                {
                    "input_address": input_.address,
                    "input_listener": input_.socket,
                    "output_address": output.address,
                    "output_listener": output.socket,
                }
            )
            for input_, output in zip(inputs, outputs, strict=True)
        ]
        for number, client in enumerate(clients):
            await client.wait_for_engines()
            assert client.engines == [3]
            payloads = [b"worker %d request %d" % (number, i) for i in range(50)]
            answers = await asyncio.gather(*map(client.call, payloads))
            assert answers == [(payload, 3) for payload in payloads]
        for client in clients:
            await client.close()

    try:
        asyncio.run(asyncio.wait_for(main(), 60))
    finally:
        stop.set()
        engine.join(60)
        for listener in listeners:
            listener.cleanup()
    assert not engine.is_alive()
