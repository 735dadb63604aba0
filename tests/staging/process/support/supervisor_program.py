"""A supervisor for the scenarios: ``python supervisor_program.py CONFIG``.

It holds everything that could be left behind: a TCP port, ipc sockets, named and
anonymous shared memory, API servers and an engine.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
from multiprocessing import shared_memory

import process_targets

from staging.process import (
    APIServerProcessManager,
    EngineProcessManager,
    ZmqListener,
    get_engine_client_zmq_addr,
    wait_for_completion_or_failure,
)


def raise_exit(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)


def ipc_listeners(count: int) -> list[ZmqListener]:
    return [ZmqListener.bind(get_engine_client_zmq_addr(True, "")) for _ in range(count)]


def main(config: dict[str, object]) -> int:
    signal.signal(signal.SIGTERM, raise_exit)
    folder, port, timeout = config["folder"], config["port"], config["timeout"]
    modes, engine_mode = config["modes"], config["engine"]
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen()
    memory = None
    if config["memory"] is not None:
        memory = shared_memory.SharedMemory(config["memory"], create=True, size=4096)
    engines = servers = None
    try:
        engines = EngineProcessManager(process_targets.engine, 1, (engine_mode, folder))
        servers = APIServerProcessManager(
            f"http://127.0.0.1:{port}",
            sock,
            {"modes": modes, "folder": folder},
            len(modes),
            ipc_listeners(len(modes)),
            ipc_listeners(len(modes)),
            process_targets.server,
        )
        process_targets.announce(folder, "started")
        wait_for_completion_or_failure(servers, engines)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        for manager in (servers, engines):
            if manager is not None:
                manager.shutdown(timeout)
        if memory is not None:
            memory.close()
            memory.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
