"""Addresses can be bound as they are, or there is an error that says why not."""

from __future__ import annotations

import os
import pathlib
import stat
import subprocess
import sys

import pytest

from staging.process import ZmqListener, get_engine_client_zmq_addr
from staging.process.addresses import MAX_IPC_PATH, RPC_BASE_PATH
from staging.process.guard import guard


@pytest.fixture
def long_base(tmp_path, monkeypatch):
    base = tmp_path / ("x" * 100)
    base.mkdir()
    monkeypatch.setenv(RPC_BASE_PATH, str(base))
    return base


def test_a_local_address_is_in_the_folder_that_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv(RPC_BASE_PATH, "/tmp/base")
    address = get_engine_client_zmq_addr(True, "ignored", 99999)
    assert pathlib.Path(address.removeprefix("ipc://")).parent == pathlib.Path("/tmp/base")


def test_a_local_address_is_in_the_folder_for_temporary_files_otherwise(monkeypatch):
    monkeypatch.delenv(RPC_BASE_PATH, raising=False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/tmp/elsewhere")
    assert get_engine_client_zmq_addr(True, "").startswith("ipc:///tmp/elsewhere/")


def test_local_addresses_are_absolute(monkeypatch):
    monkeypatch.setenv(RPC_BASE_PATH, "relative")
    assert get_engine_client_zmq_addr(True, "").startswith("ipc:///")


def test_no_two_local_addresses_are_the_same():
    assert len({get_engine_client_zmq_addr(True, "") for _ in range(100)}) == 100


def test_a_path_that_would_be_too_long_is_a_short_one_in_a_private_folder(household, long_base):
    address = get_engine_client_zmq_addr(True, "")
    path = pathlib.Path(address.removeprefix("ipc://"))
    assert len(os.fsencode(path)) <= MAX_IPC_PATH
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    other = get_engine_client_zmq_addr(True, "")
    assert pathlib.Path(other.removeprefix("ipc://")).parent == path.parent
    listener = ZmqListener.bind(address)
    listener.cleanup()
    assert not path.parent.exists()
    assert guard().warden_pid is None


def test_the_longest_path_that_fits_is_used(tmp_path, monkeypatch):
    length = MAX_IPC_PATH - 37  # a slash and a uuid
    base = "/tmp/" + "y" * (length - 5)
    monkeypatch.setenv(RPC_BASE_PATH, base)
    address = get_engine_client_zmq_addr(True, "")
    assert address.startswith(f"ipc://{base}/")
    assert len(address.removeprefix("ipc://")) == MAX_IPC_PATH


@pytest.mark.parametrize("end", ["sys.exit()", "os.kill(os.getpid(), 9)"])
def test_a_private_folder_does_not_outlive_its_process(household, long_base, end):
    code = (
        "import os, sys; from staging.process import get_engine_client_zmq_addr; "
        f"print(get_engine_client_zmq_addr(True, ''), flush=True); {end}"
    )
    root = pathlib.Path(__file__).resolve().parents[3]
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True, check=False
    )
    folder = pathlib.Path(result.stdout.strip().removeprefix("ipc://")).parent
    household.expect_empty()
    assert folder.name.startswith("stg-")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("127.0.0.1", 5, "tcp://127.0.0.1:5"),
        ("example.org", 65535, "tcp://example.org:65535"),
        ("::1", 5, "tcp://[::1]:5"),
        ("[::1]", 5, "tcp://[::1]:5"),
        ("127.0.0.1", 0, "tcp://127.0.0.1:0"),
    ],
)
def test_a_remote_address(host, port, address):
    assert get_engine_client_zmq_addr(False, host, port) == address


def test_the_port_is_left_to_the_kernel_by_default():
    assert get_engine_client_zmq_addr(False, "h") == "tcp://h:0"


@pytest.mark.parametrize("host", ["", None, "  "])
def test_a_remote_address_needs_a_host(host):
    with pytest.raises(ValueError, match=r"host is .*: give a name"):
        get_engine_client_zmq_addr(False, host)


@pytest.mark.parametrize("port", [None, -1, 65536, 99999, "80", 1.5, True])
def test_a_port_must_be_one(port):
    with pytest.raises(ValueError, match=r"port is .*: it must be an integer from 0 to 65535"):
        get_engine_client_zmq_addr(False, "h", port)
