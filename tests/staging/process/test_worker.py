"""A worker serves on the inherited socket, and obeys SIGTERM at any moment."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import sys
import time
from types import SimpleNamespace

import pytest

from staging.process.children import ChildProcess
from staging.process.worker import _new_event_loop, load_app, run_api_server_worker_proc

APPS = pathlib.Path(__file__).parent / "apps"

# Seconds from SIGTERM to the end that the workers here are given. Where a deadline is
# tested, three times as much may pass.
LIMIT = 1.0


class Events:
    """What an application has noted so far."""

    def __init__(self, path):
        self.path = path

    def list(self):
        return self.path.read_text().split("\n")[:-1] if self.path.exists() else []

    def wait_for(self, event, count=1):
        until(lambda: self.list().count(event) >= count)


def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def events(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(APPS))
    monkeypatch.setenv("APP_EVENTS", str(tmp_path / "events"))
    return Events(tmp_path / "events")


class Worker:
    """A worker process, and the port that it serves."""

    def __init__(self, app, *, index=0, config=None, args=None, sock=None, **uvicorn_kwargs):
        with contextlib.ExitStack() as stack:
            if sock is None:
                sock = stack.enter_context(socket.socket())
                sock.bind(("127.0.0.1", 0))
                sock.listen()  # a connection that comes early waits
            self.port = sock.getsockname()[1]
            self.process = ChildProcess(
                target=run_api_server_worker_proc,
                name=f"ApiServer_{index}",
                args=(
                    f"http://127.0.0.1:{self.port}",
                    sock,
                    SimpleNamespace(**{"app": app, "shutdown_timeout": LIMIT, **(args or {})}),
                    {"client_index": index, **(config or {})},
                ),
                kwargs=uvicorn_kwargs,
            )
            self.process.start()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def get(self, path="/"):
        with contextlib.closing(self.connect()) as connection:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())

    def terminate(self, signum=signal.SIGTERM):
        os.kill(self.process.pid, signum)
        return time.monotonic()

    def exit_code(self, seconds=60.0):
        self.process.join(seconds)
        return self.process.exitcode


@pytest.fixture
def start():
    workers = []

    def start_one(*args, **kwargs):
        workers.append(Worker(*args, **kwargs))
        return workers[-1]

    yield start_one
    for worker in workers:
        worker.process.kill()
        worker.process.join()
        worker.process.close()


# -- serving ------------------------------------------------------------------------------


def test_it_serves_the_application_which_finds_its_configuration_in_its_state(start, events, capfd):
    worker = start("asgi_apps:plain", index=3)
    events.wait_for("started")
    answer = worker.get("/?token=hunter2&max_tokens=7")
    assert answer["pid"] == worker.process.pid
    assert answer["index"] == 3
    assert answer["loop"].startswith("uvloop")
    title = pathlib.Path(f"/proc/{worker.process.pid}/cmdline").read_bytes()
    assert title.rstrip(b"\0") == b"APIServer_3"
    worker.terminate()
    assert worker.exit_code() == 0
    assert events.list() == ["started", "ended"]
    err = capfd.readouterr().err
    prefix = f"[APIServer_3 {worker.process.pid}] "
    assert all(line.startswith(prefix) for line in err.splitlines())
    assert f"serving on http://127.0.0.1:{worker.port}" in err
    assert "max_tokens=7" in err
    assert "hunter2" not in err


def test_it_serves_on_asyncio_where_told_so_and_where_uvloop_is_missing(start, events, monkeypatch):
    worker = start("asgi_apps:plain", loop="asyncio")
    events.wait_for("started")
    assert worker.get()["loop"].startswith("asyncio")
    worker.terminate()
    assert worker.exit_code() == 0
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = _new_event_loop("auto")
    assert type(loop).__module__.startswith("asyncio")
    loop.close()
    with pytest.raises(ImportError):
        _new_event_loop("uvloop")


def test_held_connections_are_spread_evenly_over_workers_that_share_a_socket(start, events):
    from multiprocessing.sharedctypes import RawArray

    workers, held = 4, 64
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        loads = RawArray("i", [2**31 - 1] * workers)
        running = [
            start("asgi_apps:plain", index=i, sock=sock, config={"api_server_loads": loads})
            for i in range(workers)
        ]
    events.wait_for("started", workers)
    until(lambda: 2**31 - 1 not in list(loads))
    connections = [running[0].connect() for _ in range(held)]
    counts = dict.fromkeys(range(workers), 0)
    for connection in connections:
        connection.request("GET", "/")
        counts[json.loads(connection.getresponse().read())["index"]] += 1
    assert sum(counts.values()) == held
    # A worker that the machine holds up for 50 ms may be passed over.
    assert min(counts.values()) >= held // workers // 2, counts
    until(lambda: sum(loads) == held)
    for connection in connections:
        connection.close()
    until(lambda: list(loads) == [0] * workers)
    running[0].terminate()
    assert running[0].exit_code() == 0
    assert loads[0] == 2**31 - 1  # so that nobody leaves connections to it


# -- SIGTERM at any moment ----------------------------------------------------------------


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_request_under_way_is_finished_and_no_new_one_is_taken(start, events, signum):
    worker = start("asgi_apps:plain", args={"shutdown_timeout": 20.0})
    events.wait_for("started")
    with contextlib.closing(worker.connect()) as connection:
        connection.request("GET", "/slow?0.7")
        events.wait_for("request")
        worker.terminate(signum)
        until(lambda: refuses(worker.port))
        worker.terminate(signum)  # a second one changes nothing
        assert json.loads(connection.getresponse().read())["pid"] == worker.process.pid
    assert worker.exit_code() == 0
    assert events.list() == ["started", "request", "ended"]


def refuses(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_sigterm_before_the_first_instruction_waits_for_the_handler(start):
    worker = start("asgi_apps:plain")
    worker.terminate()
    assert worker.exit_code() == 0


@pytest.mark.parametrize(
    "case",
    [
        ("slow_import:app", ["importing"]),
        ("asgi_apps:slow_start", ["starting", "cleaned up"]),
        ("asgi_apps:blocked_start", ["starting"]),
    ],
    ids=lambda case: case[0],
)
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_sigterm_during_start_up_cancels_it(start, events, capfd, case, loop):
    app, noted = case
    worker = start(app, args={"shutdown_timeout": 20.0}, loop=loop)
    events.wait_for(noted[0])
    asked = worker.terminate()
    assert worker.exit_code() == 0
    assert time.monotonic() - asked < 3 * 2.0  # not the minute that it would have taken
    assert events.list() == noted
    err = capfd.readouterr().err
    assert "Traceback" not in err
    assert "unsupported" not in err


def test_sigterm_at_a_random_moment_always_exits_zero(start):
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for _ in range(3):
        workers = [start("asgi_apps:plain") for _ in range(4)]
        for worker in workers:
            time.sleep(rng.uniform(0, 0.25))
            worker.terminate()
        assert [worker.exit_code() for worker in workers] == [0] * 4, f"seed {seed}"


# -- the deadline -------------------------------------------------------------------------


def test_a_request_that_outlasts_the_deadline_is_cut_off(start, events):
    worker = start("asgi_apps:plain")
    events.wait_for("started")
    with contextlib.closing(worker.connect()) as connection:
        connection.request("GET", "/slow?60")
        events.wait_for("request")
        asked = worker.terminate()
        assert worker.exit_code() == 0
        assert time.monotonic() - asked < 3 * LIMIT
    assert events.list() == ["started", "request", "request cancelled", "ended"]


@pytest.mark.parametrize(
    ("app", "path"),
    [
        ("asgi_apps:hanging_end", None),
        ("asgi_apps:thread_that_stays", None),
        ("asgi_apps:plain", "/block?60"),
    ],
)
def test_a_worker_that_cannot_come_to_its_end_is_ended_in_time(start, events, capfd, app, path):
    worker = start(app)
    events.wait_for("started")
    with contextlib.closing(worker.connect()) as connection:
        if path is not None:
            connection.request("GET", path)
            events.wait_for("request")
        asked = worker.terminate()
        assert worker.exit_code() == 0
        assert time.monotonic() - asked < 3 * LIMIT
    doing = "draining" if path is None else "serving"
    assert f"not drained within 1 s of SIGTERM while {doing}" in capfd.readouterr().err


def test_a_drain_that_was_in_time_says_nothing_of_the_deadline(start, events, capfd):
    worker = start("asgi_apps:plain")
    events.wait_for("started")
    worker.terminate()
    assert worker.exit_code() == 0
    assert "not drained" not in capfd.readouterr().err


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "5", True])
def test_a_wrong_deadline_is_an_error_that_names_it(start, capfd, value):
    worker = start("asgi_apps:plain", args={"shutdown_timeout": value})
    assert worker.exit_code() == 1
    assert f"args.shutdown_timeout={value!r}" in capfd.readouterr().err


# -- failures -----------------------------------------------------------------------------


def test_a_start_up_that_fails_is_a_failure(start, capfd):
    worker = start("asgi_apps:failing_start", lifespan="on")
    assert worker.exit_code() == 3
    assert "this application does not want to start" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("app", "complaint"),
    [
        ("asgi_apps:absent", "args.app='asgi_apps:absent': module 'asgi_apps' has no attribute"),
        ("no_such_module:app", "there is no module 'no_such_module'"),
        ("asgi_apps", "write it as 'module:attribute'"),
        (None, "args.app=None"),
        ("asgi_apps:not_an_app", "'int' is neither an ASGI application nor a factory"),
        ("asgi_apps:broken_factory", "a factory's own mistake"),
    ],
)
def test_an_application_that_cannot_be_loaded_is_a_failure_that_says_why(
    start, capfd, app, complaint
):
    worker = start(app)
    assert worker.exit_code() == 1
    assert complaint in capfd.readouterr().err


def test_an_application_that_misses_a_module_is_not_taken_for_missing(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        load_app("needs_more:app")


def test_a_factory_is_called_and_an_application_is_not():
    async def application(scope, receive, send):
        pass

    async def variadic(*anything):
        pass

    class Callable:
        async def __call__(self, scope, receive, send):
            pass

    instance = Callable()
    assert load_app(application) is application
    assert load_app(variadic) is variadic
    assert load_app(instance) is instance
    assert load_app(lambda: instance) is instance
    assert isinstance(load_app(Callable), Callable)
    assert load_app("asgi_apps:factory") is load_app("asgi_apps:plain")


# -- logging ------------------------------------------------------------------------------


def test_its_logging_is_configured_as_the_arguments_say(start, events, tmp_path, capfd):
    config = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"own": {"format": "own format: %(message)s"}},
        "handlers": {
            "file": {
                "class": "logging.FileHandler",
                "filename": str(tmp_path / "log"),
                "formatter": "own",
            }
        },
        "root": {"handlers": ["file"], "level": "DEBUG"},
    }
    (tmp_path / "logging.json").write_text(json.dumps(config))
    worker = start("asgi_apps:plain", args={"logging_config": str(tmp_path / "logging.json")})
    events.wait_for("started")
    worker.get("/?api_key=hunter2")
    worker.terminate()
    assert worker.exit_code() == 0
    log = (tmp_path / "log").read_text()
    assert "own format: Application startup complete." in log
    assert "api_key=***" in log
    assert "hunter2" not in log
    assert capfd.readouterr().err == ""


def test_no_secret_of_a_request_is_logged_at_the_most_talkative_level(start, events, capfd):
    worker = start("asgi_apps:plain", log_level="trace", config={"password": "hunter2"})
    events.wait_for("started")
    with contextlib.closing(worker.connect()) as connection:
        headers = {"Authorization": "Bearer hunter2", "X-Token": "hunter2"}
        connection.request("GET", "/?api%5Fkey=hunter2&q=1", headers=headers)
        connection.getresponse().read()
    worker.terminate()
    assert worker.exit_code() == 0
    err = capfd.readouterr().err
    assert "ASGI" in err  # the level was reached
    assert "hunter2" not in err
