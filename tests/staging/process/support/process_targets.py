"""What child processes do in the tests and in the soak; they import it by name."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

from staging.process.children import starts_with_sigterm_blocked, unblock_sigterm


def announce(folder: str, name: str) -> None:
    """Tell whoever waits for it that this process has come so far."""
    pathlib.Path(folder, name).touch()


def sleep_on() -> None:
    while True:
        time.sleep(60)


def leave_family() -> None:
    """Leave processes that are hard to find, each with every descriptor of this one."""
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            os.set_inheritable(int(fd), True)
    leave_children()
    # Its parent ends at once, so that it is init's.
    subprocess.run(["sh", "-c", "setsid sleep 1000 &"], close_fds=False, check=True)
    # Python itself, forked without exec, in its own session.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            sleep_on()
        os._exit(0)


def leave_children() -> None:
    """Leave processes whose parent is this one, each with every descriptor of it."""
    sleep = ["sleep", "1000"]
    subprocess.Popen(sleep, close_fds=False)
    subprocess.Popen(sleep, close_fds=False, start_new_session=True)
    # One that ignores SIGTERM and has lost its environment.
    subprocess.Popen(
        ["sh", "-c", "trap '' TERM; sleep 1000 & wait"], close_fds=False, env={"PATH": "/bin"}
    )


nested: list[object] = []


def supervise(folder: str) -> object:
    """Be a supervisor, too: of an engine, an ipc socket, and a warden."""
    from staging.process import EngineProcessManager, ZmqListener

    listener = ZmqListener.bind(f"ipc://{folder}/nested-{os.getpid()}")
    manager = EngineProcessManager(
        engine, 1, ("family ready sleep=1000", folder), start_index=os.getpid()
    )
    while not pathlib.Path(folder, f"ready-EngineCore_{os.getpid()}").exists():
        time.sleep(0.005)
    return listener, manager


def behave(mode: str, folder: str, name: str) -> None:
    """Do as `mode` says: words that are done one after the other."""
    for word in mode.split():
        verb, _, value = word.partition("=")
        if verb == "ready":
            announce(folder, f"ready-{name}")
        elif verb == "ignore":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif verb == "family":
            leave_family()
        elif verb == "children":
            leave_children()
        elif verb == "nest":
            nested.append(supervise(folder))
        elif verb == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif verb == "sleep":
            time.sleep(float(value))
        elif verb == "await":
            while not pathlib.Path(folder, value).exists():
                time.sleep(0.002)
        elif verb == "exit":
            sys.exit(int(value))
        elif verb == "die":
            os.kill(os.getpid(), int(value))
        else:
            raise ValueError(f"unknown word {word!r}")


def server(listen_address: str, sock: object, args: object, config: dict[str, object]) -> None:
    """Behave as ``args["modes"][client_index]`` says."""
    assert isinstance(args, dict)
    index = config["client_index"]
    assert isinstance(index, int)
    modes = args["modes"]
    behave(modes[index % len(modes)], args["folder"], f"ApiServer_{index}")


def engine(mode: str, folder: str, *, engine_index: int) -> None:
    behave(mode, folder, f"EngineCore_{engine_index}")


def exit_with(code: int, delay: float = 0.0) -> None:
    time.sleep(delay)
    sys.exit(code)


def exit_server(listen_address: str, sock: object, args: object, config: object) -> None:
    """Return at once: exit code 0."""


def list_inheritable(sock: object, path: str) -> None:
    """Write which descriptors this process's children would inherit."""
    fds = [int(name) for name in os.listdir("/proc/self/fd")]
    found = []
    for fd in sorted(fds):
        with contextlib.suppress(OSError):  # the listing's own
            if os.get_inheritable(fd):
                found.append(fd)
    pathlib.Path(path).write_text(repr(found))


def write_length(payload: bytes, path: str) -> None:
    pathlib.Path(path).write_text(str(len(payload)))


@starts_with_sigterm_blocked
def drain(folder: str) -> None:
    """Exit with 0 on SIGTERM, also on one that came before the handler stood."""

    def on_sigterm(signum: int, frame: object) -> None:
        announce(folder, "drained")
        sys.exit(0)

    behave("await=go", folder, "drain")
    signal.signal(signal.SIGTERM, on_sigterm)
    unblock_sigterm()
    sleep_on()


def retitle(folder: str) -> None:
    import setproctitle

    setproctitle.setproctitle("a title that is much longer than the command line was" * 20)
    announce(folder, "ready-title")
    sleep_on()


def linger(folder: str, seconds: float) -> None:
    """Take some time for the end after SIGTERM."""

    def on_sigterm(signum: int, frame: object) -> None:
        time.sleep(seconds)
        announce(folder, "put away")
        sys.exit(0)

    signal.signal(signal.SIGTERM, on_sigterm)
    announce(folder, "ready-linger")
    sleep_on()


def dump_config(listen_address: str, sock: object, args: object, config: dict[str, Any]) -> None:
    """Write what the server was called with."""
    told: dict[str, Any] = {
        "listen_address": listen_address,
        "sock": None if sock is None else type(sock).__name__,
        "args": args if isinstance(args, str) else None,
    }
    for key, value in config.items():
        if hasattr(value, "getsockname"):
            told[key] = value.getsockname()
        else:
            told[key] = (
                list(value) if key in {"api_server_loads", "mp_admission_counters"} else value
            )
    folder = args if isinstance(args, str) else args.folder  # type: ignore[attr-defined]
    pathlib.Path(folder, f"config-{config['client_index']}").write_text(json.dumps(told))


def share_load(listen_address: str, sock: object, args: str, config: dict[str, Any]) -> None:
    """Report a load, and wait until every other server has reported its own."""
    loads, index = config["api_server_loads"], config["client_index"]
    loads[index] = 100 + index
    while max(loads) > 1000:
        time.sleep(0.002)
    pathlib.Path(args, f"loads-{index}").write_text(json.dumps(list(loads)))


def put_index(listen_address: str, sock: object, args: object, config: dict[str, Any]) -> None:
    config["tensor_queue"].put(config["client_index"])


def echo_once(listen_address: str, sock: object, args: object, config: dict[str, Any]) -> None:
    """Answer one request with what comes in on both listeners."""
    import zmq

    from staging.process import ZmqListener

    with zmq.Context() as context:
        router = ZmqListener(config["input_address"], config["input_listener"]).adopt(
            context, zmq.ROUTER, linger=10_000
        )
        pull = ZmqListener(config["output_address"], config["output_listener"]).adopt(
            context, zmq.PULL
        )
        identity, request = router.recv_multipart()
        router.send_multipart([identity, request + b" " + pull.recv()])
        router.close()
        pull.close()


def linger_by_index(folder: str, *, engine_index: int) -> None:
    """Take 5.5 s for the end after SIGTERM, unless this is the first engine."""

    def on_sigterm(signum: int, frame: object) -> None:
        time.sleep(5.5 * engine_index)
        sys.exit(0)

    signal.signal(signal.SIGTERM, on_sigterm)
    announce(folder, f"ready-{engine_index}")
    sleep_on()
