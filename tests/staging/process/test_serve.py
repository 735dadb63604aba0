"""A server serves through every worker and engine, ends in order, and leaves nothing."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from staging.process import serve

ROOT = pathlib.Path(__file__).resolve().parents[3]
APPS = pathlib.Path(__file__).parent / "apps"

ECHO = "staging.process.echo_app:app"

# How often a test that depends on the moment is repeated; a soak does it more often.
ROUNDS = int(os.environ.get("STAGING_SOAK_ROUNDS", "3"))

pytestmark = pytest.mark.usefixtures("household")


class Server:
    """A server in a process of its own, and what it has logged."""

    def __init__(self, folder, *args, env, command=(), **popen):
        self.ipc = folder / "ipc"
        self.ipc.mkdir()
        self.log = folder / "log"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(APPS)]),
            "STAGING_RPC_BASE_PATH": str(self.ipc),
            **env,
        }
        arguments = [*command, sys.executable, "-m", "staging", "serve", *args]
        if "--port" not in args:
            arguments += ["--port", "0"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                arguments, env=environment, stderr=log, stdout=log, cwd=folder, **popen
            )

    def text(self):
        return self.log.read_text(errors="replace")

    def until_logged(self, pattern, seconds=60.0):
        until(lambda: re.search(pattern, self.text()) or self.process.poll() is not None, seconds)
        found = re.search(pattern, self.text())
        assert found, f"ended with {self.process.poll()} without {pattern!r}:\n{self.text()}"
        return found

    def until_ready(self):
        self.until_logged("ready after")
        return self

    @property
    def port(self):
        return int(self.until_logged(r"listening on http://\S*:(\d+)")[1])

    def connect(self, host="127.0.0.1"):
        return http.client.HTTPConnection(host, self.port, timeout=60)

    def ask(self, method, path, body=None, host="127.0.0.1"):
        with contextlib.closing(self.connect(host)) as connection:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

    def health(self):
        status, _, body = self.ask("GET", "/health")
        return status, json.loads(body)

    def pids(self):
        return {entry["name"]: entry["pid"] for entry in self.health()[1]["processes"]}

    def send(self, signum=signal.SIGTERM):
        self.process.send_signal(signum)
        return time.monotonic()

    def exit_code(self, seconds=60.0):
        code = self.process.wait(seconds)
        # The warden may need a moment after a supervisor that was killed.
        until(lambda: not list(self.ipc.iterdir()), 3.0)
        return code


def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def start(tmp_path):
    servers = []

    def start_one(*args, env=(), **kwargs):
        folder = tmp_path / str(len(servers))
        folder.mkdir()
        environment = {"SERVE_FOLDER": str(tmp_path), "APP_EVENTS": os.devnull, **dict(env)}
        servers.append(Server(folder, *args, env=environment, **kwargs))
        return servers[-1]

    yield start_one
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


# -- serving ------------------------------------------------------------------------------


def test_requests_go_through_every_worker_to_every_engine_and_back(start):
    server = start(ECHO, "--api-servers", "3", "--engines", "2").until_ready()
    payload = bytes(range(256)) * 400
    workers, engines = set(), set()
    connections = []
    while workers != {"0", "1", "2"} and len(connections) < 60:
        # Held, so that the next one goes to another worker: at once, unless the machine is
        # so busy that the worker whose turn it is takes more than 50 ms to accept.
        connections.append(server.connect())
        for _ in range(2):
            connections[-1].request("POST", "/echo", payload)
            answer = connections[-1].getresponse()
            assert answer.status == 200
            assert answer.read() == payload
            workers.add(answer.headers["x-worker"])
            engines.add(answer.headers["x-engine"])
    assert workers == {"0", "1", "2"}
    assert engines == {"0", "1"}

    status, report = server.health()
    assert (status, report["status"]) == (200, "ok")
    names = [entry["name"] for entry in report["processes"]]
    assert names == ["EngineCore_0", "EngineCore_1", "ApiServer_0", "ApiServer_1", "ApiServer_2"]
    assert all(entry["state"] == "ready" for entry in report["processes"])
    assert all(entry["condition"] == "running" for entry in report["processes"])
    requests = sum(entry["requests"] for entry in report["processes"])
    assert requests == 2 * len(connections)
    assert all(entry["rss_bytes"] > 2**20 for entry in report["processes"])
    assert server.ask("GET", "/ready")[0] == 200
    assert server.ask("POST", "/ready")[0] == 405
    assert server.ask("HEAD", "/health")[2] == b""
    for connection in connections:
        connection.close()

    server.send()
    assert server.exit_code() == 0
    assert "Traceback" not in server.text()


def test_a_request_under_way_is_answered_because_frontends_end_before_engines(start, tmp_path):
    server = start("serve_apps:app", "--api-servers", "2").until_ready()
    with contextlib.closing(server.connect()) as connection:
        connection.request("POST", "/slow", b"still there?")
        until((tmp_path / "seen-slow").exists)
        server.send()
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"still there?")
    assert server.exit_code() == 0
    refused = socket.socket()
    with refused:
        assert refused.connect_ex(("127.0.0.1", server.port)) != 0


def test_a_new_server_starts_on_the_same_port_at_once(start):
    first = start(ECHO).until_ready()
    port = str(first.port)
    first.ask("POST", "/echo", b"leaves a connection in TIME_WAIT")
    second = start(ECHO, "--port", port)
    assert second.exit_code() == 1  # not while the first one has it
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in second.text()
    first.send()
    assert first.process.wait(60) == 0
    third = start(ECHO, "--port", port)
    third.until_ready().send()
    assert third.exit_code() == 0


def test_it_is_ready_only_once_every_worker_is(start, tmp_path):
    (tmp_path / "wait").touch()
    server = start("serve_apps:app", "--api-servers", "2")
    server.until_logged(r"APIServer_0 \d+\].*serving on")
    assert server.ask("GET", "/ready")[0] == 503
    status, report = server.health()
    assert (status, report["status"]) == (200, "starting")
    assert {e["name"]: e["state"] for e in report["processes"]}["ApiServer_1"] == "starting"
    assert "ready after" not in server.text()
    (tmp_path / "go").touch()
    server.until_ready()
    assert server.ask("GET", "/ready")[0] == 200
    server.send()
    assert server.exit_code() == 0


def test_it_serves_on_ipv6(start):
    server = start(ECHO, "--host", "::1").until_ready()
    assert f"listening on http://[::1]:{server.port}" in server.text()
    assert server.ask("POST", "/echo", b"six", host="::1")[2] == b"six"
    server.send()
    assert server.exit_code() == 0


def test_it_serves_without_engines(start):
    server = start("asgi_apps:plain", "--engine", "none").until_ready()
    assert [entry["name"] for entry in server.health()[1]["processes"]] == ["ApiServer_0"]
    server.send()
    assert server.exit_code() == 0


# -- signals ------------------------------------------------------------------------------


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP])
def test_other_signals_drain_as_sigterm_does(start, signum):
    server = start(ECHO).until_ready()
    server.send(signum)
    assert server.exit_code() == 0
    assert f"{signum.name}: draining" in server.text()


def test_a_hangup_that_was_ignored_at_the_start_stays_ignored(start):
    nohup = shutil.which("nohup")
    server = start(ECHO, command=[nohup]).until_ready()
    server.send(signal.SIGHUP)
    time.sleep(0.2)
    assert server.ask("GET", "/ready")[0] == 200
    server.send()
    assert server.exit_code() == 0


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_kills_what_is_left(start, tmp_path, second):
    server = start("serve_apps:app", "--shutdown-timeout", "300").until_ready()
    with contextlib.closing(server.connect()) as connection:
        connection.request("POST", "/hang", b"")
        until((tmp_path / "seen-hang").exists)
        server.send(signal.SIGTERM)
        server.until_logged("SIGTERM: draining")
        time.sleep(0.1)
        asked = server.send(second)
        assert server.exit_code() == 128 + second
        assert time.monotonic() - asked < 3 * 1.0


def test_a_request_that_outlasts_the_deadline_is_cut_off_and_the_end_is_clean(start, tmp_path):
    server = start("serve_apps:app", "--shutdown-timeout", "2").until_ready()
    with contextlib.closing(server.connect()) as connection:
        connection.request("POST", "/hang", b"")
        until((tmp_path / "seen-hang").exists)
        asked = server.send()
        assert server.exit_code() == 0
        assert time.monotonic() - asked < 3 * 2.0


def test_what_has_to_be_killed_at_the_deadline_is_named_and_a_failure(start):
    args = ["--engine", "serve_apps:deaf_engine", "--shutdown-timeout", "1"]
    server = start("asgi_apps:plain", *args).until_ready()
    asked = server.send()
    assert server.exit_code() == 1
    assert time.monotonic() - asked < 3 * 2.0
    assert "EngineCore_0 did not end within its deadline" in server.text()


def lost_by_python(server):
    """Whether Python's own start swallowed a SIGINT, as it can before it runs any program."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.process.wait(20)
    return server.process.poll() is None and "Exception ignored in" in server.text()


@pytest.mark.timeout(60 + 20 * ROUNDS)
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_at_a_random_moment_of_start_up_leaves_nothing(start, household, signum):
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for _ in range(ROUNDS):
        server = start(ECHO, "--api-servers", "2")
        time.sleep(rng.uniform(0, 1.2))
        server.send(signum)
        if signum == signal.SIGINT and lost_by_python(server):
            server.send(signum)
        code = server.exit_code()
        # Before its handlers stand there is nothing that it could have started; Python
        # itself ends with 1 where SIGINT breaks its own start off.
        allowed = {0, -signum, 128 + signum} | ({1} if "listening" not in server.text() else set())
        assert code in allowed, f"seed {seed}: {code}\n{server.text()}"
        household.expect_empty()


def test_a_supervisor_that_is_killed_takes_everything_with_it(start, tmp_path, household):
    server = start("serve_apps:app", "--api-servers", "2").until_ready()
    port = server.port
    with contextlib.closing(server.connect()) as connection:
        connection.request("POST", "/hang", b"")
        until((tmp_path / "seen-hang").exists)
        server.send(signal.SIGKILL)
        assert server.exit_code() == -signal.SIGKILL
        household.expect_empty()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


# -- failures -----------------------------------------------------------------------------


def test_a_worker_that_dies_ends_the_server_and_is_named(start):
    server = start(ECHO, "--api-servers", "2").until_ready()
    pid = server.pids()["ApiServer_1"]
    os.kill(pid, signal.SIGKILL)
    assert server.exit_code() == 1
    assert f"Process ApiServer_1 (PID: {pid}) died with exit code -9" in server.text()


def test_an_engine_that_dies_ends_the_server_and_is_named(start):
    server = start(ECHO, "--engines", "2").until_ready()
    os.kill(server.pids()["EngineCore_1"], signal.SIGKILL)
    assert server.exit_code() == 1
    assert "Engine core process EngineCore_1 died unexpectedly" in server.text()


def test_an_engines_own_exit_code_is_told(start):
    server = start("asgi_apps:plain", "--engine", "serve_apps:failing_engine")
    assert server.exit_code() == 1
    assert "EngineCore_0 died unexpectedly. (exit code 7)" in server.text()


def test_a_stopped_worker_shows_in_the_health_report_and_is_ended(start):
    server = start(ECHO, "--api-servers", "2").until_ready()
    pid = server.pids()["ApiServer_0"]
    os.kill(pid, signal.SIGSTOP)
    until(lambda: pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] == "T")
    status, report = server.health()  # the other one answers, for the whole server
    assert (status, report["status"]) == (503, "failing")
    assert {e["name"]: e["condition"] for e in report["processes"]}["ApiServer_0"] == "stopped"
    server.send()
    assert server.exit_code() == 0


def test_a_start_up_that_takes_too_long_is_a_failure_that_names_who_is_late(start):
    server = start("serve_apps:never", "--api-servers", "2", "--startup-timeout", "1.5")
    assert server.exit_code() == 1
    assert re.search(r"not ready after 1.5 s: .*ApiServer_0, ApiServer_1", server.text())


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["no_such_module:app"], "there is no module 'no_such_module'"),
        ([ECHO, "--engine", "no_such_module:run"], "No module named 'no_such_module'"),
        ([ECHO, "--host", "no.such.host.invalid"], "--host 'no.such.host.invalid'"),
    ],
)
def test_what_cannot_be_started_is_a_failure_that_says_why(start, args, complaint):
    server = start(*args)
    assert server.exit_code() == 1
    assert complaint in server.text()


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ([], "the following arguments are required: app"),
        (["staging"], "write it as module:attribute"),
        ([ECHO, "--port", "65536"], "65536 is not in 0-65535"),
        ([ECHO, "--api-servers", "0"], "0 is less than 1"),
        ([ECHO, "--engine", "ecco"], "give 'echo', 'none', or module:function"),
        ([ECHO, "--shutdown-timeout", "-1"], "-1 is not a number of seconds"),
        ([ECHO, "--shutdown-timeout", "nan"], "nan is not a number of seconds"),
        ([ECHO, "--startup-timeout", "inf"], "inf is not a number of seconds"),
    ],
)
def test_a_wrong_command_line_is_an_error_that_names_the_argument(capsys, args, complaint):
    with pytest.raises(SystemExit) as exit_:
        serve._parse(args)
    assert exit_.value.code == 2
    assert complaint in capsys.readouterr().err


# -- surroundings -------------------------------------------------------------------------


def test_a_service_manager_is_told_and_only_by_the_supervisor(start, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        server = start("serve_apps:app", env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        ready = manager.recv(4096).decode()
        assert ready.startswith(f"READY=1\nMAINPID={server.process.pid}\nSTATUS=serving on http")
        assert "NOTIFY_SOCKET" not in json.loads(server.ask("GET", "/environment")[2])
        server.send()
        assert manager.recv(4096).decode().startswith("STOPPING=1\n")
        assert server.exit_code() == 0
        assert not select.select([manager], [], [], 0)[0]


def test_no_secret_of_a_request_is_logged_at_the_most_talkative_level(start):
    server = start(ECHO, "--log-level", "trace").until_ready()
    with contextlib.closing(server.connect()) as connection:
        headers = {"Authorization": "Bearer hunter2"}
        connection.request("POST", "/echo?api_key=hunter2&x=1", b"hunter2", headers)
        assert connection.getresponse().read() == b"hunter2"
    server.send()
    assert server.exit_code() == 0
    assert "x=1" in server.text()
    assert "hunter2" not in server.text()


def test_it_works_as_process_1_and_reaps_what_it_adopts(start):
    unshare = shutil.which("unshare")
    command = [unshare, "--pid", "--fork", "--kill-child", "--mount-proc"]
    allowed = subprocess.run([*command, "true"], check=False, capture_output=True, timeout=60)
    if allowed.returncode != 0:
        pytest.skip(f"no pid namespaces here: {allowed.stderr.decode().strip()}")
    server = start("serve_apps:app", "--api-servers", "2", command=command).until_ready()
    assert "serve 1]" in server.text()
    assert server.ask("POST", "/echo", b"one")[2] == b"one"
    (supervisor,) = children_of(server.process.pid)
    before = set(children_of(supervisor))
    assert server.ask("POST", "/orphan")[0] == 200
    until(lambda: set(children_of(supervisor)) - before)  # adopted, and soon dead
    until(lambda: not set(children_of(supervisor)) - before)  # reaped
    os.kill(supervisor, signal.SIGTERM)
    assert server.exit_code() == 0
    assert "ended cleanly" in server.text()


def children_of(pid):
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append(int(path.parent.name))
    return found
