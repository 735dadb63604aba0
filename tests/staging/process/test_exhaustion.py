"""A server that runs out of something says so, ends with an error, and leaves nothing."""

from __future__ import annotations

import errno
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
HERE = pathlib.Path(__file__).parent
FAULTY = HERE / "support" / "faulty_serve.py"
SERVE = ["-m", "staging", "serve"]
OPTIONS = ["asgi_apps:plain", "--port", "0", "--shutdown-timeout", "3"]

# How long it may take to be ready or to give up. Only a hang reaches it.
LIMIT_S = 60.0

# Minutes; `make sweep` runs it.
sweep = pytest.mark.skipif("STAGING_SWEEP" not in os.environ, reason="make sweep runs it")

# What the supervisor calls to start, watch and end processes.
CALLS = {
    "os.pipe": errno.EMFILE,
    "os.listdir": errno.EMFILE,
    "os.open": errno.EMFILE,
    "os.dup": errno.EMFILE,
    "os.pidfd_open": errno.EMFILE,
    "os.eventfd": errno.EMFILE,
    "os.waitid": errno.ENOMEM,
    "select.poll": 0,
    "socket.socketpair": errno.EMFILE,
    "socket.send_fds": errno.ENOBUFS,
    "signal.pidfd_send_signal": errno.ENOMEM,
    # What subprocess calls, under its name there.
    "subprocess._fork_exec"
    if hasattr(subprocess, "_fork_exec")
    else "_posixsubprocess.fork_exec": errno.EAGAIN,
    "threading._start_new_thread": errno.EAGAIN,
}


def run(tmp_path, command, **limits):
    """Serve until ready, then ask it to end; return its exit code and what it has logged."""
    ipc = tmp_path / "ipc"
    ipc.mkdir(exist_ok=True)
    log = tmp_path / "log"

    def limit():
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, name), (value, value))

    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *command, *OPTIONS],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE / "apps")]),
                "STAGING_RPC_BASE_PATH": str(ipc),
                "APP_EVENTS": os.devnull,
            },
            stdout=file,
            stderr=file,
            preexec_fn=limit,  # noqa: PLW1509 - no thread runs here
        )
    deadline = time.monotonic() + LIMIT_S
    asked = False
    while process.poll() is None:
        if not asked and "ready after" in log.read_text(errors="replace"):
            asked = True
            process.send_signal(signal.SIGTERM)
        if time.monotonic() > deadline:
            process.kill()
            process.wait()
            pytest.fail(f"it hangs:\n{log.read_text(errors='replace')}")
        time.sleep(0.01)
    return process.returncode, log.read_text(errors="replace"), ipc


def check(household, code, text, ipc):
    household.expect_empty(10.0)
    assert not list(ipc.iterdir()), text
    if code == 0:
        assert "ready after" in text  # it has coped with it
        assert "ended cleanly" in text
        return
    # The test's SIGTERM may come when the server has just failed, and then forces its end.
    assert code in {1, 3, 128 + signal.SIGTERM}, text
    own = [line for line in text.splitlines() if line.startswith(("[serve", "staging serve"))]
    assert [line for line in own if "ERROR" in line or "cannot start" in line], text
    assert not [line for line in own if "Traceback" in line], text


@pytest.mark.parametrize("descriptors", [14, 20, 26, 30, 34, 38, 44])
def test_a_server_short_of_descriptors_ends_and_leaves_nothing(household, tmp_path, descriptors):
    command = [*SERVE, "--engine", "none", "--api-servers", "2"]
    check(household, *run(tmp_path, command, RLIMIT_NOFILE=descriptors))


@sweep
@pytest.mark.parametrize("descriptors", range(10, 81))
def test_with_any_number_of_descriptors_it_ends_and_leaves_nothing(
    household, tmp_path, descriptors
):
    command = [*SERVE, "--engine", "none", "--api-servers", "8"]
    check(household, *run(tmp_path, command, RLIMIT_NOFILE=descriptors))


@sweep
@pytest.mark.parametrize("mebibytes", range(20, 400, 10))
def test_with_any_amount_of_memory_it_ends_and_leaves_nothing(household, tmp_path, mebibytes):
    code, text, ipc = run(tmp_path, [*SERVE, "--engine", "none"], RLIMIT_AS=mebibytes << 20)
    household.expect_empty(10.0)
    assert not list(ipc.iterdir()), text
    assert code != 0 or "ended cleanly" in text


@pytest.mark.parametrize("call", CALLS)
def test_a_first_call_that_fails_is_coped_with_or_ends_the_server(household, tmp_path, call):
    command = [str(FAULTY), call, "1", str(CALLS[call]), "--engine", "none"]
    check(household, *run(tmp_path, command))


@sweep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("call", CALLS)
def test_any_call_that_fails_is_coped_with_or_ends_the_server(household, tmp_path, call):
    _, text, _ = run(tmp_path, [str(FAULTY), call, "0", "0", "--engine", "none"])
    count = int(text.rpartition("CALLS ")[2])
    # All of few; of the many that watching makes, some at even distances.
    for nth in sorted({*range(1, min(count, 12) + 1), *range(1, count + 1, max(1, count // 12))}):
        command = [str(FAULTY), call, str(nth), str(CALLS[call]), "--engine", "none"]
        check(household, *run(tmp_path, command))
