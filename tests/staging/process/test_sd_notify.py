"""A service manager hears what there is to hear, and can never hold a server up."""

from __future__ import annotations

import os
import socket
import uuid

import pytest

from staging.process.sd_notify import Notifier


@pytest.fixture
def manager():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(30)
        yield sock


@pytest.mark.parametrize("abstract", [False, True])
def test_readiness_and_stopping_are_sent_as_the_protocol_has_them(
    manager, tmp_path, monkeypatch, abstract
):
    name = f"@staging-{uuid.uuid4()}" if abstract else str(tmp_path / "notify")
    manager.bind(name.replace("@", "\0"))
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    notifier = Notifier()
    assert notifier.ready("serving\nWATCHDOG=1")
    assert (
        manager.recv(4096) == f"READY=1\nMAINPID={os.getpid()}\nSTATUS=serving WATCHDOG=1".encode()
    )
    assert notifier.stopping("draining")
    assert manager.recv(4096) == b"STOPPING=1\nSTATUS=draining"


def test_children_do_not_inherit_the_socket(monkeypatch, tmp_path):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    Notifier()
    assert "NOTIFY_SOCKET" not in os.environ


@pytest.mark.parametrize("address", [None, "", "vsock:2:1234", "relative/path"])
def test_without_an_address_nothing_is_sent(monkeypatch, address):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not Notifier().ready("serving")


def test_a_manager_that_is_not_there_is_a_warning(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "absent"))
    assert not Notifier().ready("serving")
    assert "cannot notify" in caplog.text


def test_a_manager_that_does_not_read_does_not_block(manager, monkeypatch, tmp_path):
    manager.bind(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    notifier = Notifier()
    assert not all(notifier.ready("x" * 1000) for _ in range(2000))
