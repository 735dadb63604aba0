"""The native test frontend does what its supervisor's tests rely on."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time

import pytest
import zmq

from staging.process.echo_engine import run_echo_engine
from staging.process.engine_host import EngineContext


class Running:
    """A frontend that runs, with the sockets that it was handed."""

    def __init__(self, binary, env, directory, *, actions="", engine_count=1, transport="ipc"):
        self.http = socket.create_server(("127.0.0.1", 0))
        self.port = self.http.getsockname()[1]
        self.grandchildren = []
        self.listeners = []
        self.addresses = []
        for name in ("input", "output"):
            if transport == "ipc":
                listener = socket.socket(socket.AF_UNIX)
                listener.bind(str(directory / name))
                self.addresses.append(f"ipc://{directory / name}")
            else:
                host = "127.0.0.1" if transport == "tcp" else "::1"
                family = socket.AF_INET if transport == "tcp" else socket.AF_INET6
                listener = socket.socket(family)
                listener.bind((host, 0))
                host = host if transport == "tcp" else f"[{host}]"
                self.addresses.append(f"tcp://{host}:{listener.getsockname()[1]}")
            listener.listen()
            self.listeners.append(listener)
        fds = [self.http.fileno(), *(listener.fileno() for listener in self.listeners)]
        self.process = subprocess.Popen(
            [
                *(binary, "frontend", "--listen-fd", str(fds[0])),
                *("--input-listener-fd", str(fds[1]), "--output-listener-fd", str(fds[2])),
                *("--engine-start-index", "0", "--engine-count", str(engine_count)),
                *("--data-parallel-size", "1", "--args-json", '{"model": "m"}'),
            ],
            pass_fds=fds,
            env={**os.environ, **env, "STAGING_TEST_FRONTEND_DO": actions},
            stderr=subprocess.PIPE,
        )
        for held in (self.http, *self.listeners):
            held.close()

    def until_serving(self):
        for line in self.process.stderr:
            if line.endswith(b": serving\n"):
                return self
        raise AssertionError(f"the frontend ended with {self.process.wait()}")

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def state(self):
        return json.loads(self.ask("GET", "/state")[1])

    def end(self):
        for pid in self.grandchildren:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.stderr.close()
        return self.process.wait(30)


@pytest.fixture
def start(frontend_binary, frontend_env, tmp_path):
    running = []

    def start_one(**options):
        directory = tmp_path / str(len(running))
        directory.mkdir()
        running.append(Running(frontend_binary, frontend_env, directory, **options))
        return running[-1]

    yield start_one
    for frontend in running:
        frontend.end()


@contextlib.contextmanager
def engine(frontend, *, identity=b"\0\0"):
    """Connect an engine that says hello; yield a function that answers one request."""
    with zmq.Context() as context:
        with context.socket(zmq.DEALER) as dealer, context.socket(zmq.PUSH) as push:
            for held in (dealer, push):
                held.linger = 0
                held.ipv6 = True
            dealer.identity = identity
            dealer.rcvtimeo = 30_000
            dealer.connect(frontend.addresses[0])
            push.connect(frontend.addresses[1])
            dealer.send(b"HELLO")

            def answer_one(transform=bytes.upper):
                request_id, payload = dealer.recv_multipart()
                push.send_multipart([request_id, transform(payload)])

            yield answer_one


def until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("transport", ["ipc", "tcp", "tcp6"])
def test_a_request_goes_to_the_engine_and_back_over_inherited_listeners(start, transport):
    frontend = start(transport=transport).until_serving()
    assert frontend.ask("GET", "/ready")[0] == 503
    assert frontend.ask("POST", "/echo", b"early")[0] == 503
    with engine(frontend) as answer_one:
        until(lambda: frontend.ask("GET", "/ready")[0] == 200)
        connection = http.client.HTTPConnection("127.0.0.1", frontend.port, timeout=30)
        with contextlib.closing(connection):
            for _ in range(2):  # one connection, kept alive
                connection.request("POST", "/echo", b"hello \0 engine")
                answer_one()
                answer = connection.getresponse()
                assert (answer.status, answer.read()) == (200, b"HELLO \0 ENGINE")


def test_the_packages_own_engine_serves_it(start):
    frontend = start(engine_count=2).until_serving()
    stop = threading.Event()
    context = EngineContext([frontend.addresses[0]], [frontend.addresses[1]])
    engines = [
        threading.Thread(
            target=run_echo_engine, args=(context,), kwargs={"engine_index": i, "stop": stop}
        )
        for i in range(2)
    ]
    for thread in engines:
        thread.start()
    try:
        until(lambda: frontend.ask("GET", "/ready")[0] == 200)
        for i in range(10):
            assert frontend.ask("POST", "/echo", b"%d" % i) == (200, b"%d" % i)
    finally:
        stop.set()
        for thread in engines:
            thread.join(60)


def test_it_tells_what_it_was_told_and_holds_exactly_the_descriptors_it_was_handed(start):
    state = start(engine_count=3).until_serving().state()
    assert state["args"] == {"model": "m"}
    assert state["engine_count"] == 3
    assert len(state["inherited_fds"]) == 3 + 3  # the standard streams, and the three passed


def test_sigterm_finishes_the_answer_under_way_and_exits_zero(start):
    frontend = start().until_serving()
    with engine(frontend) as answer_one:
        until(lambda: frontend.ask("GET", "/ready")[0] == 200)
        connection = http.client.HTTPConnection("127.0.0.1", frontend.port, timeout=30)
        with contextlib.closing(connection):
            connection.request("POST", "/echo", b"x")
            until(lambda: frontend.ask("GET", "/state")[0] == 200)  # the request was read
            frontend.process.send_signal(signal.SIGTERM)
            until(lambda: refuses(frontend.port))
            answer_one()
            assert connection.getresponse().read() == b"X"
    assert frontend.process.wait(30) == 0


def refuses(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize(
    ("action", "code"), [("exit=7", 7), ("exit=0", 0), ("crash", -signal.SIGSEGV)]
)
def test_it_ends_as_it_is_told_at_start_or_later(start, action, code):
    assert start(actions=action).process.wait(30) == code
    frontend = start().until_serving()
    with contextlib.suppress(OSError, http.client.HTTPException):
        frontend.ask("POST", f"/do/{action}")
    assert frontend.process.wait(30) == code


@pytest.mark.parametrize("action", ["hang", "ignore-sigterm"])
def test_it_outlives_sigterm_when_told_to(start, action):
    frontend = start(actions=action)
    if action == "ignore-sigterm":
        frontend.until_serving()
    else:  # its handler stands before it hangs: wait until the signal is caught
        status = pathlib.Path(f"/proc/{frontend.process.pid}/status")
        until(lambda: catches_sigterm(status.read_text()))
    frontend.process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        frontend.process.wait(0.3)
    assert frontend.end() == -signal.SIGKILL


def catches_sigterm(status):
    (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("own_session", [False, True])
def test_it_leaves_a_grandchild_that_ignores_sigterm(start, own_session):
    action = "setsid-grandchild" if own_session else "fork-grandchild"
    frontend = start().until_serving()
    state = json.loads(frontend.ask("POST", f"/do/{action}")[1])
    (grandchild,) = frontend.grandchildren = state["grandchildren"]
    until(lambda: (os.getsid(grandchild) != os.getsid(state["pid"])) == own_session)
    os.kill(grandchild, signal.SIGTERM)
    time.sleep(0.05)
    os.kill(grandchild, 0)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "the command 'frontend'"),
        (["frontend"], "--listen-fd is missing"),
        (["frontend", "--listen-fd", "x"], "--listen-fd: 'x' is not an integer"),
        (["frontend", "--listen-fd"], "--listen-fd: its value is missing"),
        (["frontend", "--bogus", "1"], "--bogus: unknown option"),
    ],
)
def test_a_wrong_command_line_is_an_error_that_names_the_option(
    frontend_binary, arguments, complaint
):
    result = subprocess.run(
        [frontend_binary, *arguments], stderr=subprocess.PIPE, text=True, timeout=30, check=False
    )
    assert result.returncode == 2
    assert complaint in result.stderr


def test_a_descriptor_that_does_not_listen_is_refused(frontend_binary, frontend_env, tmp_path):
    with socket.socket() as http_socket, socket.socket(socket.AF_UNIX) as unbound:
        http_socket.bind(("127.0.0.1", 0))
        fds = [http_socket.fileno(), unbound.fileno()]
        result = subprocess.run(
            [
                *(frontend_binary, "frontend", "--listen-fd", str(fds[0])),
                *("--input-listener-fd", str(fds[1]), "--output-listener-fd", str(fds[1])),
                *("--engine-start-index", "0", "--engine-count", "1"),
                *("--data-parallel-size", "1", "--args-json", "{}"),
            ],
            pass_fds=fds,
            env={**os.environ, **frontend_env},
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
            check=False,
        )
    assert result.returncode == 1
    assert "is not a listening socket" in result.stderr
