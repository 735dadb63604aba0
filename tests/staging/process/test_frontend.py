"""A native frontend is launched with exactly what it needs, and watched to its end."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import gc
import http.client
import json
import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import zmq

from staging.process import (
    RustFrontendProcessManager,
    ZmqListener,
    descendants,
    get_engine_client_zmq_addr,
    pidfd,
    wait_for_completion_or_failure,
)
from staging.process.frontend import _SubprocessWrapper, frontend_arguments
from staging.process.guard import guard


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture(autouse=True)
def base(tmp_path, monkeypatch, household):
    monkeypatch.setenv("STAGING_RPC_BASE_PATH", str(tmp_path))


@pytest.fixture
def sock():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


@pytest.fixture
def script(tmp_path):
    """An executable that dumps what it was given, then does as it is told."""

    def write(then):
        path = tmp_path / "frontend"
        path.write_text(
            f"""#!{sys.executable}
import json, os, signal, sys, time
fds = [int(fd) for fd in os.listdir("/proc/self/fd")]
told = {{"argv": sys.argv[1:], "fds": [], "env": dict(os.environ)}}
for fd in sorted(fds):
    try:
        os.fstat(fd)
        told["fds"].append(fd)
    except OSError:
        pass
with open({str(tmp_path)!r} + "/told.part", "w") as f:
    json.dump(told, f)
os.rename({str(tmp_path)!r} + "/told.part", {str(tmp_path)!r} + "/told")
{then}
"""
        )
        path.chmod(0o755)
        return path

    return write


def told(tmp_path):
    wait_for((tmp_path / "told").exists)
    return json.loads((tmp_path / "told").read_text())


def listeners():
    return [ZmqListener.bind(get_engine_client_zmq_addr(True, "")) for _ in range(2)]


def launch(binary, sock, args=None, ends=None, **options):
    ends = ends or listeners()
    args = argparse.Namespace() if args is None else args
    return RustFrontendProcessManager(binary, sock, args, *ends, 2, 3, 4, **options)


def test_the_command_line_is_that_of_the_frontend(script, sock, tmp_path):
    ends = listeners()
    fds = [sock.fileno(), *(listener.socket.fileno() for listener in ends)]
    with socket.create_server(("127.0.0.1", 0)) as grpc:
        args = argparse.Namespace(model="m", port=1)
        manager = launch(
            script("sys.exit(0)"),
            sock,
            args,
            ends,
            stats_update_address="tcp://h:1",
            grpc_sock=grpc,
        )
        argv = told(tmp_path)["argv"]
        assert argv[:-1] == [
            "frontend",
            *("--listen-fd", str(fds[0])),
            *("--input-listener-fd", str(fds[1])),
            *("--output-listener-fd", str(fds[2])),
            *("--engine-start-index", "2"),
            *("--engine-count", "3"),
            *("--data-parallel-size", "4"),
            *("--grpc-listen-fd", str(grpc.fileno())),
            *("--coordinator-address", "tcp://h:1"),
            "--args-json",
        ]
        assert json.loads(argv[-1])["port"] == 1
        wait_for_completion_or_failure(manager)
        manager.shutdown()


def test_it_inherits_exactly_its_sockets(script, sock, tmp_path):
    ends = listeners()
    fds = {sock.fileno(), *(listener.socket.fileno() for listener in ends)}
    manager = launch(script("time.sleep(1000)"), sock, ends=ends)
    assert set(told(tmp_path)["fds"]) == {0, 1, 2} | fds
    # Of the parent's own, none was made inheritable for other children, and its copies
    # of the listeners are closed.
    assert not os.get_inheritable(sock.fileno())
    assert all(listener.socket.fileno() == -1 for listener in ends)
    manager.shutdown(0)
    assert not [path for path in tmp_path.iterdir() if path.is_socket()]


def test_its_environment_is_the_given_one_and_the_mark(script, sock, tmp_path):
    manager = launch(script(""), sock, env={"ONLY": "this", "PATH": os.environ["PATH"]})
    env = told(tmp_path)["env"]
    assert env["ONLY"] == "this"
    assert "HOME" not in env
    assert env[descendants.LINEAGE].startswith(guard().mark)
    manager.shutdown()


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Config:
    size: int
    path: pathlib.Path


def test_without_a_parser_none_is_left_out():
    args = argparse.Namespace(a=None, b=0, c="", model="m", _private=1)
    values = frontend_arguments(args)
    assert values == {
        "b": 0,
        "c": "",
        "model": "m",
        "model_tag": "m",
        "engine_ready_timeout_secs": 600,
        "http_timeout_keep_alive": 5,
    }


def test_with_a_parser_defaults_are_left_out():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="m")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--host")
    parser.add_argument("--flag", action="store_true")
    args = parser.parse_args(["--port", "1"])
    assert "flag" not in frontend_arguments(args, parser)
    assert {k: v for k, v in frontend_arguments(args, parser).items() if "time" not in k} == {
        "port": 1,
        "model_tag": "m",
    }
    args = parser.parse_args([])
    args.port = None
    assert frontend_arguments(args, parser)["port"] is None


def test_a_model_tag_stays():
    args = argparse.Namespace(model="m", model_tag="t")
    assert frontend_arguments(args)["model_tag"] == "t"


def test_what_is_the_supervisors_is_left_out():
    names = (
        "api_server_count",
        "data_parallel_rank",
        "data_parallel_external_lb",
        "data_parallel_hybrid_lb",
    )
    values = frontend_arguments(argparse.Namespace(**dict.fromkeys(names, 1)))
    assert not set(names) & set(values)


def test_timeouts_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("STAGING_ENGINE_READY_TIMEOUT_S", "7")
    monkeypatch.setenv("STAGING_HTTP_TIMEOUT_KEEP_ALIVE", "8")
    values = frontend_arguments(argparse.Namespace(engine_ready_timeout_secs=1))
    assert values["engine_ready_timeout_secs"] == 7
    assert values["http_timeout_keep_alive"] == 8
    monkeypatch.setenv("STAGING_ENGINE_READY_TIMEOUT_S", "soon")
    with pytest.raises(ValueError, match="STAGING_ENGINE_READY_TIMEOUT_S is 'soon'"):
        frontend_arguments(argparse.Namespace())


def test_values_are_made_json():
    args = argparse.Namespace(
        config=Config(1, pathlib.Path("/x")),
        colour=Colour.RED,
        names={"b", "a"},
        pair=(1, 2.5),
        nested={1: [Colour.RED]},
        call=len,
    )
    values = json.loads(json.dumps(frontend_arguments(args)))
    assert values["config"] == {"size": 1, "path": "/x"}
    assert values["colour"] == "red"
    assert values["names"] == ["a", "b"]
    assert values["pair"] == [1, 2.5]
    assert values["nested"] == {"1": ["red"]}
    assert isinstance(values["call"], str)


def test_what_json_has_not_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r"args\.rate cannot be passed on as JSON"):
        frontend_arguments(argparse.Namespace(rate=float("inf")))
    loop = []
    loop.append(loop)
    with pytest.raises(ValueError, match=r"args\.loop .* contains itself"):
        frontend_arguments(argparse.Namespace(loop=loop))
    with pytest.raises(TypeError, match="args is a str"):
        frontend_arguments("text")


@pytest.mark.parametrize(
    ("args", "binary"),
    [
        (argparse.Namespace(rate=float("nan")), "/bin/true"),
        ("not a namespace", "/bin/true"),
        (argparse.Namespace(), "/nonexistent/frontend"),
    ],
)
def test_a_failure_while_launching_cleans_the_listeners_up(sock, tmp_path, args, binary):
    ends = listeners()
    with pytest.raises((ValueError, TypeError, OSError)):
        launch(binary, sock, args, ends)
    assert all(listener.socket.fileno() == -1 for listener in ends)
    assert not [path for path in tmp_path.iterdir() if path.is_socket()]
    assert guard().warden_pid is None


SECRET = "s3cr3t-v4lu3"


def secretive():
    return argparse.Namespace(
        model="m",
        tokenizer="visible-tokenizer",
        max_num_batched_tokens=8192,
        hf_token=SECRET,
        api_key=[SECRET],
        nested={"list": [{"db_password": SECRET}], "json": json.dumps({"secret": SECRET})},
        watermark_config={"key": SECRET},
    )


def test_secrets_are_in_no_log_line_but_reach_the_frontend(script, sock, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    manager = launch(script("sys.exit(3)"), sock, secretive())
    with pytest.raises(RuntimeError, match="died with exit code 3"):
        wait_for_completion_or_failure(manager)
    manager.shutdown()
    assert SECRET not in caplog.text
    assert SECRET not in repr(manager.processes) + repr(manager.processes[0]._proc)
    line = next(r.getMessage() for r in caplog.records if "Launching" in r.getMessage())
    assert line.startswith("Launching Rust frontend: ")
    assert line.count("\n") == 0
    assert '"hf_token": "***"' in line
    assert '"api_key": "***"' in line
    assert "visible-tokenizer" in line
    assert "8192" in line
    assert json.loads(told(tmp_path)["argv"][-1])["hf_token"] == SECRET


def test_secrets_are_in_no_log_line_when_the_launch_fails(sock, caplog):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(OSError, match="nonexistent") as caught:
        launch("/nonexistent/frontend", sock, secretive())
    assert SECRET not in caplog.text + str(caught.value)
    args = secretive()
    args.api_key = [SECRET, float("nan")]
    with pytest.raises(ValueError, match=r"args\.api_key") as caught:
        launch("/bin/true", sock, args)
    assert SECRET not in caplog.text + str(caught.value)


def test_a_replaced_popen_is_called_and_its_poll_is_trusted(sock, monkeypatch, caplog):
    class Ended:
        pid = os.getppid()  # somebody else's: it must not be touched
        returncode = 0

        def poll(self):
            return 0

        def wait(self, timeout=None):
            return 0

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **kwargs: Ended())
    manager = launch("/nonexistent/frontend", sock, secretive())
    assert "Launching Rust frontend:" in caplog.text
    assert manager.processes[0].exitcode == 0
    assert not manager.processes[0].is_alive()
    wait_for_completion_or_failure(manager)
    assert manager.shutdown().processes[0].outcome == "ended before"


def wrapped(code="import time; time.sleep(1000)", name="child", **options):
    process = subprocess.Popen([sys.executable, "-S", "-c", code], **options)
    return process, _SubprocessWrapper(process, name)


def test_the_wrapper_has_the_members_of_a_process():
    process, wrapper = wrapped()
    assert (wrapper.name, wrapper.pid, wrapper.exitcode) == ("child", process.pid, None)
    assert wrapper.is_alive()
    assert pidfd.wait_any([wrapper.sentinel], 0) == []
    wrapper.join(0.05)
    wrapper.terminate()
    wrapper.join(20)
    assert wrapper.exitcode == process.returncode == -signal.SIGTERM
    assert not wrapper.is_alive()
    assert pidfd.wait_any([wrapper.sentinel], 0) == [wrapper.sentinel]
    wrapper.terminate()
    wrapper.kill()


def test_kill_is_sigkill():
    _, wrapper = wrapped()
    wrapper.kill()
    wrapper.join()
    assert wrapper.exitcode == -signal.SIGKILL


def test_an_unknown_code_is_none_and_not_0():
    # Popen says 0 for a child that somebody else has reaped.
    process, wrapper = wrapped("raise SystemExit(7)")
    assert os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1]) == 7
    wrapper.join(20)
    assert wrapper.exitcode is None
    assert not wrapper.is_alive()


def test_a_code_that_popen_knows_is_known():
    process, wrapper = wrapped("raise SystemExit(7)")
    assert process.wait(20) == 7
    assert wrapper.exitcode == 7
    process, _ = wrapped("raise SystemExit(8)")
    process.wait(20)
    assert _SubprocessWrapper(process, "late").exitcode == 8


@pytest.mark.parametrize("code", [0, 7])
def test_without_pidfds_a_pipe_tells_of_the_end(monkeypatch, code):
    def refuse(pid, flags=0):
        raise OSError(38, "Function not implemented")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", refuse)
        _, wrapper = wrapped(f"import time; time.sleep(0.1); raise SystemExit({code})")
    assert wrapper.pidfd is None
    assert wrapper.is_alive()
    assert pidfd.wait_any([wrapper.sentinel], 20) == [wrapper.sentinel]
    wrapper.join(20)
    assert wrapper.exitcode == code


def test_without_pidfds_it_can_be_ended(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", lambda pid, flags=0: (_ for _ in ()).throw(OSError()))
        _, wrapper = wrapped()
    wrapper.terminate()
    wrapper.join(20)
    assert wrapper.exitcode == -signal.SIGTERM


def test_wrappers_give_their_descriptors_back():
    def run():
        process, wrapper = wrapped("")
        wrapper.join(20)
        return process

    run()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        run()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_threads_that_ask_at_once_get_the_same_answer():
    _, wrapper = wrapped("raise SystemExit(7)")
    codes = []

    def ask():
        wrapper.join()
        codes.append(wrapper.exitcode)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [7] * 4


# --- With the native frontend ---------------------------------------------------------


class Native:
    """The test frontend under its manager, and an engine's two sockets."""

    def __init__(self, binary, env, sock, actions=""):
        self.port = sock.getsockname()[1]
        self.ends = listeners()
        self.manager = RustFrontendProcessManager(
            binary,
            sock,
            argparse.Namespace(model="m"),
            *self.ends,
            0,
            1,
            1,
            env={**os.environ, **env, "STAGING_TEST_FRONTEND_DO": actions},
        )

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def until_serving(self):
        assert self.ask("GET", "/state")[0] == 200
        return self


@pytest.fixture
def native(frontend_binary, frontend_env, sock):
    started = []

    def start(actions=""):
        started.append(Native(frontend_binary, frontend_env, sock, actions))
        return started[-1]

    yield start
    for frontend in started:
        frontend.manager.shutdown(0)


def test_a_request_goes_through_it_to_an_engine_and_back(native):
    frontend = native()
    with zmq.Context() as context:
        dealer, push = context.socket(zmq.DEALER), context.socket(zmq.PUSH)
        dealer.identity, dealer.rcvtimeo = b"\0\0", 20_000
        dealer.connect(frontend.ends[0].address)
        push.connect(frontend.ends[1].address)
        dealer.send(b"HELLO")

        def serve():
            request, payload = dealer.recv_multipart()
            push.send_multipart([request, payload.upper()])

        engine = threading.Thread(target=serve)
        engine.start()
        wait_for(lambda: frontend.ask("GET", "/ready")[0] == 200)
        assert frontend.ask("POST", "/echo", b"hello") == (200, b"HELLO")
        engine.join()
        dealer.close(linger=0)
        push.close(linger=0)
    report = frontend.manager.shutdown()
    assert (report.processes[0].outcome, report.processes[0].exitcode) == ("terminated", 0)


@pytest.mark.parametrize(("action", "code"), [("exit=7", 7), ("crash", -11)])
def test_its_failure_is_told(native, action, code):
    frontend = native(action)
    with pytest.raises(RuntimeError, match=rf"Process RustFrontend .* died with exit code {code}$"):
        wait_for_completion_or_failure(frontend.manager)


def test_its_grandchildren_end_with_it(native, household):
    frontend = native("fork-grandchild,setsid-grandchild").until_serving()
    frontend.manager.shutdown()
    household.expect_empty()


def test_its_grandchildren_end_when_it_crashes(native, household):
    frontend = native("fork-grandchild,setsid-grandchild").until_serving()
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        frontend.ask("POST", "/do/crash")
    with pytest.raises(RuntimeError, match="died with exit code -11"):
        wait_for_completion_or_failure(frontend.manager)
    # Nobody has asked for a shutdown yet; the warden still guards the ipc sockets.
    wait_for(lambda: all("warden" in line for line in household.leftovers()))


def test_one_that_ignores_sigterm_is_killed_after_the_grace_of_five_seconds(native, monkeypatch):
    frontend = native("ignore-sigterm").until_serving()
    # As its users know it: at least five seconds, whatever is asked for.
    assert frontend.manager._set._min_grace == 5.0
    frontend.manager._set._min_grace = 0.3
    report = frontend.manager.shutdown(0)
    assert report.processes[0].outcome == "killed"
