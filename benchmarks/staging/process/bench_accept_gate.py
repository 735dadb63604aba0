"""What accepting by load costs: 200 connections through the gate and through asyncio's own.

python -m pytest benchmarks/staging/process/bench_accept_gate.py
"""

from __future__ import annotations

import asyncio
import socket

import pytest

from staging.process.accept_gate import UNREPORTED, AcceptGate

CONNECTIONS = 200


class Greeter(asyncio.Protocol):
    """Says one byte to whoever connects."""

    def connection_made(self, transport):
        """Greet and close."""
        transport.write(b"!")
        transport.close()


@pytest.mark.parametrize("kind", ["asyncio", "gate"])
def test_accept_200_connections(benchmark, kind):
    loop = asyncio.new_event_loop()
    listening = socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS)
    address = listening.getsockname()

    async def start():
        if kind == "gate":
            loads = [UNREPORTED] * 8
            return AcceptGate(loop, listening, Greeter, loads=loads, index=0)
        return await loop.create_server(Greeter, sock=listening, backlog=CONNECTIONS)

    async def connect_all():
        async def connect():
            reader, writer = await asyncio.open_connection(*address)
            assert await reader.read() == b"!"
            writer.close()

        await asyncio.gather(*(connect() for _ in range(CONNECTIONS)))

    server = loop.run_until_complete(start())
    try:
        benchmark(lambda: loop.run_until_complete(connect_all()))
    finally:
        server.close()
        loop.run_until_complete(server.wait_closed())
        listening.close()
        loop.close()
